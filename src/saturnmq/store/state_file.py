"""JSON state files: replaced atomically, with a backup that is really used. Source: design section 5, spec 02 section 15."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from saturnmq.protocol.errors import CorruptRecord, SaturnError, StoreError

T = TypeVar("T")

log = logging.getLogger(__name__)


class StateFile:
    """One state file and its `.bak`. Contents are bytes; the owner knows what they mean."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")

    def candidates(self) -> list[bytes]:
        """What can be read, newest first: the file, then its backup."""
        found = []
        for path in (self.path, self.backup):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"cannot read state file {path}: {error.strerror}") from error
            found.append(data)
        return found

    def read(self, parse: Callable[[bytes], T]) -> T | None:
        """parse(bytes) of the newest copy that parses; None when there is no file at all.

        Raises CorruptRecord when files are there and none of them parses.
        """
        problems = []
        for data in self.candidates():
            try:
                parsed = parse(data)
            except (ValueError, KeyError, TypeError, AttributeError, SaturnError) as error:
                problems.append(f"{type(error).__name__}: {error}")
                continue
            if problems:
                log.warning("state file %s cannot be used (%s); its backup is", self.path, problems[0])
            return parsed
        if problems:
            raise CorruptRecord(
                f"state file {self.path} and its backup cannot be read ({problems[0]}); repair or remove them"
            )
        return None

    def write(self, data: bytes) -> None:
        """Replace the contents: temporary file, fsync, keep the old as .bak, rename, fsync of the folder. Raises StoreError."""
        folder = self.path.parent
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                spare = self.backup.with_name(self.backup.name + ".tmp")
                spare.unlink(missing_ok=True)
                os.link(self.path, spare)
                spare.replace(self.backup)
            temporary.replace(self.path)
            sync_folder(folder)
        except OSError as error:
            raise StoreError(f"cannot write state file {self.path}: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """The folder's entries are on disk. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
