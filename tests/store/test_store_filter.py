"""Pulls with a property filter: which properties are read, and the offset of the next pull."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from saturnmq.protocol.message import Host, Message, decode_records, java_hash
from saturnmq.store import GetResult, GetStatus, MessageStore, StoreProfile, StoreSettings, reading

BROKER = Host("127.0.0.1", 10911)


def message(body: bytes = b"body", properties: bytes = b"", *, v6: bool = False) -> Message:
    host = Host("2001:db8::1", 1) if v6 else BROKER
    return Message("T", body, properties, born_host=host, store_host=host)


def opened(path: Path) -> MessageStore:
    store = MessageStore(StoreSettings(store_path_root_dir=str(path), profile=StoreProfile.SMALL))
    store.open()
    return store


def bodies(result: GetResult) -> list[bytes]:
    return [message.body for buffer in result.buffers for message in decode_records(buffer)]


@pytest.mark.spec("BP-03", "FIL-02")
def test_property_filter_runs_after_tags_filter_and_skips_rejected(tmp_path: Path) -> None:
    store = opened(tmp_path)
    asked: list[bytes] = []

    def accept(properties: bytes) -> bool:
        asked.append(properties)
        return properties.startswith(b"a")

    for n, properties in enumerate(
        (b"TAGS\x01t\x02x\x011", b"a\x011\x02TAGS\x01t", b"a\x012", b"", b"a\x013\x02TAGS\x01t")
    ):
        store.put(message(b"%d" % n, properties, v6=n % 2 == 0))
    tagged = store.get("T", 0, 0, 32, codes=frozenset((java_hash("t"),)), accept_record=accept)
    assert (tagged.status, tagged.count, tagged.next_offset) == (GetStatus.FOUND, 2, 5)
    assert bodies(tagged) == [b"1", b"4"]
    assert asked == [b"TAGS\x01t\x02x\x011", b"a\x011\x02TAGS\x01t", b"a\x013\x02TAGS\x01t"]
    assert bodies(store.get("T", 0, 0, 2, accept_record=accept)) == [b"1", b"2"]
    assert store.get("T", 0, 0, 2, accept_record=accept).next_offset == 3
    none = store.get("T", 0, 0, 32, accept_record=lambda properties: False)
    assert (none.status, none.count, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 0, 5)
    assert store.properties("T", 0, 2) == b"a\x012"
    assert store.properties("T", 0, 5) is store.properties("T", 1, 0) is None
    asyncio.run(store.stop())


@pytest.mark.spec("BP-03", "LIM-12")
def test_slow_filter_ends_pull_early_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(reading, "thread_time", lambda: now[0])
    store = opened(tmp_path)
    for n in range(70):
        store.put(message(properties=b"n\x01%d" % n))

    def accept(properties: bytes) -> bool:
        now[0] += 0.001  # of 20 ms that a filter may keep the event loop, looked at after every 16 messages
        return properties == b"n\x0133"

    ends, offset, status = [], 0, GetStatus.NO_MATCHED_MESSAGE
    while status is not GetStatus.OFFSET_OVERFLOW_ONE:
        result = store.get("T", 0, offset, 32, accept_record=accept)
        status, offset = result.status, result.next_offset
        ends.append((status.value, result.count, offset))
    assert ends == [
        ("NO_MATCHED_MESSAGE", 0, 32),
        ("FOUND", 1, 64),
        ("NO_MATCHED_MESSAGE", 0, 70),
        ("OFFSET_OVERFLOW_ONE", 0, 70),
    ]
    result.buffers.clear()
    asyncio.run(store.stop())


def test_record_with_unreadable_properties_passes_the_filter(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message(b"body", b"a\x011"))
    store.log.files[0].map[84:88] = b"\x00\xff\xff\xff"  # a body longer than the record
    result = store.get("T", 0, 0, 32, accept_record=lambda properties: False)
    assert (result.status, result.count) == (GetStatus.FOUND, 1)
    assert store.properties("T", 0, 0) is None
    result.buffers.clear()
    store.close_files()
