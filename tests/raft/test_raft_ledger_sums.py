"""Checksums beside a ledger: damage behind the last checkpoint bars a member, and is not taken for a torn write."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from raftgroup import Group, group

from harness.harm import harmed
from saturnmq.protocol.errors import CorruptRecord, DiskFull
from saturnmq.raft.core.entry import Entry, entry_position
from saturnmq.raft.core.messages import Code, TransferResponse
from saturnmq.raft.ledger.check import verify
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.opened import open_ledger
from saturnmq.raft.ledger.term_file import CheckpointFile
from saturnmq.store.files.record_sums import PREFIX

FILE_BYTES = 4096


def opened(folder: Path) -> tuple[LedgerFiles, LedgerCheckpoint]:
    files = LedgerFiles(folder, file_bytes=FILE_BYTES, index_file_units=64)
    return files, open_ledger(files, CheckpointFile(folder))


def killed_ledger(folder: Path, count: int) -> list[Entry]:
    """A ledger whose process ended after each entry had been synced."""
    folder.mkdir(parents=True, exist_ok=True)
    files, _ = opened(folder)
    made: list[Entry] = []
    for index in range(count):
        made.append(Entry(index, 1, entry_position(files.end_pos, 48 + 20, FILE_BYTES), b"%020d" % index))
        files.append(made[-1:])
        files.sync_job()()
    files.close()
    return made


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.spec("DUR-08", "DUR-09", "DUR-10")
def test_each_flipped_bit_of_a_synced_entry_is_damage(tmp_path: Path) -> None:
    """Its body is opaque and its header has fields that nothing else checks."""
    made = killed_ledger(tmp_path / "source", 6)
    bad = made[4]
    rng = random.Random(3)
    for byte in range(bad.size):
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "source", folder)
        flip(folder / "data" / ("0" * 20), bad.pos + byte, rng.randrange(8))
        files, checkpoint = opened(folder)
        assert (files.end_index, checkpoint.end_index) == (3, 5), byte
        files.close()
        files, checkpoint = opened(folder)  # the loss stays known
        assert (files.end_index, checkpoint.end_index) == (3, 5), byte
        files.close()
        shutil.rmtree(folder)
    files, checkpoint = opened(tmp_path / "source")
    assert (files.end_index, checkpoint.end_index) == (5, 5)
    assert not list((tmp_path / "source").glob(PREFIX + "*"))
    files.close()


@pytest.mark.spec("DUR-08", "DUR-09")
def test_offline_check_reports_a_synced_entry_that_differs(tmp_path: Path) -> None:
    made = killed_ledger(tmp_path, 6)
    file = tmp_path / "data" / ("0" * 20)
    others = ["currterm is missing", "checkpoint is missing"]
    assert verify(tmp_path).problems == others
    for bad in (made[3], made[5]):
        for byte in (35, 48 + 19):  # the channel, which nothing reads, and the last byte of the body
            flip(file, bad.pos + byte, 0)
            report = verify(tmp_path)
            (problem,) = [text for text in report.problems if text not in others]
            assert problem.startswith(f"entry {bad.index} ({file} at byte {bad.pos}) differs from what was synced")
            assert report.end_index == 5
            flip(file, bad.pos + byte, 0)
    flip(file, made[4].pos + 3, 0)  # the magic number
    (problem,) = [text for text in verify(tmp_path).problems if "synced" in text]
    assert problem.startswith("the log ends at entry 3, but those up to 5 were synced")
    assert problem.endswith(f"{file} at byte {made[4].pos}")
    for path in tmp_path.glob(PREFIX + "*"):
        path.unlink()
    assert not any("synced" in text for text in verify(tmp_path).problems)


@pytest.mark.spec("DUR-09")
def test_without_checksums_a_bad_entry_is_torn(tmp_path: Path) -> None:
    made = killed_ledger(tmp_path, 4)
    for path in tmp_path.glob(PREFIX + "*"):
        path.unlink()
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    flip(tmp_path / "data" / ("0" * 20), made[2].pos + 47, 0)  # the length of its body
    files, checkpoint = opened(tmp_path)
    assert (files.end_index, checkpoint.end_index) == (1, 1)
    files.close()


@pytest.mark.spec("DUR-10")
def test_log_stays_incomplete_however_long_it_grows(tmp_path: Path) -> None:
    """Regression: it counted as whole at the next start as soon as it was as long as the old checkpoint said."""
    made = killed_ledger(tmp_path, 4)
    CheckpointFile(tmp_path).write(LedgerCheckpoint(5, 3))
    for length in (4, 9):
        files, checkpoint = opened(tmp_path)
        assert (files.end_index, checkpoint.incomplete) == (length - 1, True)
        for index in range(4, 9) if length == 4 else ():
            made.append(Entry(index, 1, made[-1].end_pos, b"again %d" % index))
            files.append([made[-1]])
        files.sync_job()()
        files.close()
    assert CheckpointFile(tmp_path).read() == LedgerCheckpoint(8, 3, incomplete=True)


@pytest.mark.spec("DUR-10", "DUR-15")
def test_incomplete_log_is_not_opened_without_space_to_note_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the log grew past the old checkpoint while the disk was full, and counted as whole after a crash."""
    killed_ledger(tmp_path, 4)
    CheckpointFile(tmp_path).write(LedgerCheckpoint(5, 3))

    def refuse(file: CheckpointFile, checkpoint: LedgerCheckpoint) -> None:
        raise DiskFull("no space for the checkpoint")

    with monkeypatch.context() as full:
        full.setattr(CheckpointFile, "write", refuse)
        with pytest.raises(DiskFull):
            opened(tmp_path)
    files, checkpoint = opened(tmp_path)
    assert checkpoint == LedgerCheckpoint(5, 3, incomplete=True)
    with monkeypatch.context() as full:
        full.setattr(CheckpointFile, "write", refuse)
        files.close()
        assert opened(tmp_path)[1].incomplete  # that is on disk already


@pytest.mark.spec("DUR-10")
def test_truncated_entries_prove_nothing(tmp_path: Path) -> None:
    """A leader of another term replaced synced entries; the process ended before the next sync."""
    made = killed_ledger(tmp_path, 4)
    files, _ = opened(tmp_path)
    files.append([Entry(4, 1, made[-1].end_pos, b"x" * 20)])
    files.sync_job()()
    CheckpointFile(tmp_path).write(LedgerCheckpoint(files.end_index - 3))
    files.cut(2, made[1].end_pos)
    files.append([Entry(2, 2, made[2].pos, b"another body, longer than before")])
    files.close()
    files, checkpoint = opened(tmp_path)
    assert (files.end_index, files.end_term, checkpoint.end_index) == (2, 2, 2)
    files.close()


@pytest.mark.spec("DUR-10")
def test_entries_before_a_truncation_keep_their_checksums(tmp_path: Path) -> None:
    """They were synced, as those of a full file are, and no checkpoint covers them yet."""
    made = killed_ledger(tmp_path, 2)
    files, _ = opened(tmp_path)
    for index, position in ((2, made[1].end_pos), (3, made[1].end_pos + 68), (4, made[1].end_pos + 136)):
        files.append([Entry(index, 1, position, b"%020d" % index)])
        files.sync_job()()
    files.cut(4, made[1].end_pos + 136)
    files.append([Entry(4, 2, made[1].end_pos + 136, b"of the next term" + b"." * 4)])
    files.sync_job()()
    files.close()
    flip(tmp_path / "data" / ("0" * 20), made[1].end_pos + 36, 1)  # the channel of entry 2, which nothing else checks
    files, checkpoint = opened(tmp_path)
    assert (files.end_index, checkpoint.end_index) == (1, 4)
    files.close()


@pytest.mark.spec("DUR-10")
def test_damage_in_an_older_file_is_refetched_in_place(tmp_path: Path) -> None:
    made = killed_ledger(tmp_path, 260)
    assert made[-1].pos > 4 * FILE_BYTES
    flip(tmp_path / "data" / ("0" * 20), made[5].pos + 30, 0)  # part of the position field: every read would fail
    flip(tmp_path / "data" / ("0" * 20), made[7].pos + 35, 0)  # the channel, which nothing reads
    files, checkpoint = opened(tmp_path)
    assert (files.end_index, checkpoint.end_index, files.first_differing) == (259, 259, 5)
    for bad in (made[5], made[7]):
        with pytest.raises(CorruptRecord):
            files.entry(bad.index)
    assert files.repair(made[5])
    files.close()
    files, _ = opened(tmp_path)  # the other one is found again
    assert files.first_differing == 7
    assert files.repair(made[7])
    assert files.first_differing == -1
    assert files.entry(7) == made[7]
    files.close()


@pytest.mark.spec("DUR-09", "DUR-10", "G06")
async def test_damaged_member_is_barred_until_it_has_the_entries_again(tmp_path: Path) -> None:
    """The damage lies behind its last checkpoint. It refuses votes and transfers, whether of an operator or by preference."""
    async with group(tmp_path, checkpoint_interval_ms=3_600_000) as made:
        for number in range(8):
            await made.append(b"body%d" % number)
        await made.equal()
        leader = await made.a_leader()
        hurt = next(n for n in made.names if n != leader.settings.self_id)
        folder = tmp_path / f"dledger-{hurt}"
        await made.until(lambda: made.members[hurt].node.synced_index == 7, "not synced")
        shutil.copytree(folder, tmp_path / "killed")  # as `kill -9` leaves it
        await made.stop(hurt)
        shutil.rmtree(folder)
        (tmp_path / "killed").rename(folder)
        flip(folder / "data" / ("0" * 20), 5 * 53 + 20, 1)  # entries have 53 bytes: the term of the sixth
        for name in list(made.members):
            await made.stop(name)
        back = await made.start(hurt)
        assert (back.status().end_index, back.node.recovering) == (4, True)
        for name in made.names:
            if name != hurt:
                await made.start(name)
        await made.append(b"after")
        await made.equal()
        await made.until(lambda: not back.node.recovering, "still recovering")
        bodies = [entry.body for index in range(8) if (entry := back.files.entry(index)) is not None]
        assert bodies == [b"body%d" % number for number in range(8)]


@pytest.mark.spec("DUR-10")
async def test_member_that_repairs_an_entry_refuses_transfers(tmp_path: Path) -> None:
    """Found by the scrub while it runs: as leader it would read the entry and fail."""
    made = Group(tmp_path, 3)
    try:
        for name in made.names:
            await made.start(name)
        for number in range(4):
            await made.append(b"body%d" % number)
        await made.equal()
        leader = await made.a_leader()
        hurt = next(m for m in made.members.values() if m is not leader)
        scrub = hurt._scrub
        scrub._send = lambda *_: None  # the leader's answer does not come yet
        scrub._index = 2
        scrub._damage(hurt._clock_ms(), hurt.node, CorruptRecord("an entry is damaged"))
        await made.until(lambda: hurt.node._state.barred, "not barred")
        answer = await leader.transfer(hurt.settings.self_id)
        assert isinstance(answer, TransferResponse) and answer.code == Code.DISK_ERROR
        scrub._skip()
        await made.until(lambda: not hurt.node._state.barred, "still barred")
        answer = await leader.transfer(hurt.settings.self_id)
        assert answer.code == Code.SUCCESS
    finally:
        for name in list(made.members):
            await made.stop(name)


@pytest.mark.spec("DUR-09")
def test_ledger_opens_whatever_its_checksums_are(tmp_path: Path) -> None:
    """Truncated anywhere, or with random bytes changed; the entries are whole."""
    source, folder = tmp_path / "source", tmp_path / "copy"
    killed_ledger(source, 3)
    (name,) = (path.name for path in source.glob(PREFIX + "*"))
    data = (source / name).read_bytes()
    rng = random.Random(5)
    for bad in (*harmed(data, rng), rng.randbytes(5000)):
        shutil.copytree(source, folder)
        (folder / name).write_bytes(bad)
        files, checkpoint = opened(folder)
        assert (files.end_index, checkpoint.end_index, files.first_differing) == (2, 2, -1)
        files.close()
        shutil.rmtree(folder)
