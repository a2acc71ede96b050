"""A disk of limited size that a run can fill for real: a tmpfs, mounted where this process may (see run.py).

Requirements: SOK-04.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

BALLAST: Final = "ballast"
CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class SmallDisk:
    folder: Path

    @classmethod
    def mounted(cls, folder: Path, size_bytes: int) -> Self | None:
        """Mount one; None if this process may not."""
        folder.mkdir(parents=True, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
        try:
            done = subprocess.run(words, capture_output=True, check=False)
        except OSError:
            return None
        return cls(folder) if done.returncode == 0 else None

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)

    def used_percent(self) -> float:
        found = os.statvfs(self.folder)
        return 100 * (1 - found.f_bavail / found.f_blocks)


@contextmanager
def filled_to(folder: Path, percent: float) -> Iterator[None]:
    """Other data on the same disk, so that this share of it is used; 100: until the disk is full."""
    path = folder / BALLAST
    fill(path, percent)
    try:
        yield
    finally:
        path.unlink()


def fill(path: Path, percent: float) -> None:
    """Make the file at path so large that this share of its disk is used, or smaller if more is used already."""
    found = os.statvfs(path.parent)
    had = path.stat().st_size if path.exists() else 0
    target = had + found.f_bavail * found.f_frsize - int(found.f_blocks * found.f_frsize * (1 - percent / 100))
    if target < had:
        os.truncate(path, max(target, 0))
        return
    with path.open("ab") as file:
        try:
            while had < target:
                had += file.write(b"\1" * min(CHUNK_BYTES, target - had))
                file.flush()
        except OSError:
            if percent < 100:
                raise
