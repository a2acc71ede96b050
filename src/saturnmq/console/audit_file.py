"""The file of the console's audit log: rotated by size, with a fixed number of former files.

Former files are `audit.log.1`, the newest, to `audit.log.5`: a client that makes the console write lines fills no disk.

Requirements: UX-16, LIM-13.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

BYTES_MAX: Final = 10 * 1024 * 1024
FORMER: Final = 5

_lock: Final = threading.Lock()


def append_line(path: Path, line: str, *, bytes_max: int = BYTES_MAX) -> None:
    """Append a line; the file is rotated first if it has bytes_max already. Blocks; may be called by several threads."""
    with _lock:
        if path.exists() and path.stat().st_size >= bytes_max:
            names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, FORMER + 1))]
            for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
                if newer.exists():
                    newer.replace(older)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
