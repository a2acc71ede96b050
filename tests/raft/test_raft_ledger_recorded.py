"""Recorded runs of a ledger: each disk operation, each answer and each line about damage is the one in recorded_runs.txt.

The runs are those of the crash states (harness/crash/ledger.py), which check what must hold after a crash.
"""

from __future__ import annotations

import itertools
import random
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from harness.crash import ledger as crash
from harness.crash.check import QuickDisk, snapshot
from harness.crash.states import text_of
from harness.harm import damaged
from loglines import own_messages
from recordedruns import attempt, check_run
from saturnmq.raft.core.ids import NO_INDEX
from saturnmq.raft.ledger.check import compare, verify
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.opened import CheckpointRounds, open_ledger
from saturnmq.raft.ledger.term_file import CheckpointFile

RECORDED: Final = Path(__file__).with_name("recorded_runs.txt")


@pytest.mark.parametrize("seed", range(6))
def test_ledger_writes_and_syncs_as_recorded(tmp_path: Path, seed: int) -> None:
    steps = []
    for life in crash.lives(seed, tmp_path, 2):
        marks = sorted({0, len(life.operations), *(at for at, _ in life.promises)})
        steps += ["\n".join(map(text_of, life.operations[a:b])) for a, b in itertools.pairwise(marks)]
    check_run(RECORDED, f"operations {seed}", steps)


def answers(files: LedgerFiles) -> Iterator[str]:
    yield f"{files.begin_index} {files.end_index} {files.end_term} {files.end_pos} {files.begin_pos} {files.first_differing}"
    yield f"{files.dirty} {files.request_index_sync()} {files.recovered} {files.damaged}"
    for index in range(-1, files.end_index + 2):
        yield f"{attempt(files.entry, index)} {attempt(files.bytes_after, index)}"
    for pos in range(files.begin_pos - 10, files.end_pos + 20, 37):
        view = files.view(pos)
        yield "none" if view is None else f"{zlib.crc32(view):08x} {len(view)}"


@pytest.mark.parametrize("seed", range(4))
def test_damage_to_a_ledger_is_reported_as_recorded(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    (_,) = crash.lives(seed, tmp_path, 1)
    whole, chance, steps = tmp_path / "life0", random.Random(f"damage {seed}"), []
    for number in range(16):
        folder = tmp_path / f"damaged{number}"
        shutil.copytree(whole, folder)
        lines = [damaged(folder / crash.NAME, chance) for _ in range(number % 2 + 1)]
        lines.append(attempt(verify, folder / crash.NAME).replace(", ", "\n"))
        lines.append(attempt(compare, [whole / crash.NAME, folder / crash.NAME]))
        caplog.clear()
        disk = QuickDisk()
        files, checkpoint = crash.files_of(seed, folder, disk), CheckpointFile(folder / crash.NAME, disk)
        lines.append(opened := attempt(open_ledger, files, checkpoint))
        if opened.startswith("LedgerCheckpoint"):
            lines += answers(files)
            CheckpointRounds(files, checkpoint, "n0").write(LedgerCheckpoint(files.end_index, NO_INDEX))
            lines.append(attempt(files.delete_oldest))
        files.close()
        lines += [f"{name} {zlib.crc32(data):08x}" for name, data in sorted(snapshot(folder).items())]
        steps.append("\n".join([*lines, *own_messages(caplog)]).replace(str(tmp_path), "FOLDER"))
    check_run(RECORDED, f"damage {seed}", steps)
