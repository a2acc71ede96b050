"""Disk usage of a member: of its own folder and of its data folders.

Requirements: DL-S10, DL-S13.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

UNKNOWN_RATIO = -1.0


def used_ratio(folder: Path) -> float:
    """The used fraction, 0..1, of the disk that holds a folder, or will hold it once created; UNKNOWN_RATIO if it has no size.

    Raises OSError.
    """
    # At the first start the folder is not there yet; its disk is that of the nearest parent.
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return usage.used / usage.total if usage.total else UNKNOWN_RATIO


def member_ratio(folder: Path, data_folders: Sequence[Path], read_only: Collection[Path]) -> float:
    """The disk usage that controls retention and admission of appends: the higher of two.

    One is the usage of `folder`, which holds index, term and checkpoint. The other is the lowest usage of the data folders that
    accept new files, because one folder with space is enough for the next file. Raises OSError.
    """
    growing = growing_folders(data_folders, read_only)
    return max(used_ratio(folder), min(map(used_ratio, growing), default=UNKNOWN_RATIO))


def growing_folders(data_folders: Sequence[Path], read_only: Collection[Path]) -> list[Path]:
    """The data folders that accept new files; all of them if every one is read-only."""
    return [data for data in data_folders if data not in read_only] or list(data_folders)


def takes_files(folder: Path, data_folders: Sequence[Path], read_only: Collection[Path], limit: float) -> bool:
    """Whether new data files may be created in a folder (DL-S13). Raises OSError.

    Not in a read-only folder, and not in one of several whose usage is above `limit`.
    """
    if folder in read_only:
        return False
    return len(data_folders) < 2 or not folder.is_dir() or used_ratio(folder) <= limit
