"""Ports for servers that are started later, or again."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

# Below the range from which systems give ports to outgoing connections (32768 up on Linux, 49152 on others): one of those could
# be given away while its server is not there yet, or down for a moment, even to a client that looks for that very server.
FIRST, LAST = 15_000, 31_999


def free_port(offsets: Sequence[int] = (0,)) -> int:
    """A port P on which every P + offset can be bound now."""
    for _ in range(500):
        port = random.randint(FIRST, LAST)
        if all(_is_free(port + offset) for offset in offsets):
            return port
    raise RuntimeError(f"no free ports between {FIRST} and {LAST}")


def free_ports(count: int) -> list[int]:
    """So many different ports."""
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        if port not in found:
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
