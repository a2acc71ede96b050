"""Removes files whose allocation a crash interrupted: the last file of its kind, shorter than its full size and all zeros.

A file has its full size on disk before anything is written to it, so a file whose allocation was interrupted never held data. A
short file that does not fit this description is damaged, and is left for `load` to refuse.

Requirements: DL-S05, DUR-09, DUR-20.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from saturnmq.raft.ledger.layout import INDEX_UNIT, INDEX_UNIT_BYTES, IndexUnit
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import MappedFiles, is_zero, numbered_files

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1_048_576


def remove_partial_index(index: MappedFiles, disk: Disk) -> None:
    """Remove such an index file, before `index.load`. Its units, if it had any, are rebuilt from the data files."""
    path = _partial(index)
    if path is not None:
        _drop(path, disk)


def remove_partial_data(data: MappedFiles, index: MappedFiles, disk: Disk) -> None:
    """Remove such a data file, unless the (loaded) index has an entry in it: then the file is damaged and stays."""
    path = _partial(data)
    # Zeros where the index has an entry: the data was lost, not never written.
    if path is not None and _indexed_to(index) <= int(path.name):
        _drop(path, disk)


def _partial(files: MappedFiles) -> Path | None:
    paths: Sequence[Path] = [path for folder in files.folders for path in numbered_files(folder)]
    last = max(paths, key=lambda path: path.name, default=None)
    # By the name, which is the position: only the last file can be one whose allocation was interrupted.
    return last if last is not None and last.stat().st_size < files.size_bytes and is_zero(last) else None


def _indexed_to(index: MappedFiles) -> int:
    """End position of the last entry in the index; -1 if the index is empty."""
    for file in reversed(index.files):
        for stop in range(file.size_bytes, 0, -_CHUNK_BYTES):
            start = max(stop - _CHUNK_BYTES, 0)
            used = len(bytes(file.view[start:stop]).rstrip(b"\0"))
            if used:
                at = (start + used - 1) // INDEX_UNIT_BYTES * INDEX_UNIT_BYTES
                unit = IndexUnit(*INDEX_UNIT.unpack_from(file.view, at))
                return unit.pos + unit.size
    return -1


def _drop(path: Path, disk: Disk) -> None:
    log.warning("partial file deleted path=%s", path)
    disk.unlink(path)
    disk.sync_folder(path.parent)
