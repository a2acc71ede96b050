"""Admission by estimated waiting time: SYSTEM_BUSY (2) while requests would wait too long, the fast failure of Apache RocketMQ.

Apache RocketMQ looks at the oldest request in the queue of each thread pool. Here requests wait in two places: for the event
loop, measured by how late a timer runs, and sends also for the disk or the quorum, measured by how long none of the waiting ones
has completed. A kind of request is rejected once its estimate has exceeded its limit for brokerFastFailureDelayMillis
without interruption. A single stall rejects nothing, nor does a slow disk whose group commits still cover all that waits. An append
that took longer than osPageCacheBusyTimeOutMills rejects the sends that waited behind it.

Rejecting replaces the routes of the codes, so admitted requests pay nothing. Runs on the event loop; times are its seconds.

Requirements: SND-16, BP-09, ST-04.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from enum import Enum
from typing import Final

from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.in_flight import InFlight
from saturnmq.net import Connection
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.frames.command import Command

log = logging.getLogger(__name__)

SAMPLE_SECONDS: Final = 0.1
IDLE_SECONDS: Final = 1.0  # between samples while nothing waits

_SENDS: Final = frozenset({
    Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.CONSUMER_SEND_MSG_BACK,
})  # fmt: skip


class Stage(Enum):
    """Where requests wait, as clients name it in their hints (UX-08)."""

    QUEUE = "queue"
    APPEND = "append lock"
    FLUSH = "flush"
    REPLICA = "replica"


@dataclass(slots=True)
class _Kind:
    """Requests with one limit. durable: they wait for the disk or the quorum too. since: when the estimate exceeded the limit."""

    codes: frozenset[Code]
    limit_ms: Callable[[], int]
    durable: bool
    since: float | None = None


class Admission:
    """Decides which codes a broker rejects; `changed` is called with them whenever they change.

    stage: where a send waits after it was appended. queues: connections that wait for their turn. late_ms, stalled_ms: the two
    estimates of the last sample.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        in_flight: InFlight,
        rejections: Rejections,
        *,
        stage: Stage,
        changed: Callable[[frozenset[int]], object],
    ) -> None:
        self._in_flight = in_flight
        self._rejections = rejections
        self._stage = stage
        self.queues: Sequence[Sized] = ()
        self._changed = changed
        self._settings = settings  # its wait times can change at run time
        self.enabled = settings.fast_failure
        self._kinds = (
            _Kind(_SENDS, lambda: settings.send_wait_ms, True),
            _Kind(frozenset({Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE}), lambda: settings.pull_wait_ms, False),
            _Kind(frozenset({Code.HEART_BEAT}), lambda: settings.heartbeat_wait_ms, False),
            _Kind(frozenset({Code.END_TRANSACTION}), lambda: settings.transaction_wait_ms, True),
        )
        self.late_ms = self.stalled_ms = 0
        self.rejected: frozenset[int] = frozenset()
        self._append_ms = 0  # the append that makes sends wait now
        self._append_until = 0.0
        self._completed = 0
        self._progress = 0.0  # when a waiting send completed last, or nothing waited
        self._timer: asyncio.TimerHandle | None = None
        self._next_sample_at = 0.0

    # ---- samples

    def start(self) -> None:
        """Sample from now on, unless brokerFastFailureEnable=false."""
        if self.enabled:
            self._progress = asyncio.get_running_loop().time()
            self._schedule(IDLE_SECONDS)

    def stop(self) -> None:
        """Take no more samples."""
        self.enabled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._next_sample_at = loop.time() + seconds
        self._timer = loop.call_at(self._next_sample_at, self._tick)

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        self.sample(now, max(now - self._next_sample_at, 0.0))
        # Sampled often only while something waits, so that an idle broker does nothing.
        idle = not self._in_flight.sends and not self.late_ms and not self.rejected
        self._schedule(IDLE_SECONDS if idle else SAMPLE_SECONDS)

    def sample(self, now: float, late: float) -> None:
        """Estimate the waiting times, and admit or reject by them. late: how late the timer of this sample ran, in s."""
        in_flight = self._in_flight
        # Progress counts, not the age of single sends: a slow disk that completes them in groups keeps up.
        if not in_flight.sends or in_flight.completed_sends != self._completed:
            self._completed, self._progress = in_flight.completed_sends, now
        self.late_ms, self.stalled_ms = int(late * 1000), int((now - self._progress) * 1000)
        # For the watermark and the runtime information.
        in_flight.send_wait_ms = max(self.late_ms, self.stalled_ms)
        for kind in self._kinds:
            # One sample within the limit ends the count: only an uninterrupted excess rejects.
            if self._waited_ms(kind) <= kind.limit_ms():
                kind.since = None
            elif kind.since is None:
                kind.since = now
        self._apply(now)

    def _waited_ms(self, kind: _Kind) -> int:
        return max(self.late_ms, self.stalled_ms) if kind.durable else self.late_ms

    def _apply(self, now: float) -> None:
        # A slow append rejects at once, without the delay.
        rejected: frozenset[int] = frozenset(_SENDS) if self._append_ms else frozenset()
        delay_seconds = self._settings.fast_failure_delay_ms / 1000
        for kind in self._kinds:
            if kind.since is not None and now - kind.since >= delay_seconds:
                rejected |= kind.codes
        if rejected != self.rejected:
            self.rejected = rejected
            log.warning(
                "load shedding %s codes=%s late_ms=%s stalled_ms=%s append_ms=%s waiting=%s", "on" if rejected else "off",
                sorted(map(int, rejected)), self.late_ms, self.stalled_ms, self._append_ms, self._in_flight.sends,
            )  # fmt: skip
            self._changed(rejected)

    # ---- a slow append

    def append_was_slow(self, took_ms: int) -> None:
        """Reject the sends that arrived during an append (ST-04).

        They are those of this event-loop iteration and of the next one, and of connections that wait for their turn then, for as
        long as the append took at most.
        """
        if not self.enabled:
            return
        loop = asyncio.get_running_loop()
        # Once: a second slow append in the same iteration extends the first.
        if not self._append_ms:
            # Two iterations later: what arrived during the append is read in the next one.
            loop.call_soon(loop.call_soon, self._append_is_over)
        self._append_ms, self._append_until = took_ms, loop.time() + took_ms / 1000
        self._apply(loop.time())

    def _append_is_over(self) -> None:
        loop = asyncio.get_running_loop()
        # Connections that wait for their turn still hold requests that arrived then.
        if any(map(len, self.queues)) and loop.time() < self._append_until:
            loop.call_soon(self._append_is_over)
            return
        self._append_ms = 0
        self._apply(loop.time())

    # ---- rejected requests

    def refuse(self, connection: Connection, request: Command) -> Command:
        """The response to a request of a rejected code, in the format of Apache RocketMQ with the slow stage behind it."""
        if self._append_ms and request.code in _SENDS:
            cause, waited_ms, stage = "PCBUSY_CLEAN_QUEUE", self._append_ms, Stage.APPEND
        else:
            durable = any(kind.durable and request.code in kind.codes for kind in self._kinds)
            # The longer of both waits is named as the cause.
            slow_store = durable and self.stalled_ms > self.late_ms
            waited_ms = self.stalled_ms if slow_store else self.late_ms
            cause, stage = "TIMEOUT_CLEAN_QUEUE", self._stage if slow_store else Stage.QUEUE
        text = (
            f"[{cause}]broker busy, start flow control for a while, period in queue: {waited_ms}ms, "
            f"size of queue: {self._in_flight.sends}, stage: {stage.value}"
        )
        self._rejections.note("busy", connection.remote_address, text)
        return request.reply(ResponseCode.SYSTEM_BUSY, text)


def refuse(admission: Admission, connection: Connection, request: Command) -> Command:
    """Handler of every code that is rejected now."""
    return admission.refuse(connection, request)
