"""Retention policy: which files may be deleted, and when the disk is too full for writes. Pure: facts in, decision out.

Requirements: DEL-02..DEL-06.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from saturnmq.store.files.capacity import FULL_PERCENT, Usage

FILES_PER_RUN: Final = 10
FORCE_PERCENT: Final = 85  # unexpired files are deleted too (DEL-04)
MANUAL_RUNS: Final = 20  # runs armed by one manual trigger (DEL-08)


@dataclass(frozen=True, slots=True)
class Policy:
    """Hours of the day, retention time, disk usage in percent above which expired files are deleted early, forced deletion."""

    delete_hours: frozenset[int]
    reserved_ms: int
    used_percent_max: int
    forcible: bool


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """Number of the oldest files to delete now, the reason, and whether the disk counts as full."""

    delete: int
    reason: str
    disk_full: bool


def decide(
    policy: Policy,
    usage: Usage,
    *,
    hour: int,
    manual: bool,
    modified_ms: Sequence[int],
    now_ms: int,
    written_files: int,
) -> RetentionDecision:
    """Decide what to delete now (DEL-02..06).

    modified_ms: modification time of each commit log file, oldest first. written_files: how many of them precede the file
    being written; only those may be deleted.
    """
    # The fuller of both decides: either can stop the broker.
    worst = max(usage.commit_log, usage.consume_queue)
    # Unknown usage counts as scarce, so that expired files go, but not as full.
    unreadable = min(usage.commit_log, usage.consume_queue) < 0
    full = worst > FULL_PERCENT
    short = worst > policy.used_percent_max or unreadable
    # Above the limit files go before their time, if cleanFileForciblyEnable is set.
    forced = worst > FORCE_PERCENT and policy.forcible
    reason = ""
    if manual:
        reason = "requested"
    elif short:
        reason = f"disk {worst} % used, more than {policy.used_percent_max} %"
    elif hour in policy.delete_hours:
        reason = f"hour {hour} of deleteWhen"
    if not reason:
        return RetentionDecision(0, "", full)
    count = 0
    # Oldest first, and never a file after one that stays: the log has no gaps.
    for changed_ms in modified_ms[: min(written_files, FILES_PER_RUN)]:
        if not forced and changed_ms + policy.reserved_ms > now_ms:
            break
        count += 1
    if forced and count:
        reason += f"; unexpired files are deleted above {FORCE_PERCENT} %"
    return RetentionDecision(count, reason, full)
