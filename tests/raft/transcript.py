"""Runs transcripts of a Raft group: scripts of commands with the output expected of the real core (raft/core).

A script consists of blocks: command lines, a line `----`, the expected output, an empty line. Lines that begin with `#` are
comments. The clock is virtual and stands still except in `tick`; requests and responses stay in flight until a command delivers
or drops them; a sync completes at once unless the group was made with sync=manual. Commands (n0 is a member; ms default to 10):

  add-nodes 3 [key=value ...]    members n0..n2. Keys: fields of CoreSettings, noop=TEXT, sync=manual; `stored` adds none
  add-node n0 [key=value ...]    one more, with stored state: term=, vote=, log=TERM,TERM,..., committed=, synced=, first=INDEX
  chance n0 N                    the member's random waits are their minimum plus N (0)
  tick [n0 ...] [ms]             advance the clock, then tick the members (all)
  wait-tick n0                   advance the clock to the member's next timer, then tick it
  campaign n0                    tick a candidate until it requests votes; a follower waits for its election timeout first
  propose n0 "a" "b"             propose entries; the reply is printed when it is given
  deliver n0->n1 [KIND] [count]  deliver what is in flight from n0 to n1 (of a kind, at most count)
  drop n0->n1 [KIND] [count]     lose it; a call without response times out as the clock advances
  fail n0->n1 [KIND] [count]     lose it; its sender notices at once
  duplicate n0->n1 [KIND]        deliver a copy, leave the message in flight
  stabilize [ms]                 deliver and tick until nothing is in flight; with ms, go on while the clock advances by that
  partition n0 n1 | n2           from now on lose messages between the groups; `heal` ends it
  sync n0                        complete the requested syncs; `sync-late n0 EPOCH INDEX` reports a sync that began earlier
  crash n0 / restart n0          end a member, its unsynced entries are lost / start it from its disk
  transfer n0 n1                 ask the leader n0 to transfer the leadership to n1
  add-learner n0 n3              ask the leader n0 to add a learner; `promote n0 n3`, `remove n0 n1`; with `dry-run`, only check it.
                                 `join n3` starts a learner with an empty disk. Groups of `add-nodes 3 members` support changes
  get n0 INDEX / metadata n0     read an entry / the leader as n0 knows it
  receive n0 KIND key=value ...  deliver a request from outside: VOTE, HEARTBEAT, APPEND, COMPARE, TRUNCATE, COMMIT, TRANSFER
                                 with from=, term=, last=INDEX/TERM, entries=INDEX/TERM,..., commit=
  outdated n0 yes|no / disk-full n0 yes|no / disk-failed n0 / trim n0 INDEX / barred n0 yes|no
  state [n0 ...] / log [n0 ...] / in-flight [n0->n1]

`SATURNMQ_REWRITE_SCRIPTS=1` writes the actual output into the scripts. Read the difference before committing it: each changed
line is a change of behaviour.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.raftsim.members import SIMPLE, SimpleCodec
from harness.raftsim.observer import Ledger
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
from saturnmq.raft.core.configuration import Configuration, ConfigurationGeneration
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import (
    AppendResponse,
    ChangeKind,
    ChangeRequest,
    ChangeResponse,
    Code,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushKind,
    PushRequest,
    PushResponse,
    Request,
    Response,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
)
from saturnmq.raft.core.node import Node
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.state import HardState

GROUP = "g"
START_MS = 100_000
STEPS_MAX = 2000
SETTINGS = {one.name: one for one in fields(CoreSettings)}


@dataclass(slots=True)
class Call:
    """A request in flight or awaiting its response. call: of the sender's core; -1: from outside of the group."""

    sender: str
    incarnation: int
    receiver: str
    request: Request
    call: int
    deadline_ms: int


@dataclass(slots=True)
class Message:
    """A request on its way, or a response."""

    call: Call
    response: Response | None = None

    @property
    def link(self) -> tuple[str, str]:
        ends = self.call.sender, self.call.receiver
        return ends if self.response is None else (ends[1], ends[0])

    @property
    def kind(self) -> str:
        return kind_of(self.call.request) + ("" if self.response is None else "-REPLY")


@dataclass(slots=True)
class Member:
    """One member and its disk. synced: index of the last synced entry, which a crash keeps."""

    name: str
    ledger: Ledger
    hard: HardState
    committed: int
    synced: int
    node: Node | None = None
    incarnation: int = 0
    syncs: list[SyncLog] = field(default_factory=list)
    tokens: dict[int, Call | str] = field(default_factory=dict)  # a call, or the name of a local proposal
    token: int = 0
    configurations: tuple[ConfigurationGeneration, ...] = ()
    learner: bool = False


class Script:
    """The state of one running transcript."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.settings = CoreSettings(file_bytes=4096)
        self.noop: bytes | None = None
        self.codec: SimpleCodec | None = None
        self.chances: dict[str, int] = {}
        self.manual_sync = False
        self.members: dict[str, Member] = {}
        self.names: list[str] = []
        self.flight: list[Message] = []
        self.calls: list[Call] = []
        self.cut: set[tuple[str, str]] = set()
        self.lines: list[str] = []
        self.proposals = 0

    # running

    def run(self, command: str) -> list[str]:
        """Run one command. Returns its output."""
        self.lines = []
        verb, *words = shlex.split(command)
        method: Callable[..., None] | None = getattr(self, f"do_{verb.replace('-', '_')}", None)
        assert method is not None, f"no such command: {command}"
        method(*words)
        return self.lines or ["ok"]

    def say(self, line: str) -> None:
        self.lines.append(line)

    def member(self, name: str) -> Member:
        assert name in self.members, f"no member {name}"
        return self.members[name]

    def running(self, name: str) -> Node:
        node = self.member(name).node
        assert node is not None, f"{name} is not running"
        return node

    def feed(self, name: str, given: Callable[[Node], list[Action]], *, sends: bool = True) -> None:
        """Give an input to a member's core and execute the actions; print all but those that only end in flight."""
        member = self.member(name)
        assert member.node is not None
        self.execute(member, given(member.node), sends=sends)

    def execute(self, member: Member, actions: list[Action], *, sends: bool = True) -> None:
        for action in actions:
            if isinstance(action, Send):
                call = Call(
                    member.name,
                    member.incarnation,
                    action.peer,
                    action.request,
                    action.call,
                    self.now_ms + action.timeout_ms,
                )
                self.calls.append(call)
                self.flight.append(Message(call))
                if sends:
                    self.say(f"  {member.name}->{action.peer} {text_of(action.request)}")
            elif isinstance(action, Reply):
                self._reply(member, action, sends=sends)
            else:
                self._local(member, action)
        if not self.manual_sync:
            self._complete_syncs(member)

    def _reply(self, member: Member, action: Reply, *, sends: bool) -> None:
        asked = member.tokens.pop(action.token, None)
        if isinstance(asked, Call):
            if asked.call < 0:
                self.say(f"  {member.name} answers {text_of(action.response)}")
                return
            self.flight.append(Message(asked, action.response))
            if sends:
                self.say(f"  {member.name}->{asked.sender} {text_of(action.response)}")
        elif asked is not None:
            self.say(f"  {member.name} {asked}: {text_of(action.response)}")

    def _local(self, member: Member, action: Action) -> None:
        """Execute an action on the member's disk and print it."""
        name = member.name
        if isinstance(action, PersistTerm):
            member.hard = HardState(action.term, action.voted_for)
            self.say(f"  {name} persist term={action.term} vote={action.voted_for or '-'}")
        elif isinstance(action, PersistMembers):
            member.configurations = action.generations
            lists = [" ".join(str(one.index) for one in found.configurations) or "none" for found in action.generations]
            self.say(f"  {name} persist members {' | '.join(lists)}")
        elif isinstance(action, MembersChanged):
            former = f" former={','.join(action.former)}" if action.former else ""
            self.say(f"  {name} members {members_text(action.configuration)}{former}")
        elif isinstance(action, AppendEntries):
            member.ledger.apply(action)
            self.say(f"  {name} append {' '.join(map(entry_text, action.entries))}")
        elif isinstance(action, CutLog):
            member.ledger.apply(action)
            member.synced = min(member.synced, action.index - 1)
            self.say(f"  {name} {'restart log' if action.restart else 'truncate'} at {action.index}")
        elif isinstance(action, SyncLog):
            member.syncs.append(action)
        elif isinstance(action, Commit):
            member.committed = action.index
            self.say(f"  {name} commit {action.index}")
        elif isinstance(action, RoleChanged):
            self.say(f"  {name} becomes {action.role.value} term={action.term} leader={action.leader_id or '-'}")
        elif isinstance(action, RaiseAlarm):
            self.say(f"  {name} alarm: {action.text}")

    def _complete_syncs(self, member: Member) -> None:
        while member.syncs and member.node is not None:
            sync = member.syncs.pop(0)
            if sync.epoch == member.node.log_epoch:
                member.synced = max(member.synced, sync.end_index)
            self.execute(member, member.node.synced(self.now_ms, sync.epoch, sync.end_index))

    # members

    def do_add_nodes(self, count: str, *options: str) -> None:
        """Make members n0..n(count-1) with these settings, and start them; with `stored`, wait for `add-node`."""
        values = dict(option.split("=", 1) for option in options if "=" in option)
        self.manual_sync = values.pop("sync", "") == "manual"
        noop = values.pop("noop", None)
        self.noop = noop.encode() if noop is not None else None
        self.codec = SIMPLE if "members" in options else None
        changes: dict[str, Any] = {"file_bytes": 4096, "announces_interval": self.codec is not None}
        for key, value in values.items():
            default = SETTINGS[key].default
            if isinstance(default, bool):
                changes[key] = value == "yes"
            else:
                changes[key] = tuple(value.split(",")) if isinstance(default, tuple) else int(value)
        self.settings = CoreSettings(**changes)
        self.names = [f"n{number}" for number in range(int(count))]
        if "stored" not in options:
            for name in self.names:
                self.do_add_node(name)

    def do_add_node(self, name: str, *options: str) -> None:
        values = dict(option.split("=", 1) for option in options)
        terms = [int(term) for term in values.get("log", "").split(",") if term]
        first = int(values.get("first", "0"))
        entries: list[Entry] = []
        for index, term in enumerate(terms, first):
            pos = entries[-1].end_pos if entries else first * 60
            entries.append(stored_entry(index, term, pos))
        ledger = Ledger(first, entries, first * 60)
        hard = HardState(int(values.get("term", "0")), values.get("vote"))
        synced = int(values.get("synced", ledger.end_index))
        self.members[name] = Member(name, ledger, hard, int(values.get("committed", "-1")), synced)
        self._start(self.members[name])

    def _start(self, member: Member) -> None:
        member.incarnation += 1
        member.syncs, member.tokens = [], {}
        member.node = Node(
            group=GROUP,
            self_id=member.name,
            peers={name: f"{name}:1" for name in dict.fromkeys((*self.names, member.name))},
            settings=self.settings,
            reader=member.ledger,
            hard_state=member.hard,
            committed=member.committed,
            chance=lambda below: min(self.chances.get(member.name, 0), below - 1),
            noop=self.noop,
            incomplete=member.synced > member.ledger.end_index,
            codec=self.codec,
            configurations=member.configurations,
            learner=member.learner,
        )
        self.do_state(member.name)

    def do_join(self, name: str) -> None:
        self.members[name] = Member(name, Ledger(), HardState(), -1, -1, learner=True)
        self._start(self.members[name])

    def do_crash(self, name: str) -> None:
        member = self.member(name)
        ledger = member.ledger
        kept = [entry for entry in ledger.entries if entry.index <= member.synced]
        lost = len(ledger.entries) - len(kept)
        member.node, member.ledger = None, Ledger(ledger.begin, kept, ledger.start_pos)
        member.committed = min(member.committed, member.synced)
        self.flight = [one for one in self.flight if name not in one.link]
        self.say(f"{lost} entries lost")

    def do_restart(self, name: str) -> None:
        self._start(self.member(name))

    # time

    def do_tick(self, *words: str) -> None:
        names = [word for word in words if word in self.names] or [n for n, m in self.members.items() if m.node]
        self._advance(sum(int(word) for word in words if word not in self.names) or 10)
        for name in names:
            self.feed(name, lambda node: node.tick(self.now_ms))

    def _advance(self, ms: int) -> None:
        self.now_ms += ms
        for call in [call for call in self.calls if call.deadline_ms <= self.now_ms]:
            self._answer(call, None, sends=False)

    def do_wait_tick(self, name: str) -> None:
        """Ticks without effect count as one with the next that has any."""
        for _ in range(3):
            due_ms = self.running(name).next_due_ms()
            if due_ms > self.now_ms:
                self.say(f"  {due_ms - self.now_ms} ms later")
                self._advance(due_ms - self.now_ms)
            before = len(self.lines)
            self.feed(name, lambda node: node.tick(self.now_ms))
            if len(self.lines) > before:
                return

    def do_campaign(self, name: str) -> None:
        """Tick until votes are requested, or the member leads without needing any."""
        for _ in range(20):
            node = self.running(name)
            wait_ms = node.next_due_ms() - self.now_ms
            self._advance(max(wait_ms, 0))
            asked = len(self.flight)
            self.feed(name, lambda node: node.tick(self.now_ms))
            if any(m.kind == "VOTE" and m.link[0] == name for m in self.flight[asked:]) or node.role is Role.LEADER:
                return
        self.say("  no votes requested")

    def do_chance(self, name: str, value: str) -> None:
        self.chances[name] = int(value)

    # messages

    def _chosen(self, link: str, *words: str) -> list[Message]:
        sender, receiver = link.split("->")
        kinds = [word for word in words if not word.isdigit()]
        limit = next((int(word) for word in words if word.isdigit()), len(self.flight))
        chosen = [
            one
            for one in self.flight
            if sender in ("*", one.link[0]) and receiver in ("*", one.link[1]) and (not kinds or one.kind in kinds)
        ]
        return chosen[:limit]

    def do_deliver(self, link: str, *words: str) -> None:
        for message in self._chosen(link, *words):
            self.flight.remove(message)
            self._deliver(message)

    def do_duplicate(self, link: str, *words: str) -> None:
        for message in self._chosen(link, *words):
            self._deliver(message)

    def do_drop(self, link: str, *words: str) -> None:
        for message in self._chosen(link, *words):
            self.flight.remove(message)
            self.say(f"  lost {link_text(message)}")

    def do_fail(self, link: str, *words: str) -> None:
        for message in self._chosen(link, *words):
            self.flight.remove(message)
            self.say(f"  failed {link_text(message)}")
            self._answer(message.call, None)

    def do_partition(self, *words: str) -> None:
        sides = [side.split() for side in " ".join(words).split("|")]
        self.cut = {(a, b) for x in sides for y in sides if x is not y for a in x for b in y}

    def do_heal(self) -> None:
        self.cut = set()

    def do_stabilize(self, ms: str = "0") -> None:
        until_ms = self.now_ms + int(ms)
        for _ in range(STEPS_MAX):
            if self.flight:
                message = self.flight.pop(0)
                if message.link in self.cut:
                    continue
                self._deliver(message, sends=False)
                continue
            due = {name: m.node.next_due_ms() for name, m in self.members.items() if m.node is not None}
            soon = [name for name, due_ms in due.items() if due_ms <= self.now_ms]
            for name in soon:
                self.feed(name, lambda node: node.tick(self.now_ms), sends=False)
            if soon:
                continue
            waits = [*due.values(), *(call.deadline_ms for call in self.calls)]
            next_ms = min([at_ms for at_ms in waits if at_ms > self.now_ms], default=until_ms + 1)
            if next_ms > until_ms:
                self._advance(until_ms - self.now_ms)
                return
            self._advance(next_ms - self.now_ms)
        raise AssertionError("the group does not come to rest")

    def do_in_flight(self, link: str = "*->*") -> None:
        for message in self._chosen(link):
            self.say(f"  {link_text(message)}")
        if not self.lines:
            self.say("nothing")

    def _deliver(self, message: Message, *, sends: bool = True) -> None:
        self.say(link_text(message))
        if message.response is not None:
            self._answer(message.call, message.response, sends=sends)
            return
        receiver = self.member(message.call.receiver)
        if receiver.node is not None:
            self._request(receiver, message.call, sends=sends)

    def _request(self, receiver: Member, call: Call, *, sends: bool = True) -> None:
        receiver.token += 1
        token = receiver.token
        receiver.tokens[token] = call
        self.feed(receiver.name, lambda node: node.request(self.now_ms, token, call.request), sends=sends)

    def _answer(self, call: Call, response: Response | None, *, sends: bool = True) -> None:
        if call in self.calls:
            self.calls.remove(call)
        sender = self.members[call.sender]
        if sender.node is not None and call.incarnation == sender.incarnation:
            self.feed(call.sender, lambda node: node.response(self.now_ms, call.call, response), sends=sends)

    # requests from outside

    def do_propose(self, name: str, *bodies: str) -> None:
        member = self.member(name)
        member.token += 1
        self.proposals += 1
        token = member.token
        member.tokens[token] = f"proposal {self.proposals}"
        self.feed(name, lambda node: node.propose(self.now_ms, token, [body.encode() for body in bodies]))

    def do_transfer(self, leader: str, to: str) -> None:
        term = self.running(leader).term
        self._outside(leader, TransferRequest(transfer_id=leader, transferee_id=to, term=term))

    def do_add_learner(self, leader: str, name: str, *options: str) -> None:
        self._change(leader, ChangeKind.ADD_LEARNER, name, *options)

    def do_promote(self, leader: str, name: str, *options: str) -> None:
        self._change(leader, ChangeKind.PROMOTE, name, *options)

    def do_remove(self, leader: str, name: str, *options: str) -> None:
        self._change(leader, ChangeKind.REMOVE, name, *options)

    def _change(self, leader: str, kind: ChangeKind, name: str, *options: str) -> None:
        dry_run = "dry-run" in options
        self._outside(leader, ChangeRequest(kind=kind, member_id=name, address=f"{name}:1", dry_run=dry_run))

    def do_get(self, name: str, index: str) -> None:
        self._outside(name, GetRequest(begin_index=int(index)))

    def do_metadata(self, name: str) -> None:
        self._outside(name, MetadataRequest())

    def do_receive(self, name: str, kind: str, *options: str) -> None:
        values = dict(option.split("=", 1) for option in options)
        sender, term = values["from"], int(values["term"])
        about: dict[str, Any] = {"leader_id": sender, "local_id": sender, "term": term}
        if kind == "VOTE":
            index, last_term = (int(part) for part in values.get("last", "-1/-1").split("/"))
            self._outside(name, VoteRequest(ledger_end_index=index, ledger_end_term=last_term, **about))
        elif kind == "HEARTBEAT":
            self._outside(name, HeartBeatRequest(**about))
        elif kind == "TRANSFER":
            needs = int(values.get("index", "-1"))
            about |= {"transfer_id": sender, "transferee_id": name, "take_leadership_ledger_index": needs}
            self._outside(name, TransferRequest(**about))
        else:
            pairs = [pair.split("/") for pair in values.get("entries", "").split(",") if pair]
            entries: list[Entry] = []
            for index_text, term_text in pairs:
                before = self.member(name).ledger.entry(int(index_text) - 1) if not entries else entries[-1]
                at = before.end_pos if before is not None else int(index_text) * 60
                at = int(values.pop("pos", at))
                entries.append(stored_entry(int(index_text), int(term_text), at))
            commit = int(values.get("commit", "-1"))
            request = PushRequest(kind=PushKind[kind], entries=tuple(entries), commit_index=commit, **about)
            self._outside(name, request)

    def _outside(self, name: str, request: Request) -> None:
        whole = dataclasses.replace(request, group=GROUP, remote_id=name)
        self._request(self.member(name), Call("", 0, name, whole, -1, 0))

    # disk and role state

    def do_sync(self, name: str) -> None:
        self._complete_syncs(self.member(name))

    def do_sync_late(self, name: str, epoch: str, end_index: str) -> None:
        self.feed(name, lambda node: node.synced(self.now_ms, int(epoch), int(end_index)))

    def do_outdated(self, name: str, value: str) -> None:
        self.running(name).set_outdated(value == "yes")

    def do_disk_full(self, name: str, value: str) -> None:
        self.feed(name, lambda node: node.disk_full(self.now_ms, value == "yes"))

    def do_disk_failed(self, name: str) -> None:
        self.feed(name, lambda node: node.disk_failed(self.now_ms, "input/output error"))

    def do_trim(self, name: str, index: str) -> None:
        self.member(name).ledger.apply(int(index))
        self.feed(name, lambda node: node.trimmed(self.now_ms, int(index)))

    def do_barred(self, name: str, value: str) -> None:
        self.running(name).set_barred(value == "yes")

    # output

    def do_state(self, *names: str) -> None:
        for name in names or self.members:
            member = self.member(name)
            node = member.node
            if node is None:
                self.say(f"{name} is down")
                continue
            facts = [
                f"{name} {node.role.value} term={node.term} vote={member.hard.voted_for or '-'}",
                f"leader={node.leader_id or '-'} log={node.begin_index}..{node.end_index}",
                f"synced={node.synced_index} committed={node.committed}",
            ]
            facts += ["votes=no"] if not node.votes else []
            facts += ["recovering"] if node.recovering else []
            facts += [f"failed={node.failed}"] if node.failed else []
            if node.is_leader:
                facts.append(f"lease={'yes' if node.holds_lease(self.now_ms) else 'expired'}")
            self.say(" ".join(facts))

    def do_log(self, *names: str) -> None:
        for name in names or self.members:
            entries = " ".join(map(entry_text, self.member(name).ledger.entries))
            self.say(f"{name} {entries or 'empty'}")


def members_text(configuration: Configuration) -> str:
    learners = f" learners={','.join(sorted(configuration.learners))}" if configuration.learners else ""
    return f"voters={','.join(configuration.voters)}{learners} index={configuration.index}"


def stored_entry(index: int, term: int, pos: int) -> Entry:
    return Entry(index, term, pos, b"body%d.%d" % (index, term))


def kind_of(request: Request) -> str:
    if isinstance(request, PushRequest):
        return request.kind.name if request.kind is not None else "PUSH"
    return {VoteRequest: "VOTE", HeartBeatRequest: "HEARTBEAT", TransferRequest: "TRANSFER"}.get(type(request), "OTHER")


def entry_text(entry: Entry) -> str:
    return f'{entry.index}/{entry.term} "{entry.body.decode()}"'


def link_text(message: Message) -> str:
    content = message.call.request if message.response is None else message.response
    return f"{message.link[0]}->{message.link[1]} {text_of(content)}"


def code_text(code: int) -> str:
    return f"{int(code)} {Code(code).name}"


def text_of(message: Request | Response) -> str:
    """One line about a request or response: what decides how its receiver reacts."""
    if isinstance(message, VoteRequest):
        return f"VOTE term={message.term} last={message.ledger_end_index}/{message.ledger_end_term}"
    if isinstance(message, VoteResponse):
        assert message.vote_result is not None
        return f"VOTE-REPLY {message.vote_result.name} term={message.term}"
    if isinstance(message, HeartBeatRequest):
        return f"HEARTBEAT term={message.term}"
    if isinstance(message, HeartBeatResponse):
        term = f" term={message.term}" if message.code == Code.EXPIRED_TERM else ""
        return f"HEARTBEAT-REPLY {code_text(message.code)}{term}"
    if isinstance(message, PushRequest):
        entries = ",".join(f"{entry.index}/{entry.term}" for entry in message.entries)
        return f"{kind_of(message)} term={message.term} {f'entries={entries} ' if entries else ''}commit={message.commit_index}"
    if isinstance(message, PushResponse):
        first = f" index={message.index}" if message.index is not None else ""
        return f"PUSH-REPLY {code_text(message.code)}{first} log={message.begin_index}..{message.end_index}"
    if isinstance(message, TransferRequest):
        return f"TRANSFER to={message.transferee_id} term={message.term} index={message.take_leadership_ledger_index}"
    if isinstance(message, TransferResponse):
        return f"TRANSFER-REPLY {code_text(message.code)}"
    if isinstance(message, AppendResponse):
        return f"{code_text(message.code)}" + (f" index={message.index}" if message.code == Code.SUCCESS else "")
    if isinstance(message, GetResponse):
        return f"{code_text(message.code)} {' '.join(map(entry_text, message.entries))}".rstrip()
    if isinstance(message, ChangeResponse):
        members = members_text(message.members) if message.members is not None else "-"
        return f"CHANGE-REPLY {code_text(message.code)} {message.reason or ''}".rstrip() + f" members: {members}"
    if isinstance(message, MetadataResponse):
        return f"leader={message.leader_id or '-'}"
    return type(message).__name__


# script files


def play(path: Path) -> str:
    """Run a script. Returns its text with the actual output in the place of the expected."""
    script, made, command = Script(), [], ""
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line == "----":
            made += [line, *script.run(command), ""]
            for _ in iter(lambda: next(lines, ""), ""):  # the expected output, up to an empty line
                pass
            command = ""
            continue
        made.append(line)
        if line and not line.startswith("#"):
            assert not command, f"{path.name}: no ---- after {command!r}"
            command = line
    assert not command, f"{path.name}: no ---- after {command!r}"
    return "\n".join(made).rstrip("\n") + "\n"
