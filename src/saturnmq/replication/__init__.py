"""Replication of the commit log."""
