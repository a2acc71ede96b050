"""Opens log files compressed with gzip or zstd, such as `00000000001073741824.gz`, through an anonymous temporary file.

Requirements: FMD-09.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pyarrow as pa

from saturnmq.protocol.errors import CorruptRecord

_CODECS: Final = {".gz": "gzip", ".zst": "zstd"}
_COPY_BYTES: Final = 4 * 1024 * 1024


def is_archive(path: str | Path) -> bool:
    """Whether the file name says that the file is compressed."""
    return Path(path).suffix in _CODECS


def number_of(path: Path) -> int | None:
    """Return the first physical offset from a file's name; None for a name that is not 20 digits."""
    match = re.fullmatch(r"(\d{20})(\.gz|\.zst)?", path.name)
    return int(match[1]) if match else None


def packed(folder: Path) -> bool:
    """Whether a folder exists and holds compressed log files."""
    return folder.is_dir() and any(is_archive(p) and number_of(p) is not None for p in folder.iterdir())


@contextmanager
def unpacked(path: str | Path) -> Iterator[IO[bytes]]:
    """Yield the decompressed content as a seekable file. Raises CorruptRecord for a truncated or damaged archive."""
    with tempfile.TemporaryFile(prefix="saturnmq-") as whole:
        try:
            with pa.input_stream(str(path), compression=_CODECS[Path(path).suffix]) as stream:
                shutil.copyfileobj(stream, whole, _COPY_BYTES)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CorruptRecord(f"{path}: cannot be unpacked: {error}") from error
        whole.flush()
        yield whole


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Yield a descriptor of a log file, compressed or not. Raises OSError when it was deleted, CorruptRecord for a bad archive."""
    if is_archive(path):
        with unpacked(path) as whole:
            yield whole.fileno()
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
