"""The state shared by the parts of a member: term, vote, role, log, committed index, and the actions of the current input.

All role changes go through `MemberState`; it notifies each part by calling its `role_changed`.

Requirements: DL-E20..DL-E22, DL-M01.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from saturnmq.protocol.errors import invariant
from saturnmq.raft.core.actions import (
    Action,
    AppendEntries,
    Commit,
    CutLog,
    MembersChanged,
    PersistMembers,
    PersistTerm,
    RaiseAlarm,
    Reply,
    Role,
    RoleChanged,
    Send,
    SyncLog,
)
from saturnmq.raft.core.configuration import Configuration, ConfigurationGeneration, Configurations
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import NO_TERM, LedgerIndex, Term
from saturnmq.raft.core.log import EntryLog
from saturnmq.raft.core.messages import Request, Response
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.voting import quorum

NEVER: Final = 1 << 62  # ms: no timer is running
_ID_LENGTH_MAX: Final = 64
Chance = Callable[[int], int]  # chance(n) is a whole number in 0..n-1
Answered = Callable[[Response | None], None]


@dataclass(frozen=True, slots=True)
class HardState:
    """Term and vote as stored in the file `currterm` (DL-M01)."""

    term: Term = Term(0)
    voted_for: str | None = None


class Part(Protocol):
    """A part of a member with its own state per role or term."""

    def role_changed(self) -> None: ...

    def due_ms(self) -> int:
        """When its next timer fires, in ms; a time in the past means at once, NEVER that no timer is running."""
        ...


@dataclass(slots=True)
class MemberState:
    """State of one member. now_ms: time of the input being handled.

    Derived from the configuration in use: peers: all members. voters: those that vote. other_members, other_voters: the same
    without this member. votes: whether this member is a voter.
    """

    self_id: str
    group: str
    configurations: Configurations
    settings: CoreSettings
    chance: Chance
    log: EntryLog
    term: Term
    voted_for: str | None
    committed: LedgerIndex
    now_ms: int = 0
    role: Role = Role.CANDIDATE
    leader_id: str | None = None
    transferee: str | None = None
    known_max_term: Term = NO_TERM
    term_to_take: Term = NO_TERM
    leader_promised_ms: int = -1  # until then a follower's leader has announced a heartbeat; -1: it announces none
    failed: str | None = None  # why the log or the term file can no longer be written (DL-X15)
    disk_full: bool = False
    # Set by the caller: state kept outside the log (offsets, topics) may be older here than on the leader (DL-X18).
    outdated: bool = False
    barred: bool = False  # set by the caller: as leader this member would read a damaged entry and fail again (DUR-10)
    recovering: bool = False  # the log may be missing acknowledged entries: neither vote nor stand (DUR-10)
    out: list[Action] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    calls: dict[int, Answered] = field(default_factory=dict)
    next_call: int = 0
    members_changed: list[Callable[[], None]] = field(default_factory=list)  # called after a change
    departing: dict[str, str] = field(
        default_factory=dict
    )  # former members that a leader still informs, with their addresses
    peers: tuple[str, ...] = ()
    voters: tuple[str, ...] = ()
    other_members: tuple[str, ...] = ()
    other_voters: tuple[str, ...] = ()
    votes: bool = True
    stored: tuple[ConfigurationGeneration, ...] = ()  # as in the file

    def __post_init__(self) -> None:
        self._derive()

    @property
    def configuration(self) -> Configuration:
        """The one in use: the newest in the log, committed or not."""
        return self.configurations.newest

    @property
    def quorum(self) -> int:
        return quorum(len(self.voters))

    @property
    def quorum_others(self) -> int:
        """Number of other voters that form a quorum, together with this member if it votes."""
        return len(self.voters) // 2 + 1 - self.votes

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def durable(self) -> LedgerIndex:
        """Highest index that this member may acknowledge (DL-X02): the synced end under SYNC_FLUSH, else the end."""
        return self.log.durable if self.settings.sync_before_ack else self.log.end

    @property
    def taking_leadership(self) -> bool:
        """Whether this member, a preferred leader, is running for the term of a leadership transfer (DL-L08)."""
        return self.self_id in self.settings.preferred_leaders and self.term_to_take == self.term

    def start(self) -> None:
        """Report what differs from the caller's file and settings: a configuration that replaces the initial one, or is lost."""
        self.settle_members()
        if self.configuration.index >= 0:
            self.report_members()

    # outputs

    def send(self, peer: str, request: Request, answered: Answered, *, timeout_ms: int | None = None) -> None:
        """Send a request; `answered` is called exactly once, with None if no response arrived."""
        self.next_call += 1
        # Before the action: the caller may answer it while the list is executed.
        self.calls[self.next_call] = answered
        self.out.append(Send(self.next_call, peer, request, timeout_ms or self.settings.rpc_timeout_ms))

    def reply(self, token: int, response: Response) -> None:
        self.out.append(Reply(token, response))

    def alarm(self, text: str) -> None:
        self.out.append(RaiseAlarm(text))

    def sync(self) -> None:
        """Request an fsync up to the end of the log, unless flushing is asynchronous."""
        if self.settings.sync_before_ack:
            self.out.append(SyncLog(self.log.epoch, self.log.end))

    # term and vote

    def next_term(self) -> None:
        """Raise the term, clear the vote, persist both (DL-E05)."""
        # A leader or follower that changed its term on its own would act in a term without election.
        invariant(self.role is Role.CANDIDATE, "only a candidate raises its term")
        # Straight to the highest term seen: every lower one would be refused (DL-E05).
        self.term = max(self.known_max_term, Term(self.term + 1))
        # In the same write as the term: a crash between two writes could leave the old vote in the new term.
        self.voted_for = None
        self.out.append(PersistTerm(self.term, None))

    def vote_for(self, candidate: str) -> None:
        """Vote for candidate in this term; the vote is persisted before the response is sent (DL-E16)."""
        # Two votes in one term can elect two leaders.
        invariant(self.voted_for in (None, candidate), f"second vote in term {self.term}")
        if self.voted_for is None:
            self.voted_for = candidate
            self.out.append(PersistTerm(self.term, candidate))

    # log and configuration

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries to the log; a configuration among them is in use from now on."""
        self.log.append(entries)
        changed = self.configurations.append(entries)
        if changed:
            last = self.stored[-1] if self.stored else ConfigurationGeneration()
            # The file is written before the log changes: after a crash it must describe the log with and without this step.
            self._persist_members(*self.stored[:-1], ConfigurationGeneration(self.configurations.changes, last.begin))
        self.out.append(AppendEntries(tuple(entries)))
        if changed:
            self._reconfigured()

    def cut(self, index: LedgerIndex, end_pos: int) -> None:
        """Truncate the log; a configuration that was appended there is no longer in use."""
        self.log.cut(index, end_pos)
        changed = self.configurations.cut(index)
        if changed:
            begin = self.stored[-1].begin if self.stored else None
            # One generation more: a crash may undo the truncation until the log is synced.
            self._persist_members(*self.stored, ConfigurationGeneration(self.configurations.changes, begin))
        self.out.append(CutLog(index, end_pos))
        if changed:
            self._reconfigured()

    def restart_log(self, entry: Entry, members: Configuration | None) -> None:
        """Empty the log; this entry will be its first, and the given configuration is in use before it."""
        before = self.configurations.changes
        self.configurations.restart(members)
        after = self.configurations.changes
        self._persist_members(*self.stored, ConfigurationGeneration(after, (entry.index, entry.term)))
        # After the file, like the truncation above.
        self.log.restart(entry.index, entry.pos)
        self.out.append(CutLog(entry.index, entry.pos, restart=True))
        if before != after:
            self._reconfigured()

    def settle_members(self) -> None:
        """The log is on disk with all truncations: the file needs only the present configurations."""
        self._persist_members(ConfigurationGeneration(self.configurations.changes))

    def trimmed(self, begin: LedgerIndex) -> None:
        """Retention deleted the entries before begin."""
        self.log.trimmed(begin)
        self.configurations.trim(begin)

    @property
    def former(self) -> Configuration | None:
        """The configuration before the one in use, while that is not known to be committed."""
        history = self.configurations.history
        # Once the newest is committed, the older ones can no longer be in use anywhere that counts.
        return history[-2] if len(history) > 1 and history[-1].index > self.committed else None

    def trusts(self, name: str | None, changes: int | None) -> bool:
        """Whether requests of a candidate or leader with this configuration index count.

        Those of members do, of one whose removal is not committed yet, because it may have to commit it, and of one with a newer
        configuration, in which it may be new: this log may end earlier.
        """
        if name in self.peers:
            return True
        former, own_index = self.former, self.configuration.index
        newer = changes is not None and changes > own_index and self.configurations.codec is not None
        # Of a member of a newer configuration nothing is known but what it sends itself.
        if not name or len(name) > _ID_LENGTH_MAX or not name.isprintable():
            return False  # a vote for it is written to the file of the term
        return newer or (former is not None and name in former.addresses)

    @property
    def stands(self) -> bool:
        """Whether this member stands for election: as a voter, or if it may have the only copy of the entry that removes it."""
        former = self.former
        return self.votes or (former is not None and self.self_id in former.voters)

    def _persist_members(self, *generations: ConfigurationGeneration) -> None:
        """Write the file if it changes; a group that never changes has none."""
        # Members that never change write no file, so that Java's directory layout stays as it is.
        if generations != self.stored and any(generation.configurations for generation in (*generations, *self.stored)):
            self.stored = generations
            self.out.append(PersistMembers(generations))

    def _derive(self) -> None:
        newest = self.configurations.newest
        self.peers, self.voters = tuple(newest.addresses), newest.voters
        self.other_members = tuple(peer for peer in self.peers if peer != self.self_id)
        self.other_voters = tuple(peer for peer in self.voters if peer != self.self_id)
        self.votes = self.self_id in self.voters

    def _reconfigured(self) -> None:
        self._derive()
        self.report_members()
        for changed in self.members_changed:
            changed()

    def report_members(self) -> None:
        """Report the configuration in use to the caller."""
        former = self.former
        addresses = former.addresses if former is not None else {}
        self.out.append(MembersChanged(self.configuration, {**self.departing, **addresses}))

    # roles

    def become_candidate(self, term: Term) -> None:
        """Become candidate (DL-E20). A higher term is only remembered here; `next_term` adopts it later."""
        # A late message of an old term changes nothing.
        if term < self.term:
            return
        self.known_max_term = max(self.known_max_term, term)
        self._become(Role.CANDIDATE, None)

    def become_leader(self) -> None:
        """Become leader of the current term (DL-E21)."""
        invariant(self.role is Role.CANDIDATE, "only a candidate becomes leader")
        invariant(self.failed is None, "a failed member does not lead")
        self._become(Role.LEADER, self.self_id)

    def become_follower(self, leader_id: str) -> None:
        """Follow leader_id in the current term (DL-E22)."""
        # One leader per term: a second one shows a lost vote or two members with one id.
        invariant(self.role is not Role.LEADER, "a leader does not follow another in its own term")
        self._become(Role.FOLLOWER, leader_id)

    def _become(self, role: Role, leader_id: str | None) -> None:
        self.role = role
        self.leader_id = leader_id
        # Every change of role ends a transfer; `Transfers`, one of the parts below, answers its caller.
        self.transferee = None
        self.out.append(RoleChanged(role, self.term, leader_id))
        for part in self.parts:
            part.role_changed()

    # committed index

    def commit(self, index: LedgerIndex) -> None:
        """Advance the committed index; it never decreases (DL-Q02).

        The caller guarantees that this log equals the leader's up to index.
        """
        # Clamped as in DLedger: the leader may have committed more than this log holds yet (DL-Q02).
        index = min(index, self.log.end)
        if index <= self.committed or index < self.log.begin or index < 0:
            return
        entry = self.log.entry(index)
        # Deleted by retention; what follows commits it.
        if entry is None:
            return
        before, self.committed = self.committed, index
        self.out.append(Commit(index, entry.end_pos))
        # `former` changes with this commit, and with it the members that must be reachable.
        if before < self.configurations.newest.index <= index:
            self.report_members()
