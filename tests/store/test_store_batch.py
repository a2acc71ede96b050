"""Messages of a batch are stored as if they came one by one, and records added to the index together."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotways import hot_module
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.message import Entry, Host, Message
from saturnmq.protocol.properties import keys_of
from saturnmq.store import FlushDiskType, MessageStore, PutResult, PutStatus, StoreProfile, StoreSettings
from saturnmq.store.files.disk import Disk
from saturnmq.store.index import index_file, index_queue, message_index
from saturnmq.store.index.index_file import key_hash, topic_hash
from saturnmq.store.index.message_index import MessageIndex, Record

HEX = "0123456789ABCDEF"
LOOPBACK = Host("127.0.0.1", 10911)


def opened(root: Path, **more: Any) -> MessageStore:
    given_settings: dict[str, Any] = {"commit_log_file_bytes": 8192, "profile": StoreProfile.SMALL} | more
    store = MessageStore(StoreSettings(str(root), **given_settings), clock_ms=lambda: 1_700_000_000_000)
    store.open()
    return store


IPV4, IPV6 = "7F0000010ABC18B4AAC2", "FD0000000000000000000000000000022DC05FFD2B27"  # prefixes of client-generated keys
unique = st.text(HEX, min_size=1, max_size=90) | st.text(min_size=1, max_size=40).filter(
    lambda text: not set(text) & {"\x01", "\x02", "\0"}
)
ids = st.sampled_from([f"{ip}{77_000_000 * n // 4:08X}{n * 1999:04X}" for n in range(30) for ip in (IPV4, IPV6)])
tails = st.sampled_from(
    [
        "",
        "\x02",
        "\x02TAGS\x01a",
        "\x02KEYS\x01k1 k2",
        "\x02KEYS\x01k1",
        "\x02KEYS\x01 ü  k2 ",
        "\x02KEYS\x01\x02",
        "\x02X_UNIQ_KEY\x01no",
        "\x02UNIQ_KEY\x01again",
    ]
)
heads = st.sampled_from(["", "A\x01b\x02", "XUNIQ_KEY\x01odd\x02", "KEYS\x01w\x02"])
properties = st.builds(lambda head, key, tail: f"{head}UNIQ_KEY\x01{key}{tail}".encode(), heads, ids | unique, tails)
records = st.lists(st.tuples(st.sampled_from(["T", "Über"]), properties | st.just(b"TAGS\x01a")), max_size=40)


@pytest.mark.spec("IX-02", "IX-03", "IX-04", "IX-05", "IX-08", "FUZ-04")
@pytest.mark.parametrize("way", ["pure", "compiled", "interpreted"])
def test_put_many_writes_same_index_as_single_puts(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    set_way(monkeypatch, way)

    @settings(max_examples=150, deadline=None)
    @given(records, st.integers(2, 30))
    def check(drawn: list[tuple[str, bytes]], entries_max: int) -> None:
        root = tmp_path_factory.mktemp("bulk")
        given_records: list[Record] = [(topic, raw, 100 * n, 10**12 + 700 * n) for n, (topic, raw) in enumerate(drawn)]
        clock = iter(range(10**12, 10**12 + 10**6)).__next__
        single = MessageIndex(root / "single", 7, entries_max, Disk(), clock)
        clock = iter(range(10**12, 10**12 + 10**6)).__next__
        many = MessageIndex(root / "many", 7, entries_max, Disk(), clock)
        for topic, raw, offset, store_ms in given_records:
            single.put(topic, keys_of(raw), offset, store_ms)
        cut = len(given_records) // 2
        many.put_many(given_records[:cut])
        many.put_many(given_records[: cut + 1])  # again: existing entries are not written twice
        many.put_many(given_records[cut:])
        assert [p.name for p in single.paths] == [p.name for p in many.paths]
        single.close()
        many.close()
        for one in (root / "single").glob("*"):
            assert one.read_bytes() == (root / "many" / one.name).read_bytes()

    check()


def set_way(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Let the index be written by pure Python, by the compiled code, or by that code interpreted."""
    module = None if way == "pure" else hot_module("index_entries", way)
    if way == "interpreted":
        put_entries = module.put_entries
        module.put_entries = lambda mapping, *more: put_entries(memoryview(mapping), *more)
    for user in (index_file, message_index):
        monkeypatch.setattr(user, "COMPILED", module)


@pytest.mark.spec("IX-02", "IX-03")
@pytest.mark.parametrize("way", ["pure", "compiled", "interpreted"])
@pytest.mark.parametrize("ip", [IPV4, IPV6])
def test_client_keys_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ip: str, way: str) -> None:
    set_way(monkeypatch, way)
    made = MessageIndex(tmp_path, 7, 100, Disk(), lambda: 10**12)
    keys = [f"{ip}{n * 1999:08X}{n:04X}" for n in range(50)]
    made.put_many([("T", f"A\x01b\x02UNIQ_KEY\x01{key}".encode(), 100 * n, 10**12) for n, key in enumerate(keys)])
    assert [made.query("T", key, 9, 0, 1 << 60) for key in keys] == [[100 * n] for n in range(50)]
    made.close()


@pytest.mark.spec("IX-03")
@pytest.mark.parametrize("way", ["compiled", "interpreted"])
def test_hashes_of_keys_equal_javas(way: str) -> None:
    """Each word under 64, the last of repeated properties, Integer.MIN_VALUE as 0; other than ASCII is left to the caller."""
    add_hashes = hot_module("index_entries", way).add_hashes
    prefix = topic_hash("T")

    @given(st.lists(st.text(st.characters(max_codepoint=0x7E, min_codepoint=0x21), min_size=1), max_size=70))
    def check(words: list[str]) -> None:
        items: list[tuple[int, int, int]] = [(1, 2, 3)]
        raw = f"KEYS\x01old\x02UNIQ_KEY\x01u{len(words)}\x02KEYS\x01{' '.join(words)}\x02".encode()
        assert add_hashes(items, prefix, raw, 77, 88, 64)
        assert items == [(1, 2, 3), *((key_hash(prefix, key), 77, 88) for key in keys_of(raw, 64))]

    check()
    items: list[tuple[int, int, int]] = []
    assert not add_hashes(items, prefix, "UNIQ_KEY\x01u\x02KEYS\x01a ü".encode(), 1, 2, 64)
    assert items == [], "the caller adds them all"
    lowest = (0x80000000 - ord("a")) * pow(31, -1, 1 << 32) & 0xFFFFFFFF
    assert add_hashes(items, lowest, b"UNIQ_KEY\x01a", 1, 2, 64) and items == [(0, 1, 2)]


bodies_of_batch = st.lists(
    st.tuples(st.binary(max_size=300), st.sampled_from([b"", b"TAGS\x01a\x02", b"UNIQ_KEY\x01u1"]), st.integers(-9, 9)),
    min_size=1, max_size=12,
)  # fmt: skip


class BatchAndSingles:
    """A store that gets batches, and one that gets their messages one by one."""

    def __init__(self, root: Path, **more: Any) -> None:
        self.root = root
        self.batches, self.singles = (opened(root / name, commit_log_file_bytes=1 << 18, **more) for name in "bs")
        self.seen: dict[MessageStore, list[tuple[object, ...]]] = {self.batches: [], self.singles: []}
        for store, seen in self.seen.items():
            store.on_append = lambda topic, queue_id, offset, units, seen=seen: seen.extend(
                (topic, queue_id, number, unit) for number, unit in enumerate(units, offset)
            )

    def put(self, common: Message, entries: list[Entry]) -> list[PutResult]:
        """The results of both."""
        result = self.batches.put_batch(common, entries)
        singles = [
            self.singles.put(replace(common, body=body, properties_raw=raw, flag=flag)) for body, raw, flag in entries
        ]
        offsets = tuple(single.physical_offset for single in singles)
        assert result == replace(
            singles[0], physical_offsets=offsets, size=sum(single.size for single in singles), end_offset=singles[-1].end_offset
        )  # fmt: skip
        return [result, singles[-1]]

    async def stop(self) -> None:
        """Stop both, whose files are equal then."""
        for store in self.seen:
            await store.stop()
        assert self.seen[self.batches] == self.seen[self.singles]
        for name in ("commitlog", "consumequeue", "index"):
            files = [
                {
                    path.relative_to(root / name): path.read_bytes()
                    for path in (root / name).rglob("*")
                    if path.is_file()
                }
                for root in (self.root / "b", self.root / "s")
            ]
            assert files[0] == files[1]


@pytest.mark.spec("ST-15", "ST-16", "BAT-04", "BAT-05", "CQ-02")
@settings(max_examples=60, deadline=None)
@given(st.lists(bodies_of_batch, min_size=1, max_size=6), st.booleans())
def test_batch_writes_same_bytes_as_single_messages(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Entry]], six: bool
) -> None:
    stores = BatchAndSingles(tmp_path_factory.mktemp("batch"))
    common = Message("T", b"", b"", 1, 0, 0, 77, Host("::1" if six else "1.2.3.4", 5), LOOPBACK, 3)
    for entries in batches:
        stores.put(common, entries)
        for store in stores.seen:
            assert store.dispatched == store.log.end
    asyncio.run(stores.stop())


@pytest.mark.spec("ST-16", "DUR-03", "MF-02")
@pytest.mark.parametrize(
    "mode",
    [
        {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
        {"transient_pool_enable": True, "flush_disk_type": FlushDiskType.ASYNC_FLUSH},
        {"queue_extension_enable": True},
    ],
    ids=["sync", "pool", "extension"],
)
async def test_batch_equals_single_messages_whatever_confirms_it(tmp_path: Path, mode: dict[str, Any]) -> None:
    stores = BatchAndSingles(tmp_path, **mode)
    entries: list[Entry] = [(b"body %d" % n, b"TAGS\x01t%d\x02KEYS\x01k%d" % (n % 3, n), n) for n in range(9)]
    for number in range(4):
        common = Message("T", b"", b"", number % 2, 0, 0, 77, LOOPBACK, LOOPBACK)
        results = stores.put(common, entries[number:])
        assert (common.queue_offset, common.physical_offset) == (results[0].queue_offset, results[0].physical_offset)
        for store, result in zip(stores.seen, results, strict=True):
            hidden = not (store.confirms_at_once and not store.log.pooled)
            assert store.has_unconfirmed == hidden == (store.dispatched < result.end_offset)
    for store in stores.seen:
        await store.write_all()
        assert store.dispatched == store.log.end and not store.has_unconfirmed
        assert [store.max_offset("T", queue_id) for queue_id in (0, 1)] == [16, 14]
    await stores.stop()


@pytest.mark.spec("ST-03", "ST-05", "ST-06", "BAT-04")
def test_batch_rejects_invalid_entries(tmp_path: Path) -> None:
    store = opened(tmp_path, message_bytes_max=3000)
    common = Message("T", b"", b"", 0, 0, 0, 0, LOOPBACK, LOOPBACK)
    for entries, words in (
        ([(b"x" * 3001, b"", 0)], "body of 3001 bytes"),
        ([(b"", b"k" * 32768, 0)], "properties of 32768 bytes"),
        ([(b"", b"k\0", 0)], "zero byte"),
        ([(b"x" * 2900, b"", 0)] * 3, "exceeds a commit log file"),
        ([], "empty"),
    ):
        result = store.put_batch(common, entries)
        assert (
            result.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED) and words in result.reason
        )
    assert store.put_batch(replace(common, sys_flag=4), [(b"", b"", 0)]).status is PutStatus.MESSAGE_ILLEGAL
    assert store.max_offset("T", 0) == 0
    asyncio.run(store.stop())
    assert store.put_batch(common, [(b"", b"", 0)]).status is PutStatus.SERVICE_NOT_AVAILABLE


@pytest.mark.spec("IX-09", "DUR-13", "RC-02")
def test_failed_index_writes_wait_and_are_not_checkpointed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, commit_log_file_bytes=1 << 20)
    full, real = [True], MessageIndex.put_many

    def put_many(self: MessageIndex, records: Any) -> None:
        if full[0]:
            raise StoreError("no space")
        real(self, records)

    monkeypatch.setattr(MessageIndex, "put_many", put_many)
    last = None
    for n in range(index_queue.WAITING_MAX):
        last = store.put(Message("T", b"", b"UNIQ_KEY\x01k%d" % n, 0, store_host=LOOPBACK, born_host=LOOPBACK))
    assert last is not None and last.status is PutStatus.PUT_OK and not store.writable
    assert "index cannot grow" in store.put(Message("T", b"")).reason
    asyncio.run(store.write_all())
    assert store.checkpoint.note is not None and store.checkpoint.note.indexed == 0
    full[0] = False
    assert store.put_in_index()
    store.refusal = ""
    found = [store.query("T", f"k{n}", 9, 0, 1 << 60).records for n in (0, 99, index_queue.WAITING_MAX - 1)]
    assert [len(records) for records in found] == [1, 1, 1]
    asyncio.run(store.stop())
    assert not store.settings.abort_path.exists()
