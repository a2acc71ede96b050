"""Puts of one event-loop iteration over a commit log, and appends of all records or none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from saturnmq.protocol.message import Host, Message
from saturnmq.store import FlushDiskType, MessageStore, PutStatus, StoreProfile, StoreSettings


def opened(folder: Path, flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH) -> MessageStore:
    store = MessageStore(
        StoreSettings(store_path_root_dir=str(folder), profile=StoreProfile.SMALL, flush_disk_type=flush)
    )
    store.open()
    return store


def message(body: bytes, **more: int) -> Message:
    return Message("T", body, b"", 0, store_host=Host("127.0.0.1", 1), **more)


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_puts_of_one_iteration_are_appended_together(flush: FlushDiskType, tmp_path: Path) -> None:
    async def work() -> None:
        store = opened(tmp_path, flush)
        completed: list[tuple[bytes, PutStatus, str]] = []
        batches: list[int] = []
        append_all = store.log.append_all

        def counted(messages: list[Message]) -> int:
            batches.append(len(messages))
            return append_all(messages)

        store.log.append_all = counted  # type: ignore[method-assign, assignment]
        done = asyncio.Event()
        for body in (b"a", b"b", b"c"):
            store.put_soon(message(body), lambda status, reason, body=body: completed.append((body, status, reason)))
        store.put_soon(message(b"d"), lambda *_: done.set())
        assert not completed and not batches
        assert store.put(message(b"last")).queue_offset == 4  # a put through another method follows
        assert batches == [4]
        async with asyncio.timeout(20):
            await done.wait()
        assert completed == [(body, PutStatus.PUT_OK, "") for body in (b"a", b"b", b"c")]
        if flush is FlushDiskType.SYNC_FLUSH:
            assert store.flushed_offset > 0
        assert store.max_offset("T", 0) >= 4
        await store.stop()

    asyncio.run(work())


def test_batch_with_number_out_of_range_appends_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message(b"before"))
    end = store.log.end
    refused = store.put_batch([message(b"a"), message(b"b", flag=1 << 31)])
    assert refused.status is not PutStatus.PUT_OK and "does not fit its field" in refused.reason
    assert store.log.end == end and store.max_offset("T", 0) == 1
    assert store.put(message(b"after")).queue_offset == 1
    store.close_files()
