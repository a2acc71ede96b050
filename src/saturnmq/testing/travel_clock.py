"""A clock that can be advanced, and what an embedded broker does at each due time that is passed.

A broker's timers compare due times with the clock. Advancing in one jump would deliver two hours of messages at once
and out of order; so the clock moves from one due time to the next, and everything due is finished before it moves on.
Clients live in real time: connected clients would have sent heartbeats meanwhile, and are treated as if they had,
unless their connection is stalled.

Requirements: TST-03.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from saturnmq.broker import Broker
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.store import wait_confirmed, wall_clock_ms
from saturnmq.store.settings import delete_hours

if TYPE_CHECKING:
    from saturnmq.testing.embedded import EmbeddedBroker

ANSWER_SECONDS_MAX: Final = 0.25  # for a producer's answer to a transaction check
HEARTBEAT_SECONDS_MAX: Final = 1.5
FLUSH_MS_MAX: Final = 10_000
SETTLE_SECONDS_MAX: Final = 30.0
_NEVER: Final = 1 << 62


class TravelClock:
    """A clock in Unix ms that runs with real time, plus the amount by which it was advanced.

    Example:
        clock = TravelClock()
        async with EmbeddedBroker(clock_ms=clock.now_ms) as server:
            clock.move_to(clock.now_ms() + 60_000)  # the server's time is now a minute ahead

    Moving it does not wake the broker's timers; the fixture `saturn_clock` does, and waits for the deliveries.
    """

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """The current time, Unix ms."""
        return wall_clock_ms() + self.ahead_ms

    def now(self) -> datetime:
        """The current time, an aware datetime in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def move_to(self, ms: int) -> None:
        """Advance to this time, Unix ms; a time in the past is ignored."""
        self.ahead_ms += max(ms - self.now_ms(), 0)


class Traveller:
    """Advances the clock of one embedded broker. Calls of `advance` are serialized."""

    def __init__(self, server: EmbeddedBroker, clock: TravelClock) -> None:
        self._server = server
        self._clock = clock
        self._stamps: dict[Path, int] = {}  # the modification time that was set for a file, ns
        self._tried: set[int] = set()  # half messages, by offset, that were checked or whose check was due
        self._lock = asyncio.Lock()

    @property
    def _broker(self) -> Broker:
        return self._server.broker

    async def advance(self, delta: timedelta) -> None:
        """Advance by delta; returns when everything due is delivered, checked, expired or deleted.

        Raises ValueError for a negative delta, TimeoutError if deliveries do not finish within SETTLE_SECONDS_MAX.
        """
        if delta < timedelta(0):
            raise ValueError(f"time goes forward only, not by {delta}")
        async with self._lock:
            target = self._clock.now_ms() + delta // timedelta(milliseconds=1)
            await self._stamp_files()
            last_round = self._clock.now_ms()
            while True:
                await self._deliver()
                now = self._clock.now_ms()
                if self._half_due(now, last_round) <= now:
                    await self._ask()
                    last_round = now
                    continue
                if now >= target:
                    break
                moments = (self._delays_due(now), self._timers_due(now), self._half_due(now, last_round),
                           self._next_cleaning(now))  # fmt: skip
                then = min(target, *moments)
                self._clock.move_to(max(then, now + 1))
                self._keep_alive()
                if then == moments[-1] and then < target:
                    await self._clean()
            await self._expire()
            await self._clean()
            broker = self._broker
            broker.master.delay.wake()
            broker.master.timer.wake()

    # ---- delivery

    async def _deliver(self) -> None:
        """Deliver until neither delay levels nor timers hold a due message."""
        master, clock = self._broker.master, self._clock
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while True:
                now = clock.now_ms()
                more = master.delay.deliver_due() == 0
                more = (master.timer.deliver_due() == 0) or more
                if not more and self._rejects_writes():
                    return
                if not more and self._delays_due(0) > now and self._timers_due(0) > now:
                    break
                await self._confirm()
        await self._confirm()

    def _rejects_writes(self) -> bool:
        store = self._broker.store
        return store.failure is not None or bool(store.refusal)

    async def _confirm(self) -> None:
        """Wait until appended messages are visible: with SYNC_FLUSH that is when they are durable."""
        store = self._broker.store
        if store.confirms_at_once or store.failure is not None:
            await asyncio.sleep(0)
        else:
            await wait_confirmed(store.log, store.log.end, FLUSH_MS_MAX)

    def _delays_due(self, after_ms: int) -> int:
        """The first due time after after_ms of a message in a delay level."""
        return self._broker.master.delay.next_due_ms(after_ms) or _NEVER

    def _timers_due(self, after_ms: int) -> int:
        """The first due time after after_ms of a timed message, or of the next hourly load if any message is stored."""
        return self._broker.master.timer.next_due_ms(after_ms) or _NEVER

    # ---- transactions

    def _half_due(self, now_ms: int, last_round_ms: int) -> int:
        """When to check half messages next: first when their immunity ends, then once per interval."""
        interval_ms = self._broker.settings.transaction_interval_ms
        return min(
            (
                last_round_ms + interval_ms if half.offset in self._tried else half.stored_ms + half.immune_ms
                for half in self._broker.master.transactions.table.pending.values()
            ),
            default=_NEVER,
        )

    async def _ask(self) -> None:
        """Run one round of transaction checks; producers get real time to answer."""
        transactions = self._broker.master.transactions
        pending = transactions.table.pending
        for half, _ in transactions.table.due_actions(self._clock.now_ms()):
            if half.offset not in self._tried:
                self._tried.add(half.offset)
                await self._producer_of(half.physical)
        first = self._server.tap.count
        checked_offsets = await transactions.round()

        def answered() -> bool:
            ended = {
                request.ext.get("tranStateTableOffset")
                for request in self._server.tap.since(first)
                if request.code == RequestCode.END_TRANSACTION
            }
            return all(offset not in pending or str(offset) in ended for offset in checked_offsets)

        if checked_offsets:
            await self._server.tap.wait_for(answered, ANSWER_SECONDS_MAX)

    async def _producer_of(self, physical: PhysicalOffset) -> None:
        """Wait until the producer group of a half message is known: a new producer registers with its first heartbeat."""
        group = self._broker.master.transactions.producer_group(physical)
        await self._server.tap.wait_for(lambda: bool(self._broker.clients.producers.get(group)), HEARTBEAT_SECONDS_MAX)

    # ---- expiry

    def _keep_alive(self) -> None:
        """Record the heartbeats that live clients and the broker itself would have sent."""
        now, tap, broker = self._clock.now_ms(), self._server.tap, self._broker
        alive = set()
        members = [*broker.clients.producers.values(), *(group.members for group in broker.clients.consumers.values())]
        for table in members:
            for connection, info in table.items():
                if not connection.closed and not tap.is_stalled(connection):
                    info.heartbeat_ms = now
                    alive.add(info.client_id)
        broker.locks.renew(alive, now)
        for live in self._server.namesrv.routes.live.values():
            live.updated_ms = now

    async def _expire(self) -> None:
        self._broker.expire_clients()
        self._server.namesrv.scan()
        await asyncio.sleep(0)

    # ---- retention

    def _next_cleaning(self, now_ms: int) -> int:
        """The next hour of deleteWhen, if there is a file that could expire."""
        store = self._broker.store
        if len(store.log.files) < 2:
            return _NEVER
        return next(self._cleaning_hours(now_ms), _NEVER)

    def _cleaning_hours(self, now_ms: int) -> Iterator[int]:
        hours = delete_hours(self._broker.store.settings.delete_when)
        start = datetime.fromtimestamp(now_ms / 1000).replace(minute=0, second=0, microsecond=0)
        for ahead in range(1, 26):
            moment = start + timedelta(hours=ahead)
            if moment.hour in hours:
                yield int(moment.timestamp() * 1000)

    async def _clean(self) -> None:
        store = self._broker.store
        if len(store.log.files) > 1 and store.failure is None:
            try:
                await store.clean(trust_clock=True)  # a test has set the clock
            except (OSError, SaturnError) as error:
                raise RuntimeError(f"the store cannot be cleaned: {error}") from error

    async def _stamp_files(self) -> None:
        """Set the files' modification times by this clock: retention goes by them."""
        store = self._broker.store
        if len(store.log.files) > 1 and store.failure is None:
            await wait_confirmed(store.log, store.log.end, FLUSH_MS_MAX)
        for file in list(store.log.files):
            with contextlib.suppress(FileNotFoundError):  # just deleted
                changed = file.path.stat().st_mtime_ns
                if self._stamps.get(file.path) != changed:
                    stamp = changed + self._clock.ahead_ms * 1_000_000
                    os.utime(file.path, ns=(stamp, stamp))
                    self._stamps[file.path] = file.path.stat().st_mtime_ns
