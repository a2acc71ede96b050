"""The operator tools: verify, rebuild, dump, repair.

Requirements: DUR-08, DUR-09, DUR-13, FUZ-07, UX-09.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import struct
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from saturnmq.protocol.errors import CorruptRecord, StoreError, StoreLocked
from saturnmq.protocol.message import Host, Message, decode_records
from saturnmq.store import GetStatus, MessageStore, StoreProfile, StoreSettings
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.lock_file import LockFile
from saturnmq.store.recovery.checkpoint import Checkpoint
from saturnmq.store.tools import dump, repair
from saturnmq.store.tools.scan import index_shape, shaped
from saturnmq.store.tools.verify import VerifyReport, Weight, verify

LOG_BYTES = 4096
QUEUE_BYTES = 200
SIZES = {
    "commit_log_file_bytes": LOG_BYTES,
    "consume_queue_file_bytes": QUEUE_BYTES,
    "index_slots_max": 16,
    "index_entries_max": 50,
}
GIVEN = frozenset({"mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"})
HOST = Host("127.0.0.1", 10911)


def settings_of(path: Path, **more: Any) -> StoreSettings:
    return StoreSettings(store_path_root_dir=str(path), profile=StoreProfile.SMALL, **(SIZES | more))


def opened(path: Path) -> MessageStore:
    ms = iter(range(1_700_000_000_000, 1_800_000_000_000, 700))
    store = MessageStore(settings_of(path), clock_ms=lambda: next(ms))
    store.open()
    return store


def message(number: int) -> Message:
    raw = b"KEYS\x01k%d all\x02TAGS\x01t%d\x02UNIQ_KEY\x01u%d" % (number, number % 3, number)
    return Message("TU"[number % 2], b"%03d" % number * 40, raw, number % 3, born_host=HOST, store_host=HOST)


def filled(path: Path, count: int = 60, *, clean: bool = True) -> list[int]:
    """Fill a store, half of it covered by the note; returns physical offsets."""
    store = opened(path)
    offsets = []
    for number in range(count):
        offsets.append(store.put(message(number)).physical_offset)
        if number == count // 2:
            asyncio.run(store.write_all())
    if clean:
        asyncio.run(store.stop())
    else:
        store.close_files()
    return offsets


def changed(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def log_file(path: Path, offset: int) -> Path:
    return path / "commitlog" / f"{offset // LOG_BYTES * LOG_BYTES:020d}"


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def damage(report: VerifyReport) -> list[tuple[str, int, int]]:
    return [(p.path.name, p.at, p.offset) for p in report.problems if p.weight is Weight.DAMAGE]


def bodies(store: MessageStore) -> set[bytes]:
    found = set()
    for topic, queue in store.topic_queues():
        offset = store.min_offset(topic, queue)
        while (result := store.get(topic, queue, offset, 32)).status is GetStatus.FOUND:
            found |= {bytes(one.body) for one in decode_records(b"".join(result.buffers))}
            offset = result.next_offset
    return found


# ---- verify


@pytest.mark.spec("DUR-08", "DUR-13")
def test_verify_reads_everything_and_changes_nothing(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    before = snapshot(tmp_path)
    progress: list[tuple[int, int]] = []
    report = verify(settings_of(tmp_path), GIVEN, lambda done, total: progress.append((done, total)))
    assert snapshot(tmp_path) == before
    assert report.sound and report.problems == [] and report.clean_stop
    assert (report.records, report.queue_units, report.index_entries) == (60, 60, 180)
    last = dump.by_offset(settings_of(tmp_path), offsets[-1]).message
    assert (report.log_start, report.log_end) == (0, offsets[-1] + last.store_bytes)
    logs = [row for row in report.files if row.kind == "commit log"]
    assert [row.first for row in logs][1:] == [row.bytes * n for n, row in enumerate(logs)][1:]
    assert logs[-1].last == offsets[-1] and sum(row.count for row in logs) == 60
    queues = [row for row in report.files if row.kind == "consume queue"]
    assert sum(row.count for row in queues) == 60 and {row.bytes for row in queues} == {QUEUE_BYTES}
    assert progress[0][0] == 0 and progress[-1][0] == progress[-1][1] == LOG_BYTES * len(logs)


@pytest.mark.spec("DUR-13")
def test_verify_of_killed_store_reports_pending_recovery(tmp_path: Path) -> None:
    filled(tmp_path, clean=False)
    report = verify(settings_of(tmp_path), GIVEN)
    assert report.sound and not report.clean_stop
    assert {problem.weight for problem in report.problems} == {Weight.PENDING}
    assert all("next start" in problem.next for problem in report.problems)
    opened(tmp_path).close_files()


def _unit(field: str, value: int) -> Callable[[Path, list[int]], None]:
    def harm(path: Path, offsets: list[int]) -> None:
        at, layout = {"offset": (40, ">q"), "size": (48, ">i"), "code": (52, ">q")}[field]
        changed(path / "consumequeue" / "T" / "0" / f"{0:020d}", at, struct.pack(layout, value))

    return harm


def _record(at: int, data: bytes) -> Callable[[Path, list[int]], None]:
    def harm(path: Path, offsets: list[int]) -> None:
        changed(log_file(path, offsets[30]), offsets[30] % LOG_BYTES + at, data)

    return harm


def _index(at: int, data: bytes) -> Callable[[Path, list[int]], None]:
    def harm(path: Path, offsets: list[int]) -> None:
        changed(sorted((path / "index").iterdir())[1], at, data)

    return harm


HARMS: list[tuple[str, Callable[[Path, list[int]], None], str, str]] = [
    ("body", _record(100, b"?"), "log", "body CRC is"),
    ("magic", _record(5, b"?"), "log", "magic is 0x"),
    ("size", _record(0, b"\x7f"), "log", "record length is"),
    ("own offset", _record(34, b"?"), "log", "the record says it lies at offset"),
    ("zeros", _record(0, bytes(100)), "log", "are empty or unreadable, and records follow"),
    ("negative body", _record(84, b"\xff"), "log", "claims a body of"),
    ("unit offset", _unit("offset", 7), "queue", "points to offset 7, size"),
    ("unit behind the end", _unit("offset", 1 << 40), "queue", "where the log has ended"),
    ("unit size", _unit("size", 7), "queue", "another unit than that of 1 records"),
    ("unit code", _unit("code", 7), "queue", "has tags code 7, must be"),
    ("unit empty", _unit("offset", -1), "queue", "both must be positive"),
    ("index hash", _index(40 + 64 + 20 * 5, b"\0\0\0\1"), "index", "has hash 1, must be"),
    ("index offset", _index(40 + 64 + 20 * 5 + 4, b"\0\0\0\0\0\0\0\1"), "index", "points to offset 1, where no record"),
    ("index seconds", _index(40 + 64 + 20 * 5 + 12, b"\0\0\xff\0"), "index", "s after the file's begin, must be"),
    ("index link", _index(40 + 64 + 20 * 5 + 16, b"\0\0\0\x09"), "index", "leads on to entry 9, must be"),
    ("index slot", _index(40, b"\0\0\0\x01\0\0\0\x01"), "index", "names entry 1, must be"),
    ("index header", _index(36, b"\0\0\0\x0a"), "index", "are not in the index"),
    ("index impossible", _index(36, b"\x7f"), "index", "impossible header"),
]


@pytest.mark.spec("DUR-08", "DUR-13", "FUZ-07")
@pytest.mark.parametrize(("name", "harm", "kind", "what"), HARMS, ids=[row[0] for row in HARMS])
def test_verify_reports_file_byte_and_offset(
    tmp_path: Path, name: str, harm: Callable[[Path, list[int]], None], kind: str, what: str
) -> None:
    offsets = filled(tmp_path)
    harm(tmp_path, offsets)
    report = verify(settings_of(tmp_path), GIVEN)
    assert not report.sound
    hits = [problem for problem in report.problems if what in problem.description]
    assert hits, report.problems
    assert tmp_path in hits[0].path.parents and hits[0].next
    if kind == "log":
        at = offsets[30] % LOG_BYTES
        assert hits[0].path == log_file(tmp_path, offsets[30])
        assert hits[0].offset == offsets[30] and at <= hits[0].at < at + 60
        assert "store repair" in hits[0].next and len(damage(report)) == 1, "one damage, one problem"
        assert report.records == 59
    else:
        assert "store rebuild" in hits[0].next
        repair.rebuild(settings_of(tmp_path))
        assert verify(settings_of(tmp_path), GIVEN).problems == []


@pytest.mark.spec("DUR-08", "RC-04")
def test_verify_reports_wrong_lengths_and_gaps(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    os.truncate(log_file(tmp_path, offsets[-1]), LOG_BYTES - 10)
    log_file(tmp_path, LOG_BYTES).unlink()
    os.truncate(tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}", QUEUE_BYTES - 3)
    whats = " ".join(problem.description for problem in verify(settings_of(tmp_path), GIVEN).problems)
    assert f"is {LOG_BYTES - 10} bytes long, must be {LOG_BYTES}" in whats
    assert f"offsets {LOG_BYTES} to {2 * LOG_BYTES} are missing" in whats
    assert f"is {QUEUE_BYTES - 3} bytes long, must be {QUEUE_BYTES}" in whats


@pytest.mark.spec("DUR-08", "ST-10")
def test_verify_remarks_on_decreasing_store_time(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    changed(log_file(tmp_path, offsets[30]), offsets[30] % LOG_BYTES + 56, struct.pack(">q", 1_600_000_000_000))
    report = verify(settings_of(tmp_path), GIVEN)
    remarks = [problem for problem in report.problems if problem.weight is Weight.REMARK]
    assert [(r.path, r.offset, r.at) for r in remarks] == [
        (log_file(tmp_path, offsets[30]), offsets[30], offsets[30] % LOG_BYTES + 56)
    ]


@pytest.mark.spec("DUR-13", "DUR-14")
def test_verify_checks_state_files_and_checkpoint(tmp_path: Path) -> None:
    filled(tmp_path)
    config = tmp_path / "config"
    config.mkdir()
    (config / "topics.json").write_bytes(b"{")
    (config / "offsets.json").write_bytes(b"{")
    (config / "offsets.json.bak").write_bytes(b'{"offsetTable":{}}')
    (config / "delayOffset.json").write_bytes(b'{"offsetTable":{1:0,3:22}}')  # bare keys, as written by Apache RocketMQ
    (tmp_path / "checkpoint").write_bytes(b"\xff" * 100)
    report = verify(settings_of(tmp_path), GIVEN)
    found = {(problem.path.name, problem.weight) for problem in report.problems}
    assert ("topics.json", Weight.DAMAGE) in found and ("offsets.json", Weight.REMARK) in found
    assert ("checkpoint", Weight.PENDING) in found
    assert not any(name == "delayOffset.json" for name, _ in found)


@pytest.mark.spec("DUR-13")
def test_verify_reports_lost_queue_and_index(tmp_path: Path) -> None:
    filled(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "T" / "1")
    shutil.rmtree(tmp_path / "consumequeue" / "U")
    shutil.rmtree(tmp_path / "index")
    report = verify(settings_of(tmp_path), GIVEN)
    lost = {str(p.path.relative_to(tmp_path)) for p in report.problems if "is missing" in p.description}
    assert lost == {"consumequeue/T/1", "consumequeue/U/0", "consumequeue/U/1", "consumequeue/U/2"}
    assert any(
        "60 records with keys, the first at offset 0, are not in the index" in p.description for p in report.problems
    )


GOLDEN = [("broker", 262_144), ("broker-killed", 262_144), ("broker-rollover-ext", 16_384)]


def golden(vectors: Path, tmp_path: Path, name: str, log_bytes: int) -> Path:
    """A store of Apache RocketMQ, its files padded to their original length."""
    folder = tmp_path / name
    for path in (vectors / "store" / name).rglob("*"):
        target = folder / path.relative_to(vectors / "store" / name)
        if path.is_file() and path.suffix != ".jsonl":
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            if path.name.isdigit() and len(path.name) == 20 and "consumequeue_ext" not in path.parts:
                os.truncate(target, 4000 if "consumequeue" in path.parts else log_bytes)
    return folder


@pytest.mark.spec("DUR-08", "DUR-13")
@pytest.mark.parametrize(("name", "log_bytes"), GOLDEN)
def test_rocketmq_store_verifies_with_detected_sizes(vectors: Path, tmp_path: Path, name: str, log_bytes: int) -> None:
    folder = golden(vectors, tmp_path, name, log_bytes)
    given = frozenset({"maxHashSlotNum", "maxIndexNum"})
    own = StoreSettings(store_path_root_dir=str(folder), index_slots_max=100, index_entries_max=400)
    if name == "broker":  # the only file does not show whether it was cut
        with pytest.raises(StoreError, match="262144 bytes long"):
            shaped(own, given)
        given |= {"mappedFileSizeCommitLog"}
        own = dataclasses.replace(own, commit_log_file_bytes=log_bytes)
    settings = shaped(own, given)
    assert (settings.commit_log_bytes, settings.consume_queue_bytes) == (log_bytes, 4000)
    report = verify(settings, given)
    assert report.sound and report.problems == []
    assert report.records > 30 and report.index_entries > 60
    assert index_shape(dataclasses.replace(settings, index_slots_max=0, index_entries_max=0), frozenset()) is None


@pytest.mark.spec("DUR-13", "IX-04", "CQ-02")
@pytest.mark.parametrize(("name", "log_bytes"), GOLDEN[:2])
def test_rebuild_produces_rocketmq_bytes(vectors: Path, tmp_path: Path, name: str, log_bytes: int) -> None:
    folder = golden(vectors, tmp_path, name, log_bytes)
    before = snapshot(folder)
    more = {"commit_log_file_bytes": log_bytes, "consume_queue_file_bytes": 4000}
    repair.rebuild(settings_of(folder, **(more | {"index_slots_max": 100, "index_entries_max": 400})))
    after = snapshot(folder)
    queues = {name: data for name, data in before.items() if name.startswith("consumequeue/")}
    assert queues and {name: after[name] for name in queues} == queues
    assert [d for n, d in after.items() if n.startswith("index/")] == [
        d for n, d in before.items() if n.startswith("index/")
    ]


# ---- rebuild


@pytest.mark.spec("DUR-13")
@pytest.mark.parametrize("harm", ["nothing", "queues", "index", "units", "killed"])
def test_rebuild_produces_bytes_of_live_broker(tmp_path: Path, harm: str) -> None:
    filled(tmp_path / "store")
    expected = {n: d for n, d in snapshot(tmp_path / "store").items() if n.startswith(("consumequeue/", "index/"))}
    shutil.rmtree(tmp_path / "store")
    filled(tmp_path / "store", clean=harm != "killed")
    if harm == "queues":
        shutil.rmtree(tmp_path / "store" / "consumequeue")
    elif harm == "index":
        shutil.rmtree(tmp_path / "store" / "index")
    elif harm == "units":
        changed(tmp_path / "store" / "consumequeue" / "T" / "0" / f"{0:020d}", 47, b"?")
    done = repair.rebuild(settings_of(tmp_path / "store"))
    assert (done.queues, done.units, done.index_files) == (6, 60, 4)
    made = {n: d for n, d in snapshot(tmp_path / "store").items() if n.startswith(("consumequeue/", "index/"))}
    queues = {n: d for n, d in expected.items() if n.startswith("consumequeue/")}
    assert {n: made.get(n) for n in queues} == queues
    index = [d for n, d in sorted(expected.items()) if n.startswith("index/")]
    assert [d for n, d in sorted(made.items()) if n.startswith("index/")] == index
    report = verify(settings_of(tmp_path / "store"), GIVEN)
    assert report.problems == [] and report.clean_stop


@pytest.mark.spec("DUR-13", "DUR-16")
def test_rebuild_requires_lock_and_intact_log(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    store = opened(tmp_path)
    with pytest.raises(StoreLocked, match=f"in use by process {os.getpid()}"):
        repair.rebuild(settings_of(tmp_path))
    asyncio.run(store.stop())
    changed(log_file(tmp_path, offsets[30]), offsets[30] % LOG_BYTES + 100, b"?")
    before = snapshot(tmp_path)
    with pytest.raises(
        CorruptRecord, match=rf"at byte {offsets[30] % LOG_BYTES} .offset {offsets[30]}.: .*store repair"
    ):
        repair.rebuild(settings_of(tmp_path))
    assert snapshot(tmp_path) == before


class StopsAfter(Disk):
    """Raises KeyboardInterrupt at its n-th change."""

    left = 0

    def _count(self) -> None:
        StopsAfter.left -= 1
        if StopsAfter.left < 0:
            raise KeyboardInterrupt

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        self._count()
        super().write(fd, at, data)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        self._count()
        return super().create(path, size_bytes, allocate=allocate)

    def replace(self, source: Path, target: Path) -> None:
        self._count()
        super().replace(source, target)

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


@pytest.mark.spec("FUZ-07")
def test_rebuild_rejects_log_that_a_start_would_cut(tmp_path: Path) -> None:
    """A record after the synced part whose topic has a zero byte counts as torn: a start drops it and what follows."""
    offsets = filled(tmp_path, clean=False)
    torn = offsets[40]
    changed(log_file(tmp_path, torn), torn % LOG_BYTES + 88 + 120 + 1, b"\0")
    before = snapshot(tmp_path)
    pending = [
        (p.description, p.offset) for p in verify(settings_of(tmp_path), GIVEN).problems if p.weight is Weight.PENDING
    ]
    assert ("a record of which a part was not written; it was not on disk yet when the store stopped", torn) in pending
    with pytest.raises(CorruptRecord, match=f"offset {torn}.*a part was not written"):
        repair.rebuild(settings_of(tmp_path))
    loss = repair.find_loss(settings_of(tmp_path))
    assert snapshot(tmp_path) == before
    assert loss is not None and (loss.offset, loss.records) == (torn, len(offsets) - 41)
    folder, rebuilt = repair.cut(settings_of(tmp_path), loss)
    assert rebuilt.log_end == torn and rebuilt.units == 40
    assert folder is not None
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    assert all(message(number).body in kept for number in range(41, 60))


@pytest.mark.spec("DUR-20", "DUR-13")
def test_interrupted_rebuild_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "base", 24)
    expected = {message(number).body for number in range(24)}
    for steps in range(0, 2000, 23):
        folder = tmp_path / f"cut{steps}"
        shutil.copytree(tmp_path / "base", folder)
        StopsAfter.left = steps
        store = MessageStore(settings_of(folder), disk=StopsAfter())
        done = False
        try:
            store.open(lambda done, total: None)
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            store.close_files()
        store = opened(folder)
        assert bodies(store) == expected, steps
        store.close_files()
        if done:
            return
    raise AssertionError("the rebuild never came to its end")


# ---- repair


@pytest.mark.spec("DUR-09")
def test_repair_reports_loss_and_keeps_cut_bytes(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    at = offsets[30]
    whole = b"".join(log_file(tmp_path, n).read_bytes() for n in range(0, offsets[-1], LOG_BYTES))
    changed(log_file(tmp_path, at), at % LOG_BYTES + 100, b"?")
    with pytest.raises(CorruptRecord, match="store repair"):
        opened(tmp_path)
    before = snapshot(tmp_path)
    loss = repair.find_loss(settings_of(tmp_path))
    assert loss is not None and snapshot(tmp_path) == before
    assert (loss.offset, loss.path, loss.byte) == (at, log_file(tmp_path, at), at % LOG_BYTES)
    assert "body CRC" in loss.what and loss.records == 29 and loss.gone_bytes == 0
    assert loss.cut_bytes > offsets[-1] - at - LOG_BYTES
    kept, done = repair.cut(settings_of(tmp_path), loss)
    assert kept is not None and kept.parent == tmp_path
    assert done.log_end == at and done.units == 30
    pieces = {int(path.name): path.read_bytes() for path in kept.iterdir()}
    assert min(pieces) == at and sorted(pieces)[1:] == list(
        range((at // LOG_BYTES + 1) * LOG_BYTES, offsets[-1], LOG_BYTES)
    )
    for start, data in pieces.items():
        data = data[:100] + whole[at + 100 : at + 101] + data[101:] if start == at else data
        assert data.rstrip(b"\0") == whole[start : start + len(data)].rstrip(b"\0")
    report = verify(settings_of(tmp_path), GIVEN)
    assert report.problems == [] and report.clean_stop and report.log_end == at
    assert repair.find_loss(settings_of(tmp_path)) is None
    store = opened(tmp_path)
    assert bodies(store) == {message(number).body for number in range(30)}
    assert store.put(message(77)).physical_offset == at
    assert len(store.query("T", "u28", 10, 0, 1 << 60).records) == 1
    assert store.query("T", "u58", 10, 0, 1 << 60).records == []
    asyncio.run(store.stop())


@pytest.mark.spec("DUR-09", "RC-04")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("harm", ["gap", "short", "long", "short within", "last gone", "all gone", "first", "hole"])
def test_repair_turns_any_log_damage_into_shorter_log(tmp_path: Path, harm: str, clean: bool) -> None:
    offsets = filled(tmp_path, clean=clean)
    last = log_file(tmp_path, offsets[-1])
    if harm == "gap":
        log_file(tmp_path, LOG_BYTES).unlink()
    elif harm == "short":
        os.truncate(last, LOG_BYTES - 100)
    elif harm == "long":
        os.truncate(last, LOG_BYTES + 100)
    elif harm == "short within":
        os.truncate(log_file(tmp_path, LOG_BYTES), 700)
    elif harm == "last gone":
        last.unlink()
    elif harm == "all gone":
        shutil.rmtree(tmp_path / "commitlog")
    elif harm == "first":
        changed(log_file(tmp_path, 0), 3, b"\xff\xff")
    else:
        changed(log_file(tmp_path, LOG_BYTES), 0, bytes(LOG_BYTES))
    settings = settings_of(tmp_path)
    loss = repair.find_loss(settings)
    if loss is None:  # a file that was not durable yet may be missing without being noticed
        assert harm == "last gone" and not clean
        return
    repair.cut(settings, loss)
    survivors = [number for number, offset in enumerate(offsets) if offset < loss.offset]
    store = opened(tmp_path)
    assert bodies(store) == {message(number).body for number in survivors}
    assert store.max_physical_offset == loss.offset
    asyncio.run(store.stop())
    assert verify(settings, GIVEN).problems == []
    assert loss.nothing == (harm in ("short", "long")) and (len(survivors) == 60) == loss.nothing
    assert repair.find_loss(settings) is None


@pytest.mark.spec("DUR-09")
def test_repair_at_offset_cuts_at_record_start(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    settings = settings_of(tmp_path)
    with pytest.raises(
        StoreError, match=rf"no record begins at offset {offsets[20] + 1} .*begins at offset {offsets[20]}\."
    ):
        repair.loss_at(settings, offsets[20] + 1)
    with pytest.raises(StoreError, match="is not among the good records, which lie from 0 to"):
        repair.loss_at(settings, 1 << 40)
    changed(log_file(tmp_path, offsets[20]), offsets[20] % LOG_BYTES + 20, struct.pack(">q", 500))
    with pytest.raises(CorruptRecord, match=f"store repair --at {offsets[20]}"):
        opened(tmp_path)
    loss = repair.loss_at(settings, offsets[20])
    assert (loss.offset, loss.records) == (offsets[20], 40)
    repair.cut(settings, loss)
    store = opened(tmp_path)
    assert bodies(store) == {message(number).body for number in range(20)}
    store.close_files()


@pytest.mark.spec("DUR-07", "DUR-09")
def test_repair_clears_failure_marker_and_lowers_note(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    (tmp_path / "flush-failed.json").write_text('{"offset": 100000}')
    changed(log_file(tmp_path, offsets[40]), offsets[40] % LOG_BYTES + 5, b"?")
    loss = repair.find_loss(settings_of(tmp_path))
    assert loss is not None
    repair.cut(settings_of(tmp_path), loss)
    assert not (tmp_path / "flush-failed.json").exists()
    checkpoint = Checkpoint(tmp_path / "checkpoint", Disk())
    checkpoint.load()
    assert checkpoint.note is not None and checkpoint.note.log_synced == offsets[40]


# ---- dump


@pytest.mark.spec("UX-09", "ST-09")
def test_dump_finds_record_by_offset_queue_and_file_position(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    settings = settings_of(tmp_path)
    found = dump.by_offset(settings, offsets[6])
    assert (found.path, found.at) == (log_file(tmp_path, offsets[6]), offsets[6] % LOG_BYTES)
    assert found.message.properties["UNIQ_KEY"] == "u6" and found.message.body == message(6).body
    same = dump.by_queue(settings, "T", 0, 1)
    assert same.message.physical_offset == offsets[6]
    assert dump.by_place(settings, found.path, found.at).message.queue_offset == 1
    rows = dict(dump.fields(found))
    assert rows["topic"] == "T" and rows["queue_offset"] == 1 and rows["physical_offset"] == offsets[6]
    shown = datetime.fromisoformat(str(rows["store_time"]))
    assert round(shown.timestamp() * 1000) == found.message.store_timestamp_ms > 1_700_000_000_000
    assert str(rows["store_time"]).startswith("2023-11-14T22:13:24.") and rows["store_host"] == "127.0.0.1:10911"
    assert dump.body_text(found.message) == "006" * 40
    assert (
        dump.body_hex(found.message)[0] == "00000000  30 30 36 30 30 36 30 30 36 30 30 36 30 30 36 30  0060060060060060"
    )


@pytest.mark.spec("UX-09")
def test_dump_errors_name_what_was_found(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    settings = settings_of(tmp_path)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: dump.by_offset(settings, offsets[5] + 1), f"at byte {offsets[5] + 1} .*magic is 0x"),
        (lambda: dump.by_offset(settings, 1 << 40), "outside the commit log, which holds 0 to"),
        (lambda: dump.by_offset(settings, LOG_BYTES - 10), "no record begins there"),
        (lambda: dump.by_queue(settings, "nope", 0, 0), "there is no consume queue"),
        (lambda: dump.by_queue(settings, "../..", 0, 0), "there is no consume queue"),
        (lambda: dump.by_queue(settings, "T", 0, 400), "no unit for queue offset 400"),
        (lambda: dump.by_queue(settings, "T", 0, -1), "no unit for queue offset -1"),
        (lambda: dump.by_place(settings, tmp_path / "checkpoint", 0), "no commit log file"),
        (lambda: dump.by_place(settings, log_file(tmp_path, 0), LOG_BYTES), f"bytes 0 to {LOG_BYTES - 1}"),
        (lambda: dump.by_place(settings, log_file(tmp_path, 0), 1), f"next good record .* byte {offsets[1]}"),
    ]
    for call, text in cases:
        with pytest.raises(StoreError, match=text):
            call()


@pytest.mark.spec("UX-09")
def test_dump_reports_unit_of_another_record(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    changed(tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}", 20, struct.pack(">q", offsets[1]))
    with pytest.raises(CorruptRecord, match=rf"points to offset {offsets[1]}, where queue offset 0 of U/1 lies"):
        dump.by_queue(settings_of(tmp_path), "T", 0, 1)


# ---- lock and sizes


@pytest.mark.spec("DUR-16", "RC-14")
def test_lock_query_neither_takes_nor_releases_the_lock(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    assert LockFile(tmp_path / "lock").held() is None and not (tmp_path / "lock").exists()
    lock.acquire()
    held = LockFile(tmp_path / "lock").held()
    assert held is not None and str(os.getpid()) in held.message
    with pytest.raises(StoreLocked):
        LockFile(tmp_path / "lock").acquire()
    lock.release()
    assert LockFile(tmp_path / "lock").held() is None


@pytest.mark.spec("UX-09")
def test_sizes_are_detected_and_ambiguous_ones_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store folder"):
        shaped(StoreSettings(store_path_root_dir=str(tmp_path / "none")), frozenset())
    filled(tmp_path)
    found = shaped(StoreSettings(store_path_root_dir=str(tmp_path)), frozenset())
    assert (found.commit_log_bytes, found.consume_queue_bytes) == (LOG_BYTES, QUEUE_BYTES)
    assert found.profile is StoreProfile.SMALL
    lone = tmp_path / "lone"
    (lone / "commitlog").mkdir(parents=True)
    (lone / "commitlog" / f"{0:020d}").write_bytes(b"x" * 5001)
    with pytest.raises(StoreError, match=r"5001 bytes long.*--set mappedFileSizeCommitLog"):
        shaped(StoreSettings(store_path_root_dir=str(lone)), frozenset())
    given = StoreSettings(store_path_root_dir=str(lone), commit_log_file_bytes=8192)
    assert shaped(given, frozenset({"mappedFileSizeCommitLog"})).commit_log_bytes == 8192
