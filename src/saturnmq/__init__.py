"""SaturnMQ: a message broker compatible with Apache RocketMQ 4.9.7, in Python."""

__version__ = "0.1.0"
