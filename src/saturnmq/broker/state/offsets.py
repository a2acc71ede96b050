"""Consumer offset table: (topic, group) -> next offset per queue, kept in consumerOffset.json.

Requirements: OF-04, OF-05.
"""

from __future__ import annotations

import logging

from saturnmq.broker.state.state_writer import StateWriter
from saturnmq.net.refusals import Refusals
from saturnmq.protocol.bodies import ConsumerOffsetTable
from saturnmq.protocol.errors import StoreError
from saturnmq.store.files.state_file import StateFile

log = logging.getLogger(__name__)


class Offsets:
    """Offset table and its file, saved periodically and on stop, not on each change."""

    def __init__(self, file: StateFile, *, most: int = 2**31, refusals: Refusals | None = None) -> None:
        """most: limit on (topic, group) pairs with offsets (LIM-13)."""
        self._file = file
        self._most = most
        self._refusals = refusals or Refusals()
        self._writer = StateWriter(file, self.encode)
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self.dirty = False

    def load(self) -> None:
        """Load the file if it exists. Raises CorruptRecord, StoreError."""
        found = self._file.read(ConsumerOffsetTable.decode)
        if found is not None:
            for name, queues in found.offset_table.items():
                topic, _, group = name.partition("@")
                self._table[(topic, group)] = dict(queues)

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """The stored offset, or None."""
        queues = self._table.get((topic, group))
        return queues.get(queue_id) if queues else None

    def set(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Store an offset; a decrease is accepted and logged. Returns False if the table is full and the pair is new."""
        queues = self._table.get((topic, group))
        if queues is None:
            if len(self._table) >= self._most:
                self._refusals.note("offsets", "", f"offset of {group!r} for {topic!r}, {self._most} are kept already")
                return False
            queues = self._table[(topic, group)] = {}
        before = queues.get(queue_id)
        if before is not None and offset < before:
            log.warning(
                "offset set backwards topic=%s group=%s queue=%s from=%s to=%s", topic, group, queue_id, before, offset
            )
        if before != offset:
            queues[queue_id] = offset
            self.dirty = True
        return True

    def of(self, topic: str, group: str) -> dict[int, int]:
        """A copy of a group's offsets for a topic, by queue."""
        return dict(self._table.get((topic, group), {}))

    def take(self, table: dict[str, dict[int, int]], *, forward: bool = False) -> None:
        """Take over another broker's offsets, with `forward` only greater ones; entries it does not have are kept (DL-C07)."""
        for name, queues in table.items():
            topic, _, group = name.partition("@")
            known = self._table.setdefault((topic, group), {})
            for queue_id, offset in queues.items():
                before = known.get(queue_id, -1)
                if offset > before or (offset != before and not forward):
                    known[queue_id] = offset
                    self.dirty = True

    def topics_of(self, group: str) -> list[str]:
        """Topics for which the group has offsets."""
        return [topic for topic, name in self._table if name == group]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets for the topic."""
        return [group for name, group in self._table if name == topic]

    def remove_group(self, group: str) -> None:
        """Delete all offsets of a group."""
        for key in [key for key in self._table if key[1] == group]:
            del self._table[key]
            self.dirty = True

    def remove_topic(self, topic: str) -> None:
        """Delete all offsets for a topic."""
        for key in [key for key in self._table if key[0] == topic]:
            del self._table[key]
            self.dirty = True

    def encode(self) -> bytes:
        """Encode as body of GET_ALL_CONSUMER_OFFSET and content of the file."""
        return ConsumerOffsetTable(
            {f"{topic}@{group}": queues for (topic, group), queues in self._table.items()}
        ).encode()

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
