"""The parts of an open store, and dispatch: appended records become visible in consume queues and index.

Recovery and maintenance work on this half of a store; how messages are put is the business of `MessageStore`.

Requirements: RP-01..RP-04, ST-10, CQ-13, CQ-14, DEL-04..DEL-06, MF-02.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

from saturnmq.protocol.codes import ROLLED_BACK, TRANSACTION_MASK
from saturnmq.protocol.errors import FlushFailed, SaturnError
from saturnmq.protocol.message import Message
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.store.delay import unit_code
from saturnmq.store.files import capacity
from saturnmq.store.files.capacity import FULL_PERCENT, Usage
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.reserve import Reserve
from saturnmq.store.index.index_queue import IndexQueue, ReadLog
from saturnmq.store.index.message_index import LogPiece, MessageIndex, Record
from saturnmq.store.log.log import Log
from saturnmq.store.queue.consume_queue import ConsumeQueue, QueueShare, Unit
from saturnmq.store.queue.queues import QueueTable
from saturnmq.store.reading import StoreReader
from saturnmq.store.recovery.checkpoint import Checkpoint
from saturnmq.store.settings import StoreSettings

Appended: TypeAlias = tuple[ConsumeQueue | None, Message, QueueOffset, Unit, Record]
"""A record in the log: its queue if consumers see it, its message (of a batch what it has in common), unit, and index record."""


class StoreState(StoreReader):
    """Owns log, queues, index and checkpoint. For the callbacks see `MessageStore`.

    failure: why nothing is written any more. refusal: why messages are rejected although the disk works, as it is full or the index
    cannot grow; "" if they are accepted.
    """

    read_log: ReadLog
    log_piece: LogPiece | None

    def __init__(
        self,
        settings: StoreSettings,
        log: Log,
        disk: Disk,
        queues: QueueTable,
        index: MessageIndex | None,
        clock_ms: Callable[[], int],
    ) -> None:
        super().__init__(settings, log, disk, queues, index)
        self.clock_ms = clock_ms
        self.on_append: Callable[[str, int, QueueOffset, Sequence[Unit]], None] | None = None
        self.bit_map: Callable[[str, bytes], bytes | None] | None = None
        # Overridden by owners with state that depends on the log besides queues and index.
        self.replay_from: Callable[[PhysicalOffset], PhysicalOffset] = lambda dispatched: dispatched
        self.checkpoint = Checkpoint(settings.checkpoint_path, disk)
        self.reserve = Reserve(settings.root / "reserve", settings.reserve_bytes, disk)
        self.failure: SaturnError | None = None
        self.refusal = ""
        self.index_queue = IndexQueue(index, self) if index is not None else None
        self._last_store_ms = 0
        self._dispatched = PhysicalOffset(0)
        self._unconfirmed: deque[Appended] = deque()  # records that are not visible yet

    @abstractmethod
    def begin_maintenance(self, boundaries: Sequence[PhysicalOffset]) -> None:
        """Start maintenance after recovery. boundaries: offsets at which records begin, ascending, from the start of the scan."""

    @abstractmethod
    def write_note(self) -> None:
        """Write a checkpoint that states that everything is durable; recovery has just synced it. Raises StoreError."""

    @abstractmethod
    def stop_writing(self, failure: SaturnError) -> None:
        """Stop accepting messages after a disk failure and mark the store for the next start (DUR-06, DUR-07)."""

    def next_store_ms(self) -> int:
        """The current time in Unix ms, but never earlier than the last record's store time (ST-10)."""
        now = self.clock_ms()
        # The clock may step back; store times must not, because searches by time are binary.
        if now < self._last_store_ms:
            return self._last_store_ms
        self._last_store_ms = now
        return now

    # ---- dispatch (RP-01..04)

    @property
    def dispatched(self) -> PhysicalOffset:
        """Consume queues and index cover every record before this offset."""
        return self._dispatched

    @property
    def last_store_ms(self) -> int:
        """The latest store time of all records, Unix ms."""
        return self._last_store_ms

    def dispatch_units(self, shares: Collection[QueueShare], records: list[Record], end: PhysicalOffset) -> None:
        """Make all records up to `end` visible: append their units and index entries, and notify `on_append`.

        shares: the units of each queue. records: what the index gets, in the order of the log, with those that are in no queue.
        """
        for share in shares:
            topic, queue_id, queue, start, units = share
            if queue.append_units(start, units) if queue.extension is None else self._append_extended(share, records):
                self.queues.dirty.add((topic, queue_id))
            else:
                # A gap in a queue cannot be repaired while the store runs: recovery rebuilds it from the log.
                self.stop_writing(FlushFailed(f"consume queue {topic}/{queue_id} is missing units before {start}"))
        if self.index_queue is not None and not self.index_queue.add(records):
            # The index cannot keep up or its disk is full: messages are refused rather than not indexed (IX-09).
            self.refusal = self.index_queue.refusal
        self._dispatched = end  # before consumers are notified: they read up to it
        if self.on_append is not None:
            for topic, queue_id, _, start, units in shares:
                self.on_append(topic, queue_id, start, units)

    def _dispatch(self, appended: Iterable[Appended]) -> None:
        """Dispatch records in the order of the log; consumers never see one without a queue (RP-02)."""
        shares: list[QueueShare] = []
        records: list[Record] = []
        units: list[Unit] = []
        latest, end = None, self._dispatched
        for queue, message, number, unit, record in appended:
            end = PhysicalOffset(unit[0] + unit[1])
            if (message.sys_flag & TRANSACTION_MASK) != ROLLED_BACK:
                records.append(record)
            if queue is not None:
                if queue is not latest:  # neighbours of one queue share an append; their numbers follow one another
                    latest, units = queue, []
                    shares.append((message.topic, message.queue_id, queue, number, units))
                units.append(unit)
        # Once for all: one append per queue, one call of the index.
        self.dispatch_units(shares, records, end)

    def dispatch(self, queue: ConsumeQueue | None, message: Message) -> None:
        """Dispatch a message that another broker has appended to this log."""
        self.note_store_time(message.store_timestamp_ms)
        unit = message.physical_offset, message.store_bytes, self.code_of(message)
        self._dispatch(((queue, message, message.queue_offset, unit, _record_of(message)),))

    def code_of(self, message: Message) -> int:
        """The code of the message's consume queue unit."""
        levels = self.settings.message_delay_level
        return unit_code(message.topic, message.properties_raw, message.store_timestamp_ms, levels)

    def skip_to(self, offset: PhysicalOffset) -> None:
        """Nothing before an offset of the log is to be dispatched (any more)."""
        self._dispatched = offset

    def dispatch_again(self, begin: PhysicalOffset) -> None:
        """Empty consume queues and index; they are filled from `begin` on, where the log begins now. Raises OSError."""
        self.queues.clear()
        if self.index is not None and self.index_queue is not None:
            self.index.clear()
            self.index_queue.clear()
        # Before the ends are restored: queues go on where the log begins now.
        self._dispatched = begin
        self.queues.restore_ends()

    def note_store_time(self, store_ms: int) -> None:
        """A record of this time is in the log: later ones get no earlier time."""
        self._last_store_ms = max(self._last_store_ms, store_ms)

    def _append_extended(self, share: QueueShare, records: list[Record]) -> bool:
        """Append the units of a queue with an extension, and their content there (CQ-13, CQ-14)."""
        topic, _, queue, start, units = share
        # By physical offset: with transactions the index may get records that are in no queue.
        contents = {physical: (raw, store_ms) for _, raw, physical, store_ms in records}
        for number, (physical, size, code) in enumerate(units, start):
            raw, store_ms = contents[physical]
            bits = self.bit_map(topic, raw) if self.bit_map is not None else None
            if not queue.append_extended(QueueOffset(number), physical, size, code, store_ms, bits):
                return False
        return True

    def append_unit(self, queue: ConsumeQueue, message: Message, code: int) -> bool:
        """Append the unit of a message without dispatching it; see `ConsumeQueue.append_units`."""
        unit = message.physical_offset, message.store_bytes, code
        if queue.extension is None:
            return queue.append_units(message.queue_offset, [unit])
        share = message.topic, message.queue_id, queue, message.queue_offset, [unit]
        return self._append_extended(share, [_record_of(message)])

    def put_in_index(self) -> bool:
        """Write queued entries to the index, for a bounded time. False if the disk rejects them, and messages must be (IX-09)."""
        # True if all is written, or the time for this call is used up.
        if self.index_queue is None or self.index_queue.put_in():
            return True
        self.refusal = self.index_queue.refusal
        return False

    def commit(self) -> None:
        """Transient pool: copy buffered bytes to the files, which makes them readable (FLU-07)."""
        if self.log.pooled:
            self.log.commit()
            self._confirm(self.log.readable_end)

    def _confirm(self, end: PhysicalOffset) -> None:
        unconfirmed = self._unconfirmed
        confirmed: list[Appended] = []
        # The end of the record: its position and size.
        while unconfirmed and sum(unconfirmed[0][3][:2]) <= end:
            confirmed.append(unconfirmed.popleft())
        if confirmed:
            self._dispatch(confirmed)

    def dispatch_unconfirmed(
        self, begin: PhysicalOffset, end: PhysicalOffset, header_bytes: int, count_max: int
    ) -> list[Message]:
        """Dispatch records appended here that lie one after another from `begin` to `end`, header_bytes apart.

        Returns the message of each.
        """
        unconfirmed = self._unconfirmed
        confirmed: list[Appended] = []
        while unconfirmed and len(confirmed) < count_max:
            physical, size, _ = unconfirmed[0][3]
            # Another record follows: the entries in between are not ours.
            if physical != begin or physical + size > end:
                break
            # Between two records of a ledger lies the header of an entry.
            begin = PhysicalOffset(physical + size + header_bytes)
            confirmed.append(unconfirmed.popleft())
        if confirmed:
            self._dispatch(confirmed)
        return [message for _, message, *_ in confirmed]

    @property
    def has_unconfirmed(self) -> bool:
        """Whether messages that were appended here wait for their confirmation."""
        return bool(self._unconfirmed)

    def discard_unconfirmed(self) -> None:
        """Forget appended records that another leader may replace; queue offsets continue after the visible ones (DL-C03)."""
        self._unconfirmed.clear()
        for queue in self.queues.by_key.values():  # every one may have given out numbers to what is forgotten
            # Numbers of discarded records are given again: no consumer has seen them.
            queue.next_offset = queue.max_offset

    @property
    def behind_bytes(self) -> int:
        """Bytes appended but not visible to consumers yet (RP-01)."""
        return self.log.end - self.dispatched

    # ---- space on the disk

    def recheck(self, usage: Usage) -> None:
        """Accept or reject messages according to the current disk usage and index state (DEL-04..06, IX-09, DUR-15)."""
        self.refusal = ""
        # Of the log and the queues: without either no message can be stored. The index is refused on its own.
        worst = max(usage.commit_log, usage.consume_queue)
        if worst > FULL_PERCENT:
            self.refusal = f"the disk is full: CL: {usage.commit_log}% CQ: {usage.consume_queue}% INDEX: {usage.index}%"
        else:
            self.put_in_index()

    def disk_usage(self) -> Usage:
        """Current usage of the file systems in percent; of several commit log folders the emptiest counts (DEL-05)."""
        used, settings = capacity.used_percent, self.settings
        return Usage(min(map(used, self.log.folders)), used(settings.consume_queue_dir), used(settings.index_dir))


def _record_of(message: Message) -> Record:
    """The record of a message for the index."""
    return message.topic, message.properties_raw, message.physical_offset, message.store_timestamp_ms
