"""Reads of a consume queue: how many units one pull examines, and missing units or records."""

from __future__ import annotations

from pathlib import Path

import pytest

from saturnmq.protocol.message import Host, Message
from saturnmq.store import GetStatus, MessageStore, StoreProfile, StoreSettings
from saturnmq.store.files import capacity
from saturnmq.store.log.commit_log import CommitLog
from saturnmq.store.queue.consume_queue import ConsumeQueue

HOST = Host("127.0.0.1", 10911)
UNITS_PER_FILE = 1000


def opened(path: Path, count: int) -> MessageStore:
    """A store with this many small messages in queue 0 of topic T."""
    store = MessageStore(
        StoreSettings(
            store_path_root_dir=str(path), profile=StoreProfile.SMALL, consume_queue_file_bytes=UNITS_PER_FILE * 20
        )
    )
    store.open()
    for _ in range(count):
        store.put(Message("T", b"x", b"TAGS\x01a", born_host=HOST, store_host=HOST))
    return store


@pytest.mark.spec("BP-03")
def test_get_scans_16000_bytes_or_20_per_requested_message(tmp_path: Path) -> None:
    store = opened(tmp_path, 1200)
    for max_count, scanned in ((1, 800), (800, 800), (801, 801), (1000, 1000)):
        none = store.get("T", 0, 0, max_count, codes=frozenset())
        assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, scanned)
    store.close_files()


@pytest.mark.spec("BP-03")
def test_get_skips_expired_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, 3)
    places = [store.physical_offset("T", 0, offset) for offset in range(3)]
    end = store.log.end
    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "first_position", property(lambda log: places[2]))
        found = store.get("T", 0, 0, 32)
        assert (found.status, found.count, found.next_offset) == (GetStatus.FOUND, 1, 3)
        patch.setattr(CommitLog, "first_position", property(lambda log: end))
        gone = store.get("T", 0, 0, 32)
        assert (gone.status, gone.count, gone.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 0, 3)
    store.close_files()


@pytest.mark.spec("BP-02")
@pytest.mark.parametrize(("offset", "following"), [(0, 1000), (999, 1000), (1000, 2000)])
def test_unreadable_queue_file_is_skipped_at_its_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, following: int
) -> None:
    assert StoreSettings().consume_queue_bytes // 20 == 300_000, "units of one file unless a test asks for fewer"
    store = opened(tmp_path, 1100)
    monkeypatch.setattr(ConsumeQueue, "read", lambda queue, first, count: b"")
    result = store.get("T", 0, offset, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, following)
    store.close_files()


@pytest.mark.spec("BP-04")
def test_in_memory_limit_is_40_percent_of_ram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "memory_bytes", lambda: 1_000_000)
    for percent, expected in ((40, 400_000), (25, 250_000)):
        settings = StoreSettings(store_path_root_dir=str(tmp_path), memory_percent_max=percent)
        store = MessageStore(settings)
        assert store.memory_bytes == expected
    assert StoreSettings().memory_percent_max == 40
