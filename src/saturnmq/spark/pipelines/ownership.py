"""The guard of a lake's tables: which writer a table belongs to, checked before anything is written.

A table that a stream fills belongs to one query: `_saturnmq.json` in it names the pipeline, the query and its checkpoint. Spark's
sink takes the micro-batches of another query as written already and drops their rows, and folders of batches would be
overwritten. A table that is replaced as a whole must not belong to a stream. Every pipeline that writes a table calls `claim` or
`check_replaceable`, whatever the file system: a local disk through pathlib, any other through the Hadoop file system of the
session, which is what Spark itself writes with.

Requirements: PIP-03, PIP-04, PIP-08.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.lake_sink import LOG_FOLDERS, Target
from saturnmq.spark.local_paths import local_path
from saturnmq.spark.pipelines.sink_log import FOLDER as SINK_LOG_FOLDER
from saturnmq.spark.session_kind import is_connect

OWNER_FILE: Final = "_saturnmq.json"  # readers ignore names that begin with an underscore
VERSION: Final = 1
SINK_LOG: Final = "a log of Spark's file sink"
BATCH_FOLDERS: Final = "a folder per micro-batch"
COMMIT_LOGS: Final = {"delta": "a log of Delta", "iceberg": "snapshots of Iceberg"}
_FORMS: Final = {folder: COMMIT_LOGS[name] for folder, name in LOG_FOLDERS.items()} | {SINK_LOG_FOLDER: SINK_LOG}
LOOSE_FILES: Final = (
    "files without either"  # a table that is replaced as a whole; also what the first batch of a killed run leaves
)
_POLLED: Final = 10**11  # folders of `stats --mode poll` are numbered by Unix ms, no stream has that many batches


class Files(Protocol):
    """The files of a lake."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, none if it does not exist."""

    def read(self, path: str) -> str | None:
        """Return the content of a file, None if it does not exist."""

    def write(self, path: str, text: str) -> None:
        """Create or replace a file."""

    def create(self, path: str, text: str) -> None:
        """Create a file; leave one that exists as it is."""


class LocalFiles:
    """Files of a local disk, named by path or file:// URI."""

    def names(self, folder: str) -> list[str]:
        path = _path(folder)
        if path.is_file():
            raise ConfigError(f"{folder}: is a file, not a folder")
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def read(self, path: str) -> str | None:
        try:
            return _path(path).read_text()
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        target = _path(path)
        self._beside(target, text).replace(target)

    def create(self, path: str, text: str) -> None:
        target = _path(path)
        temporary = self._beside(target, text)
        try:
            target.hardlink_to(temporary)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    @staticmethod
    def _beside(target: Path, text: str) -> Path:
        """Write a file of its own for each call, as two processes may write the same target."""
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.new")
        temporary.write_text(text)
        return temporary


class HadoopFiles:
    """Files of any file system that the session's Hadoop configuration can open, such as s3a:// or hdfs://."""

    def __init__(self, spark: Any) -> None:
        self._jvm, self._configuration = spark._jvm, spark._jsc.hadoopConfiguration()

    def is_local_by_default(self) -> bool:
        """Whether paths without scheme are on the local disk."""
        return str(self._configuration.get("fs.defaultFS", "file:///")).startswith("file:")

    def _open(self, text: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(text)
        return path.getFileSystem(self._configuration), path

    def names(self, folder: str) -> list[str]:
        system, path = self._open(folder)
        return sorted(s.getPath().getName() for s in system.listStatus(path)) if system.exists(path) else []

    def read(self, path: str) -> str | None:
        system, name = self._open(path)
        if not system.exists(name):
            return None
        stream = system.open(name)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str, *, replacing: bool = True) -> None:
        system, name = self._open(path)
        stream = system.create(name, replacing)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def create(self, path: str, text: str) -> None:
        try:
            self.write(path, text, replacing=False)
        except Exception:
            if self.read(path) is None:
                raise


def _path(text: str) -> Path:
    path = local_path(text)
    if path is None:
        raise ConfigError(f"{text}: is not on a local disk")
    return path


def files_of(path: str, spark: Any) -> Files:
    """Return access to the file system of a path: a plain path is one of the session's default file system, as in Spark."""
    if local_path(path) is None:
        return HadoopFiles(spark)
    if spark is None or is_connect(spark) or path.lower().startswith("file:"):
        return LocalFiles()
    hadoop = HadoopFiles(spark)
    return LocalFiles() if hadoop.is_local_by_default() else hadoop


@dataclass(frozen=True)
class Owner:
    """The content of OWNER_FILE. query: id of the streaming query in its checkpoint.

    form: SINK_LOG, BATCH_FOLDERS or one of COMMIT_LOGS.
    """

    pipeline: str
    form: str
    query: str
    checkpoint: str
    version: int = VERSION


@dataclass(frozen=True)
class Stream:
    """A streaming query that is about to start, and its tables.

    options: what its user can change to go on, for error messages. optional: tables that exist only when something went there.
    targets: tables with a log of commits, by path.
    """

    pipeline: str
    form: str
    checkpoint: str
    tables: tuple[str, ...]
    optional: tuple[str, ...] = ()
    options: str = "name another folder by --lake"
    targets: Mapping[str, Target] = field(default_factory=dict)


def claim(stream: Stream, spark: Any) -> str:
    """Make the stream the owner of its tables, before it starts; return its query's id. Raises ConfigError as `check`."""
    checkpoint, query = files_of(stream.checkpoint, spark), check(stream, spark)
    if not query:  # Spark adopts what is written here; another process may have been first
        metadata = f"{stream.checkpoint}/metadata"
        add = checkpoint.create if checkpoint.read(metadata) is None else checkpoint.write
        add(metadata, json.dumps({"id": str(uuid.uuid4())}))
        query = _query(checkpoint, stream.checkpoint)
    for table in (*stream.tables, *stream.optional):
        owner = Owner(stream.pipeline, stream.form, query, stream.checkpoint)
        files_of(table, spark).write(f"{table}/{OWNER_FILE}", json.dumps(asdict(owner)))
    return query


def check(stream: Stream, spark: Any = None) -> str:
    """Return the id of the checkpoint's query, empty for a new one. spark: not needed on a local disk.

    Raises ConfigError when a table belongs to another query, pipeline or version, was not written by a stream, is ahead of the
    checkpoint, or is missing although the checkpoint has batches.
    """
    checkpoint = files_of(stream.checkpoint, spark)
    query = _query(checkpoint, stream.checkpoint)
    planned = _newest(checkpoint.names(f"{stream.checkpoint}/offsets"))
    committed = _newest(checkpoint.names(f"{stream.checkpoint}/commits"))
    holds = f"checkpoint {stream.checkpoint} holds {f'query {query}' if query else 'no query'}"
    for table in (*stream.tables, *stream.optional):
        files = files_of(table, spark)
        names = files.names(table)
        owner = _owner(files, table)
        newest, target = _newest_batch(files, table, names), stream.targets.get(table)
        if target is not None and query:
            newest = target.last_batch(query)
        go_on = f"to go on, {stream.options}"
        if owner is not None and owner.query and (owner.query, owner.form) != (query, stream.form):
            how = "" if owner.form == stream.form else f", with {owner.form}, not {stream.form}"
            raise ConfigError(
                f"{table}: the table was written with another checkpoint: it belongs to query {owner.query} of pipeline "
                f"{owner.pipeline}, checkpoint {owner.checkpoint}{how}; {holds}; {go_on}"
            )
        form = _form(names)
        if owner is None and form not in (stream.form, "") and not (form == LOOSE_FILES and planned > committed):
            raise ConfigError(
                f"{table}: the table has {form}, not {stream.form}: it was written by a query without id or by pipeline files, and "
                f"readers would not see both; {holds}; {go_on}"
            )
        if newest > planned:
            raise ConfigError(
                f"{table}: the table was written with another checkpoint than {stream.checkpoint} (its last batch is {newest}, the "
                f"checkpoint's {planned}); it belongs to query {owner.query if owner else 'without id'}; "
                f"{holds}; {go_on}"
            )
        is_missing = not names if target is None else committed >= 0 and target.layout() is None
        if committed >= 0 and is_missing and table in stream.tables:
            raise ConfigError(
                f"{table}: the table is missing, and {holds} with batches up to {committed}, whose rows were in it: restore the "
                f"table, or delete the folder {stream.checkpoint} to begin again; {go_on}"
            )
    return query


def check_replaceable(table: str, spark: Any = None) -> None:
    """Raise ConfigError for a table that must not be replaced as a whole, since a stream adds to it."""
    files = files_of(table, spark)
    owner, names = _owner(files, table), files.names(table)
    if owner is not None or _form(names) in COMMIT_LOGS.values() or _newest_batch(files, table, names) >= 0:
        belongs = (
            f"query {owner.query} of pipeline {owner.pipeline}, checkpoint {owner.checkpoint}" if owner else "a stream"
        )
        raise ConfigError(
            f"{table}: the table belongs to {belongs}, which adds to it; replacing it would lose its rows and hide the new ones; "
            "to go on, name another folder by --lake"
        )


def _query(files: Files, checkpoint: str) -> str:
    """Return the id of the checkpoint's query, empty without one, or with the empty file of a writer that was killed."""
    text = files.read(f"{checkpoint}/metadata")
    if not text:
        return ""
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{checkpoint}/metadata: {text[:60]!r} is no metadata of a streaming query; restore the checkpoint from a copy, or "
            f"delete the folder {checkpoint} and name another table, to begin again"
        ) from None


def _owner(files: Files, table: str) -> Owner | None:
    text = files.read(f"{table}/{OWNER_FILE}")
    if text is None:
        return None
    try:
        content = json.loads(text)
        if content["version"] == VERSION:
            return Owner(**content)
        problem = f"version {content['version']}, readable here is {VERSION}"
    except (ValueError, KeyError, TypeError) as error:
        problem = f"no readable content ({error!r})"
    raise ConfigError(
        f"{table}/{OWNER_FILE}: {problem}: the table was made by another version of SaturnMQ; upgrade this one, "
        "or name another folder by --lake"
    )


def _form(names: Iterable[str]) -> str:
    """Return how a table is written, empty for one without rows."""
    for folder, form in _FORMS.items():
        if folder in names:
            return form
    if any(name.startswith("batch=") for name in names):
        return BATCH_FOLDERS
    return LOOSE_FILES if any(not name.startswith(("_", ".")) for name in names) else ""


def _newest(names: Iterable[str]) -> int:
    return max(
        (int(name.removesuffix(".compact")) for name in names if re.fullmatch(r"\d+(\.compact)?", name)), default=-1
    )


def _newest_batch(files: Files, table: str, names: Iterable[str]) -> int:
    """Return the newest micro-batch of a table, -1 without one."""
    folders = [name.removeprefix("batch=") for name in names if re.fullmatch(r"batch=\d+", name)]
    logged = files.names(f"{table}/{SINK_LOG_FOLDER}") if SINK_LOG_FOLDER in names else []
    return max(_newest(name for name in folders if int(name) < _POLLED), _newest(logged))


def foreign_files(table: str, spark: Any = None) -> str:
    """Return a sentence about files in a table of Spark's file sink that another writer appended, empty without any.

    A batch write leaves `_SUCCESS` behind, the file sink does not.
    """
    names = files_of(table, spark).names(table)
    if "_SUCCESS" not in names or SINK_LOG_FOLDER not in names:
        return ""
    return (
        f"{table}: another writer has appended files, which readers in Spark do not see: the table shows what its log names. "
        "Write them to a table of their own (docs/spark.md, A second writer), then delete them and _SUCCESS"
    )
