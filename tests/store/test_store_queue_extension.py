"""The consume queue's extension: byte compatibility with Apache RocketMQ, crashes, changed settings, missing files."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.crash import campaign as crash
from harness.crash import run as crash_run
from recorded import VECTORS
from saturnmq.filter import GroupFilters
from saturnmq.protocol.bodies import SubscriptionData
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.message import Host, Message, decode_record, decode_records
from saturnmq.store import GetStatus, MessageStore, StoreProfile, StoreSettings
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.file_cache import FileCache
from saturnmq.store.files.mapped_file import file_name
from saturnmq.store.queue import queue_extension
from saturnmq.store.queue.consume_queue import UNIT
from saturnmq.store.queue.queue_extension import ADDRESS_MAX, Content, QueueExtension

GOLDEN = VECTORS / "store" / "broker-rollover-ext"
ZERO = -(2**63)
FILE = 4096
BITS = bytes(14)


def opened(path: Path, *, bit_map: Callable[[str, bytes], bytes | None] | None = None, **more: Any) -> MessageStore:
    values: dict[str, Any] = {
        "profile": StoreProfile.SMALL,
        "commit_log_file_bytes": 65_536,
        "consume_queue_file_bytes": 4000,
        "queue_extension_enable": True,
        "queue_extension_file_bytes": FILE,
    }
    store = MessageStore(StoreSettings(store_path_root_dir=str(path), **(values | more)))
    store.bit_map = bit_map
    store.open()
    return store


def message(tag: str = "a", topic: str = "T") -> Message:
    host = Host("127.0.0.1", 10911)
    return Message(topic, b"body", f"TAGS\x01{tag}".encode(), born_host=host, store_host=host)


def closed(store: MessageStore) -> None:
    asyncio.run(store.stop())


def flushed(store: MessageStore) -> None:
    """Write the queues but not the note, as a kill some time after a round leaves them."""
    todo = store.queues.round(1)
    todo.write(store.disk, store.queues.list_file)
    todo.finish()


def golden(tmp_path: Path) -> Path:
    """A store of Apache RocketMQ, its files padded to their original length."""
    folder = tmp_path / "golden"
    for path in GOLDEN.rglob("*"):
        target = folder / path.relative_to(GOLDEN)
        if path.is_file() and path.suffix != ".jsonl":
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            if path.name.isdigit() and len(path.name) == 20:
                kind = path.parts[-4] if "consumequeue" in path.parts[-4] else "commitlog"
                os.truncate(target, {"consumequeue": 4000, "consumequeue_ext": 2**20, "commitlog": 16_384}[kind])
    return folder


def original(path: Path, **more: Any) -> MessageStore:
    return opened(path, commit_log_file_bytes=16_384, queue_extension_file_bytes=2**20, **more)


def contents(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[Content | None]:
    """The extension's content for each unit of a queue; None for a unit without content."""
    queue = store.queues.by_key[(topic, queue_id)]
    assert queue.extension is not None
    found = []
    for offset in range(queue.min_offset, queue.max_offset):
        _, _, code = UNIT.unpack(queue.read(offset, 1))
        found.append(queue.extension.read(code) if code <= ADDRESS_MAX else None)
    return found


def sub_filters() -> GroupFilters:
    """The filter that the recorded broker had from the fifth message of the topic on, with its original creation time."""
    filters = GroupFilters()
    filters.load((GOLDEN / "config" / "consumerFilter.json").read_bytes(), 0)
    return filters


# ---- files of Apache RocketMQ


@pytest.mark.spec("CQ-13", "CQ-14", "FIL-06")
def test_rocketmq_extension_bits_exclude_messages(tmp_path: Path) -> None:
    store = original(golden(tmp_path))
    found = contents(store, "VecSql")
    assert all(content is not None and content.tags_code == 83 for content in found)
    bits = [content.bit_map.hex() for content in found if content is not None]
    assert bits == [""] * 4 + ["00" * 14] + ["0010000000000000000002200000"] * 3
    record = sub_filters().get("VecSql", "vec_sql_group")
    assert record is not None
    read: list[bytes] = []

    def accept_record(properties: bytes) -> bool:
        read.append(properties)
        return record.matcher.by_properties({"x": properties.split(b"x\x01")[1][:1].decode()})

    result = store.get("VecSql", 0, 0, 32, accept_record=accept_record, accept_extension=record.by_extension)
    assert (result.count, result.next_offset) == (5, 8)
    assert len(read) == 7  # the first four are older than the filter; one of the others misses the bit
    tagged = store.get("VecTags", 0, 0, 32, codes=frozenset((2112,)))
    assert (tagged.count, tagged.next_offset) == (2, 4)
    assert [content and content.tags_code for content in contents(store, "VecPlain", 1)] == [63956762] * 3 + [0]
    result.buffers.clear()
    tagged.buffers.clear()
    closed(store)


@pytest.mark.spec("CQ-13", "CQ-14", "FIL-06", "FIL-07")
def test_same_messages_produce_rocketmq_bytes(tmp_path: Path) -> None:
    records: list[Message] = []
    for path in sorted((GOLDEN / "commitlog").glob("0*0*")):
        raw, at = (path.read_bytes(), 0) if path.suffix == "" else (b"", 0)
        while at + 8 <= len(raw) and raw[at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
            records.append(decode_record(raw, at))
            at += records[-1].store_bytes
    filters = sub_filters()
    now = [0]

    def bit_map(topic: str, properties: bytes) -> bytes | None:
        known = filters.filtered(topic) and now[0] >= 1795223662324
        text = dict(pair.split("\x01") for pair in properties.decode().split("\x02"))
        return filters.bit_map(topic, text) if known else None

    values = {"commit_log_file_bytes": 16_384, "consume_queue_file_bytes": 4000, "queue_extension_enable": True}
    where = StoreSettings(store_path_root_dir=str(tmp_path), profile=StoreProfile.SMALL, **values)  # type: ignore[arg-type]
    store = MessageStore(where, clock_ms=lambda: now[0])
    store.bit_map = bit_map
    store.open()
    for record in records:
        now[0] = record.store_timestamp_ms
        store.put(record)
    closed(store)
    written = sorted(path for path in (GOLDEN / "consumequeue_ext").rglob("0" * 20))
    assert len(written) == 4
    for path in written:
        ours = tmp_path / path.relative_to(GOLDEN)
        assert ours.read_bytes().rstrip(b"\0") == path.read_bytes().rstrip(b"\0"), path
        units = GOLDEN / "consumequeue" / path.relative_to(GOLDEN / "consumequeue_ext")
        assert (tmp_path / units.relative_to(GOLDEN)).read_bytes().rstrip(b"\0") == units.read_bytes().rstrip(b"\0")


# ---- one extension


@pytest.mark.spec("CQ-13")
def test_unit_without_space_rolls_to_next_file(tmp_path: Path) -> None:
    cache = FileCache(Disk())
    extension = QueueExtension(tmp_path, 100, cache)
    addresses = [extension.append(n, 1000 + n, bytes([n]) * 10) for n in range(4)]
    assert [address - ZERO for address in addresses] == [0, 30, 60, 100]  # 90 + 30 does not fit, 4 bytes stay spare
    assert extension.append(9, 1, bytes(77)) == 9  # too long for a file: the plain tags code
    assert extension.append(9, 1, bytes(76)) - ZERO == 200
    (first_at, first), (second_at, second), (third_at, third) = extension.begin_flush()
    assert (first_at, second_at, third_at) == (0, 100, 200)
    assert (len(first), first[90:], len(second), len(third)) == (100, b"\xff\xff" + bytes(8), 100, 96)
    assert [extension.read(address) for address in addresses] == [
        Content(n, 1000 + n, bytes([n]) * 10) for n in range(4)
    ]
    for wrong in (ZERO + 90, ZERO + 1, ZERO + 296, ZERO + 10_000, ADDRESS_MAX, 5):
        assert extension.read(wrong) is None
    cache.close()


@pytest.mark.spec("CQ-13", "RC-06")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**40), st.binary(max_size=70)), max_size=30),
    st.lists(st.integers(0, 29), max_size=4),
)
def test_content_is_read_from_memory_from_files_and_after_load(
    tmp_path_factory: pytest.TempPathFactory, units: list[tuple[int, int, bytes]], flushes: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("ext") / "T" / "0"
    folder.mkdir(parents=True)
    cache = FileCache(Disk())
    extension = QueueExtension(folder, 128, cache)

    def flush() -> None:
        for at, data in extension.begin_flush():
            with (folder / file_name(at - at % 128)).open("r+b" if at % 128 else "wb") as file:
                file.seek(at % 128)
                file.write(data)
                file.truncate(128)
        extension.end_flush(extension.end)

    held = []
    for n, unit in enumerate(units):
        if n in flushes:
            flush()
        held.append(extension.append(*unit))
    expected = [Content(*unit) for unit in units]
    assert [extension.read(address) for address in held] == expected
    flush()
    again = QueueExtension(folder, 128, cache)
    again.load(held[-1] if held else None, len(held))
    assert again.end == extension.end
    assert [again.read(address) for address in held] == expected
    for kept in range(len(held) - 1, 0, -1):
        again.truncate(held[kept - 1])
        assert [again.read(address) for address in held] == expected[:kept] + [None] * (len(held) - kept)
    cache.close()


def test_file_that_begins_at_the_new_end_is_deleted(tmp_path: Path) -> None:
    disk = Disk()
    cache = FileCache(disk)
    extension = QueueExtension(tmp_path, 128, cache)
    addresses = [extension.append(n, 1000 + n, bytes(42)) for n in range(4)]
    assert [address - ZERO for address in addresses] == [0, 62, 128, 190]
    for at, data in extension.begin_flush():
        (tmp_path / file_name(at)).write_bytes(data.ljust(128, b"\0"))
    extension.end_flush(extension.end)
    (tmp_path / file_name(256)).write_bytes(b"x" * 128)
    assert extension.end == 252
    extension.truncate(addresses[1])
    assert [path.name for path in sorted(tmp_path.iterdir())] == [file_name(0)] and extension.end == 124
    assert (tmp_path / file_name(0)).read_bytes()[124:] == bytes(4)
    (tmp_path / file_name(128)).write_bytes(b"x" * 128)
    extension.truncate(ZERO + 1)  # no unit begins there: the next file is the end
    assert [path.name for path in sorted(tmp_path.iterdir())] == [file_name(0)] and extension.end == 128
    cache.close()


def test_deleted_content_is_not_written_again(tmp_path: Path) -> None:
    cache = FileCache(Disk())
    extension = QueueExtension(tmp_path, 128, cache)
    extension.append(1, 1000, b"old")
    extension.delete()
    address = extension.append(2, 2000, b"new")
    assert address == ZERO and extension.read(address) == Content(2, 2000, b"new")
    assert [(at, data[20:]) for at, data in extension.begin_flush()] == [(0, b"new")]
    cache.close()


@pytest.mark.parametrize(("units", "end"), [(0, 256), (1, 65_536), (5, 327_680)])
def test_content_begins_behind_every_address_of_a_time_without_extension(tmp_path: Path, units: int, end: int) -> None:
    cache = FileCache(Disk())
    (tmp_path / file_name(128)).write_bytes(bytes(128))
    extension = QueueExtension(tmp_path, 128, cache)
    extension.load(7, units)
    assert (extension.first, extension.end) == (128, end), "2 * 32767 bytes for each unit, from the start of a file"
    cache.close()


@pytest.mark.parametrize(
    ("size", "map_bytes", "expected"), [(20, 0, 20), (30, 10, 30), (20, -1, 0), (30, 9, 0), (0, 0, 0)]
)
def test_length_of_a_unit(size: int, map_bytes: int, expected: int) -> None:
    raw = struct.pack(">hqqh", size, 5, 6, map_bytes)
    assert queue_extension._size_of(raw) == expected
    assert queue_extension._size_of(raw + b"more") == expected and queue_extension._size_of(raw[:19]) == 0


# ---- in a store


@pytest.mark.spec("CQ-13", "RC-01", "RC-12")
def test_contents_survive_restart_and_continue(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes]] = []

    def bit_map(topic: str, properties: bytes) -> bytes | None:
        seen.append((topic, properties))
        return bytes([len(seen)]) * 14 if len(seen) % 3 else None

    store = opened(tmp_path, bit_map=bit_map)
    for n in range(150):
        store.put(message(f"t{n}"))
    assert seen == [("T", f"TAGS\x01t{n}".encode()) for n in range(150)]
    before = contents(store)
    closed(store)
    assert len(list((tmp_path / "consumequeue_ext" / "T" / "0").iterdir())) == 2
    store = opened(tmp_path, bit_map=bit_map)
    assert contents(store) == before
    store.put(message("more"))
    assert contents(store)[:-1] == before
    assert contents(store)[-1] is not None
    assert len(seen) == 151
    closed(store)


def pulled(store: MessageStore, **more: Any) -> list[bytes]:
    """Properties of all messages returned, in as many pulls as needed."""
    found, offset = [], store.min_offset("T", 0)
    while (result := store.get("T", 0, offset, 200, **more)).next_offset > offset:
        found += [m.properties_raw for m in decode_records(b"".join(result.buffers))]
        result.buffers.clear()
        offset = result.next_offset
    return found


@pytest.mark.spec("CQ-13", "RC-08", "RC-10", "DUR-13")
@pytest.mark.parametrize("lost", ["nothing", "queue tail", "extension file", "extension bytes", "extension folder"])
def test_contents_are_rebuilt_from_log_after_crash(tmp_path: Path, lost: str) -> None:
    def bit_map(topic: str, properties: bytes) -> bytes:
        return properties[-1:] * 14

    store = opened(tmp_path, bit_map=bit_map)
    for n in range(200):
        store.put(message(f"t{n}"))
        if n in (50, 120):
            flushed(store)
        if n == 90:
            asyncio.run(store.write_all())  # the note covers these
    before = contents(store)
    store.close_files()  # killed
    folder = tmp_path / "consumequeue_ext" / "T" / "0"
    last = folder / file_name(FILE)
    if lost == "queue tail":  # the extension was written, the queue was not
        with (tmp_path / "consumequeue" / "T" / "0" / file_name(0)).open("r+b") as file:
            file.seek(100 * 20)
            file.write(bytes(2000))
    elif lost == "extension file":
        last.unlink(missing_ok=True)
    elif lost == "extension bytes":
        with (folder / file_name(0)).open("r+b") as file:
            file.seek(95 * 34)
            file.write(b"\xee" * 500)
    elif lost == "extension folder":
        shutil.rmtree(tmp_path / "consumequeue_ext")
    store = opened(tmp_path, bit_map=bit_map)
    after = contents(store)
    assert len(after) == 200
    assert [content for content in after if content is not None] == before[-sum(c is not None for c in after) :]
    if lost != "extension folder":
        assert after == before
    assert len(pulled(store, accept_extension=lambda store_ms, bits: bits[0] == ord("7"), max_bytes=2**20)) >= 8
    store.put(message("new"))
    assert contents(store)[:-1] == after
    closed(store)
    assert opened_contents(tmp_path) == [*after, contents_of_new(tmp_path)]


def opened_contents(path: Path) -> list[Content | None]:
    store = opened(path)
    found = contents(store)
    closed(store)
    return found


def contents_of_new(path: Path) -> Content | None:
    return opened_contents(path)[-1]


@pytest.mark.spec("CQ-13")
def test_stale_bytes_after_end_are_zeroed_after_crash(tmp_path: Path) -> None:
    store = opened(tmp_path, bit_map=lambda topic, properties: BITS)
    for _ in range(10):
        store.put(message())
    asyncio.run(store.write_all())
    store.close_files()
    folder = tmp_path / "consumequeue_ext" / "T" / "0"
    with (folder / file_name(0)).open("r+b") as file:
        file.seek(340)
        file.write(b"\x7f" * 700)
    (folder / file_name(FILE)).write_bytes(b"\x7f" * FILE)
    (tmp_path / "consumequeue_ext" / "never" / "0").mkdir(parents=True)
    closed(opened(tmp_path))
    assert (folder / file_name(0)).read_bytes()[340:] == bytes(FILE - 340)
    assert [path.name for path in folder.iterdir()] == [file_name(0)]
    assert not (tmp_path / "consumequeue_ext" / "never" / "0").exists()


@pytest.mark.spec("CQ-13", "FIL-02")
def test_unresolvable_address_lets_message_pass(tmp_path: Path) -> None:
    store = opened(tmp_path, bit_map=lambda topic, properties: BITS)
    for tag in ("a", "b"):
        store.put(message(tag))
    closed(store)
    only_a = {"codes": frozenset((97,))}
    store = opened(tmp_path, queue_extension_enable=False)
    assert len(pulled(store, **only_a)) == 2  # off: the client filters
    store.put(message("b"))
    assert len(pulled(store, **only_a)) == 2
    assert len(pulled(store, accept_extension=lambda store_ms, bits: False)) == 3
    closed(store)
    shutil.rmtree(tmp_path / "consumequeue_ext")
    store = opened(tmp_path)
    assert contents(store) == [None, None, None]
    assert len(pulled(store, **only_a)) == 2
    store.put(message("b"))
    assert len(pulled(store, **only_a)) == 2
    assert contents(store)[3] is not None
    closed(store)
    assert [content is None for content in opened_contents(tmp_path)] == [True, True, True, False]


@pytest.mark.spec("CQ-13")
def test_smallest_tags_code_is_no_address(tmp_path: Path) -> None:
    """The Java hash of this tag is Integer.MIN_VALUE; the greatest address is one below."""
    assert ADDRESS_MAX == -2_147_483_649
    store = opened(tmp_path, queue_extension_enable=False)
    store.put(message("polygenelubricants"))
    (unit,) = UNIT.iter_unpack(store.queues.by_key[("T", 0)].read(0, 1))
    assert unit[2] == -2_147_483_648
    for codes, passed in ((frozenset((unit[2],)), 1), (frozenset((97,)), 0)):
        assert len(pulled(store, codes=codes)) == passed, "an address that has no content would let it pass"
    closed(store)


@pytest.mark.spec("CQ-13")
def test_addresses_stay_unique_after_extension_was_off(tmp_path: Path) -> None:
    for n in range(6):
        store = opened(tmp_path, queue_extension_enable=n % 2 == 0, bit_map=lambda topic, properties: BITS)
        for _ in range(30):
            store.put(message(f"t{n}"))
        closed(store)
    store = opened(tmp_path)
    queue = store.queues.by_key[("T", 0)]
    raw = [code for _, _, code in UNIT.iter_unpack(queue.read(0, 180))]
    addresses = [code for code in raw if code <= ADDRESS_MAX]
    assert len(addresses) == len(set(addresses)) == 90 and addresses == sorted(addresses)
    assert [content is not None for content in contents(store)] == ([True] * 30 + [False] * 30) * 3
    closed(store)


@pytest.mark.spec("CQ-12", "DEL-09")
def test_extension_is_deleted_with_its_queue(tmp_path: Path) -> None:
    store = opened(tmp_path, bit_map=lambda topic, properties: BITS, commit_log_file_bytes=4096)
    for _ in range(500):
        store.put(message())
    store.put(message(topic="U"))
    asyncio.run(store.write_all())
    folder = tmp_path / "consumequeue_ext" / "T" / "0"
    before, names = contents(store), sorted(path.name for path in folder.iterdir())
    assert len(names) == 5
    while len(store.log.files) > 2:
        store.log.files.pop(0).delete()
    queue = store.queues.by_key[("T", 0)]
    assert queue.delete_before(store.log.first_position) >= 1
    assert sorted(path.name for path in folder.iterdir()) == names[-2:]
    kept = contents(store)
    assert kept == before[-len(kept) :] and None not in kept
    store.delete_topic("T")
    assert not folder.parent.exists() and (tmp_path / "consumequeue_ext" / "U").exists()
    store.put(message())
    assert [content and content.bit_map for content in contents(store)] == [BITS]
    other = store.queues.by_key[("U", 0)]
    assert other.extension is not None and other.extension.end > 0
    other.delete()
    assert other.extension.end == 0 and list(other.extension.folder.iterdir()) == []
    closed(store)


@pytest.mark.spec("CQ-13", "RC-04")
def test_files_of_wrong_length_name_the_setting(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(message())
    closed(store)
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueueExt"):
        opened(tmp_path, queue_extension_file_bytes=8192)
    assert opened_contents(tmp_path)[0] is not None
    assert StoreSettings().queue_extension is None
    assert StoreSettings(queue_extension_enable=True).queue_extension == (Path("store/consumequeue_ext"), 50_331_648)


@pytest.mark.spec("CQ-13", "CQ-02", "BP-03")
def test_tags_filter_works_with_extension(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for tag in ("a", "b", "a", "c"):
        store.put(message(tag))
    assert pulled(store, codes=frozenset((97, 99))) == [b"TAGS\x01a", b"TAGS\x01a", b"TAGS\x01c"]
    assert pulled(store) == [b"TAGS\x01a", b"TAGS\x01b", b"TAGS\x01a", b"TAGS\x01c"]
    none = store.get("T", 0, 0, 32, codes=frozenset((1,)))
    assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 4)
    queue = store.queues.by_key[("T", 0)]
    assert [unit[2] for _, unit in queue.units(0, 4)] == [97, 98, 97, 99]  # readers of the queue see tags codes
    unit = queue.unit(1)
    assert unit is not None and unit[2] == 98
    closed(store)


@pytest.mark.spec("CQ-14")
def test_new_subscription_ignores_bits_of_older_messages() -> None:
    filters = GroupFilters()
    filters.subscribe("G", [SubscriptionData("T", "a = 1", sub_version=1, expression_type="SQL92")], 1000)
    record = filters.get("T", "G")
    assert record is not None
    bits = filters.bit_map("T", {"a": "2"})
    assert bits == bytes(14)
    assert not record.by_extension(1001, bits)
    assert record.by_extension(1000, bits) and record.by_extension(1001, b"") and record.by_extension(1001, bytes(15))
    assert not filters.filtered("U") and filters.filtered("T")


@pytest.mark.spec("CQ-13", "CQ-14", "DUR-13", "DUR-20")
@pytest.mark.parametrize(("seed", "number"), [(0, 1), (1, 2), (2, 0), (5, 1)])
def test_contents_are_consistent_after_any_crash(seed: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crash matrix with extensions: queue readers resolve tags codes through them, so a wrong code is a wrong unit."""
    plain, opening = crash_run.settings_of, MessageStore.open

    def settings_of(seed: int, top: Path) -> StoreSettings:
        return replace(plain(seed, top), queue_extension_enable=True, queue_extension_file_bytes=100)

    def opened_with_bits(store: MessageStore) -> None:
        store.bit_map = lambda topic, raw: bytes([len(raw) % 251]) * 14 if len(raw) % 3 else None
        opening(store)

    monkeypatch.setattr(crash, "settings_of", settings_of)
    monkeypatch.setattr(crash_run, "settings_of", settings_of)
    monkeypatch.setattr(MessageStore, "open", opened_with_bits)
    logging.disable(logging.CRITICAL)
    try:
        with crash.scratch_folder() as top:
            (top / "lives").mkdir()
            life = crash.life_of(seed, number, top / "lives")
            assert any("consumequeue_ext" in str(operation) for operation in life.operations)
            outcome = crash.check_life(life, top, share=min(100 / (12 * len(life.operations)), 1.0))
    finally:
        logging.disable(logging.NOTSET)
    assert outcome.checked > 30
    assert [str(failure) for failure in outcome.failures] == []
