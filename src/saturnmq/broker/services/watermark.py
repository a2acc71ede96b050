"""Requests that wait in a broker: lines of watermark.log each second, and figures of the runtime information (28).

Apache RocketMQ has a thread pool with a queue for each of four kinds of requests. Here one event loop serves all of them, and what
may wait is: sends, for the disk or the quorum; pulls, ready to be answered in the next iterations; long queries, for their slices.
Transactions end within their iteration, so none of them ever waits. The wait of a pull is how late the event loop runs.

The logger `saturnmq.watermark` does not propagate: without a handler of its own nothing is written.

Requirements: MON-16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from saturnmq.broker.services.long_polling import LongPolling
from saturnmq.broker.state.in_flight import InFlight
from saturnmq.slices import Slices

watermark_log: Final = logging.getLogger("saturnmq.watermark")
watermark_log.setLevel(logging.INFO)
watermark_log.propagate = False

FIRST_SECONDS: Final = 10  # then each second


class RequestBacklog(NamedTuple):
    """Number of requests that wait, and the wait of the first one, ms."""

    size: int
    wait_ms: int


class Watermark:
    """The queues of one broker. late_ms: how late the event loop runs."""

    def __init__(
        self, in_flight: InFlight, long_polling: LongPolling, slices: Slices, late_ms: Callable[[], int]
    ) -> None:
        self._in_flight = in_flight
        self._long_polling = long_polling
        self._slices = slices
        self._late_ms = late_ms

    def send(self) -> RequestBacklog:
        """Sends that wait for the disk or the quorum."""
        return RequestBacklog(self._in_flight.sends, self._in_flight.send_wait_ms if self._in_flight.sends else 0)

    def pull(self) -> RequestBacklog:
        """Parked pulls that can be answered now."""
        ready = self._long_polling.ready
        return RequestBacklog(ready, self._late_ms() if ready else 0)

    def query(self) -> RequestBacklog:
        """Long administrative requests that wait for a slice or run in slices."""
        return RequestBacklog(self._slices.waiting, self._slices.waited_ms)

    def transaction(self) -> RequestBacklog:
        """Ends of transactions: none waits."""
        return RequestBacklog(0, 0)

    def write(self) -> None:
        """Write the four lines."""
        if not watermark_log.hasHandlers():
            return
        for name, backlog in (
            ("Send", self.send()), ("Pull", self.pull()), ("Query", self.query()), ("Transaction", self.transaction()),
        ):  # fmt: skip
            watermark_log.info("[WATERMARK] %s Queue Size: %s SlowTimeMills: %s", name, backlog.size, backlog.wait_ms)
