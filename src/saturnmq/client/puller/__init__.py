"""Reading without a group: the puller, which reads queues by offset, and message and trace queries."""
