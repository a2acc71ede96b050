"""Three brokers in one DLedger group, of SaturnMQ or Apache, with a name server: start, observe, kill and restart them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import apache
import saturn
from processes import ServerProcess

from ports import free_port
from saturnmq.net import NetSettings
from saturnmq.net.client import RemotingClient
from saturnmq.protocol.bodies import KVTable, TopicRouteData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

GROUP: Final = "RaftNode00"
HEAP_MB: Final = 512
FILE_BYTES: Final = 256 * 1024 * 1024
READY_SECONDS: Final = 120.0
MASTER_ID: Final = 0


class LedgerGroup:
    """A group by make ("saturnmq" or "apache"). settings: broker properties in addition to those of the group."""

    def __init__(self, make: str, folder: Path, *, settings: Mapping[str, str] | None = None, members: int = 3) -> None:
        self.make = make
        self.folder = folder
        self.namesrv_port = free_port()
        self.names = [f"n{number}" for number in range(members)]
        self.ports = {name: free_port(apache.BROKER_PORT_OFFSETS) for name in self.names}
        peers = ";".join(f"{name}-127.0.0.1:{free_port()}" for name in self.names)
        self._settings = {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": GROUP,
            "dLegerPeers": peers,
            "mappedFileSizeCommitLog": str(FILE_BYTES),
            "flushDiskType": "ASYNC_FLUSH",
            **(settings or {}),
        }
        self.namesrv: ServerProcess | None = None
        self.brokers: dict[str, ServerProcess] = {}

    @property
    def name_servers(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def processes(self) -> list[ServerProcess]:
        """All running processes."""
        return [*([self.namesrv] if self.namesrv is not None else []), *self.brokers.values()]

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    # ---- start, stop

    def start(self, names: list[str] | None = None) -> LedgerGroup:
        """Start the name server and these members, by default all; return the group once one of them is master."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            if self.make == "apache":
                self.namesrv = apache.start_namesrv(self.folder, self.namesrv_port)
            else:
                self.namesrv = saturn.start_namesrv(self.namesrv_port)
            for name in names or self.names:
                self.start_member(name)
            self.until_served()
        except BaseException:
            self.stop()
            raise
        return self

    def start_member(self, name: str) -> ServerProcess:
        """Start or restart a member on its store; return when it listens."""
        settings = {**self._settings, "dLegerSelfId": name}
        folder, port = self.folder / name, self.ports[name]
        if self.make == "apache":
            process = apache.start_broker(
                folder, port, self.name_servers, name=GROUP, settings=settings, heap_mb=HEAP_MB, small_store=False
            )
        else:
            settings["storeProfile"] = "standard"
            process = saturn.start_broker(folder, port, self.name_servers, name=GROUP, settings=settings)
        self.brokers[name] = process
        return process

    def kill(self, name: str) -> None:
        """Kill a member with SIGKILL."""
        process = self.brokers.pop(name)
        process.process.kill()
        process.stop()

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop(5)
        self.brokers.clear()
        self.namesrv = None

    # ---- observe

    def leader(self) -> str | None:
        """Return the running member that the name server reports as master; None if there is none."""
        address = self._route().get(MASTER_ID)
        return next((name for name in self.brokers if self.address(name) == address), None)

    def until_served(self, count: int = 0) -> str:
        """Wait until the name server knows a master and `count` brokers; return the master. Raises RuntimeError."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            leader = self.leader()
            if leader is not None and len(self._route()) >= count:
                return leader
            time.sleep(0.1)  # poll
        raise RuntimeError(f"{self.make}: no master within {READY_SECONDS:.0f} s, the NameServer knows {self._route()}")

    def end(self, name: str) -> int:
        """Return the committed log length in bytes as the member reports it; -1 if it does not answer."""
        answer = _call(self.address(name), Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        return int(KVTable.decode(answer.body).table["commitLogMaxOffset"]) if answer is not None else -1

    def until_level(self) -> float:
        """Wait until all members have committed the same length; return the seconds that took. Raises RuntimeError."""
        began = time.monotonic()
        while time.monotonic() < began + 20 * READY_SECONDS:
            ends = {self.end(name) for name in self.brokers}
            if len(ends) == 1 and ends != {-1}:
                return time.monotonic() - began
            time.sleep(0.1)  # poll
        raise RuntimeError(f"{self.make}: the members do not come level: {ends}")

    def _route(self) -> dict[int, str]:
        ext = {"topic": "TBW102", "acceptStandardJsonOnly": "true"}
        answer = _call(self.name_servers, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ext))
        if answer is None:
            return {}
        datas = TopicRouteData.decode(answer.body).broker_datas
        return dict(datas[0].broker_addrs) if datas else {}


def _call(address: str, command: Command) -> Command | None:
    """Return a server's response; None if there is none, or an error response."""

    async def ask() -> Command:
        client = RemotingClient(settings=NetSettings())
        try:
            return await client.invoke(address, command, 3000)
        finally:
            await client.close()

    try:
        answer = asyncio.run(ask())
    except SaturnError:
        return None
    return answer if answer.code == 0 else None
