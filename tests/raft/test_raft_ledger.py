"""Ledger files: compatibility with DLedger's bytes, truncation, recovery, term and checkpoint files."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import struct
import zlib
from pathlib import Path

import pytest
from raftbench import entries

from recorded import VECTORS
from saturnmq.protocol.errors import CorruptRecord, DiskFull, StoreError
from saturnmq.raft.core.entry import Entry, entry_position
from saturnmq.raft.core.state import HardState
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import (
    BLANK_MAGIC,
    EntryHeader,
    IndexUnit,
    LedgerCheckpoint,
    entry_bytes,
    format_checkpoint,
    format_term,
    index_unit,
    parse_checkpoint,
    parse_term,
    read_entry,
)
from saturnmq.raft.ledger.recover import DataFile, LedgerFacts, first_file, plan
from saturnmq.raft.ledger.term_file import CheckpointFile, TermFile
from saturnmq.store.files.disk import Disk

FILE_BYTES, UNITS = 1024, 64


def ledger(folder: Path, **more: object) -> LedgerFiles:
    made = LedgerFiles(folder, file_bytes=FILE_BYTES, index_file_units=UNITS, **more)  # type: ignore[arg-type]
    made.open()
    return made


def grow(files: LedgerFiles, term: int, count: int, body_bytes: int = 60, mark: bytes = b"") -> list[Entry]:
    """Append entries at their correct positions."""
    made = []
    for _ in range(count):
        body = (mark + b"%d" % (files.end_index + 1)).ljust(body_bytes - 4, b".")
        body += zlib.crc32(body).to_bytes(4, "big")
        pos = entry_position(files.end_pos, 48 + len(body), files.file_bytes)
        made.append(Entry(files.end_index + 1, term, pos, body))
        files.append(made[-1:])
    return made


def crc_is_good(body: memoryview) -> bool:
    return zlib.crc32(body[:-4]).to_bytes(4, "big") == body[-4:]


def contents(files: LedgerFiles) -> list[Entry]:
    found = [files.entry(index) for index in range(max(files.begin_index, 0), files.end_index + 1)]
    return [entry for entry in found if entry is not None]


@pytest.mark.spec("DL-S01", "DL-S06")
@pytest.mark.parametrize("member", ["n0", "n1"])
def test_dledger_files_are_read_and_rewritten_byte_for_byte(member: str, tmp_path: Path) -> None:
    source = VECTORS / "store" / f"dledger-{member}" / f"dledger-{member}"
    for kind, size in (("data", 262144), ("index", 167772160)):
        (tmp_path / kind).mkdir()
        target = tmp_path / kind / ("0" * 20)
        shutil.copyfile(source / kind / ("0" * 20), target)
        target.chmod(0o644)
        os.truncate(target, size)
    files = LedgerFiles(tmp_path, file_bytes=262144)
    files.open()
    found = contents(files)
    said = [json.loads(line) for line in (source / "data" / ("0" * 20 + ".jsonl")).read_text().splitlines()]
    heads = [record for record in said if "entry_size" in record]
    assert [(e.index, e.term, e.pos, e.size) for e in found] == [
        (r["index"], r["term"], r["pos"], r["entry_size"]) for r in heads
    ]
    assert (files.begin_index, files.end_index, files.end_term) == (0, 28, 1)
    assert files.recovered.index_from is None
    files.close()

    ours = LedgerFiles(tmp_path / "ours", file_bytes=262144)
    ours.open()
    ours.append(found)
    data, index = ours.data.files[0].map, ours.index.files[0].map
    wanted_data = (source / "data" / ("0" * 20)).read_bytes()
    wanted_index = (source / "index" / ("0" * 20)).read_bytes()
    assert data[: len(wanted_data)] == wanted_data
    assert index[: len(wanted_index)] == wanted_index
    ours.close()
    assert parse_term((source / "currterm").read_bytes()) == HardState(1, "n0")
    assert format_term(HardState(1, "n0")) == (source / "currterm").read_bytes()
    assert parse_checkpoint((source / "checkpoint").read_bytes()) == LedgerCheckpoint(28, 28)
    assert format_checkpoint(LedgerCheckpoint(28, 28)) == (source / "checkpoint").read_bytes()


@pytest.mark.spec("DL-S01", "DL-S08")
def test_golden_entry_bytes() -> None:
    golden = bytes.fromhex(
        "000000010000003400000000 0000000a0000000000000003 00000000000003e8 00000000 00000000 00000000 00000004 000102ff"
    )
    entry = Entry(10, 3, 1000, b"\x00\x01\x02\xff")
    assert entry_bytes(entry) == golden
    assert read_entry(memoryview(golden), 0) == entry
    with_crcs = golden[:36] + b"\1" * 8 + golden[44:]  # chainCrc and bodyCrc set by another writer
    assert read_entry(memoryview(with_crcs), 0) == entry
    assert (
        index_unit(entry).hex()
        == "00000001" + "00000000000003e8" + "00000034" + "000000000000000a" + "0000000000000003"
    )


@pytest.mark.spec("DL-S02", "DL-S03")
def test_file_ends_with_blank_record_and_next_begins_with_entry(tmp_path: Path) -> None:
    files = ledger(tmp_path)
    made = grow(files, 1, 12, body_bytes=152)  # 200 bytes each: 5 per file
    assert [entry.pos for entry in made[4:7]] == [800, 1024, 1224]
    assert int.from_bytes(files.data.files[0].map[1000:1004], "big", signed=True) == BLANK_MAGIC
    assert int.from_bytes(files.data.files[0].map[1004:1008], "big") == 24
    assert files.data.files[0].map[1008:1024] == bytes(16)
    assert [file.path.name for file in files.data.files] == [f"{at:020d}" for at in (0, 1024, 2048)]
    files.close()
    again = ledger(tmp_path)
    assert contents(again) == made
    again.close()


@pytest.mark.spec("DL-S02")
@pytest.mark.parametrize(
    ("end", "size", "expected"), [(0, 1016, 0), (0, 1020, 0), (924, 92, 924), (924, 93, 1024), (1024, 500, 1024)]
)
def test_place_reserves_eight_bytes_for_blank_record(end: int, size: int, expected: int) -> None:
    assert entry_position(end, size, 1024) == expected


@pytest.mark.spec("DL-S05")
def test_wrong_file_size_or_missing_file_is_refused(tmp_path: Path) -> None:
    files = ledger(tmp_path)
    grow(files, 1, 20, body_bytes=152)
    files.close()
    with pytest.raises(CorruptRecord, match="must be 2048"):
        LedgerFiles(tmp_path, file_bytes=2048, index_file_units=UNITS).open()
    with pytest.raises(CorruptRecord, match="must be 1024"):
        LedgerFiles(tmp_path, file_bytes=FILE_BYTES, index_file_units=UNITS // 2).open()
    (tmp_path / "data" / f"{1024:020d}").unlink()
    with pytest.raises(CorruptRecord, match="missing"):
        ledger(tmp_path)


@pytest.mark.spec("DL-S06", "DL-S07")
def test_lost_or_wrong_index_is_rebuilt_from_data(tmp_path: Path) -> None:
    files = ledger(tmp_path)
    made = grow(files, 1, 9, body_bytes=152)
    unit = bytes(files.index.files[0].map[: 9 * 32])
    files.index.files[0].map[4 * 32 : 5 * 32] = b"\xff" * 32
    files.close()
    again = ledger(tmp_path)
    assert again.recovered.index_from == 4
    assert contents(again) == made
    assert again.index.files[0].map[: 9 * 32] == unit
    again.close()
    shutil.rmtree(tmp_path / "index")
    third = ledger(tmp_path)
    assert contents(third) == made
    third.close()


@pytest.mark.spec("DL-S06")
@pytest.mark.parametrize("byte", [3, 11, 15, 23, 31], ids=["magic", "position", "size", "index", "term"])
def test_index_unit_that_differs_in_one_field_is_rewritten(byte: int, tmp_path: Path) -> None:
    files = ledger(tmp_path)
    made = grow(files, 1, 9)
    files.index.files[0].map[4 * 32 + byte] ^= 1
    files.close()
    again = ledger(tmp_path)
    assert (again.recovered.index_from, contents(again)) == (4, made)
    again.close()


@pytest.mark.spec("DL-S07")
def test_damage_in_the_middle_is_refused_with_its_position(tmp_path: Path) -> None:
    files = ledger(tmp_path)
    made = grow(files, 1, 25, body_bytes=152)
    files.data.files[2].map[made[12].pos - 2048 : made[12].pos - 2048 + 4] = b"\0\0\0\7"
    files.close()
    with pytest.raises(CorruptRecord, match=rf"damaged at {made[12].pos} \(magic 7\)"):
        ledger(tmp_path)


@pytest.mark.spec("DL-S06", "DL-S07")
@pytest.mark.parametrize(
    ("at", "value", "length"),
    [(0, 2, 4), (4, 0, 4), (4, 199, 4), (8, 18, 8), (16, 0, 8), (24, 3071, 8), (44, 0, 4)],
    ids=["magic", "no size", "size", "index", "term", "position", "body length"],
)
def test_recovery_ends_at_first_invalid_entry(at: int, value: int, length: int, tmp_path: Path) -> None:
    """Up to one whole file after it is dropped."""
    files = ledger(tmp_path)
    made = grow(files, 1, 23, body_bytes=152)  # 5 per file
    bad = made[17]
    files.data.files[3].map[bad.pos - 3072 + at : bad.pos - 3072 + at + length] = value.to_bytes(length, "big")
    files.close()
    again = ledger(tmp_path)
    assert contents(again) == made[:17]
    assert (again.end_index, again.end_term, again.end_pos) == (16, 1, bad.pos)
    assert len(again.data.files) == 4
    assert again.index.files[0].map[17 * 32 : 23 * 32] == bytes(6 * 32)
    again.close()


@pytest.mark.spec("DL-S06")
@pytest.mark.parametrize(("files", "unknown", "expected"), [(6, [], 3), (6, [3], 2), (6, [3, 2, 1], 0), (2, [], 0)])
def test_recovery_begins_three_files_from_end_or_earlier(files: int, unknown: list[int], expected: int) -> None:
    """If a file's first entry is missing in the index, the scan starts one file earlier."""
    heads = [EntryHeader(1, 200, 5 * number, 1, 1024 * number, 0, 0, 0, 152) for number in range(files)]
    units = {
        head.index: IndexUnit(1, head.pos + (number in unknown), head.size, head.index, head.term)
        for number, head in enumerate(heads)
    }
    found = [DataFile(head.pos, head) for head in heads]
    assert first_file(LedgerFacts(found, 1024, lambda pos: None, units.get, lambda header: True)) == expected


@pytest.mark.spec("DL-X16")
def test_recovery_ends_at_damaged_body(tmp_path: Path) -> None:
    files = ledger(tmp_path)
    made = grow(files, 1, 4)
    files.data.files[0].map[made[3].pos + 50 : made[3].pos + 51] = b"!"
    files.close()
    again = ledger(tmp_path, body_is_good=crc_is_good)
    assert contents(again) == made[:3]
    assert again.data.files[0].map[made[3].pos :].strip(b"\0") == b""
    again.close()


@pytest.mark.spec("DL-F08", "DL-S06")
def test_truncated_entries_do_not_reappear_after_restart(tmp_path: Path) -> None:
    """Entries 3..5 of term 3 are truncated; entry 3 of term 2 has the same size; a restart must not find 4 and 5 again."""
    files = ledger(tmp_path)
    kept = grow(files, 1, 3)
    grow(files, 3, 3)
    files.cut(3, kept[-1].end_pos)
    new = grow(files, 2, 1)
    files.close()
    again = ledger(tmp_path)
    assert contents(again) == kept + new
    again.close()


def test_truncation_deletes_the_files_that_it_empties(tmp_path: Path) -> None:
    """Of data and index: a start would find their entries again, behind the end of the log."""
    files = LedgerFiles(tmp_path, file_bytes=FILE_BYTES, index_file_units=4)
    files.open()
    kept = grow(files, 1, 30)[:5]

    def names(kind: str) -> list[str]:
        return sorted(path.name for path in (tmp_path / kind).iterdir())

    assert len(names("data")) == 4 and len(names("index")) == 8
    files.cut(5, kept[-1].end_pos)
    assert names("data") == [f"{0:020}"]
    assert names("index") == [f"{0:020}", f"{4 * 32:020}"]
    assert contents(files) == kept
    files.close()


@pytest.mark.spec("DL-F08")
def test_log_restarted_within_a_file_is_recovered(tmp_path: Path) -> None:
    files = ledger(tmp_path)
    grow(files, 1, 10, body_bytes=152)
    files.cut(1000, 50_500, restart=True)
    assert (files.begin_index, files.end_index, files.end_pos) == (-1, -1, 50_500)
    entry = Entry(1000, 2, 50_500, b"x" * 100)
    files.append([entry])
    files.close()
    again = ledger(tmp_path)
    assert (again.begin_index, again.end_index, again.begin_pos) == (1000, 1000, 50_500)
    assert contents(again) == [entry]
    assert [file.path.name for file in again.data.files] == [f"{50_500 - 50_500 % 1024:020d}"]
    again.close()


def test_file_that_was_repaired_and_then_deleted_is_not_synced(tmp_path: Path) -> None:
    files = LedgerFiles(tmp_path, file_bytes=1024, index_file_units=4)
    files.open()
    for number in range(12):
        files.append([Entry(number, 1, entry_position(files.end_pos, 200, 1024), b"%03d" % number + bytes(149))])
    files.sync_job()()
    first, begin = files.data.files[0].path, files.data.files[1].start
    entry = files.entry(2)
    assert entry is not None and files.repair(entry) and files.dirty
    assert files.delete_oldest() == 5 == files.begin_index and not first.exists()
    files.sync_job()()
    assert not files.dirty
    kept = files.entry(5)
    assert kept is not None and kept.pos == begin and files.entry(4) is None
    index_units = [int(path.name) // 32 for path in sorted((tmp_path / "index").iterdir())]
    assert index_units == [4, 8], "index files whose entries are all deleted go, too"
    assert files.delete_oldest() == 10 and files.delete_oldest() == 10, "the last file is kept"
    files.close()


@pytest.mark.spec("DL-S11", "DL-S12")
def test_delete_oldest_moves_begin_and_keeps_last_file(tmp_path: Path) -> None:
    files = LedgerFiles(tmp_path, file_bytes=FILE_BYTES, index_file_units=4)
    files.open()
    made = grow(files, 1, 23, body_bytes=152)
    assert files.delete_oldest() == 5
    assert files.delete_oldest() == 10
    assert files.index.files[0].start == 8 * 32
    assert contents(files) == made[10:]
    assert files.entry(9) is None
    files.close()
    again = LedgerFiles(tmp_path, file_bytes=FILE_BYTES, index_file_units=4)
    again.open()
    assert (again.begin_index, again.end_index) == (10, 22)
    for _ in range(9):
        last = again.delete_oldest()
    assert last == 20
    assert again.index.files[0].start == 20 * 32, "the file that ends there is wholly before"
    assert len(again.data.files) == 1
    again.close()


@pytest.mark.spec("DL-U01")
def test_empty_ledger_begins_at_start_pos(tmp_path: Path) -> None:
    files = ledger(tmp_path, start_pos=8192)
    grow(files, 0, 1)
    assert files.data.files[0].start == 8192
    files.close()


@pytest.mark.spec("DL-S06", "DL-X02")
def test_recovery_after_lost_pages_keeps_a_valid_prefix() -> None:
    """Random histories of appends, truncations and syncs, after which random unsynced pages are lost."""
    import tempfile

    for seed in range(40):
        rng = random.Random(seed)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            files = ledger(folder)
            synced: list[Entry] = []
            images: dict[str, bytes] = {}
            for _ in range(rng.randrange(1, 12)):
                step = rng.choice(("grow", "grow", "sync", "cut"))
                if step == "grow":
                    grow(files, max(files.end_term, 0) + rng.randrange(2), rng.randrange(1, 6), rng.choice((40, 152)))
                elif step == "sync" or files.end_index < 1:
                    files.sync_job()()
                else:
                    at = rng.randrange(1, files.end_index + 1)
                    before = files.entry(at - 1)
                    assert before is not None
                    files.sync_job()()
                    files.cut(at, before.end_pos)
                if step != "grow":
                    synced = contents(files)
                    images = {str(f.path): f.map[:] for f in files.data.files + files.index.files}
            live = contents(files)
            for file in files.data.files + files.index.files:
                durable = images.get(str(file.path), bytes(file.size_bytes))
                for at in range(0, file.size_bytes, 128):  # "pages" of 128 bytes
                    if rng.random() < 0.5:
                        file.map[at : at + 128] = durable[at : at + 128]
            files.close()
            again = ledger(folder, body_is_good=crc_is_good)
            found = contents(again)
            assert found == live[: len(found)], seed
            assert found[: len(synced)] == synced, seed
            new = grow(again, 9, 3, mark=b"new")
            again.close()
            third = ledger(folder)
            assert contents(third) == found + new, seed
            third.close()


@pytest.mark.spec("DL-S06", "DL-S07")
def test_recovery_plan_of_no_files_and_of_an_empty_file() -> None:
    facts = LedgerFacts([], 1024, lambda pos: None, lambda index: None, lambda header: True)
    assert (plan(facts).end_index, plan(facts).end_pos) == (-1, 0)
    facts = LedgerFacts([DataFile(4096, None)], 1024, lambda pos: None, lambda index: None, lambda header: True)
    assert (plan(facts).begin_index, plan(facts).end_pos, plan(facts).stopped_by) == (-1, 4096, "end of the last file")


@pytest.mark.spec("DL-A04", "DL-F07")
def test_index_unit_offset_is_32_times_index(tmp_path: Path) -> None:
    files = ledger(tmp_path)
    made = grow(files, 3, 70)  # spans two index files of 64 units
    assert [file.start for file in files.index.files] == [0, 64 * 32]
    units = b"".join(bytes(file.map[:]) for file in files.index.files)
    for entry in made:
        unit = struct.pack(">iqiqq", 1, entry.pos, entry.size, entry.index, 3)
        assert units[entry.index * 32 : entry.index * 32 + 32] == unit
    assert units[70 * 32 :].strip(b"\0") == b""
    files.data.files[0].map[made[1].pos + 36 : made[1].pos + 44] = b"\1" * 8  # the CRC fields
    assert files.entry(1) == made[1]
    files.close()


@pytest.mark.spec("DL-A04")
def test_append_of_non_consecutive_entries_is_refused(tmp_path: Path) -> None:
    from saturnmq.protocol.errors import InvariantBroken

    files = ledger(tmp_path)
    for wrong in ([*entries(1)[:1], Entry(2, 1, 54, b"x")], [Entry(0, 1, 8, b"x")]):
        with pytest.raises(InvariantBroken):
            files.append(wrong)
    files.close()


@pytest.mark.spec("DL-A04", "DL-S01", "DL-S02", "DL-S05")
def test_append_of_many_entries_equals_single_appends(tmp_path: Path) -> None:
    """Across data files and index files, and after an entry that fills its file, as a leader with larger files may send."""
    single, many = ledger(tmp_path / "single"), ledger(tmp_path / "many")
    made = grow(single, 1, 150)
    full = Entry(150, 1, entry_position(single.end_pos, FILE_BYTES, FILE_BYTES), bytes(FILE_BYTES - 48))
    made += [full, Entry(151, 1, full.end_pos, b"behind")]
    for entry in made[150:]:
        single.append([entry])
    many.append(made[:3])
    many.append(made[3:])
    assert (many.begin_index, many.end_index, many.end_term, many.end_pos) == (0, 151, 1, full.end_pos + 54)
    assert contents(many) == contents(single) == made
    single.close()
    many.close()
    for one in (tmp_path / "single").rglob("0*"):
        assert one.read_bytes() == (tmp_path / "many" / one.relative_to(tmp_path / "single")).read_bytes(), one


@pytest.mark.spec("DL-A04")
def test_append_writes_entries_before_an_invalid_one(tmp_path: Path) -> None:
    from saturnmq.protocol.errors import InvariantBroken

    files = ledger(tmp_path)
    good = [Entry(index, 1, 50 * index, b"xx") for index in range(3)]
    for wrong in (Entry(4, 1, 150, b"xx"), Entry(3, 1, 151, b"xx")):
        with pytest.raises(InvariantBroken, match="does not follow entry 2, which ends at 150"):
            files.append([*good, wrong])
        good = []
    assert contents(files) == [Entry(index, 1, 50 * index, b"xx") for index in range(3)]
    files.close()


class Recorded(Disk):
    """A disk that records which files were synced."""

    def __init__(self) -> None:
        self.synced: list[int] = []

    def sync(self, fd: int) -> None:
        self.synced.append(fd)
        super().sync(fd)


@pytest.mark.spec("DL-X02", "DL-S04")
def test_commit_is_one_sync_and_the_index_follows_when_due(tmp_path: Path) -> None:
    """Data only; the index with a checkpoint, and once a data file is full, after the data."""
    disk = Recorded()
    files = ledger(tmp_path, disk=disk)
    grow(files, 1, 1)
    files.sync_job()()
    data, index = files.data.files[0]._fd, files.index.files[0]._fd
    disk.synced.clear()
    for _ in range(3):
        grow(files, 1, 2)
        files.sync_job()()
    assert disk.synced == [data] * 3
    assert files.request_index_sync()
    files.sync_job()()
    assert disk.synced == [data] * 3 + [index]
    assert not files.request_index_sync()
    grow(files, 1, 5)
    disk.synced.clear()
    files.sync_job()()
    assert disk.synced == [data, files.data.files[1]._fd, index]
    files.close()


@pytest.mark.spec("DL-S04", "DL-S06")
def test_only_the_last_two_files_have_unsynced_entries_or_units(tmp_path: Path) -> None:
    """A push that fills several files is synced while it is written: recovery reads the last files only."""
    disk = Recorded()
    files = ledger(tmp_path, disk=disk)
    grow(files, 1, 1)
    disk.synced.clear()
    made = grow(files, 1, 40, body_bytes=152)
    assert len(files.data.files) > 6
    unsynced = {file._fd for file in files.data.files} - set(disk.synced)
    assert unsynced <= {file._fd for file in files.data.files[-2:]}
    assert files.index.files[0]._fd in disk.synced
    assert contents(files)[1:] == made
    files.close()


@pytest.mark.spec("DUR-07", "DL-S06")
def test_index_units_are_rewritten_where_a_sync_of_them_failed(tmp_path: Path) -> None:
    files = ledger(tmp_path)
    grow(files, 1, 4)
    files.close()
    again = LedgerFiles(tmp_path, file_bytes=FILE_BYTES, index_file_units=UNITS)
    again.open(rewrite_index=True)
    assert [header.index for header in again.recovered.reindexed] == [0, 1, 2, 3]
    again.close()


class Failing(Disk):
    """A disk that fails at the n-th modifying call."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.steps: list[str] = []

    def _step(self, what: str) -> None:
        self.steps.append(what)
        self.left -= 1
        if self.left == 0:
            raise OSError(5, "I/O error")

    def write_file(self, path: Path, data: bytes) -> None:
        self._step(f"write and sync {path.name}")
        super().write_file(path, data)

    def link(self, source: Path, target: Path) -> None:
        self._step(f"link {target.name}")
        super().link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        self._step(f"rename to {target.name}")
        super().replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        self._step("sync folder")
        super().sync_folder(folder)


@pytest.mark.spec("DL-M01", "DL-X01", "DUR-11")
def test_crash_while_writing_vote_never_allows_second_vote(tmp_path: Path) -> None:
    """After the crash the member either has the vote, or had not answered, or is in a later term."""
    for step in range(1, 7):
        folder = tmp_path / str(step)
        folder.mkdir()
        TermFile(folder).write(HardState(4, None))
        failed = False
        try:
            TermFile(folder, Failing(step)).write(HardState(5, "n1"))
        except StoreError:
            failed = True
        known = TermFile(folder).read(ledger_is_empty=False)
        assert known in (HardState(5, "n1"), HardState(4, None))
        assert failed or known == HardState(5, "n1")
    whole = Failing(0)
    TermFile(tmp_path / "1", whole).write(HardState(5, "n1"))
    assert whole.steps[-5:] == [
        "write and sync currterm.tmp", "link currterm.bak.tmp", "rename to currterm.bak", "rename to currterm", "sync folder",
    ]  # fmt: skip


class FullDisk(Disk):
    """A file system with a limited number of blocks of 4 KiB, all below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocks = 10**6

    def used(self) -> int:
        sizes = {path.stat().st_ino: path.stat().st_size for path in self.folder.rglob("*") if path.is_file()}
        return sum(-(-size // 4096) for size in sizes.values())

    def _take(self, path: Path, size_bytes: int) -> None:
        had = -(-path.stat().st_size // 4096) if path.exists() else 0
        if self.used() - had + -(-size_bytes // 4096) > self.blocks:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write_file(self, path: Path, data: bytes) -> None:
        self._take(path, len(data))
        super().write_file(path, data)

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        try:
            self._take(path, size_bytes)
        except OSError as error:
            raise DiskFull("no space") from error
        return super().create(path, size_bytes, allocate=allocate)


@pytest.mark.spec("DL-X01", "DUR-15")
def test_term_and_vote_are_written_on_a_full_disk(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    file = TermFile(tmp_path, disk)
    assert not (tmp_path / "currterm.reserve").exists()
    file.write(HardState(1, None))
    file.write(HardState(1, "n0"))
    disk.blocks = disk.used()  # from now on every block is in use
    for term in range(2, 200):
        file.write(HardState(term, "n1"))
        assert TermFile(tmp_path).read(ledger_is_empty=False) == HardState(term, "n1")
        assert (tmp_path / "currterm.reserve").is_file()
    (tmp_path / "taken").write_bytes(b"")
    reserve = (tmp_path / "currterm.reserve").stat().st_size
    (tmp_path / "currterm.reserve").unlink()
    (tmp_path / "taken").write_bytes(bytes(reserve))  # other files took the space: the write fails, the last vote stays
    with pytest.raises(DiskFull):
        file.write(HardState(500, None))
    assert TermFile(tmp_path).read(ledger_is_empty=False) == HardState(199, "n1")
    (tmp_path / "taken").unlink()
    assert file.reserve()
    file.write(HardState(500, None))


@pytest.mark.spec("DL-M01", "DL-X01")
def test_term_file_missing_damaged_or_backup_only(tmp_path: Path) -> None:
    term = TermFile(tmp_path)
    assert term.read(ledger_is_empty=True) == HardState(0, None)
    with pytest.raises(CorruptRecord, match="vote twice"):
        term.read(ledger_is_empty=False)
    assert term.read(ledger_is_empty=False, force=True) == HardState()
    term.write(HardState(3, None))
    term.write(HardState(3, "n2"))
    assert term.read(ledger_is_empty=False) == HardState(3, "n2")
    (tmp_path / "currterm").write_bytes(b"\0\0\0")
    assert term.read(ledger_is_empty=False) == HardState(4, None)  # the vote of term 3 was in the lost file
    (tmp_path / "currterm").unlink()
    assert term.read(ledger_is_empty=False) == HardState(4, None)
    (tmp_path / "currterm.bak").write_bytes(b"currTerm=x")
    with pytest.raises(CorruptRecord):
        term.read(ledger_is_empty=True)


@pytest.mark.spec("DL-Q07")
def test_unreadable_checkpoint_is_ignored(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path)
    assert file.read() == LedgerCheckpoint()
    file.write(LedgerCheckpoint(9, 7))
    assert file.read() == LedgerCheckpoint(9, 7)
    (tmp_path / "checkpoint").write_bytes(b"junk")
    assert file.read() == LedgerCheckpoint()


@pytest.mark.spec("DL-S13")
def test_data_files_are_created_round_robin_over_folders(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("c", "a", "b")]
    closed: set[Path] = set()
    several = {"data_folders": folders, "may_grow": lambda folder: folder not in closed}
    files = ledger(tmp_path, **several)
    made = grow(files, 1, 17, body_bytes=152)
    assert [file.path.parent.name for file in files.data.files] == ["a", "b", "c", "a"]
    closed.add(tmp_path / "b")
    made += grow(files, 1, 10, body_bytes=152)
    assert [file.path.parent.name for file in files.data.files][4:] == ["a", "c"]
    closed.update(folders)
    with pytest.raises(DiskFull, match="takes new files"):
        grow(files, 1, 10, body_bytes=152)
    end = files.end_index
    files.close()
    again = ledger(tmp_path, **several)
    assert contents(again)[: len(made)] == made
    assert again.end_index == end
    again.close()


@pytest.mark.spec("DL-S13")
def test_folder_of_a_data_file_follows_from_its_number_also_after_a_deletion(tmp_path: Path) -> None:
    files = ledger(tmp_path, data_folders=[tmp_path / name for name in "abc"])
    grow(files, 1, 17, body_bytes=152)  # 4 files
    assert (files.delete_oldest(), files.delete_oldest()) == (5, 10)
    grow(files, 1, 5, body_bytes=152)
    assert [file.path.parent.name for file in files.data.files] == ["c", "a", "b"]
    files.close()


@pytest.mark.spec("DL-S13")
def test_data_folders_from_settings() -> None:
    from saturnmq.raft.settings import RaftSettings

    settings = RaftSettings(data_folders_text="/d1, /d2,", read_only_text="/d2")
    assert settings.data_folders == (Path("/d1"), Path("/d2"))
    assert settings.read_only_folders == {Path("/d2")}
