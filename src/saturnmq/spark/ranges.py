"""Queue ranges of a query, their split into partitions, and stream positions. Pure: `planning` queries the brokers.

Requirements: SRC-02..SRC-07, STR-01, STR-04..STR-06.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.options import EARLIEST, LATEST, Positions

Key = tuple[str, str, int]  # topic, broker name, queue id
T = TypeVar("T")
VERSION: Final = 1  # of stream offsets
LISTED_QUEUES: Final = 20  # of those that an error names


class QueueRange(NamedTuple):
    """Messages of one queue: queue offsets [begin, end), restricted to store times [start_ms, end_ms)."""

    topic: str
    broker: str
    queue_id: int
    begin: int
    end: int
    start_ms: int | None = None
    end_ms: int | None = None


class Bounds(NamedTuple):
    """First and next offset of a queue."""

    low: int
    high: int


def key_of(queue: MessageQueue) -> Key:
    """Return a queue as a key of positions."""
    return (queue.topic, queue.broker_name, queue.queue_id)


def listed(queues: Iterable[Key | MessageQueue]) -> str:
    """Format queues for messages, at most LISTED_QUEUES of them: a query may have thousands."""
    keys = sorted(key_of(queue) if isinstance(queue, MessageQueue) else queue for queue in queues)
    texts = [f"{topic}/{broker}/{queue}" for topic, broker, queue in keys[:LISTED_QUEUES]]
    more = len(keys) - LISTED_QUEUES
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


def named_queues(all_queues: Iterable[MessageQueue], positions: Positions, name: str) -> dict[MessageQueue, int]:
    """Return the number that the JSON option gives each queue; it must name all queues and no others. Raises ConfigError."""
    numbers: dict[MessageQueue, int] = {}
    missing = []
    # All problems are collected: one error names every queue.
    for queue in all_queues:
        number = positions.get(queue.topic, {}).get(queue.broker_name, {}).get(queue.queue_id)
        if number is None:
            missing.append(queue)
        else:
            numbers[queue] = number
    # The option must name the topics' queues exactly, or a typing error would leave one out.
    named = {(t, b, q) for t, brokers in positions.items() for b, queues in brokers.items() for q in queues}
    foreign = named - {key_of(queue) for queue in numbers}
    if missing or foreign:
        parts = [f"does not name {listed(missing)}"] if missing else []
        parts += [f"names {listed(foreign)}, which the topics do not have"] if foreign else []
        raise ConfigError(f"option {name} {' and '.join(parts)}")
    return numbers


def resolved_offsets(
    queue_bounds: dict[MessageQueue, Bounds], positions: str | Positions, name: str
) -> dict[MessageQueue, int]:
    """Return an offset for every queue from earliest, latest or JSON, which must name them all. Raises ConfigError."""
    if isinstance(positions, str):
        return {queue: b.low if positions == "earliest" else b.high for queue, b in queue_bounds.items()}
    return {
        queue: queue_bounds[queue].low
        if offset == EARLIEST
        else queue_bounds[queue].high
        if offset == LATEST
        else offset
        for queue, offset in named_queues(queue_bounds, positions, name).items()
    }


def split(
    ranges: Iterable[QueueRange],
    at_least: int,
    most_records: int,
    most_bytes: int = 0,
    sizes: Mapping[Key, float] | None = None,
) -> list[QueueRange]:
    """Split ranges into contiguous pieces of nearly equal length, none empty.

    at_least: minimum number of pieces. most_records: maximum messages per piece, 0 for no limit. most_bytes: maximum estimated
    bytes per piece, 0 for no limit; sizes: average record size in bytes by queue.
    """
    # Empty ranges have no partition.
    whole = [r for r in ranges if r.end > r.begin]
    total = sum(r.end - r.begin for r in whole)
    pieces: list[QueueRange] = []
    for r in whole:
        length = r.end - r.begin
        # In proportion to the length, rounded up.
        parts = max(1, -(-length * at_least // total) if total else 1)
        if most_records:
            parts = max(parts, -(-length // most_records))
        size = (sizes or {}).get((r.topic, r.broker, r.queue_id), 0.0)
        if most_bytes and size > 0:
            # Rounded up, with at least one message for each piece.
            parts = max(parts, -(-length // max(1, int(most_bytes / size))))
        # No piece is empty.
        parts = min(parts, length)
        # From the total, so that the rounding does not add up.
        edges = [r.begin + length * n // parts for n in range(parts + 1)]
        pieces += [r._replace(begin=a, end=b) for a, b in itertools.pairwise(edges)]
    return pieces


# ---- stream positions


class Preceding(NamedTuple):
    """The record before a stream offset: store time, Unix ms, and position in the commit log, bytes.

    Slaves and new leaders have the same bytes at the same position; a topic that was created again has another record there.
    """

    stored_ms: int
    physical: int


def to_offset(
    positions: Mapping[Key, int],
    group: str | None = None,
    begins: Mapping[Key, int] | None = None,
    expression: str = "",
    preceding: Mapping[Key, Preceding] | None = None,
) -> dict[str, object]:
    """Encode positions as a Spark offset; equal positions always give equal text, which Spark compares (STR-01).

    begins: where the batch that ends here begins, for queues whose begin is not that of the previous offset. expression: the
    broker-side filter, "" for none. preceding: the record before each position.
    """
    # The keys in sorted order, as equal positions must give equal text.
    offset: dict[str, object] = {"g": group} if group else {}
    if begins:
        offset["n"] = _table(begins)
    if preceding:
        offset["p"] = _table({key: list(record) for key, record in preceding.items()})
    # The positions are always there, other fields only with content.
    offset["q"] = _table(positions)
    if expression:
        offset["s"] = expression
    return offset | {"v": VERSION}


def _table(values: Mapping[Key, T]) -> dict[str, dict[str, dict[str, T]]]:
    table: dict[str, dict[str, dict[str, T]]] = {}
    # The order of the keys is part of the text.
    for topic, broker, queue in sorted(values):
        table.setdefault(topic, {}).setdefault(broker, {})[str(queue)] = values[(topic, broker, queue)]
    return table


def from_offset(offset: Mapping[str, object]) -> dict[Key, int]:
    """Decode the positions of an offset. Raises ConfigError for one of another source."""
    return _decoded(offset, "q", _positions)


def begins_of(offset: Mapping[str, object]) -> dict[Key, int]:
    """Decode where the batch that ends at this offset begins; the previous offset, or 0, for queues not listed (SRC-15)."""
    return _decoded(offset, "n", _positions)


def preceding_of(offset: Mapping[str, object]) -> dict[Key, Preceding]:
    """Decode the records before the positions; none for queues not listed, as in offsets of earlier versions."""

    def records(table: Any) -> dict[Key, Preceding]:
        pairs = _values(table)
        for pair in pairs.values():
            _check_int64(pair)
        positions: Any = offset["q"]
        return {
            key: Preceding(*pair)
            for key, pair in pairs.items()
            # Written with the positions; a queue that was removed by hand has none.
            if str(key[2]) in positions.get(key[0], {}).get(key[1], {})
        }

    return _decoded(offset, "p", records)


def is_same_position(first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    """Whether two offsets are the same positions of the same group; other fields are not compared."""
    return all(first.get(name) == second.get(name) for name in ("g", "q", "v"))


def _decoded(offset: Mapping[str, object], field: str, decode: Callable[[Any], T]) -> T:
    """Decode a table of an offset; only that of the positions, "q", must be there. Raises ConfigError."""
    try:
        # True counts as 1 in Python.
        if not isinstance(offset, dict) or isinstance(offset.get("v"), bool) or offset.get("v") != VERSION:
            raise ValueError(f"it has no version {VERSION}")
        return decode(offset["q"] if field == "q" else offset.get(field, {}))
    # The errors that a text of another source can cause.
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the checkpoint holds {str(offset)[:120]}, which is no offset of this source (version {VERSION}), field "
            f"{field!r}: {str(error)[:120]}; restore the checkpoint from a copy, or begin again with another checkpointLocation"
        ) from None


def _values(table: Any) -> dict[Key, Any]:
    return {
        (topic, broker, int(queue)): value
        for topic, brokers in table.items()
        for broker, queues in brokers.items()
        for queue, value in queues.items()
    }


def _positions(table: Any) -> dict[Key, int]:
    values = _values(table)
    _check_int64(values.values())
    return values


def _check_int64(values: Iterable[Any]) -> None:
    for value in values:
        # A bool is an int too: isinstance would not do.
        if type(value) is not int or not 0 <= value < 2**63:
            raise ValueError(f"{value!r:.40} is no offset, must be 0..2^63-1")


def limited(
    start: Mapping[Key, int], latest: Mapping[Key, int], most: float, weight: Mapping[Key, float] | None = None
) -> dict[Key, int]:
    """Return the end of a trigger that may read at most `most` in total, at least one message a queue (STR-04).

    The limit is shared in proportion to backlog. weight: the cost of a message by queue, default 1; the average record size for
    a limit in bytes (STR-05).
    """
    # Queues without new messages take no share.
    backlog = {key: latest[key] - start[key] for key in latest if latest[key] > start[key]}
    # Never 0, which would divide by zero.
    heavy = {key: max((weight or {}).get(key, 1.0), 1e-9) for key in backlog}
    total = sum(behind * heavy[key] for key, behind in backlog.items())
    if total <= most:
        return dict(latest)
    reached = dict(start)
    for key, behind in backlog.items():
        # At least one message each: no queue waits without end.
        reached[key] = start[key] + min(behind, max(1, int(behind * most / total)))
    return reached


class BatchAdmission:
    """Admission control of one stream: decides how far the next micro-batch goes. now_ms: any monotonic clock (STR-04..06)."""

    def __init__(self, most: int, most_bytes: int, least: int, delay_ms: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._least = least
        self._delay_ms = delay_ms
        self._last_ms: float | None = None

    @property
    def needs_sizes(self) -> bool:
        """Whether average record sizes are required."""
        return bool(self._most_bytes)

    def reach(
        self,
        start: Mapping[Key, int],
        latest: Mapping[Key, int],
        now_ms: float,
        sizes: Mapping[Key, float],
        *,
        unlimited: bool = False,
        no_minimum: bool = False,
    ) -> dict[Key, int]:
        """Return the end of the next batch; `start` when it should wait for more messages."""
        # The first call starts the delay.
        if self._last_ms is None:
            self._last_ms = now_ms
        # Queues that `start` does not have begin at 0.
        waiting = sum(max(0, latest[key] - start.get(key, 0)) for key in latest)
        if (
            self._least
            and not (no_minimum or unlimited)
            and waiting < self._least
            and now_ms - self._last_ms < self._delay_ms
        ):
            return dict(start)
        end = dict(latest)
        if not unlimited:
            if self._most:
                end = limited(start, end, self._most)
            # On top of the limit in messages.
            if self._most_bytes:
                end = limited(start, end, self._most_bytes, sizes)
        # The delay runs from the last batch that had messages.
        if waiting:
            self._last_ms = now_ms
        return end
