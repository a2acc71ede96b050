"""The broker queries of one stream. Does not import pyspark.

Requirements: STR-01, STR-03, STR-15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from saturnmq.protocol.bodies import MessageQueue
from saturnmq.spark import planning
from saturnmq.spark.connect import Link, linked
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.parallel import gathered
from saturnmq.spark.queue_state import QueueState, queue_states
from saturnmq.spark.ranges import Bounds, Key, Preceding, key_of


class Snapshot(NamedTuple):
    """The selected queues at one time. sizes: average record bytes, where they are needed. missing: topics without route."""

    bounds: dict[Key, Bounds]
    sizes: dict[Key, float]
    missing: planning.Missing


class StreamQueries:
    """Queries of a stream to brokers and NameServer; every method raises the error of one that does not answer.

    Example:
        bounds, _sizes, _missing = StreamQueries(options, sized=False).snapshot()
    """

    def __init__(self, options: SourceOptions, *, sized: bool) -> None:
        self._options = options
        self._sized = sized

    def initial(self) -> dict[Key, int]:
        """Return where a query without checkpoint starts, as masters answer. Raises ConfigError, DataLossError, NoMaster."""

        async def ask(link: Link, options: SourceOptions) -> dict[Key, int]:
            queue_bounds = await planning.bounds(link, options)
            placed, _times = await planning.starts(link, queue_bounds, options, compared=False)
            return {key_of(queue): offset for queue, offset in placed.items()}

        with linked(self._options) as link:
            return link.run(planning.with_masters(ask, link, self._options))

    def snapshot(self) -> Snapshot:
        """Return bounds and sizes of every selected queue."""

        async def ask(link: Link) -> Snapshot:
            missing: planning.Missing = {}
            queue_bounds = await planning.bounds(link, self._options, missing)
            sizes = await planning.record_bytes(link, queue_bounds) if self._sized else {}
            return Snapshot({key_of(queue): limits for queue, limits in queue_bounds.items()}, sizes, missing)

        with linked(self._options) as link:
            return link.run(ask(link))

    def states(self, offsets: Mapping[Key, int]) -> dict[Key, QueueState]:
        """Return what the masters say about queues; the offsets should be ones that the queues may have."""
        with linked(self._options) as link:
            queues = {MessageQueue(*key): offset for key, offset in offsets.items()}
            return link.run(queue_states(link.core, link.puller.group, queues))

    def records(self, offsets: Mapping[Key, int]) -> dict[Key, Preceding]:
        """Return the record at each offset; queues that do not return it are omitted."""
        with linked(self._options) as link:
            return link.run(planning.records_at(link, offsets))

    def stored_after(self, times_ms: Mapping[Key, int], bounds: Mapping[Key, Bounds]) -> dict[Key, int]:
        """Return the first offset of each queue that its master stored later than the time; its end if there is none."""

        async def ask(link: Link) -> dict[Key, int]:
            async def search(key: Key) -> int:
                queue, after_ms = MessageQueue(*key), times_ms[key] + 1
                return (await planning.offset_of_time(link, queue, bounds[key], after_ms)).offset

            return dict(zip(times_ms, await gathered(search, times_ms), strict=True))

        with linked(self._options) as link:
            return link.run(ask(link.masters()))
