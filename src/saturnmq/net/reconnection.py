"""Reconnection to a server: notice of a lost connection, and the pauses between attempts.

Jitter matters because all peers of a server lose it at the same moment: without it they would all return together.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from saturnmq.net.connection import Connection
from saturnmq.net.endpoint import BaseConnectionListener

RECONNECT_SECONDS_MIN: Final = 0.25
RECONNECT_SECONDS_MAX: Final = 4.0
_DOUBLINGS_MAX: Final = 10
# its own generator: jitter is drawn in background threads, of programs that seed or watch the shared one
JITTER: Final = random.Random()


def chance() -> float:
    """A random number in 0..1 for jitter."""
    return JITTER.random()


def reconnect_seconds(attempt: int, fraction: float) -> float:
    """The pause before attempt number `attempt`, counted from 1: 0.25 s, doubled with each one up to 4 s.

    fraction: of `chance`, for the jitter, which takes away at most half of the pause.
    """
    # Limited before the power: attempts are counted without end.
    pause_s = RECONNECT_SECONDS_MIN * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX)
    return min(pause_s, RECONNECT_SECONDS_MAX) * (1 - fraction / 2)


class Losses(BaseConnectionListener):
    """Calls on_loss after a connection of a client was closed; the client no longer has it then."""

    def __init__(self, on_loss: Callable[[], None]) -> None:
        self._on_loss = on_loss

    def closed(self, connection: Connection, reason: str) -> None:
        """Report the loss."""
        self._on_loss()
