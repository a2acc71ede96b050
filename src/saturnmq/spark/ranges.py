"""Which queue ranges a query reads: asked of the brokers once, split into partitions. No pyspark needed.

Source: SRC-02..07, STR-01.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.spark.options import EARLIEST, LATEST, Positions, SourceOptions
from saturnmq.sync import Client, Puller


class QueueRange(NamedTuple):
    """Messages of one queue: queue offsets [begin, end)."""

    topic: str
    broker: str
    queue_id: int
    begin: int
    end: int


class Bounds(NamedTuple):
    """First and next offset of a queue."""

    low: int
    high: int


@contextmanager
def pulling(options: SourceOptions) -> Iterator[Puller]:
    """A puller for the options' name servers, closed at the end."""
    servers = [part.strip() for part in options.name_server.replace(",", ";").split(";") if part.strip()]
    with Client(name_servers=servers, timeout=options.pull_timeout_ms / 1000) as client:
        yield client.puller()


def bounds(puller: Puller, options: SourceOptions) -> dict[MessageQueue, Bounds]:
    """Every readable queue of the topics with its bounds. Raises ConfigError for a topic without a route."""
    found: dict[MessageQueue, Bounds] = {}
    for topic in options.topics:
        try:
            queues = puller.queues(topic)
        except SaturnError as error:
            raise ConfigError(f"option topic: {topic!r} cannot be read from {options.name_server}: {error}") from error
        for queue in queues:
            found[queue] = Bounds(puller.min_offset(queue), puller.max_offset(queue))
    return found


def place(known: dict[MessageQueue, Bounds], wanted: str | Positions, name: str) -> dict[MessageQueue, int]:
    """An offset for every queue from a word or from JSON, which must name them all. Raises ConfigError."""
    if isinstance(wanted, str):
        return {queue: b.low if wanted == "earliest" else b.high for queue, b in known.items()}
    offsets: dict[MessageQueue, int] = {}
    missing = []
    for queue, limits in known.items():
        offset = wanted.get(queue.topic, {}).get(queue.broker_name, {}).get(queue.queue_id)
        if offset is None:
            missing.append(f"{queue.topic}/{queue.broker_name}/{queue.queue_id}")
        else:
            offsets[queue] = limits.low if offset == EARLIEST else limits.high if offset == LATEST else offset
    named = {(t, b, q) for t, brokers in wanted.items() for b, queues in brokers.items() for q in queues}
    foreign = named - {(q.topic, q.broker_name, q.queue_id) for q in known}
    if missing or foreign:
        strange = [f"{t}/{b}/{q}" for t, b, q in sorted(foreign)]
        parts = [f"does not name {', '.join(missing)}"] if missing else []
        parts += [f"names {', '.join(strange)}, which the topics do not have"] if strange else []
        raise ConfigError(f"option {name} {' and '.join(parts)}")
    return offsets


def checked(
    known: dict[MessageQueue, Bounds], offsets: dict[MessageQueue, int], options: SourceOptions, name: str
) -> dict[MessageQueue, int]:
    """Offsets inside the bounds; those outside are data loss: an error, or moved to the bound. Raises ConfigError (SRC-15)."""
    moved = {}
    for queue, offset in offsets.items():
        limits = known[queue]
        inside = min(max(offset, limits.low), limits.high)
        if inside != offset and options.fail_on_data_loss:
            raise ConfigError(
                f"option {name}: offset {offset} of {queue.topic}/{queue.broker_name}/{queue.queue_id} is outside "
                f"{limits.low}..{limits.high}; set failOnDataLoss=false to go on at the nearest one"
            )
        moved[queue] = inside
    return moved


def batch_ranges(options: SourceOptions) -> list[QueueRange]:
    """The ranges of a batch read, split (SRC-02, SRC-06)."""
    with pulling(options) as puller:
        known = bounds(puller, options)
        if options.starting_ms is not None:
            begin = {queue: _by_time(puller, queue, limits, options.starting_ms) for queue, limits in known.items()}
        else:
            begin = checked(known, place(known, options.starting, "startingOffsets"), options, "startingOffsets")
        end = checked(known, place(known, options.ending, "endingOffsets"), options, "endingOffsets")
    whole = [
        QueueRange(q.topic, q.broker_name, q.queue_id, begin[q], end[q]) for q in sorted(known) if begin[q] < end[q]
    ]
    return split(whole, options.min_partitions, options.records_per_partition)


def _by_time(puller: Puller, queue: MessageQueue, limits: Bounds, start_ms: int) -> int:
    """A safe offset at or before the first message stored at start_ms or later; earlier rows are dropped on reading (SRC-03)."""
    if limits.low == limits.high:
        return limits.low
    return min(max(puller.offset_by_time(queue, start_ms - 1), limits.low), limits.high)


def split(ranges: Iterable[QueueRange], at_least: int, most_records: int) -> list[QueueRange]:
    """Contiguous, near-equal pieces: at least so many in all, none longer than most_records (0: no limit), none empty."""
    whole = [r for r in ranges if r.end > r.begin]
    total = sum(r.end - r.begin for r in whole)
    pieces: list[QueueRange] = []
    for r in whole:
        length = r.end - r.begin
        parts = max(1, -(-length * at_least // total) if total else 1)
        if most_records:
            parts = max(parts, -(-length // most_records))
        parts = min(parts, length)
        edges = [r.begin + length * n // parts for n in range(parts + 1)]
        pieces += [r._replace(begin=a, end=b) for a, b in itertools.pairwise(edges)]
    return pieces


# ---- positions of a stream


def to_offset(positions: dict[tuple[str, str, int], int]) -> dict[str, object]:
    """Positions as Spark keeps them; the same positions always give the same text (STR-01)."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for topic, broker, queue in sorted(positions):
        table.setdefault(topic, {}).setdefault(broker, {})[str(queue)] = positions[(topic, broker, queue)]
    return {"q": table, "v": 1}


def from_offset(offset: dict[str, object]) -> dict[tuple[str, str, int], int]:
    """Positions of an offset. Raises ConfigError for one that is not this source's."""
    table = offset.get("q")
    if offset.get("v") != 1 or not isinstance(table, dict):
        raise ConfigError(f"the checkpoint holds {str(offset)[:120]}, which is no offset of this source (version 1)")
    return {
        (topic, broker, int(queue)): position
        for topic, brokers in table.items()
        for broker, queues in brokers.items()
        for queue, position in queues.items()
    }


def limited(
    start: dict[tuple[str, str, int], int], latest: dict[tuple[str, str, int], int], most: int
) -> dict[tuple[str, str, int], int]:
    """How far a trigger goes when at most so many messages may come: shared by backlog, at least one a queue (STR-04)."""
    backlog = {key: latest[key] - start[key] for key in latest if latest[key] > start[key]}
    total = sum(backlog.values())
    if total <= most:
        return latest
    reached = dict(start)
    for key, behind in backlog.items():
        reached[key] = start[key] + min(behind, max(1, behind * most // total))
    return reached
