"""Forked children: a started client belongs to the process that started it. Source: spec 08 API-32.

In the child the parent's sockets are closed at once, with nothing written: their numbers are made to mean the null device, so
that neither a forgotten transport nor the selector, which both processes share, can touch what the parent goes on using.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Final, Protocol

from saturnmq.client.errors import ForkedClient

generation = 0  # how many forks lie between this process and the first one
_watched: Final[weakref.WeakSet[Connected]] = weakref.WeakSet()


class Connected(Protocol):
    """Has connections."""

    def sockets(self) -> Iterable[int]: ...


def watch(owner: Connected) -> int:
    """Close the owner's sockets in forked children; the generation it belongs to."""
    _watched.add(owner)
    return generation


def check(own: int) -> None:
    """Raises ForkedClient in a child of the process that `own` belongs to."""
    if own != generation:
        raise ForkedClient(
            f"this client was started in another process, of which {os.getpid()} is a forked child",
            hint="Make clients after the fork; those of saturnmq.sync start anew by themselves.",
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
