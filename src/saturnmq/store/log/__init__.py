"""Commit log and its flusher."""
