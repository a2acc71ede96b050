"""Snapshot of a store, while a broker serves from it: a folder from which `restore` makes a store again.

The snapshot holds the commit log up to one offset, at a record boundary, with every message that was acknowledged before the
snapshot began (with `transientStorePoolEnable` those of the last `commitIntervalCommitLog` are still in the broker's memory). The
store's own recovery makes the rest agree with it, so the order of the copies is what matters:

1. configuration and state files, which are replaced atomically; `checkpoint`, which says how far queues and index are durable;
2. index, consume queue extensions, consume queues: they reach at least as far as the checkpoint says;
3. the commit log: it holds every record that a queue unit points to.

Files that are complete are hard links, or copies where the snapshot is on another file system; files that may still be written
are copies. Nothing in the store is changed, and its lock is not taken. The manifest, with the checksum of every file, is written
last; until then the folder has the name extension `.partial`.

Requirements: DUR-20.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from saturnmq.config.settings import keys_of, to_properties
from saturnmq.protocol.errors import ConfigError, CorruptRecord, DiskFull, StoreError
from saturnmq.protocol.message import Message
from saturnmq.store.files.disk import FOLDER_MODE, PRIVATE_MODE
from saturnmq.store.queue.queues import LIST_NAME
from saturnmq.store.recovery.checkpoint import Checkpoint, Note
from saturnmq.store.recovery.opening import FAILURE_NAME
from saturnmq.store.settings import StoreSettings
from saturnmq.store.tools.scan import Progress, ReadOnlyDisk, ScannedLogFile, log_files, no_progress

T = TypeVar("T")

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
EXTENSION_FOLDER: Final = "consumequeue_ext"
_LISTINGS_MAX: Final = 10
_CHUNK_BYTES: Final = 1 << 20
_STATE_FOLDERS: Final = ("config", "conf", "namesrv")
# Keys that say how the files are divided; a restored store is opened with them.
_SHAPE: Final = (
    "storeProfile", "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "mappedFileSizeConsumeQueueExt", "maxHashSlotNum",
    "maxIndexNum", "enableConsumeQueueExt", "messageIndexEnable",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One file of a snapshot. path: relative to the snapshot and to the restored store; bytes: its length."""

    path: str
    bytes: int
    sha256: str
    linked: bool


@dataclass(slots=True)
class Manifest:
    """Contents of a snapshot. log_start, log_end: offsets of the commit log; keys: how its files are divided."""

    log_start: int
    log_end: int
    keys: dict[str, str]
    created: str = ""
    source: str = ""
    files: list[ManifestEntry] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files)

    def encode(self) -> bytes:
        table: dict[str, Any] = {
            "format": FORMAT,
            "made": self.created,
            "source": self.source,
            "logStart": self.log_start,
            "logEnd": self.log_end,
            "keys": self.keys,
            "files": [[each.path, each.bytes, each.sha256, each.linked] for each in self.files],
        }
        return json.dumps(table, indent=1).encode()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a snapshot. Raises ConfigError if the folder is none, CorruptRecord if the manifest is damaged."""
    path = folder / MANIFEST
    try:
        table = json.loads(path.read_bytes())
        if table["format"] != FORMAT:
            raise ConfigError(f"{path}: format {table['format']} is unknown, this version reads format {FORMAT}")
        files = [
            ManifestEntry(str(name), int(size), str(digest), bool(linked))
            for name, size, digest, linked in table["files"]
        ]
        keys = {str(name): str(text) for name, text in table["keys"].items()}
        if unknown_keys := sorted(keys.keys() - set(_SHAPE)):  # such as a storePath, which would open files elsewhere
            raise ValueError(f"keys {unknown_keys} do not belong into a manifest")
        return Manifest(int(table["logStart"]), int(table["logEnd"]), keys, table["made"], table["source"], files)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} is no snapshot: it has no {MANIFEST}; saturnmq store snapshot makes one"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecord(f"{path} is damaged: {error!r}", hint="Use another snapshot.") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def snapshot(settings: StoreSettings, target: Path, progress: Progress = no_progress) -> Manifest:
    """Make a snapshot of a store in the folder `target`, which must not exist. settings: as returned by `scan.shaped`.

    Raises ConfigError, StoreError, DiskFull; the folder `target.partial` then remains and may be deleted.
    """
    partial = target.with_name(target.name + ".partial")
    for path in (target, partial):
        if path.exists():
            raise ConfigError(f"{path} exists; name a folder that does not, or remove it")
    root = settings.root.resolve()
    if target.resolve().is_relative_to(root):
        raise ConfigError(f"{target} lies in the store {settings.root}; name a folder outside of it")
    try:
        partial.mkdir(FOLDER_MODE, parents=True)
        manifest = _Snapshot(settings, partial, progress).run()
        _write_durably(partial / MANIFEST, manifest.encode())
        for folder, _, _ in os.walk(partial):
            _sync(Path(folder))
        partial.rename(target)
        _sync(target.resolve().parent)
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise kind(f"cannot write the snapshot {partial}: {error}", hint=f"Remove {partial} and try again.") from error
    return manifest


class _Snapshot:
    """One snapshot in the making."""

    def __init__(self, settings: StoreSettings, target: Path, progress: Progress) -> None:
        self._settings = settings
        self._target = target
        self._progress = progress
        self._note: Note | None = None
        self._copied_bytes = 0
        self._total = 0
        self._files: list[ManifestEntry] = []

    def run(self) -> Manifest:
        settings = self._settings
        self._total = sum(file.length for file in again(lambda: log_files(settings)))
        for name in _STATE_FOLDERS:
            self._copy_folder(settings.root / name)
        for path in (settings.root / FAILURE_NAME, settings.root / LIST_NAME):
            self._copy_if_there(path, Path(path.name))
        self._copy_if_there(settings.checkpoint_path, Path("checkpoint"))
        checkpoint = Checkpoint(self._target / "checkpoint", ReadOnlyDisk())
        checkpoint.load()
        self._note = checkpoint.note
        self._copy_tree(settings.index_dir, "index", self._sealed_index)
        extension = settings.queue_extension
        if extension is not None:
            self._copy_tree(extension[0], EXTENSION_FOLDER)
        self._copy_tree(settings.consume_queue_dir, "consumequeue")
        start, end = self._log()
        shown = to_properties(settings) | {name: str(size) for name, size in settings.sizes.items()}
        keys = {name: shown[name] for name in _SHAPE if name in keys_of(StoreSettings)}
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return Manifest(start, end, keys, created, str(settings.root), sorted(self._files, key=lambda each: each.path))

    def _copy_folder(self, folder: Path) -> None:
        """Copy all files below a folder that are not temporary."""
        for path in _files_below(folder):
            if path.suffix != ".tmp":
                self._copy_if_there(path, path.relative_to(self._settings.root))

    def _sealed_index(self, path: Path) -> bool:
        """Whether an index file is not written any more: the files before the one that the checkpoint names are durable."""
        return self._note is not None and int(path.name) < self._note.index_file

    def _copy_tree(self, folder: Path, name: str, sealed: Callable[[Path], bool] = lambda path: True) -> None:
        """Link the complete files of each folder below `folder`, copy the last one, which may be written.

        sealed: whether a file that is not the last one is complete.
        """
        by_folder: dict[Path, list[Path]] = {}
        for path in _files_below(folder):
            if path.name.isdigit():
                by_folder.setdefault(path.parent, []).append(path)
        for paths in by_folder.values():
            paths.sort(key=lambda path: path.name)
            for path in paths:
                inside = Path(name) / path.relative_to(folder)
                if path is not paths[-1] and sealed(path):
                    self._link(path, inside)
                else:
                    self._copy_if_there(path, inside)

    def _log(self) -> tuple[int, int]:
        """Take the commit log; returns its first and its end offset.

        Files are created before they are needed: the one being written is the last one that is not empty. They are taken from
        the newest to the oldest, because retention deletes the oldest ones meanwhile.
        """
        files = again(lambda: log_files(self._settings))
        while files and not any(files[-1].read(0, 8)):
            files.pop()
        if not files:
            return 0, 0
        last = files.pop()
        end = _end_of_records(last, self._checked_from(last))
        self._copy(last.path, Path("commitlog") / last.path.name, end)
        start = last.start
        for file in reversed(files):
            if file.end != start or not self._link(file.path, Path("commitlog") / file.path.name):
                break
            start = file.start
        return start, last.start + end

    def _checked_from(self, file: ScannedLogFile) -> int:
        """Byte of a record in the file from which the log is read: as at a start of the store, what is before it is durable."""
        at = self._note.verify_from - file.start if self._note is not None else 0
        return at if 0 < at < file.file_bytes and isinstance(file.record(at), Message) else 0

    def _copy_if_there(self, path: Path, inside: Path) -> bool:
        """Copy a file unless it was deleted meanwhile."""
        try:
            self._copy(path, inside)
        except FileNotFoundError:
            return False
        return True

    def _copy(self, path: Path, inside: Path, used: int | None = None) -> None:
        """Copy a file; the copy is zero after the first `used` bytes."""
        with path.open("rb") as source:
            mode, length = os.fstat(source.fileno()).st_mode & 0o777, os.fstat(source.fileno()).st_size
            target = self._target_path(inside)
            digest = hashlib.sha256()
            remaining_bytes = length if used is None else used
            with new_private(target) as copy:
                for at in range(0, length, _CHUNK_BYTES):
                    chunk = source.read(min(_CHUNK_BYTES, remaining_bytes)) if remaining_bytes > 0 else b""
                    remaining_bytes -= len(chunk)
                    chunk = chunk.ljust(min(_CHUNK_BYTES, length - at), b"\0")
                    digest.update(chunk)
                    if any(chunk):
                        copy.seek(at)
                        copy.write(chunk)
                    self._advance(inside, len(chunk))
                copy.truncate(length)
                copy.flush()
                os.fchmod(copy.fileno(), mode)
                os.fsync(copy.fileno())
        self._files.append(ManifestEntry(str(inside), length, digest.hexdigest(), linked=False))

    def _link(self, path: Path, inside: Path) -> bool:
        """Link a complete file, or copy it to another file system; False if it was deleted meanwhile."""
        target = self._target_path(inside)
        try:
            os.link(path, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            return self._copy_if_there(path, inside)
        length, digest = 0, hashlib.sha256()
        with target.open("rb") as source:
            os.fsync(source.fileno())
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                length += len(chunk)
                self._advance(inside, len(chunk))
        self._files.append(ManifestEntry(str(inside), length, digest.hexdigest(), linked=True))
        return True

    def _target_path(self, inside: Path) -> Path:
        path = self._target / inside
        path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        return path

    def _advance(self, inside: Path, count: int) -> None:
        if inside.parts[0] == "commitlog":
            self._copied_bytes += count
            self._progress(min(self._copied_bytes, self._total), self._total)


def again(call: Callable[[], T]) -> T:
    """Call a function that lists files, again if one is deleted meanwhile, as retention does. Raises FileNotFoundError."""
    for _ in range(_LISTINGS_MAX):
        with contextlib.suppress(FileNotFoundError):
            return call()
    return call()


def _end_of_records(file: ScannedLogFile, at: int) -> int:
    """Byte after the last whole record of a file that may be written meanwhile; a record begins at byte `at`."""
    while isinstance(record := file.record(at), Message):
        at += record.store_bytes
    file.forget()
    return at


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            yield Path(parent) / name


def new_private(path: Path) -> BinaryIO:
    """Create a file that only its owner may read. Raises OSError if it exists."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE), "wb")


def _write_durably(path: Path, data: bytes) -> None:
    with new_private(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
