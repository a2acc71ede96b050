"""What the parts of a member share: term, vote, role, log, committed index, and the list of actions under way.

Role changes happen here and nowhere else; each part is told through its `role_changed`. Source: spec 04 DL-E20..22, DL-M01.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from saturnmq.protocol.errors import invariant
from saturnmq.raft.core.actions import Action, Alarm, Commit, PersistTerm, Reply, Role, RoleChanged, Send, SyncLog
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.log import Log
from saturnmq.raft.core.messages import Request, Response
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.voting import quorum

NEVER: Final = 1 << 62  # ms: no timer is running
Chance = Callable[[int], int]  # chance(n) is a whole number in 0..n-1
Answered = Callable[[Response | None], None]


@dataclass(frozen=True, slots=True)
class HardState:
    """What `currterm` holds (DL-M01)."""

    term: int = 0
    voted_for: str | None = None


class Part(Protocol):
    """Part of a member that has state of its own per role or term."""

    def role_changed(self) -> None: ...

    def due_ms(self) -> int:
        """When its next timer fires; a time that has passed: at once. NEVER: none is running."""
        ...


@dataclass(slots=True)
class State:
    """One member's state. now_ms is the time of the input being handled."""

    self_id: str
    group: str
    peers: tuple[str, ...]
    settings: CoreSettings
    chance: Chance
    log: Log
    term: int
    voted_for: str | None
    committed: int
    now_ms: int = 0
    role: Role = Role.CANDIDATE
    leader_id: str | None = None
    transferee: str | None = None
    known_max_term: int = -1
    term_to_take: int = -1
    failed: str | None = None  # the log or the term file cannot be written any more (DL-X15)
    disk_full: bool = False
    outdated: bool = False  # what is not in the log may be older here than at the leader; the caller says so (DL-X18)
    must_hold: int = -1  # damage took entries up to here that this member had acknowledged; -1: none (DUR-10)
    out: list[Action] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    calls: dict[int, Answered] = field(default_factory=dict)
    next_call: int = 0

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(peer for peer in self.peers if peer != self.self_id)

    @property
    def quorum(self) -> int:
        return quorum(len(self.peers))

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def durable(self) -> int:
        """Highest index that this member may say it holds (DL-X02)."""
        return self.log.durable if self.settings.sync_before_ack else self.log.end

    @property
    def lacking(self) -> bool:
        """Neither vote nor stand: the log is shorter than what others may count on (DUR-10)."""
        return self.must_hold >= 0

    @property
    def taking_leadership(self) -> bool:
        """DL-L08."""
        return self.self_id in self.settings.preferred_leaders and self.term_to_take == self.term

    # outputs

    def send(self, peer: str, request: Request, answered: Answered, *, timeout_ms: int | None = None) -> None:
        """Ask a peer; answered is called once, with None when no answer came."""
        self.next_call += 1
        self.calls[self.next_call] = answered
        self.out.append(Send(self.next_call, peer, request, timeout_ms or self.settings.rpc_timeout_ms))

    def reply(self, token: int, response: Response) -> None:
        self.out.append(Reply(token, response))

    def alarm(self, text: str) -> None:
        self.out.append(Alarm(text))

    def sync(self) -> None:
        """Have the log synced up to its end."""
        if self.settings.sync_before_ack:
            self.out.append(SyncLog(self.log.epoch, self.log.end))

    # term and vote

    def next_term(self) -> None:
        """DL-E05: raise the term, forget the vote, persist."""
        invariant(self.role is Role.CANDIDATE, "only a candidate raises its term")
        self.term = max(self.known_max_term, self.term + 1)
        self.voted_for = None
        self.out.append(PersistTerm(self.term, None))

    def vote_for(self, candidate: str) -> None:
        """DL-E16: persisted before the answer."""
        invariant(self.voted_for in (None, candidate), f"second vote in term {self.term}")
        if self.voted_for is None:
            self.voted_for = candidate
            self.out.append(PersistTerm(self.term, candidate))

    # roles

    def become_candidate(self, term: int) -> None:
        """DL-E20. The term is remembered, and taken by next_term later."""
        if term < self.term:
            return
        self.known_max_term = max(self.known_max_term, term)
        self._become(Role.CANDIDATE, None)

    def become_leader(self) -> None:
        """DL-E21."""
        invariant(self.role is Role.CANDIDATE, "only a candidate becomes leader")
        invariant(self.failed is None, "a failed member does not lead")
        self._become(Role.LEADER, self.self_id)

    def become_follower(self, leader_id: str) -> None:
        """DL-E22, in the current term."""
        invariant(self.role is not Role.LEADER, "a leader does not follow another in its own term")
        self._become(Role.FOLLOWER, leader_id)

    def _become(self, role: Role, leader_id: str | None) -> None:
        self.role = role
        self.leader_id = leader_id
        self.transferee = None
        self.out.append(RoleChanged(role, self.term, leader_id))
        for part in self.parts:
            part.role_changed()

    # committed index

    def commit(self, index: int) -> None:
        """Entries up to index are committed; the caller knows that they are this log's. Never falls (DL-Q02)."""
        index = min(index, self.log.end)
        if index <= self.committed or index < self.log.begin or index < 0:
            return
        entry = self.log.entry(index)
        if entry is None:
            return
        self.committed = index
        self.out.append(Commit(index, entry.end_pos))

    def first_entry(self) -> Entry | None:
        return self.log.entry(self.log.begin)
