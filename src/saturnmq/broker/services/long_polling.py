"""Long polling: pulls that wait for a message.

A parked pull costs one object; an append examines only the pulls of its own queue; one timer serves all deadlines.

Requirements: LP-01..LP-04.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from saturnmq.net import Connection
from saturnmq.protocol.frames.command import Command

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
SCAN_SECONDS: Final = 5.0
CONNECTION_SHARE: Final = 10  # one connection may use at most 1/10 of the limit

Key = tuple[str, int]


@dataclass(slots=True, eq=False)
class ParkedPull:
    """One parked pull. deadline: event-loop time in s.

    accept: whether a tags code matches. accept_record: whether encoded properties match. None: every message does.
    """

    connection: Connection
    request: Command
    offset: int
    deadline: float
    accept: Callable[[int], bool] | None
    accept_record: Callable[[bytes], bool] | None = None


def _wants(parked: ParkedPull, properties: bytes) -> bool:
    """Whether a pull accepts these properties. If its filter fails, the pull is woken and answered with the error."""
    try:
        return parked.accept_record is None or parked.accept_record(properties)
    except Exception:
        log.exception("filter of a parked pull failed peer=%s", parked.connection.remote_address)
        return True


class LongPolling:
    """All parked pulls of a broker. resume answers one and must not park it again.

    properties(topic, queue id, queue offset) reads a message's properties; called only if a parked pull filters by them.
    queue_end(topic, queue id) returns the end of a queue for a scan every SCAN_SECONDS, on a broker whose appends do not
    wake pulls (a slave); 0 on any other.
    """

    def __init__(
        self,
        resume: Callable[[ParkedPull], None],
        *,
        limit: int,
        properties: Callable[[str, int, int], bytes | None] | None = None,
        queue_end: Callable[[str, int], int] | None = None,
    ) -> None:
        self._resume = resume
        self._queue_end = queue_end
        self._scanned = 0.0  # event-loop time of the last scan, s
        self._properties = properties
        self._limit = limit
        self._waiting: dict[Key, set[ParkedPull]] = {}
        self._keys: dict[Connection, dict[ParkedPull, Key]] = {}
        self._woken: list[ParkedPull] = []
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0

    def add(self, key: Key, parked: ParkedPull) -> bool:
        """Park a pull; False if the limit in total or of its connection is reached."""
        keys = self._keys.get(parked.connection, {})
        if self.count >= self._limit or len(keys) * CONNECTION_SHARE >= max(self._limit, CONNECTION_SHARE):
            return False
        self._waiting.setdefault(key, set()).add(parked)
        self._keys.setdefault(parked.connection, keys)[parked] = key
        self.count += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        return True

    def appended(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        """A message was appended: answer the pulls that accept it within this event-loop iteration (LP-03)."""
        waiting = self._waiting.get((topic, queue_id))
        if not waiting:
            return
        woken = [h for h in waiting if next_offset > h.offset and (h.accept is None or h.accept(tags_code))]
        if self._properties is not None and any(h.accept_record is not None for h in woken):
            properties = self._properties(topic, queue_id, next_offset - 1)
            woken = [h for h in woken if properties is None or _wants(h, properties)]
        if not woken:
            return
        for parked in woken:
            self._drop((topic, queue_id), parked)
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._woken += woken

    def wake(self, topic: str, group: str) -> None:
        """Answer all pulls of a group for a topic within this event-loop iteration, whatever they wait for."""
        found = [(key, parked) for key, waiting in self._waiting.items() if key[0] == topic for parked in waiting]
        woken = [(key, parked) for key, parked in found if parked.request.ext.get("consumerGroup") == group]
        for key, parked in woken:
            self._drop(key, parked)
        if woken and not self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._woken += [parked for _, parked in woken]

    def wake_all(self) -> None:
        """Answer every pull within this event-loop iteration, whatever it waits for."""
        found = [(key, parked) for key, waiting in self._waiting.items() for parked in waiting]
        for key, parked in found:
            self._drop(key, parked)
        if found and not self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._woken += [parked for _, parked in found]

    def _run_woken(self) -> None:
        woken, self._woken = self._woken, []
        for parked in woken:
            self._resume(parked)

    def _drop(self, key: Key, parked: ParkedPull) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None and parked in waiting:
            waiting.discard(parked)
            self.count -= 1
            keys = self._keys[parked.connection]
            del keys[parked]
            if not keys:
                del self._keys[parked.connection]
            if not waiting:
                del self._waiting[key]

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        scan = self._queue_end is not None and now - self._scanned >= SCAN_SECONDS
        if scan:
            self._scanned = now
        for key, waiting in list(self._waiting.items()):
            end = self._queue_end(*key) if scan and self._queue_end is not None else 0
            for parked in list(waiting):
                if parked.connection.closed:
                    self._drop(key, parked)
                elif parked.deadline <= now or parked.offset < end:
                    self._drop(key, parked)
                    self._resume(parked)
        if self.count:
            self._timer = loop.call_later(TICK_SECONDS, self._tick)

    def connection_closed(self, connection: Connection) -> None:
        """Drop the pulls of a connection."""
        self.take(connection)

    def take(self, connection: Connection) -> list[Command]:
        """Drop the pulls of a connection; returns their requests."""
        taken = list(self._keys.get(connection, {}).items())
        for parked, key in taken:
            self._drop(key, parked)
        return [parked.request for parked, _ in taken]

    def abort(self) -> None:
        """Drop all pulls without a response."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._keys):
            self.take(connection)

    def stop(self) -> None:
        """Answer all pulls, so that no client waits for a broker that shuts down."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key, waiting in list(self._waiting.items()):
            for parked in list(waiting):
                self._drop(key, parked)
                self._resume(parked)
