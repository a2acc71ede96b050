"""Changes of the group's members, one at a time: add a learner, make it a voter, remove a member.

A change is an entry of the log (raft/core/configuration.py). The leader appends it only if
  - it has committed an entry of its own term: else a configuration of an earlier leader may come back that shares no majority with
    the new one;
  - the last change is committed;
  - all members are known to support changes, so that all of them use the same configuration;
  - a majority of the voters after the change is reachable, so that the group goes on;
  - a new voter has most of the log, and every member has the entry that added it: members refuse an unknown candidate or leader.
A leader that removes itself does not count itself in quorums any more, and steps down when the change is committed.

Requirements: DL-M05, DL-X21.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.configuration import ADDRESS, MEMBERS_MAX, Configuration
from saturnmq.raft.core.ids import LedgerIndex
from saturnmq.raft.core.leader import Leader
from saturnmq.raft.core.liveness import Heartbeats
from saturnmq.raft.core.messages import ChangeKind, ChangeRequest, ChangeResponse, Code
from saturnmq.raft.core.state import NEVER, MemberState
from saturnmq.raft.core.voting import quorum

_ID: Final = re.compile(r"[a-zA-Z]\d{1,9}")
Refusal = tuple[Code, str]


@dataclass(slots=True)
class PendingChange:
    """A caller waiting until the change at index is committed."""

    token: int
    index: LedgerIndex
    deadline_ms: int


class Membership:
    """Leader side of changes; the other members only follow the log."""

    def __init__(self, state: MemberState, leader: Leader, heartbeats: Heartbeats) -> None:
        self.state = state
        self.leader = leader
        self.heartbeats = heartbeats
        self.pending: PendingChange | None = None

    def role_changed(self) -> None:
        """Fail the waiting caller: the next leader commits the change or removes it."""
        self._answer(Code.TERM_CHANGED, "the leadership changed, the change may still be committed")

    def tick(self) -> None:
        if self.pending is not None and self.state.now_ms >= self.pending.deadline_ms:
            self._answer(Code.WAIT_QUORUM_ACK_TIMEOUT, "no majority has the change yet, it may still be committed")

    def due_ms(self) -> int:
        return self.pending.deadline_ms if self.pending is not None else NEVER

    def progress(self) -> None:
        """After every input: answer the caller of a committed change; a leader that is removed steps down."""
        state = self.state
        # The index is enough: the entry is of this leader's term, and a leader never truncates its log.
        if self.pending is not None and self.pending.index <= state.committed:
            self._answer(Code.SUCCESS, None)
        # Not earlier: until it is committed, this member is the one that replicates it.
        if state.role is Role.LEADER and not state.votes and state.configuration.index <= state.committed:
            state.alarm(f"leader stepped down reason=removed term={state.term}")
            state.become_candidate(state.term)

    def request(self, token: int, request: ChangeRequest) -> None:
        """Check a change and append it; the reply is sent when it is committed."""
        state = self.state
        refusal = self._not_now()
        changed = state.configuration
        if refusal is None:
            change_or_refusal = self._changed(request)
            if isinstance(change_or_refusal, Configuration):
                changed, refusal = change_or_refusal, self._unsafe(request, change_or_refusal)
            else:
                refusal = change_or_refusal
        # After all other checks: the no-op is written only for a change that could be made.
        if refusal is None and not self._own_term_committed():
            self.leader.append_noop_of_term()
            self.leader.advance()
            self.leader.push_all()
            # A group of one voter with ASYNC_FLUSH has committed it at once; all others need a round.
            if not self._own_term_committed():
                refusal = Code.LEADER_NOT_READY, "the leader has not committed an entry of its term yet; try again"
        if refusal is not None or request.dry_run:
            code, reason = refusal or (Code.SUCCESS, None)
            members = state.configuration if refusal is not None else changed
            state.reply(token, self._response(code, reason, members))
            return
        codec = state.configurations.codec
        assert codec is not None, "checked in _not_now"
        (entry,) = self.leader.append([codec.encode(changed)])
        self.pending = PendingChange(token, entry.index, state.now_ms + state.settings.append_wait_ms)
        # A single voter commits without any answer.
        self.leader.advance()
        self.leader.push_all()

    # checks

    def _not_now(self) -> Refusal | None:
        state = self.state
        if state.configurations.codec is None or not state.settings.elector_enabled:
            return Code.UNSUPPORTED, "this group does not support changes of its members"
        refusal = self.leader.refusal()
        if refusal is not None:
            return refusal, f"{refusal.name}, the leader is {state.leader_id or 'not known'}"
        if not self.heartbeats.is_confirmed:
            return Code.LEADER_NOT_READY, "no majority has answered this leader yet; try again"
        # One at a time: two uncommitted changes may have majorities without a common member.
        if self._another_is_pending():
            return Code.REPEATED_REQUEST, f"the change at index {state.configuration.index} is not committed yet"
        return None

    def _another_is_pending(self) -> bool:
        return self.state.configuration.index > self.state.committed

    def _own_term_committed(self) -> bool:
        state = self.state
        # The last committed entry has the highest term, so one look is enough.
        entry = state.log.entry(state.committed)
        return entry is not None and entry.term == state.term

    def _changed(self, request: ChangeRequest) -> Configuration | Refusal:
        """The configuration after the change, or why there is none."""
        now, name, address = self.state.configuration, request.member_id or "", request.address or ""
        if request.kind is ChangeKind.ADD_LEARNER:
            # The port is checked apart: the pattern allows five digits, up to 99,999.
            port = int(address.rpartition(":")[2]) if ADDRESS.fullmatch(address) else 0
            if not _ID.fullmatch(name) or not 0 < port < 65_536:
                text = f"a new member needs an id of one letter and digits and host:port, not {name!r} {address!r}"
                return Code.UNEXPECTED_ARGUMENT, text
            if name in now.addresses or address in now.addresses.values():
                return Code.UNEXPECTED_ARGUMENT, f"{name} or {address} is a member already"
            # Members may still count the votes and acknowledgements of the old one under this id.
            if name in now.removed:
                return Code.UNEXPECTED_ARGUMENT, f"{name} was removed; a new member needs an id that was never used"
            # The number is the brokerId of the member's broker, which must be unique in a group.
            if int(name[1:]) in {int(member[1:]) for member in now.addresses if _ID.fullmatch(member)}:
                return Code.UNEXPECTED_ARGUMENT, f"the number of {name} is that of another member's id"
            if len(now.addresses) >= MEMBERS_MAX:
                return Code.UNEXPECTED_ARGUMENT, f"a group has at most {MEMBERS_MAX} members"
            return now.with_learner(name, address)
        if name not in now.addresses:
            return Code.UNKNOWN_MEMBER, f"{name or 'no id'} is not a member: {', '.join(now.addresses)}"
        if request.kind is ChangeKind.PROMOTE:
            if name not in now.learners:
                return Code.UNEXPECTED_ARGUMENT, f"{name} votes already"
            return now.promoted(name)
        if request.kind is ChangeKind.REMOVE:
            # No quorum could be formed afterwards, not even to undo it.
            if now.voters == (name,):
                return Code.ILLEGAL_MEMBER_STATE, f"{name} is the last voter"
            return now.without(name)
        return Code.UNEXPECTED_ARGUMENT, "the kind of change is not known"

    def _unsafe(self, request: ChangeRequest, changed: Configuration) -> Refusal | None:
        """Why the group must not make this change now."""
        state, name, live = self.state, request.member_id or "", self.heartbeats.live
        old = self._unsupporting(changed, name if request.kind is ChangeKind.ADD_LEARNER else "")
        if old:
            return (
                Code.UNSUPPORTED,
                f"not known to support changes of members: {', '.join(old)}. All must run SaturnMQ of this version or later "
                "with dledger.profile=auto or fast, the same dledger.clusterSecret, and have answered this leader",
            )
        if request.kind is ChangeKind.PROMOTE:
            peers, needed = self.leader.peers, state.configuration.index
            # Until it has caught up, it could not help to commit, and a group of two voters would stop for that long.
            lag = state.log.end - peers[name].watermark
            if not live.get(name):
                return Code.FALL_BEHIND_TOO_MUCH, f"{name} did not answer the last heartbeat"
            if lag > state.settings.learner_lag_max:
                text = f"{name} is {lag} entries behind; at most {state.settings.learner_lag_max} are allowed"
                return Code.FALL_BEHIND_TOO_MUCH, text
            # A member without the entry would refuse the new voter's requests.
            missing = [peer for peer in state.other_members if peers[peer].watermark < needed]
            if missing:
                return (
                    Code.FALL_BEHIND_TOO_MUCH,
                    f"not informed of {name} yet: {', '.join(missing)}; wait for them, or remove those that are lost",
                )
        # Counted after the change: with three voters, one of which is down, removing a live one would stop the group.
        voters = changed.voters
        reachable = [voter for voter in voters if voter == state.self_id or live.get(voter)]
        if len(reachable) < quorum(len(voters)):
            text = f"only {', '.join(reachable) or 'none'} of the voters {', '.join(voters)} would be reachable, no majority"
            return Code.ILLEGAL_MEMBER_STATE, text
        return None

    def _unsupporting(self, changed: Configuration, new: str) -> list[str]:
        """The members that are not known to support changes. new: a member that has not been contacted yet.

        In a group that has changed before, one that has not answered this leader supports them: else that change had been refused.
        """
        supports_changes, default = self.heartbeats.supports_changes, changed.index >= 0
        members = (name for name in changed.addresses if name not in (new, self.state.self_id))
        return [name for name in members if not supports_changes.get(name, default)]

    # responses

    def _answer(self, code: Code, reason: str | None) -> None:
        if self.pending is not None:
            token, self.pending = self.pending.token, None
            self.state.reply(token, self._response(code, reason, self.state.configuration))

    def _response(self, code: Code, reason: str | None, members: Configuration) -> ChangeResponse:
        state = self.state
        return ChangeResponse(
            group=state.group,
            code=code,
            leader_id=state.leader_id,
            term=state.term,
            reason=reason,
            members=members,
        )
