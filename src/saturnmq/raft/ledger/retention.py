"""Which old files of a ledger go. Pure: facts in, a number of files out. Source: spec 04 DL-S09, DL-S10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

FILES_PER_ROUND_MAX: Final = 10
FORCE_RATIO_MIN: Final = 0.50
FULL_ABOVE_FORCE: Final = 0.05
FULL_RATIO_MAX: Final = 0.95
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """reserved_hours: fileReservedTime + 1, at least 1. Ratios are used parts of the disk, 0..1."""

    delete_hours: tuple[int, ...] = (4,)
    reserved_hours: int = 73
    force_enabled: bool = True
    check_ratio: float = 0.75
    force_ratio: float = 0.85

    @property
    def clean_ratio(self) -> float:
        """Above it files go whatever their age."""
        return max(self.force_ratio, FORCE_RATIO_MIN)

    @property
    def full_ratio(self) -> float:
        """Above it the disk counts as full, appends are answered 415."""
        return min(self.clean_ratio + FULL_ABOVE_FORCE, FULL_RATIO_MAX)


class Disk(Enum):
    """How full it is."""

    FINE = "fine"
    CHECK = "check"
    CLEAN = "clean"
    FULL = "full"


def disk_state(settings: RetentionSettings, used_ratio: float) -> Disk:
    """The state for a used part of the disk; one without a size (negative) is fine."""
    if used_ratio > settings.full_ratio:
        return Disk.FULL
    if used_ratio > settings.clean_ratio:
        return Disk.CLEAN
    return Disk.CHECK if used_ratio > settings.check_ratio else Disk.FINE


def files_to_delete(
    settings: RetentionSettings, modified_ms: Sequence[int], *, now_ms: int, hour: int, disk: Disk
) -> int:
    """How many of the oldest files go now; modified_ms of each file, oldest first. The last one never goes.

    In the hour of deleteWhen, or when the disk is fuller than the check ratio, the old ones; forced, any.
    """
    forced = settings.force_enabled and disk in (Disk.CLEAN, Disk.FULL)
    if not forced and hour not in settings.delete_hours and disk is Disk.FINE:
        return 0
    reserved_ms = max(settings.reserved_hours, 1) * HOUR_MS
    count = 0
    for modified in modified_ms[: max(len(modified_ms) - 1, 0)]:
        if count == FILES_PER_ROUND_MAX or not (forced or modified + reserved_ms < now_ms):
            break
        count += 1
    return count
