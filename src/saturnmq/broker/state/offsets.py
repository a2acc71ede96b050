"""Consumer offset table: group -> topic -> next offset per queue, kept in consumerOffset.json.

Requirements: OF-04, OF-05.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

from saturnmq.broker.state.creation_quota import CreationQuota
from saturnmq.broker.state.state_writer import StateWriter
from saturnmq.log_limit import LogLimit
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.bodies import ConsumerOffsetTable
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.json_dialect import dumps
from saturnmq.store import wall_clock_ms
from saturnmq.store.files.state_file import StateFile

log = logging.getLogger(__name__)

REST_FACTOR: Final = 20  # a periodic save takes at most one part in this many of the time
REST_SECONDS_MAX: Final = 60.0
_QUEUES_AT_ONCE: Final = 500  # encoded in one step


class Offsets:
    """Offset table and its file, saved periodically and on stop, not on each change."""

    def __init__(
        self,
        file: StateFile,
        *,
        most: int = 2**31,
        rejections: Rejections | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """most: limit on (topic, group) pairs with offsets (LIM-13). monotonic: time in seconds, of periodic saves."""
        self._monotonic = monotonic
        self._rest_until = 0.0
        self._file = file
        self._quota = CreationQuota(
            "offsets", in_all=most, per_hour=most, clock_ms=clock_ms, rejections=rejections or Rejections()
        )
        self._writer = StateWriter(file, self.pieces)
        self._table: dict[str, dict[str, dict[int, int]]] = {}
        self._pairs = 0  # (topic, group) pairs in the table
        self.dirty = False
        self._log_limit = LogLimit()  # of lines about decreases

    def load(self) -> None:
        """Load the file if it exists. Raises CorruptRecord, StoreError."""
        saved_table = self._file.read(ConsumerOffsetTable.decode_file)
        if saved_table is not None:
            for name, queues in saved_table.offset_table.items():
                topic, _, group = name.partition("@")
                self._queues(topic, group).update(queues)

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """The stored offset, or None."""
        topics = self._table.get(group)
        queues = topics.get(topic) if topics else None
        return queues.get(queue_id) if queues else None

    def _queues(self, topic: str, group: str) -> dict[int, int]:
        """The offsets of a pair, which is added if it is new."""
        topics = self._table.setdefault(group, {})
        queues = topics.get(topic)
        if queues is None:
            queues = topics[topic] = {}
            self._pairs += 1
        return queues

    def set(self, topic: str, group: str, queue_id: int, offset: int, peer: str = "") -> bool:
        """Store an offset; a decrease is accepted and logged. Returns False if the pair is new and exceeds the quota.

        peer: `ip:port` of the client; "" for the broker itself.
        """
        topics = self._table.get(group)
        queues = topics.get(topic) if topics else None
        if queues is None:
            if self._quota.add(self._pairs, f"{topic}@{group}", peer) is not None:
                return False
            queues = self._queues(topic, group)
        before = queues.get(queue_id)
        if before is not None and offset < before:
            self._log_backwards(topic, group, queue_id, before, offset)
        if before != offset:
            queues[queue_id] = offset
            self.dirty = True
        return True

    def _log_backwards(self, topic: str, group: str, queue_id: int, before: int, offset: int) -> None:
        """Log a decrease, at most one per second: a client can cause thousands."""
        suppressed = self._log_limit.suppressed("")
        if suppressed is not None:
            log.warning(
                "offset set backwards topic=%s group=%s queue=%s from=%s to=%s suppressed=%s",
                topic, group, queue_id, before, offset, suppressed,
            )  # fmt: skip

    def of(self, topic: str, group: str) -> dict[int, int]:
        """A copy of a group's offsets for a topic, by queue."""
        return dict(self._table.get(group, {}).get(topic, {}))

    def take(self, table: dict[str, dict[int, int]], *, forward: bool = False) -> None:
        """Take over another broker's offsets, with `forward` only greater ones; entries it does not have are kept (DL-C07)."""
        for name, queues in table.items():
            topic, _, group = name.partition("@")
            queue_offsets = self._queues(topic, group)
            for queue_id, offset in queues.items():
                before = queue_offsets.get(queue_id, -1)
                if offset > before or (offset != before and not forward):
                    queue_offsets[queue_id] = offset
                    self.dirty = True

    def limit(self, end: Callable[[str, int], int]) -> Generator[None, None, int]:
        """Lower offsets above end(topic, queue id), the next offset of the queue, in steps; the result is how many."""
        count = 0
        for topics in list(self._table.values()):
            for topic, queues in list(topics.items()):
                for queue_id, offset in queues.items():
                    most = end(topic, queue_id)
                    if offset > most:
                        queues[queue_id] = most
                        count += 1
                yield
        self.dirty |= count > 0
        return count

    def groups(self) -> Iterable[str]:
        """Names of all groups that have offsets."""
        return self._table.keys()

    def entries(self, group: str) -> Iterator[bytes]:
        """The entries of a group in GET_ALL_CONSUMER_OFFSET, separated by commas, in pieces."""
        mark = b""
        for topic, queues in list(self._table.get(group, {}).items()):
            yield from _entry_pieces(mark, topic, group, queues)
            mark = b","

    def topics_of(self, group: str) -> list[str]:
        """Topics for which the group has offsets."""
        return list(self._table.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets for the topic."""
        return [group for group, topics in self._table.items() if topic in topics]

    def pairs(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Topic, group and offsets by queue of every pair, of the groups at the time of the call; do not change the offsets."""
        for group in list(self._table):
            topics = self._table.get(group, {})
            for topic in list(topics):
                if (queues := topics.get(topic)) is not None:
                    yield topic, group, queues

    def remove_group(self, group: str) -> None:
        """Delete all offsets of a group."""
        topics = self._table.pop(group, None)
        if topics is not None:
            self._pairs -= len(topics)
            self.dirty = True

    def remove_topic(self, topic: str) -> None:
        """Delete all offsets for a topic."""
        for group in self.groups_of(topic):
            del self._table[group][topic]
            if not self._table[group]:
                del self._table[group]
            self._pairs -= 1
            self.dirty = True

    def pieces(self) -> Iterator[bytes]:
        """Body of GET_ALL_CONSUMER_OFFSET and content of the file, in pieces.

        Pairs are those of the call. Offsets that change while it is read may be the new ones: the next save has all of them.
        """
        return _pieces([(group, topics) for group, topics in self._table.items()])

    def encode(self) -> bytes:
        """Body of GET_ALL_CONSUMER_OFFSET and content of the file."""
        return b"".join(self.pieces())

    async def save(self) -> None:
        """Write changes in a worker thread and wait until they are durable. Raises StoreError; the next call retries."""
        if self.dirty:
            self.dirty = False
            self._writer.changed()
        try:
            await self._writer.saved()
        except StoreError:
            self.dirty = True
            raise

    async def save_periodically(self) -> None:
        """Save, unless the last call took so long that it must rest: REST_FACTOR times as long, at most REST_SECONDS_MAX.

        A table of 500,000 offsets is encoded and written for a second; in every interval of 5 s that would be much of all time.
        """
        began = self._monotonic()
        if began < self._rest_until:
            return
        await self.save()
        ended = self._monotonic()
        self._rest_until = ended + min(REST_FACTOR * (ended - began), REST_SECONDS_MAX)


def _pieces(groups: list[tuple[str, dict[str, dict[int, int]]]]) -> Iterator[bytes]:
    mark = b'{"offsetTable":{'
    for group, topics in groups:
        for topic, queues in list(topics.items()):
            yield from _entry_pieces(mark, topic, group, queues)
            mark = b","
    yield b"}}" if mark == b"," else b'{"offsetTable":{}}'


def _entry_pieces(mark: bytes, topic: str, group: str, queues: dict[int, int]) -> Iterator[bytes]:
    """One pair after a mark, some queues at a time; queues are those of the first piece."""
    mark += dumps(f"{topic}@{group}") + b":{"
    items = list(queues.items())
    for at in range(0, len(items), _QUEUES_AT_ONCE):
        yield mark + dumps({str(queue): offset for queue, offset in items[at : at + _QUEUES_AT_ONCE]})[1:-1]
        mark = b","
    yield b"}" if items else mark + b"}"
