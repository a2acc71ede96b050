"""Fuzz campaign: hostile frames for every port of real processes, beside a client that behaves."""
