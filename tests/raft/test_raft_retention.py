"""Retention of ledger files.

Requirements: DL-S09, DL-S10.
"""

from __future__ import annotations

import pytest

from saturnmq.raft.ledger.retention import HOUR_MS, DiskState, RetentionSettings, disk_state, files_to_delete

DEFAULT = RetentionSettings()
NOW = 1_000 * HOUR_MS


def ages(*hours: float) -> list[int]:
    return [int(NOW - hour * HOUR_MS) for hour in hours]


@pytest.mark.spec("DL-S10")
@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (-1.0, DiskState.FINE),
        (0.75, DiskState.FINE),
        (0.76, DiskState.CHECK),
        (0.86, DiskState.CLEAN),
        (0.90, DiskState.CLEAN),
        (0.91, DiskState.FULL),
    ],
)
def test_disk_state_by_used_ratio(used: float, expected: DiskState) -> None:
    assert disk_state(DEFAULT, used) is expected


@pytest.mark.spec("DL-S10")
def test_clean_and_full_ratio_bounds() -> None:
    assert RetentionSettings(force_ratio=0.2).clean_ratio == 0.50
    assert RetentionSettings(force_ratio=0.2).full_ratio == pytest.approx(0.55)
    assert RetentionSettings(force_ratio=0.94).full_ratio == 0.95


@pytest.mark.spec("DL-S09")
@pytest.mark.parametrize(
    ("hours", "hour", "disk", "expected"),
    [
        ((100, 80, 74, 72, 1), 4, DiskState.FINE, 3),
        ((100, 80, 74, 72, 1), 5, DiskState.FINE, 0),
        ((100, 80, 74, 72, 1), 5, DiskState.CHECK, 3),
        ((72, 100, 100), 4, DiskState.FINE, 0),  # oldest first: stops at the first unexpired file
        ((5, 4, 3), 5, DiskState.CLEAN, 2),
        ((5, 4, 3), 5, DiskState.FULL, 2),
        ((100, 100), 4, DiskState.FINE, 1),
        ((100,), 4, DiskState.FULL, 0),  # the last file is kept
        ((), 4, DiskState.FULL, 0),
        ((100,) * 30, 4, DiskState.FINE, 10),
        ((100,) * 30, 5, DiskState.FULL, 10),
    ],
)
def test_files_to_delete_table(hours: tuple[float, ...], hour: int, disk: DiskState, expected: int) -> None:
    assert files_to_delete(DEFAULT, ages(*hours), now_ms=NOW, hour=hour, disk=disk) == expected


@pytest.mark.spec("DL-S09")
def test_files_are_kept_for_at_least_one_hour() -> None:
    none = RetentionSettings(reserved_hours=0)
    assert files_to_delete(none, ages(1.5, 0.5, 0.1), now_ms=NOW, hour=4, disk=DiskState.FINE) == 1


@pytest.mark.spec("DL-S09", "DL-U03")
def test_without_force_only_expired_files_are_deleted() -> None:
    held = RetentionSettings(force_enabled=False, reserved_hours=87_600)
    assert files_to_delete(held, ages(100, 99, 1), now_ms=NOW, hour=4, disk=DiskState.FULL) == 0
    gentle = RetentionSettings(force_enabled=False)
    assert files_to_delete(gentle, ages(100, 99, 1), now_ms=NOW, hour=9, disk=DiskState.FULL) == 2
