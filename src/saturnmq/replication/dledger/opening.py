"""Opens the store of a DLedger member: loads old log and ledger, and brings consume queues and index to the committed end.

Units beyond the committed end are truncated and dispatched again later; missing ones are dispatched before the member joins the
group.

Requirements: DL-B14, DL-B16, DL-U01, DL-U02.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from saturnmq.protocol.codes import NOT_IN_QUEUE, TRANSACTION_MASK
from saturnmq.protocol.errors import CorruptRecord, MessageError
from saturnmq.protocol.message import Message, mend_time
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.ledger.bodies import EntryBody, bodies
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.message_entries import message_is_good
from saturnmq.raft.settings import RaftSettings
from saturnmq.replication.dledger.dispatch import GroupDispatch
from saturnmq.replication.dledger.entry_check import Quarantine, read_entry_message
from saturnmq.replication.dledger.failure import drop_unsynced
from saturnmq.replication.dledger.log import RaftLog
from saturnmq.replication.records import check_place, queue_for
from saturnmq.store import MessageStore
from saturnmq.store.files.mapped_file import numbered_files
from saturnmq.store.recovery import opening
from saturnmq.store.recovery.recover import Scan, SkipLog, check_files, damage, good_records

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
_STEP_BYTES = 1 << 20
_UNITS_KEPT = 1_000_000  # in memory until they are written


class _Gap(Exception):
    """A consume queue has no units for the messages before a record."""


def open_store(
    store: MessageStore,
    raft_log: RaftLog,
    dispatch: GroupDispatch,
    raft: RaftSettings,
    make_member: Callable[[int], RaftMember],
    rebuild: Progress | None,
) -> None:
    """Load and recover. Raises StoreError, OSError, ConfigError.

    make_member creates the Raft member for a ledger that begins at an offset. rebuild: if given, rebuild queues and index from
    the whole log; called with the bytes read so far and the total.
    """
    settings = store.settings
    folders = raft.data_folders or (raft.folder(settings.root) / "data",)
    # Decides whether this is the first start with DLedger.
    begun = any(numbered_files(folder) for folder in folders)
    has_old = any(numbered_files(folder) for folder in settings.commit_log_dirs)
    clean = not settings.abort_path.exists()
    if has_old and not begun:
        # The old log is recovered by its own rules before it is sealed.
        opening.open_store(store, rebuild)  # first start with DLedger: recover the old log as without it
        divided = raft_log.seal()
        log.info("ledger begins after the old commit log divided=%s", divided)
        _attach(store, raft_log, raft, make_member, divided)
        store.skip_to(divided)
        return
    store.disk.make_folder(settings.root)
    store.checkpoint.load()
    raft_log.load()
    _attach(store, raft_log, raft, make_member, raft_log.files[-1].end if has_old else 0)
    if clean:
        # As for a plain store: from here on an interrupted start counts as a crash. After a crash the file is there.
        store.disk.make_folder(settings.abort_path.parent)
        store.disk.write_file(settings.abort_path, b"")
        store.disk.sync_folder(settings.abort_path.parent)
    _recover(store, raft_log, dispatch, clean=clean, rebuild=rebuild)
    store.reserve.allocate()


def _attach(
    store: MessageStore,
    raft_log: RaftLog,
    raft: RaftSettings,
    make_member: Callable[[int], RaftMember],
    divided: int,
) -> None:
    """Load the ledger, which begins where the old log ends (DL-U01, DL-U02)."""
    settings = store.settings
    drop_unsynced(
        # A second object: the cut after a failed sync must be over before the member loads the ledger.
        LedgerFiles(
            raft.folder(settings.root),
            file_bytes=settings.commit_log_bytes,
            index_file_units=raft.index_file_units,
            start_pos=divided,
            body_is_good=message_is_good,
            disk=store.disk,
            data_folders=raft.data_folders,
        ),
        store.disk,
    )
    member = make_member(divided)
    member.open()
    files, node = member.files, member.node
    # The broker ran without DLedger in between: the same offsets would exist twice.
    if files.data.files and files.data.files[0].start < divided:
        raise CorruptRecord(
            f"the ledger begins at {files.data.files[0].start}, but {store.settings.commit_log_dirs[0]} reaches to {divided}: "
            "a broker without enableDLegerCommitLog has written there since; move the files behind the ledger's begin away"
        )
    assert node is not None
    # Only what is known to be committed is read; the leader will report the rest.
    committed = files.entry(node.committed) if node.committed >= 0 else None
    quarantined, skipped = Quarantine(), SkipLog()  # of the index when it lags or is rebuilt, which reads the log again
    store.log_piece = None  # entries have headers
    store.read_log = lambda offset: _dispatched_messages(
        store, raft_log, raft_log.entry_pos(max(offset, raft_log.first_position)), quarantined, skipped
    )
    raft_log.attach(
        files,
        # 0 without an old log: all offsets are the ledger's.
        PhysicalOffset(divided if raft_log.files else 0),
        PhysicalOffset(committed.end_pos if committed else files.begin_pos),
    )


def _recover(
    store: MessageStore, raft_log: RaftLog, dispatch: GroupDispatch, *, clean: bool, rebuild: Progress | None
) -> None:
    note, start, end = store.checkpoint.note, raft_log.first_position, raft_log.committed_pos
    problems = store.queues.load(linear=note is None and not clean, use_list=True)
    index_from = opening.load_index(store, clean=clean)
    dispatch_from = start
    # The leader has replaced the whole log, and no checkpoint was written since; retention keeps what is not dispatched.
    dispatch.gap = note is not None and note.dispatched < start
    if note is not None:
        dispatch_from = note.dispatched
    elif clean:  # written by another implementation and shut down cleanly: trust the extent of its queues
        dispatch_from = store.queues.max_physical
    for problem in problems:
        log.warning("consume queues rebuilt reason=%s", problem)
    rebuilt = bool(problems) or rebuild is not None
    dispatch_from = start if rebuilt else max(min(dispatch_from, end), start)
    lags_from = None
    if index_from is not None:
        # The index names the record, and reading begins at the header of its entry.
        index_from = max(raft_log.entry_pos(index_from), start)
        if not rebuilt and dispatch_from - index_from > opening.INDEX_BYTES:
            lags_from = index_from
        dispatch_from = min(dispatch_from, index_from) if lags_from is None else dispatch_from
    if not clean and note is not None and not rebuilt:
        # As for a plain store, see `QueueTable.drop_unlisted`.
        store.queues.drop_unlisted()
    try:
        _dispatch(store, raft_log, dispatch, dispatch_from, lags_from, rebuilt=rebuilt, progress=rebuild)
    except _Gap as gap:
        log.warning("consume queues rebuilt reason=%s", gap)
        try:
            _dispatch(store, raft_log, dispatch, start, None, rebuilt=True, progress=rebuild)
        except _Gap as again:
            raise CorruptRecord(f"{again}, although the queues were rebuilt from the log alone") from again
    if not clean:
        store.queues.drop_empty()
    for queue in store.queues.by_key.values():
        queue.correct_min_offset(start)
    _settle(store, start)


def _dispatch(
    store: MessageStore,
    raft_log: RaftLog,
    dispatch: GroupDispatch,
    begin: PhysicalOffset,
    lags_from: PhysicalOffset | None,
    *,
    rebuilt: bool,
    progress: Progress | None,
) -> None:
    """Truncate queues and index at begin and refill them from there. Raises _Gap, CorruptRecord, StoreError, OSError.

    With `rebuilt` they are rebuilt from scratch. lags_from: the index follows from there while the store serves.
    """
    index = store.index
    if store.index_queue is not None:
        store.index_queue.clear()
    if rebuilt:
        store.queues.clear()
        if index is not None:
            index.clear()
    else:
        for loaded_queue in store.queues.by_key.values():
            # All units from `begin` on are written again: another leader may have replaced entries that were not committed.
            loaded_queue.truncate(begin)
            loaded_queue.trim_extension()
        if index is not None:
            # truncate returns the physical offset of a message; its entry begins 48 bytes before
            indexed = max(min(begin, raft_log.entry_pos(index.truncate(begin))), raft_log.first_position)
            if lags_from is None:
                begin = indexed
            elif store.index_queue is not None:
                opening.let_index_lag(store.index_queue, min(indexed, lags_from))
    dispatch.deferred_changes.clear()
    dispatch.unsaved.clear()
    reported = 0
    check_crc = store.settings.check_crc_on_recover
    for written, (message, body) in enumerate(_messages(raft_log, begin, dispatch.quarantine, check_crc=check_crc), 1):
        queue = queue_for(store.queues, message)
        # A gap in the old log, or in queues that were not rebuilt: they are rebuilt once. In the ledger it is quarantined
        # below.
        if queue is not None and 0 < queue.max_offset < message.queue_offset and (body is None or not rebuilt):
            raise _Gap(
                f"queue {message.topic}/{message.queue_id} ends at {queue.max_offset}, the record at "
                f"{message.physical_offset} is number {message.queue_offset}"
            )
        if body is not None:
            try:
                # The same rule as while running, so that all members skip the same entries.
                check_place(queue, message)
            except MessageError as error:
                dispatch.quarantine.add(body, error)
                continue
        mend_time(message, store.last_store_ms)
        store.dispatch(queue, message)
        if queue is None and body is not None:
            dispatch.note_change(message)
        # Bounded memory while a large log is dispatched.
        if written % _UNITS_KEPT == 0:
            todo = store.queues.round(1)
            todo.write(store.disk, store.queues.list_file)
            todo.finish()
        if progress is not None and message.physical_offset - reported >= _STEP_BYTES:
            reported = message.physical_offset
            progress(reported - raft_log.first_position, raft_log.committed_pos - raft_log.first_position)
    if rebuilt:
        store.queues.restore_ends()
    store.skip_to(raft_log.committed_pos)


def _messages(
    raft_log: RaftLog, begin: PhysicalOffset, quarantine: Quarantine, *, check_crc: bool
) -> Iterator[tuple[Message, EntryBody | None]]:
    """Yield every committed message from an offset on, first of the old log, then with its body of the ledger."""
    if begin < raft_log.divided:
        scan = Scan(begin)
        for message in good_records(raft_log, begin, scan, check_crc=check_crc):
            if message.physical_offset >= raft_log.divided:
                # The old log's records only; from `divided` on the ledger is read entry by entry.
                break
            yield message, None
        if scan.end < raft_log.divided:
            raise damage(raft_log, scan, raft_log.divided)
        begin = raft_log.divided
    assert raft_log.ledger is not None
    for body in bodies(raft_log.ledger, max(begin, raft_log.ledger.begin_pos), raft_log.committed_pos):
        try:
            message = read_entry_message(body)
        except MessageError as error:
            quarantine.add(body, error)  # DL-B13
            continue
        yield message, body


def _dispatched_messages(
    store: MessageStore, raft_log: RaftLog, begin: PhysicalOffset, quarantine: Quarantine, skipped: SkipLog
) -> Iterator[Message]:
    """As `_messages`; those that dispatch has skipped have no properties here: no queue points to them.

    After damage, which a peer may repair later, the next file is read.
    """
    check_files(raft_log)
    at = begin
    while at < raft_log.committed_pos:
        try:
            for message, body in _messages(raft_log, at, quarantine, check_crc=False):
                at = PhysicalOffset(message.physical_offset + message.store_bytes)
                if body is not None and message.sys_flag & TRANSACTION_MASK not in NOT_IN_QUEUE:
                    unit_offset = store.physical_offset(message.topic, message.queue_id, message.queue_offset)
                    if unit_offset != message.physical_offset:
                        # Without properties it gets no keys in the index.
                        message.properties_raw = b""
                yield message
        except CorruptRecord as error:
            # Go on after the damage: an index with gaps is better than none.
            damaged, at = at, raft_log.next_file_start(at)
            skipped.skip(damaged, at, error)
        else:
            return


def _settle(store: MessageStore, start: PhysicalOffset) -> None:
    """Flush what recovery wrote, then write the checkpoint note that records it."""
    todo = store.queues.round(0)
    todo.write(store.disk, store.queues.list_file)
    todo.finish()
    if store.index is not None and store.index_queue is not None:
        # Before the snapshot, so that the checkpoint covers it.
        store.index_queue.put_all()
        snapshot = store.index.begin_flush(store.index_queue.covered(store.dispatched))
        if snapshot is not None:
            snapshot.run()
            store.index.end_flush(snapshot)
    store.begin_maintenance([start])
    # Last, when everything it states is durable.
    store.write_note()
    store.disk.unlink(store.settings.root / opening.FAILURE_NAME)
