"""The log that Spark's file sink keeps of a table's files: reads it, and rewrites it as one file.

Readers in Spark consider a file part of the table only when the log names it, so files of a killed run do not count.

Requirements: PIP-03, PIP-07.
"""

# TABLE/_spark_metadata, written by Spark.
#   7             "v1", then one JSON line per file that micro-batch 7 added
#   9.compact     the same for batches 0..9 together; the files of newer batches follow it
# A line: {"path": URI, "size": bytes, "isDir", "modificationTime": ms, "blockReplication", "blockSize", "action": "add"}
# Spark accepts a single .compact file of any batch and derives its interval from the number.

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from saturnmq.protocol.errors import ConfigError, CorruptRecord

FOLDER: Final = "_spark_metadata"
_VERSION: Final = "v1"
_BLOCK_BYTES: Final = 33_554_432


@dataclass(frozen=True)
class SinkLog:
    """Content of a table's log. latest: newest micro-batch; files: path -> its line."""

    latest: int
    files: dict[Path, str]


def latest_batch(table: Path) -> int:
    """Return the newest micro-batch of the table's log, -1 without one."""
    return max((_number(path) for path in _entries(table)), default=-1)


def _entries(table: Path) -> list[Path]:
    folder = table / FOLDER
    return [p for p in folder.iterdir() if re.fullmatch(r"\d+(\.compact)?", p.name)] if folder.is_dir() else []


def _number(path: Path) -> int:
    return int(path.name.removesuffix(".compact"))


def read_log(table: Path) -> SinkLog | None:
    """Return the log of a table, None if it has none. Raises CorruptRecord; ConfigError when its files lie elsewhere."""
    entries = _entries(table)
    if not entries:
        return None
    latest = max(map(_number, entries))
    whole = max((p for p in entries if p.suffix), key=_number, default=None)
    since = -1 if whole is None else _number(whole)
    names = [*([whole.name] if whole else []), *(str(number) for number in range(since + 1, latest + 1))]
    files: dict[Path, str] = {}
    for name in names:
        path = table / FOLDER / name
        try:
            version, *lines = path.read_text().splitlines()
            if version != _VERSION:
                raise CorruptRecord(f"{path}: version {version!r}, known is {_VERSION}")
            for line in lines:
                files[_local(table, json.loads(line))] = line
        except (OSError, ValueError, KeyError) as error:
            raise CorruptRecord(f"{path}: cannot be read: {error}") from error
    return SinkLog(latest, files)


def _local(table: Path, entry: dict[str, Any]) -> Path:
    if entry["action"] != "add":
        raise CorruptRecord(f"{table}: action {entry['action']!r} in its log is unknown")
    path = Path(unquote(urlsplit(entry["path"]).path))
    try:
        return path.resolve().relative_to(table.resolve())
    except ValueError:
        raise ConfigError(f"{table}: its log names {path}, which is not in it; was the table moved?") from None


def line_of(path: Path, size: int, modified_ms: int) -> str:
    """Return the log line of a file of the table."""
    entry = {
        "path": path.absolute().as_uri(), "size": size, "isDir": False, "modificationTime": modified_ms,
        "blockReplication": 1, "blockSize": _BLOCK_BYTES, "action": "add",
    }  # fmt: skip
    return json.dumps(entry, separators=(",", ":"))


def write_log(table: Path, latest: int, lines: Iterable[str]) -> None:
    """Create the log of a table that has none: one file for all batches so far."""
    folder = table / FOLDER
    folder.mkdir()
    (folder / f"{latest}.compact").write_text("\n".join([_VERSION, *lines]))
