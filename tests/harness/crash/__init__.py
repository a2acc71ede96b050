"""Crash states of the store."""
