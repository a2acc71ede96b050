"""Consume queues and their extension."""
