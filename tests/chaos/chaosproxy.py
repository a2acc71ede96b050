"""TCP proxies between members that can cut, delay or reset each direction.

A cut direction keeps its bytes and forwards them after the heal, as TCP does; connections opened meanwhile wait too.

Requirements: CHA-01, CHA-02, CHA-09.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable

Direction = tuple[str, str]
STALL_SECONDS_MAX = 0.3


async def pause(seconds: float) -> None:
    """Wait for the duration of a fault or the interval of a sender: real time is required, no event ends it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


class Network:
    """Directed links between named members. cut: (sender, receiver) pairs that are disconnected now."""

    def __init__(self, targets: dict[str, str], seed: int) -> None:
        self.targets = targets
        self.cut: set[Direction] = set()
        self.loss = 0.0  # probability per chunk of a stall; a tenth of them reset the connection
        self.addresses: dict[Direction, str] = {}
        self._rng = random.Random(seed)
        self._healed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for caller in self.targets:
            for called in self.targets:
                if caller == called:
                    continue
                server = await asyncio.start_server(
                    lambda r, w, caller=caller, called=called: self._accepted(caller, called, r, w), "127.0.0.1", 0
                )
                self._servers.append(server)
                self.addresses[caller, called] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()

    # faults

    def partition(self, *sides: Iterable[str]) -> None:
        """Connect only members of the same side."""
        groups = [list(side) for side in sides]
        self.cut = {(a, b) for x in groups for y in groups if x is not y for a in x for b in y}

    def keep_only(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Connect only these pairs, in both directions."""
        kept = {way for a, b in pairs for way in ((a, b), (b, a))}
        self.cut = set(self.addresses) - kept

    def heal(self) -> None:
        self.cut, self.loss = set(), 0.0
        self._healed.set()
        self._healed = asyncio.Event()

    # connections

    def _accepted(self, caller: str, called: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._link(caller, called, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _link(self, caller: str, called: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward: asyncio.StreamWriter | None = None
        try:
            await self._passable((caller, called))
            host, _, port = self.targets[called].partition(":")
            back, onward = await asyncio.open_connection(host, int(port))
            pumps = [
                asyncio.ensure_future(self._pump((caller, called), reader, onward)),
                asyncio.ensure_future(self._pump((called, caller), back, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # the target is down
        finally:
            for one in (writer, onward):
                if one is not None:
                    one.close()
                    with contextlib.suppress(OSError):
                        await one.wait_closed()

    async def _passable(self, direction: Direction) -> None:
        while direction in self.cut:
            await self._healed.wait()

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if self.loss and self._rng.random() < self.loss:
                    if self._rng.random() < 0.1:
                        return
                    await pause(self._rng.random() * STALL_SECONDS_MAX)
                if direction in self.cut:
                    await self._passable(direction)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
