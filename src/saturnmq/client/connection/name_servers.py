"""Choice of the NameServer, and failover to the others.

Requirements: REM-27, PR-10, DG-01, UX-06.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from saturnmq.client.connection.deadline import Deadline
from saturnmq.client.connection.remote import Remote
from saturnmq.client.hints import unreachable_name_servers
from saturnmq.errors import CallTimeout, ConnectFailed, NoNameServer
from saturnmq.protocol.frames.command import Command


class NameServerList:
    """A shuffled list of addresses and the chosen one, which is used as long as it is connected (REM-27)."""

    def __init__(self, addresses: Sequence[str], remote: Remote) -> None:
        self._remote = remote
        self._addresses: list[str] = []
        self._at = random.randrange(999)
        self.chosen: str | None = None
        self.update(addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._addresses)

    def update(self, addresses: Sequence[str]) -> None:
        """Replace the list and shuffle it; close the connections to addresses that are not in it and drop a choice of one.

        An equal or empty list changes nothing.
        """
        if not addresses or set(addresses) == set(self._addresses):
            return
        for removed in set(self._addresses).difference(addresses):
            self._remote.drop(removed, "the NameServer was removed from the list of addresses")
        self._addresses = random.sample(list(addresses), len(addresses))
        if self.chosen not in self._addresses:
            self.chosen = None

    def _candidates(self) -> list[str]:
        chosen = self.chosen
        if chosen is not None and self._remote.is_connected(chosen):
            fallbacks = [address for address in self._addresses if address != chosen]
            return [chosen, *fallbacks]
        # From the one after the last choice, so that a failing one is tried last.
        count = len(self._addresses)
        start = self._at + 1
        return [self._addresses[(start + step) % count] for step in range(count)]

    async def call(self, command: Command, timeout_ms: int) -> Command:
        """The response of the first NameServer that gives one; each is tried at most once, all within timeout_ms.

        Raises NoNameServer, whose text has every address and why it failed.
        """
        if not self._addresses:
            raise NoNameServer("no NameServer is configured: set SATURNMQ_URL (rmq://host:9876) or NAMESRV_ADDR")
        deadline = Deadline(timeout_ms)
        tried: list[tuple[str, str]] = []
        candidates = self._candidates()
        for index, address in enumerate(candidates):
            share_ms = deadline.share_ms(len(candidates) - index)
            if share_ms <= 0:
                tried.append((address, "no time left"))
                continue
            try:
                answer = await self._remote.call(address, command, share_ms)
            except (ConnectFailed, CallTimeout) as error:
                tried.append((address, error.reason))
                continue
            if address != self.chosen:
                self.chosen = address
                # Advanced only on a change: the choice stays as long as it is connected.
                self._at += index + 1
            return answer
        raise NoNameServer(unreachable_name_servers(tried))
