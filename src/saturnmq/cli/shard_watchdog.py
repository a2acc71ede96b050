"""The watchdog of a shard: its supervisor receives what it would send to systemd, and kills it when that stops.

A shard whose event loop is blocked serves no client and does not end by itself. It gets the address of a datagram socket of the
supervisor as NOTIFY_SOCKET, and the period of the supervisor's own watchdog; without one there is none.

Requirements: none of Apache RocketMQ; docs/decisions/0046.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from typing import Final

from saturnmq.cli.systemd import watchdog_seconds
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)

CHECKS_PER_PERIOD: Final = 4
_STATE_BYTES_MAX: Final = 1024


class Watchdog:
    """Of one run of a shard. environment: variables for its process."""

    def __init__(self, shard: int) -> None:
        self.environment: dict[str, str] = {}
        self._shard = shard
        self._seconds = watchdog_seconds()
        self._loop = asyncio.get_running_loop()
        self._notified_at: float | None = None  # None until the shard is ready: a recovery may take long
        self._socket: socket.socket | None = None
        self._checks: asyncio.Task[None] | None = None
        if self._seconds:
            name = f"saturnmq-{os.getpid()}-{secrets.token_hex(8)}"
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._socket.bind(f"\0{name}")  # in the abstract namespace, which Linux has, as it has systemd
            self._loop.add_reader(self._socket, self._received, self._socket)
            self.environment = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": str(round(self._seconds * 1e6))}

    def guard(self, process: asyncio.subprocess.Process) -> None:
        """Kill the process when it has been silent for a period."""
        if self._seconds:
            self._checks = supervised(self._check(process), f"watchdog of shard {self._shard}")

    def _received(self, channel: socket.socket) -> None:
        channel.recv(_STATE_BYTES_MAX)
        self._notified_at = self._loop.time()

    async def _check(self, process: asyncio.subprocess.Process) -> None:
        # Two checks in a row: after a pause of the supervisor itself the first may precede the datagrams that have arrived.
        silent_checks = 0
        while silent_checks < 2:
            await asyncio.sleep(self._seconds / CHECKS_PER_PERIOD)
            silent_s = 0.0 if self._notified_at is None else self._loop.time() - self._notified_at
            silent_checks = silent_checks + 1 if silent_s > self._seconds else 0
        log.error("shard does not respond and is killed shard=%d silent_s=%.1f", self._shard, silent_s)
        process.kill()

    async def stop(self) -> None:
        """Receive and check no longer."""
        await cancel(self._checks)
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
