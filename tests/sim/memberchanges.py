"""Replaces members of a simulated group while it runs, by the steps that docs/replication.md gives an operator.

A new broker with an empty folder starts as a learner, is added and promoted, and an old member is removed and stopped; or the old
one, which may be lost, is removed first. Each change is the request of `saturnmq admin ledgerAddLearner`, `ledgerPromote` and
`ledgerRemove`, repeated until it is made. In some seeds retention deletes the begin of the log, with the entries that created
the first topics, before the new member copies it. An own random generator decides, so that systems without changes run as before.

Requirements: DL-X21, SIM-06.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from harness.systemsim.loop import Process
from saturnmq.admin.ledger import change_members, transfer_leadership
from saturnmq.broker.dledger_sync import LeaderCopy
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import KVTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError, StoreError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.configuration import Configuration
from saturnmq.raft.core.messages import ChangeKind, Code

EVERY_SECONDS = 3.0  # pause between two replacements, at most
INFORMED_SECONDS = 15.0  # how long the operator waits until a removed member shows that it does not vote
STOP_SECONDS = 10.0
FILLER, FILLER_BATCHES, NEARLY_FULL = "filler", 15, 0.87
UNKNOWN = (Code.TERM_CHANGED, Code.WAIT_QUORUM_ACK_TIMEOUT)
MADE_BEFORE = (Code.UNEXPECTED_ARGUMENT, Code.UNKNOWN_MEMBER)
DISTURBANCES = ("crash", "crash", "isolate", "freeze")
ORDERS = ("add first", "add first", "remove first", "lost")


def peers_of(members: Iterable[Any]) -> str:
    """The members in the form of dLegerPeers."""
    return ";".join(f"{one.name}-{one.host}:40911" for one in members)


def is_made(kind: ChangeKind, name: str, now: Configuration | None) -> bool:
    """Whether a configuration has this change."""
    if now is None:
        return False
    if kind is ChangeKind.ADD_LEARNER:
        return name in now.addresses
    return name in now.voters if kind is ChangeKind.PROMOTE else name not in now.addresses


class Replacements:
    """An operator that replaces members, one after the other, until the load ends.

    system: a `System`. wrong: answers that an operator should not get, and stops that failed.
    """

    def __init__(self, system: Any, seed: int, pause: Callable[[float], Awaitable[None]]) -> None:
        self._system = system
        self._rng = random.Random(seed * 104_729 + 5)
        self._pause = pause
        self._seen = system.seen
        self._number = len(system.members)
        self.process = Process("operator", "10.0.3.1")
        self.wrong: list[str] = []
        self._trims = self._rng.random() < 0.6
        self._filled = 0  # position in the log before which there are no messages of the history

    async def fill(self, client: Any) -> None:
        """Before the load begins, fill files of the log, which retention may delete."""
        if not self._trims:
            return
        async with client.producer("filler") as producer:
            await client.create_topic(FILLER, queues=1)
            for _ in range(FILLER_BATCHES):
                await producer.send_many(FILLER, [b"." * 1000] * 10)
        log = self._system.leader.broker.store.log
        self._filled = log.member.files.end_pos

    async def _trim(self) -> None:
        """Most members delete the files that hold nothing of the history, as retention does with a disk that is nearly full."""
        for member in self._system.members:
            if self._filled and member.up and member.broker is not None and self._rng.random() < 0.8:
                await asyncio.wait(
                    {self._system.loop.run_as(member.process, self._clean(member.broker.store))}, timeout=1
                )

    async def _clean(self, store: Any) -> None:
        raft = store.log.member
        if raft is None or raft.node is None:
            return
        with suppress(OSError, StoreError):
            await store._maintenance.write_all()  # what queues and tables do not hold is not deleted
        needed = raft.keep_from
        raft.keep_from = lambda: min(needed(), self._filled)
        self._seen["files deleted"] += raft.clean(NEARLY_FULL, time.time(), 0)

    async def run(self) -> None:
        while self._system.loading:
            await self._pause(self._rng.random() * EVERY_SECONDS)
            if self._system.loading:
                await self._replace()
                self._seen["replaced"] += 1

    async def _replace(self) -> None:
        system, rng = self._system, self._rng
        old = rng.choice(system.members)
        # With a member lost, a new leader keeps the standard timers until it has seen all others: too slow for the check of SIM-10.
        order = rng.choice([one for one in ORDERS if one != "lost" or not system.auto])
        self._seen[f"replace {order}"] += 1
        if order == "lost":
            old.retired = True
            system.crash(old)
        if order != "add first":
            await self._remove(old)
        await self._trim()
        new = self._start()
        await self._change(ChangeKind.ADD_LEARNER, f"{new.name}-{new.host}:40911")
        await self._change(ChangeKind.PROMOTE, new.name)
        if rng.random() < 0.5:
            await self._let_lead(new)
        if order == "add first":
            await self._remove(old)
        if rng.random() < 0.5:
            for member in system.members:
                member.peers, member.learner = peers_of(system.members), False
            self._seen["files edited"] += 1

    def _start(self) -> Any:
        """Start a new broker that is not a member yet."""
        system = self._system
        new = system.member_of(self._number)
        self._number += 1
        system.members.append(new)
        new.peers, new.learner = peers_of(system.members), True
        system.start(new)
        return new

    async def _change(self, kind: ChangeKind, member: str) -> None:
        """Repeat a change until it is made. One of which the outcome was unknown may be made when it is repeated."""
        name, word, unknown = member.partition("-")[0], kind.name.lower().replace("_", " "), False
        self._note(f"{word} {name}")
        while True:
            self._disturb(name)
            try:
                answer = await change_members(kind, self._system.group, peers_of(self._system.members), member)
            except SaturnError:
                self._seen[f"{word} unanswered"] += 1
                unknown = True
            else:
                code = Code(answer.code)
                self._seen[f"{word} {code.value}"] += 1
                before = code in MADE_BEFORE
                if code is Code.SUCCESS or before:
                    if not is_made(kind, name, answer.members) or (before and not unknown):
                        self.wrong.append(f"{word} {name}: {code.name} {answer.reason}, members {answer.members}")
                    self._seen[f"{word} made"] += 1
                    self._note(f"{word} {name} made")
                    return
                unknown = unknown or code in UNKNOWN
            await self._pause(self._rng.random())

    def _note(self, what: str) -> None:
        self._system.schedule.append(f"{self._system.loop.now - 1000:.1f} s {what}")

    def _disturb(self, name: str) -> None:
        """Sometimes a member crashes, freezes or is cut off while a change is made, often before it is committed."""
        system, rng = self._system, self._rng
        if not system.loading or rng.random() > 0.4:
            return
        after_s, fault, to_leader = rng.random() * rng.choice((0.02, 0.3)), rng.choice(DISTURBANCES), rng.random() < 0.5

        def disturb() -> None:
            changed = next((one for one in system.members if one.name == name), None)
            member = (system.leader if to_leader else changed) or rng.choice(system.members)
            if not system.loading or not member.up:
                return
            self._note(f"{fault} in a change {member.name}")
            self._seen[f"{fault} in a change"] += 1
            if fault == "isolate":
                others = [one.name for one in system.members if one is not member]
                system.loop.net.partition([member.name], others)
                system.loop.call_later(rng.random() * 5, system.loop.net.heal)
            else:
                system.fault(fault, member)

        system.loop.call_later(after_s, disturb)

    async def _let_lead(self, new: Any) -> None:
        try:
            code = await transfer_leadership(self._system.group, peers_of(self._system.members), new.name)
        except SaturnError:
            return
        self._seen[f"new member leads {code.value}"] += 1

    async def _remove(self, old: Any) -> None:
        """Remove a member, and stop it when it shows that it does not vote; a lost one does not run any more."""
        system, rng = self._system, self._rng
        await self._change(ChangeKind.REMOVE, old.name)
        until = system.loop.now + INFORMED_SECONDS
        while not old.retired and system.loop.now < until:
            if await self._votes(old) == "false":
                self._seen["informed of its removal"] += 1
                break
            if not old.up and rng.random() < 0.3:
                break
            await self._pause(0.3)
        else:
            self._seen["not informed of its removal"] += not old.retired
        old.retired = True
        if rng.random() < 0.5:
            await self._stop(old)
        system.crash(old)
        system.members.remove(old)
        self._note(f"stopped {old.name}")

    async def _votes(self, member: Any) -> str:
        """What a member shows as dledgerVotes, "" without an answer."""
        net = RemotingClient(settings=NetSettings())
        try:
            answer = await net.invoke(f"{member.host}:10911", Command(RequestCode.GET_BROKER_RUNTIME_INFO), 1000)
            return KVTable.decode(answer.body).table.get("dledgerVotes", "")
        except SaturnError:
            return ""
        finally:
            await net.close()

    async def _stop(self, member: Any) -> None:
        """As SIGTERM does; a broker that does not end in time, because it hangs or has crashed, is killed."""
        process, broker = member.process, member.broker
        if not member.up or broker is None or process.frozen:
            return
        stopping = self._system.loop.run_as(process, broker.stop())
        await asyncio.wait({stopping}, timeout=STOP_SECONDS)
        self._seen["removed one stopped" if stopping.done() else "removed one killed"] += 1
        if stopping.done() and stopping.exception() is not None and not process.failing_sync:
            self.wrong.append(f"stop of {member.name}: {stopping.exception()!r}")

    # checks

    async def level(self) -> None:
        """Wait up to 10 s until all members have the same state outside the log."""
        for _ in range(20):
            if not self._differences():
                return
            await self._pause(0.5)

    def problems(self) -> list[str]:
        """What is wrong at the end, when all members have caught up."""
        members, found = self._system.members, list(self.wrong)
        names = {one.name for one in members}
        for one in members:
            node = one.broker.store.log.member.node if one.broker is not None else None
            now = node.configuration if node is not None else None
            if now is None or set(now.voters) != names or now.learners or not node.votes:
                found.append(f"{one.name} has the members {now}, there are {sorted(names)}")
        return found + self._differences()

    def _differences(self) -> list[str]:
        """Members whose consumer offsets, topics or groups differ from those of the first."""
        brokers = [(one.name, one.broker) for one in self._system.members if one.broker is not None]
        (first, broker), found = brokers[0], []
        mine = _tables(broker)
        for name, other in brokers[1:]:
            theirs = _tables(other)
            for kind in mine:
                keys = sorted(
                    key
                    for key in mine[kind].keys() | theirs[kind].keys()
                    if mine[kind].get(key) != theirs[kind].get(key)
                )
                found += [
                    f"{kind} {key}: {mine[kind].get(key)} at {first}, {theirs[kind].get(key)} at {name}" for key in keys
                ]
        return found


def _tables(broker: Any) -> dict[str, dict[Any, Any]]:
    """What must be equal. System topics are each broker's own: not in the log, and kept when a table is copied (DL-C07)."""
    topics = broker.topics
    return {
        "offsets of": {(topic, group): dict(queues) for topic, group, queues in broker.offsets.pairs()},
        "topic": {name: config for name, config in topics.table.items() if name not in topics.system},
        "group": dict(broker.groups.table),
    }


def plant(defect: str) -> bool:
    """Plant a defect by name; returns whether there is one of this name."""
    if defect == "served without the state of others":

        async def copy_last(copy: LeaderCopy, *_: object) -> None:
            await copy._limit()

        LeaderCopy.copy_last = copy_last  # type: ignore[method-assign]
    elif defect == "learners copy no state":
        right = LeaderCopy.restart

        async def restart(copy: LeaderCopy) -> None:
            if not copy._group.raft.learner:
                await right(copy)

        LeaderCopy.restart = restart  # type: ignore[method-assign]
    else:
        return False
    return True
