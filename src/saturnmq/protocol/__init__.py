"""Frames, headers, codes, bodies and message bytes. Pure: bytes in, objects out."""
