"""The NameServer's KV configuration: text values by namespace and key, persisted in one JSON file.

Requirements: NS-24.
"""

from __future__ import annotations

from pathlib import Path

from saturnmq.protocol.errors import BodyError
from saturnmq.protocol.json_dialect import dumps, loads
from saturnmq.store.files.state_file import StateFile


class KVConfig:
    """The KV table and its file. Every change is persisted before it is acknowledged."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path)
        self.table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file if it exists. Raises CorruptRecord, StoreError."""
        found = self._file.read(_parse)
        if found is not None:
            self.table = found

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value. Raises StoreError, in which case nothing has changed."""
        self._save({**self.table, namespace: {**self.table.get(namespace, {}), key: value}})

    def delete(self, namespace: str, key: str) -> None:
        """Remove one value; removing an absent one is not an error. Raises StoreError."""
        kept = {name: text for name, text in self.table.get(namespace, {}).items() if name != key}
        self._save({**self.table, namespace: kept} if namespace in self.table else dict(self.table))

    def get(self, namespace: str, key: str) -> str | None:
        """The value, or None."""
        return self.table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys and values of a namespace, or None."""
        return self.table.get(namespace)

    def _save(self, table: dict[str, dict[str, str]]) -> None:
        self._file.write(dumps({"configTable": table}))
        self.table = table


def _parse(data: bytes) -> dict[str, dict[str, str]]:
    value = loads(data)
    table = value.get("configTable") if isinstance(value, dict) else None
    if not isinstance(table, dict):
        raise BodyError("configTable is missing")
    return {
        str(namespace): {str(key): str(text) for key, text in entries.items()}
        for namespace, entries in table.items()
        if isinstance(entries, dict)
    }
