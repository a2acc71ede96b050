"""Test bench for one Raft core: executes its actions at once and records them; the test answers its requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from harness.raftsim.group import Ledger
from saturnmq.raft.core.actions import (
    Action,
    AppendEntries,
    Commit,
    CutLog,
    PersistTerm,
    RaiseAlarm,
    Reply,
    RoleChanged,
    Send,
    SyncLog,
)
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import (
    Code,
    HeartBeatRequest,
    HeartBeatResponse,
    PushKind,
    PushRequest,
    PushResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from saturnmq.raft.core.node import Node
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.state import HardState

A = TypeVar("A")
GROUP = "g"


def entries(*terms: int, first: int = 0, pos: int = 0, body: bytes = b"body") -> list[Entry]:
    """Consecutive entries with these terms."""
    made = []
    for index, term in enumerate(terms, first):
        made.append(Entry(index, term, pos, body + b"%d.%d" % (index, term)))
        pos = made[-1].end_pos
    return made


class Bench:
    """Member self_id of n0..n(members-1). auto_sync: complete every sync as soon as it is requested."""

    def __init__(
        self,
        *,
        members: int = 3,
        log: Sequence[Entry] = (),
        term: int = 0,
        voted_for: str | None = None,
        committed: int = -1,
        auto_sync: bool = True,
        noop: bytes | None = None,
        incomplete: bool = False,
        chance: int = 0,
        now_ms: int = 1_000_000,
        self_id: str = "n0",
        **settings: Any,
    ) -> None:
        self.ledger = Ledger(log[0].index if log else 0, list(log), log[0].pos if log else 0)
        self.now_ms = now_ms
        self.auto_sync = auto_sync
        self.actions: list[Action] = []
        self.stored = HardState(term, voted_for)
        self._token = 0
        self.node = Node(
            group=GROUP,
            self_id=self_id,
            peers={f"n{number}": f"127.0.0.1:{number + 1}" for number in range(members)},
            settings=CoreSettings(**settings),
            reader=self.ledger,
            hard_state=self.stored,
            committed=committed,
            chance=lambda n: chance % n,
            noop=noop,
            incomplete=incomplete,
        )

    @property
    def state(self) -> Any:
        return self.node._state

    def do(self, actions: list[Action]) -> list[Action]:
        done = list(actions)
        self.actions += actions
        for action in actions:
            if isinstance(action, AppendEntries | CutLog):
                self.ledger.apply(action)
            elif isinstance(action, PersistTerm):
                self.stored = HardState(action.term, action.voted_for)
        if self.auto_sync:
            for sync in [action for action in actions if isinstance(action, SyncLog)]:
                done += self.do(self.node.synced(self.now_ms, sync.epoch, sync.end_index))
        return done

    def of(self, kind: type[A]) -> list[A]:
        """All actions of a kind so far."""
        return [action for action in self.actions if isinstance(action, kind)]

    def forget(self) -> None:
        self.actions.clear()

    # inputs

    def tick(self, after_ms: int = 10) -> list[Action]:
        self.now_ms += after_ms
        return self.do(self.node.tick(self.now_ms))

    def ask(self, request: Request, **changes: Any) -> Any:
        """The response to a request; None if there is none yet."""
        self._token += 1
        request = dataclasses.replace(request, **{"group": GROUP, "remote_id": "n0", **changes})
        self.do(self.node.request(self.now_ms, self._token, request))
        return self.reply(self._token)

    def propose(self, *bodies: bytes) -> int:
        """Propose bodies. Returns the token; `reply(token)` is the response."""
        self._token += 1
        self.do(self.node.propose(self.now_ms, self._token, bodies))
        return self._token

    def reply(self, token: int) -> Any:
        return next((action.response for action in self.of(Reply) if action.token == token), None)

    @property
    def last_token(self) -> int:
        return self._token

    def sends(self, peer: str | None = None, kind: type[A] | None = None) -> list[Send]:
        """Requests sent so far, to a peer, of a kind."""
        return [
            send
            for send in self.of(Send)
            if (peer is None or send.peer == peer) and (kind is None or isinstance(send.request, kind))
        ]

    def answer(self, send: Send, response: Response | None) -> list[Action]:
        return self.do(self.node.response(self.now_ms, send.call, response))

    # common first steps of tests

    def vote_answer(self, send: Send, result: VoteResult | None, term: int | None = None) -> None:
        if result is None:
            self.answer(send, None)
            return
        term = send.request.term if term is None else term
        self.answer(send, VoteResponse(group=GROUP, term=term, vote_result=result))

    def lead(self) -> Bench:
        """Win the election of the current term."""
        self.tick()
        for send in self.sends(kind=VoteRequest):
            self.vote_answer(send, VoteResult.ACCEPT)
        assert self.node._state.is_leader
        return self

    def follow(self, leader: str = "n1", term: int | None = None) -> Bench:
        term = self.state.term if term is None else term
        assert self.heartbeat(leader, term).code == Code.SUCCESS
        return self

    def heartbeat(self, leader: str, term: int) -> HeartBeatResponse:
        response = self.ask(HeartBeatRequest(leader_id=leader, local_id=leader, term=term))
        assert isinstance(response, HeartBeatResponse)
        return response

    def vote(self, candidate: str, term: int, end_index: int = -1, end_term: int = -1) -> VoteResponse:
        request = VoteRequest(
            leader_id=candidate, local_id=candidate, term=term, ledger_end_index=end_index, ledger_end_term=end_term
        )
        response = self.ask(request)
        assert isinstance(response, VoteResponse)
        return response

    def push(self, kind: PushKind, *pushed: Entry, commit: int = -1, leader: str = "n1", term: int = -1) -> Any:
        term = self.state.term if term < 0 else term
        request = PushRequest(
            kind=kind, entries=tuple(pushed), commit_index=commit, leader_id=leader, local_id=leader, term=term
        )
        return self.ask(request)

    def verified(self, *pushed: Entry) -> Bench:
        """Have the leader n1 verify this log as equal to its own."""
        for entry in pushed[-1:]:
            assert self.push(PushKind.COMPARE, entry).code == Code.SUCCESS
        return self

    def push_answer(self, send: Send, code: Code, begin: int = -1, end: int = -1, count: int = 1) -> list[Action]:
        assert isinstance(send.request, PushRequest)
        index = send.request.entries[0].index if send.request.entries else None
        response = PushResponse(
            group=GROUP, code=code, term=send.request.term, index=index, count=count, begin_index=begin, end_index=end
        )
        return self.answer(send, response)

    def appending(self, peer: str, upto: int) -> Bench:
        """Bring a peer of this leader into the state APPEND, holding everything up to an index."""
        self.tick()
        send = self.sends(peer, PushRequest)[-1]
        self.push_answer(send, Code.SUCCESS, 0, upto)
        return self

    @property
    def roles(self) -> list[str]:
        return [change.role.value for change in self.of(RoleChanged)]

    @property
    def commits(self) -> list[int]:
        return [commit.index for commit in self.of(Commit)]

    @property
    def alarms(self) -> list[str]:
        return [alarm.text for alarm in self.of(RaiseAlarm)]
