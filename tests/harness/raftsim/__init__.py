"""Deterministic simulation of Raft groups."""
