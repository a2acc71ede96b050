"""Log lines about failures that repeat, such as pulls while a broker is away: not one per failure, which would fill a disk.

Per kind of work and subject (a broker, or a topic at a broker) there is a line when failures begin, one each minute while they
last, and one when they end. An outage that begins within a minute of another of the same subject is only part of the next summary.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

logger = logging.getLogger(__name__)

SUMMARY_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Outage:
    """sources: what fails, such as queues. is_logged: whether its beginning was logged. Times are monotonic seconds."""

    began: float
    logged: float
    is_logged: bool
    failures: int = 0
    sources: set[Hashable] = field(default_factory=set)


_Key = tuple[str, str]


class Outages:
    """The failures of one client that last. A source that fails belongs to one outage until it succeeds or is forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._outages: dict[_Key, _Outage] = {}
        self._keys: dict[tuple[str, Hashable], _Key] = {}
        self._begun: dict[_Key, float] = {}  # when the beginning of an outage was logged last

    def failed(self, work: str, source: Hashable, subject: str, error: object, *, detail: str = "") -> None:
        """Note a failure. subject: `key=value` words that all sources of an outage share. detail: words about this source."""
        now, key = self._clock(), (work, subject)
        if self._keys.get((work, source), key) != key:
            self.forget(work, source)
        self._keys[work, source] = key
        outage = self._outages.get(key)
        if outage is None:
            last = self._begun.get(key, -SUMMARY_SECONDS)
            is_new = now - last >= SUMMARY_SECONDS
            outage = self._outages[key] = _Outage(now, now if is_new else last, is_new)
            # An outage within a minute of the last line is only part of the next summary.
            if is_new:
                self._begun = {each: at for each, at in self._begun.items() if now - at < SUMMARY_SECONDS}
                self._begun[key] = now
                logger.warning("%s failed %s error=%s", work, f"{subject} {detail}".rstrip(), error)
        outage.sources.add(source)
        outage.failures += 1
        if now - outage.logged >= SUMMARY_SECONDS:
            outage.logged, outage.is_logged = now, True
            logger.warning(
                "%s still fails %s sources=%d failures=%d elapsed_s=%.0f error=%s",
                work, subject, len(outage.sources), outage.failures, now - outage.began, error,
            )  # fmt: skip

    def succeeded(self, work: str, source: Hashable) -> None:
        """Note a success; once all sources of an outage have succeeded, its end is logged."""
        if self._keys:
            self._end(work, source, is_over=True)

    def forget(self, work: str, source: Hashable) -> None:
        """The source is not used any more."""
        self._end(work, source, is_over=False)

    def _end(self, work: str, source: Hashable, *, is_over: bool) -> None:
        key = self._keys.pop((work, source), None)
        if key is None:
            return
        outage = self._outages[key]
        outage.sources.discard(source)
        if outage.sources:
            return
        del self._outages[key]
        if is_over and outage.is_logged:
            elapsed = self._clock() - outage.began
            logger.warning("%s works again %s failures=%d elapsed_s=%.0f", work, key[1], outage.failures, elapsed)
