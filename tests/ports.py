"""Allocates ports for servers that start later or restart."""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Sequence

# Below the ephemeral range (32768 and up on Linux, 49152 elsewhere): the system could give such a port to an outgoing connection
# while its server is not started yet or is restarting, even to a client that connects to that very server.
FIRST, LAST = 15_000, 31_999

_given: set[int] = set()  # by this process: a port whose server is down stays reserved


def free_port(offsets: Sequence[int] = (0,)) -> int:
    """A port P such that every P + offset can be bound now; none of them is given again by this process."""
    span = _span()
    for _ in range(500):
        port = random.choice(span)
        wanted = {port + offset for offset in offsets}
        if _given.isdisjoint(wanted) and all(_is_free(number) for number in wanted):
            _given.update(wanted)
            return port
    raise RuntimeError(f"no free ports between {span[0]} and {span[-1]}")


def free_ports(count: int) -> list[int]:
    """`count` different free ports."""
    return [free_port() for _ in range(count)]


def _span() -> range:
    """The ports of this process: with pytest-xdist each worker has its own share, so that two never choose the same port."""
    worker = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if worker is None:
        return range(FIRST, LAST + 1)
    share = (LAST + 1 - FIRST) // max(workers, 1)
    first = FIRST + share * (int(worker[1]) % workers)
    return range(first + 2, first + share - 2)  # a broker takes P - 2 and P + 1 as well


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
