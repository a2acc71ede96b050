"""Samples and prints the statistics and the watermark of a broker once a second, as background work of the event loop.

Every task stands alone: one that fails is logged, and the others go on. Work that takes longer than a slice is done in slices, so
that no request waits for a sample or a line.

Requirements: MON-10, MON-11, MON-16.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from saturnmq.broker.services.statistics import Stats
from saturnmq.broker.services.statistics_log import StatisticsLog
from saturnmq.broker.services.watermark import FIRST_SECONDS, Watermark
from saturnmq.slices import Background, Steps

log = logging.getLogger(__name__)


class Reporting:
    """The sampling and printing of one broker. `tick` is called each second."""

    def __init__(
        self, stats: Stats, watermark: Watermark, clock_ms: Callable[[], int], lines_max: Callable[[], int]
    ) -> None:
        self._stats = stats
        self._clock_ms = clock_ms
        self._lines = StatisticsLog(stats, lines_max)
        self._watermark = watermark
        self._work = Background()
        self._ticks = 0

    def tick(self) -> None:
        """Do what is due now, and begin what takes longer."""
        self._begin("sample", self._sample)
        self._begin("print", lambda: self._lines.due_lines(self._clock_ms()))
        # Apache's first line comes after ten seconds, too.
        if self._ticks >= FIRST_SECONDS:
            self._begin("watermark", self._watermark.write)
        self._ticks += 1

    def _sample(self) -> Iterable[Steps[None]]:
        return self._stats.sample(asyncio.get_running_loop().time(), self._clock_ms())

    def _begin(self, name: str, task: Callable[[], Iterable[Steps[None]] | None]) -> None:
        try:
            for steps in task() or ():
                self._work.add(steps)
        # A task that fails must not stop the others.
        except Exception:
            log.exception("statistics task failed task=%s", name)

    @property
    def busy(self) -> bool:
        """Whether work is left from former ticks."""
        return self._work.busy

    def stop(self) -> None:
        """Drop the work that is left."""
        self._work.drop()
