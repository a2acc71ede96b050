"""Status of a member as shown to operators (DL-Q06)."""

from __future__ import annotations

from dataclasses import dataclass

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.core.ids import LedgerIndex, Term
from saturnmq.raft.core.node import Node


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Indexes, term and role of a member. failed: why its storage failed. watermarks: member id -> index, only on a leader.

    heartbeat_interval_ms: by the timers in use, which `dledger.profile=auto` chooses. configuration: the members. votes: whether
    this member is one of the voters. recovering: it neither votes nor stands until it has again what damage took (DUR-10).
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
    configuration: Configuration
    votes: bool
    recovering: bool

    @classmethod
    def of(cls, node: Node) -> MemberStatus:
        return cls(
            node.self_id,
            node.group,
            node.role,
            node.term,
            node.leader_id,
            node.begin_index,
            node.end_index,
            node.committed,
            node.acked_index,
            node.failed,
            node.settings.heartbeat_interval_ms,
            # Followers know only their own.
            node.watermarks() if node.is_leader else {},
            node.configuration,
            node.votes,
            node.recovering,
        )
