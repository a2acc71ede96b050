"""A clock that can be put forward, and what a broker does at each moment that is passed over. Source: TST-03.

A broker's timers look at the clock for what is due. Putting it forward in one jump would deliver two hours at once and out of
order; so the clock goes from one due moment to the next, and at each of them all that is due is done before it goes on.
Clients live in real time: those that are connected would have sent heartbeats meanwhile, and are taken to have done so, unless
their connection is stalled.
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
from saturnmq.broker.services.timer import AHEAD_MS, QUEUES
from saturnmq.protocol.codes import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, PropertyKey, RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.store import wall_clock_ms

if TYPE_CHECKING:
    from saturnmq.testing.embedded import EmbeddedBroker

ANSWER_SECONDS_MAX: Final = 0.25  # for a producer that is asked about its transaction
HEARTBEAT_SECONDS_MAX: Final = 1.5
FLUSH_MS_MAX: Final = 10_000
SETTLE_SECONDS_MAX: Final = 30.0
_NEVER: Final = 1 << 62


class TravelClock:
    """Unix ms; runs with the real clock, and ahead of it by what it was moved."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return wall_clock_ms() + self.ahead_ms

    def now(self) -> datetime:
        """The same, as an aware datetime."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def move_to(self, ms: int) -> None:
        """Put it forward to this time; never back."""
        self.ahead_ms += max(ms - self.now_ms(), 0)


class Traveller:
    """Puts the clock of one embedded broker forward. `advance` is called one at a time."""

    def __init__(self, server: EmbeddedBroker, clock: TravelClock) -> None:
        self._server = server
        self._clock = clock
        self._stamps: dict[Path, int] = {}  # the time of last change that was given to a file, ns
        self._tried: set[int] = set()  # half messages by offset that were asked about, or should have been
        self._lock = asyncio.Lock()

    @property
    def _broker(self) -> Broker:
        return self._server.broker

    async def advance(self, delta: timedelta) -> None:
        """Move delta forward; returns when all that became due is delivered, asked about, expired or deleted.

        Raises ValueError for a negative delta, TimeoutError when the broker does not come to rest.
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
            broker.ctx.delay.wake()
            broker.ctx.timer.wake()

    # ---- delivery

    async def _deliver(self) -> None:
        """Until neither levels nor timers have anything that is due."""
        ctx, clock = self._broker.ctx, self._clock
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while True:
                now = clock.now_ms()
                more = ctx.delay.turn() == 0
                more = (ctx.timer.turn() == 0) or more
                if not more and self._refused():
                    return
                if not more and self._delays_due(0) > now and self._timers_due(0) > now:
                    break
                await self._confirm()
        await self._confirm()

    def _refused(self) -> bool:
        store = self._broker.store
        return store.failure is not None or bool(store.refusal)

    async def _confirm(self) -> None:
        """What was put becomes visible: with SYNC_FLUSH when it is on disk."""
        store = self._broker.store
        if store.confirms_at_once or store.failure is not None:
            await asyncio.sleep(0)
        else:
            await store.flusher.wait(store.log.end, FLUSH_MS_MAX)

    def _delays_due(self, after_ms: int) -> int:
        """The first moment after after_ms at which a message of a level is due."""
        store = self._broker.store
        first = _NEVER
        for level, offset in self._broker.ctx.delay.offsets().items():
            queue = store.queues.get((SCHEDULE_TOPIC, level - 1))
            unit = queue.unit(offset) if queue is not None else None
            if unit is not None and unit[2] > after_ms:
                first = min(first, unit[2])
        return first

    def _timers_due(self, after_ms: int) -> int:
        """The same of timed messages; the reading of the next hour counts, where any message waits."""
        timer, queues = self._broker.ctx.timer, self._broker.store.queues
        if not any((queue := queues.get((TIMER_TOPIC, n))) and queue.max_offset for n in range(QUEUES)):
            return _NEVER
        moments = [at for at, _, _ in timer._active[:1]]
        moments += [second * 1000 for second in timer._order[:1]]
        moments.append(timer._loaded_until_ms - AHEAD_MS + 1)
        return min((at for at in moments if at > after_ms), default=_NEVER)

    # ---- transactions

    def _half_due(self, now_ms: int, last_round_ms: int) -> int:
        """When to ask about half messages: the first time when they may be asked about, then once per interval."""
        interval_ms = self._broker.settings.transaction_interval_ms
        return min(
            (
                last_round_ms + interval_ms if half.offset in self._tried else half.stored_ms + half.immune_ms
                for half in self._broker.ctx.transactions.table.pending.values()
            ),
            default=_NEVER,
        )

    async def _ask(self) -> None:
        """One round of questions; the producers get real time to answer."""
        transactions = self._broker.ctx.transactions
        pending = transactions.table.pending
        for half, _ in transactions.table.due(self._clock.now_ms()):
            if half.offset not in self._tried:
                self._tried.add(half.offset)
                await self._producer_of(half.physical)
        first = self._server.tap.count
        asked = await transactions.round()

        def answered() -> bool:
            heard = {
                request.ext.get("tranStateTableOffset")
                for request in self._server.tap.since(first)
                if request.code == RequestCode.END_TRANSACTION
            }
            return all(offset not in pending or str(offset) in heard for offset in asked)

        if asked:
            await self._server.tap.wait_for(answered, ANSWER_SECONDS_MAX)

    async def _producer_of(self, physical: int) -> None:
        """A producer that has just begun is known to the broker with its first heartbeat, a second later."""
        message = self._broker.ctx.transactions._message_at(physical, HALF_TOPIC)
        group = message.properties.get(PropertyKey.PGROUP, "") if message is not None else ""
        await self._server.tap.wait_for(
            lambda: bool(self._broker.ctx.clients.producers.get(group)), HEARTBEAT_SECONDS_MAX
        )

    # ---- expiry

    def _keep_alive(self) -> None:
        """The heartbeats that live clients and the broker itself would have sent."""
        now, tap, ctx = self._clock.now_ms(), self._server.tap, self._broker.ctx
        alive = set()
        members = [*ctx.clients.producers.values(), *(group.members for group in ctx.clients.consumers.values())]
        for table in members:
            for connection, info in table.items():
                if not connection.closed and not tap.is_stalled(connection):
                    info.heard_ms = now
                    alive.add(info.client_id)
        for locks in ctx.locks._locks.values():
            for lock in locks.values():
                if lock.client_id in alive:
                    lock.updated_ms = now
        for live in self._server.namesrv.routes.live.values():
            live.updated_ms = now

    async def _expire(self) -> None:
        self._broker._scan_clients()
        self._server.namesrv.scan()
        await asyncio.sleep(0)

    # ---- retention

    def _next_cleaning(self, now_ms: int) -> int:
        """The next hour of deleteWhen, where there is anything that could go."""
        store = self._broker.store
        if len(store.log.files) < 2:
            return _NEVER
        return next(self._cleaning_hours(now_ms), _NEVER)

    def _cleaning_hours(self, now_ms: int) -> Iterator[int]:
        hours = self._broker.store._upkeep._policy.delete_hours
        start = datetime.fromtimestamp(now_ms / 1000).replace(minute=0, second=0, microsecond=0)
        for ahead in range(1, 26):
            moment = start + timedelta(hours=ahead)
            if moment.hour in hours:
                yield int(moment.timestamp() * 1000)

    async def _clean(self) -> None:
        store = self._broker.store
        if len(store.log.files) > 1 and store.failure is None:
            try:
                await store._upkeep.clean()
            except (OSError, SaturnError) as error:
                raise RuntimeError(f"the store cannot be cleaned: {error}") from error

    async def _stamp_files(self) -> None:
        """Files are as old as this clock says, not the real one: their age decides whether they go."""
        store = self._broker.store
        if len(store.log.files) > 1 and store.failure is None:
            await store.flusher.wait(store.log.end, FLUSH_MS_MAX)
        for file in list(store.log.files):
            with contextlib.suppress(FileNotFoundError):  # just deleted
                changed = file.path.stat().st_mtime_ns
                if self._stamps.get(file.path) != changed:
                    stamp = changed + self._clock.ahead_ms * 1_000_000
                    os.utime(file.path, ns=(stamp, stamp))
                    self._stamps[file.path] = file.path.stat().st_mtime_ns
