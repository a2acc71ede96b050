"""Everyday commands: send, tail, consume, bench, doctor, top, completion. All of them use the Python client."""
