"""The in-memory log of a simulated member, and an observer that checks the invariants of Raft from outside.

Requirements: SIM-08, SIM-09.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.raftsim.members import SIMPLE, initial_of
from saturnmq.raft.core.actions import AppendEntries, Commit, CutLog, PersistTerm, Role, RoleChanged
from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import NO_INDEX, NO_TERM, LedgerIndex, Term
from saturnmq.raft.core.messages import VoteResponse, VoteResult

if TYPE_CHECKING:
    from harness.raftsim.group import Cluster
    from harness.raftsim.process import Member


class Violation(AssertionError):
    """An invariant was violated."""


@dataclass(slots=True)
class Ledger:
    """A log in memory; implements LedgerReader. start_pos: the position of the first entry, bytes."""

    begin: LedgerIndex = LedgerIndex(0)
    entries: list[Entry] = field(default_factory=list)
    start_pos: int = 0

    @property
    def begin_index(self) -> LedgerIndex:
        return self.begin if self.entries else NO_INDEX

    @property
    def end_index(self) -> LedgerIndex:
        return LedgerIndex(self.begin + len(self.entries) - 1) if self.entries else NO_INDEX

    @property
    def end_term(self) -> Term:
        return self.entries[-1].term if self.entries else NO_TERM

    @property
    def end_pos(self) -> int:
        return self.entries[-1].end_pos if self.entries else self.start_pos

    def entry(self, index: int) -> Entry | None:
        at = index - self.begin
        return self.entries[at] if 0 <= at < len(self.entries) else None

    def copy(self) -> Ledger:
        return Ledger(self.begin, list(self.entries), self.start_pos)

    def apply(self, operation: object) -> None:
        """Apply appended entries, a truncation, or an int: delete everything before that index."""
        if isinstance(operation, AppendEntries):
            if not self.entries:
                self.begin = operation.entries[0].index
            self.entries.extend(operation.entries)
        elif isinstance(operation, CutLog):
            if operation.restart:
                self.begin, self.entries, self.start_pos = operation.index, [], operation.end_pos
            else:
                del self.entries[operation.index - self.begin :]
                self.start_pos = operation.end_pos
        elif isinstance(operation, int) and operation > self.begin:
            del self.entries[: operation - self.begin]
            self.begin = LedgerIndex(operation)


class Observer:
    """Observes all members from outside and raises Violation (SIM-08)."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.leaders: dict[int, tuple[str, int]] = {}
        self.votes: dict[tuple[str, int], str] = {}
        self.truth: dict[int, Entry] = {}  # every entry that any member committed
        self.terms: dict[int, int] = {}  # index -> term in which the entry was first known as committed
        self.top = -1  # highest index in truth
        self.acked: dict[int, bytes] = {}

    def term_stored(self, member: Member, action: PersistTerm) -> None:
        """The stored term never falls; one vote per term."""
        before = member.hard
        self.check(action.term >= before.term, f"{member.name}: term falls from {before.term} to {action.term}")
        same = action.term == before.term and before.voted_for is not None
        self.check(not same or action.voted_for == before.voted_for, f"{member.name}: second vote in {action.term}")

    def voted(self, member: Member, response: VoteResponse) -> None:
        """An ACCEPT is sent only after the vote is stored (DUR-11)."""
        if response.vote_result is not VoteResult.ACCEPT or response.leader_id is None:
            return
        stored = member.hard
        self.check(
            stored.term == response.term and stored.voted_for == response.leader_id,
            f"{member.name} accepts {response.leader_id} in {response.term}, stored is {stored}",
        )
        earlier = self.votes.setdefault((member.name, response.term), response.leader_id)
        self.check(earlier == response.leader_id, f"{member.name} voted twice in term {response.term}")

    def role(self, member: Member, action: RoleChanged) -> None:
        """One leader per term, and it holds every entry that was committed in its term or before.

        Late votes elect a leader of an old term, when another may have committed more; it commits nothing and has no lease.
        """
        self.cluster.seen[action.role.value] += 1
        if action.role is not Role.LEADER:
            return
        self.uses_configuration_of_its_log(member)
        if self.cluster.codec is not None:
            self.check(member.name not in self.configuration(member).learners, f"the learner {member.name} leads")
        who = member.name, member.incarnation
        earlier = self.leaders.setdefault(action.term, who)
        self.check(earlier == who, f"term {action.term} is led by {earlier} and {who}")
        log, node = member.log.live, member.node
        self.check(
            node is None or not node.recovering,
            f"{member.name} leads without entries that it acknowledged before (DUR-10)",
        )
        for index in range(max(log.begin, 0), self.top + 1):
            if self.terms[index] > action.term:
                break
            self.check(
                log.entry(index) == self.truth.get(index), f"committed entry {index} is missing on leader {member.name}"
            )

    def appended(self, member: Member) -> None:
        """A member that was notified of a full disk appends no entries (DUR-15)."""
        node = member.node
        self.check(node is None or not node.is_disk_full, f"{member.name} appends, with a full disk")

    def cut(self, member: Member, action: CutLog) -> None:
        self.cluster.seen["restart" if action.restart else "truncate"] += 1
        first = max(action.index, member.log.live.begin)
        last = min(member.committed, member.log.live.end_index)
        self.check(first > last, f"{member.name} cuts at {action.index}, committed up to {member.committed}")

    def committed(self, member: Member, action: Commit) -> None:
        """A committed entry is the same on every member and never changes; the committed index never falls."""
        log = member.log.live
        self.check(action.index > member.committed, f"{member.name}: committed falls to {action.index}")
        self.check(action.index <= log.end_index, f"{member.name} commits {action.index} of {log.end_index}")
        for index in range(max(member.committed + 1, log.begin), action.index + 1):
            entry = log.entry(index)
            assert entry is not None
            known = self.truth.setdefault(index, entry)
            self.terms.setdefault(index, member.node.term if member.node is not None else entry.term)
            self.check(known == entry, f"{member.name} commits another entry at {index}")
        self.top = max(self.top, action.index)

    def configuration(self, member: Member) -> Configuration:
        """The newest configuration in a member's log, found without the core: in its entries, then in the truth before."""
        log = member.log.live
        for entry in reversed(log.entries):
            found = SIMPLE.decode(entry.body)
            if found is not None:
                return found
        for index in range(min(log.begin, self.top + 1) - 1 if log.entries else -1, -1, -1):
            found = SIMPLE.decode(self.truth[index].body) if index in self.truth else None
            if found is not None:
                return found
        return initial_of(member)

    def uses_configuration_of_its_log(self, member: Member) -> None:
        """A member uses the newest configuration of its log, whatever was truncated or deleted, and over restarts (DL-X21)."""
        node = member.node
        if node is None or self.cluster.codec is None:
            return
        used, wanted = node.configuration, self.configuration(member)
        same = (used.addresses, used.learners) == (wanted.addresses, wanted.learners)
        self.check(same, f"{member.name} uses the configuration {used}, its log has {wanted}")

    def acknowledged(self, index: int, body: bytes, by: Member) -> None:
        """An acknowledged entry is durable on a majority of the voters (DUR-12)."""
        self.acked[index] = body
        if self.cluster.settings.sync_before_ack:
            voters = self.configuration(by).voters if self.cluster.codec is not None else self.cluster.names
            held = sum(self._holds(self.cluster.members[name], index, body) for name in voters)
            self.check(held > len(voters) // 2, f"entry {index} was acknowledged, durable on {held} of {voters} only")

    def _holds(self, member: Member, index: int, body: bytes) -> bool:
        """Whether it is durable, deleted by retention since, or lost to damage that the member has detected."""
        log = member.log.durable
        entry = log.entry(index)
        known_lost = log.end_index < index <= member.lost_to
        return log.begin > index or known_lost or (entry is not None and entry.body == body)

    def match_logs(self) -> None:
        """Equal index and term imply equal logs up to that index."""
        logs = [member.log.live for member in self.cluster.members.values()]
        for at, one in enumerate(logs):
            for other in logs[at + 1 :]:
                begin = max(one.begin, other.begin)
                equal = False
                for index in range(min(one.end_index, other.end_index), begin - 1, -1):
                    a, b = one.entry(index), other.entry(index)
                    assert a is not None
                    assert b is not None
                    equal = equal or a.term == b.term
                    self.check(not equal or a == b, f"logs differ at {index} below a common entry")

    def all_acknowledged_are_there(self) -> None:
        for member in self.cluster.current():
            log = member.log.live
            for index, body in self.acked.items():
                entry = log.entry(index)
                found = index < log.begin or (entry is not None and entry.body == body)
                self.check(found, f"{member.name} lost the acknowledged entry {index}")

    def check(self, condition: bool, why: str) -> None:
        if not condition:
            cluster = self.cluster
            raise Violation(f"seed {cluster.seed} at {cluster.events.now_ms:.3f} ms: {why}")
