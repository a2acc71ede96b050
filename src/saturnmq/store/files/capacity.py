"""Used share of the file systems, and the machine's memory.

Requirements: DEL-04, DEL-05, ST-20, BP-04.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NEARLY_FULL_PERCENT: Final = 85
FULL_PERCENT: Final = 90  # messages are rejected (DEL-04)
_DEFAULT_MEMORY: Final = 24 * 1024**3


@dataclass(frozen=True, slots=True)
class Usage:
    """Used share of the file systems, whole percent, rounded up; -1 if it cannot be read."""

    commit_log: int
    consume_queue: int
    index: int


def percent(used: int, total: int) -> int:
    """Used share in whole percent, rounded up; -1 if it cannot be read."""
    return -(-used * 100 // total) if total > 0 else -1


def used_percent(folder: Path) -> int:
    """Used share of the folder's file system in whole percent; -1 if it cannot be read. The folder need not exist yet."""
    try:
        facts = _facts(folder)
    except OSError:
        return -1
    # As df computes it.
    used = facts.f_blocks - facts.f_bfree
    return percent(used, used + facts.f_bavail)  # blocks reserved for root do not count


def space(folder: Path) -> tuple[int, int]:
    """Size of the folder's file system and what is free of it for us, in bytes; zeros if it cannot be read."""
    try:
        facts = _facts(folder)
    except OSError:
        return 0, 0
    return facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize


def _facts(folder: Path) -> os.statvfs_result:
    """File system of the folder, or of its nearest parent that exists."""
    # The store may not have been created yet.
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.statvfs(folder)


def nearly_full(folder: Path) -> bool:
    """Whether the folder gets no new files while another one has space (ST-20)."""
    return used_percent(folder) > NEARLY_FULL_PERCENT


def memory_bytes() -> int:
    """Memory of the machine; 24 GiB if it cannot be read."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return _DEFAULT_MEMORY
