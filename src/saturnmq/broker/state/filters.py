"""Filters by expression: what is remembered of groups, and the questions a pull asks of each message.

Source: spec 03 FIL-01..06, BP-01; spec 02 CF-03.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.state_writer import Saver
from saturnmq.filter import (
    BloomFilter,
    Change,
    Fact,
    GroupFilter,
    GroupFilters,
    Matcher,
    RetryMatcher,
    SqlMatcher,
    TagMatcher,
    tag_matcher,
)
from saturnmq.protocol.bodies import SubscriptionData
from saturnmq.protocol.message import decode_properties
from saturnmq.store import StateFile

log = logging.getLogger(__name__)

SAVE_SECONDS: Final = 10.0
_CACHED_CHARS_MAX: Final = 256
_REMEMBERED_MAX: Final = 2_000  # answers of one expression
_REMEMBERED_BYTES_MAX: Final = 256
_REMEMBERED_PROPERTIES_MAX: Final = 8

ByCode = Callable[[int], bool]
ByExtension = Callable[[int, bytes], bool]
ByRecord = Callable[[bytes], bool]


class Wanted(NamedTuple):
    """What is asked of a message, in this order; None: nothing.

    by_code: about the tags code of its queue unit. by_extension: about store time (Unix ms) and bit map of the unit's
    extension, where there is one. by_record: about its encoded properties.
    """

    by_code: ByCode | None = None
    by_extension: ByExtension | None = None
    by_record: ByRecord | None = None


EVERYTHING: Final = Wanted()


def wanted_by_tags(text: str | None) -> Wanted:
    """The questions of a tag expression. Raises FilterError (23)."""
    if not text or text == "*":
        return EVERYTHING
    return _tags(text) if len(text) <= _CACHED_CHARS_MAX else _of_tags(tag_matcher(text))


@lru_cache(maxsize=1024)
def _tags(text: str) -> Wanted:
    return _of_tags(tag_matcher(text))


def _of_tags(matcher: TagMatcher) -> Wanted:
    """A set's own test: no queue but that of delayed messages has a code beyond 32 bits, and nobody reads that by tags."""
    return EVERYTHING if matcher.codes is None else Wanted(matcher.codes.__contains__)


def wanted_by(matcher: Matcher) -> Wanted:
    """The questions of any matcher."""
    if isinstance(matcher, TagMatcher):
        return _of_tags(matcher)
    by_extension = matcher.by_extension if isinstance(matcher, GroupFilter) else None
    return Wanted(None, by_extension, _by_record(matcher))


def _by_record(matcher: Matcher) -> ByRecord:
    matcher = matcher.matcher if isinstance(matcher, GroupFilter) else matcher
    if isinstance(matcher, SqlMatcher) and len(matcher.properties) <= _REMEMBERED_PROPERTIES_MAX:
        return _remembering(matcher)
    ask = matcher.by_properties
    return lambda raw: ask(_decoded(raw))


@lru_cache(maxsize=128)
def _remembering(matcher: SqlMatcher) -> ByRecord:
    """The question of an expression, that looks for its own properties only and knows what it said of their values."""
    starts = [name.encode() + b"\x01" for name in matcher.properties]
    lasts = [(start, b"\x02" + start) for start in starts]
    answers: dict[bytes, bool] = {}

    def ask(raw: bytes) -> bool:
        found = b""
        for start, behind in lasts:
            at = raw.rfind(behind) + 1
            if at or raw.startswith(start):
                end = raw.find(b"\x02", at)
                found += raw[at : end + 1] if end >= 0 else raw[at:] + b"\x02"
        answer = answers.get(found)
        if answer is None:
            properties = _decoded(raw)  # all of it: the last of two with one name may be empty
            answer = matcher.by_properties(properties)
            if len(found) <= _REMEMBERED_BYTES_MAX and b"\x01\x02" not in found:
                if len(answers) >= _REMEMBERED_MAX:
                    answers.clear()
                answers[found] = answer
        return answer

    return ask


def _decoded(raw: bytes) -> dict[str, str]:
    """Bytes that are no UTF-8 are read as the original reads them, with a mark in their place."""
    return decode_properties(raw.decode("utf-8", "replace"))


class Filters:
    """The records of groups that filter by expression, and their file."""

    def __init__(self, settings: BrokerSettings, file: StateFile, clock_ms: Callable[[], int]) -> None:
        bloom = BloomFilter(settings.bloom_error_percent, settings.bloom_consumers)
        self.groups = GroupFilters(bloom)
        self.saver = Saver(file, self.groups.encode)
        self._file = file
        self._clock_ms = clock_ms
        self._clean_span_ms = settings.filter_clean_span_ms
        self._dirty = False

    def load(self) -> None:
        """Read consumerFilter.json if there is one; everybody in it is dead until heard of. Raises CorruptRecord, StoreError."""
        facts = self._file.read(lambda data: self.groups.load(data, self._clock_ms()))
        for fact in facts or ():
            _note(fact)

    # ---- heartbeats

    def subscribe(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> None:
        """All that a member's heartbeat says of its group (FIL-04)."""
        self._changed(self.groups.subscribe(group, subscriptions, now_ms))

    def gone(self, group: str) -> None:
        """The last member of a group is gone."""
        self._changed(self.groups.unsubscribe(group, self._clock_ms()))

    def _changed(self, facts: list[Fact]) -> None:
        for fact in facts:
            self._dirty |= fact.change is not Change.IGNORED
            _note(fact)

    # ---- pulls

    def for_pull(self, topic: str, group: str, version: int) -> GroupFilter:
        """The record of an online group. Raises ResponseError 27, 28 (BP-01)."""
        return self.groups.for_pull(topic, group, version)

    def for_retry(self, group: str) -> ByRecord:
        """The question about messages of the group's retry topic, where filterSupportRetry is on (FIL-05)."""
        return _by_record(RetryMatcher(self.groups, group))

    # ---- dispatch

    def bit_map(self, topic: str, properties_raw: bytes) -> bytes | None:
        """The bits of the filters that want a message, for its consume queue extension; None when nobody filters (FIL-06)."""
        if not self.groups.filtered(topic):
            return None
        return self.groups.bit_map(topic, _decoded(properties_raw))

    # ---- file

    def save_soon(self) -> None:
        """Forget who is long dead; write the file, in a thread, if it is not what it should be. Every SAVE_SECONDS."""
        for topic, group in self.groups.clean(self._clock_ms(), self._clean_span_ms):
            log.info("filter forgotten topic=%r group=%s", topic, group)
            self._dirty = True
        if self._dirty:
            self._dirty = False
            self.saver.changed()

    async def saved(self) -> None:
        """Until the file holds what is known. Raises StoreError."""
        self.save_soon()
        await self.saver.saved()


def _note(fact: Fact) -> None:
    level = logging.INFO
    if fact.change is Change.REFUSED or (fact.change is Change.IGNORED and fact.detail):
        level = logging.WARNING
    elif fact.change in (Change.IGNORED, Change.CONFIRMED):
        level = logging.DEBUG
    text = f" ({fact.detail})" if fact.detail else ""
    log.log(level, "filter %s topic=%r group=%s%s", fact.change.value, fact.topic, fact.group, text)
