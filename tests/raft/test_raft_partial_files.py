"""A crash between creation and allocation of a ledger file, which leaves the file short and empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.core.entry import Entry, entry_position
from saturnmq.raft.ledger.files import LedgerFiles

FILE_BYTES, UNITS = 1024, 4


def ledger(folder: Path) -> LedgerFiles:
    made = LedgerFiles(
        folder, file_bytes=FILE_BYTES, index_file_units=UNITS, data_folders=(folder / "data", folder / "b")
    )
    made.open()
    return made


def grow(files: LedgerFiles, count: int) -> None:
    for _ in range(count):
        files.append([Entry(files.end_index + 1, 1, entry_position(files.end_pos, 200, FILE_BYTES), b"x" * 152)])


def contents(files: LedgerFiles) -> dict[str, bytes]:
    return {str(file.path): file.map[:] for file in files.data.files + files.index.files}


@pytest.mark.spec("DUR-09", "DUR-20", "DL-S05")
@pytest.mark.parametrize("short_bytes", [0, 1, 64])
@pytest.mark.parametrize("name", ["data/1024", "b/1024", "index/128"])
@pytest.mark.parametrize("count", [0, 4])
def test_unallocated_file_is_removed_and_ledger_unchanged(
    tmp_path: Path, name: str, short_bytes: int, count: int
) -> None:
    files = ledger(tmp_path)
    grow(files, count)
    before = contents(files)
    files.close()
    folder, start = name.split("/")
    short = tmp_path / folder / f"{int(start) if count else 0:020d}"
    short.parent.mkdir(parents=True, exist_ok=True)
    short.write_bytes(bytes(short_bytes))
    again = ledger(tmp_path)
    assert again.end_index == count - 1
    assert contents(again) == before
    grow(again, 8)
    after = contents(again)
    again.close()
    third = ledger(tmp_path)
    assert third.end_index == count + 7
    assert contents(third) == after
    third.close()


@pytest.mark.spec("DL-S06", "DUR-20")
def test_unallocated_index_file_is_rebuilt(tmp_path: Path) -> None:
    """An entry is written before the index file for its unit is created."""
    files = ledger(tmp_path)
    grow(files, 5)
    before = contents(files)
    files.close()
    (tmp_path / "index" / f"{128:020d}").write_bytes(bytes(60))
    again = ledger(tmp_path)
    assert again.end_index == 4
    assert contents(again) == before
    again.close()


@pytest.mark.spec("DL-S05", "DUR-09")
@pytest.mark.parametrize("left", [b"", bytes(700), b"\0" * 48 + b"x"])
def test_short_file_with_indexed_entries_is_damage(tmp_path: Path, left: bytes) -> None:
    """Not truncated by an interrupted allocation: the index has entries in it."""
    files = ledger(tmp_path)
    grow(files, 7)
    last = files.data.files[-1].path
    files.close()
    last.write_bytes(left)
    with pytest.raises(CorruptRecord, match=f"{last.name} is {len(left)} bytes long"):
        ledger(tmp_path)


@pytest.mark.spec("DL-S05", "DUR-09")
def test_short_file_before_last_is_damage(tmp_path: Path) -> None:
    files = ledger(tmp_path)
    grow(files, 7)
    first = files.data.files[0].path
    files.close()
    first.write_bytes(b"")
    with pytest.raises(CorruptRecord, match="is 0 bytes long"):
        ledger(tmp_path)
