"""The commit log and its flusher."""
