"""Soak runs: hours of load, faults and maintenance on real processes, with memory and handles watched."""
