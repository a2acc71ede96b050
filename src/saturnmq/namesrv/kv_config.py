"""The NameServer's KV configuration: text values by namespace and key, persisted in one JSON file.

Changes are written in a thread, all that arrive during one write with the next. A change is visible, and its request answered,
once it is durable; if the write fails, none of its changes has happened and every caller gets the error.

Requirements: NS-24, SEC-12.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, NamedTuple

from saturnmq.protocol.bodies import KVTable
from saturnmq.protocol.codes import ORDER_TOPIC_NAMESPACE
from saturnmq.protocol.errors import BodyError
from saturnmq.protocol.json_dialect import UNLIMITED, dumps, loads
from saturnmq.store.files.state_file import StateFile
from saturnmq.tasks import supervised

Table = dict[str, dict[str, str]]

NAME_CHARS_MAX: Final = 300  # of a namespace, and of a key; the longest topic name has 262
BYTES_MAX: Final = 4_194_304  # of the file; each change rewrites it


class KVChange(NamedTuple):
    """One change that is not durable yet. value: None deletes the key."""

    namespace: str
    key: str
    value: str | None
    persisted: asyncio.Future[None]


class KVConfig:
    """The KV table and its file."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path)
        self._waiting: list[KVChange] = []
        self._writer: asyncio.Task[None] | None = None
        self._changed: dict[tuple[str, str], str | None] = {}  # values that are not durable yet
        self._encoded: dict[str, bytes] = {}
        self._entries = self._bytes = 0  # with the changes that are not durable yet
        self.table: Table = {}
        self.writes = 0

    def load(self) -> None:
        """Read the file if it exists. Raises CorruptRecord, StoreError."""
        table = self._file.read(_parse)
        if table is not None:
            self.table = table
            self._recount()

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value. Raises StoreError, in which case nothing has changed."""
        await self._change(namespace, key, value)

    async def delete(self, namespace: str, key: str) -> None:
        """Remove one value; removing an absent one is not an error. Raises StoreError."""
        await self._change(namespace, key, None)

    def get(self, namespace: str, key: str) -> str | None:
        """The value, or None."""
        return self.table.get(namespace, {}).get(key)

    def encoded(self, namespace: str) -> bytes | None:
        """All keys and values of a namespace as the body of an answer, encoded once per change; None if there are none."""
        entries = self.table.get(namespace)
        if entries is not None and namespace not in self._encoded:
            self._encoded[namespace] = KVTable(dict(entries)).encode()
        return self._encoded.get(namespace)

    def size_with(self, namespace: str, key: str, value: str) -> tuple[int, int]:
        """Number of entries with this one added, and their bytes; changes that wait to be written are included."""
        old = self._latest(namespace, key)
        if old is None:
            return self._entries + 1, self._bytes + _bytes(namespace, key, value)
        return self._entries, self._bytes + _bytes(namespace, key, value) - _bytes(namespace, key, old)

    def _latest(self, namespace: str, key: str) -> str | None:
        at = (namespace, key)
        # A deletion that waits is None, not the old value.
        return self._changed[at] if at in self._changed else self.get(namespace, key)

    def _note(self, change: KVChange) -> None:
        """Count a change."""
        namespace, key, value, _ = change
        old = self._latest(namespace, key)
        self._entries += (value is not None) - (old is not None)
        self._bytes += _bytes(namespace, key, value) - _bytes(namespace, key, old)
        self._changed[namespace, key] = value

    def _recount(self) -> None:
        """Count the table and the changes that wait."""
        self._changed.clear()
        self._encoded.clear()
        self._entries = sum(map(len, self.table.values()))
        self._bytes = sum(
            _bytes(name, key, value) for name, entries in self.table.items() for key, value in entries.items()
        )
        for change in self._waiting:
            self._note(change)

    async def settle(self) -> None:
        """Wait for the changes made so far; their failure is reported to their callers only."""
        if self._writer is not None:
            # The task, with all that was added meanwhile.
            await asyncio.gather(self._writer, return_exceptions=True)

    async def _change(self, namespace: str, key: str, value: str | None) -> None:
        change = KVChange(namespace, key, value, asyncio.get_running_loop().create_future())
        self._note(change)
        self._waiting.append(change)
        # A running one takes the change with its next batch.
        if self._writer is None:
            self._writer = supervised(self._write(), "KV configuration")
        await change.persisted

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    # The disk may take long.
                    table = await loop.run_in_executor(None, self._save, batch)
                except Exception as error:
                    # As if the batch had never been.
                    self._recount()
                    for change in batch:
                        # The caller may have been cancelled.
                        if not change.persisted.done():
                            change.persisted.set_exception(error)
                    continue
                # Replaced as a whole: readers see the state before or after.
                self.table = table
                self._recount()
                for change in batch:
                    if not change.persisted.done():
                        change.persisted.set_result(None)
        finally:
            self._writer = None

    def _save(self, batch: list[KVChange]) -> Table:
        """Write the table with these changes, and return it. In a thread: the table that readers see does not change meanwhile."""
        # A copy of two levels: readers go on with the old one.
        table = {namespace: dict(entries) for namespace, entries in self.table.items()}
        for change in batch:
            if change.value is not None:
                table.setdefault(change.namespace, {})[change.key] = change.value
            elif change.namespace in table:
                table[change.namespace].pop(change.key, None)
                if not _is_retained(change.namespace, table[change.namespace]):
                    del table[change.namespace]
        self._file.write(dumps({"configTable": table}))
        self.writes += 1
        return table


def _parse(data: bytes) -> Table:
    value = loads(data, bytes_max=UNLIMITED)  # bounded by the limits of the table
    table = value.get("configTable") if isinstance(value, dict) else None
    if not isinstance(table, dict):
        raise BodyError("configTable is missing")
    return {
        str(namespace): {str(key): str(text) for key, text in entries.items()}
        for namespace, entries in table.items()
        if isinstance(entries, dict) and _is_retained(str(namespace), entries)
    }


def _is_retained(namespace: str, entries: object) -> bool:
    """Whether a namespace stays. An empty one goes, but brokers must learn that no topic is ordered any more."""
    return bool(entries) or namespace == ORDER_TOPIC_NAMESPACE


def _bytes(namespace: str, key: str, value: str | None) -> int:
    """Bytes of an entry in the file; 0 for none."""
    return 0 if value is None else len(dumps([namespace, key, value]))
