"""How full the disks of a member are: that of its own folder and those of its data files. Source: spec 04 DL-S10, DL-S13."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

UNKNOWN = -1.0


def used_ratio(folder: Path) -> float:
    """The used part, 0..1, of the disk that holds a folder, or will hold it once it is made; negative: it has no size.

    Raises OSError.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return usage.used / usage.total if usage.total else UNKNOWN


def member_ratio(folder: Path, data_folders: Sequence[Path], read_only: Collection[Path]) -> float:
    """The used part that decides what a member deletes and whether it takes appends: the fuller one of two.

    folder holds index, term and checkpoint. Of the data folders that take new files the emptiest counts, because one with
    room is enough for the next file. Raises OSError.
    """
    growing = [data for data in data_folders if data not in read_only] or list(data_folders)
    return max(used_ratio(folder), min(map(used_ratio, growing), default=UNKNOWN))


def takes_files(folder: Path, data_folders: Sequence[Path], read_only: Collection[Path], limit: float) -> bool:
    """Whether new data files go there: one among several that is fuller than `limit` is passed over (DL-S13). Raises OSError."""
    if folder in read_only:
        return False
    return len(data_folders) < 2 or not folder.is_dir() or used_ratio(folder) <= limit
