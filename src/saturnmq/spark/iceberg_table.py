"""Iceberg tables through pyiceberg, without Spark's jars: the driver commits files that workers have written.

A commit of a micro-batch is one snapshot. Its summary names query and batch; the same commit stores them in a property of the
table, which outlives the snapshot and is compared before each commit. pyiceberg repeats a commit that another one has
overtaken, without that comparison; so its own retries are off, and commits are repeated here.

Requirements: PIP-03.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.spark.lake_files import DataFile, FileLayout, first_line
from saturnmq.spark.local_paths import local_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CATALOG_FILE: Final = "catalog.db"
NAMESPACE: Final = "saturnmq"
COMMIT_ATTEMPTS: Final = 4
PROPERTIES: Final = {  # of a new table: a stream commits for years
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_BATCH: Final = "saturnmq.batch"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SQL: Final = ("sqlite:", "postgresql")


def check_name(option: str, name: str) -> str:
    """Return the name of a namespace or table. Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"option {option}={name}: must be letters, digits and _, at most 128, and begin with no digit"
        )
    return name


@dataclass(frozen=True)
class IcebergTarget:
    """An Iceberg table as a target of streams.

    path: LAKE/NAME, the table's folder; its name is the table's. catalog: URI, or a name in pyiceberg's configuration; None is an
    SQLite file in LAKE.
    """

    path: str
    partition_by: tuple[str, ...] = ()
    catalog: str | None = None
    namespace: str = NAMESPACE

    def __post_init__(self) -> None:
        check_name("--namespace", self.namespace)
        check_name("table", self._name)
        if self.catalog is None and local_path(self.path) is None:
            raise ConfigError(f"{self.path}: an Iceberg table that is not on a local disk needs option --catalog")

    @property
    def _name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def _folder(self) -> str:
        """Return the table's location; pyiceberg decodes no percent signs."""
        folder = local_path(self.path)
        return self.path.rstrip("/") if folder is None else f"file://{folder.absolute()}"

    @property
    def _is_without_catalog(self) -> bool:
        """Whether the catalog's file in the lake does not exist; opening it would create it."""
        return self.catalog is None and not (Path(self._lake) / CATALOG_FILE).exists()

    @property
    def _lake(self) -> str:
        return self._folder.removeprefix("file://").rpartition("/")[0]

    @contextmanager
    def _connected(self) -> Iterator[Catalog]:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import RESTError
        from sqlalchemy.exc import SQLAlchemyError

        uri = self.catalog
        if uri is None:
            Path(self._lake).mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{self._lake}/{CATALOG_FILE}"
        try:
            if "://" in uri:
                catalog = load_catalog(NAMESPACE, uri=uri, warehouse=self._folder.rpartition("/")[0])
            else:
                catalog = load_catalog(uri)
        except (SQLAlchemyError, RESTError, ImportError, ValueError, OSError) as error:
            raise ConfigError(f"option --catalog: the catalog cannot be opened: {first_line(error)}") from error
        try:
            yield catalog
        finally:
            catalog.close()

    def _load(self, catalog: Catalog) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = catalog.load_table((self.namespace, self._name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path}: the Iceberg table cannot be read: {first_line(error)}") from error
        table.metadata.properties["commit.retry.num-retries"] = "0"  # of this object only, the table keeps its own
        return table

    def _loaded(self, catalog: Catalog) -> Table:
        table = self._load(catalog)
        if table is None:
            raise ConfigError(f"{self.path}: there is no table {self.namespace}.{self._name} in the catalog")
        return table

    def layout(self) -> FileLayout | None:
        """Return the layout of the table, None without one."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        if self._is_without_catalog:
            return None
        with self._connected() as catalog:
            table = self._load(catalog)
            if table is None:
                return None
            columns = [
                (str(f.transform), str(table.schema().find_column_name(f.source_id))) for f in table.spec().fields
            ]
            names = tuple(name if transform == "identity" else f"{transform}({name})" for transform, name in columns)
            return FileLayout(f"{table.location()}/data", schema_to_pyarrow(table.schema()), names)

    def create(self, schema: pa.Schema) -> None:
        """Create the table, unless another process has."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        with self._connected() as catalog:
            catalog.create_namespace_if_not_exists(self.namespace)
            is_placed_here = self.catalog is None or self.catalog.startswith(_SQL)
            location = self._folder if is_placed_here else None
            try:
                with (
                    catalog.create_table_transaction(
                        (self.namespace, self._name), schema, location, properties=PROPERTIES
                    ) as transaction,
                    transaction.update_spec() as spec,
                ):
                    for name in self.partition_by:
                        spec.add_identity(name)
            except TableAlreadyExistsError:
                pass
            except (OSError, ValueError, TypeError) as error:
                raise ConfigError(f"{self.path}: the Iceberg table cannot be created: {first_line(error)}") from error

    def last_batch(self, query: str) -> int:
        """Return the newest micro-batch of a query that the table holds, -1 without one."""
        if self._is_without_catalog:
            return -1
        with self._connected() as catalog:
            table = self._load(catalog)
            return -1 if table is None else _last_batch(table, query)

    def commit(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        """Add the files of a micro-batch as a snapshot, unless the table holds it already. Raises StoreError."""

        def add(table: Table) -> None:
            if batch <= _last_batch(table, query):
                return
            root = f"{table.location()}/data"
            with table.transaction() as transaction:
                transaction.set_properties({f"{_BATCH}.{query}": str(batch)})
                transaction.add_files(
                    [f"{root}/{file.path}" for file in files],
                    {"saturnmq.query": query, _BATCH: str(batch)},
                    check_duplicate_files=False,
                )

        self._repeated(add)

    def replace(self, replaced: Sequence[DataFile], files: Sequence[DataFile]) -> None:
        """Exchange files for others with the same rows, in one snapshot. Raises StoreError."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        paths = {file.path for file in replaced}

        def exchange(table: Table) -> None:
            root = f"{table.location()}/data"
            entries = [entry for entry in _entries(table) if _relative(table, entry.file_path) in paths]
            if len(entries) != len(paths):
                raise StoreError(f"{self.path}: another process has replaced files meanwhile; the table is unchanged")
            with table.transaction() as transaction:
                producer = transaction.update_snapshot(snapshot_properties={"saturnmq": "compact"}).overwrite()
                with producer as overwrite:
                    for entry in entries:
                        overwrite.delete_data_file(entry)
                    for file in files:
                        data_file = parquet_file_to_data_file(
                            table.io, transaction.table_metadata, f"{root}/{file.path}"
                        )
                        overwrite.append_data_file(data_file)

        self._repeated(exchange)

    def _repeated(self, change: Callable[[Table], None]) -> None:
        """Run a change on the newest state of the table, again when another commit was faster."""
        from pyiceberg.exceptions import CommitFailedException

        with self._connected() as catalog:
            for attempt in range(COMMIT_ATTEMPTS):
                try:
                    change(self._loaded(catalog))
                    return
                except CommitFailedException as error:
                    if attempt == COMMIT_ATTEMPTS - 1:
                        raise StoreError(f"{self.path}: the commit failed: {first_line(error)}") from error

    def files(self) -> list[DataFile]:
        """Return the files that are the table now."""
        with self._connected() as catalog:
            table = self._loaded(catalog)
            return [
                DataFile(
                    _relative(table, entry.file_path), entry.file_size_in_bytes, entry.record_count,
                    _partition(table, entry), "",
                )
                for entry in _entries(table)
            ]  # fmt: skip

    def count(self) -> int:
        """Return the number of rows."""
        with self._connected() as catalog:
            return int(self._loaded(catalog).scan().count())


def _last_batch(table: Table, query: str) -> int:
    return int(table.properties.get(f"{_BATCH}.{query}", -1))


def _entries(table: Table) -> list[Any]:
    return [task.file for task in table.scan().plan_files()]


def _relative(table: Table, path: str) -> str:
    return path.removeprefix(f"{table.location()}/data/")


def _partition(table: Table, entry: Any) -> dict[str, str | None]:
    """Return the texts of a file's partition values."""
    schema, spec = table.schema(), table.spec()
    return {
        field.name: None if value is None else field.transform.to_human_string(schema.find_type(field.source_id), value)
        for field, value in zip(spec.fields, list(entry.partition), strict=True)
    }
