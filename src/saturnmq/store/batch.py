"""Fast path for a batch whose messages differ only in body, properties and flag; the shared fields are encoded once.

`MessageStore.put_batch`, which appends message by message, is the reference implementation: both write the same bytes.

Requirements: ST-16, BAT-04.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from saturnmq.protocol.codes import NAME_LENGTH_MAX, SCHEDULE_TOPIC
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.message import PROPERTIES_BYTES_MAX, Message
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.protocol.properties import tags_code
from saturnmq.store.append_watch import AppendWatch
from saturnmq.store.index.index_queue import IndexQueue
from saturnmq.store.log.log import Log
from saturnmq.store.queue.queues import QueueTable
from saturnmq.store.results import PutResult, PutStatus
from saturnmq.store.settings import StoreSettings

Entry = tuple[bytes, bytes, int]  # body, properties, flag


class BatchTarget(Protocol):
    """The store that a batch is appended to."""

    settings: StoreSettings
    log: Log
    queues: QueueTable
    index_queue: IndexQueue | None
    refusal: str
    dispatched: PhysicalOffset
    on_append: Callable[[str, int, int, int], None] | None
    append_watch: AppendWatch

    @property
    def writable(self) -> bool: ...

    def next_store_ms(self) -> int: ...

    def put_failed(self, error: StoreError) -> PutResult: ...


def put_entries(store: BatchTarget, common: Message, entries: Sequence[Entry]) -> PutResult | None:
    """Append all entries or none; None if the batch must take the slow path. Errors are returned as a status."""
    topic, limit = common.topic, store.settings.message_bytes_max
    if not store.writable or topic == SCHEDULE_TOPIC or not topic.isascii() or len(topic) > NAME_LENGTH_MAX:
        return None
    for body, properties, _ in entries:
        if len(body) > limit or len(properties) > PROPERTIES_BYTES_MAX or b"\0" in properties:
            return None
    try:
        queue = store.queues.by_key.get((topic, common.queue_id)) or store.queues.get_or_make(topic, common.queue_id)
        start = queue.next_offset
        if queue.extension is not None or start != queue.max_offset:
            return None
        store_ms = store.next_store_ms()
        began = monotonic()
        extents = store.log.append_entries(common, entries, start, store_ms)
        store.append_watch.note(monotonic() - began)
    except StoreError as error:
        return store.put_failed(error)
    if extents is None:
        return None
    codes = [tags_code(properties) for _, properties, _ in entries]
    queue.append_units(start, [(at, size, code) for (at, size), code in zip(extents, codes, strict=True)])
    store.queues.mark_dirty((topic, common.queue_id))
    if store.index_queue is not None:
        records = [
            (topic, properties, at, store_ms) for (_, properties, _), (at, _) in zip(entries, extents, strict=True)
        ]
        if not store.index_queue.add_all(records):
            store.refusal = store.index_queue.refusal
    end = store.dispatched = store.log.end
    if store.on_append is not None:
        for next_offset, code in enumerate(codes, start + 1):
            store.on_append(topic, common.queue_id, next_offset, code)
    offsets = tuple([at for at, _ in extents])
    return PutResult(PutStatus.PUT_OK, offsets[0], end - offsets[0], start, store_ms, offsets, common.store_host, end)
