"""Puts of one event-loop iteration over a commit log, and appends of all records or none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.message import Host, Message
from saturnmq.store import FlushDiskType, MessageStore, PutResult, PutStatus, StoreProfile, StoreSettings
from saturnmq.store.log.log import AppendRefused, Group
from saturnmq.store.queue.consume_queue import ConsumeQueue


def opened(folder: Path, flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH) -> MessageStore:
    store = MessageStore(
        StoreSettings(store_path_root_dir=str(folder), profile=StoreProfile.SMALL, flush_disk_type=flush)
    )
    store.open()
    return store


def message(body: bytes, **more: int) -> Message:
    return Message("T", body, store_host=Host("127.0.0.1", 1), **more)


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_puts_of_one_iteration_are_appended_together(flush: FlushDiskType, tmp_path: Path) -> None:
    store = opened(tmp_path, flush)
    completed: list[tuple[bytes, PutStatus, str]] = []
    batches: list[int] = []
    append = store.log.append

    def counted(groups: Sequence[Group]) -> Any:
        batches.append(len(groups))
        return append(groups)

    store.log.append = counted  # type: ignore[method-assign]
    done = asyncio.Event()
    for body in (b"a", b"b", b"c"):
        store.put_soon(message(body), lambda status, reason, body=body: completed.append((body, status, reason)))
    store.put_soon(message(b"d"), lambda *_: done.set())
    assert not completed and not batches
    assert store.put(message(b"last")).queue_offset == 4  # a put through another method follows
    assert batches == [4, 1]
    async with asyncio.timeout(20):
        await done.wait()
    assert completed == [(body, PutStatus.PUT_OK, "") for body in (b"a", b"b", b"c")]
    if flush is FlushDiskType.SYNC_FLUSH:
        assert store.flushed_offset > 0
    assert store.max_offset("T", 0) >= 4
    await store.stop()


def test_batch_with_number_out_of_range_appends_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message(b"before"))
    end = store.log.end
    refused = store.put_batch(message(b""), [(b"a", b"", 0), (b"b", b"", 1 << 31)])
    assert refused.status is not PutStatus.PUT_OK and "does not fit its field" in refused.reason
    assert store.log.end == end and store.max_offset("T", 0) == 1
    assert store.put(message(b"after")).queue_offset == 1
    store.close_files()


class Puts:
    """Puts of one iteration, and the outcome of each."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.outcomes: list[tuple[bytes, PutStatus, str]] = []

    def add(self, *messages: Message) -> None:
        for one in messages:
            body = bytes(one.body)
            self.store.put_soon(one, lambda status, reason, body=body: self.outcomes.append((body, status, reason)))


async def test_puts_are_appended_once_at_the_end_of_each_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a single one that no other follows."""
    store = opened(tmp_path)
    puts, passes = Puts(store), list[int]()
    propose = store._proposals.propose

    def counted() -> None:
        passes.append(len(store._proposals.waiting))
        propose()

    monkeypatch.setattr(store._proposals, "propose", counted)
    for bodies in ((b"alone",), (b"a", b"b", b"c")):
        puts.add(*(message(body) for body in bodies))
        assert not {body for body, _, _ in puts.outcomes} & set(bodies)
        await asyncio.sleep(0)
        assert [body for body, _, _ in puts.outcomes[-len(bodies) :]] == list(bodies)
    assert passes == [1, 3]
    await store.stop()


async def test_refused_put_does_not_affect_the_others(tmp_path: Path) -> None:
    store = opened(tmp_path)
    puts = Puts(store)
    long = Message("T" * 128, b"long", b"", 0, store_host=Host("127.0.0.1", 1))
    puts.add(message(b"a"), long, message(b"b"))
    await asyncio.sleep(0)
    assert puts.outcomes == [
        (b"long", PutStatus.MESSAGE_ILLEGAL, "topic of 128 characters, at most 127"),
        (b"a", PutStatus.PUT_OK, ""),
        (b"b", PutStatus.PUT_OK, ""),
    ]
    await store.stop()


@pytest.mark.parametrize(
    ("error", "outcomes", "batches"),
    [
        (
            AppendRefused(PutStatus.SERVICE_NOT_AVAILABLE, "lagging"),
            [(PutStatus.SERVICE_NOT_AVAILABLE, "lagging")] * 3,
            [3],
        ),
        (
            AppendRefused(PutStatus.MESSAGE_ILLEGAL, "too long", single=True),
            [(PutStatus.PUT_OK, ""), (PutStatus.MESSAGE_ILLEGAL, "too long"), (PutStatus.PUT_OK, "")],
            [3, 1, 1, 1],
        ),
        (
            KeyError("bug"),
            [(PutStatus.PUT_OK, ""), (PutStatus.UNKNOWN_ERROR, "'bug'"), (PutStatus.PUT_OK, "")],
            [3, 1, 1, 1],
        ),
    ],
    ids=["all", "single", "unexpected"],
)
async def test_failed_append_is_repeated_one_by_one_if_one_put_is_the_cause(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    outcomes: list[tuple[PutStatus, str]],
    batches: list[int],
) -> None:
    store = opened(tmp_path)
    append_all, sizes = store.append_all, []

    def failing(groups: Sequence[Group]) -> PutResult:
        sizes.append(len(groups))
        if any(one.body == b"bad" for one, _ in groups):
            raise error
        return append_all(groups)

    monkeypatch.setattr(store, "append_all", failing)
    puts = Puts(store)
    puts.add(message(b"a"), message(b"bad"), message(b"b"))
    await asyncio.sleep(0)
    assert puts.outcomes == [(body, *outcome) for body, outcome in zip((b"a", b"bad", b"b"), outcomes, strict=True)]
    assert sizes == batches
    monkeypatch.undo()
    await store.stop()


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("no queue"), PutStatus.UNKNOWN_ERROR), (StoreError("no queue"), PutStatus.CREATE_MAPPED_FILE_FAILED)],
)
async def test_queue_that_cannot_be_created_fails_one_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: PutStatus
) -> None:
    store = opened(tmp_path)
    get_or_make = store.queues.get_or_make

    def failing(topic: str, queue_id: int) -> ConsumeQueue:
        if queue_id:
            raise error
        return get_or_make(topic, queue_id)

    monkeypatch.setattr(store.queues, "get_or_make", failing)
    puts = Puts(store)
    puts.add(message(b"good"), message(b"bad", queue_id=1), message(b"better"))
    await asyncio.sleep(0)
    assert puts.outcomes == [
        (b"good", PutStatus.PUT_OK, ""),
        (b"bad", status, "no queue"),
        (b"better", PutStatus.PUT_OK, ""),
    ]
    assert store.put(message(b"next")).queue_offset == 2
    await store.stop()


async def test_large_puts_of_one_iteration_are_several_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    append_all, sizes = store.append_all, []

    def counted(groups: Sequence[Group]) -> PutResult:
        sizes.append([len(one.body) for one, _ in groups])
        return append_all(groups)

    monkeypatch.setattr(store, "append_all", counted)
    puts = Puts(store)
    puts.add(*[message(bytes(length)) for length in (65_535, 1, 65_536, 10, 10)])
    await asyncio.sleep(0)
    assert sizes == [[65_535, 1], [65_536], [10, 10]], "64 KiB of bodies end a part"
    assert [status for _, status, _ in puts.outcomes] == [PutStatus.PUT_OK] * 5
    await store.stop()


async def test_callback_that_fails_does_not_affect_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    puts = Puts(store)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of the caller")

    store.put_soon(message(b"first"), broken)
    puts.add(message(b"second"))
    await asyncio.sleep(0)
    assert puts.outcomes == [(b"second", PutStatus.PUT_OK, "")]
    assert "completion callback failed status=PUT_OK" in caplog.messages
    await store.stop()
