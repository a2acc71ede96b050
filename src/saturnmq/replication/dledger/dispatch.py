"""Fast path of dispatch: fills consume queues and index from many entries of another member in one step.

Dispatch is about half of a follower's work. The per-entry path of `LedgerStore.dispatch_some` is the reference implementation:
for any entries both leave the same queues and index and make the same callbacks. Entries that are not simple (transactions, delayed
messages, IPv6 addresses, new queues, gaps in queue offsets) are left to the reference implementation.

Requirements: RP-01..RP-04, DL-B12, DL-B13.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from saturnmq.protocol.codes import SCHEDULE_TOPIC, TIMER_TOPIC, TRANSACTION_MASK, SysFlag
from saturnmq.protocol.message import MESSAGE_MAGIC, RECORD_V4
from saturnmq.protocol.properties import tags_code
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, ENTRY_MAGIC
from saturnmq.raft.ledger.layout import HEADER
from saturnmq.store.queue.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from saturnmq.replication.dledger.store import LedgerStore
    from saturnmq.store.index.message_index import Record

_ODD_FLAGS: Final = TRANSACTION_MASK | int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_BY_TIME: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)
_I16: Final = struct.Struct(">h")


class _Share(NamedTuple):
    """The units to append to one consume queue, from the queue offset `start` on."""

    topic: str
    queue_id: int
    queue: ConsumeQueue
    start: int
    units: list[tuple[int, int, int]]


def dispatch_plain(store: LedgerStore, count_max: int) -> int:
    """Dispatch committed entries from `store.dispatched` on, up to the first that is not simple. Returns how many."""
    log, pos = store.log, store.dispatched
    ledger = log.ledger
    file = ledger.data.find(pos) if ledger is not None else None
    if ledger is None or file is None or pos >= ledger.end_pos:
        return 0
    view, base, limit = file.view, file.start, min(file.end, log.committed_pos)
    shares: dict[tuple[bytes, int], _Share] = {}
    records: list[Record] = []
    calls: list[tuple[str, int, int, int]] = []
    while len(records) < count_max and limit - pos >= ENTRY_HEADER_BYTES + RECORD_V4.size:
        at = pos - base
        magic, size, _, _, its_pos, _, _, _, body_len = HEADER.unpack_from(view, at)
        if magic != ENTRY_MAGIC or its_pos != pos or size != ENTRY_HEADER_BYTES + body_len or pos + size > limit:
            break
        at += ENTRY_HEADER_BYTES
        total, magic, _, queue_id, _, number, physical, flags, _, _, _, store_ms, _, _, _, _, length = (
            RECORD_V4.unpack_from(view, at)
        )
        topic_at, end = at + RECORD_V4.size + length, at + total
        if (
            magic != MESSAGE_MAGIC or total != body_len or physical != pos + ENTRY_HEADER_BYTES or flags & _ODD_FLAGS
            or length < 0 or topic_at >= end
        ):  # fmt: skip
            break
        properties_at = topic_at + 3 + view[topic_at]
        if properties_at > end or properties_at + _I16.unpack_from(view, properties_at - 2)[0] != end:
            break
        key = bytes(view[topic_at + 1 : properties_at - 2]), queue_id
        share = shares.get(key)
        if share is None:
            share = _share(store, key)
            if share is None:
                break
            shares[key] = share
        topic, _, _, start, units = share
        if number != start + len(units):
            break
        properties = bytes(view[properties_at:end])
        code = tags_code(properties)
        units.append((physical, total, code))
        records.append((topic, properties, physical, store_ms))
        calls.append((topic, queue_id, number + 1, code))
        pos += size
    if records:
        _take(store, shares, records, calls)
        store.dispatched = pos
    return len(records)


def _share(store: LedgerStore, key: tuple[bytes, int]) -> _Share | None:
    """An empty share of an existing simple queue; None if the queue is new, extended or holds delayed messages."""
    try:
        topic = key[0].decode()
    except UnicodeDecodeError:
        return None
    queue = store.queues.by_key.get((topic, key[1]))
    if queue is None or queue.extension is not None or topic in _BY_TIME:
        return None
    return _Share(topic, key[1], queue, queue.max_offset, [])


def _take(
    store: LedgerStore,
    shares: dict[tuple[bytes, int], _Share],
    records: list[Record],
    calls: list[tuple[str, int, int, int]],
) -> None:
    for topic, queue_id, queue, start, units in shares.values():
        if units:
            queue.append_units(start, units)
            store.queues.touched((topic, queue_id))
            if store.on_foreign is not None:
                store.on_foreign(topic, queue_id)
    store.last_store_ms = max(store.last_store_ms, max(record[3] for record in records))
    if store.index_queue is not None and not store.index_queue.add_all(records):
        store.refusal = store.index_queue.refusal
    if store.on_append is not None:
        for call in calls:
            store.on_append(*call)
