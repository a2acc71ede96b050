"""The puller and queries."""
