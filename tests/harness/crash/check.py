"""Invariants of a store that is opened after a crash.

Requirements: DUR-13, DUR-14, DUR-20.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from saturnmq.protocol.codes import SCHEDULE_TOPIC, TIMER_TOPIC, TRANSACTION_MASK, SysFlag
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.message import BLANK_MAGIC, Host, Message, encode_record, java_hash
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.store import FlushDiskType, MessageStore, PutStatus, StateFile, StoreSettings
from saturnmq.store.files.capacity import Usage
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.record_sums import PREFIX

QueueKey: TypeAlias = tuple[str, int]
BROKER: Final = Host("127.0.0.1", 10911)
STATE_FILE: Final = "config/consumerOffset.json"
_FOREVER_MS: Final = 2**62
_QUERY_MAX: Final = 64


class Put(NamedTuple):
    """An appended record: position, bytes, consume queue unit (None if invisible to consumers), index keys."""

    offset: PhysicalOffset
    data: bytes
    topic: str
    queue_id: int
    queue_offset: int
    unit: tuple[int, int, int] | None
    words: tuple[str, ...]

    @property
    def end(self) -> PhysicalOffset:
        return PhysicalOffset(self.offset + len(self.data))


@dataclass(frozen=True, slots=True)
class Promise:
    """What the store guarantees from some moment of a run on.

    history: all records appended so far to this log, in order; may hold more than were appended at that moment.
    kept_power and kept_kill: how many of them survive a power loss, and the end of the process. start: the log begins
    there or earlier. saved: the state file's last value whose write returned, and the last value whose write began.
    deleted: topic -> length of the history when it was last deleted. recovered: the files after the recovery in
    progress, once it is complete.
    """

    history: list[Put] = field(default_factory=list)
    kept_power: int = 0
    kept_kill: int = 0
    start: int = 0
    saved: tuple[int, int] = (0, 0)
    deleted: Mapping[str, int] = field(default_factory=dict)
    clock_ms: int = 0
    recovered: dict[str, bytes] = field(default_factory=dict)


def remembered(store: MessageStore, message: Message, words: tuple[str, ...]) -> Put:
    """The `Put` of a message that was just appended."""
    unit = None
    if (message.sys_flag & TRANSACTION_MASK) not in (SysFlag.PREPARED, SysFlag.ROLLBACK):
        code = java_hash(message.tags or "")
        if message.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            code = store.code_of(message)
        unit = (message.physical_offset, message.store_bytes, code)
    if message.sys_flag & TRANSACTION_MASK == SysFlag.ROLLBACK:
        words = ()
    return Put(
        message.physical_offset,
        encode_record(message),
        message.topic,
        message.queue_id,
        message.queue_offset,
        unit,
        words,
    )


class TinySettings(StoreSettings):
    """Uses a disk reserve of a few bytes, so that a crash state is small."""

    @property
    def reserve_bytes(self) -> int:
        return 16


class CrashStore(MessageStore):
    """A store whose disk is never full."""

    def disk_usage(self) -> Usage:
        return Usage(10, 10, 10)


class InlineExecutor(ThreadPoolExecutor):
    """Runs submitted calls at once in the caller's thread, so that every run is deterministic."""

    def __init__(self, disk: Any = None) -> None:
        super().__init__(max_workers=1)
        self._disk = disk

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._disk is not None:
            self._disk.threaded = True
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # delivered to the future's owner
            future.set_exception(error)
        finally:
            if self._disk is not None:
                self._disk.threaded = False
        return future


def parse_state(data: bytes) -> int:
    """The value in the state file. Raises ValueError, KeyError, TypeError."""
    return int(json.loads(data)["n"])


def snapshot(folder: Path) -> dict[str, bytes]:
    """The files of a store by path, without the lock, the reserve and the checksums of its log."""
    found: dict[str, bytes] = {}
    _read_folder(str(folder), "", found)
    found.pop("lock", None)
    found.pop("reserve", None)
    for path in [path for path in found if path.rpartition("/")[2].startswith(PREFIX)]:
        del found[path]
    return found


def _read_folder(folder: str, prefix: str, found: dict[str, bytes]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                _read_folder(entry.path, prefix + entry.name + "/", found)
            else:
                fd = os.open(entry.path, os.O_RDONLY)
                found[prefix + entry.name] = os.read(fd, 1 << 20)
                os.close(fd)


def differences(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> list[str]:
    """Which files differ. The older copies inside the checkpoint and the queue list may differ."""
    found = []
    for path in sorted(one.keys() | other.keys()):
        a, b = one.get(path), other.get(path)
        if a == b or path.endswith((".bak", ".tmp")) or (path == "checkpoint" and a and b and a[:512] == b[:512]):
            continue
        if a is None or b is None:
            found.append(f"{path} is {'new' if a is None else 'gone'}")
        else:
            at = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            found.append(f"{path} differs from byte {at} on: {a[at : at + 16].hex()} / {b[at : at + 16].hex()}")
    return found


def survivors(store: MessageStore, history: list[Put]) -> tuple[int, list[str]]:
    """How many records of the history the log still covers, and what is wrong with the log."""
    log = store.log
    count, problems = 0, []
    for put in history:
        if put.end > log.end:
            break
        if put.offset >= log.first_position:
            view = log.view(put.offset, len(put.data))
            if view is None or bytes(view) != put.data:
                at = -1 if view is None else next(n for n in range(len(view)) if view[n] != put.data[n])
                problems.append(
                    f"log offset {put.offset}: not the record that was put there (byte {at} of {len(put.data)})"
                )
                break
        count += 1
    end = history[count - 1].end if count else max(log.first_position, PhysicalOffset(0))
    if log.end > end and not problems:
        head = log.record_at(end)
        rolled = log.end == log.next_file_start(end)
        if not rolled or (head is not None and head.magic != BLANK_MAGIC):
            problems.append(
                f"the log reaches to {log.end}, but the last known record ends at {end}: something is invented"
            )
    return count, problems


def verify(store: MessageStore, promise: Promise, kept: int) -> tuple[int, list[str]]:
    """How many records survived, and every problem of an open store."""
    history = promise.history
    count, problems = survivors(store, history)
    if count < kept:
        lost = history[count]
        problems.append(f"{kept - count} acknowledged records lost, the first at offset {lost.offset}, {lost.topic}")
    if store.log.first_position > promise.start:
        problems.append(
            f"the log begins at {store.log.first_position}, records from {promise.start} on were not deleted"
        )
    if not problems:
        problems += _queues(store, history[:count], promise.deleted)
        problems += _index(store, history[:count])
    return count, problems


def _queues(store: MessageStore, history: list[Put], deleted: Mapping[str, int]) -> Iterator[str]:
    expected: dict[QueueKey, list[tuple[int, Put]]] = {}
    for number, put in enumerate(history):
        if put.unit is not None:
            expected.setdefault((put.topic, put.queue_id), []).append((number, put))
    start = store.log.first_position
    for key in store.queues.by_key.keys() | expected.keys():
        name = f"queue {key[0]}/{key[1]}"
        puts = expected.get(key, [])
        born = deleted.get(key[0], -1)
        due = [put for number, put in puts if number >= born]
        queue = store.queues.get(key)
        if queue is None or queue.max_offset == 0:
            if due:
                yield f"{name} is not there, its next offset is {due[-1].queue_offset + 1}"
            continue
        if not due and born < 0:
            yield f"{name} reaches to {queue.max_offset}, nothing was put into it"
        if due and queue.max_offset != due[-1].queue_offset + 1:
            yield f"{name} ends at {queue.max_offset}, must at {due[-1].queue_offset + 1}"
        if queue.next_offset != queue.max_offset:
            yield f"{name}: next offset {queue.next_offset} is not its end {queue.max_offset}"
        want = {put.queue_offset: put.unit for put in due if put.offset >= start}
        may = {(put.queue_offset, put.unit) for _, put in puts}
        have = dict(queue.units(queue.min_offset, queue.max_offset))
        if sorted(have) != list(range(queue.min_offset, queue.max_offset)):
            yield f"{name}: from {queue.min_offset} to {queue.max_offset} only units {sorted(have)}"
        if want and queue.min_offset > min(want):
            yield f"{name} begins at {queue.min_offset}, must at {min(want)}"
        for offset, unit in have.items():
            if offset in want and want[offset] != unit:
                yield f"{name}: unit {offset} is {unit}, must be {want[offset]}"
            elif (offset, unit) not in may:
                yield f"{name}: unit {offset} is {unit}, which was never put"
            elif unit[0] < start:
                yield f"{name}: unit {offset} lies before the log, but at or behind its least offset"
        yield from _readable(store, key, queue.min_offset, queue.max_offset)


def _readable(store: MessageStore, key: QueueKey, begin: QueueOffset, end: QueueOffset) -> Iterator[str]:
    while begin < end:
        try:
            result = store.get(*key, begin, 32)
        except SaturnError as error:
            yield f"queue {key[0]}/{key[1]} cannot be read: {error.message}"
            return
        if not result.count:
            yield f"queue {key[0]}/{key[1]} cannot be read at {begin}: {result.status}"
            return
        begin = result.next_offset


def _index(store: MessageStore, history: list[Put]) -> Iterator[str]:
    if store.index is None:
        return
    expected: dict[tuple[str, str], list[int]] = {}
    for put in history:
        if put.offset >= store.log.first_position:
            for word in dict.fromkeys(put.words):
                expected.setdefault((put.topic, word), []).append(put.offset)
    for (topic, word), offsets in expected.items():
        found = [n for n in store.index.query(topic, word, _QUERY_MAX, 0, _FOREVER_MS) if n >= store.log.first_position]
        if found != offsets[-_QUERY_MAX:]:
            yield f"index {topic}#{word}: found {found}, must be {offsets[-_QUERY_MAX:]}"


class Checker:
    """Opens crash states and reports their problems. One per process; its folder must be empty."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.loop = asyncio.new_event_loop()

    def close(self) -> None:
        self.loop.close()

    def check(
        self, settings: StoreSettings, promise: Promise, *, power: bool, same_bytes: bool, put: bool
    ) -> list[str]:
        """Every problem of the state in the folder, which is unusable afterwards.

        same_bytes: recovery must end with `promise.recovered`. put: also append messages and end the process again.
        """
        root = settings.root
        kept = promise.kept_power if power else promise.kept_kill
        clean = not settings.abort_path.exists()
        try:
            store = self._opened(settings, promise)
        except (SaturnError, OSError, ValueError, IndexError, KeyError) as error:
            return [f"does not open: {type(error).__name__}: {error}"]
        try:
            count, problems = verify(store, promise, kept)
        finally:
            store.close_files()
        problems += self._state_file(root, promise)
        once = snapshot(root)
        if same_bytes and promise.recovered and not clean:
            problems += [f"recovery that was cut: {text}" for text in differences(promise.recovered, once)]
        if problems:
            return problems
        try:
            store = self._opened(settings, promise)
        except (SaturnError, OSError, ValueError, IndexError, KeyError) as error:
            return [f"does not open a second time: {type(error).__name__}: {error}"]
        if not clean:  # otherwise this start was the first recovery
            problems += [f"second recovery: {text}" for text in differences(once, snapshot(root))]
        if put and not problems:
            return self._put_more(store, promise, count)
        store.close_files()
        return problems

    def _opened(self, settings: StoreSettings, promise: Promise) -> MessageStore:
        store = CrashStore(settings, clock_ms=lambda: promise.clock_ms, disk=QuickDisk())
        store.open()
        return store

    def _state_file(self, root: Path, promise: Promise) -> list[str]:
        low, high = promise.saved
        try:
            value = StateFile(root / STATE_FILE).read(parse_state) or 0
        except SaturnError as error:
            return [f"state file: {error.message}"]
        return [] if low <= value <= high else [f"state file says {value}, must be from {low} to {high}"]

    def _put_more(self, store: MessageStore, promise: Promise, count: int) -> list[str]:
        """Messages appended after the recovery survive the end of the process."""
        history = promise.history[:count]
        keys = list(dict.fromkeys((put.topic, put.queue_id) for put in history if put.unit is not None))[-2:]
        for number, (topic, queue_id) in enumerate([*keys, ("new", 0)]):
            word = f"after{number}"
            message = Message(
                topic, b"after the crash %d" % number, f"KEYS\x01{word}".encode(), queue_id,
                born_host=BROKER, store_host=BROKER,
            )  # fmt: skip
            result = store.put(message)
            if result.status is not PutStatus.PUT_OK:
                store.close_files()
                return [f"put after recovery: {result.status} {result.reason}"]
            if store.log.pooled:
                store.commit()
            if store.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
                self.loop.run_until_complete(store.wait_confirmed(result))
            history.append(remembered(store, message, (word,)))
        store.close_files()
        after = Promise(
            history, len(history), len(history), promise.start, deleted=promise.deleted, clock_ms=promise.clock_ms
        )
        try:
            again = self._opened(store.settings, after)
        except (SaturnError, OSError, ValueError, IndexError, KeyError) as error:
            return [f"does not open after puts and a second crash: {type(error).__name__}: {error}"]
        try:
            return [f"after puts and a second crash: {text}" for text in verify(again, after, len(history))[1]]
        finally:
            again.close_files()


class QuickDisk(Disk):
    """Syncs nothing: no power loss happens while a state is checked. Every call runs in the caller's thread."""

    def __init__(self) -> None:
        self.threads = InlineExecutor()

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass
