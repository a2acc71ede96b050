"""Counts how long appends take, and reports slow ones: nothing else runs on the event loop meanwhile, so all other requests wait.

Requirements: ST-04.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable

from saturnmq.metrics import Histogram

log = logging.getLogger(__name__)


def _no_listener(_: int) -> None:
    """Until a broker sets one."""


class AppendWatch:
    """Durations of appends. seconds: of an append that is slow (osPageCacheBusyTimeOutMills). listener: receives such in ms.

    durations: of all appends, of a message or a batch.
    """

    __slots__ = ("durations", "listener", "seconds")

    def __init__(self, limit_ms: int) -> None:
        self.seconds = limit_ms / 1000
        self.listener: Callable[[int], object] = _no_listener
        self.durations = Histogram()

    def note(self, took: float, count: int = 1) -> None:
        """Count appends that have just ended, and report it if they were slow. took: seconds of all of them."""
        durations = self.durations
        # The mean of a group of appends stands for each of them.
        durations.counts[bisect_left(durations.edges, took / count)] += count
        durations.sum += took
        if took > self.seconds:
            took_ms = int(took * 1000)
            log.warning("slow append elapsed_ms=%s", took_ms)
            self.listener(took_ms)
