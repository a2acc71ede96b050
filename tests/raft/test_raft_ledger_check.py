"""Reading committed bodies as the store does, entries with messages, and the offline check of ledgers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.protocol.message import decode_record
from saturnmq.raft.core.entry import Entry, entry_position
from saturnmq.raft.core.state import HardState
from saturnmq.raft.ledger.bodies import bodies, body_at
from saturnmq.raft.ledger.check import compare, verify
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message, stamp_message
from saturnmq.raft.ledger.term_file import CheckpointFile, TermFile
from saturnmq.replication.dledger.log import RaftLog
from saturnmq.store.files.disk import Disk


def member(folder: Path, count: int, *, term: int = 1, body_bytes: int = 152) -> LedgerFiles:
    files = LedgerFiles(folder, file_bytes=1024, index_file_units=64)
    files.open()
    for number in range(count):
        body = (b"%d" % number).ljust(body_bytes, b".")
        files.append([Entry(number, term, entry_position(files.end_pos, 48 + len(body), 1024), body)])
    TermFile(folder).write(HardState(term, "n0"))
    CheckpointFile(folder).write(LedgerCheckpoint(count - 1, count - 1))
    return files


@pytest.mark.spec("DL-B04", "DL-B11", "DL-B12", "DL-Q08")
def test_bodies_end_at_committed_position_and_skip_blank_records(tmp_path: Path) -> None:
    files = member(tmp_path, 12)  # 200 bytes each, five per file
    found = list(bodies(files, 0, files.end_pos))
    assert [bytes(one.record).rstrip(b".") for one in found] == [b"%d" % number for number in range(12)]
    assert [one.physical_offset for one in found[4:6]] == [848, 1072]
    seventh = files.entry(7)
    assert seventh is not None
    assert body_at(files, found[-1].next_pos, files.end_pos) is None
    with pytest.raises(CorruptRecord):
        body_at(files, 8, files.end_pos)
    for committed_pos in (seventh.pos, seventh.end_pos - 1):  # an entry not fully committed is not returned
        assert len(list(bodies(files, 0, committed_pos))) == 7
    assert [bytes(one.record)[:1] for one in bodies(files, seventh.pos, seventh.end_pos)] == [b"7"]
    log = RaftLog([tmp_path / "old"], 1024, Disk())
    log.attach(files, 0, files.end_pos)
    at = log.view(seventh.pos + 48, 152)
    assert at is not None
    assert bytes(at) == seventh.body
    assert log.view(files.data.files[-1].end, 10) is None
    del found, at
    files.close()


@pytest.mark.spec("DL-B02", "DL-B03", "DL-X04", "DL-X16")
def test_noop_is_rolled_back_message_stamped_with_its_offset() -> None:
    noop = noop_message(("127.0.0.1", 10911), 1_700_000_000_000)
    stored = stamp_message(noop, 1000)
    assert (noop[20:36], stored[20:28], stored[28:36]) == (bytes(16), bytes(8), (1048).to_bytes(8, "big"))
    assert (stored[:28], stored[36:]) == (noop[:28], noop[36:])
    message = decode_record(stored, check_crc=True)
    assert (message.physical_offset, message.sys_flag & 0xC, message.body, message.keys) == (1048, 0xC, b"", None)
    assert message.topic == "SELF_TEST_TOPIC"  # a system topic, which no client creates or deletes
    assert message_is_good(memoryview(stored))
    assert not message_is_good(memoryview(stored[:-1]))
    assert not message_is_good(memoryview(stored + b"x"))
    assert len(stored) == len(noop)


@pytest.mark.spec("DUR-10")
def test_verify_reports_an_incomplete_log_without_checksums(tmp_path: Path) -> None:
    """A member that was started has deleted the checksums: only its checkpoint says that entries are missing."""
    member(tmp_path, 5).close()
    for path in tmp_path.glob("checksums-*"):
        path.unlink()
    assert verify(tmp_path).problems == []
    CheckpointFile(tmp_path).write(LedgerCheckpoint(4, 3, incomplete=True))
    (problem,) = verify(tmp_path).problems
    assert "acknowledged entries are missing" in problem


@pytest.mark.spec("DL-S06")
def test_verify_is_read_only_and_reports_every_problem(tmp_path: Path) -> None:
    member(tmp_path, 23).close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    report = verify(tmp_path)
    assert (report.problems, report.files, report.begin_index, report.end_index) == ([], 5, 0, 22)
    assert (report.term, report.voted_for, report.committed_index, report.last_term) == (1, "n0", 22, 1)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    index = next((tmp_path / "index").iterdir())
    data = bytearray(index.read_bytes())
    data[32 * 3 : 32 * 4] = bytes(32)
    index.write_bytes(data)
    (tmp_path / "checkpoint").write_text("committedIndex=99\nendIndex=99\n")
    (tmp_path / "currterm").write_text("voteLeader=\ncurrTerm=0\n")
    assert verify(tmp_path).problems == [
        "the index has no unit for entry 3",
        "currterm is 0, the last entry is of term 1",
        "committed up to 99, the log ends at 22",
    ]
    file = sorted((tmp_path / "data").iterdir())[1]
    data = bytearray(file.read_bytes())
    data[0:4] = b"\0\0\0\5"
    file.write_bytes(data)
    report = verify(tmp_path)
    assert report.end_index == 4
    assert "the entries end at 1024: magic 5" in report.problems


@pytest.mark.spec("DL-S03", "DL-S06")
def test_compare_reports_first_differing_entry(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    member(one, 12).close()
    shutil.copytree(one, two)
    assert compare([one, two]) is None
    files = LedgerFiles(two, file_bytes=1024, index_file_units=64)
    files.open()
    ninth = files.entry(9)
    assert ninth is not None
    files.cut(9, ninth.pos)
    files.append([Entry(9, 2, ninth.pos, ninth.body)])
    files.close()
    found = compare([one, two])
    assert found is not None
    assert found.index == 9
    assert found.entries == {one: "1 1824 200", two: "2 1824 200"}
    member(tmp_path / "three", 5).close()
    behind = compare([one, tmp_path / "three"])
    assert behind is not None
    assert (behind.index, behind.entries[tmp_path / "three"]) == (5, "missing")
