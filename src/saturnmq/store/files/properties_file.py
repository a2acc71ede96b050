"""Changes values in a properties file of the operator: atomically, comments and permissions kept.

Requirements: SEC-07, NS-29, CF-02.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from saturnmq.config.runtime import edited
from saturnmq.protocol.errors import StoreError
from saturnmq.store.files.disk import PRIVATE_MODE, Disk
from saturnmq.store.files.state_file import StateFile


class _SameMode(Disk):
    """Disk access that gives a new file the permissions of the one it replaces."""

    def __init__(self, mode: int) -> None:
        self._mode = mode

    def write_file(self, path: Path, data: bytes) -> None:
        super().write_file(path, data)
        path.chmod(self._mode)


def set_values(path: Path, values: Mapping[str, str]) -> None:
    """Set some keys of a properties file, which is created for its owner only if it does not exist. Blocks. Raises StoreError."""
    try:
        text, mode = path.read_text(encoding="utf-8"), path.stat().st_mode & 0o777
    except FileNotFoundError:
        text, mode = "", PRIVATE_MODE
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read configuration file {path}: {error}") from error
    StateFile(path, _SameMode(mode)).write(edited(text, values).encode())
