"""Expression filters of consumer groups: one record per topic and group, persisted in consumerFilter.json.

Time is an argument, file access is left to the caller, and changes are returned as facts to log. A heartbeat creates a record; it
becomes dead when the last member of its group leaves, is revived by the next heartbeat, and is removed filterDataCleanTimeSpan
after it became dead. Format: docs/spec/03 section 15.2.

Requirements: FIL-04..FIL-06.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from saturnmq.filter.bloom import BloomFilter, has_bits, position_text, set_bits
from saturnmq.filter.errors import FilterError
from saturnmq.filter.filter_file import BloomFilterData, ConsumerFilterData, ConsumerFilterFile, file_pieces
from saturnmq.filter.predicates import ByRecord, PullFilter
from saturnmq.filter.sql import SQL92, SqlMatcher, compile_sql, properties_of
from saturnmq.filter.tags import is_tag_kind
from saturnmq.protocol.bodies import SubscriptionData
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import response_error

CLEAN_TIME_SPAN_MS: Final = 24 * 3600 * 1000
_DEAD_BEFORE_LOAD_MS: Final = 30_000
_CHARS_MAX: Final = 8 * 1024 * 1024  # of all expressions, which are all kept in one file
_REPLACED_CHARS_MAX: Final = 8192  # compiled at once when a member leaves, a few ms


class FilterChange(Enum):
    """Effect of a heartbeat or a load on a record."""

    NEW = "new"
    CHANGED = "changed"
    REVIVED = "revived"
    CONFIRMED = "confirmed"
    DEAD = "dead"
    REJECTED = "rejected"  # the expression does not compile; the record was removed
    IGNORED = "ignored"  # not newer than the known version


class Fact(NamedTuple):
    """A change to log. detail: the reason, if there is one."""

    change: FilterChange
    topic: str
    group: str
    detail: str = ""


class GroupFilter:
    """Filter of a group on a topic.

    Times are Unix ms. client_version: subVersion of the subscription. positions: bits of this filter in the bit maps of messages.
    """

    __slots__ = (
        "_own_bits",
        "born_time_ms",
        "client_version",
        "dead_time_ms",
        "group",
        "matcher",
        "positions",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        group: str,
        matcher: SqlMatcher,
        client_version: int,
        born_time_ms: int,
        positions: list[int],
        bits: int,
    ) -> None:
        self.topic = topic
        self.group = group
        self.matcher = matcher
        self.client_version = client_version
        self.born_time_ms = born_time_ms
        self.dead_time_ms = 0
        self.positions = positions
        self._own_bits = bits

    @property
    def expression(self) -> str:
        return self.matcher.text

    @property
    def dead(self) -> bool:
        """Whether the group has no members."""
        return self.dead_time_ms >= self.born_time_ms

    def by_extension(self, store_time_ms: int, bit_map: bytes | memoryview | None) -> bool:
        """Evaluate an extended consume queue entry: False rules the message out, True requires the matcher (FIL-06).

        A message stored before this filter was created carries no bits of it; a map of another length stems from another filter.
        """
        if store_time_ms <= self.born_time_ms or not bit_map or len(bit_map) * 8 != self._own_bits:
            return True
        return has_bits(bit_map, self.positions)

    def to_body(self) -> ConsumerFilterData:
        """The record in its persistent form."""
        return ConsumerFilterData(
            consumer_group=self.group,
            topic=self.topic,
            expression=self.expression,
            expression_type=SQL92,
            born_time=self.born_time_ms,
            dead_time=self.dead_time_ms,
            dead=self.dead,
            client_version=self.client_version,
            bloom_filter_data=BloomFilterData(bit_pos=self.positions, bit_num=self._own_bits),
        )

    def __repr__(self) -> str:
        return f"GroupFilter({self.topic}, {self.group}, {self.matcher!r}, dead={self.dead})"


class GroupFilters:
    """All records of a broker. Not thread-safe: owned by one event loop."""

    def __init__(
        self,
        bloom: BloomFilter | None = None,
        *,
        most: int = 2**31,
        topic_exists: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """most: limit on the records; the ones that have been dead for longest make way for new ones (LIM-13)."""
        self.bloom = bloom or BloomFilter()
        self._most = most
        self._topic_exists = topic_exists
        self._chars = 0  # of all expressions
        self._topics: dict[str, dict[str, GroupFilter]] = {}

    # ---- heartbeats

    def subscribe(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> list[Fact]:
        """Apply the complete subscription list of a group's heartbeat. Records of topics not in the list become dead."""
        return [fact for fact in self.subscribing(group, subscriptions, now_ms) if fact is not None]

    def subscribing(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> Iterator[Fact | None]:
        """As `subscribe`, in steps: each compiles at most one expression. None: nothing to report."""
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            yield self.register(group, subscription, now_ms)
        for record in self._of_group(group):
            if record.topic not in topics and not record.dead:
                record.dead_time_ms = now_ms
                yield Fact(FilterChange.DEAD, record.topic, group, "no longer subscribed")

    def replace(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> list[Fact]:
        """Replace records whose expression the group no longer has, whatever their version, by these subscriptions.

        Long expressions are compiled by the next heartbeat; until then there is no record.
        """
        facts = []
        chars = 0
        for subscription in subscriptions:
            old = self.get(subscription.topic, group)
            if old is None or old.expression == subscription.sub_string:
                continue
            self._remove(subscription.topic, group)
            facts.append(Fact(FilterChange.DEAD, subscription.topic, group, "its member left"))
            chars += len(subscription.sub_string)
            if chars <= _REPLACED_CHARS_MAX and (fact := self.register(group, subscription, now_ms)) is not None:
                facts.append(fact)
        return facts

    def register(self, group: str, subscription: SubscriptionData, now_ms: int) -> Fact | None:
        """Apply one subscription; None for a tag filter or an empty expression, which have no record."""
        text, topic, version = subscription.sub_string, subscription.topic, subscription.sub_version
        if is_tag_kind(subscription.expression_type) or not text:
            return None
        old = self.get(topic, group)
        if old is not None:
            same = text == old.expression and subscription.expression_type == SQL92
            if old.dead:  # no member uses it: whatever version a former one gave, it does not outlive its membership
                old.client_version = min(old.client_version, version)
            if version < old.client_version or (version == old.client_version and not old.dead):
                detail = "" if same else f"another expression with version {version}, not above {old.client_version}"
                return Fact(FilterChange.IGNORED, topic, group, detail)
            if same:
                change = FilterChange.REVIVED if old.dead else FilterChange.CONFIRMED
                old.client_version = version
                old.dead_time_ms = 0
                return Fact(change, topic, group)
        try:
            matcher = compile_expression(text, subscription.expression_type)
        except FilterError as error:
            self._remove(topic, group)
            return Fact(FilterChange.REJECTED, topic, group, error.message)
        self._remove(topic, group)
        while len(self) >= self._most or self._chars + len(text) > _CHARS_MAX:
            if not self._drop_oldest_dead():
                detail = f"the {len(self)} filters of groups online take all space (consumerFiltersMax={self._most})"
                return Fact(FilterChange.REJECTED, topic, group, detail)
        positions = self.bloom.positions(position_text(group, topic))
        record = GroupFilter(topic, group, matcher, version, now_ms, positions, self.bloom.bits)
        self._add(record)
        return Fact(FilterChange.NEW if old is None else FilterChange.CHANGED, topic, group, matcher.ignored)

    def unsubscribe(self, group: str, now_ms: int) -> list[Fact]:
        """Mark the records of a group dead after its last member has left; those of topics that do not exist are removed."""
        facts = []
        for record in self._of_group(group):
            if not self._topic_exists(record.topic):
                self._remove(record.topic, group)
            if not record.dead:
                record.dead_time_ms = now_ms
                facts.append(Fact(FilterChange.DEAD, record.topic, group, "no member left"))
        return facts

    def clean(self, now_ms: int, span_ms: int = CLEAN_TIME_SPAN_MS) -> list[tuple[str, str]]:
        """Remove records dead for span_ms or longer; return the (topic, group) of each."""
        old = [r for r in self if r.dead and now_ms - r.dead_time_ms >= span_ms]
        for record in old:
            self._remove(record.topic, record.group)
        return [(record.topic, record.group) for record in old]

    # ---- pulls and dispatch

    def get(self, topic: str, group: str) -> GroupFilter | None:
        """The record, dead or alive; None if there is none."""
        groups = self._topics.get(topic)
        return groups.get(group) if groups else None

    def for_pull(self, topic: str, group: str, sub_version: int) -> PullFilter:
        """The predicates of a pull without its own expression. Raises ResponseError 27 or 28 (BP-01)."""
        record = self.get(topic, group)
        if record is None:
            text = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            raise response_error(ResponseCode.FILTER_DATA_NOT_EXIST, text)
        if record.client_version < sub_version:
            raise response_error(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
        return PullFilter(None, record.by_extension, record.matcher.by_record)

    def for_retry(self, group: str) -> ByRecord:
        """Predicate for messages of a group's retry topic if filterSupportRetry is on (FIL-05).

        Applies the filter of the topic on which consumption failed, named by the property RETRY_TOPIC; without one, all pass. With
        filterSupportRetry off, the retry topic is not filtered: it is subscribed with `*`.
        """

        def accepts(raw: bytes) -> bool:
            properties = properties_of(raw)
            record = self.get(properties.get("RETRY_TOPIC", ""), group)
            return record is None or record.matcher.by_properties(properties)

        return accepts

    def filtered(self, topic: str) -> bool:
        """Whether any group, dead or alive, filters the topic."""
        return topic in self._topics

    def bit_map(self, topic: str, properties: Mapping[str, str] | None) -> bytes | None:
        """Compute the bit map of a message for its consume queue extension; None when no group filters the topic (FIL-06)."""
        groups = self._topics.get(topic)
        if not groups:
            return None
        bits = bytearray(self.bloom.map_bytes)
        for record in groups.values():
            if record.matcher.by_properties(properties):
                set_bits(bits, record.positions)
        return bytes(bits)

    def __iter__(self) -> Iterator[GroupFilter]:
        for groups in self._topics.values():
            yield from groups.values()

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    # ---- file

    def pieces(self) -> Iterator[bytes]:
        """The content of consumerFilter.json in pieces. Call clean() first."""
        topics = [(topic, list(groups.values())) for topic, groups in self._topics.items()]
        return file_pieces((topic, (record.to_body() for record in records)) for topic, records in topics)

    def encode(self) -> bytes:
        """The content of consumerFilter.json."""
        return b"".join(self.pieces())

    def load(self, data: bytes, now_ms: int) -> list[Fact]:
        """Replace all records by those of a saved file. Raises BodyError when it is not such a file.

        Loaded records are dead until a heartbeat revives them. All records are dropped when the parameters of the bloom filter have
        changed, and single ones whose expression no longer compiles.
        """
        saved = [
            record
            for by_topic in ConsumerFilterFile.decode_file(data).filter_data_by_topic.values()
            for record in by_topic.group_filter_data.values()
        ]
        self._clear()
        facts = []
        for record in saved:
            bloom = record.bloom_filter_data
            if bloom is None or not self.bloom.is_compatible(bloom.bit_num, bloom.bit_pos):
                self._clear()
                detail = f"the bloom filter is another one now: {self.bloom.hash_count} of {self.bloom.bits} bits"
                return [Fact(FilterChange.REJECTED, each.topic, each.consumer_group, detail) for each in saved]
            facts.append(self._adopt(record, bloom, now_ms))
        return facts

    def _adopt(self, record: ConsumerFilterData, bloom: BloomFilterData, now_ms: int) -> Fact:
        topic, group = record.topic, record.consumer_group
        try:
            matcher = compile_expression(record.expression, record.expression_type)
        except FilterError as error:
            return Fact(FilterChange.REJECTED, topic, group, error.message)
        positions = self.bloom.positions(position_text(group, topic))
        if positions != bloom.bit_pos:
            return Fact(FilterChange.REJECTED, topic, group, f"its positions are {bloom.bit_pos}, must be {positions}")
        group_filter = GroupFilter(
            topic, group, matcher, record.client_version, record.born_time, positions, bloom.bit_num
        )
        group_filter.dead_time_ms = record.dead_time or max(record.born_time, now_ms - _DEAD_BEFORE_LOAD_MS)
        self._add(group_filter)
        return Fact(FilterChange.NEW, topic, group)

    # ---- helpers

    def _of_group(self, group: str) -> list[GroupFilter]:
        return [groups[group] for groups in self._topics.values() if group in groups]

    def _clear(self) -> None:
        self._topics = {}
        self._chars = 0

    def _drop_oldest_dead(self) -> bool:
        oldest = min((r for r in self if r.dead), key=lambda r: r.dead_time_ms, default=None)
        if oldest is not None:
            self._remove(oldest.topic, oldest.group)
        return oldest is not None

    def _remove(self, topic: str, group: str) -> None:
        groups = self._topics.get(topic)
        record = groups.pop(group, None) if groups is not None else None
        if record is not None:
            self._chars -= len(record.expression)
        if groups is not None and not groups:
            del self._topics[topic]

    def _add(self, record: GroupFilter) -> None:
        self._remove(record.topic, record.group)
        self._topics.setdefault(record.topic, {})[record.group] = record
        self._chars += len(record.expression)


def compile_expression(text: str | None, kind: str | None) -> SqlMatcher:
    """Compile an expression that is not a tag expression. Raises FilterError, also for an unknown kind."""
    if kind != SQL92:
        raise FilterError(f"{kind}", text or "", f"there is no filter of type {kind!r:.40}", None, ("TAG", SQL92))
    return compile_sql(text)
