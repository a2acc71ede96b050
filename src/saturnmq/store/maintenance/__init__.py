"""Maintenance of an open store: background flushes, retention, periodic checks."""
