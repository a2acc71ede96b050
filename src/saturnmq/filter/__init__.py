"""Message filters: tag expressions, SQL92 expressions over properties, bloom filter bits. Pure: no I/O, no clock, no log.

What a broker calls:

1. `check_subscription(text, kind, property_filter_enabled=...)` for CHECK_CLIENT_CONFIG (46). Raises FilterError (23, with the
   position) or ResponseError 1; both are ready to be answered.

2. `matcher_of(text, kind)` for a pull that brings its expression (SUBSCRIPTION bit); raises FilterError (23). Then
   `require_property_filter(kind, enabled)`, which raises ResponseError 1 (BP-01 asks in this order). For a pull of an online
   group: `subscribed_tags(sub_string, code_set)` for tags, `filters.for_pull(topic, group, sub_version)` for expressions
   (raises 27, 28), `RetryMatcher(filters, group)` for its retry topic where filterSupportRetry is on.
   Every one of them is a `Matcher`:
     - `by_tags_code(code)`   with the consume queue entry alone; False: skip it;
     - `by_properties(map)`   with the message's properties; needed only if `reads_properties`. Never raises.

3. `GroupFilters(BloomFilter(percent, consumers))`, one for a broker: `subscribe(group, subscriptions, now_ms)` at every
   heartbeat, `unsubscribe(group, now_ms)` when the last member is gone, every 10 s `clean(now_ms)` and `encode()` into
   config/consumerFilter.json, at start `load(bytes, now_ms)`. They return facts to log.

4. Only with enableCalcFilterBitMap and enableConsumeQueueExt: `filters.bit_map(topic, properties)` before the consume queue
   entry is written (its length is `filters.bloom.map_bytes`), and at a pull `group_filter.by_extension(store_time_ms, bit_map)`.

Where this room is stricter than the original: a pull with a broken expression is 23 (there, it got every message); a saved
record that does not compile is dropped (there, it let everything through); text and depth are bounded (LIM-12); remarks of
23 are our own words. Uploaded filter classes (FIL-08) are not offered.

`matcher_of(..., strict=True)` refuses text behind the condition, which the original ignores; `SqlMatcher.ignored` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from saturnmq.filter.bloom import BloomFilter
from saturnmq.filter.errors import FilterError, PropertyError
from saturnmq.filter.group_filters import Change, Fact, GroupFilter, GroupFilters, RetryMatcher, compile_expression
from saturnmq.filter.sql import SQL92, SqlMatcher, compile_sql
from saturnmq.filter.tags import (
    ALL,
    TAG,
    TagExpression,
    TagMatcher,
    is_tag_kind,
    parse_tags,
    subscribed_tags,
    tag_matcher,
)
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import response_error

__all__ = [
    "ALL",
    "SQL92",
    "TAG",
    "BloomFilter",
    "Change",
    "Fact",
    "FilterError",
    "GroupFilter",
    "GroupFilters",
    "Matcher",
    "PropertyError",
    "RetryMatcher",
    "SqlMatcher",
    "TagExpression",
    "TagMatcher",
    "check_subscription",
    "compile_sql",
    "is_tag_kind",
    "matcher_of",
    "parse_tags",
    "require_property_filter",
    "subscribed_tags",
    "tag_matcher",
]


class Matcher(Protocol):
    """Which messages a consumer gets."""

    @property
    def reads_properties(self) -> bool:
        """Whether by_properties must be asked; otherwise it is always true."""

    def by_tags_code(self, code: int | None) -> bool:
        """False: the consume queue entry with this tags code is not wanted. None: an entry without one."""

    def by_properties(self, properties: Mapping[str, str] | None) -> bool:
        """Whether the message with these properties is wanted."""


def matcher_of(text: str | None, kind: str | None = TAG, *, strict: bool = False) -> Matcher:
    """The matcher of an expression: kind TAG, empty or absent, or SQL92. Raises FilterError (23)."""
    if is_tag_kind(kind):
        return tag_matcher(text)
    return compile_expression(text, kind, strict=strict)


def require_property_filter(kind: str | None, enabled: bool) -> None:
    """Raises ResponseError 1 for anything but tags where enablePropertyFilter is off (FIL-03)."""
    if not enabled and not is_tag_kind(kind):
        text = f"The broker does not support consumer to filter message by {kind}"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)


def check_subscription(
    text: str | None, kind: str | None, *, property_filter_enabled: bool, strict: bool = False
) -> None:
    """The answer to code 46: nothing when the subscription is usable. Raises ResponseError 1 or FilterError 23.

    A tag expression is not looked at, as in the original: a pull would refuse it.
    """
    if is_tag_kind(kind):
        return
    require_property_filter(kind, property_filter_enabled)
    compile_expression(text, kind, strict=strict)
