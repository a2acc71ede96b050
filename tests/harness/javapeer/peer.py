"""A group member that votes and follows as DLedger 0.3.1.2 does, with its defects.

Where it behaves as DLedger and not as SaturnMQ (the defects of spec 04 section 6.2, by their numbers):
  DL-X01  a vote is answered at once, nothing is synced
  DL-X02  an entry is acknowledged when it is written
  DL-X05  without a leader it requests votes repeatedly, and returns with a higher term than any other member
  DL-X10  TRUNCATE removes committed entries too, and the committed index does not change
  DL-X11  COMPARE and COMMIT check no term and no leader; COMPARE and TRUNCATE drop waiting appends without a response
  DL-X12  an append after a gap is answered and kept: its retry is a repeated push

It never leads: it requests votes as if its log were empty. Its log survives its process, as the page cache does.

Requirements: SIM-06.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

from saturnmq.net import NO_RESPONSE, NetSettings, RemotingClient, RemotingServer
from saturnmq.net.connection import Connection
from saturnmq.protocol.errors import RemoteProtocolError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import NO_INDEX, NO_TERM, LedgerIndex, Term
from saturnmq.raft.core.messages import (
    Code,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushKind,
    PushRequest,
    PushResponse,
    Response,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from saturnmq.raft.core.voting import Voter, judge
from saturnmq.raft.wire.codec import RESPONSE_HEADER_CODE, code_of, decode_request, decode_response, encode

TICK_SECONDS = 0.01  # DL-E02
GAP_SECONDS = 1.0  # DL-F10


@dataclass(slots=True)
class OriginalLog:
    """The content of its disk: entries by index, term and vote."""

    entries: dict[int, Entry] = field(default_factory=dict)
    begin: LedgerIndex = NO_INDEX
    end: LedgerIndex = NO_INDEX
    committed: int = -1
    term: Term = Term(0)
    voted_for: str | None = None
    cuts: int = 0
    cut_committed: int = 0

    @property
    def end_term(self) -> Term:
        return self.entries[self.end].term if self.end >= 0 else NO_TERM


@dataclass(slots=True)
class _Waiting:
    connection: Connection
    command: Command
    request: PushRequest
    since: float


class OriginalPeer:
    """One process of it. peers: id -> host:port; heartbeat_s: the group's interval; the peer times out after three of them."""

    def __init__(
        self,
        self_id: str,
        group: str,
        peers: dict[str, str],
        log: OriginalLog,
        *,
        heartbeat_s: float,
        rng: random.Random,
    ) -> None:
        self.self_id, self.group, self.peers, self.log, self._rng = self_id, group, peers, log, rng
        self._heartbeat_s = heartbeat_s
        self.leader_id: str | None = None
        self.follows = False
        self._known_max = log.term
        self._raise_at: float | None = None  # a higher term was seen: adopted in the next round of the state loop
        self._last_heartbeat = 0.0
        self._next_vote = 0.0
        self._appends: dict[int, _Waiting] = {}
        self._looked = 0.0
        self._server = RemotingServer(self._handle, settings=NetSettings())
        self._client = RemotingClient(settings=NetSettings())

    async def run(self) -> None:
        """Serve until the process ends."""
        loop = asyncio.get_running_loop()
        host, _, port = self.peers[self.self_id].partition(":")
        await self._server.start(host, int(port))
        while True:
            await asyncio.sleep(TICK_SECONDS)  # as the state loop of DLedger polls (DL-E02)
            self._tick(loop.time())
            if not self.follows and self._raise_at is None and loop.time() >= self._next_vote:
                await self._ask_for_votes(loop.time())

    def _tick(self, now: float) -> None:
        log = self.log
        if self._raise_at is not None and now >= self._raise_at:
            log.term, log.voted_for, self._raise_at = Term(max(self._known_max, log.term + 1)), None, None
            self._next_vote = now + 0.3 + self._rng.random() * 0.7
        if self.follows and now - self._last_heartbeat > 3 * self._heartbeat_s:
            self._candidate(log.term)
        if self.follows:
            self._work(now)

    def _candidate(self, term: Term) -> None:
        self.follows, self.leader_id, self._known_max = False, None, max(self._known_max, term)

    def _see(self, term: Term, now: float) -> None:
        self._candidate(term)
        if self._raise_at is None:  # a candidate that asks again in every tick must not postpone it
            self._raise_at = now + TICK_SECONDS

    async def _ask_for_votes(self, now: float) -> None:
        """Run one round of votes: rejected because of its log, it retries in the same term, otherwise in the next (3.3)."""
        log = self.log
        request = VoteRequest(group=self.group, term=log.term, leader_id=self.self_id, local_id=self.self_id)
        log.voted_for = log.voted_for or self.self_id
        answers = await asyncio.gather(*(self._ask(peer, request) for peer in self.peers if peer != self.self_id))
        self._next_vote = asyncio.get_running_loop().time() + 0.3 + self._rng.random() * 0.7
        said = [one for one in answers if one is not None]
        if self.follows or not said:
            return
        known = max((one.term for one in said if one.vote_result is VoteResult.REJECT_EXPIRED_VOTE_TERM), default=-1)
        if known > log.term:
            log.term, log.voted_for = Term(known), None
        elif any(one.vote_result is VoteResult.REJECT_ALREADY_VOTED for one in said):
            log.term, log.voted_for = Term(log.term + 1), None

    async def _ask(self, peer: str, request: VoteRequest) -> VoteResponse | None:
        to = VoteRequest(
            group=request.group,
            term=request.term,
            leader_id=request.leader_id,
            local_id=request.local_id,
            remote_id=peer,
        )
        with suppress(SaturnError):
            answer = await self._client.invoke(self.peers[peer], Command(code_of(to), body=encode(to)), 1000)
            response = decode_response(code_of(to), answer.body)
            return response if isinstance(response, VoteResponse) else None
        return None

    # requests

    def _handle(self, connection: Connection, command: Command) -> Command | bytes:
        try:
            request = decode_request(command.code, command.body)
        except RemoteProtocolError as error:
            return command.reply(1, str(error))
        now = asyncio.get_running_loop().time()
        if isinstance(request, PushRequest):
            self._push(connection, command, request, now)
            return NO_RESPONSE
        response: Response
        if isinstance(request, VoteRequest):
            response = self._vote(request, now)
        elif isinstance(request, HeartBeatRequest):
            response = self._beat(request, now)
        elif isinstance(request, TransferRequest):
            response = TransferResponse(group=self.group, code=Code.TAKE_LEADERSHIP_FAILED, term=self.log.term)
        elif isinstance(request, MetadataRequest):
            response = MetadataResponse(group=self.group, leader_id=self.leader_id, peers=dict(self.peers))
        else:
            return command.reply(3, "not served")
        return command.reply(RESPONSE_HEADER_CODE, body=encode(response))

    def _vote(self, request: VoteRequest, now: float) -> VoteResponse:
        log = self.log
        voter = Voter(
            self.self_id,
            tuple(self.peers),
            log.term,
            log.voted_for,
            self.leader_id,
            log.end,
            log.end_term,
            False,
            False,
        )
        result, term = judge(voter, request), log.term
        if result is VoteResult.REJECT_TERM_NOT_READY:
            self._see(request.term, now)
        elif result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER:
            term = log.end_term
        elif result is VoteResult.ACCEPT:
            log.voted_for = request.leader_id
        return VoteResponse(
            group=request.group,
            term=term,
            leader_id=request.leader_id,
            local_id=request.local_id,
            remote_id=request.remote_id,
            vote_result=result,
        )

    def _beat(self, request: HeartBeatRequest, now: float) -> HeartBeatResponse:
        log = self.log
        if request.term < log.term:
            return HeartBeatResponse(code=Code.EXPIRED_TERM, term=log.term)
        if request.term > log.term:
            self._see(request.term, now)
            return HeartBeatResponse(code=Code.TERM_NOT_READY)
        if self.leader_id is None:
            self.follows, self.leader_id = True, request.leader_id
        elif self.leader_id != request.leader_id:
            return HeartBeatResponse(code=Code.INCONSISTENT_LEADER)
        self._last_heartbeat = now
        return HeartBeatResponse()

    # pushes

    def _push(self, connection: Connection, command: Command, request: PushRequest, now: float) -> None:
        waiting = _Waiting(connection, command, request, now)
        if request.kind is PushKind.APPEND:
            first = request.entries[0].index if request.entries else -1
            if not request.entries:
                self._answer(waiting, Code.UNEXPECTED_ARGUMENT)
            elif first in self._appends:
                self._answer(waiting, Code.REPEATED_PUSH)
            else:
                self._appends[first] = waiting
                self._work(now)
        elif not self.follows:
            self._answer(waiting, Code.NOT_FOLLOWER)
        elif request.kind is PushKind.COMMIT:
            self._answer(waiting, Code.SUCCESS)
            self._commit(request)
        elif not request.entries:
            self._answer(waiting, Code.UNEXPECTED_ARGUMENT)
        else:
            self._appends.clear()
            entry = request.entries[0]
            good = self.log.entries.get(entry.index) == entry
            if request.kind is PushKind.TRUNCATE:
                good = request.term == self.log.term and request.leader_id == self.leader_id
                if good:
                    self._cut(entry)
            self._answer(waiting, Code.SUCCESS if good else Code.INCONSISTENT_STATE)
            if good and request.kind is PushKind.TRUNCATE:
                self._commit(request)

    def _work(self, now: float) -> None:
        """Write the appends that are next in order, then look for gaps (DL-F04, DL-F10)."""
        log = self.log
        while self.follows and (waiting := self._appends.pop(log.end + 1, None)) is not None:
            good = waiting.request.term == log.term and waiting.request.leader_id == self.leader_id
            for entry in waiting.request.entries if good else ():
                good = good and entry.index == log.end + 1
                if good:
                    self._write(entry)
            self._answer(waiting, Code.SUCCESS if good else Code.INCONSISTENT_STATE)
            if good:
                self._commit(waiting.request)
        if now - self._looked < GAP_SECONDS or not self._appends:
            return
        self._looked = now
        for first, waiting in list(self._appends.items()):
            entries = waiting.request.entries
            if entries[-1].index <= log.end:
                same = all(log.entries.get(entry.index) == entry for entry in entries)
                self._answer(waiting, Code.SUCCESS if same else Code.INCONSISTENT_STATE)
                del self._appends[first]
        late = [first for first, waiting in self._appends.items() if now - waiting.since > GAP_SECONDS]
        if late and log.end + 1 not in self._appends:
            self._answer(self._appends[min(late)], Code.INCONSISTENT_STATE)  # and it is kept

    def _write(self, entry: Entry) -> None:
        log = self.log
        if log.end < 0:
            log.begin = entry.index
        log.entries[entry.index], log.end = entry, entry.index

    def _cut(self, entry: Entry) -> None:
        log = self.log
        for index in [index for index in log.entries if index >= entry.index]:
            if index <= log.committed and log.entries[index] != entry and index == entry.index:
                log.cut_committed += 1
            del log.entries[index]
        log.cuts += 1
        log.end = LedgerIndex(max(log.entries, default=-1))
        if log.end != entry.index - 1:  # the log does not reach up to the entry: drop it
            log.entries.clear()
            log.end = NO_INDEX
        self._write(entry)
        log.begin = LedgerIndex(min(log.entries))

    def _commit(self, request: PushRequest) -> None:
        log = self.log
        if log.committed < request.commit_index and log.end >= 0:
            log.committed = max(log.committed, min(request.commit_index, log.end))

    def _answer(self, waiting: _Waiting, code: Code) -> None:
        entries = waiting.request.entries
        if waiting.connection.closed:
            return
        response = PushResponse(
            group=self.group,
            code=code,
            term=waiting.request.term,
            index=entries[0].index if entries else None,
            count=max(len(entries), 1),
            begin_index=self.log.begin,
            end_index=self.log.end,
        )
        waiting.connection.send(waiting.command.reply(RESPONSE_HEADER_CODE, body=encode(response)))
