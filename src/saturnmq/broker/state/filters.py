"""Message filters of a broker: group filter data from heartbeats, and the predicates that a pull applies to each message.

Requirements: FIL-01..FIL-06, BP-01, CF-03.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.state_writer import StateWriter
from saturnmq.filter import (
    BloomFilter,
    Fact,
    FilterChange,
    GroupFilter,
    GroupFilters,
    Matcher,
    RetryMatcher,
    SqlMatcher,
    TagMatcher,
    tag_matcher,
)
from saturnmq.net.log_limit import LogLimit
from saturnmq.protocol.bodies import SubscriptionData
from saturnmq.protocol.message import decode_properties
from saturnmq.store import StateFile

log = logging.getLogger(__name__)

SAVE_SECONDS: Final = 10.0
_CACHED_CHARS_MAX: Final = 256
_REMEMBERED_MAX: Final = 2_000  # cached results per expression
_REMEMBERED_BYTES_MAX: Final = 256
_REMEMBERED_PROPERTIES_MAX: Final = 8

ByCode = Callable[[int], bool]
ByExtension = Callable[[int, bytes], bool]
ByRecord = Callable[[bytes], bool]


class PullFilter(NamedTuple):
    """Predicates of a pull, applied in this order; None accepts everything.

    by_code: tags code of the queue unit. by_extension: store time (Unix ms) and bit map of the unit's extension, if it has one.
    by_record: encoded properties of the message. codes: what by_code accepts, if it is a set.
    """

    by_code: ByCode | None = None
    by_extension: ByExtension | None = None
    by_record: ByRecord | None = None
    codes: frozenset[int] | None = None


ACCEPT_ALL: Final = PullFilter()


def pull_filter_of_tags(text: str | None) -> PullFilter:
    """Predicates of a tag expression. Raises FilterError (23)."""
    text = text or ""
    return _tags(text) if len(text) <= _CACHED_CHARS_MAX else _of_tags(tag_matcher(text))


@lru_cache(maxsize=1024)
def _tags(text: str) -> PullFilter:
    return _of_tags(tag_matcher(text))


def _of_tags(matcher: TagMatcher) -> PullFilter:
    """Test the tags code by set membership, without reducing it to 32 bits.

    Only delay queues hold larger codes (delivery times), and no client filters those by tag.
    """
    return ACCEPT_ALL if matcher.codes is None else PullFilter(matcher.codes.__contains__, codes=matcher.codes)


def pull_filter_of(matcher: Matcher) -> PullFilter:
    """Predicates of any matcher."""
    if isinstance(matcher, TagMatcher):
        return _of_tags(matcher)
    by_extension = matcher.by_extension if isinstance(matcher, GroupFilter) else None
    return PullFilter(None, by_extension, _by_record(matcher))


def _by_record(matcher: Matcher) -> ByRecord:
    matcher = matcher.matcher if isinstance(matcher, GroupFilter) else matcher
    if isinstance(matcher, SqlMatcher) and len(matcher.properties) <= _REMEMBERED_PROPERTIES_MAX:
        return _remembering(matcher)
    ask = matcher.by_properties
    return lambda raw: ask(_decoded(raw))


@lru_cache(maxsize=128)
def _remembering(matcher: SqlMatcher) -> ByRecord:
    """Predicate of an expression that extracts only the properties it uses and caches the result by their values."""
    starts = [name.encode() + b"\x01" for name in matcher.properties]
    lasts = [(start, b"\x02" + start) for start in starts]
    answers: dict[bytes, bool] = {}

    def ask(raw: bytes) -> bool:
        used_properties = b""
        for start, behind in lasts:
            at = raw.rfind(behind) + 1
            if at or raw.startswith(start):
                end = raw.find(b"\x02", at)
                used_properties += raw[at : end + 1] if end >= 0 else raw[at:] + b"\x02"
        answer = answers.get(used_properties)
        if answer is None:
            properties = _decoded(raw)  # decode everything: of two properties with one name, the last one may be empty
            answer = matcher.by_properties(properties)
            if len(used_properties) <= _REMEMBERED_BYTES_MAX and b"\x01\x02" not in used_properties:
                if len(answers) >= _REMEMBERED_MAX:
                    answers.clear()
                answers[used_properties] = answer
        return answer

    return ask


def _decoded(raw: bytes) -> dict[str, str]:
    """Decode properties; invalid UTF-8 becomes U+FFFD, as in Apache RocketMQ."""
    return decode_properties(raw.decode("utf-8", "replace"))


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
            self._dirty |= fact.change is not FilterChange.IGNORED
            _note(fact, self._log_limit)

    # ---- pulls

    def for_pull(self, topic: str, group: str, version: int) -> GroupFilter:
        """Filter data of an online group. Raises ResponseError 27, 28 (BP-01)."""
        return self.groups.for_pull(topic, group, version)

    def for_retry(self, group: str) -> ByRecord:
        """Predicate for messages of the group's retry topic, if filterSupportRetry is on (FIL-05)."""
        return _by_record(RetryMatcher(self.groups, group))

    # ---- dispatch

    def bit_map(self, topic: str, properties_raw: bytes) -> bytes | None:
        """Bits of the filters that accept a message, for the queue extension unit; None if no group filters the topic (FIL-06)."""
        if not self.groups.filtered(topic):
            return None
        return self.groups.bit_map(topic, _decoded(properties_raw))

    # ---- file

    def save_soon(self) -> None:
        """Drop data of groups that have long been offline and schedule a write if anything changed. Runs every SAVE_SECONDS."""
        for topic, group in self.groups.clean(self._clock_ms(), self._clean_span_ms):
            log.info("filter expired topic=%r group=%s", topic, group)
            self._dirty = True
        if self._dirty:
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
    if level > logging.DEBUG and limit is not None and limit.suppressed(fact.group) is None:
        return
    text = f" ({fact.detail})" if fact.detail else ""
    log.log(level, "filter %s topic=%r group=%s%s", fact.change.value, fact.topic, fact.group, text)
