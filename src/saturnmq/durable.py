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


def replace_file(path: Path, data: bytes, *, mode: int = 0o600, has_backup: bool = False) -> None:
    """Replace a file so that a crash leaves its old or its new contents, or with has_backup the old ones as `.bak`.

    Write `.tmp`, fsync, rename the old file to `.bak`, rename `.tmp`, fsync the folder. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # its permissions could be others
    with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if has_backup and path.exists():
        path.replace(path.with_name(f"{path.name}.bak"))
    temporary.replace(path)
    sync_path(path.parent)
