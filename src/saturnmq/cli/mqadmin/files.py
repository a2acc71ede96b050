"""Files that commands write under names from the network: message ids and client ids.

A name never leaves its folder, and no link is followed.

Requirements: SEC-20, C-23, C-38.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import Final

BODIES: Final = Path("/tmp/rocketmq/msgbodys")  # noqa: S108 - Apache's folder; its owner is checked
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9@#._:+=-]")
_NAME_MAX: Final = 200


def safe_name(text: str) -> str:
    """The text as the name of a file: other characters become `_`, and it does not begin with a dot."""
    name = _UNSAFE.sub("_", text)[:_NAME_MAX] or "_"
    return "_" + name[1:] if name.startswith(".") else name


def write_body(name: str, body: bytes) -> Path:
    """Write the body of a message to Apache's folder; the path. Raises OSError, also for a folder of another user."""
    make_own(BODIES.parent, BODIES)
    return write_file(BODIES, name, body)


def make_own(*folders: Path) -> None:
    """Make folders of which each lies in the one before. Raises OSError for one that belongs to another user, or a link."""
    for path in folders:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o755)
        state = path.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"{path} belongs to another user or is no folder")


def write_file(folder: Path, name: str, data: bytes) -> Path:
    """Write a file below a folder under a safe name, replacing one of that name; the path. Raises OSError."""
    path = folder / safe_name(name)
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        part = f".{os.getpid()}.{path.name}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=within)
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=within)
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
        os.rename(part, path.name, src_dir_fd=within, dst_dir_fd=within)
    finally:
        os.close(within)
    return path
