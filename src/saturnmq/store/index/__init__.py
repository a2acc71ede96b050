"""The message index."""
