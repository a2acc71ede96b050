"""Log files that are read through a temporary file: compressed ones, such as `00000000001073741824.gz`, and those of archives.

An archive is a folder, mostly of an object store, that `saturnmq spark archive` writes and only that command changes:

    files/00000000001073741824.zst      a log file, compressed or not
    manifest/00000000001073741824.json  its description, written when the file is complete: no reader sees a file without one

Requirements: FMD-09.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.spark.local_paths import local_path

FILES: Final = "files"
MANIFEST: Final = "manifest"
FORMAT: Final = 1
_CODECS: Final = {".gz": "gzip", ".zst": "zstd"}
_NUMBERED: Final = re.compile(r"(\d{20})(\.gz|\.zst)?")
_READS_AT_ONCE: Final = 16
COPY_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class ArchivedFile:
    """A log file of an archive.

    name: of the file. base: offset of its first byte. content_bytes, sha256: of the content, decompressed. head_sha256: of its
    first 64 KiB, which distinguish the logs of two brokers. records, first_ms, last_ms: readable records and their store times.
    """

    name: str
    base: int
    content_bytes: int
    sha256: str
    head_sha256: str
    records: int
    first_ms: int
    last_ms: int
    ledger: bool

    def encode(self) -> bytes:
        """Return the description as the manifest has it."""
        return json.dumps({"format": FORMAT} | asdict(self), indent=1).encode()


def _decoded(path: str, data: bytes) -> ArchivedFile:
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields.pop("format") != FORMAT:
            raise ValueError(f"this version reads format {FORMAT}")
        file = ArchivedFile(**fields)
        if number_of(Path(file.name)) != file.base:
            raise ValueError(f"name {file.name!r} does not begin with offset {file.base}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecord(f"{path}: is no description of an archived file: {error}") from error
    return file


def archived_files(url: str) -> list[ArchivedFile]:
    """Return the complete files of an archive, in order; none if there is no archive. Raises ConfigError, StoreError."""
    from pyarrow import fs

    from saturnmq.spark.object_store import check_bucket, file_system, service_errors

    system, root = file_system(url)

    def read(path: str) -> ArchivedFile:
        with service_errors(url), system.open_input_stream(path) as stream:
            return _decoded(path, stream.read())

    with service_errors(url):
        infos = system.get_file_info(fs.FileSelector(f"{root}/{MANIFEST}", allow_not_found=True))
    # An empty object is what a store keeps of an upload that was interrupted: the file is not in the archive yet.
    paths = [info.path for info in infos if re.fullmatch(r"\d{20}\.json", info.base_name) and info.size]
    if not paths:
        check_bucket(url)
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        return sorted(pool.map(read, paths), key=lambda file: file.base)


def is_compressed(path: str | Path) -> bool:
    """Whether the file name says that the file is compressed."""
    return Path(path).suffix in _CODECS


def number_of(path: Path) -> int | None:
    """Return the first physical offset from a file's name; None for a name that is not 20 digits."""
    match = _NUMBERED.fullmatch(path.name)
    return int(match[1]) if match else None


def packed(folder: Path) -> bool:
    """Whether a folder exists and holds compressed log files."""
    return folder.is_dir() and any(is_compressed(p) and number_of(p) is not None for p in folder.iterdir())


def is_copied(path: str, sha256: str = "") -> bool:
    """Whether a file is read through a temporary copy: a compressed, a remote or an archived one, whose checksum is known."""
    return bool(sha256) or is_compressed(path) or local_path(path) is None


@contextmanager
def unpacked(path: str, sha256: str = "") -> Iterator[IO[bytes]]:
    """Yield the decompressed content as a seekable file; sha256: its checksum, if known.

    Raises CorruptRecord for a truncated or damaged file, StoreError when it cannot be fetched, FileNotFoundError.
    """
    from saturnmq.spark.object_store import file_system, service_errors

    system, name = file_system(path)
    digest = hashlib.sha256()
    with tempfile.TemporaryFile(prefix="saturnmq-") as whole:
        try:
            with (
                service_errors(path),
                system.open_input_stream(name, compression=_CODECS.get(Path(path).suffix)) as stream,
            ):
                while data := stream.read(COPY_BYTES):
                    whole.write(data)
                    if sha256:
                        digest.update(data)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CorruptRecord(f"{path}: cannot be unpacked: {error}") from error
        if sha256 and digest.hexdigest() != sha256:
            raise CorruptRecord(f"{path}: its content does not have the checksum of its manifest, {sha256}")
        whole.flush()
        yield whole


@contextmanager
def opened(path: str, sha256: str = "") -> Iterator[int]:
    """Yield a descriptor of a log file; a compressed, remote or archived one (then with its checksum) is copied first.

    Raises OSError when it was deleted, and the errors of `unpacked`.
    """
    if is_copied(path, sha256):
        with unpacked(path, sha256) as whole:
            yield whole.fileno()
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
