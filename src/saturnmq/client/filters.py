"""Tag and SQL92 filters, as the broker and the client evaluate them. Pure.

Requirements: PRC-05, HB-01, PL-06, FIL-01, FIL-03, FIL-14.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from saturnmq.filter import SQL92, FilterError, compile_sql
from saturnmq.filter.tags import BLANKS, split_tags
from saturnmq.protocol.bodies import SubscriptionData
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import java_hash

ALL: Final = "*"
TAG: Final = "TAG"


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter expression and its type, TAG or SQL92.

    Create it with `tag` or `sql`; the default selects every message.

        await consumer.subscribe("orders", tag("paid || refunded"))
        await consumer.subscribe("audit", sql("region = 'EU' AND total > 5"))
    """

    expression: str = ALL
    kind: str = TAG

    @property
    def tags(self) -> frozenset[str]:
        """The tags of a TAG filter; empty selects all messages, and is returned for SQL filters."""
        return frozenset(split_tags(self.expression)) if self.kind == TAG else frozenset()


def tag(expression: str = ALL) -> Filter:
    """Filter by tag: select messages that carry one of the tags in `a || b`; `*` or an empty text selects all.

    Raises ConfigError if the expression is not text or names no tag.

        await consumer.subscribe("orders", tag("paid || refunded"))
    """
    if not isinstance(expression, str):
        raise ConfigError(f"a tag filter is text like 'paid || refunded', not {type(expression).__name__}")
    expression = expression.strip(BLANKS) or ALL
    if expression != ALL and not split_tags(expression):
        raise ConfigError(f"tag filter {expression!r:.80} names no tag; write 'paid || refunded' or '*'")
    return Filter(expression)


def sql(expression: str) -> Filter:
    """Filter by properties: select messages for which the SQL92 expression is true. Evaluated by the brokers.

    Apache brokers evaluate it only with `enablePropertyFilter=true`. Raises ConfigError with the position of a syntax error. Also
    rejected is text that a broker would silently ignore: anything after a complete condition, such as LIKE, which is not part of
    the language.

        await consumer.subscribe("audit", sql("region = 'EU' AND total > 5"))
    """
    if not isinstance(expression, str):
        raise ConfigError(f"an SQL filter is text like 'total > 5', not {type(expression).__name__}")
    try:
        compile_sql(expression, strict=True)
    except FilterError as error:
        raise ConfigError(error.message) from error
    return Filter(expression, SQL92)


def subscription_data(topic: str, topic_filter: Filter, version_ms: int) -> SubscriptionData:
    """Build the subscription entry of a heartbeat: the expression, its tags, and their Java hash codes."""
    tags = split_tags(topic_filter.expression) if topic_filter.kind == TAG else []
    return SubscriptionData(
        topic=topic,
        sub_string=topic_filter.expression,
        tags_set=sorted(set(tags)),
        code_set=sorted({java_hash(item) for item in tags}),
        sub_version=version_ms,
        expression_type=topic_filter.kind,
        class_filter_mode=False,
    )
