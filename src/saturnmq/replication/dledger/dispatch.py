"""Dispatch on a member of a group: consume queues and index are filled from committed entries.

An entry that this member appended as leader is dispatched from the message in memory, any other from its bytes in the log.

Dispatch is about half of a follower's work, so `dispatch_plain` fills queues and index from many entries in one step. The
per-entry path of `GroupDispatch.dispatch_some` is the reference implementation: for any entries both leave the same queues and
index and make the same callbacks. Entries that are not simple (transactions, delayed messages, IPv6 addresses, new queues, gaps
in queue offsets) are left to the reference implementation.

Requirements: RP-01..RP-04, DL-B11..DL-B13, DL-C03, DL-S12, DL-U05, SEC-18.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from saturnmq.protocol.codes import TRANSACTION_MASK, SysFlag
from saturnmq.protocol.errors import MessageError, SaturnError, StoreError
from saturnmq.protocol.message import MESSAGE_MAGIC, RECORD_V4, Message
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.protocol.properties import tags_code
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES
from saturnmq.raft.ledger.bodies import EntryBody, body_at, entries_in
from saturnmq.replication.dledger.change_entries import is_change
from saturnmq.replication.dledger.entry_check import Quarantine, read_entry_message
from saturnmq.replication.dledger.log import RaftLog
from saturnmq.replication.records import STORE_MS_MAX, check_place, queue_for
from saturnmq.store import MessageStore
from saturnmq.store.delay import TIMED_TOPICS
from saturnmq.store.index.message_index import Record
from saturnmq.store.queue.consume_queue import QueueShare

log = logging.getLogger(__name__)

DISPATCH_STEP: Final = 512  # messages dispatched per event-loop iteration
_ODD_FLAGS: Final = TRANSACTION_MASK | int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_I16: Final = struct.Struct(">h")


class GroupDispatch:
    """Dispatches committed entries to one store. on_foreign(topic, queue_id): a message that another member appended."""

    def __init__(self, log: RaftLog, store: MessageStore) -> None:
        self.log = log
        self.store = store
        self.on_foreign: Callable[[str, int], None] | None = None
        self.on_change: Callable[[Message], None] | None = None
        self.deferred_changes: list[Message] = []
        self.unsaved: deque[int] = deque()
        self.gap = False
        self.quarantine = Quarantine()
        self._scheduled = False
        self._ledger_begin = -1

    def confirmed(self, end: PhysicalOffset) -> None:
        """Listener callback of the log: everything before `end` is committed."""
        # A step that is scheduled will see the new committed position.
        if not self._scheduled:
            self._resume()

    def _resume(self) -> None:
        """Dispatch committed messages, at most DISPATCH_STEP per event-loop iteration."""
        self._scheduled = False
        try:
            more = self.dispatch_some(DISPATCH_STEP)
        except (StoreError, OSError) as error:
            # A gap in queues would be noticed by the next start only; nothing more is accepted until then.
            self.store.stop_writing(error if isinstance(error, SaturnError) else StoreError(str(error)))
            return
        if more:
            self._scheduled = True
            # Requests are answered between two steps: a follower that catches up has millions of entries.
            asyncio.get_running_loop().call_soon(self._resume)

    def dispatch_some(self, count_max: int) -> bool:
        """Dispatch up to count_max committed messages. Returns whether there are more. Raises CorruptRecord, StoreError."""
        store, commit_log = self.store, self.log
        ledger, committed = commit_log.ledger, commit_log.committed_pos
        # Looked at once per step: retention and a restart of the log move it.
        if ledger is not None and ledger.begin_pos != self._ledger_begin:
            self._begin_moved(ledger.begin_pos)
        dispatched_count = 0
        while dispatched_count < count_max:
            if store.dispatched >= committed:
                return False
            count = count_max - dispatched_count
            # What this leader appended is in memory, with its message: no need to read it.
            if store.has_unconfirmed:
                count = self._dispatch_own(PhysicalOffset(store.dispatched + ENTRY_HEADER_BYTES), count)
            else:
                count = dispatch_plain(self, count)
            # At least one, so that the loop ends.
            dispatched_count += max(count, 1)
            if count:
                continue
            body = body_at(ledger, store.dispatched, committed) if ledger is not None else None
            # The committed part ends here, or the file is being replaced.
            if body is None:
                return False
            # The first one after a blank record may still be one that this leader appended.
            if not self._dispatch_own(body.physical_offset, 1):
                self._dispatch_body(body)
                store.skip_to(body.next_pos)
        return True

    def _dispatch_own(self, begin: PhysicalOffset, count_max: int) -> int:
        """Dispatch messages that this leader appended, from a physical offset on, without reading them again. Returns how many."""
        committed = self.log.committed_pos
        messages = self.store.dispatch_unconfirmed(begin, committed, ENTRY_HEADER_BYTES, count_max)
        for message in messages:
            self.note_change(message)
        return len(messages)

    def _dispatch_body(self, body: EntryBody) -> None:
        """Dispatch a message that another leader appended; quarantine an entry that cannot be dispatched (DL-B13)."""
        store = self.store
        try:
            message = read_entry_message(body)
            queue = queue_for(store.queues, message)
            check_place(queue, message)
        # All members skip it by the same rule: an exception would stop each of them at this entry.
        except MessageError as error:
            self.quarantine.add(body, error)
            return
        store.dispatch(queue, message)
        if queue is None:
            self.note_change(message)
        elif self.on_foreign is not None:
            self.on_foreign(message.topic, message.queue_id)

    def note_change(self, message: Message) -> None:
        """Report a dispatched message that is in no queue, if it is a change of topics or groups."""
        if not is_change(message):
            return
        # Until the state file has the change, a crash must find it in the log again.
        self.unsaved.append(message.physical_offset - ENTRY_HEADER_BYTES)
        # Before the broker is ready: it takes the deferred ones over when it is.
        if self.on_change is None:
            self.deferred_changes.append(message)
        else:
            self.on_change(message)

    def saved(self, end: int) -> None:
        """The changes before this position are durable: recovery need not read them again."""
        while self.unsaved and self.unsaved[0] < end:
            self.unsaved.popleft()

    def replay_from(self, dispatched: PhysicalOffset) -> PhysicalOffset:
        """The position from which recovery must read the log if everything else before `dispatched` is durable."""
        return PhysicalOffset(min(dispatched, self.unsaved[0])) if self.unsaved else dispatched

    def _begin_moved(self, begin_pos: int) -> None:
        """Handle a new begin of the ledger: retention deleted files, or the leader replaced the whole log of a lagging member.

        In the second case consume queues and index are rebuilt from the new begin (DL-S12). Raises StoreError if the old commit
        log does not end where the group's ledger begins (DL-U05).
        """
        self._ledger_begin = begin_pos
        # Old log and ledger must be one sequence: with another begin, offsets of the members would differ.
        if self.log.files and begin_pos != self.log.divided:
            raise StoreError(
                f"the old commit log ends at {self.log.divided}, the group's ledger begins at {begin_pos}: the old logs of the "
                "members are not equal; copy the old commit log and config of another member here, without its dledger folder"
            )
        store = self.store
        # Retention deletes only what is dispatched.
        if store.dispatched >= begin_pos:
            return
        self.gap = True
        log.warning("queues and index rebuilt ledger_begin=%s dispatched=%s", begin_pos, store.dispatched)
        store.dispatch_again(PhysicalOffset(begin_pos))


def dispatch_plain(dispatch: GroupDispatch, count_max: int) -> int:
    """Dispatch committed entries from `store.dispatched` on, up to the first that is not simple. Returns how many."""
    store, raft_log = dispatch.store, dispatch.log
    begin, ledger = store.dispatched, raft_log.ledger
    file = ledger.data.find(begin) if ledger is not None else None
    if ledger is None or file is None or begin >= ledger.end_pos:
        # The reference decides, also about a ledger that is empty.
        return 0
    view, dispatched = file.view, begin
    shares: dict[tuple[bytes, int], QueueShare] = {}
    records: list[Record] = []
    # Of one file: the reference steps over the blank record at its end.
    entries = entries_in(view, file.start, begin, min(file.end, raft_log.committed_pos))
    for pos, at, body_bytes in islice(entries, count_max):
        # Every length below is checked before it is used: nothing but the CRC of the body protects it.
        if body_bytes < RECORD_V4.size:
            break
        total, magic, _, queue_id, _, number, physical, flags, _, _, _, store_ms, _, _, _, _, length = (
            RECORD_V4.unpack_from(view, at)
        )
        topic_at, end = at + RECORD_V4.size + length, at + total
        if (
            not 0 <= store_ms <= STORE_MS_MAX
            or magic != MESSAGE_MAGIC or total != body_bytes or physical != pos + ENTRY_HEADER_BYTES or flags & _ODD_FLAGS
            or length < 0 or topic_at >= end
        ):  # fmt: skip
            break
        properties_at = topic_at + 3 + view[topic_at]
        if properties_at > end or properties_at + _I16.unpack_from(view, properties_at - 2)[0] != end:
            break
        key = bytes(view[topic_at + 1 : properties_at - 2]), queue_id
        # One look-up per queue and step, not per message.
        share = shares.get(key)
        if share is None:
            share = _share(store, key)
            if share is None:
                break
            shares[key] = share
        topic, _, _, start, units = share
        # Also an entry that is dispatched already: the reference recognizes it.
        if number != start + len(units):  # a gap, or a queue that restarts after its topic was deleted
            break
        properties = bytes(view[properties_at:end])
        units.append((PhysicalOffset(physical), total, tags_code(properties)))
        records.append((topic, properties, physical, store_ms))
        dispatched = PhysicalOffset(physical + total)
    if records:
        filled = [share for share in shares.values() if share[4]]
        # Before the units are visible, so that the broker knows the topic when consumers are notified.
        if dispatch.on_foreign is not None:
            for topic, queue_id, *_ in filled:
                dispatch.on_foreign(topic, queue_id)
        # The largest, not the last: times never fall along the log unless a record's time is damaged.
        store.note_store_time(max(record[3] for record in records))
        store.dispatch_units(filled, records, dispatched)
    return len(records)


def _share(store: MessageStore, key: tuple[bytes, int]) -> QueueShare | None:
    """An empty share of an existing simple queue; None if the queue is new, extended or holds delayed messages."""
    try:
        topic = key[0].decode()
    except UnicodeDecodeError:
        return None
    queue = store.queues.by_key.get((topic, key[1]))
    if queue is None or queue.extension is not None or topic in TIMED_TOPICS:
        return None
    return topic, key[1], queue, queue.max_offset, []
