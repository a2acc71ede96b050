"""The leader: appends proposals, replicates entries to each peer, advances the committed index.

Replication to a peer is the state machine of `PeerProgress` (COMPARE, TRUNCATE, APPEND). COMPARE and TRUNCATE wait for their
response; APPEND is pipelined. Times are in ms, sizes in bytes.

Requirements: DL-A01..DL-A10, DL-P01..DL-P16, DL-Q01..DL-Q05, DL-X03, DL-X04, DL-X09.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, Entry, entry_bytes_max, entry_position
from saturnmq.raft.core.ids import NO_INDEX, LedgerIndex, Term
from saturnmq.raft.core.messages import AppendResponse, Code, PushKind, PushRequest, PushResponse, Response
from saturnmq.raft.core.progress import PeerProgress, PeerState, ProgressEvent, Pushed, Search
from saturnmq.raft.core.state import NEVER, MemberState
from saturnmq.raft.core.voting import quorum_index

BATCHES_UNDER_WAY: Final = 2  # a third one waits until it is full, see `_may_grow`
PUSH_PENDING_BYTES_MAX: Final = 33_554_432  # bytes
DEPARTING_PUSH_MS: Final = 100  # between attempts to push to a removed member
DEPARTING_MS: Final = 10_000  # how long a removed member is informed at most
REPEATS_MAX: Final = 3  # responses REPEATED_PUSH to pushes of the next entry before the leader compares again
Stamp = Callable[[bytes, int], bytes]  # (body, pos of its entry) -> the body as stored (DL-B03)


@dataclass(slots=True)
class Proposal:
    """A caller waiting until index is committed (DL-A03, DL-A07)."""

    index: LedgerIndex
    token: int
    deadline_ms: int
    response: AppendResponse


class Leader:
    """Leader side of a member; inactive in other roles.

    stamp: converts a proposed body to the stored one. noop: body of the entry that a new leader appends in order to commit
    entries of earlier terms (DL-X04); None: append no such entry.
    """

    def __init__(self, state: MemberState, stamp: Stamp, noop: bytes | None) -> None:
        self.state = state
        self.stamp = stamp
        self.noop = noop
        self.peers: dict[str, PeerProgress] = {}
        self.proposals: deque[Proposal] = deque()
        self._departs_ms: dict[str, int] = {}  # former members: until when they are informed at the latest

    def role_changed(self) -> None:
        """Fail pending proposals with TERM_CHANGED at once (DL-X09); a new leader starts with fresh progress per peer."""
        state = self.state
        while self.proposals:
            # Their outcome is not known: the next leader may still commit the entries.
            waiting = self.proposals.popleft()
            state.reply(waiting.token, self._refuse(Code.TERM_CHANGED))
        # New objects: `_is_current` recognizes responses to an earlier leadership by them.
        self.peers = {}
        self._departs_ms.clear()
        state.departing = {}
        if state.role is Role.LEADER:
            self.peers = {peer: PeerProgress(peer) for peer in (*state.other_members, *self._removed_by_another())}
            self.members_changed()
            self._append_noop()

    def _removed_by_another(self) -> Iterator[str]:
        """Members that an earlier leader removed; not known to be committed here, so that leader may not have informed them."""
        former = self.state.former
        return (peer for peer in (former.addresses if former is not None else ()) if peer != self.state.self_id)

    def members_changed(self) -> None:
        """Replicate to new members too, and for a while to former ones, so that they learn that they are removed."""
        state = self.state
        if state.role is not Role.LEADER:
            return
        for peer in state.other_members:
            if peer not in self.peers:
                self.peers[peer] = PeerProgress(peer)
            self._departs_ms.pop(peer, None)
        for peer in sorted(self.peers.keys() - set(state.other_members)):
            self._departs_ms.setdefault(peer, state.now_ms + DEPARTING_MS)
        addresses = {name: address for each in state.configurations.history for name, address in each.addresses.items()}
        state.departing = {peer: addresses[peer] for peer in self._departs_ms if peer in addresses}

    def _release_departed(self) -> None:
        """Stop replication to former members that hold the committed entry that removes them, or do not answer."""
        state, index = self.state, self.state.configuration.index
        for peer, until_ms in list(self._departs_ms.items()):
            has_removal = state.committed >= index and self.peers[peer].matched >= index
            if has_removal or state.now_ms >= until_ms:
                del self._departs_ms[peer], self.peers[peer]
                state.departing.pop(peer, None)
                state.report_members()

    def space_freed(self) -> None:
        """The disk has space again: a leader elected while it was full appends its no-op entry now (DL-X04, DUR-15)."""
        if self.state.role is Role.LEADER and self.state.log.end_term < self.state.term:
            self._append_noop()

    def _append_noop(self) -> None:
        state = self.state
        # A log that is committed to its end needs no entry of this term to commit it.
        if self.noop is not None and state.log.end > state.committed and not state.disk_full:
            self.append([self.noop])

    def append_noop_of_term(self) -> None:
        """Append a no-op unless the log has an entry of this term already, or the disk is full."""
        if self.state.log.end_term < self.state.term and self.noop is not None and not self.state.disk_full:
            self.append([self.noop])

    # append

    def propose(self, token: int, bodies: Sequence[bytes]) -> AppendResponse:
        """Append bodies as consecutive entries; the reply is sent when the last of them is committed (DL-A01..DL-A04).

        Returns their positions, or the refusal, which is then also sent as the reply. The caller calls `advance` and
        `push_all` afterwards, once for all proposals of a batch.
        """
        state = self.state
        refusal = self.refusal()
        if refusal is None and not (bodies and all(bodies)):
            refusal = Code.REQUEST_WITH_EMPTY_BODYS
        if refusal is None and max(map(len, bodies)) + ENTRY_HEADER_BYTES > entry_bytes_max(state.settings.file_bytes):
            refusal = Code.UNEXPECTED_ARGUMENT  # over the size limit of an entry (DL-A06)
        codec = state.configurations.codec
        # Rejected here too: a body that looks like a configuration would change the group, no matter where it comes from.
        if refusal is None and codec is not None and any(codec.decode(body) is not None for body in bodies):
            refusal = Code.UNEXPECTED_ARGUMENT  # members are changed by `Membership` only
        if refusal is not None:
            refused = self._refuse(refusal)
            state.reply(token, refused)
            return refused
        entries = self.append(bodies)
        response = AppendResponse(
            group=state.group,
            term=state.term,
            leader_id=state.self_id,
            index=entries[-1].index,
            pos=entries[0].pos,
            positions=tuple(entry.pos for entry in entries),
        )
        self.proposals.append(
            Proposal(entries[-1].index, token, state.now_ms + state.settings.append_wait_ms, response)
        )
        return response

    def refusal(self) -> Code | None:
        """The code with which appends are refused now; None if they are accepted."""
        state = self.state
        if state.role is not Role.LEADER:
            return Code.NOT_LEADER
        if state.transferee is not None:
            return Code.LEADER_TRANSFERRING
        # Back-pressure: without a quorum the log would grow, and every entry of it would have to be replicated later.
        if state.log.end - state.committed > state.settings.pending_requests_max:
            return Code.LEADER_PENDING_FULL
        return Code.DISK_FULL if state.disk_full else None

    def append(self, bodies: Sequence[bytes]) -> list[Entry]:
        """Append bodies without any check, and request their sync."""
        state, log, entries, stamp = self.state, self.state.log, [], self.stamp
        term, end, file_bytes = state.term, log.end_pos, state.settings.file_bytes
        for index, body in enumerate(bodies, log.next_index):
            size = ENTRY_HEADER_BYTES + len(body)
            pos = entry_position(end, size, file_bytes)
            entries.append(Entry(LedgerIndex(index), term, pos, stamp(body, pos), size=size))
            end = pos + size
        state.append(entries)
        # Requested now, awaited later: pushes go out while the disk works.
        state.sync()
        return entries

    def _refuse(self, code: Code) -> AppendResponse:
        state = self.state
        return AppendResponse(group=state.group, code=code, leader_id=state.leader_id, term=state.term)

    # quorum

    def watermarks(self) -> dict[str, LedgerIndex]:
        """Highest index that each member is known to hold; for this member, its durable index."""
        marks = {peer: progress.watermark for peer, progress in self.peers.items()}
        marks[self.state.self_id] = self.state.durable
        return marks

    def advance(self) -> None:
        """Commit what a quorum holds, but only up to an entry of the current term (DL-Q01, DL-X03); answer proposals."""
        state = self.state
        peers, durable, self_id = self.peers, state.durable, state.self_id
        index = quorum_index([durable if name == self_id else peers[name].watermark for name in state.voters])
        if index > state.committed:
            entry = state.log.entry(index)
            # An entry of an earlier term is committed only by one of this term after it (Raft, figure 8).
            if entry is not None and entry.term == state.term:
                state.commit(index)
        while self.proposals and self.proposals[0].index <= state.committed:
            proposal = self.proposals.popleft()
            state.reply(proposal.token, proposal.response)

    # push

    def tick(self) -> None:
        state = self.state
        if state.role is not Role.LEADER:
            return
        # In the order of proposals, all with the same wait: the first deadline is the earliest.
        while self.proposals and state.now_ms >= self.proposals[0].deadline_ms:
            late = self.proposals.popleft()
            state.reply(late.token, self._refuse(Code.WAIT_QUORUM_ACK_TIMEOUT))
        self.advance()
        if self._departs_ms:
            self._release_departed()
        self.push_all()

    def due_ms(self) -> int:
        """The first deadline of a proposal, or the time of the next push that no other input triggers."""
        if self.state.role is not Role.LEADER:
            return NEVER
        deadline_ms = self.proposals[0].deadline_ms if self.proposals else NEVER
        departs_ms = self._departs_ms.values()
        return min([deadline_ms, *departs_ms, *map(self._push_due_ms, self.peers.values())])

    def _push_due_ms(self, progress: PeerProgress) -> int:
        """When `push` has work for this peer if no response arrives and nothing is appended."""
        settings, log = self.state.settings, self.state.log
        if log.empty or progress.probing or progress.peer in self._departs_ms:
            return NEVER if progress.peer not in self._departs_ms else self.state.now_ms + DEPARTING_PUSH_MS
        due_ms = -1
        if progress.state is PeerState.APPEND and progress.pending:
            pushed = progress.pending.get(LedgerIndex(progress.matched + 1))
            # One ms later than the timeout, because `_push_again` compares with `<=`.
            due_ms = pushed.sent_ms + settings.push_timeout_ms + 1 if pushed is not None else NEVER
        if progress.state is PeerState.APPEND and progress.next_index > log.end:
            idle_ms = progress.last_push_ms + settings.commit_idle_ms + 1
            due_ms = min(due_ms, idle_ms) if progress.pending else idle_ms
        return max(due_ms, progress.pause_until_ms)

    def push_all(self) -> None:
        for progress in self.peers.values():
            self.push(progress)

    def push(self, progress: PeerProgress) -> None:
        """Send the requests that this peer can accept now."""
        state = self.state
        # A COMPARE or TRUNCATE is answered before anything else is sent (DL-P04).
        if state.log.empty or progress.probing or state.now_ms < progress.pause_until_ms:
            return  # nothing is sent from an empty log (DL-P05)
        # Earlier it would stop voting although the group may still need its vote for this very entry.
        if progress.peer in self._departs_ms and state.configuration.index > state.committed:
            return  # a former member gets the entry that removes it when no vote of it is needed any more
        if progress.state is PeerState.COMPARE:
            self._compare(progress)
        elif progress.state is PeerState.TRUNCATE:
            self._probe(progress, PushKind.TRUNCATE, progress.truncate_at)
        else:
            self._appends(progress)

    def _compare(self, progress: PeerProgress) -> None:
        log = self.state.log
        search = progress.search
        # Retention may have deleted the entry to compare, or a new search begins: at the end, where a healthy peer matches.
        if search is None or not log.begin <= search.at <= log.end:
            search = progress.search = Search(NO_INDEX, log.end, log.end)
        self._probe(progress, PushKind.COMPARE, search.at)

    def _probe(self, progress: PeerProgress, kind: PushKind, index: LedgerIndex) -> None:
        """Send a COMPARE or TRUNCATE; nothing else is sent to the peer until its response (DL-P04)."""
        entry = self.state.log.entry(index)
        if entry is None:
            # Deleted by retention between two steps of the search.
            self._lost(progress)
            return
        progress.probing = True
        request = self._request(progress, kind, (entry,))
        term = self.state.term
        self.state.send(progress.peer, request, partial(self._probed, progress, term, kind, index))

    def _probed(
        self, progress: PeerProgress, term: Term, kind: PushKind, index: LedgerIndex, response: Response | None
    ) -> None:
        # A response from before a role change must not touch the new progress.
        if not self._is_current(progress, term):
            return
        progress.probing = False
        search, begin = progress.search, self.state.log.begin
        code = response.code if isinstance(response, PushResponse) else Code.NETWORK_ERROR
        if isinstance(response, PushResponse) and self.state.settings.batch_push_auto:
            # Learned again with each probe: the peer may have been replaced by an older version.
            progress.reads_batches = response.count > 0  # DLedger before 0.2.6 sends no count
        if code == Code.SUCCESS and isinstance(response, PushResponse):
            if kind is PushKind.TRUNCATE:
                self._start_appends(progress, ProgressEvent.CUT, index)
            # The compared entry is the peer's last: there is nothing to remove.
            elif index == response.end_index:
                self._start_appends(progress, ProgressEvent.MATCHED, index)
            else:
                self._diverged(progress, search.matched(begin) if search is not None else None)
        elif kind is PushKind.COMPARE and code == Code.INCONSISTENT_STATE and isinstance(response, PushResponse):
            self._diverged(progress, search.missed(response, begin) if search is not None else None)
        else:
            self._lost(progress)
        # At once: otherwise each step of a search would wait for a tick.
        self.push(progress)

    def _start_appends(self, progress: PeerProgress, event: ProgressEvent, index: LedgerIndex) -> None:
        progress.on(event)
        progress.append_from(index)
        self.advance()

    def _diverged(self, progress: PeerProgress, truncate_at: LedgerIndex | None) -> None:
        if truncate_at is not None:
            progress.truncate_at = truncate_at
            progress.on(ProgressEvent.DIVERGED)

    def _lost(self, progress: PeerProgress) -> None:
        """Return to COMPARE after a pause (DL-P01, DL-P13)."""
        progress.on(ProgressEvent.LOST)
        progress.pause_until_ms = self.state.now_ms + self.state.settings.push_error_pause_ms

    def _appends(self, progress: PeerProgress) -> None:
        """Send pipelined pushes, the overdue re-push, and the committed index to an idle peer (DL-P07..DL-P11)."""
        state, log, settings, now_ms = self.state, self.state.log, self.state.settings, self.state.now_ms
        if progress.next_index < log.begin:
            progress.on(ProgressEvent.LOST)  # deleted by retention here; COMPARE finds the new begin (DL-P13)
            return
        while progress.next_index <= log.end and len(progress.pending) < settings.push_pending_max:
            # Bounded by bytes, and at least one entry: a large one has to go out too.
            entries = self._slice(progress.next_index, log.end, self._batch_bytes(progress))
            if (
                not entries
                or self._too_much(progress, entries)
                or self._may_grow(progress, entries)
                or not self._within_quota(progress, entries)
            ):
                break
            self._send_append(progress, entries)
            progress.next_index = LedgerIndex(entries[-1].index + 1)
        if progress.next_index <= log.end:
            self._push_again(progress)
        # An idle peer learns the committed index only this way (DL-P08).
        elif now_ms - progress.last_push_ms > settings.commit_idle_ms:
            self._push_again(progress)
            progress.last_push_ms = now_ms
            request = self._request(progress, PushKind.COMMIT, ())
            state.send(progress.peer, request, partial(self._committed, progress, state.term, progress.matched))
        else:
            self._push_again(progress)

    def _batch_bytes(self, progress: PeerProgress) -> int:
        """Size in bytes at which a push to this peer is full; 0: one entry per push (DL-P15, DL-X14)."""
        settings = self.state.settings
        if progress.reads_batches:
            return settings.batch_push_auto_bytes
        return settings.batch_push_bytes if settings.batch_push else 0

    def _slice(self, first: LedgerIndex, last: LedgerIndex, full_bytes: int) -> tuple[Entry, ...]:
        """The entries of the next push, from `first` until the push is full or the log ends."""
        entry_at, entries, size = self.state.log.entry, [], 0
        for index in range(first, last + 1):
            entry = entry_at(LedgerIndex(index))
            if entry is None:
                break
            entries.append(entry)
            size += entry.size
            if size >= full_bytes:
                break
        return tuple(entries)

    def _too_much(self, progress: PeerProgress, entries: tuple[Entry, ...]) -> bool:
        """Whether the in-flight bytes to this peer would exceed the limit: 1000 large entries would exhaust memory."""
        # The oldest push in flight: its first entry is where the bytes in flight begin.
        first = self.state.log.entry(next(iter(progress.pending))) if progress.pending else None
        return first is not None and entries[-1].end_pos - first.pos > PUSH_PENDING_BYTES_MAX

    def _may_grow(self, progress: PeerProgress, entries: tuple[Entry, ...]) -> bool:
        """Whether to delay a batch that is not full: other pushes are in flight, and their responses trigger the next one.

        Entries that are appended in the meantime join the batch.
        """
        full_bytes = self._batch_bytes(progress)
        return (
            full_bytes > 0
            and len(progress.pending) >= BATCHES_UNDER_WAY
            and entries[-1].index == self.state.log.end
            and sum(entry.size for entry in entries) < full_bytes
        )

    def _within_quota(self, progress: PeerProgress, entries: tuple[Entry, ...]) -> bool:
        """False if this peer lags far behind and has used up its bytes of the current second (DL-P14, DL-X14)."""
        state, settings = self.state, self.state.settings
        lags = (
            state.log.end - progress.watermark > settings.push_throttle_entries
            and state.log.end_pos - entries[0].pos > settings.push_throttle_bytes
        )
        if not lags:
            return True
        second = state.now_ms // 1000
        if second != progress.quota_second:
            progress.quota_second, progress.quota_bytes = second, 0
        if progress.quota_bytes >= settings.push_quota_bytes:
            # The rest of this second is for the others (DL-P14).
            progress.pause_until_ms = (second + 1) * 1000
            return False
        progress.quota_bytes += sum(entry.size for entry in entries)
        return True

    def _push_again(self, progress: PeerProgress) -> None:
        """Re-push after a timeout, but only the push that holds the entry the peer needs next (DL-P10)."""
        first = LedgerIndex(progress.matched + 1)
        pushed = progress.pending.get(first)
        if pushed is None or self.state.now_ms - pushed.sent_ms <= self.state.settings.push_timeout_ms:
            return
        indexes = map(LedgerIndex, range(first, pushed.last + 1))
        entries = tuple(filter(None, map(self.state.log.entry, indexes)))
        # Entries may have been deleted by retention since they were sent first.
        if len(entries) == pushed.last - first + 1:
            self._send_append(progress, entries)
        else:
            progress.on(ProgressEvent.LOST)

    def _send_append(self, progress: PeerProgress, entries: tuple[Entry, ...]) -> None:
        state, first, last = self.state, entries[0].index, entries[-1].index
        # Overwritten by a re-push, so that its timeout begins again.
        progress.pending[first] = Pushed(last, state.now_ms)
        progress.last_push_ms = state.now_ms
        request = self._request(progress, PushKind.APPEND, entries, batch=self._batch_bytes(progress) > 0)
        state.send(progress.peer, request, partial(self._appended, progress, state.term, first, last))

    def _appended(
        self, progress: PeerProgress, term: Term, first: LedgerIndex, last: LedgerIndex, response: Response | None
    ) -> None:
        """Handle the response to an APPEND (DL-P12, DL-P16). Codes other than 200 and 406 are left to the re-push.

        A DLedger member keeps a push that it cannot append yet: it answers it once with 406 after its timeout, and every later
        push of the same entry with 413 (DL-F10). If the 406 arrives too late, only a COMPARE makes the member drop the push.
        """
        if not self._is_current(progress, term) or not isinstance(response, PushResponse):
            return
        if response.code == Code.SUCCESS and response.index is not None:
            # A follower before DLedger 0.2.6 sends no count and confirms one entry only (DL-P16).
            held = LedgerIndex(response.index + max(response.count, 1) - 1)
            if progress.pending.pop(first, None) is not None:  # else the response is older than a COMPARE
                # Limited: a peer that confirms more than it was sent is wrong.
                progress.hold(min(held, last))
            self.advance()
            self.push(progress)
        elif progress.state is PeerState.APPEND and first in progress.pending:
            # Only the push of the entry that the peer needs next counts: later ones are refused as long as it is missing.
            if response.code == Code.REPEATED_PUSH and first == progress.matched + 1:
                progress.repeats += 1
            if response.code == Code.INCONSISTENT_STATE or progress.repeats > REPEATS_MAX:
                self._refused(progress)

    def _refused(self, progress: PeerProgress) -> None:
        """Compare at once, but pause before comparing again with a peer that keeps refusing (disk full, for example)."""
        state = self.state
        # Else leader and peer would exchange refusals without a pause.
        again = state.now_ms - progress.refused_ms < state.settings.push_error_pause_ms
        progress.refused_ms = state.now_ms
        progress.on(ProgressEvent.LOST)
        if again:
            progress.pause_until_ms = state.now_ms + state.settings.push_error_pause_ms
        self.push(progress)

    def _committed(self, progress: PeerProgress, term: Term, matched: LedgerIndex, response: Response | None) -> None:
        """Handle the response to a COMMIT; return to COMPARE if the peer refused it, or its log ends before `matched`.

        Such a peer has lost entries or its verified position. DLedger does not check this: there the peer stays behind until
        something is appended.
        """
        if not self._is_current(progress, term) or not isinstance(response, PushResponse):
            return
        if response.code == Code.INCONSISTENT_STATE or (response.code == Code.SUCCESS and response.end_index < matched):
            progress.on(ProgressEvent.LOST)
            self.push(progress)

    def _is_current(self, progress: PeerProgress, term: Term) -> bool:
        """Whether a response belongs to the current leadership; each leadership creates new PeerProgress objects."""
        return self.state.term == term and self.peers.get(progress.peer) is progress

    def _request(
        self, progress: PeerProgress, kind: PushKind, entries: tuple[Entry, ...], *, batch: bool = False
    ) -> PushRequest:
        state = self.state
        return PushRequest(
            group=state.group,
            term=state.term,
            leader_id=state.self_id,
            local_id=state.self_id,
            remote_id=progress.peer,
            kind=kind,
            commit_index=state.committed,
            entries=entries,
            batch=batch,
            # A member that restarts its log at this entry cannot know the configuration in use before it.
            members=self._members_before(entries[0]) if kind is PushKind.TRUNCATE else None,
        )

    def _members_before(self, entry: Entry) -> Configuration | None:
        configuration = self.state.configurations.before(entry.index)
        return configuration if configuration.index >= 0 else None
