"""A NameServer and a broker in one process, with a probe inside, for the parts of the soak that need no group.

Requirements: SOK-03..SOK-06.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from harness.fuzz.servers import Server
from harness.soak.options import Options
from harness.soak.samples import Watched
from ports import free_port
from saturnmq.client.puller.puller import Puller
from saturnmq.errors import RouteNotFound
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import SaturnError

DEADLINE_SECONDS: Final = 120.0  # no promise: how long a busy machine may take
POLL_SECONDS: Final = 0.05
SAMPLES: Final = 360  # of a run, at least one each 10 s


async def pause(seconds: float) -> None:
    """Wait for the interval of a load or a poll; no event ends it."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=max(seconds, 0))


async def until(condition: Callable[[], Awaitable[object]], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until the condition holds. Raises TimeoutError that says what did not happen."""
    end = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        await pause(POLL_SECONDS)


class Single:
    """The process. settings: properties in its file, which `configure` changes while it runs."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.settings = dict(settings)
        self.port, self.name_port = free_port((0, -2, 1)), free_port()
        self.name_servers = f"127.0.0.1:{self.name_port}"
        self.probe = folder / "broker.probe"
        self.conf = folder / "broker.conf"
        self.store.mkdir(exist_ok=True)
        self.server = self._start()

    def _start(self) -> Server:
        self._write()
        words = ["standalone", "-c", str(self.conf), "--data", str(self.store), "--port", str(self.port)]
        words += ["--namesrv-port", str(self.name_port)]
        return Server("broker", words, ("-m", "harness.soak.probe", str(self.probe)))

    def _write(self) -> None:
        self.conf.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))

    def configure(self, **changed: str) -> None:
        """Change properties in the file and let the process read it (SIGHUP)."""
        self.settings |= changed
        self._write()
        self.server.process.send_signal(signal.SIGHUP)

    def restart(self) -> int:
        """Stop and start; returns the exit code."""
        code = self.server.stop()
        self.server = self._start()
        return code

    @property
    def pid(self) -> int:
        return self.server.process.pid

    def watched(self, *, bounded: bool) -> Watched:
        return Watched("broker", lambda: self.pid, self.probe, bounded)

    def deleted_files(self) -> list[str]:
        """Files of the store that are deleted, and that the process still has open or mapped."""
        found = []
        with suppress(OSError):
            for one in Path(f"/proc/{self.pid}/fd").iterdir():
                with suppress(OSError):
                    found.append(str(one.readlink()))
            found += Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        return sorted({line.split(maxsplit=5)[-1] for line in found if str(self.store) in line and "(deleted)" in line})


@asynccontextmanager
async def single(folder: Path, settings: Mapping[str, str]) -> AsyncIterator[Single]:
    one = await asyncio.to_thread(Single, folder, settings)
    try:
        yield one
    finally:
        await asyncio.to_thread(one.server.stop)


async def queues_of(puller: Puller, topic: str) -> list[MessageQueue]:
    """The queues of a topic, once its route is there."""
    found: list[MessageQueue] = []

    async def known() -> bool:
        with suppress(RouteNotFound, SaturnError):
            found[:] = await puller.queues(topic)
        return bool(found)

    await until(known, f"route of {topic}")
    return found


async def sampling(options: Options, watched: list[Watched], began: float, text: Callable[[], str]) -> None:
    """Sample and show progress until cancelled."""
    while True:
        at_s = time.monotonic() - began
        for one in watched:
            one.sample(at_s)
        options.show(at_s, text())
        await pause(max(min(10.0, options.seconds / SAMPLES), 0.25))
