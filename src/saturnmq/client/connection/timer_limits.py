"""Which brokers deliver a message at any time, and how far ahead: stated in their heartbeat answers.

Brokers without the field, Apache's among them, have delay levels only. Keyed by address, because a broker name may pass to
another broker. Requirements: API-13, API-21.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from saturnmq.client.connection.deadline import Deadline
from saturnmq.client.errors import ConnectFailed, Unsupported
from saturnmq.client.producer.delays import Delay
from saturnmq.protocol.codes import TIMER_FIELD

LEVELS_ONLY: Final = 0

Spawn = Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[Any]]


class TimerLimits:
    """The longest delay in ms per broker address, LEVELS_ONLY where there is none.

    beat: sends a heartbeat to an address and reports the answer to `learn`. spawn: starts a task of the client.
    """

    def __init__(self, beat: Callable[[str], Coroutine[Any, Any, None]], spawn: Spawn) -> None:
        self._beat = beat
        self._spawn = spawn
        self._limits: dict[str, int] = {}
        self._asking: dict[str, asyncio.Task[Any]] = {}

    def learn(self, address: str, ext: Mapping[str, str]) -> None:
        """Take a heartbeat answer."""
        text = ext.get(TIMER_FIELD, "")
        self._limits[address] = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else LEVELS_ONLY

    def forget(self, address: str) -> None:
        """The broker failed, or is in no route: another one may answer there next."""
        self._limits.pop(address, None)

    def get(self, address: str) -> int:
        """The limit as far as known, without asking."""
        return self._limits.get(address, LEVELS_ONLY)

    async def brokers_for(self, delay: Delay, brokers: Mapping[str, str], deadline: Deadline) -> set[str]:
        """Names of the brokers (name: master's address) that take this delay; at least one.

        Where none of those known takes it, the others are asked by a heartbeat first. Raises Unsupported when all have
        answered, ConnectFailed when one that has not may take it.
        """
        asked: dict[str, asyncio.Task[Any]] = {}
        while True:
            fit = {name for name, address in brokers.items() if self.get(address) >= delay.timer_ms}
            if fit:
                return fit
            unknown = {name: address for name, address in brokers.items() if address not in self._limits}
            for address in unknown.values():
                if address not in asked:
                    asked[address] = self._ask(address)
            waiting = [asked[address] for address in unknown.values() if not asked[address].done()]
            if not waiting or deadline.remaining_ms <= 0:
                break
            await asyncio.wait(waiting, timeout=deadline.remaining_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        if unknown:
            raise ConnectFailed(
                f"{delay.text} needs a broker that supports it; no heartbeat answer from {_listed(unknown)}",
                reason="no heartbeat answer",
            )
        longest_ms = max((self.get(address) for address in brokers.values()), default=LEVELS_ONLY)
        if longest_ms > LEVELS_ONLY:
            raise Unsupported(f"{delay.text} is too far ahead for {_listed(brokers)}: at most {longest_ms} ms")
        raise Unsupported(delay.unsupported(_listed(brokers)))

    def _ask(self, address: str) -> asyncio.Task[Any]:
        task = self._asking.get(address)
        if task is None:
            task = self._asking[address] = self._spawn(f"heartbeat to {address}", self._beat(address))
            task.add_done_callback(lambda _: self._asking.pop(address, None))
        return task


def _listed(brokers: Iterable[str]) -> str:
    return ", ".join(sorted(brokers))
