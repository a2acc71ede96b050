"""A sample of the crash matrix, and a check that it detects planted defects. The full matrix: `make crash`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.crash import campaign as crash
from longruns import long_but
from saturnmq.store import MessageStore, PutStatus, wait_confirmed
from saturnmq.store.files import mapped_file, state_file
from saturnmq.store.log import flush
from saturnmq.store.maintenance import maintenance
from saturnmq.store.recovery import opening, recover
from saturnmq.store.recovery.checkpoint import Checkpoint, Note

LIVES = [(0, 2), (1, 1), (2, 0), (15, 1), (15, 2)]  # the first kinds of lives, and what make test-long adds
LIVES += [life for seed in range(4) for number in range(crash.LIVES) if (life := (seed, number)) not in LIVES]
STATES_OF_LIFE = 150


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def outcome_of(seed: int, number: int, states: int, *, first_only: bool = False) -> crash.Outcome:
    """Check a random share, about `states` in number, of the crash states of one recorded run."""
    with crash.scratch_folder() as top:
        (top / "lives").mkdir()
        life = crash.life_of(seed, number, top / "lives")
        failed: list[bool] = []
        share = min(states / (12 * len(life.operations)), 1.0)
        return crash.check_life(
            life, top, share=share, on_checked=failed.append, stop=lambda: first_only and any(failed)
        )


@pytest.mark.spec("DUR-01", "DUR-03", "DUR-04", "DUR-08", "DUR-09", "DUR-13", "DUR-14", "DUR-18", "DUR-20")
@pytest.mark.spec("FLU-01", "RC-02", "RC-10", "RC-13", "IX-08", "CQ-07", "DEL-09", "G02", "G05")
@pytest.mark.parametrize(("seed", "number"), long_but(4, LIVES))
def test_store_is_consistent_after_any_crash(seed: int, number: int) -> None:
    outcome = outcome_of(seed, number, STATES_OF_LIFE)
    assert outcome.checked > STATES_OF_LIFE // 3
    if outcome.failures:
        shortest = min(outcome.failures, key=lambda failure: len(failure.lost))
        pytest.fail(
            f"{len(outcome.failures)} of {outcome.checked} states are wrong, for example\n{shortest}", pytrace=False
        )


# ---- planted defects


def no_sync_of_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mapped_file.MappedFile, "flush", lambda self, **_: None)


def acknowledged_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def when_flushed(self: flush.Flusher, end: int, timeout_ms: int, callback: Any) -> None:
        self.flushed = max(self.flushed, end)
        self.on_flushed(end)
        callback(PutStatus.PUT_OK, "")

    patch.setattr(flush.Flusher, "when_flushed", when_flushed)


def note_ahead_of_the_queues(patch: pytest.MonkeyPatch) -> None:
    original = maintenance.Maintenance.write_all

    async def write_all(self: maintenance.Maintenance) -> None:
        store = self._store
        await wait_confirmed(store.log, store.dispatched, 1000)
        store.checkpoint.write(self.note(store.dispatched))
        await original(self)

    patch.setattr(maintenance.Maintenance, "write_all", write_all)


def note_overwritten_without_a_copy(patch: pytest.MonkeyPatch) -> None:
    def write(self: Checkpoint, note: Note) -> None:
        self.path.unlink(missing_ok=True)

    patch.setattr(Checkpoint, "write", write)


def state_file_renamed_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    def write(self: state_file.StateFile, data: bytes) -> None:
        disk: Any = self._disk
        disk.make_folder(self.path.parent)
        temporary = self.path.with_name(self.path.name + ".tmp")
        disk.write_file(temporary, data)
        disk.replace(temporary, self.path)

    patch.setattr(state_file.StateFile, "write", write)


def bad_record_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recover, "is_torn", lambda *_: False)


def old_bytes_left_behind_the_end(patch: pytest.MonkeyPatch) -> None:
    from saturnmq.store.log.commit_log import CommitLog

    def set_end(self: CommitLog, end: int) -> int:
        self._files.truncate(end)
        self.end = self.committed = end
        self._current = self._files.find(end) if self.files else None
        return 0

    patch.setattr(CommitLog, "set_end", set_end)


def recovery_not_synced(patch: pytest.MonkeyPatch) -> None:
    def settle(store: MessageStore, todo: recover.RecoveryPlan, boundaries: list[int], *, changed: bool) -> None:
        store.begin_maintenance(boundaries)

    found = mapped_file.MappedFile.flush
    patch.setattr(opening, "_settle", settle)
    patch.setattr(mapped_file.MappedFile, "flush", lambda self, *, named=True: found(self) if named else None)


def removed_files_come_back(patch: pytest.MonkeyPatch) -> None:
    def delete(self: mapped_file.MappedFile) -> None:
        self.close()
        self._disk.unlink(self.path)

    patch.setattr(mapped_file.MappedFile, "delete", delete)


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], list[tuple[int, int]]]] = [
    (no_sync_of_the_log, [(0, 0)]),
    (acknowledged_before_the_sync, [(0, 0)]),
    (note_ahead_of_the_queues, [(3, 0), (0, 2)]),
    (note_overwritten_without_a_copy, [(3, 0), (2, 0)]),
    (state_file_renamed_without_a_sync, [(0, 0), (1, 0), (2, 0)]),
    (bad_record_passed_over, [(1, 0), (3, 0)]),
    (old_bytes_left_behind_the_end, [(66, 2), (62, 2)]),
    (recovery_not_synced, [(1, 2), (3, 1), (1, 1)]),
    (removed_files_come_back, [(3, 2), (0, 1)]),
]


@pytest.mark.spec("DUR-13", "SIM-11")
@pytest.mark.parametrize(("plant", "places"), long_but(2, PLANTED), ids=lambda value: getattr(value, "__name__", ""))
def test_crash_check_detects_planted_defect(
    plant: Callable[[pytest.MonkeyPatch], None], places: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed, number in places:
        try:
            if outcome_of(seed, number, 2000, first_only=True).failures:
                return
        except AssertionError:  # the defect already breaks the recorded run, before any crash
            return
    pytest.fail("no state shows it")
