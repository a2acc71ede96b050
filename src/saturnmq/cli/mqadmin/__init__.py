"""`saturnmq admin`: commands with the names, options, defaults, columns and texts that Apache's command line for operators has.

`options` parses, `output` prints text, tables and JSON, `table` lists the commands, `run` runs one of them. The rows and the
functions of a family are in one module each; a function is imported when its command runs.
"""
