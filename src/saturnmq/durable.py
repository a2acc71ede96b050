"""Makes a file, or the names in a folder, durable: for the parts that write files outside of a store."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Fsync a file, or a folder so that renames and new names in it survive a crash. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
