"""Delta tables through delta-rs, without Spark's jars: the driver commits files that workers have written.

A commit of a micro-batch holds a `txn` action: the query's id as application id, the batch as version. delta-rs rejects a commit
whose application id another commit has used since the table was loaded, so two drivers cannot commit the same batch.

Requirements: PIP-03.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa

from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.spark.lake_files import DataFile, FileLayout, first_line, partition_text
from saturnmq.spark.local_paths import local_path

if TYPE_CHECKING:
    from deltalake import DeltaTable

_REMOVABLE: Final = re.compile(r"[A-Za-z0-9_.=/% -]+")


@dataclass(frozen=True)
class DeltaTarget:
    """A Delta table as a target of streams. path: its folder, a path or URI."""

    path: str
    partition_by: tuple[str, ...] = ()

    @property
    def _uri(self) -> str:
        folder = local_path(self.path)
        return self.path if folder is None else str(folder.absolute())

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if not DeltaTable.is_deltatable(self._uri):
            return None
        try:
            return DeltaTable(self._uri)
        except (DeltaError, OSError) as error:
            raise ConfigError(f"{self.path}: the Delta table cannot be read: {first_line(error)}") from error

    def _opened(self) -> DeltaTable:
        table = self._open()
        if table is None:
            raise ConfigError(f"{self.path}: there is no Delta table")
        return table

    def layout(self) -> FileLayout | None:
        """Return the layout of the table, None without one."""
        table = self._open()
        if table is None:
            return None
        return FileLayout(self._uri, pa.schema(table.schema().to_arrow()), tuple(table.metadata().partition_columns))

    def create(self, schema: pa.Schema) -> None:
        """Create the table, unless another process has."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        try:
            DeltaTable.create(self._uri, Schema.from_arrow(schema), mode="ignore", partition_by=list(self.partition_by))
        except (DeltaError, OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{self.path}: the Delta table cannot be created: {first_line(error)}") from error

    def last_batch(self, query: str) -> int:
        """Return the newest micro-batch of a query that the table holds, -1 without one."""
        table = self._open()
        return -1 if table is None else _last_batch(table, query)

    def commit(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        """Add the files of a micro-batch, unless the table holds it already. Raises deltalake's CommitFailedError."""
        from deltalake.transaction import Transaction

        table = self._opened()
        if batch > _last_batch(table, query):
            self._write(table, files, (), {"saturnmq": "export"}, [Transaction(query, batch)])

    def replace(self, replaced: Sequence[DataFile], files: Sequence[DataFile]) -> None:
        """Exchange files for others with the same rows, in one commit. Raises StoreError, deltalake's CommitFailedError.

        deltalake removes a file only if it encodes the path as the log has it, and otherwise says nothing: its rows would be there
        twice. Spark writes some paths in another way.
        """
        table = self._opened()
        logged = set(pa.table(table.get_add_actions(flatten=False)).column("path").to_pylist())
        for file in replaced:
            if quote(file.path, safe="/=") not in logged or not _REMOVABLE.fullmatch(file.path):
                raise StoreError(
                    f"{self.path}: {file.path} was replaced meanwhile, or another writer has named it in the log in a way that "
                    "deltalake cannot remove; the table is unchanged; optimize it with that writer"
                )
        self._write(table, files, replaced, {"saturnmq": "compact"}, [])

    def _write(
        self, table: DeltaTable, files: Sequence[DataFile], replaced: Sequence[DataFile],
        metadata: Mapping[str, Any], transactions: list[Any],
    ) -> None:  # fmt: skip
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction

        now_ms, is_change = int(time.time() * 1000), not replaced
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, file.partition, now_ms, is_change, file.stats) for file in files
        ]
        actions += [RemoveAction(file.path, is_change, now_ms, file.size, file.partition) for file in replaced]
        properties = CommitProperties(custom_metadata=dict(metadata), app_transactions=transactions)
        table.create_write_transaction(
            actions, "append", table.schema(), table.metadata().partition_columns, commit_properties=properties
        )

    def files(self) -> list[DataFile]:
        """Return the files that are the table now. deltalake encodes the paths of actions, and returns them encoded."""
        table = self._opened()
        rows = pa.table(table.get_add_actions(flatten=False)).to_pylist()
        return [
            DataFile(unquote(row["path"]), row["size_bytes"], row["num_records"],
                     {name: partition_text(value) for name, value in (row.get("partition") or {}).items()}, "")
            for row in rows
        ]  # fmt: skip

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._opened().count())


def _last_batch(table: DeltaTable, query: str) -> int:
    version = table.transaction_version(query)
    return -1 if version is None else version
