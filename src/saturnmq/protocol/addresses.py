"""Parts of an address in the form `host:port`, as connections report it. An IPv6 host has no brackets there."""

from __future__ import annotations


def host_of(address: str) -> str:
    """The text before the last colon, or all of it without one."""
    host, colon, _ = address.rpartition(":")
    return host if colon else address


def port_of(address: str) -> int:
    """The number after the last colon. Raises ValueError if there is none."""
    return int(address.rpartition(":")[2])
