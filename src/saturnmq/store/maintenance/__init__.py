"""Maintenance: retention, deletion, periodic checks."""
