"""Tables whose changes a DLedger group replicates: there, each change is an entry of the replicated log."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from saturnmq.broker.state.state_writer import StateWriter
from saturnmq.replication.dledger.change_entries import Change, Kind


class Journal(Protocol):
    """Records changes before the tables are changed. A broker outside of a group has none."""

    @property
    def leads(self) -> bool:
        """Whether this broker decides about the tables; a follower changes nothing of its own."""

    def record(self, change: Change, undo: Callable[[], None]) -> None:
        """Record a change that is about to be made. undo restores the table if the group does not decide it.

        Raises ResponseError if it cannot be recorded; the table must stay as it is then.
        """

    def undecided(self, kind: Kind, name: str) -> bool:
        """Whether the last change of a name is not known to be committed."""

    async def decided(self, kind: Kind, name: str) -> None:
        """Wait until the last change of a name is committed. Raises ResponseError if that is not known in time."""


class JournaledTable:
    """The last change of an entry of the tables of topics and of subscription groups.

    journal: set in a DLedger group. writer: of the file that keeps the table.
    """

    kind: ClassVar[Kind]
    writer: StateWriter
    journal: Journal | None = None

    def undecided(self, name: str) -> bool:
        """Whether the DLedger group has not confirmed the last change of an entry."""
        return self.journal is not None and self.journal.undecided(self.kind, name)

    async def decided(self, name: str) -> None:
        """Wait until the DLedger group has committed the last change of an entry. Raises ResponseError if it does not."""
        if self.journal is not None:
            await self.journal.decided(self.kind, name)

    async def confirmed(self, name: str) -> None:
        """Wait until the last change of an entry is committed and durable here. Raises StoreError, ResponseError."""
        await self.decided(name)
        await self.writer.saved()

    def persisted(self, name: str) -> bool:
        """Whether an entry that a client created survives a crash: in the file, or in a DLedger group committed."""
        return self.writer.durable(name) if self.journal is None else not self.undecided(name)

    async def wait_persisted(self, name: str) -> None:
        """Wait until an entry that a client created is `persisted`. Raises StoreError, ResponseError."""
        await self.decided(name)
        # Most entries are: only new ones wait for the file.
        if self.journal is None and not self.writer.durable(name):
            await self.writer.saved()
