"""Message filters: tag expressions, SQL92 expressions over properties, bloom filter bits. Pure: no I/O, no clock, no logging.

How a broker uses this package:

1. `check_subscription(text, kind, property_filter_enabled=...)` for CHECK_CLIENT_CONFIG (46). Raises FilterError (23, with the
   position) or ResponseError 1; both can be sent as the response unchanged.

2. The predicates of a pull, a `PullFilter`: `pull_filter_of(text, kind)` if it carries its expression (SUBSCRIPTION bit), which
   raises FilterError (23). Then `require_property_filter(kind, enabled)`, which raises ResponseError 1 (BP-01 requires this order).
   Of an online group: `subscribed_tags(sub_string, code_set)` for tags, `filters.for_pull(topic, group, sub_version)` for
   expressions (raises 27, 28), `filters.for_retry(group)` for its retry topic if filterSupportRetry is on.

3. `GroupFilters(BloomFilter(percent, consumers))`, one per broker: `subscribe(group, subscriptions, now_ms)` on every
   heartbeat, `unsubscribe(group, now_ms)` when the last member has left, every 10 s `clean(now_ms)` and `encode()` into
   config/consumerFilter.json, at start `load(bytes, now_ms)`. They return facts to log.

4. Only with enableCalcFilterBitMap and enableConsumeQueueExt: `filters.bit_map(topic, properties)` before the consume queue
   entry is written (its length is `filters.bloom.map_bytes`), and on a pull `group_filter.by_extension(store_time_ms, bit_map)`.

Stricter than Apache RocketMQ: a pull with an invalid expression fails with 23 (Apache delivers every message); a saved record that
does not compile is dropped (Apache lets every message through); text length and nesting are bounded (LIM-12). Remarks of
response 23 have their own wording. Uploaded filter classes (FIL-08) are not supported.

`compile_sql(..., strict=True)` rejects text after the condition, which Apache ignores; `SqlMatcher.ignored` contains that text.
"""

from __future__ import annotations

from saturnmq.filter.bloom import BloomFilter
from saturnmq.filter.errors import FilterError, PropertyError
from saturnmq.filter.group_filters import Fact, FilterChange, GroupFilter, GroupFilters, compile_expression
from saturnmq.filter.predicates import ACCEPT_ALL, ByRecord, PullFilter
from saturnmq.filter.sql import SQL92, SqlMatcher, compile_sql, properties_of
from saturnmq.filter.tags import TAG, TagExpression, is_tag_kind, parse_tags, subscribed_tags, tag_filter
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import response_error

__all__ = [
    "ACCEPT_ALL",
    "SQL92",
    "TAG",
    "BloomFilter",
    "ByRecord",
    "Fact",
    "FilterChange",
    "FilterError",
    "GroupFilter",
    "GroupFilters",
    "PropertyError",
    "PullFilter",
    "SqlMatcher",
    "TagExpression",
    "check_subscription",
    "compile_sql",
    "is_tag_kind",
    "parse_tags",
    "properties_of",
    "pull_filter_of",
    "require_property_filter",
    "subscribed_tags",
    "tag_filter",
]


def pull_filter_of(text: str | None, kind: str | None = TAG) -> PullFilter:
    """The predicates of an expression; kind is SQL92, or TAG, empty or absent for tags. Raises FilterError (23)."""
    if is_tag_kind(kind):
        return tag_filter(text)
    return PullFilter(by_record=compile_expression(text, kind).by_record)


def require_property_filter(kind: str | None, enabled: bool) -> None:
    """Raise ResponseError 1 for anything but tags if enablePropertyFilter is off (FIL-03)."""
    if not enabled and not is_tag_kind(kind):
        text = f"The broker does not support consumer to filter message by {kind}"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)


def check_subscription(text: str | None, kind: str | None, *, property_filter_enabled: bool) -> None:
    """Validate a subscription for CHECK_CLIENT_CONFIG (46). Raises ResponseError 1 or FilterError 23.

    Tag expressions are not checked, as in Apache RocketMQ; a pull rejects invalid ones.
    """
    if is_tag_kind(kind):
        return
    require_property_filter(kind, property_filter_enabled)
    compile_expression(text, kind)
