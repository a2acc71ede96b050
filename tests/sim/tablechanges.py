"""Load of a simulated system that changes topics and subscription groups, and the check that acknowledged changes are kept.

Each name has a set of states that it may have: one after an acknowledged change, two after one whose outcome is unknown. A name
with an unknown outcome is not changed any more, because a delayed request may still be executed.

Requirements: SIM-09, DL-X18.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from saturnmq.broker.table_changes import TableChanges
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionGroupConfig
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

KINDS = ("topic", "group", "beat")
TIMEOUT_MS = 4000
NO_LEADER_SECONDS = 0.05


class TableLoad:
    """Changes names one after the other.

    states: those that a (kind, name) may have, as its number of queues or retries; None: deleted.
    """

    def __init__(self, seed: int, seen: Counter[str], pause: Callable[[float], Awaitable[None]]) -> None:
        self._rng = random.Random(seed * 7919 + 1)
        self._pause = pause
        self._seen = seen
        self._number = 0
        self._changing: tuple[str, str] | None = None
        self.states: dict[tuple[str, str], set[int | None]] = {}

    async def run(self, leader: Callable[[], tuple[str, Any] | None], loading: Callable[[], bool]) -> None:
        """Change names at the leader, given by its address and broker, while loading."""
        net = RemotingClient(settings=NetSettings())
        try:
            while loading():
                await self._pause(self._rng.random() * 0.3)
                at = leader()
                if at is None:
                    await self._pause(NO_LEADER_SECONDS)
                    continue
                await self._change(net, *at)
        finally:
            await net.close()

    async def _change(self, net: RemotingClient, address: str, broker: Any) -> None:
        rng = self._rng
        known = [key for key, states in self.states.items() if len(states) == 1]
        if known and rng.random() < 0.4:
            kind, name = rng.choice(known)
        else:
            self._number += 1
            kind, name = rng.choice(KINDS), f"change-{self._number}"
            if kind == "beat":
                kind, name = "group", f"beat-{self._number}"
        states = self.states.setdefault((kind, name), {None})
        state: int | None = None if states != {None} and rng.random() < 0.5 else rng.randrange(1, 9)
        if name.startswith("beat") and states == {None}:
            state = 16
        self._changing = kind, name
        outcome = await self._ask(net, address, kind, name, state)
        if outcome == "ok" and state == 16 and name not in broker.groups.table:
            outcome = "refused"  # it leads no longer: a follower takes heartbeats, and creates nothing
        self._seen[f"change {outcome}"] += 1
        if outcome == "ok":
            self.states[kind, name] = {state}
        elif outcome == "unknown":
            self.states[kind, name] = {*states, state}
        self._changing = None

    async def _ask(self, net: RemotingClient, address: str, kind: str, name: str, state: int | None) -> str:
        try:
            answer = await net.invoke(address, _command(kind, name, state), TIMEOUT_MS)
        except SaturnError:
            return "unknown"
        if answer.code == 0:
            return "ok"
        return "refused" if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE else "unknown"

    def problems(self, broker: Any) -> list[str]:
        """What a broker's tables should not show."""
        found = []
        for (kind, name), states in self.states.items():
            if (kind, name) == self._changing:
                continue
            config = broker.topics.table.get(name) if kind == "topic" else broker.groups.table.get(name)
            state = None if config is None else config.write_queue_nums if kind == "topic" else config.retry_max_times
            if state not in states:
                found.append(f"{kind} {name} is {state}, must be one of {states}")
        return found


def _command(kind: str, name: str, state: int | None) -> Command:
    if kind == "topic" and state is None:
        return Command(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": name})
    if kind == "topic":
        ext = {
            "topic": name, "readQueueNums": str(state), "writeQueueNums": str(state), "perm": "6", "defaultTopic": "TBW102",
            "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)
    if state is None:
        return Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext={"groupName": name})
    if name.startswith("beat") and state == 16:
        return Command(RequestCode.HEART_BEAT, body=HeartbeatData(name, [], [ConsumerData(name)]).encode())
    body = SubscriptionGroupConfig(name, retry_max_times=state).encode()
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def plant(defect: str) -> bool:
    """Plant a defect by name; returns whether there is one of this name."""
    if defect == "changes are not in the log":
        TableChanges.record = lambda *_: None  # type: ignore[method-assign]
    elif defect == "changes are answered before they are committed":

        async def at_once(*_: object) -> None:
            await asyncio.sleep(0)

        TableChanges.decided = at_once  # type: ignore[method-assign]
    elif defect == "changes are not undone":
        TableChanges.undo = lambda changes: (changes._undecided.clear(), changes._last.clear())  # type: ignore[method-assign,assign]
    else:
        return False
    return True
