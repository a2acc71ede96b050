"""The lines of stats.log: sums of every statistics item at full minutes, full hours and midnight, in Apache RocketMQ's text.

The lines go to the logger `saturnmq.stats`, which does not propagate: without a handler of its own nothing is formatted. The
servers add one for the file with `logDirectory`; an application that embeds a broker adds its own:

    logging.getLogger("saturnmq.stats").addHandler(handler)

Boundaries are those of the broker's clock, found by looking at it each second; windows end at the last sample before. At most
`statsLogLinesPerMinute` lines are written per minute. If there are more items, those without a change in the window are omitted
first, then the last ones; a final line has their number.

Requirements: MON-08, MON-09.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

from saturnmq.broker.services.statistics import Stats
from saturnmq.escaping import escaped
from saturnmq.slices import Steps
from saturnmq.statistics import LAST_DAY, LAST_HOUR, LAST_MINUTE, WindowSum

stats_log: Final = logging.getLogger("saturnmq.stats")
stats_log.setLevel(logging.INFO)
stats_log.propagate = False

MOMENT_MINUTES: Final = 5
_RESPONSE_TIMES: Final = frozenset({"GROUP_GET_LATENCY"})  # printed with their mean, without a rate
_WINDOW_NAMES: Final = {LAST_MINUTE: "Minute", LAST_HOUR: "Hour", LAST_DAY: "Day"}
_STEP: Final = 32  # lines between two yields, less than 1 ms


def two_places(value: float) -> str:
    """The number as Java's `%.2f` writes it, which rounds halves of the shortest decimal form up.

    >>> two_places(0.125), f"{0.125:.2f}"
    ('0.13', '0.12')
    """
    from decimal import ROUND_HALF_UP, Decimal  # takes a hundredth of the start of a broker

    return str(Decimal(repr(value)).quantize(Decimal("0.01"), ROUND_HALF_UP))


def details(name: str, window_sum: WindowSum) -> str:
    """The figures of a line. Items of response times show their number and mean."""
    if name in _RESPONSE_TIMES:
        return f"TIMES: {window_sum.times} AVGRT: {two_places(window_sum.avgpt)}"
    return f"SUM: {window_sum.sum} TPS: {two_places(window_sum.tps)} AVGPT: {two_places(window_sum.avgpt)}"


class Boundaries:
    """Which windows end as the clock passes full minutes, full hours and midnights of local time."""

    def __init__(self) -> None:
        self._last_periods: tuple[int, int, tuple[int, int]] | None = None
        self._moments_at: int | None = None

    def passed(self, now_ms: int) -> tuple[list[int], bool]:
        """The windows that ended since the last call, the longest first, and whether moments are due.

        A clock that was set back or stood still ends each at most once.
        """
        minute = now_ms // 60_000
        before = self._last_periods
        # The common case: nothing ended.
        if before is not None and before[0] == minute:
            return [], False
        local = time.localtime(now_ms / 1000)
        # Hours of local time, in zones with half an hour, too.
        hour = (now_ms // 1000 + local.tm_gmtoff % 3600) // 3600
        periods = self._last_periods = (minute, hour, (local.tm_year, local.tm_yday))
        if before is None:
            return [], False
        ended = [
            w for w, old, new in zip((LAST_MINUTE, LAST_HOUR, LAST_DAY), before, periods, strict=True) if old != new
        ]
        # Also after the clock was set back.
        moments = self._moments_at is None or abs(minute - self._moments_at) >= MOMENT_MINUTES
        if moments:
            self._moments_at = minute
        return ended[::-1], moments


class StatisticsLog:
    """Writes the lines of one broker. lines_max: limit per minute, read at each use."""

    def __init__(self, stats: Stats, lines_max: Callable[[], int]) -> None:
        self._stats = stats
        self._lines_max = lines_max
        self._boundaries = Boundaries()
        self._remaining_lines = self._omitted = 0

    def due_lines(self, now_ms: int) -> Iterator[Steps[None]]:
        """The lines that are due now, to be written in slices; to be asked for each second."""
        windows, moments = self._boundaries.passed(now_ms)
        if windows and stats_log.hasHandlers():
            yield self._write(windows, moments)

    def _write(self, windows: list[int], moments: bool) -> Steps[None]:
        self._remaining_lines, self._omitted = self._lines_max(), 0
        for window in windows:
            yield from self._sums(window)
        if moments:
            yield from self._moments()
        if self._omitted:
            stats_log.info("lines omitted: %s, statsLogLinesPerMinute=%s", self._omitted, self._lines_max())

    def _sums(self, window: int) -> Steps[None]:
        # Known before the first line, so that busy items are not displaced by idle ones.
        changed_only = sum(len(stats_set.items) for _, stats_set in self._stats.sets) > self._remaining_lines
        for name, stats_set in self._stats.sets:
            for number, (key, item) in enumerate(list(stats_set.items.items())):
                if number % _STEP == 0:
                    yield
                window_sum = item.over(window)
                if changed_only and not (window_sum.sum or window_sum.times):
                    self._omitted += 1
                elif self._may_write():
                    stats_log.info(
                        "[%s] [%s] Stats In One %s, %s",
                        name,
                        escaped(key),
                        _WINDOW_NAMES[window],
                        details(name, window_sum),
                    )

    def _moments(self) -> Steps[None]:
        for name, values in (
            ("GROUP_GET_FALL_SIZE", self._stats.fall_size),
            ("GROUP_GET_FALL_TIME", self._stats.fall_ms),
        ):
            for number, (key, value) in enumerate(list(values.items())):
                if number % _STEP == 0:
                    yield
                if self._may_write():
                    stats_log.info("[%s] [%s] Stats Every 5 Minutes, Value: %s", name, escaped(key), value)

    def _may_write(self) -> bool:
        self._remaining_lines -= 1
        self._omitted += self._remaining_lines < 0
        return self._remaining_lines >= 0
