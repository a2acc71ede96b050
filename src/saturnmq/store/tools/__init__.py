"""Operator tools for a store that no broker has open: dump, verify, repair."""
