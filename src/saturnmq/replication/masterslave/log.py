"""The log under the store of a slave: bytes of the master's log, at the master's offsets.

Frames may cut a record in two. `end` stays at the end of the last whole record, so that readers, recovery and the checkpoint
see whole records only; `received` counts the bytes behind it. After a lost connection or a restart the rest of a record is
requested again.

Requirements: HA-16, HA-17, HA-20, RP-08, RP-10.
"""

from __future__ import annotations

from saturnmq.protocol.crc import crc32
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.message import BLANK_MAGIC, MESSAGE_MAGIC, RECORD_FIXED_BYTES, Message, decode_record
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.replication.records import check_fields
from saturnmq.store.log.commit_log import END_BLANK_BYTES, SIZE_AND_MAGIC, CommitLog


class SlaveLog(CommitLog):
    """The `Log` of a slave: nothing but frames of the master is appended.

    received: every byte before this offset is stored; the bytes from `end` on are no whole record yet.
    """

    refusal = "this broker is a slave, its messages come from its master"
    received = PhysicalOffset(0)

    @property
    def has_record(self) -> bool:
        """Whether the log has a whole record, or is empty from its beginning."""
        # Without a record the log may still be begun elsewhere.
        return not self.end or not self.files or self.end > self.files[0].start

    def set_end(self, end: PhysicalOffset) -> int:
        zeroed = super().set_end(end)
        self.received = end
        return zeroed

    def begin_at(self, offset: PhysicalOffset) -> None:
        """Let a log without records begin at the start of another file. Raises OSError."""
        for file in self.files:
            file.delete()
        self.files.clear()
        self._current = None
        self.drop_spare()
        self.end = self.committed = self.received = offset
        self.set_confirmed(offset)

    def receive(self, data: bytes) -> None:
        """Append bytes of one file at `received`. Raises DiskFull, StoreError."""
        # The file exists if a record reaches into it, or `_next` made it.
        file = self._files.find(self.received)
        if file is None:  # frames never span files, so `received` is at the start of one
            file = self._next(self.received)
        self._current = file
        at = self.received - file.start
        # After `end`: readers do not see these bytes before `take` has checked them.
        file.map[at : at + len(data)] = data
        self.received = PhysicalOffset(self.received + len(data))

    def discard_rest(self) -> None:
        """Forget received bytes that are no whole record."""
        self.received = self.end

    def record_start(self, offset: PhysicalOffset) -> PhysicalOffset:
        """Where the record begins that holds an offset. Reads the headers of its file: not for the event loop."""
        file = self.file_at(offset)
        at = PhysicalOffset(file.start if file is not None else offset)
        # A filler or an unwritten part ends the walk.
        while (
            (record := self.record_at(at)) is not None and record.magic == MESSAGE_MAGIC and at + record.size <= offset
        ):
            at = PhysicalOffset(at + record.size)
        return at

    def take(self) -> Message | None:
        """The next message that is received completely, after which `end` is moved; None if there is none.

        Raises CorruptRecord, MessageError for bytes that no master appends: what follows cannot be read.
        """
        while True:
            end, received = self.end, self.received
            file = self._files.find(end)
            if file is None or received - end < SIZE_AND_MAGIC.size:
                return None
            at = end - file.start
            size, magic = SIZE_AND_MAGIC.unpack_from(file.map, at)
            if magic == BLANK_MAGIC and size == file.end - end:
                # A filler is followed by zeros up to the file's end, which the master sends, too.
                if received < file.end:  # the rest of the filler is still to come
                    return None
                self.end = self.committed = PhysicalOffset(file.end)
                continue
            # A record leaves space for the filler, by the rule of the master.
            if magic != MESSAGE_MAGIC or not RECORD_FIXED_BYTES <= size <= file.end - END_BLANK_BYTES - end:
                raise CorruptRecord(
                    f"the master sent no record at offset {end}: size {size}, magic 0x{magic & 0xFFFFFFFF:08X}"
                )
            if received - end < size:
                return None
            # Before it becomes visible and before it is acknowledged.
            message = decode_record(file.view[at : at + size], check_crc=True)
            if message.physical_offset != end:
                raise CorruptRecord(
                    f"the master sent a record at offset {end} that says it lies at {message.physical_offset}"
                )
            check_fields(message)
            if self._add_sum is not None:
                # The master's record as received: later damage is distinguished from a torn write by it.
                self._add_sum((end, size, crc32(file.view[at : at + size])))
            self.end = self.committed = PhysicalOffset(end + size)
            return message
