"""The console: web pages for operators, over `saturnmq.admin` only.

`app.build` makes the ASGI application from a cluster, a file of users and, if there is one, a history file.
"""
