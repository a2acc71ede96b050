"""Consume queues and their extension files."""
