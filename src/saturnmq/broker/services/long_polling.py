"""Pulls that wait for a message: long polling. Source: spec 03 LP-01..04.

A held pull costs one object; an append looks only at the pulls of its own queue; one timer per second serves all deadlines.
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
CONNECTION_SHARE: Final = 10  # one connection may take one place in so many

Key = tuple[str, int]


@dataclass(slots=True, eq=False)
class Held:
    """One waiting pull. deadline is loop time in s.

    accept tells whether a tags code is wanted, accept_record whether a record with these encoded properties is (None: every).
    """

    connection: Connection
    request: Command
    offset: int
    deadline: float
    accept: Callable[[int], bool] | None
    accept_record: Callable[[bytes], bool] | None = None


def _wants(held: Held, properties: bytes) -> bool:
    """Whether a pull asks for a message with these properties. One whose question fails is woken, and told why there."""
    try:
        return held.accept_record is None or held.accept_record(properties)
    except Exception:
        log.exception("filter of a held pull failed peer=%s", held.connection.remote_address)
        return True


class Hold:
    """All waiting pulls. resume answers one, and must not hold it again.

    properties reads those of a message: topic, queue id, queue offset; asked only when a waiting pull wants to know.
    queue_end gives the end of a queue for a scan every SCAN_SECONDS, on a broker whose appends notify no pull; else 0.
    """

    def __init__(
        self,
        resume: Callable[[Held], None],
        *,
        limit: int,
        properties: Callable[[str, int, int], bytes | None] | None = None,
        queue_end: Callable[[str, int], int] | None = None,
    ) -> None:
        self._resume = resume
        self._queue_end = queue_end
        self._scanned = 0.0  # loop time, s
        self._properties = properties
        self._limit = limit
        self._waiting: dict[Key, set[Held]] = {}
        self._keys: dict[Connection, dict[Held, Key]] = {}
        self._woken: list[Held] = []
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0

    def add(self, key: Key, held: Held) -> bool:
        """Keep a pull; False when as many as allowed wait already, in all or on its connection."""
        keys = self._keys.get(held.connection, {})
        if self.count >= self._limit or len(keys) * CONNECTION_SHARE >= max(self._limit, CONNECTION_SHARE):
            return False
        self._waiting.setdefault(key, set()).add(held)
        self._keys.setdefault(held.connection, keys)[held] = key
        self.count += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        return True

    def appended(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        """A message is there: the pulls that want it are answered in this turn of the loop (LP-03)."""
        waiting = self._waiting.get((topic, queue_id))
        if not waiting:
            return
        woken = [h for h in waiting if next_offset > h.offset and (h.accept is None or h.accept(tags_code))]
        if self._properties is not None and any(h.accept_record is not None for h in woken):
            properties = self._properties(topic, queue_id, next_offset - 1)
            woken = [h for h in woken if properties is None or _wants(h, properties)]
        if not woken:
            return
        for held in woken:
            self._drop((topic, queue_id), held)
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._woken += woken

    def wake(self, topic: str, group: str) -> None:
        """Have the pulls of a group for a topic answered in this turn of the loop, whatever they wait for."""
        found = [(key, held) for key, waiting in self._waiting.items() if key[0] == topic for held in waiting]
        woken = [(key, held) for key, held in found if held.request.ext.get("consumerGroup") == group]
        for key, held in woken:
            self._drop(key, held)
        if woken and not self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._woken += [held for _, held in woken]

    def wake_all(self) -> None:
        """Have every pull answered in this turn of the loop, whatever it waits for."""
        found = [(key, held) for key, waiting in self._waiting.items() for held in waiting]
        for key, held in found:
            self._drop(key, held)
        if found and not self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._woken += [held for _, held in found]

    def _run_woken(self) -> None:
        woken, self._woken = self._woken, []
        for held in woken:
            self._resume(held)

    def _drop(self, key: Key, held: Held) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None and held in waiting:
            waiting.discard(held)
            self.count -= 1
            keys = self._keys[held.connection]
            del keys[held]
            if not keys:
                del self._keys[held.connection]
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
            for held in list(waiting):
                if held.connection.closed:
                    self._drop(key, held)
                elif held.deadline <= now or held.offset < end:
                    self._drop(key, held)
                    self._resume(held)
        if self.count:
            self._timer = loop.call_later(TICK_SECONDS, self._tick)

    def connection_closed(self, connection: Connection) -> None:
        """Forget the pulls of a connection."""
        for held, key in list(self._keys.get(connection, {}).items()):
            self._drop(key, held)

    def stop(self) -> None:
        """Answer everybody, so that no client waits for a broker that goes away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key, waiting in list(self._waiting.items()):
            for held in list(waiting):
                self._drop(key, held)
                self._resume(held)
