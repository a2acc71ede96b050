"""Retention policy of a ledger: how many old data files to delete. Pure.

Requirements: DL-S09, DL-S10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

FILES_PER_ROUND_MAX: Final = 10
FORCE_RATIO_MIN: Final = 0.50
FULL_ABOVE_FORCE: Final = 0.05  # as in DLedger (DL-S10)
FULL_RATIO_MAX: Final = 0.95
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """reserved_hours: fileReservedTime + 1, at least 1. Ratios are used fractions of the disk, 0..1."""

    delete_hours: tuple[int, ...] = (4,)
    reserved_hours: int = 73
    force_enabled: bool = True
    check_ratio: float = 0.75
    force_ratio: float = 0.85

    @property
    def clean_ratio(self) -> float:
        """Above this usage, files are deleted whatever their age."""
        return max(self.force_ratio, FORCE_RATIO_MIN)

    @property
    def full_ratio(self) -> float:
        """Above this usage, the disk counts as full and appends are refused with 415."""
        return min(self.clean_ratio + FULL_ABOVE_FORCE, FULL_RATIO_MAX)


class DiskState(Enum):
    """State of the disk, by usage."""

    FINE = auto()
    CHECK = auto()
    CLEAN = auto()
    FULL = auto()


def disk_state(settings: RetentionSettings, used_ratio: float) -> DiskState:
    """The state for a used fraction of the disk; a negative ratio (disk of unknown size) is FINE."""
    if used_ratio > settings.full_ratio:
        return DiskState.FULL
    if used_ratio > settings.clean_ratio:
        return DiskState.CLEAN
    return DiskState.CHECK if used_ratio > settings.check_ratio else DiskState.FINE


def files_to_delete(
    settings: RetentionSettings, modified_ms: Sequence[int], *, now_ms: int, hour: int, disk: DiskState
) -> int:
    """Number of the oldest files to delete now; modified_ms: of each file, oldest first. The last file is always kept.

    Expired files are deleted in the hours of deleteWhen, or when disk usage is above the check ratio; above the clean ratio, if
    forced deletion is enabled, files of any age.
    """
    forced = settings.force_enabled and disk in (DiskState.CLEAN, DiskState.FULL)
    if not forced and hour not in settings.delete_hours and disk is DiskState.FINE:
        return 0
    reserved_ms = max(settings.reserved_hours, 1) * HOUR_MS
    count = 0
    # The last file is being written.
    for modified in modified_ms[: max(len(modified_ms) - 1, 0)]:
        if count == FILES_PER_ROUND_MAX or not (forced or modified + reserved_ms < now_ms):
            # The first file that is not expired ends the round: the log may not get a gap.
            break
        count += 1
    return count
