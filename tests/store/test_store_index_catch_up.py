"""An index that lags reads the log by compiled code: its files equal those of the reference, whatever the log holds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_store import message, opened

from hotways import hot_module
from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.message import Host
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.store import MessageStore
from saturnmq.store.index import index_file, index_queue, message_index
from saturnmq.store.index.index_queue import IndexQueue

SMALL: dict[str, Any] = {"commit_log_file_bytes": 8192, "index_slots_max": 50, "index_entries_max": 100}
COUNT = 48
PROPERTIES = (
    b"UNIQ_KEY\x01u%d",
    b"TAGS\x01a\x02UNIQ_KEY\x01u%d\x02KEYS\x01k%d  word\x02",
    b"KEYS\x01\xc3\xbc%d",
    b"",
    b"KEYS\x01" + b" ".join(b"%d" % number for number in range(70)),
    b"KEYS\x01old\x02KEYS\x01new%d",
)
# Bytes of total_size, magic, physical_offset, sys_flag, store_timestamp and body_bytes.
COMPARED = (*range(8), *range(28, 40), *range(56, 64), *range(84, 88))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[MessageStore]:
    """Records of all kinds in several files; some of the last ones were received over IPv6."""
    store = opened(tmp_path / "store", **SMALL)
    for number in range(COUNT):
        raw = PROPERTIES[number % len(PROPERTIES)].replace(b"%d", b"%d" % number)
        sent = message(b"x" * (number * 37 % 300), properties=raw, topic=("T", "A topic"[::2], "T-2")[number % 3])
        if number % 7 == 3:
            sent.sys_flag = int(SysFlag.ROLLBACK if number % 2 else SysFlag.COMMIT)
        if number >= COUNT - 10 and number % 4 == 1:
            sent.born_host = Host("2001:db8::1", 9)
        store.put(sent)
    store.put_in_index()
    yield store
    store.close_files()


def rebuilt(store: MessageStore, patch: pytest.MonkeyPatch, module: Any) -> tuple[dict[int, bytes], int]:
    """The index files, in order, after a rebuild from the log; and how many records compiled code took."""
    for user in (index_file, message_index):
        patch.setattr(user, "COMPILED", module)
    index, taken = store.index, 0
    assert index is not None
    index.clear()
    put_from_log = index.put_from_log

    def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal taken
        last = put_from_log(*arguments, **more)
        taken += last >= 0
        return last

    patch.setattr(index, "put_from_log", counted)
    queue = IndexQueue(index, store)
    queue.rebuild(store.log.first_position)
    for _ in range(1000):
        if queue._reading is None or not queue._reads:
            break
        queue._catch_up(queue._reading)
    patch.setattr(index, "put_from_log", put_from_log)
    return {number: path.read_bytes() for number, path in enumerate(index.paths)}, taken


def as_reference_accepts(module: Any) -> Any:
    if module.__name__ == "saturnmq.hot.index_entries" and not module.__file__.endswith(".py"):
        return module
    put_entries = module.put_entries
    module.put_entries = lambda mapping, *more: put_entries(memoryview(mapping), *more)
    return module


@pytest.mark.spec("IX-02")
@pytest.mark.parametrize("way", ["compiled", "interpreted"])
@pytest.mark.parametrize("items_max", [1, 7, 512])
def test_rebuilt_index_files_equal_the_references(
    log: MessageStore, monkeypatch: pytest.MonkeyPatch, way: str, items_max: int
) -> None:
    module = as_reference_accepts(hot_module("index_entries", way))
    monkeypatch.setattr(message_index, "_ITEMS_MAX", items_max)
    files, taken = rebuilt(log, monkeypatch, module)
    expected, by_reference = rebuilt(log, monkeypatch, None)
    assert files == expected and len(files) > 2 and taken > 3 and by_reference == 0
    monkeypatch.setattr(index_queue, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(index_queue, "SLICE_BYTES", 1)
    assert rebuilt(log, monkeypatch, module)[0] == expected


@pytest.mark.parametrize("way", ["compiled", "interpreted"])
def test_rebuild_of_damaged_records_equals_the_references(
    log: MessageStore, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Bytes of the head of a record on which the index depends, and some of its body, topic and properties."""
    module = as_reference_accepts(hot_module("index_entries", way))
    sound, _ = rebuilt(log, monkeypatch, None)
    numbers, damaged = random.Random(5), 0
    for offset in (QueueOffset(0), QueueOffset(1)):
        at = log.physical_offset("T", 0, offset)
        start, _, data = log.log.piece_at(at)
        for step in (*COMPARED, *(numbers.randrange(88, 250) for _ in range(8))):
            position = at - start + step
            before = data[position]
            data[position] = before ^ (1 if step % 2 else 0x80)  # type: ignore[index]
            files, _ = rebuilt(log, monkeypatch, module)
            assert files == rebuilt(log, monkeypatch, None)[0], (offset, step)
            damaged += files != sound
            data[position] = before  # type: ignore[index]
    assert damaged > 30
