"""A sample of the crash states of a ledger, and a check that they show planted defects. More of them: `make crash`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.crash import ledger as crash
from harness.crash.campaign import scratch_folder
from longruns import long_but
from saturnmq.raft.ledger import files as ledger_files
from saturnmq.raft.ledger import recover
from saturnmq.raft.ledger.files import LedgerFiles

SHARE = 0.1


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def checked(seed: int, share: float, *, first_only: bool = False) -> tuple[int, list[str]]:
    count, bad = 0, []
    with scratch_folder() as top:
        (top / "lives").mkdir()
        for life in crash.lives(seed, top / "lives", crash.LIVES):
            more, found = crash.failures(life, top, share=share, first_only=first_only)
            count, bad = count + more, bad + found
            if first_only and bad:
                break
    return count, bad


@pytest.mark.spec("DL-S04", "DL-S06", "DL-X02", "DUR-12", "DUR-20", "G05")
@pytest.mark.parametrize("seed", long_but(1, range(4)))
def test_ledger_is_whole_after_any_crash(seed: int) -> None:
    """Nothing that was synced is lost; the index, of which any part may be lost, equals one that is made from the data."""
    count, bad = checked(seed, SHARE)
    assert count > 100
    assert not bad, bad[0]


def no_sync_of_the_data(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerFiles, "sync_job", lambda self: lambda: None)


def index_is_trusted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recover, "matches", lambda header, unit: header is not None)


def index_is_never_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerFiles, "_index_job", lambda self: lambda: None)


def first_entry_not_synced_alone(patch: pytest.MonkeyPatch) -> None:
    def write(self: LedgerFiles, run: list[object]) -> None:
        if run:
            self._write_run(run)  # type: ignore[arg-type]

    patch.setattr(LedgerFiles, "_write", write)


def rest_not_cleared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger_files, "_clear", lambda file, at, end: None)


@pytest.mark.spec("DL-S04", "DL-X02", "SIM-11")
@pytest.mark.parametrize(
    ("plant", "seeds"),
    long_but(
        1,
        [
            (no_sync_of_the_data, (0, 1)),
            (index_is_trusted, (0, 1)),
            (index_is_never_synced, (0, 1, 2, 3)),
            (first_entry_not_synced_alone, (0, 1, 2, 3)),
            (rest_not_cleared, (0, 1, 2, 3)),
        ],
    ),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_crash_states_of_a_ledger_show_planted_defect(
    plant: Callable[[pytest.MonkeyPatch], None], seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in seeds:
        try:
            if checked(seed, 1.0, first_only=True)[1]:
                return
        except AssertionError:  # the recorded run itself is broken
            return
    pytest.fail("no state shows it")


@pytest.mark.spec("DL-S06", "DL-F08")
def test_ledger_killed_in_its_first_write_opens_empty(tmp_path: Path) -> None:
    """Half of a header names position 0, which lies outside a file that begins elsewhere."""
    files = LedgerFiles(tmp_path, file_bytes=1024, index_file_units=64, start_pos=4096)
    files.open()
    files.append([crash.Entry(crash.LedgerIndex(0), crash.Term(1), 4096, b"body")])
    files.data.files[0].map[20:1024] = bytes(1004)
    files.close()
    again = LedgerFiles(tmp_path, file_bytes=1024, index_file_units=64, start_pos=4096)
    again.open()
    assert (again.end_index, again.end_pos) == (-1, 4096)
    again.close()
