"""Status of a member as shown to operators (DL-Q06)."""

from __future__ import annotations

from dataclasses import dataclass

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.ids import LedgerIndex, Term


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Indexes, term and role of a member. failed: why its storage failed. watermarks: member id -> index, only on a leader."""

    self_id: str
    group: str
    role: Role
    term: Term
    leader_id: str | None
    begin_index: LedgerIndex
    end_index: LedgerIndex
    committed_index: LedgerIndex
    durable_index: LedgerIndex
    failed: str | None
    watermarks: dict[str, LedgerIndex]
