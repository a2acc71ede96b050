"""Filter pushdown: converts Spark's filters to predicates of the source.

Pure: filters are recognized by class name and attributes.

Handled completely, Spark does not evaluate them again: topic, brokerName, queueId (=, IN) and ranges of queueOffset. Used to read
less and still evaluated by Spark: storeTimestamp ranges, tags (=, IN), keys and uniqKey (=).

Requirements: SRC-17, SRC-18.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

EVER: Final = 2**63 - 1


@dataclass(frozen=True)
class Predicates:
    """The pushed filters combined; None allows every value. Offsets [begin, end), store times [start_ms, end_ms) in Unix ms."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    uniq_keys: frozenset[str] | None = None
    begin: int = 0
    end: int = EVER
    start_ms: int = 0
    end_ms: int = EVER

    def wants(self, topic: str, broker: str, queue_id: int) -> bool:
        """Whether a queue can hold matching rows."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.brokers is None or broker in self.brokers)
            and (self.queue_ids is None or queue_id in self.queue_ids)
        )


_SETS: Final = {
    "topic": ("topics", True),
    "brokerName": ("brokers", True),
    "queueId": ("queue_ids", True),
    "tags": ("tags", False),
    "keys": ("keys", False),
    "uniqKey": ("uniq_keys", False),
}


def apply(filters: Iterable[Any]) -> tuple[Predicates, list[Any]]:
    """Return (predicates, filters that Spark must still evaluate)."""
    found = Predicates()
    left = []
    for item in filters:
        narrowed, exact = _one(found, item)
        if narrowed is not None:
            found = narrowed
        if narrowed is None or not exact:
            left.append(item)
    return found, left


def _one(found: Predicates, item: Any) -> tuple[Predicates | None, bool]:
    """Return (narrowed predicates, whether they replace the filter in Spark); (None, False) for a filter that is not pushed."""
    kind = type(item).__name__
    path: tuple[str, ...] = getattr(item, "attribute", ())
    if len(path) != 1:
        return None, False
    column = path[0]
    value: Any = getattr(item, "value", None)
    if column in _SETS and kind in ("EqualTo", "EqualNullSafe", "In"):
        values = frozenset(value if kind == "In" else [value])
        if None in values:
            return None, False
        name, exact = _SETS[column]
        had = getattr(found, name)
        narrowed: dict[str, Any] = {name: values if had is None else had & values}
        return replace(found, **narrowed), exact
    if column == "queueOffset" and type(value) is int:
        span = _span(kind, value)
        return (None, False) if span is None else (
            replace(found, begin=max(found.begin, span[0]), end=min(found.end, span[1])), True)  # fmt: skip
    if column == "storeTimestamp" and isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
        micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
        span = _span(kind, micros)
        if span is not None:  # rows have whole ms: round so that no row is lost
            first = -(-span[0] // 1000)
            last = EVER if span[1] == EVER else -(-span[1] // 1000)
            return replace(found, start_ms=max(found.start_ms, first), end_ms=min(found.end_ms, last)), False
    return None, False


def _span(kind: str, value: int) -> tuple[int, int] | None:
    """Return [begin, end) of a comparison, None for an unknown operator."""
    return {
        "EqualTo": (value, value + 1),
        "EqualNullSafe": (value, value + 1),
        "GreaterThan": (value + 1, EVER),
        "GreaterThanOrEqual": (value, EVER),
        "LessThan": (0, value),
        "LessThanOrEqual": (0, value + 1),
    }.get(kind)
