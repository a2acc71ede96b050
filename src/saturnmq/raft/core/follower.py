"""The follower: handles the leader's APPEND, COMPARE, TRUNCATE and COMMIT pushes.

`verified` is the highest index up to which this log is known to equal the leader's in the current term; a matching COMPARE, a
TRUNCATE or an APPEND raises it. Invariants: an APPEND is accepted only if the whole log is verified, the committed index never
passes `verified`, and a TRUNCATE below `verified` is a delayed duplicate that removes nothing.

With SYNC_FLUSH a success response leaves only when the entries are durable. Truncation: docs/spec/04-dledger.md section 3.5.

Requirements: DL-F01..DL-F11, DL-X02, DL-X10..DL-X12.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.core.entry import Entry, entry_position
from saturnmq.raft.core.ids import NO_INDEX, LedgerIndex
from saturnmq.raft.core.messages import Code, PushKind, PushRequest, PushResponse
from saturnmq.raft.core.state import NEVER, MemberState


@dataclass(slots=True)
class WaitingAppend:
    """An APPEND that waits for the entries before it."""

    token: int
    request: PushRequest
    since_ms: int


@dataclass(slots=True)
class Unsynced:
    """A response that is sent when the log is durable up to index (DL-X02)."""

    index: LedgerIndex
    token: int
    response: PushResponse


class Follower:
    """Follower side of a member; pushes are refused in other roles."""

    def __init__(self, state: MemberState) -> None:
        self.state = state
        self.verified = NO_INDEX
        self._end_requested = False  # a push was refused, so that this leader compares from the end of its log next
        self._leader_end = NO_INDEX  # highest index that this leader has compared since then
        self._reported_end: tuple[int, int] | None = None  # epoch and end of the log at the last COMPARE of this leader
        self._appends: dict[int, WaitingAppend] = {}
        self._unsynced: deque[Unsynced] = deque()

    @property
    def waiting(self) -> int:
        return len(self._appends)

    def role_changed(self) -> None:
        """Term or leader changed: nothing is verified any longer, and all waiting pushes are refused."""
        self.verified = self._leader_end = NO_INDEX
        self._end_requested = False
        self._reported_end = None
        self.clear(Code.NOT_FOLLOWER)
        # The leader that waits for these responses is not the leader of this member any longer.
        while self._unsynced:
            held = self._unsynced.popleft()
            self.state.reply(held.token, self._refusal(held.index, Code.NOT_FOLLOWER))

    def clear(self, code: Code = Code.INCONSISTENT_STATE) -> None:
        """Refuse all waiting appends with code (DL-X11)."""
        for waiting in self._appends.values():
            self._answer(waiting.token, waiting.request, code)
        self._appends.clear()

    def push(self, token: int, request: PushRequest) -> None:
        """Handle one push; its reply may be sent later."""
        state = self.state
        if state.failed is not None:
            self._answer(token, request, Code.DISK_ERROR)
        elif state.role is not Role.FOLLOWER:
            self._answer(token, request, Code.NOT_FOLLOWER)
        elif request.term != state.term or request.leader_id != state.leader_id:
            self._answer(token, request, Code.INCONSISTENT_STATE)  # wrong term or leader (DL-F05, DL-X11)
        # Until the leader has compared from its end, nothing bounds what this member may be missing; see `_check_recovered`.
        elif state.recovering and self._leader_end < 0 and request.kind in (PushKind.APPEND, PushKind.COMMIT):
            self._end_requested = True
            self._answer(token, request, Code.INCONSISTENT_STATE)
        elif request.kind is PushKind.COMMIT:
            self._commit(request)
            # A success would keep the leader idle until the next append although the two logs were never compared.
            lost = self.verified < 0 and request.commit_index >= 0  # the leader must COMPARE first
            self._answer(token, request, Code.INCONSISTENT_STATE if lost else Code.SUCCESS)
        elif not request.entries or not all(entry.well_formed for entry in request.entries):
            self._answer(token, request, Code.UNEXPECTED_ARGUMENT)
        elif request.kind is PushKind.APPEND:
            self._append(token, request)
        elif request.kind is PushKind.COMPARE:
            # DLedger drops waiting appends without an answer, and the leader learns it from a timeout only (DL-X11).
            self.clear()
            self._compare(token, request)
        else:
            self.clear()
            self._truncate(token, request)

    def tick(self) -> None:
        """Refuse appends that wait too long for a missing one, so that the leader compares (DL-F10, DL-X12)."""
        if not self._appends:
            return
        state = self.state
        late = [
            first
            for first, waiting in self._appends.items()
            if state.now_ms - waiting.since_ms > state.settings.gap_wait_ms
        ]
        for first in sorted(late):
            # Removed as well as refused: a re-push of a kept one would be answered REPEATED_PUSH for good (DL-X12).
            waiting = self._appends.pop(first)
            self._answer(waiting.token, waiting.request, Code.INCONSISTENT_STATE)

    def due_ms(self) -> int:
        """When the oldest waiting append times out."""
        since_ms = min((waiting.since_ms for waiting in self._appends.values()), default=NEVER)
        # One ms later: `tick` compares with `>`.
        return since_ms + self.state.settings.gap_wait_ms + 1

    def synced(self) -> None:
        """Send the responses that waited for the log to become durable up to state.durable."""
        durable = self.state.durable
        # In the order of indexes, so that the first one not durable ends the loop.
        while self._unsynced and self._unsynced[0].index <= durable:
            held = self._unsynced.popleft()
            self.state.reply(held.token, held.response)
        self._check_recovered()

    # APPEND

    def _append(self, token: int, request: PushRequest) -> None:
        state, first, last = self.state, request.entries[0].index, request.entries[-1].index
        # The leader sends runs without gaps; a gap shows a malformed push.
        if any(b.index != a.index + 1 for a, b in zip(request.entries, request.entries[1:], strict=False)):
            self._answer(token, request, Code.UNEXPECTED_ARGUMENT)
        elif first in self._appends:
            self._answer(token, request, Code.REPEATED_PUSH)  # this push is already waiting (DL-F01)
        # A resent push, the response to which was lost, must succeed, not fail (DL-F10).
        elif last <= state.log.end:
            self._answer_duplicate(token, request)
        elif self.verified != state.log.end:
            self._answer(token, request, Code.INCONSISTENT_STATE)
        # Bound of memory: what arrives beyond it is sent again by the leader.
        elif len(self._appends) >= state.settings.push_requests_max:
            self._answer(token, request, Code.PUSH_REQUEST_IS_FULL)
        else:
            self._appends[first] = WaitingAppend(token, request, state.now_ms)
            self._append_waiting()

    def _answer_duplicate(self, token: int, request: PushRequest) -> None:
        """Answer a push whose entries all lie within the log: success if they are verified and equal (DL-F10)."""
        last = request.entries[-1].index
        if last <= self.verified and all(self.state.log.entry(entry.index) == entry for entry in request.entries):
            self._commit(request)
            self._answer_durable(token, request, last)
        else:
            self._answer(token, request, Code.INCONSISTENT_STATE)

    def _append_waiting(self) -> None:
        """Append waiting requests in log order, whatever their order of arrival (DL-F04)."""
        log = self.state.log
        while self._appends:
            waiting = self._appends.pop(log.next_index, None)
            if waiting is None:
                waiting = self._overlapping()
            if waiting is None:
                return
            if not self._store(waiting):
                # Disk full, wrong position or wrong term all reach the leader as 406, as in DLedger (DL-F05).
                self._answer(waiting.token, waiting.request, Code.INCONSISTENT_STATE)
                # The other waiting appends follow an entry that is missing now.
                self.clear()
                return
            self._commit(waiting.request)
            self._answer_durable(waiting.token, waiting.request, waiting.request.entries[-1].index)

    def _overlapping(self) -> WaitingAppend | None:
        """Remove and return a waiting batch that begins inside the log: it was resent with other bounds (DL-F11)."""
        # If the lowest begins after the end, no waiting one overlaps.
        first = min(self._appends)
        return self._appends.pop(first) if first < self.state.log.next_index else None

    def _store(self, waiting: WaitingAppend) -> bool:
        """Append the entries that are missing. Returns False at the first that does not fit; earlier ones stay (DL-F05, DL-F11)."""
        state, log = self.state, self.state.log
        new: list[Entry] = []
        fits, next_index = not state.disk_full, log.next_index
        end, end_term, file_bytes = log.end_pos, log.end_term, state.settings.file_bytes
        for entry in waiting.request.entries if fits else ():
            if entry.index < next_index:
                fits = log.entry(entry.index) == entry
            else:
                # Equal positions on all members: consume queues hold physical offsets, which must be the same after a failover.
                fits = entry.pos == entry_position(end, entry.size, file_bytes) and end_term <= entry.term <= state.term
                end, end_term = entry.end_pos, entry.term
                if fits:
                    new.append(entry)
            if not fits:
                break
        if new:
            state.append(new)
            # Its predecessor was verified (`_append`), so the new end is.
            self.verified = log.end
            state.sync()
        return fits

    # COMMIT, COMPARE, TRUNCATE

    def _commit(self, request: PushRequest) -> None:
        state = self.state
        # What the leader has committed beyond `verified` may differ here.
        state.commit(min(request.commit_index, self.verified))
        self._check_recovered()

    def _check_recovered(self) -> None:
        """Vote again once all entries are on disk that this member may have acknowledged before the damage.

        How many those were is not known: the checkpoint may be older. But those that were committed are in the leader's log as it
        was when it compared: entries of earlier terms since its election, those of its own term because it had sent them. A leader
        that goes on with a search begun before a restart or a timeout of this member (a Java leader does) compares lower indexes
        only. After refused pushes every leader begins at the end of its log, so a comparison counts only after one.
        """
        state = self.state
        if state.recovering and 0 <= self._leader_end <= min(self.verified, state.log.durable):
            state.recovering = False
            state.alarm(f"missing entries recovered end={self.verified}")

    def _compare(self, token: int, request: PushRequest) -> None:
        """Compare the sent entry with the stored one, in everything but the CRC fields (DL-F07)."""
        log, entry = self.state.log, request.entries[0]
        if self._end_requested:
            # The leader's first comparison after refused pushes is of the end of its log.
            self._leader_end = max(self._leader_end, entry.index)
        self._reported_end = log.epoch, log.end
        # None for an index outside the log, which never equals the entry.
        if log.entry(entry.index) != entry:
            self._answer(token, request, Code.INCONSISTENT_STATE)
            return
        self.verified = max(self.verified, entry.index)
        self._answer_durable(token, request, entry.index)

    def _truncate(self, token: int, request: PushRequest) -> None:
        """Make the sent entry the last one (DL-F08); refuse to remove committed entries (DL-X10)."""
        state, log, entry = self.state, self.state.log, request.entries[0]
        keep = log.entry(entry.index) == entry
        if keep and entry.index < self.verified:
            # Without this, a duplicate that the network delayed would cut entries that were acknowledged meanwhile.
            self._answer_durable(token, request, entry.index)  # delayed duplicate: the entries after it are verified
            return
        first_removed = LedgerIndex(entry.index + 1) if keep else entry.index
        overlap = entry.index <= log.next_index
        if not overlap and self._reported_end != (log.epoch, log.end):
            # It would drop the whole log, so the leader must have seen the current end in a COMPARE response.
            self._answer(token, request, Code.INCONSISTENT_STATE)
            return
        # Committed entries are never removed where the logs overlap; if they do not, this log has fallen behind and restarts
        # at the entry.
        if overlap and first_removed <= min(state.committed, log.end):
            state.alarm(
                f"truncation refused leader={request.leader_id} index={first_removed} committed={state.committed}"
            )
            self._answer(token, request, Code.INCONSISTENT_STATE)
            return
        if not keep and (entry.term > state.term or state.disk_full):
            self._answer(token, request, Code.INCONSISTENT_STATE)
            return
        if keep:
            if log.end > entry.index:
                self._cut(first_removed, entry.end_pos)
        else:
            self._replace(entry, request.members)
        # Before the commit below, which is limited by it.
        self.verified = entry.index
        state.sync()
        self._commit(request)
        self._answer_durable(token, request, entry.index)

    def _replace(self, entry: Entry, members: Configuration | None) -> None:
        """Truncate at the entry's index and append it; if its position does not match, restart the log at that position."""
        state, log = self.state, self.state.log
        before = log.entry(LedgerIndex(entry.index - 1))
        # A predecessor of a higher term cannot be in the leader's log: that is not the prefix.
        if before is not None and before.term <= entry.term:
            if log.end >= entry.index:
                self._cut(entry.index, before.end_pos)
            # Equal index and position do not prove that the entries before are equal, so both conditions.
            if entry.pos == log.position_for(entry.size) and self._prefix_is_sure(entry):
                state.append((entry,))
                return
        state.restart_log(entry, members)
        # Responses for entries of the log that was dropped.
        self._drop_unsynced(LedgerIndex(0))
        state.append((entry,))

    def _prefix_is_sure(self, entry: Entry) -> bool:
        """Whether the log before the entry equals the leader's: verified or committed."""
        return entry.index - 1 <= max(self.verified, self.state.committed)

    def _cut(self, index: LedgerIndex, end_pos: int) -> None:
        self.state.cut(index, end_pos)
        # After the truncation: the refusals carry the new end.
        self._drop_unsynced(index)

    def _drop_unsynced(self, index: LedgerIndex) -> None:
        """Refuse the waiting responses for entries from index on, which were removed."""
        retained: deque[Unsynced] = deque()
        for held in self._unsynced:
            if held.index < index:
                retained.append(held)
            else:
                self.state.reply(held.token, self._refusal(held.index, Code.INCONSISTENT_STATE))
        self._unsynced = retained

    # responses

    def _answer_durable(self, token: int, request: PushRequest, index: LedgerIndex) -> None:
        """Answer 200 once everything up to index is durable."""
        response = self._response(request, Code.SUCCESS)
        if index <= self.state.durable:
            self.state.reply(token, response)
        else:
            self._unsynced.append(Unsynced(index, token, response))

    def _answer(self, token: int, request: PushRequest, code: Code) -> None:
        self.state.reply(token, self._response(request, code))

    def _response(self, request: PushRequest, code: Code) -> PushResponse:
        first = request.entries[0].index if request.entries else None
        return self._refusal(first, code, count=max(len(request.entries), 1))

    def _refusal(self, first: LedgerIndex | None, code: Code, count: int = 1) -> PushResponse:
        log = self.state.log
        return PushResponse(
            group=self.state.group,
            term=self.state.term,
            code=code,
            index=first,
            count=count,
            begin_index=log.begin,
            end_index=log.end,
        )
