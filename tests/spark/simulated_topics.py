"""Topics in memory that a stream reader queries in place of brokers: appends, retention, deletion, new topics of an old name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from saturnmq.errors import ConnectFailed, RouteNotFound
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.options import parse_options
from saturnmq.spark.queue_state import QueueState
from saturnmq.spark.ranges import Bounds, Key, Preceding
from saturnmq.spark.stream import StreamReader
from saturnmq.spark.stream_queries import Snapshot


class KnownBounds:
    """Queries answered from a table of bounds that the test changes. Queues have no records; brokers outside `down` answer."""

    def __init__(self, bounds: dict[Key, Bounds], down: Iterable[str] = ()) -> None:
        self.bounds = bounds
        self.down = set(down)
        self.snapshots = 0

    def initial(self) -> dict[Key, int]:
        return {key: limits.low for key, limits in self.bounds.items()}

    def snapshot(self) -> Snapshot:
        self.snapshots += 1
        return Snapshot(dict(self.bounds), {}, {})

    def states(self, offsets: Mapping[Key, int]) -> dict[Key, QueueState]:
        return {key: self._state(key) for key in offsets}

    def _state(self, key: Key) -> QueueState:
        if key[1] in self.down:
            return QueueState(reason=f"broker {key[1]} is not registered at the name server")
        if key in self.bounds:
            return QueueState(self.bounds[key])
        return QueueState(deleted=True, reason=f"broker {key[1]} does not have the topic any more")

    def records(self, offsets: Mapping[Key, int]) -> dict[Key, Preceding]:
        return {}

    def stored_after(self, times_ms: Mapping[Key, int], bounds: Mapping[Key, Bounds]) -> dict[Key, int]:
        return {}


class Stored(NamedTuple):
    """A message: what it is, and where and when it was stored."""

    name: str
    record: Preceding


@dataclass
class SimulatedQueue:
    """A queue of one incarnation of its topic: low is the first offset that retention has left."""

    incarnation: int
    messages: list[Stored] = field(default_factory=list)
    low: int = 0

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.low, len(self.messages))


class SimulatedTopics(KnownBounds):
    """Queries answered from queues with records. Every append takes a new millisecond and a new position in the log."""

    def __init__(self) -> None:
        super().__init__({})
        self.queues: dict[Key, SimulatedQueue] = {}
        self._clock = itertools.count(1000)
        self._log = itertools.count(0, 100)
        self._incarnations = itertools.count()
        self.pulls = 0
        self.failing: set[int] = set()  # calls of `records` to come that find no connection, counted from 1

    def create(self, *keys: Key) -> None:
        for key in keys:
            self.queues[key] = SimulatedQueue(next(self._incarnations))

    def step_clock_back(self) -> None:
        """Store later messages at times before those of all earlier ones."""
        self._clock = itertools.count(10)

    def delete(self, key: Key) -> None:
        del self.queues[key]

    def append(self, key: Key, count: int = 1) -> list[str]:
        queue = self.queues[key]
        names = [f"{'/'.join(map(str, key))}#{queue.incarnation}:{len(queue.messages) + n}" for n in range(count)]
        queue.messages += [Stored(name, Preceding(next(self._clock), next(self._log))) for name in names]
        return names

    def expire(self, key: Key, low: int) -> None:
        self.queues[key].low = max(self.queues[key].low, min(low, len(self.queues[key].messages)))

    def read(self, piece: tuple[Any, ...]) -> list[str]:
        """Return the names of the messages of a partition."""
        queue = self.queues[piece[0], piece[1], piece[2]]
        assert queue.low <= piece[3] <= piece[4] <= len(queue.messages), (piece, queue.bounds)
        return [message.name for message in queue.messages[piece[3] : piece[4]]]

    # queries

    def _served(self) -> dict[Key, SimulatedQueue]:
        return {key: queue for key, queue in self.queues.items() if key[1] not in self.down}

    def initial(self) -> dict[Key, int]:
        if not self._served():
            raise ConfigError("option topic: 'T' cannot be read") from RouteNotFound("no route")
        return {key: self._first(queue) for key, queue in self._served().items()}

    def _first(self, queue: SimulatedQueue) -> int:
        return queue.low

    def snapshot(self) -> Snapshot:
        self.snapshots += 1
        self.bounds = {key: queue.bounds for key, queue in self._served().items()}
        return Snapshot(dict(self.bounds), {}, {})

    def states(self, offsets: Mapping[Key, int]) -> dict[Key, QueueState]:
        served = self._served()
        self.bounds = {key: queue.bounds for key, queue in served.items()}
        states = super().states(offsets)
        return {key: state._replace(record=self._record(key, offsets[key])) for key, state in states.items()}

    def _record(self, key: Key, offset: int) -> Preceding | None:
        queue = self._served().get(key)
        has_offset = queue is not None and queue.low <= offset < len(queue.messages)
        return queue.messages[offset].record if queue is not None and has_offset else None

    def records(self, offsets: Mapping[Key, int]) -> dict[Key, Preceding]:
        self.pulls += len(offsets)
        is_failing, self.failing = 1 in self.failing, {number - 1 for number in self.failing}
        if is_failing:
            raise ConnectFailed("connection refused")
        records = {key: self._record(key, offset) for key, offset in offsets.items()}
        return {key: record for key, record in records.items() if record is not None}

    def stored_after(self, times_ms: Mapping[Key, int], bounds: Mapping[Key, Bounds]) -> dict[Key, int]:
        return {key: self._after(self.queues[key], time_ms) for key, time_ms in times_ms.items()}

    def _after(self, queue: SimulatedQueue, time_ms: int) -> int:
        offsets = range(queue.low, len(queue.messages))
        return next((n for n in offsets if queue.messages[n].record.stored_ms > time_ms), len(queue.messages))


class LatestTopics(SimulatedTopics):
    """As a query with startingOffsets=latest asks them."""

    def _first(self, queue: SimulatedQueue) -> int:
        return len(queue.messages)


def reader_of(queries: KnownBounds, **options: Any) -> StreamReader:
    """Return a reader that queries this instead of brokers."""
    defaults = {"nameServer": "h:1", "subscribePattern": "[TU].*", "metadataRefreshMs": "0", "readTimeoutMs": "1"}
    given = {name: str(value) for name, value in options.items()}
    if "topic" in given:
        del defaults["subscribePattern"]
    reader = StreamReader(parse_options(defaults | given, streaming=True), ("body",))
    reader._queries = queries  # type: ignore[assignment]
    return reader
