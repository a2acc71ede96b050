"""What the synchronous facade is built from."""
