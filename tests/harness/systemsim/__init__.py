"""Deterministic event loop for simulations of whole systems."""
