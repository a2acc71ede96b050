"""JSON state files, replaced atomically, with a `.bak` that is read if the file itself is damaged.

Requirements: CF-02, DUR-14, DUR-15.
"""

from __future__ import annotations

import errno
import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from saturnmq.protocol.errors import CorruptRecord, DiskFull, SaturnError, StoreError
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.reserve import Reserve

T = TypeVar("T")

log = logging.getLogger(__name__)


class StateFile:
    """One state file and its `.bak`. Contents are opaque bytes; the owner parses them."""

    def __init__(self, path: Path, disk: Disk | None = None, reserve: Reserve | None = None) -> None:
        self._disk = disk or Disk()
        self._reserve = reserve
        self.path = path
        self.backup = path.with_name(path.name + ".bak")

    def candidates(self) -> list[bytes]:
        """The readable copies, newest first: the file, then its backup."""
        copies = []
        for path in (self.path, self.backup):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"cannot read state file {path}: {error.strerror}") from error
            copies.append(data)
        return copies

    def read(self, parse: Callable[[bytes], T]) -> T | None:
        """parse(bytes) of the newest copy that parses; None if neither file exists.

        Raises CorruptRecord if a copy exists but none parses.
        """
        problems = []
        for data in self.candidates():
            try:
                parsed = parse(data)
            except (
                # Whatever a parser can raise on arbitrary bytes: the backup is tried, and the reason named.
                ValueError,
                LookupError,
                ArithmeticError,
                TypeError,
                AttributeError,
                RecursionError,
                SaturnError,
            ) as error:
                problems.append(error.message if isinstance(error, SaturnError) else f"not understood: {error}")
                continue
            if problems:
                log.warning("state file read from its backup path=%s reason=%s", self.path, problems[0])
            return parsed
        if problems:
            copies = f"{shlex.quote(str(self.path))} {shlex.quote(str(self.backup))}"
            raise CorruptRecord(
                f"state file {self.path} and its backup {self.backup.name} cannot be read: {problems[0]}",
                hint=f"Put back a good copy of the file, or remove both to start without what they held: `rm -f {copies}`",
            )
        return None

    def write(self, data: bytes) -> None:
        """Replace the contents durably: temporary file, fsync, old file kept as .bak, rename, fsync of the folder (CF-02, DUR-14).

        On a full disk the reserve is given up and the write retried once (DUR-15). Raises StoreError, DiskFull.
        """
        try:
            self._write(data)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not full:
                raise StoreError(f"cannot write state file {self.path}: {error.strerror}") from error
            try:
                if self._reserve is None or not self._reserve.release():
                    raise
                self._write(data)
            except OSError as again:
                raise DiskFull(f"no space for state file {self.path}: {again.strerror}") from again

    def _write(self, data: bytes) -> None:
        disk = self._disk
        disk.make_folder(self.path.parent)
        temporary = self.path.with_name(self.path.name + ".tmp")
        disk.write_file(temporary, data)
        if self.path.exists():
            # Linked and renamed: there is a complete backup at any time.
            spare = self.backup.with_name(self.backup.name + ".tmp")
            disk.link(self.path, spare)
            disk.replace(spare, self.backup)
        # The file is replaced after the backup: a crash in between leaves two equal copies.
        disk.replace(temporary, self.path)
        # A rename is durable only with its folder.
        disk.sync_folder(self.path.parent)


def write_marker(path: Path, data: bytes, disk: Disk, *, level: int = logging.CRITICAL) -> None:
    """Write a recovery marker durably for the next start. On a broken disk that may fail, which is only logged."""
    try:
        disk.write_file(path, data)
        disk.sync_folder(path.parent)
    except (OSError, SaturnError) as error:
        log.log(level, "recovery marker not written path=%s reason=%s", path, error)
