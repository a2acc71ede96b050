"""Regression tests for damage found by fuzzing, each reduced to its smallest case.

Requirements: FUZ-07, FUZ-10, DUR-09, DUR-10, DUR-13.
"""

from __future__ import annotations

import asyncio
import shutil
import struct
from pathlib import Path

import pytest

from saturnmq.protocol.errors import CorruptRecord, StoreError
from saturnmq.protocol.message import Host, Message, decode_records
from saturnmq.store import GetStatus, MessageStore, StoreProfile, StoreSettings
from saturnmq.store.files.disk import Disk
from saturnmq.store.queue import queues
from saturnmq.store.queue.consume_queue import PendingUnits
from saturnmq.store.recovery import opening
from saturnmq.store.tools.verify import Weight, verify

LOG_BYTES = 2048
QUEUE_BYTES = 200
HOST = Host("127.0.0.1", 10911)


def opened(path: Path) -> MessageStore:
    store = MessageStore(
        StoreSettings(
            store_path_root_dir=str(path),
            profile=StoreProfile.SMALL,
            commit_log_file_bytes=LOG_BYTES,
            consume_queue_file_bytes=QUEUE_BYTES,
            index_slots_max=16,
            index_entries_max=60,
        )
    )
    store.open()
    return store


def message(number: int, topic: str = "T") -> Message:
    raw = b"UNIQ_KEY\x01u%d" % number
    return Message(topic, b"%03d" % number * 50, raw, 0, born_host=HOST, store_host=HOST)


def filled(path: Path, count: int = 40, topics: str = "TU", *, clean: bool = True, foreign: bool = False) -> list[int]:
    """Fill a store; returns physical offsets. foreign: without the files of SaturnMQ, as Apache RocketMQ leaves a store."""
    store = opened(path)
    offsets = [store.put(message(number, topics[number % len(topics)])).physical_offset for number in range(count)]
    asyncio.run(store.write_all())
    if clean:
        asyncio.run(store.stop())
    else:
        store.close_files()
    if foreign:
        checkpoint = path / "checkpoint"
        checkpoint.write_bytes(checkpoint.read_bytes()[:24].ljust(4096, b"\0"))
        for name in ("queues.json", "queues.json.bak"):
            (path / name).unlink(missing_ok=True)
    return offsets


def changed(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def log_file(path: Path, offset: int) -> Path:
    return path / "commitlog" / f"{offset // LOG_BYTES * LOG_BYTES:020d}"


def bodies(store: MessageStore, topic: str) -> list[bytes]:
    found: list[bytes] = []
    offset = store.min_offset(topic, 0)
    while (result := store.get(topic, 0, offset, 32)).status is GetStatus.FOUND:
        found += [bytes(one.body) for one in decode_records(b"".join(result.buffers))]
        offset = result.next_offset
    return found


@pytest.mark.spec("FUZ-07", "DUR-10")
def test_unit_with_negative_offset_is_damage_not_expiry(tmp_path: Path) -> None:
    filled(tmp_path)
    store = opened(tmp_path)
    unit = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    changed(unit, 60, struct.pack(">q", -5))
    with pytest.raises(CorruptRecord, match=r"queue 0, offset 3: .* at commit log offset -5"):
        store.get("T", 0, 3, 32)
    store.close_files()


@pytest.mark.spec("FUZ-07", "DUR-10", "IX-07")
def test_damaged_record_is_not_served_by_key_or_offset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offsets = filled(tmp_path)
    store = opened(tmp_path)
    changed(log_file(tmp_path, offsets[4]), offsets[4] % LOG_BYTES + 100, b"?")
    assert store.query("T", "u4", 10, 0, 1 << 60).records == []
    assert f"damaged record not served offset={offsets[4]};" in caplog.text
    assert len(store.query("T", "u6", 10, 0, 1 << 60).records) == 1
    changed(log_file(tmp_path, offsets[6]), offsets[6] % LOG_BYTES + 30, b"?")  # the record claims another offset
    assert store.read_record(offsets[6]) is None
    assert store.read_record(offsets[8] + 1) is None
    assert store.read_record(offsets[8]) is not None
    store.close_files()


@pytest.mark.spec("FUZ-07", "DUR-09")
def test_record_not_fitting_its_queue_is_rejected_with_position(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    at = offsets[20]
    file = log_file(tmp_path, at)
    changed(file, at % LOG_BYTES + 20, struct.pack(">q", 500))  # claims to be number 500 of its queue
    with pytest.raises(
        CorruptRecord, match=rf"{file} at byte {at % LOG_BYTES} .offset {at}.: .*number 500.*repair --at {at}"
    ):
        opened(tmp_path)


@pytest.mark.spec("FUZ-07", "DUR-09")
def test_topic_invalid_as_folder_name_is_rejected_with_position(tmp_path: Path) -> None:
    filled(tmp_path, 20, clean=False)
    store = opened(tmp_path)
    at = store.put(message(100)).physical_offset
    store.close_files()
    file = log_file(tmp_path, at)
    changed(file, at % LOG_BYTES + 88 + 150 + 1, b"/")
    with pytest.raises(CorruptRecord, match=rf"{file} at byte {at % LOG_BYTES} .offset {at}.: topic '/'"):
        opened(tmp_path)


@pytest.mark.spec("FUZ-07", "DUR-13")
def test_lowered_queue_offset_does_not_delete_the_queue(tmp_path: Path) -> None:
    """A changed queue offset in a record after the last note was taken for a topic that was deleted and re-created."""
    offsets = filled(tmp_path, 20, clean=False)
    store = opened(tmp_path)
    last = store.put(message(100)).physical_offset
    store.close_files()
    changed(log_file(tmp_path, last), last % LOG_BYTES + 20, struct.pack(">q", 3))
    with pytest.raises(StoreError, match=f"offset {last}"):
        opened(tmp_path)
    assert len(offsets) == 20


@pytest.mark.spec("FUZ-07", "DUR-13")
def test_recreated_topic_is_logged_with_its_offset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 10)
    store = opened(tmp_path)
    store.delete_topic("T")
    again = store.put(message(50)).physical_offset
    store.close_files()
    (tmp_path / "checkpoint").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    store = opened(tmp_path)
    assert f"queue restarted after topic deletion topic=T queue=0 offset={again}" in caplog.text
    assert bodies(store, "T") == [message(50).body]
    store.close_files()


@pytest.mark.spec("FUZ-07", "DUR-13")
@pytest.mark.parametrize("harm", ["lost", "first unit zero", "idle"])
def test_lagging_queue_of_killed_foreign_broker_is_rebuilt(tmp_path: Path, harm: str) -> None:
    """Recovery begins at the last file: earlier units of a queue must be on disk, otherwise the whole log is read."""
    filled(
        tmp_path, 40, "TTTTTTTTTTTTTTTTTTTTTTTTTTUUUUUUUUUUUUUU" if harm == "idle" else "TU", clean=False, foreign=True
    )
    queue = tmp_path / "consumequeue" / "T" / "0"
    if harm == "lost":
        shutil.rmtree(queue)
        queue.mkdir()
    else:
        changed(queue / f"{0:020d}", 0, bytes(20))
    store = opened(tmp_path)
    expected = 26 if harm == "idle" else 20
    assert store.min_offset("T", 0) == 0
    assert len(bodies(store, "T")) == expected
    store.close_files()


@pytest.mark.spec("FUZ-07", "DUR-09")
@pytest.mark.parametrize("harm", ["last file", "all files", "zeros"])
def test_lost_messages_of_foreign_broker_are_logged(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After a clean stop, the log ends before the queues do."""
    offsets = filled(tmp_path, foreign=True)
    last = log_file(tmp_path, offsets[-1])
    if harm == "zeros":
        last.write_bytes(bytes(LOG_BYTES))
        shutil.rmtree(tmp_path / "consumequeue" / "T")
        end = int(last.name)
    elif harm == "last file":
        last.unlink()
        end = int(last.name)
    else:
        shutil.rmtree(tmp_path / "commitlog")
        end = 0
    store = opened(tmp_path)
    assert f"log end recovered offset={end} " in caplog.text
    store.close_files()


@pytest.mark.spec("FUZ-07", "DUR-13")
def test_lost_topic_of_foreign_broker_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offsets = filled(tmp_path, foreign=True)
    shutil.rmtree(tmp_path / "consumequeue" / "T")
    store = opened(tmp_path)
    begin = int(log_file(tmp_path, offsets[-1]).name) - 2 * LOG_BYTES
    assert f"written by another broker, log not checked before offset={begin};" in caplog.text
    lost = [offset for number, offset in enumerate(offsets) if offset >= begin and number % 2 == 0]
    assert f"topic without consume queues topic='T' records={len(lost)} offset={lost[0]}:" in caplog.text
    store.close_files()


@pytest.mark.spec("FUZ-07", "DUR-13")
def test_lost_note_does_not_hide_a_lost_queue(tmp_path: Path) -> None:
    filled(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:24].ljust(4096, b"\0"))
    shutil.rmtree(tmp_path / "consumequeue" / "T")
    store = opened(tmp_path)
    assert len(bodies(store, "T")) == 20
    store.close_files()


@pytest.mark.spec("FUZ-07", "IX-08", "DUR-13", "DG-02")
def test_lost_index_is_rebuilt_after_clean_stop(tmp_path: Path) -> None:
    filled(tmp_path)
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    store = opened(tmp_path)
    assert [len(store.query("TU"[n % 2], f"u{n}", 10, 0, 1 << 60).records) for n in range(40)] == [1] * 40
    store.close_files()


@pytest.mark.spec("FUZ-07", "DUR-09")
def test_missing_log_files_are_reported_with_their_folder(tmp_path: Path) -> None:
    offsets = filled(tmp_path)
    log_file(tmp_path, offsets[-1]).unlink()
    with pytest.raises(CorruptRecord, match=rf"{tmp_path}/commitlog: the commit log ends at offset"):
        opened(tmp_path)


@pytest.mark.spec("FUZ-07", "DUR-13", "DUR-10")
@pytest.mark.parametrize("harm", ["shifted", "zeroed", "removed"])
def test_lost_note_causes_full_log_scan(tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    offsets = filled(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    raw = checkpoint.read_bytes()
    if harm == "shifted":
        checkpoint.write_bytes(raw[:30] + b"?" + raw[30:])
    elif harm == "zeroed":
        checkpoint.write_bytes(raw[:24].ljust(4096, b"\0"))
    else:
        checkpoint.unlink()
    changed(log_file(tmp_path, offsets[2]), offsets[2] % LOG_BYTES + 100, b"?")
    with pytest.raises(CorruptRecord, match=f"offset {offsets[2]}: "):
        opened(tmp_path)
    assert f"checkpoint damaged or missing, whole commit log read path={checkpoint}" in caplog.text


@pytest.mark.spec("FUZ-07", "DUR-13", "DUR-18")
def test_invalid_checkpoint_is_rewritten(tmp_path: Path) -> None:
    filled(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    raw = checkpoint.read_bytes()
    checkpoint.write_bytes(raw[:16] + b"\x7f" * 8 + raw[24:] + bytes(100))  # index time in the year 292277026596
    store = opened(tmp_path)
    assert len(bodies(store, "T")) == 20
    asyncio.run(store.stop())
    raw = checkpoint.read_bytes()
    assert len(raw) == 4096 and 0 <= struct.unpack_from(">q", raw, 16)[0] < 1 << 43


@pytest.mark.spec("FUZ-07", "DUR-08")
def test_verify_reports_queue_offset_gap_after_last_note(tmp_path: Path) -> None:
    """Damage that the start rejects must not be reported by verify as pending work of the start."""
    filled(tmp_path, 20, clean=False)
    store = opened(tmp_path)
    last = store.put(message(100)).physical_offset
    store.close_files()
    changed(log_file(tmp_path, last), last % LOG_BYTES + 20, struct.pack(">q", 1 << 40))
    report = verify(store.settings)
    assert [(p.offset, p.at) for p in report.problems if p.weight is Weight.DAMAGE] == [(last, last % LOG_BYTES + 20)]
    with pytest.raises(CorruptRecord, match=f"repair --at {last}"):
        opened(tmp_path)


@pytest.mark.spec("DUR-13", "RC-08")
@pytest.mark.parametrize("foreign", [True, False])
def test_recovery_writes_queues_incrementally(tmp_path: Path, foreign: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 60, clean=False, foreign=foreign)
    shutil.rmtree(tmp_path / "consumequeue")
    most = 0
    real = opening._Recovery._queue_unit

    def watched(self: opening._Recovery, one: Message) -> bool:
        nonlocal most
        done = real(self, one)
        most = max(most, sum(queue.dirty_bytes for queue in self.store.queues.by_key.values()))
        return done

    monkeypatch.setattr(opening, "UNITS_KEPT", 7)
    monkeypatch.setattr(opening._Recovery, "_queue_unit", watched)
    store = opened(tmp_path)
    assert most <= 7 * 20
    assert len(bodies(store, "T")) == 30
    asyncio.run(store.stop())
    assert verify(store.settings).problems == []


@pytest.mark.spec("DUR-20", "DUR-13")
def test_interrupted_takeover_of_foreign_store_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One queue is written, the other is not, and there is no list: the next start must not trust either."""
    filled(tmp_path, 60, "U" * 5 + "T" * 55, clean=False, foreign=True)
    changed(
        tmp_path / "checkpoint", 0, struct.pack(">qq", 1 << 42, 1 << 42)
    )  # recovery by time begins at the last file
    shutil.rmtree(tmp_path / "consumequeue")
    real = queues.write_pending

    def dies(pending: PendingUnits, disk: Disk) -> None:
        if pending.folder.parent.name == "T":
            real(pending, disk)
            raise StoreError("the process ended")

    with monkeypatch.context() as patched:
        patched.setattr(queues, "write_pending", dies)
        with pytest.raises(StoreError, match="ended"):
            opened(tmp_path)
    assert (tmp_path / "consumequeue" / "T").exists() and not (tmp_path / "consumequeue" / "U").exists()
    store = opened(tmp_path)
    assert [len(bodies(store, topic)) for topic in "TU"] == [55, 5]
    assert all(len(store.query("UT"[n > 4], f"u{n}", 9, 0, 1 << 60).records) == 1 for n in range(60))
    store.close_files()


@pytest.mark.spec("FUZ-07", "DUR-09", "DUR-13")
@pytest.mark.parametrize(("number", "says"), [(0, 1 << 62), (2, 1 << 62), (6, 0), (8, 0)])
def test_changed_queue_offset_does_not_hide_its_queue(tmp_path: Path, number: int, says: int) -> None:
    """A first record with a far too high queue offset hid all records after it; one with 0 hid all before it."""
    offsets = filled(tmp_path, 40)
    at = offsets[number]
    changed(log_file(tmp_path, at), at % LOG_BYTES + 20, struct.pack(">q", says))
    shutil.rmtree(tmp_path / "consumequeue")
    with pytest.raises(
        CorruptRecord, match=rf"offset {at}.: the record says it is number {says} .*number {number // 2} must"
    ):
        opened(tmp_path)


@pytest.mark.spec("FUZ-07", "ST-10", "IX-06")
def test_impossible_store_time_affects_no_other_message(tmp_path: Path) -> None:
    offsets = filled(tmp_path, 10, clean=False)
    changed(log_file(tmp_path, 0), 56, struct.pack(">q", -(1 << 60)))
    changed(log_file(tmp_path, offsets[9]), offsets[9] % LOG_BYTES + 56, struct.pack(">q", 1 << 60))
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "checkpoint").unlink()
    store = opened(tmp_path)
    assert store.put(message(77)).store_timestamp_ms < 1 << 43
    assert [len(store.query("TU"[n % 2], f"u{n}", 9, 0, 1 << 60).records) for n in range(10)] == [1] * 10
    store.close_files()


@pytest.mark.spec("DUR-08")
def test_verify_names_a_negative_length_and_the_start_of_no_log(tmp_path: Path) -> None:
    offset = filled(tmp_path)[3]
    changed(log_file(tmp_path, offset), offset % LOG_BYTES, struct.pack(">i", -5))
    where = StoreSettings(
        store_path_root_dir=str(tmp_path), profile=StoreProfile.SMALL, commit_log_file_bytes=LOG_BYTES
    )
    assert any("record length is -5, must be " in problem.description for problem in verify(where).problems)
    assert verify(StoreSettings(store_path_root_dir=str(tmp_path / "new"))).log_start == -1
