"""Fork safety: a started client belongs to the process that started it.

In a forked child the parent's sockets are closed at once, without writing: their file descriptors are redirected to the null
device. Thus neither a leftover transport nor the selector, which both processes share, can affect the parent's connections.

Requirements: API-32.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Final, Protocol

from saturnmq.errors import ForkedClient

generation = 0  # number of forks between the first process and this one
_watched: Final[weakref.WeakSet[Connected]] = weakref.WeakSet()


class Connected(Protocol):
    """An owner of sockets."""

    def sockets(self) -> Iterable[int]: ...


def watch(owner: Connected) -> int:
    """Register an owner whose sockets are closed in forked children. Returns the current generation."""
    _watched.add(owner)
    return generation


def check(client_generation: int) -> None:
    """Raise ForkedClient if this is a forked child of the process with generation `client_generation`."""
    if client_generation != generation:
        raise ForkedClient(
            f"this client was started in another process, of which {os.getpid()} is a forked child",
            hint="Make clients after the fork; those of saturnmq.sync restart by themselves.",
        )


def _in_child() -> None:
    global generation
    generation += 1
    owners = list(_watched)
    _watched.clear()
    null = os.open(os.devnull, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    for owner in owners:
        for number in owner.sockets():
            os.dup2(null, number, inheritable=False)
    os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
