"""The harness of our own tests: fault injection, simulation, history checks."""
