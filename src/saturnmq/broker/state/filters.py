"""Message filters of a broker: group filter data from heartbeats, and their file.

Requirements: FIL-01..FIL-06, BP-01, CF-03.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.state_writer import StateWriter
from saturnmq.filter import (
    BloomFilter,
    Fact,
    FilterChange,
    GroupFilters,
    properties_of,
)
from saturnmq.log_limit import LogLimit
from saturnmq.protocol.bodies import SubscriptionData
from saturnmq.store import StateFile

log = logging.getLogger(__name__)

SAVE_SECONDS: Final = 10.0


class Filters:
    """Filter data of the groups that subscribe by expression, and its file."""

    def __init__(
        self,
        settings: BrokerSettings,
        file: StateFile,
        clock_ms: Callable[[], int],
        topic_exists: Callable[[str], bool] = lambda _: True,
    ) -> None:
        bloom = BloomFilter(settings.bloom_error_percent, settings.bloom_consumers)
        self.groups = GroupFilters(bloom, most=settings.consumer_filters_max, topic_exists=topic_exists)
        self._enabled = settings.property_filter_enable
        self.writer = StateWriter(file, self.groups.pieces)
        self._file = file
        self._clock_ms = clock_ms
        self._clean_span_ms = settings.filter_clean_span_ms
        self._dirty = False
        self._log_limit = LogLimit()

    def load(self) -> None:
        """Load consumerFilter.json if it exists; every group in it counts as offline until its next heartbeat.

        Raises CorruptRecord, StoreError.
        """
        facts = self._file.read(lambda data: self.groups.load(data, self._clock_ms()))
        for fact in facts or ():
            _note(fact)

    # ---- heartbeats

    def subscribe(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> None:
        """Apply all subscriptions of a member's heartbeat to its group (FIL-04)."""
        for _ in self.subscribing(group, subscriptions, now_ms):
            pass

    def subscribing(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> Iterator[None]:
        """As `subscribe`, in steps of at most one expression. Without enablePropertyFilter, nothing is compiled or kept."""
        if not self._enabled:
            return
        for fact in self.groups.subscribing(group, subscriptions, now_ms):
            if fact is not None:
                self._changed([fact])
            yield

    def replace(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Replace filters that no member of the group subscribes any more by what its members subscribe."""
        if self._enabled:
            self._changed(self.groups.replace(group, subscriptions, self._clock_ms()))

    def group_offline(self, group: str) -> None:
        """Mark a group as offline: its last member has left."""
        self._changed(self.groups.unsubscribe(group, self._clock_ms()))

    def _changed(self, facts: list[Fact]) -> None:
        for fact in facts:
            # Ignored expressions are not in the file.
            self._dirty |= fact.change is not FilterChange.IGNORED
            _note(fact, self._log_limit)

    # ---- dispatch

    def bit_map(self, topic: str, properties_raw: bytes) -> bytes | None:
        """Bits of the filters that accept a message, for the queue extension unit; None if no group filters the topic (FIL-06)."""
        # Before the properties are parsed: most topics have no filter.
        if not self.groups.filtered(topic):
            return None
        return self.groups.bit_map(topic, properties_of(properties_raw))

    # ---- file

    def save_soon(self) -> None:
        """Drop data of groups that have long been offline and schedule a write if anything changed. Runs every SAVE_SECONDS."""
        for topic, group in self.groups.clean(self._clock_ms(), self._clean_span_ms):
            log.info("filter expired topic=%r group=%s", topic, group)
            self._dirty = True
        if self._dirty:
            # Before the write: what changes meanwhile is written with the next one.
            self._dirty = False
            self.writer.changed()

    async def saved(self) -> None:
        """Wait until the file holds the current data. Raises StoreError."""
        self.save_soon()
        await self.writer.saved()


def _note(fact: Fact, limit: LogLimit | None = None) -> None:
    """Log a fact. limit: of the facts that heartbeats cause, by group."""
    level = logging.INFO
    if fact.change is FilterChange.REJECTED or (fact.change is FilterChange.IGNORED and fact.detail):
        level = logging.WARNING
    elif fact.change in (FilterChange.IGNORED, FilterChange.CONFIRMED):
        level = logging.DEBUG
    # One line for each group in a time: heartbeats repeat.
    if level > logging.DEBUG and limit is not None and limit.suppressed(fact.group) is None:
        return
    text = f" ({fact.detail})" if fact.detail else ""
    log.log(level, "filter %s topic=%r group=%s%s", fact.change.value, fact.topic, fact.group, text)
