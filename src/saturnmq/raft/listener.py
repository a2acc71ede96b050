"""Notifications to the owner of a member."""

from __future__ import annotations

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.ids import LedgerIndex, Term


class Listener:
    """Receives role changes and commits, on the event loop and in order. Implementations must not block."""

    def role_changed(self, role: Role, term: Term, leader_id: str | None) -> None: ...

    def committed(self, index: LedgerIndex, end_pos: int) -> None: ...
