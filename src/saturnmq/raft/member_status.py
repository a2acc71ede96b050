"""Status of a member as shown to operators (DL-Q06)."""

from __future__ import annotations

from dataclasses import dataclass

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.ids import LedgerIndex, Term


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Indexes, term and role of a member. failed: why its storage failed. watermarks: member id -> index, only on a leader.

    heartbeat_interval_ms: by the timers in use, which `dledger.profile=auto` chooses.
    """

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
    heartbeat_interval_ms: int
    watermarks: dict[str, LedgerIndex]
