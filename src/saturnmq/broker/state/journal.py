"""The journal of a table of topics or groups: in a DLedger group its changes are entries of the replicated log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

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
