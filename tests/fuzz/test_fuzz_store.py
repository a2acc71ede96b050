"""Fuzz tests of the store's files.

Invariant: whatever bytes are changed, the store either opens, serves every acknowledged message or reports its loss with an
offset, and serves nothing else; or it fails with a StoreError that names the file.

Runs over small real stores: cleanly stopped and killed, with and without the checkpoint's note, SaturnMQ's own and those of
Apache RocketMQ. More examples: `pytest tests/fuzz/test_fuzz_store.py --hypothesis-profile=deep --timeout=0` (see conftest.py).

Requirements: FUZ-07, DUR-09, DUR-10.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recorded import VECTORS
from saturnmq.protocol.errors import CorruptRecord, StoreError
from saturnmq.protocol.json_dialect import loads
from saturnmq.protocol.message import Host, Message, decode_record, decode_records
from saturnmq.store import GetStatus, MessageStore, PutStatus, StoreProfile, StoreSettings
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.state_file import StateFile
from saturnmq.store.tools import repair
from saturnmq.store.tools.verify import verify

LOG_BYTES = 2048
QUEUE_BYTES = 200
SECONDS_MAX = 20
EXAMPLES = settings().max_examples * 2 // 5  # share of the profile's examples for each of the eight cases
HOST = Host("127.0.0.1", 10911)
NOTE_AT = 24


class QuickDisk(Disk):
    """A disk without syncs: no test here simulates power loss, so they would only cost time."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass

    def write_file(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)


@dataclass(frozen=True)
class Sent:
    """An acknowledged message."""

    topic: str
    queue: int
    queue_offset: int
    physical: int
    size: int
    body_at: int
    body: bytes
    key: str

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.queue, self.queue_offset


@dataclass(repr=False)
class Base:
    """The files of a store, and the acknowledged messages. noted: the checkpoint has SaturnMQ's note."""

    files: dict[str, bytes]
    sent: list[Sent]
    settings: dict[str, Any]
    clean: bool
    noted: bool
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.end = max(one.physical + one.size for one in self.sent)

    def write(self, folder: Path, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def store(self, folder: Path, harmed: set[str]) -> MessageStore:
        """The store on a folder. If its start does not read all of the log, it checks the CRC at every read."""
        foreign = not self.noted or {name.split(".")[0] for name in harmed} >= {"checkpoint", "queues"}
        settings = StoreSettings(store_path_root_dir=str(folder), check_crc_on_read=foreign, **self.settings)
        return MessageStore(settings, disk=QuickDisk())


def contents(folder: Path) -> dict[str, bytes]:
    names = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "reserve")
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def message(number: int) -> Message:
    topic = ("orders", "bills", "%RETRY%g")[number % 3]
    body = b"%05d" % number * (1 + number * 7 % 23)
    raw = b"KEYS\x01all k%d\x02TAGS\x01t%d\x02UNIQ_KEY\x01u%05d" % (number, number % 2, number)
    return Message(topic, body, raw, number % 2, born_host=HOST, store_host=HOST, born_timestamp_ms=1_700_000_000_000)


def own(folder: Path, *, clean: bool, noted: bool) -> Base:
    """A SaturnMQ store of 60 messages in about 6 files; queues and index of the first half are durable."""
    sizes = {
        "profile": StoreProfile.SMALL,
        "commit_log_file_bytes": LOG_BYTES,
        "consume_queue_file_bytes": QUEUE_BYTES,
        "index_slots_max": 16,
        "index_entries_max": 60,
    }
    ms = iter(range(1_700_000_000_000, 1_800_000_000_000, 250))
    store = MessageStore(
        StoreSettings(store_path_root_dir=str(folder), **sizes), disk=QuickDisk(), clock_ms=lambda: next(ms)
    )
    store.open()
    sent = []
    for number in range(60):
        one = message(number)
        result = store.put(one)
        assert result.status is PutStatus.PUT_OK
        sent.append(sent_record(one))
        if number == 30:
            asyncio.run(store.write_all())
    if clean:
        asyncio.run(store.stop())
    else:
        store.close_files()
    if not noted:
        path = folder / "checkpoint"
        path.write_bytes(path.read_bytes()[:NOTE_AT].ljust(4096, b"\0"))
        for name in ("queues.json", "queues.json.bak"):
            (folder / name).unlink(missing_ok=True)
    return Base(contents(folder), sent, sizes, clean, noted)


def sent_record(one: Message) -> Sent:
    tail = 1 + len(one.topic.encode()) + 2 + len(one.properties_raw)
    return Sent(
        one.topic,
        one.queue_id,
        one.queue_offset,
        one.physical_offset,
        one.store_bytes,
        one.store_bytes - tail - len(one.body),
        bytes(one.body),
        one.properties.get("UNIQ_KEY", ""),
    )


def original(source: Path, folder: Path, log_bytes: int, *, clean: bool) -> Base:
    """A store of Apache RocketMQ 4.9.7, its files padded to their original length."""
    for path in source.rglob("*"):
        if path.is_file() and path.suffix != ".jsonl" and "config" not in path.parts:
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            if path.name.isdigit() and len(path.name) == 20 and "consumequeue_ext" not in path.parts:
                os.truncate(target, 4000 if "consumequeue" in path.parts else log_bytes)
    files = contents(folder)
    sent = []
    for name in sorted(files):
        at = 0
        while name.startswith("commitlog/") and files[name][at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
            record = decode_record(files[name], at, check_crc=True)
            at += record.store_bytes
            if record.sys_flag & 12 not in (4, 12):
                sent.append(sent_record(record))
    sizes = {
        "commit_log_file_bytes": log_bytes,
        "consume_queue_file_bytes": 4000,
        "index_slots_max": 100,
        "index_entries_max": 400,
        "profile": StoreProfile.SMALL,
    }
    return Base(files, sent, sizes, clean, noted=False)


OWN = ["clean", "clean without note", "killed", "killed without note"]
ORIGINALS = {"broker": 262_144, "broker-killed": 262_144, "broker-rollover-ext": 16_384}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Base]:
    found = {}
    for name in OWN:
        folder = tmp_path_factory.mktemp("base")
        found[name] = own(folder, clean="clean" in name, noted="without" not in name)
    for name, log_bytes in ORIGINALS.items():
        folder = tmp_path_factory.mktemp("base")
        found[name] = original(VECTORS / "store" / name, folder, log_bytes, clean=name != "broker-killed")
    return found


@dataclass(frozen=True)
class Harm:
    """One change of one file. at, to: positions, reduced modulo the file's length; near: modulo its used part instead."""

    kind: str
    file: int
    near: bool
    at: int
    to: int
    size: int
    value: int

    def apply(self, files: dict[str, bytes]) -> str:
        """Change files in place; returns the name of the changed file."""
        name = sorted(files)[self.file % len(files)]
        data = bytearray(files[name])
        length = len(data)
        used = len(bytes(data).rstrip(b"\0")) if self.near else length
        at = self.at % (used + 1)
        end = min(at + self.size, length)
        if self.kind == "flip" and at < length:
            data[at] ^= 1 << self.value % 8
        elif self.kind == "set":
            data[at:end] = bytes([self.value]) * (end - at)
        elif self.kind == "zero":
            data[at:end] = bytes(end - at)
        elif self.kind == "truncate":
            del data[at:]
        elif self.kind == "cut":
            del data[at:end]
        elif self.kind == "insert":
            data[at:at] = bytes((self.value + n * 37) % 256 for n in range(self.size))
        elif self.kind == "double":
            data[at:at] = data[at:end]
        elif self.kind == "copy":
            to = self.to % (used + 1)
            piece = data[at : min(end, length - max(to - at, 0))]
            data[to : to + len(piece)] = piece
            del data[length:]
        elif self.kind == "zero rest":
            data[at:] = bytes(length - at)
        elif self.kind == "remove":
            del files[name]
            return name
        files[name] = bytes(data)
        return name


KINDS = ["flip", "set", "zero", "truncate", "cut", "insert", "double", "copy", "zero rest", "remove"]
harms = st.builds(
    Harm,
    kind=st.sampled_from(KINDS),
    file=st.integers(0, 10_000),
    near=st.booleans(),
    at=st.one_of(st.integers(0, 128), st.integers(0, 1 << 19)),
    to=st.integers(0, 1 << 19),
    size=st.one_of(st.integers(1, 64), st.integers(1, 5000)),
    value=st.integers(0, 255),
)


class LogLines(logging.Handler):
    """Collects the store's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> LogLines:
        logging.getLogger("saturnmq.store").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("saturnmq.store").removeHandler(self)


def blurred(base: Base, files: dict[str, bytes]) -> set[int]:
    """Physical offsets of records with changed bytes that no checksum covers: everything except the body.

    The format cannot reveal what these fields were before; the body must still be unchanged.
    """
    log_bytes = base.settings["commit_log_file_bytes"]
    found = set()
    for one in base.sent:
        name, at = f"commitlog/{one.physical // log_bytes * log_bytes:020d}", one.physical % log_bytes
        before, after = base.files[name], files.get(name, b"")
        body, end = at + one.body_at, at + one.body_at + len(one.body)
        if (before[at:body], before[end : at + one.size]) != (after[at:body], after[end : at + one.size]):
            found.add(one.physical)
    return found


def read_all(store: MessageStore) -> Iterator[tuple[tuple[str, int, int], Message | None]]:
    """Every position of every queue with its message; None where the read reports damage."""
    for topic, queue in store.topic_queues():
        offset, end = store.min_offset(topic, queue), store.max_offset(topic, queue)
        while offset < end:
            try:
                result = store.get(topic, queue, offset, 32)
            except CorruptRecord as error:
                assert f"offset {offset}" in str(error)
                yield (topic, queue, offset), None
                offset += 1
                continue
            assert result.status is GetStatus.FOUND, (topic, queue, offset, result.status)
            for one in decode_records(b"".join(result.buffers)):
                yield (topic, queue, offset), one
                offset += 1
            assert offset == result.next_offset


def check(base: Base, store: MessageStore, logged: LogLines, files: dict[str, bytes], harmed: set[str]) -> None:
    """Check that an open store serves every acknowledged message except those that it reported as lost."""
    cuts = [int(found) for line in logged.lines for found in re.findall(r"log end recovered offset=(\d+)", line)]
    end = store.max_physical_offset
    touched = blurred(base, files)
    by_physical = {one.physical: one for one in base.sent}
    served: dict[tuple[str, int, int], Message | None] = {}
    for place, one in read_all(store):
        assert place not in served
        served[place] = one
        if one is None:
            continue
        assert one.physical_offset in by_physical, f"invented: {place}"
        sent = by_physical[one.physical_offset]
        assert bytes(one.body) == sent.body, f"altered: {place}"
        assert sent.place == place or sent.physical in touched, f"{sent.place} is served as {place}"
    for sent in base.sent:
        if sent.physical >= end:
            assert end in cuts, (
                f"lost in silence: {sent.place} at {sent.physical}, the log ends at {end}: {logged.lines}"
            )
        elif sent.physical not in touched and sent.place not in served:
            assert is_reported(sent, logged), f"lost: {sent.place} at {sent.physical}: {logged.lines}"
    if base.noted and base.clean and "checkpoint" not in harmed:
        assert end >= base.end, "what was on disk was cut off"
    check_keys(base, store, logged, harmed, touched, end)


def is_reported(sent: Sent, logged: LogLines) -> bool:
    """Whether the store reported, with an offset, that it does not serve a message before the log's end."""
    for line in logged.lines:
        absent = re.match(r"topic without consume queues topic='(.*)' records=\d+ offset=(\d+)", line)
        if absent and absent[1] == sent.topic and int(absent[2]) <= sent.physical:
            return True
        restart = re.match(r"queue restarted after topic deletion topic=(.*) queue=(\d+) offset=(\d+)", line)
        if restart and (restart[1], int(restart[2])) == (sent.topic, sent.queue) and sent.physical < int(restart[3]):
            return True
        if f"damaged record not served offset={sent.physical};" in line:
            return True
        unread = re.match(r"store written by another broker, log not checked before offset=(\d+);", line)
        if unread and sent.physical < int(unread[1]):
            return True
    return False


def check_keys(
    base: Base, store: MessageStore, logged: LogLines, harmed: set[str], touched: set[int], end: int
) -> None:
    whole = not any(name.startswith(("index/", "checkpoint")) for name in harmed)
    for sent in base.sent[::7]:
        if not sent.key:
            continue
        found = [decode_record(raw) for raw in store.query(sent.topic, sent.key, 10, 0, 1 << 60).records]
        hits = [one for one in found if one.physical_offset == sent.physical]
        assert all(bytes(one.body) == sent.body for one in hits)
        lost = sent.physical in touched or sent.physical >= end or is_reported(sent, logged)
        assert hits or not whole or lost, f"not found by key: {sent}"


def opened(base: Base, folder: Path, files: dict[str, bytes], harmed: set[str]) -> bool:
    """Open, read, write, close and open again. False if the store was rejected with an error that names its folder."""
    store = base.store(folder, harmed)
    with LogLines() as logged:
        try:
            store.open()
        except StoreError as error:
            assert str(folder) in str(error), f"names no file: {error}"
            return False
        try:
            check(base, store, logged, files, harmed)
            new = store.put(message(1000))
            assert new.status is PutStatus.PUT_OK
            asyncio.run(store.stop())
        finally:
            store.close_files()
        store = base.store(folder, harmed)
        store.open()
        try:
            place = ("bills", 0, new.queue_offset)
            served = dict(read_all(store))
            assert served[place] is not None and served[place].physical_offset == new.physical_offset
        finally:
            store.close_files()
    return True


def check_start(base: Base, changes: list[Harm], folder: Path) -> bool:
    files = dict(base.files)
    harmed = {change.apply(files) for change in changes}
    base.write(folder, files)
    before = time.monotonic()
    try:
        return opened(base, folder, files, harmed)
    finally:
        shutil.rmtree(folder)
        assert time.monotonic() - before < SECONDS_MAX


@pytest.mark.spec("FUZ-07", "DUR-09", "DUR-10")
@pytest.mark.parametrize("name", OWN)
def test_undamaged_store_opens_with_all_messages(name: str, bases: dict[str, Base], tmp_path: Path) -> None:
    assert check_start(bases[name], [], tmp_path / "store")


def test_queue_with_damaged_first_units_is_rebuilt(bases: dict[str, Base], tmp_path: Path) -> None:
    """Units that point beyond the log end the queue at 0: its next record must not start it again at a later offset."""
    base = bases["killed"]
    names = sorted(base.files)
    queues = [name for name in names if re.match(r"consumequeue/.*/0{20}$", name)]
    for queue, size in itertools.product(queues, (20, 60, 64, 70, 100)):
        harm = Harm("set", names.index(queue), False, 0, 0, size, 1)
        assert check_start(base, [harm], tmp_path / "store"), (queue, size)


@pytest.mark.spec("FUZ-07", "DUR-09", "DUR-10")
@pytest.mark.parametrize("name", OWN)
@given(changes=st.lists(harms, min_size=1, max_size=2))
@settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_saturnmq_store_is_repaired_or_rejected(
    name: str, bases: dict[str, Base], tmp_path_factory: pytest.TempPathFactory, changes: list[Harm]
) -> None:
    check_start(bases[name], changes, tmp_path_factory.mktemp("fuzz") / "store")


@pytest.mark.spec("FUZ-07", "DUR-09", "DUR-10")
@pytest.mark.parametrize("name", ORIGINALS)
@given(changes=st.lists(harms, min_size=1, max_size=2))
@settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_rocketmq_store_is_repaired_or_rejected(
    name: str, bases: dict[str, Base], tmp_path_factory: pytest.TempPathFactory, changes: list[Harm]
) -> None:
    check_start(bases[name], changes, tmp_path_factory.mktemp("fuzz") / "store")


def check_tools(base: Base, changes: list[Harm], folder: Path) -> bool:
    """Run the tools on a changed store: verify must agree with the start, repair must make it openable.

    Returns whether a repair was needed.
    """
    files = dict(base.files)
    for change in changes:
        change.apply(files)
    base.write(folder, files)
    given = frozenset({"mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"})
    sizes = StoreSettings(store_path_root_dir=str(folder), **base.settings)
    try:
        before = contents(folder)
        report = verify(sizes, given)
        loss = repair.find_loss(sizes)
        assert contents(folder) == before, "reading changed something"
        store = base.store(folder.parent / "copy", set())
        shutil.copytree(folder, folder.parent / "copy")
        try:
            store.open()
        except StoreError as error:
            assert not report.sound, f"sound, but refused: {error}"
        finally:
            store.close_files()
            shutil.rmtree(folder.parent / "copy")
        end = 1 << 62
        try:
            if loss is not None:
                end = loss.offset
                repair.cut(sizes, loss, disk=QuickDisk())
            repair.rebuild(sizes, disk=QuickDisk())
        except CorruptRecord as error:
            at = re.search(r"repair --at (\d+)", str(error))
            assert at, f"no way out: {error}"
            end = int(at[1])
            repair.cut(sizes, repair.loss_at(sizes, end), disk=QuickDisk())
        after = verify(sizes, given)
        assert after.sound, after.problems
        touched = blurred(base, files)
        store = base.store(folder, set())
        store.open()
        try:
            served = {one.physical_offset: bytes(one.body) for _, one in read_all(store) if one is not None}
        finally:
            store.close_files()
        for sent in base.sent:
            if sent.physical < end and sent.physical not in touched:
                assert served.get(sent.physical) == sent.body, f"lost by repair: {sent.place} at {sent.physical}"
        return loss is not None
    finally:
        shutil.rmtree(folder)


@pytest.mark.spec("FUZ-07", "DUR-08", "DUR-09")
@pytest.mark.parametrize("name", OWN)
@given(changes=st.lists(harms, min_size=1, max_size=2))
@settings(deadline=None, max_examples=EXAMPLES // 2, suppress_health_check=[HealthCheck.too_slow])
def test_tools_find_and_repair_what_start_rejects(
    name: str, bases: dict[str, Base], tmp_path_factory: pytest.TempPathFactory, changes: list[Harm]
) -> None:
    check_tools(bases[name], changes, tmp_path_factory.mktemp("fuzz") / "store")


def test_repair_names_an_earlier_damage_that_only_a_rebuild_finds(bases: dict[str, Base], tmp_path: Path) -> None:
    """The cut at the first bad record leaves one before it whose queue id was changed: two repairs, the second one by name."""
    base = bases["killed without note"]
    logs = [number for number, name in enumerate(sorted(base.files)) if name.startswith("commitlog/")]
    changes = [Harm("flip", logs[0], False, 12, 0, 1, 0), Harm("flip", logs[1], False, 0, 0, 1, 0)]
    assert check_tools(base, changes, tmp_path / "store")


@pytest.mark.spec("FUZ-07", "DUR-14")
@given(changes=st.lists(harms, min_size=1, max_size=2))
@settings(deadline=None, max_examples=EXAMPLES)
def test_damaged_state_file_falls_back_to_backup_or_is_rejected(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Harm]
) -> None:
    folder = tmp_path_factory.mktemp("state")
    tables = [{"offsetTable": {"t@g": {"0": number}}} for number in (1, 2)]
    files = {"offsets.json": json.dumps(tables[1]).encode(), "offsets.json.bak": json.dumps(tables[0]).encode()}
    harmed = {change.apply(files) for change in changes}
    for name, data in files.items():
        (folder / name).write_bytes(data)

    def parse(data: bytes) -> object:
        value = loads(data)
        if not isinstance(value, dict):
            raise ValueError("not an object")
        return value

    try:
        found = StateFile(folder / "offsets.json", QuickDisk()).read(parse)
    except CorruptRecord as error:
        assert "offsets.json" in str(error)
        return
    finally:
        shutil.rmtree(folder)
    if found is None:
        assert not files
    elif "offsets.json" not in harmed:
        assert found == tables[1]
