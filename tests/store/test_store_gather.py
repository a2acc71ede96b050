"""Reads of a queue by compiled code equal those of the reference implementation, whatever units and records hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotways import hot_module
from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.message import Host, Message, java_hash
from saturnmq.store import MessageStore, StoreProfile, StoreSettings, cold, reading
from saturnmq.store.log.commit_log import CommitLog
from saturnmq.store.queue.consume_queue import FILLER_SIZE, UNIT, UNIT_BYTES

HOST = Host("127.0.0.1", 10911)
COUNT = 60
TAGS = ("a", "a", "b", "")
HEAD_BYTES = 40  # of a record, all that a read compares, and some more
FLIPS = (1, 0x80, 0xFF)


class Ways:
    """A store that is read by compiled code, or that code interpreted, and by the reference implementation."""

    def __init__(self, root: Path, module: ModuleType, patch: pytest.MonkeyPatch) -> None:
        self.module, self._patch = module, patch
        self.taken = 0
        self.store = MessageStore(
            StoreSettings(str(root), commit_log_file_bytes=8192, profile=StoreProfile.SMALL), clock_ms=lambda: 1
        )
        self.store.open()
        for number in range(COUNT):
            tag = TAGS[number % len(TAGS)]
            properties = f"TAGS\x01{tag}".encode() if tag else b""
            self.store.put(
                Message("T", b"x" * (number * 37 % 400), properties, number % 3 == 2, born_host=HOST, store_host=HOST)
            )
        self.queue = self.store.queues.by_key["T", 0]
        self.default = self.store.settings, self.store.memory_bytes

    def check_equal(self, *arguments: Any, **more: Any) -> Any:
        """The result of a read, or its error, which both ways give alike."""
        results = []
        for module in (self.module, None):
            self._patch.setattr(reading, "COMPILED", module)
            try:
                result = self.store.get("T", 0, *arguments, **more)
                results.append(replace(result, buffers=[bytes(view) for view in result.buffers]))  # type: ignore[misc]
            except CorruptRecord as error:
                results.append(error.message)  # type: ignore[arg-type]
        assert results[0] == results[1]
        return results[0]

    def takes(self, offset: int, max_count: int) -> bool:
        """Whether compiled code does a read alone."""
        units = self.queue.read(offset, max_count)
        gathering = self.module.Gathering(units, 0, offset)
        return bool(gathering.gather(self.store.log, None, max_count, 0, (1 << 20, 99), (1 << 20, 99)))


@pytest.fixture(scope="module", params=["compiled", "interpreted"])
def ways(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    with pytest.MonkeyPatch.context() as patch:
        ways = Ways(tmp_path_factory.mktemp("gather"), hot_module("gather", request.param), patch)
        yield ways
        ways.store.close_files()


limits = st.sampled_from([0, 1, 100, 1000, 5000, 1 << 20])
counts = st.sampled_from([1, 2, 3, 5, 32, 100])


@pytest.mark.spec("BP-03", "BP-04")
def test_compiled_read_equals_reference_with_any_limits_and_filter(ways: Ways) -> None:
    most = ways.queue.max_offset
    codes = st.none() | st.frozensets(st.sampled_from([java_hash("a"), java_hash("b"), 0, 5, -(2**40)]))

    @settings(max_examples=400, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        store = ways.store
        offset = data.draw(st.integers(0, most + 1))
        sizes = [UNIT.unpack(ways.queue.read(at, 1))[1] for at in range(offset, min(most, offset + 6))]
        bytes_max = limits | st.sampled_from([sum(sizes[:number]) for number in range(len(sizes) + 1)])
        store.settings = replace(
            ways.default[0],
            transfer_bytes_in_memory=data.draw(bytes_max),
            transfer_count_in_memory=data.draw(counts),
            transfer_bytes_in_disk=data.draw(bytes_max),
            transfer_count_in_disk=data.draw(counts),
        )
        store.memory_bytes = data.draw(st.sampled_from([0, 1000, 5000, 9000, 1 << 30]))
        ways.check_equal(
            offset,
            data.draw(counts),
            codes=data.draw(codes),
            max_bytes=data.draw(st.none() | limits),
            bulk_bytes=data.draw(st.just(0) | limits),
        )

    try:
        check()
    finally:
        ways.store.settings, ways.store.memory_bytes = ways.default
    assert all(ways.takes(offset, 32) for offset in range(most)), "all of it is plain"
    assert len({ways.store.physical_offset("T", 0, offset) // 8192 for offset in range(most)}) > 1, "in several files"


@pytest.mark.spec("DUR-10", "BP-03")
@pytest.mark.parametrize("flip", FLIPS)
def test_compiled_read_equals_reference_with_damage_at_every_byte(ways: Ways, flip: int) -> None:
    store = ways.store
    taken = 0
    for offset in (0, 5, ways.queue.max_offset - 1):
        position = store.physical_offset("T", 0, offset)
        file = store.log.file_at(position)
        assert file is not None
        targets: list[tuple[Any, int, int]] = [
            (ways.queue._tail, offset * UNIT_BYTES, UNIT_BYTES),
            (file.map, position - file.start, HEAD_BYTES),
        ]
        for target, start, size in targets:
            for at in range(start, start + size):
                before = target[at]
                target[at] = before ^ flip
                for first in range(max(offset - 2, 0), offset + 1):
                    ways.check_equal(first, 32)
                    ways.check_equal(first, 32, codes=frozenset((java_hash("b"), 0)))
                taken += ways.takes(offset, 1)
                target[at] = before
    assert 0 < taken < len(FLIPS) * 30, "it takes a record with other hosts or tags, and no other damaged one"


@pytest.mark.spec("BP-03", "DUR-10")
def test_units_that_point_anywhere_are_read_alike(ways: Ways) -> None:
    store, queue = ways.store, ways.queue
    end = store.log.end
    positions = [store.physical_offset("T", 0, offset) for offset in range(queue.max_offset)]
    numbers = st.sampled_from(
        [*positions, 0, -1, end, end - 1, end - 30, 8191, 8192, 1 << 40, -(1 << 63), (1 << 63) - 1]
    )
    sizes = st.sampled_from([0, 1, 90, 91, 100, -1, FILLER_SIZE, FILLER_SIZE - 1, -(1 << 31)]) | st.integers(91, 600)
    kept = bytes(queue._tail)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, queue.max_offset - 1), numbers, sizes), max_size=4), st.integers(0, 12))
    def check(changes: list[tuple[int, int, int]], first: int) -> None:
        for offset, physical, size in changes:
            UNIT.pack_into(queue._tail, offset * UNIT_BYTES, physical, size, 0)
        try:
            ways.check_equal(first, 32)
            ways.check_equal(first, 32, codes=frozenset((0,)))
        finally:
            queue._tail[:] = kept

    check()


@pytest.mark.spec("BP-03")
def test_deleted_records_are_skipped_alike(ways: Ways) -> None:
    positions = [ways.store.physical_offset("T", 0, offset) for offset in range(10)]
    for first in (0, 1, positions[3], positions[3] + 1, positions[9], ways.store.log.end, -1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CommitLog, "first_position", property(lambda log, first=first: first))
            for offset in range(5):
                ways.check_equal(offset, 4)
                ways.check_equal(offset, 4, codes=frozenset((java_hash("b"),)))


@pytest.mark.spec("BP-04")
@pytest.mark.parametrize("way", ["compiled", "interpreted"])
def test_extents_of_units_equal_reference(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    module = hot_module("gather", way)
    numbers = st.integers(0, 200_000) | st.sampled_from([-1, -(1 << 63), (1 << 63) - 1])
    sizes = st.integers(0, 40_000) | st.sampled_from([-1, FILLER_SIZE, -(1 << 31)])

    @settings(max_examples=400, deadline=None)
    @given(
        st.lists(st.tuples(numbers, sizes), max_size=12),
        st.integers(0, 1 << 62),
        st.integers(0, 100_000),
        st.binary(max_size=19),
    )
    def check(units: list[tuple[int, int]], recent: int, bytes_max: int, rest: bytes) -> None:
        raw = b"".join(UNIT.pack(physical, size, 0) for physical, size in units)
        monkeypatch.setattr(cold, "COMPILED", None)
        assert module.extents(raw + rest, recent, bytes_max, 16_384) == cold._extents_of(raw, recent, bytes_max)

    check()
