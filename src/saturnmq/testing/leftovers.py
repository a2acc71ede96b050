"""Detects what a test leaked: tasks, futures, threads, sockets and started clients of saturnmq.sync, by name.

Tasks and futures are collected when `asyncio.run`, or any other user of asyncio.Runner, closes its loop: afterwards
they are cancelled and could no longer be found. Sockets come from the process's descriptors, on systems that list them.
Imports nothing else of SaturnMQ, because the plugin loads it early.

Requirements: TST-04.
"""

from __future__ import annotations

import asyncio
import asyncio.runners
import contextlib
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

GRACE_SECONDS: Final = 1.0  # lets threads and sockets that are closing finish
POLL_SECONDS: Final = 0.01
# asyncio_: executors, joined by their loop; saturnmq-disk: the stores', which the shared broker starts at any time.
KIT_THREADS: Final = ("saturnmq-fixture", "saturnmq-sync", "saturnmq-disk", "asyncio_")
_DESCRIPTORS: Final = Path("/proc/self/fd")
_HOOK: Final = "_cancel_all_tasks"  # called by asyncio.Runner before it closes a loop; present in 3.11 to 3.14


class LeakWatch:
    """Records leaks from construction until `close`. loops_ended: loops that asyncio.Runner has closed in that time."""

    def __init__(self) -> None:
        self.loops_ended = 0
        self._threads = set(threading.enumerate())
        self._sockets = set(inet_sockets())
        self._clients = _sync_clients()
        self._leaks: list[str] = []
        self._original: Callable[[asyncio.AbstractEventLoop], None] | None = getattr(asyncio.runners, _HOOK, None)
        if self._original is not None:
            setattr(asyncio.runners, _HOOK, self._loop_ends)

    def close(self) -> None:
        """Stop watching and restore asyncio."""
        if self._original is not None:
            setattr(asyncio.runners, _HOOK, self._original)
            self._original = None

    def _loop_ends(self, loop: asyncio.AbstractEventLoop) -> None:
        tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
        self._leaks += sorted(f"task {task.get_name()!r} running {_code_of(task)}" for task in tasks)
        if not tasks:
            self._leaks += _futures_of(loop)
        self.loops_ended += 1
        assert self._original is not None
        self._original(loop)

    def of_loops(self) -> list[str]:
        """Tasks and futures found since the last call."""
        leaks, self._leaks = self._leaks, []
        return leaks

    def of_process(self, own_ports: Collection[int]) -> list[str]:
        """New threads, started clients of saturnmq.sync, and sockets whose local port is not in own_ports.

        Waits up to GRACE_SECONDS for those that are about to end.
        """
        deadline = time.monotonic() + GRACE_SECONDS
        while True:
            clients = sorted(f"client of saturnmq.sync {client!r}" for client in _sync_clients() - self._clients)
            leaks = self._threads_now() + clients + self._sockets_now(own_ports)
            if not leaks or time.monotonic() >= deadline:
                return leaks
            time.sleep(POLL_SECONDS)

    def _threads_now(self) -> list[str]:
        return sorted(
            f"thread {thread.name!r}"
            for thread in threading.enumerate()
            if thread not in self._threads and not thread.name.startswith(KIT_THREADS)
        )

    def _sockets_now(self, own_ports: Collection[int]) -> list[str]:
        return sorted(
            f"socket {local[0]}:{local[1]}" + (f" connected to {peer[0]}:{peer[1]}" if peer else "")
            for inode, (local, peer) in inet_sockets().items()
            if inode not in self._sockets and local[1] not in own_ports
        )


def _sync_clients() -> set[Any]:
    """Clients of saturnmq.sync that were started and not stopped; their tasks run on a loop that all tests share."""
    module = sys.modules.get("saturnmq.client.sync.portal")
    return module.portal.started() if module is not None else set()


def _code_of(task: asyncio.Task[Any]) -> str:
    code = getattr(task.get_coro(), "cr_code", None)
    return (
        f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})" if code is not None else repr(task.get_coro())
    )


def _futures_of(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Unfinished futures of a loop. Unreferenced ones are collected first and do not count."""

    def look() -> list[asyncio.Future[Any]]:
        return [
            item
            for item in gc.get_objects()
            if issubclass(type(item), asyncio.Future)
            and not issubclass(type(item), asyncio.Task)
            and not item.done()
            and item.get_loop() is loop
        ]

    if not look():
        return []
    gc.collect()
    return sorted(f"future {future!r}" for future in look())


def inet_sockets() -> dict[str, tuple[Any, Any]]:
    """Inode to (local address, peer or None) of this process's TCP and UDP sockets; empty on systems that do not list them."""
    sockets = {}
    with contextlib.suppress(OSError):
        for entry in list(_DESCRIPTORS.iterdir()):
            with contextlib.suppress(OSError, ValueError):
                target = str(entry.readlink())
                if not target.startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                    if copy.family in (socket.AF_INET, socket.AF_INET6):
                        try:
                            peer = copy.getpeername()
                        except OSError:
                            peer = None
                        sockets[target] = (copy.getsockname(), peer)
    return sockets
