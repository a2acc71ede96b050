"""Restores a store from a snapshot, and verifies it before a broker can serve from it.

Every file is compared with its checksum while it is copied: the snapshot is never linked to, so a broker cannot change it. The
copy is recovered as after a crash, verified as by `saturnmq store verify`, and only then gets its name; until then it lies in
a folder with the name extension `.restoring`, which no broker is started on.

Requirements: DUR-08, DUR-20.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from saturnmq.config.settings import load
from saturnmq.protocol.errors import ConfigError, CorruptRecord, DiskFull, StoreError
from saturnmq.store.files.disk import FOLDER_MODE, Disk
from saturnmq.store.settings import StoreSettings
from saturnmq.store.store import MessageStore
from saturnmq.store.tools.scan import Progress, no_progress
from saturnmq.store.tools.snapshot import EXTENSION_FOLDER, Manifest, ManifestEntry, new_private, read_manifest
from saturnmq.store.tools.verify import VerifyReport, verify

_CHUNK_BYTES: Final = 1 << 20
_ALLOCATED: Final = ("commitlog", "consumequeue", EXTENSION_FOLDER)  # mapped: a hole could not be filled on a full disk


def restore(source: Path, root: Path, progress: Progress = no_progress) -> VerifyReport:
    """Make a store in the folder `root`, which must not exist or be empty, from a snapshot; returns its verification.

    Raises ConfigError, CorruptRecord if the snapshot is damaged or the restored store is not sound, DiskFull, StoreError. There
    is no store in `root` then.
    """
    manifest = read_manifest(source)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} is not empty; name a folder that does not exist, or move the store in it away")
    partial = root.with_name(root.name + ".restoring")
    if partial.exists():
        raise ConfigError(f"{partial} is left from a restore that did not end; remove it")
    try:
        partial.mkdir(FOLDER_MODE, parents=True)
        _copy_files(source, partial, manifest, progress)
        report = _recover(partial, manifest)
        partial.replace(root)
        Disk().sync_folder(root.resolve().parent)
        return report
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise kind(f"cannot restore into {partial}: {error}", hint="Free space, or name another folder.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_files(source: Path, root: Path, manifest: Manifest, progress: Progress) -> None:
    total, copied_bytes = manifest.total_bytes, 0

    def advance(count: int) -> None:
        nonlocal copied_bytes
        copied_bytes += count
        progress(copied_bytes, total)

    for entry in manifest.files:
        inside = Path(entry.path)
        if inside.is_absolute() or ".." in inside.parts:
            raise CorruptRecord(f"the manifest of {source} names {entry.path!r}, which is outside of a snapshot")
        _copy(source / inside, root / inside, entry, advance)


def _copy(path: Path, target: Path, entry: ManifestEntry, advance: Callable[[int], None]) -> None:
    """Copy one file. Raises CorruptRecord unless length and checksum are those of the manifest."""
    target.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    digest, at = hashlib.sha256(), 0
    try:
        original = _regular(path)
    except FileNotFoundError as error:
        raise CorruptRecord(f"{path} is missing in the snapshot", hint="Use another snapshot.") from error
    with original, new_private(target) as copy:
        while at <= entry.bytes and (chunk := original.read(_CHUNK_BYTES)):
            digest.update(chunk)
            if any(chunk):
                copy.seek(at)
                copy.write(chunk)
            at += len(chunk)
            advance(len(chunk))
        copy.truncate(at)
        if at and Path(entry.path).parts[0] in _ALLOCATED:
            os.posix_fallocate(copy.fileno(), 0, at)
        copy.flush()
        os.fchmod(copy.fileno(), os.fstat(original.fileno()).st_mode & 0o777)
        os.fsync(copy.fileno())
    if at != entry.bytes or digest.hexdigest() != entry.sha256:
        text = f"{path} is not the file that was saved: {at} bytes, SHA-256 {digest.hexdigest()}"
        raise CorruptRecord(f"{text}; the manifest says {entry.bytes}, {entry.sha256}", hint="Use another snapshot.")


def _regular(path: Path) -> BinaryIO:
    """Open a file. Raises CorruptRecord if it is something else, such as a link, a pipe or a device, which may have no end."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise CorruptRecord(f"{path} is no regular file", hint="Use another snapshot.")
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


async def _complete(store: MessageStore) -> None:
    """Add what is missing in the index, and close the store."""
    queue, before = store.index_queue, -1
    while queue is not None and queue.lagging and queue.covered(store.dispatched) > before:
        before = queue.covered(store.dispatched)
        await queue.catch_up()
    await store.stop()


def _recover(root: Path, manifest: Manifest) -> VerifyReport:
    """Open the copy as after a crash, close it, and verify it."""
    pairs = manifest.keys | {"storePathRootDir": str(root)}
    settings = load(StoreSettings, ("manifest", pairs)).settings
    settings.abort_path.write_bytes(b"")
    store = MessageStore(settings)
    store.open()
    asyncio.run(_complete(store))
    report = verify(settings, frozenset(manifest.keys))
    if not report.sound:
        first = report.problems[0]
        raise CorruptRecord(
            f"the restored store is damaged: {first.path}: {first.description}", hint="Use another snapshot."
        )
    if report.log_end != manifest.log_end:
        text = f"the restored store ends at offset {report.log_end}, the snapshot was made up to {manifest.log_end}"
        raise CorruptRecord(text, hint="Use another snapshot.")
    return report
