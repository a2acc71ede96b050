"""What a consumer wants of a topic: tag and SQL filters, as the broker and the client check them. Pure.

Source: PRC-05, HB rows, PL-06, FIL-01, FIL-03.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from saturnmq.filter import SQL92, FilterError, compile_sql
from saturnmq.protocol.bodies import SubscriptionData
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import java_hash

ALL: Final = "*"
TAG: Final = "TAG"


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter expression and its type."""

    expression: str = ALL
    kind: str = TAG

    @property
    def tags(self) -> frozenset[str]:
        """The tags wanted; empty means all."""
        return frozenset(split_tags(self.expression)) if self.kind == TAG else frozenset()


def tag(expression: str = ALL) -> Filter:
    """Messages with one of the tags of `a || b`; `*` or nothing means all. Raises ConfigError."""
    if not isinstance(expression, str):
        raise ConfigError(f"a tag filter is text like 'paid || refunded', not {type(expression).__name__}")
    expression = expression.strip() or ALL
    if expression != ALL and not split_tags(expression):
        raise ConfigError(f"tag filter {expression!r:.80} names no tag; write 'paid || refunded' or '*'")
    return Filter(expression)


def sql(expression: str) -> Filter:
    """Messages whose properties make the expression true: `region = 'EU' AND total > 5`. Raises ConfigError saying where.

    The brokers evaluate it, those of the original only with enablePropertyFilter=true. Refused here is also what a broker
    would not look at: text behind the condition, such as LIKE, which is not part of the language (FIL-14).
    """
    if not isinstance(expression, str):
        raise ConfigError(f"an SQL filter is text like 'total > 5', not {type(expression).__name__}")
    try:
        compile_sql(expression, strict=True)
    except FilterError as error:
        raise ConfigError(error.message) from error
    return Filter(expression, SQL92)


def split_tags(expression: str) -> list[str]:
    """Tags in the order written; empty for `*`."""
    if expression in (ALL, ""):
        return []
    return [part.strip() for part in expression.split("||") if part.strip()]


def subscription_data(topic: str, wanted: Filter, version_ms: int) -> SubscriptionData:
    """The body of a heartbeat's subscription: tags and their Java hashes."""
    tags = split_tags(wanted.expression) if wanted.kind == TAG else []
    return SubscriptionData(
        topic=topic,
        sub_string=wanted.expression,
        tags_set=sorted(set(tags)),
        code_set=sorted({java_hash(item) for item in tags}),
        sub_version=version_ms,
        expression_type=wanted.kind,
        class_filter_mode=False,
    )
