"""Master-slave replication as Apache RocketMQ 4.9.7 has it: a slave copies its master's commit log byte by byte."""
