"""Test harness: fault injection, simulation, history checks. Not part of the wheel."""
