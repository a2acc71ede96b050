"""The connection budget of a process: what all its listeners together may hold open, so that the store can open its files.

A connection and a file each take a descriptor of one limit (`ulimit -n`), and a queue flush that gets none fails. A limit per
listener does not prevent that: a broker has up to four listeners in its process. Used from any thread.

Requirements: LIM-08.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sized
from typing import Any, Final, Protocol

from saturnmq.descriptors import UNLIMITED, descriptor_limit
from saturnmq.log_limit import LogLimit

log = logging.getLogger(__name__)

# Connections that a listener may hold when the budget is used up, out of the reserve: a flood of one port must not keep Raft peers
# from reconnecting to another. Four listeners take 32 of at least 128 reserved descriptors (`ulimit -n 256`).
LISTENER_SHARE: Final = 8

# Connections that asyncio's event loop accepts in one iteration. They count only when their transport is set up, two iterations
# later, so a large number would exceed the budget before the first one counts. uvloop accepts one per
# listener and iteration; without descriptors it closes what waits in the kernel's queue, by means of a descriptor that libuv keeps
# for that, and reports nothing.
ACCEPTED_AT_ONCE: Final = 8

_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listening(Protocol):
    """What the budget uses of a listener."""

    @property
    def connections(self) -> Sized: ...


def descriptors_left(reserved: int) -> int:
    """Maximum number of connections that leaves `reserved` descriptors, but at most half of all, for files."""
    limit = descriptor_limit()
    return UNLIMITED if limit == UNLIMITED else max(limit - reserved, limit // 2)


class ConnectionBudget:
    """Counts the open connections of all listeners. A listener that is no longer referenced does not count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: weakref.WeakSet[Listening] = weakref.WeakSet()

    def join(self, listener: Listening) -> None:
        """Count the connections of a listener from now on."""
        with self._lock:
            self._listeners.add(listener)

    @property
    def used(self) -> int:
        """Open connections of all listeners."""
        with self._lock:
            return sum(len(listener.connections) for listener in self._listeners)


PROCESS_BUDGET: Final = ConnectionBudget()


class AcceptErrors:
    """Exception handler of an event loop: logs accepts that failed with no descriptor left, at most once per second.

    asyncio pauses the listener for a second after such a failure, but reports it once for each accept it tried, with a traceback.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._log_limit = LogLimit(clock)

    def __call__(self, loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Only accepts carry a socket in their context; everything else is the loop's own business.
        if not (isinstance(error, OSError) and error.errno in _OUT_OF_DESCRIPTORS and "socket" in context):
            loop.default_exception_handler(context)
            return
        suppressed = self._log_limit.suppressed("")
        if suppressed is not None:
            log.error("accept failed error=%s descriptors_max=%s suppressed=%s", error, descriptor_limit(), suppressed)
