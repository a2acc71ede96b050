"""Message filters: tag expressions, SQL92 expressions over properties, bloom filter bits. Pure: no I/O, no clock, no logging.

How a broker uses this package:

1. `check_subscription(text, kind, property_filter_enabled=...)` for CHECK_CLIENT_CONFIG (46). Raises FilterError (23, with the
   position) or ResponseError 1; both can be sent as the response unchanged.

2. `matcher_of(text, kind)` for a pull that carries its expression (SUBSCRIPTION bit); raises FilterError (23). Then
   `require_property_filter(kind, enabled)`, which raises ResponseError 1 (BP-01 requires this order). For a pull of an online
   group: `subscribed_tags(sub_string, code_set)` for tags, `filters.for_pull(topic, group, sub_version)` for expressions
   (raises 27, 28), `RetryMatcher(filters, group)` for its retry topic if filterSupportRetry is on.
   Each of them is a `Matcher`:
     - `by_tags_code(code)`   decides by the consume queue entry alone; False: skip it;
     - `by_properties(map)`   decides by the message properties; needed only if `reads_properties`. Never raises.

3. `GroupFilters(BloomFilter(percent, consumers))`, one per broker: `subscribe(group, subscriptions, now_ms)` on every
   heartbeat, `unsubscribe(group, now_ms)` when the last member has left, every 10 s `clean(now_ms)` and `encode()` into
   config/consumerFilter.json, at start `load(bytes, now_ms)`. They return facts to log.

4. Only with enableCalcFilterBitMap and enableConsumeQueueExt: `filters.bit_map(topic, properties)` before the consume queue
   entry is written (its length is `filters.bloom.map_bytes`), and on a pull `group_filter.by_extension(store_time_ms, bit_map)`.

Stricter than Apache RocketMQ: a pull with an invalid expression fails with 23 (Apache delivers every message); a saved record that
does not compile is dropped (Apache lets every message through); text length and nesting are bounded (LIM-12). Remarks of
response 23 have their own wording. Uploaded filter classes (FIL-08) are not supported.

`matcher_of(..., strict=True)` rejects text after the condition, which Apache ignores; `SqlMatcher.ignored` contains that text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from saturnmq.filter.bloom import BloomFilter
from saturnmq.filter.errors import FilterError, PropertyError
from saturnmq.filter.group_filters import (
    Fact,
    FilterChange,
    GroupFilter,
    GroupFilters,
    RetryMatcher,
    compile_expression,
)
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
    "Fact",
    "FilterChange",
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
    """Decides which messages a consumer receives."""

    @property
    def reads_properties(self) -> bool:
        """Whether by_properties must be called; if not, it is always true."""

    def by_tags_code(self, code: int | None) -> bool:
        """False if the consume queue entry with this tags code is not wanted. None: an entry without a tags code."""

    def by_properties(self, properties: Mapping[str, str] | None) -> bool:
        """Whether the message with these properties is wanted."""


def matcher_of(text: str | None, kind: str | None = TAG, *, strict: bool = False) -> Matcher:
    """The matcher of an expression; kind is SQL92, or TAG, empty or absent for tags. Raises FilterError (23)."""
    if is_tag_kind(kind):
        return tag_matcher(text)
    return compile_expression(text, kind, strict=strict)


def require_property_filter(kind: str | None, enabled: bool) -> None:
    """Raise ResponseError 1 for anything but tags if enablePropertyFilter is off (FIL-03)."""
    if not enabled and not is_tag_kind(kind):
        text = f"The broker does not support consumer to filter message by {kind}"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)


def check_subscription(
    text: str | None, kind: str | None, *, property_filter_enabled: bool, strict: bool = False
) -> None:
    """Validate a subscription for CHECK_CLIENT_CONFIG (46). Raises ResponseError 1 or FilterError 23.

    Tag expressions are not checked, as in Apache RocketMQ; a pull rejects invalid ones.
    """
    if is_tag_kind(kind):
        return
    require_property_filter(kind, property_filter_enabled)
    compile_expression(text, kind, strict=strict)
