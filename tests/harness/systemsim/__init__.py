"""Deterministic event loop for whole systems."""
