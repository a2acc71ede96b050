"""`saturnmq spark archive`: copies closed commit log files to a bucket, lists them, fetches them again, deletes old ones.

A file of the log is complete in the archive when its description is in the manifest, which is written last and deleted first.
Runs that are killed are completed by the next one. Needs no Spark session. Layout: log_archive.py.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pyarrow import fs

from saturnmq.config.settings import parse_time_ms
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.protocol.message import STORE_TIMESTAMP_END_MAX, store_timestamp_of
from saturnmq.raft.ledger.layout import HEADER
from saturnmq.spark.local_paths import path_or_url
from saturnmq.spark.log_archive import COPY_BYTES, FILES, MANIFEST, ArchivedFile, archived_files, opened, unpacked
from saturnmq.spark.log_scan import NO_LIMIT, ScanFile, chunks, log_files, piece_of
from saturnmq.spark.object_store import file_system, service_errors
from saturnmq.spark.option_table import duration_ms
from saturnmq.spark.pipelines import running
from saturnmq.spark.pipelines.running import PipelineOutcome

SUFFIXES: Final = {"zstd": ".zst", "gzip": ".gz", "none": ""}
HEAD_BYTES: Final = 65_536
Report = Callable[[str], Any]


def put(store: str, url: str, compression: str, report: Report) -> list[ArchivedFile]:
    """Copy the closed files of a store that the archive does not have; return their descriptions.

    Raises ConfigError when the archive holds the log of another broker, StoreError.
    """
    by_base = {file.base: file for file in archived_files(url)}
    system, root = file_system(url)
    added = []
    for file in closed_files(store):
        try:
            with opened(file.path) as handle:
                head = hashlib.sha256(os.pread(handle, HEAD_BYTES, 0)).hexdigest()
                archived = by_base.get(file.base)
                if archived is None:
                    added.append(_put_file(system, root, url, file, handle, head, SUFFIXES[compression]))
                    report(f"archived {described(added[-1])}")
                elif archived.head_sha256 != head:
                    raise ConfigError(
                        f"{url}: holds another log, its {archived.name} is not {file.path}; each broker has its own folder"
                    )
        except FileNotFoundError:
            raise StoreError(
                f"{file.path}: was deleted before it was archived; archive more often than fileReservedTime"
            ) from None
    return added


def closed_files(store: str) -> list[ScanFile]:
    """Return the files that the broker does not write any more: all but the last, of a DLedger those that are committed."""
    return [
        file
        for file, after in pairwise(log_files(store))
        if not after.ledger or _first_index(after) <= file.committed + 1
    ]


def _first_index(file: ScanFile) -> int:
    with opened(file.path) as handle:
        return int(HEADER.unpack(os.pread(handle, HEADER.size, 0))[2])


def _put_file(
    system: fs.FileSystem, root: str, url: str, file: ScanFile, handle: int, head: str, suffix: str
) -> ArchivedFile:
    name, digest, at = f"{file.base:020d}{suffix}", hashlib.sha256(), 0
    with service_errors(url):
        for folder in (FILES, MANIFEST):
            system.create_dir(f"{root}/{folder}")
        with system.open_output_stream(f"{root}/{FILES}/{name}") as out:  # compresses by the name
            while data := os.pread(handle, COPY_BYTES, at):
                out.write(data)
                digest.update(data)
                at += len(data)
    times = [
        store_timestamp_of(chunk.data[position : position + STORE_TIMESTAMP_END_MAX])
        for chunk in chunks(piece_of(file))
        for position in chunk.positions.tolist()
    ]
    archived = ArchivedFile(
        name,
        file.base,
        at,
        digest.hexdigest(),
        head,
        len(times),
        min(times, default=0),
        max(times, default=NO_LIMIT),
        file.ledger,
    )
    path, content = _manifest_path(root, archived), archived.encode()
    # There a reader sees a file that is being written, and a power loss undoes writes.
    is_local = system.type_name == "local"
    with service_errors(url):
        if is_local:
            _sync(f"{root}/{FILES}/{name}", f"{root}/{FILES}")
        with system.open_output_stream(f"{path}.new" if is_local else path) as out:
            out.write(content)
        if is_local:
            _sync(f"{path}.new")
            system.move(f"{path}.new", path)
            _sync(f"{root}/{MANIFEST}")
    return archived


def _sync(*paths: str) -> None:
    """Make files, and the entries of folders, durable. Raises OSError."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _manifest_path(root: str, file: ArchivedFile) -> str:
    return f"{root}/{MANIFEST}/{file.base:020d}.json"


def fetch(url: str, files: Sequence[ArchivedFile], folder: Path | None, report: Report) -> None:
    """Fetch files into a folder that `mode=files` reads, or with None only compare their checksums.

    Raises CorruptRecord; ConfigError for a file of that name with another content.
    """
    for file in files:
        with unpacked(f"{url.rstrip('/')}/{FILES}/{file.name}", file.sha256) as whole:
            if folder is not None:
                _write_copy(whole.fileno(), file, folder)
        report(f"verified {described(file)}")


def _write_copy(handle: int, file: ArchivedFile, folder: Path) -> None:
    target = folder / ("dledger-archive/data" if file.ledger else "commitlog") / f"{file.base:020d}"
    if target.exists():
        with target.open("rb") as present:
            if hashlib.file_digest(present, "sha256").hexdigest() == file.sha256:
                return
        raise ConfigError(f"{target} exists with another content; name another folder, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".new")
    with temporary.open("wb") as out:
        at = 0
        while data := os.pread(handle, COPY_BYTES, at):
            at += out.write(data)
    temporary.rename(target)


def expire(url: str, limit_ms: int, *, delete: bool, report: Report) -> list[ArchivedFile]:
    """Delete the files whose records are all older, and what killed runs left before that time; return them.

    delete=False: delete nothing.
    """
    files = archived_files(url)
    old = [file for file in files if file.last_ms < limit_ms]
    system, root = file_system(url)
    names = {file.name for file in files}
    with service_errors(url):
        leftovers = [
            info.path
            for info in system.get_file_info(fs.FileSelector(f"{root}/{FILES}", allow_not_found=True))
            if info.base_name not in names and info.mtime_ns is not None and info.mtime_ns < limit_ms * 1_000_000
        ]
        for file in old:
            report(f"{'deleted' if delete else 'would delete'} {described(file)}")
            if delete:
                for path in (_manifest_path(root, file), f"{root}/{FILES}/{file.name}"):
                    system.delete_file(path)
        for path in leftovers:
            report(f"{'deleted' if delete else 'would delete'} {path}: an interrupted upload")
            if delete:
                system.delete_file(path)
    return old


def described(file: ArchivedFile) -> str:
    """Return one line about a file, for people."""
    begin, end = (
        datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") if file.records else "-"
        for ms in (file.first_ms, file.last_ms)
    )
    return f"{file.name} bytes={file.content_bytes} records={file.records} from={begin} to={end} sha256={file.sha256}"


def parser() -> argparse.ArgumentParser:
    """Return the parser of `saturnmq spark archive`."""
    p = argparse.ArgumentParser(
        prog="saturnmq spark archive",
        description="Copy closed commit log files to a bucket or folder, list and verify them, fetch them, delete old ones.",
    )
    p.add_argument(
        "url", metavar="URL", help="folder of the archive: s3://BUCKET/FOLDER, gs://..., a path; one per broker"
    )
    p.add_argument("--from", dest="store", metavar="DIR", help="copy from this store: its folder, or its commitlog")
    p.add_argument("--compress", choices=tuple(SUFFIXES), default="zstd", help="form of new files (default zstd)")
    p.add_argument("--verify", action="store_true", help="read every file and compare its checksum")
    p.add_argument("--get", dest="folder", metavar="DIR", type=Path, help="fetch the files into this folder, verified")
    p.add_argument("--since", metavar="TIME", help="of files with records stored at this time (UTC) or later")
    p.add_argument("--until", metavar="TIME", help="of files with records stored before this time (UTC)")
    p.add_argument("--older-than", metavar="AGE", help="show the files with older records only, such as 365d")
    p.add_argument("--delete", action="store_true", help="with --older-than: delete these files")
    p.add_argument("--json", action="store_true", help="the result as one JSON document")
    p.add_argument("--quiet", action="store_true", help="no line per file")
    return p


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0. Raises ConfigError, StoreError."""
    args = parser().parse_args(argv)
    url = running.parsed("URL", args.url, path_or_url)
    actions = [bool(args.store), args.verify or bool(args.folder), bool(args.older_than)]
    if (
        sum(actions) > 1
        or (args.delete and not args.older_than)
        or ((args.since or args.until) and (args.store or args.older_than))
    ):
        raise ConfigError(
            "give one of --from, --older-than, --verify and --get; --delete belongs to --older-than, --since and --until "
            "not to it and not to --from"
        )
    began, now_ms = time.monotonic(), int(time.time() * 1000)

    def report(line: str) -> None:
        if not (args.quiet or args.json):
            print(line, flush=True)

    if args.store:
        files, verb = put(args.store, url, args.compress, report), "archived"
    elif args.older_than:
        age_ms = running.parsed("--older-than", args.older_than, duration_ms(1))
        files, verb = (
            expire(url, now_ms - age_ms, delete=args.delete, report=report),
            "deleted" if args.delete else "would delete",
        )
    else:
        since, until = (
            running.parsed(option, text, lambda text: parse_time_ms(text, now_ms)) if text else limit
            for option, text, limit in (("--since", args.since, 0), ("--until", args.until, NO_LIMIT))
        )
        files, verb = (
            [file for file in archived_files(url) if since <= file.last_ms and file.first_ms < until],
            "listed",
        )
        if args.verify or args.folder:
            fetch(url, files, args.folder, report)
            verb = "verified"
        else:
            for file in files:
                report(described(file))
    records, content = sum(file.records for file in files), sum(file.content_bytes for file in files)
    running.say(
        "archive",
        PipelineOutcome(
            records,
            records,
            0,
            None,
            f"{verb}: {len(files)} files, {content} bytes",
            more={"files": len(files), "bytes": content},
        ),
        time.monotonic() - began,
        as_json=args.json,
    )
    return 0
