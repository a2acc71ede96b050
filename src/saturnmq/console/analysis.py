"""Analysis of a topic over a bounded sample of its messages: sizes, rate by minute, tags, keys and properties by share.

Requirements: CON-05, CON-09.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from saturnmq.client.message import Message
from saturnmq.console.conditions import readable
from saturnmq.console.context import Page
from saturnmq.console.scanning import ScanRange, TopicScan
from saturnmq.console.search import opened, range_of, topic_of
from saturnmq.console.texts import N_

SAMPLE_MAX: Final = 50_000
NAMES_MAX: Final = 5000  # different ones that are counted; more are counted together
SHOWN: Final = 15
NAME_MAX: Final = 100
SIZES: Final = (100, 1_000, 10_000, 100_000, 1_000_000)
_MINUTE_MS: Final = 60_000
_MINUTES_MAX: Final = 10_000


@dataclass(frozen=True)
class SampleShares:
    """What a page shows. tables: title, rows of (name, count, percent). rates: (Unix seconds, messages per second)."""

    count: int
    bytes: int
    least: int
    most: int
    compressed: int
    tables: list[tuple[str, list[tuple[str, int, float]]]]
    rates: list[tuple[int, float]]


class MessageSample:
    """Counts messages. take: until SAMPLE_MAX."""

    def __init__(self) -> None:
        self._count = self._bytes = self._most = self._compressed = 0
        self._least = -1
        self._sizes: Counter[str] = Counter()
        self._tags: Counter[str] = Counter()
        self._keys: Counter[str] = Counter()
        self._properties: Counter[str] = Counter()
        self._producers: Counter[str] = Counter()
        self._minutes: Counter[int] = Counter()

    def take(self, message: Message[bytes]) -> bool:
        """Count a message; whether the sample is large enough."""
        record, body = message.record, readable(message)
        size = len(body) if body is not None else len(record.body)
        self._count += 1
        self._bytes += size
        self._most = max(self._most, size)
        self._least = size if self._least < 0 else min(self._least, size)
        self._compressed += len(record.body) != size
        self._sizes[_size_class(size)] += 1
        _add(self._tags, message.tag or "")
        _add(self._producers, record.born_host.ip)
        for key in message.keys[:100] or ("",):
            _add(self._keys, key)
        for name in list(message.properties)[:100]:
            _add(self._properties, name)
        minute = record.store_timestamp_ms // _MINUTE_MS
        if minute in self._minutes or len(self._minutes) < _MINUTES_MAX:
            self._minutes[minute] += 1
        return self._count >= SAMPLE_MAX

    def shares(self) -> SampleShares:
        """What has been counted so far."""
        tables = [
            (N_("Tags"), self._table(self._tags)),
            (N_("Keys"), self._table(self._keys)),
            (N_("Sizes"), self._table(self._sizes)),
            (N_("Properties"), self._table(self._properties)),
            (N_("Sent from"), self._table(self._producers)),
        ]
        minutes = sorted(self._minutes.copy().items())
        rates = [(minute * 60, count / 60) for minute, count in minutes][-1440:]
        return SampleShares(self._count, self._bytes, max(self._least, 0), self._most, self._compressed, tables, rates)

    def _table(self, counted: Counter[str]) -> list[tuple[str, int, float]]:
        total = max(self._count, 1)
        return [(name, count, 100 * count / total) for name, count in counted.copy().most_common(SHOWN)]


def _add(counted: Counter[str], name: str) -> None:
    name = name[:NAME_MAX]
    counted[name if name in counted or len(counted) < NAMES_MAX else "..."] += 1


def _size_class(size: int) -> str:
    return next((f"< {limit} B" for limit in SIZES if size < limit), f">= {SIZES[-1]} B")


async def start(request: Request, page: Page) -> Response:
    """Begin to count the messages of a time range."""
    form = await request.form()
    topic = topic_of(str(form.get("topic", "")))
    begin_ms, end_ms = range_of(str(form.get("from", "")), str(form.get("to", "")), time.time_ns() // 1_000_000)
    sample = MessageSample()
    scan = TopicScan(page.services.admin, ScanRange(topic, begin_ms, end_ms), sample.take)
    return opened(page, page.services.jobs.start(page.user, "analysis", topic, scan, sample))
