"""Which brokers support arbitrary delivery times, and how far ahead, as stated in their heartbeat responses.

Brokers whose response has no such field, such as Apache's, support delay levels only. Limits are kept by address, because a
broker name may move to another broker.

Requirements: API-13, API-21.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from saturnmq.client.connection.deadline import Deadline
from saturnmq.client.delays import Delay
from saturnmq.errors import ConnectFailed, Unsupported
from saturnmq.protocol.codes import TIMER_FIELD

LEVELS_ONLY: Final = 0

Spawn = Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[Any]]


class TimerLimits:
    """The longest delay in ms by broker address; LEVELS_ONLY for brokers with delay levels only.

    beat: sends a heartbeat to an address and passes the response to `learn`. spawn: starts a task owned by the client.
    """

    def __init__(self, beat: Callable[[str], Coroutine[Any, Any, None]], spawn: Spawn) -> None:
        self._beat = beat
        self._spawn = spawn
        self._limits: dict[str, int] = {}
        self._heartbeat_tasks: dict[str, asyncio.Task[Any]] = {}

    def learn(self, address: str, ext: Mapping[str, str]) -> None:
        """Store the limit of a heartbeat response. ext: its extFields."""
        text = ext.get(TIMER_FIELD, "")
        self._limits[address] = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else LEVELS_ONLY

    def forget(self, address: str) -> None:
        """Drop the limit of a broker that failed or is in no route; another broker may use the address next."""
        self._limits.pop(address, None)

    def limit_of(self, address: str) -> int:
        """The known limit, LEVELS_ONLY if unknown; sends nothing."""
        return self._limits.get(address, LEVELS_ONLY)

    async def brokers_for(self, delay: Delay, brokers: Mapping[str, str], deadline: Deadline) -> set[str]:
        """Names of the brokers that support this delay; at least one. brokers: master address by broker name.

        If no broker with a known limit supports it, a heartbeat is sent to the others first. Raises Unsupported if all have
        responded, ConnectFailed if one has not.
        """
        heartbeats: dict[str, asyncio.Task[Any]] = {}
        # A limit that arrives may already be enough: the first answer decides.
        while True:
            fit = {name for name, address in brokers.items() if self.limit_of(address) >= delay.timer_ms}
            if fit:
                return fit
            without_limit = {name: address for name, address in brokers.items() if address not in self._limits}
            for address in without_limit.values():
                if address not in heartbeats:
                    heartbeats[address] = self._ask(address)
            waiting = [heartbeats[address] for address in without_limit.values() if not heartbeats[address].done()]
            if not waiting or deadline.remaining_ms <= 0:
                break
            await asyncio.wait(waiting, timeout=deadline.remaining_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        if without_limit:
            raise ConnectFailed(
                f"{delay.text} needs a broker that supports it; no heartbeat answer from {_listed(without_limit)}",
                reason="no heartbeat answer",
            )
        longest_ms = max((self.limit_of(address) for address in brokers.values()), default=LEVELS_ONLY)
        if longest_ms > LEVELS_ONLY:
            raise Unsupported(f"{delay.text} is too far ahead for {_listed(brokers)}: at most {longest_ms} ms")
        raise Unsupported(delay.unsupported(_listed(brokers)))

    def _ask(self, address: str) -> asyncio.Task[Any]:
        task = self._heartbeat_tasks.get(address)
        if task is None:
            task = self._heartbeat_tasks[address] = self._spawn(f"heartbeat to {address}", self._beat(address))
            task.add_done_callback(lambda _: self._heartbeat_tasks.pop(address, None))
        return task


def _listed(brokers: Iterable[str]) -> str:
    return ", ".join(sorted(brokers))
