"""Administration: one operation per function. The command line, which reads options and prints, is in `saturnmq.cli`."""
