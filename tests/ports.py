"""Allocates ports for servers that start later or restart."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

# Below the ephemeral range (32768 and up on Linux, 49152 elsewhere): the system could give such a port to an outgoing connection
# while its server is not started yet or is restarting, even to a client that connects to that very server.
FIRST, LAST = 15_000, 31_999


def free_port(offsets: Sequence[int] = (0,)) -> int:
    """A port P such that every P + offset can be bound now."""
    for _ in range(500):
        port = random.randint(FIRST, LAST)
        if all(_is_free(port + offset) for offset in offsets):
            return port
    raise RuntimeError(f"no free ports between {FIRST} and {LAST}")


def free_ports(count: int) -> list[int]:
    """`count` different free ports."""
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
