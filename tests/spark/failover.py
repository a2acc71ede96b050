"""Clusters of real `saturnmq` processes whose brokers the tests of take-over kill: a master with its slave, a DLedger group."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ports import free_port, free_ports
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import ClusterInfo
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command

READY_SECONDS_MAX = 60
POLL_SECONDS = 0.02
SMALL = {
    "storeProfile": "small",
    "mappedFileSizeCommitLog": "1048576",
    "fastPortEnable": "false",
    "registerNameServerPeriod": "10000",
    "defaultTopicQueueNums": "2",
}


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Poll another process until the condition holds. Raises AssertionError after `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(POLL_SECONDS)  # poll


class Server:
    """A process of the command line; `start` after `kill` keeps its files and ports."""

    def __init__(self, log: Path, *words: str) -> None:
        self._log = log
        self._words = words
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Start it without waiting."""
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "saturnmq.cli", *self._words], stdout=subprocess.PIPE, stderr=log, text=True
            )

    def ready(self) -> None:
        """Wait until it serves."""
        assert self._process is not None and self._process.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=_copy, args=(self._process.stdout, lines))
        self._reader.start()
        while not (line := lines.get(timeout=READY_SECONDS_MAX)).startswith("saturnmq: ready "):
            assert line, f"did not start:\n{self._log.read_text()[-3000:]}"

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end; nothing happens if it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(timeout=30)
        if self._reader is not None:
            self._reader.join(timeout=10)
        assert process.stdout is not None
        process.stdout.close()


def _copy(stream: IO[str], lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


class Cluster:
    """Brokers by name behind one NameServer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = free_port()
        self.name_servers = f"127.0.0.1:{port}"
        self.name_server = Server(folder / "namesrv.log", "namesrv", "--port", str(port))
        self.brokers: dict[str, Server] = {}
        self.addresses: dict[str, str] = {}
        self.settings: dict[str, dict[str, str]] = {}

    def add(self, name: str, port: int, **settings: str) -> None:
        file = self.folder / f"{name}.conf"
        self.settings[name] = SMALL | settings | {"storePathRootDir": str(self.folder / name), "listenPort": str(port)}
        self.configure(name)
        log = self.folder / f"{name}.log"
        self.brokers[name] = Server(log, "broker", "-c", str(file), "-n", self.name_servers)
        self.addresses[name] = f"127.0.0.1:{port}"

    def configure(self, name: str, **settings: str) -> None:
        """Write the file that the broker reads at its next start, with additional settings."""
        values = self.settings[name] | settings
        (self.folder / f"{name}.conf").write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    def restart(self, *names: str) -> None:
        """Start brokers and wait until all of them serve."""
        for name in names:
            self.brokers[name].start()
        for name in names:
            self.brokers[name].ready()

    def registered(self) -> dict[int, str]:
        """The brokers that the NameServer lists: broker id -> name of the process."""
        names = {address: name for name, address in self.addresses.items()}
        found = asyncio.run(_cluster_info(self.name_servers)).broker_addr_table
        return {number: names[at] for broker in found.values() for number, at in broker.broker_addrs.items()}

    def master(self) -> str:
        """The process that the NameServer lists as master; waits for one."""
        wait_until(lambda: 0 in self.registered())
        return self.registered()[0]

    def end(self) -> None:
        for server in [*self.brokers.values(), self.name_server]:
            server.kill()


async def _cluster_info(address: str) -> ClusterInfo:
    net = RemotingClient(settings=NetSettings())
    try:
        answer = await net.invoke(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO), 5000)
        return ClusterInfo.decode(answer.body or b"{}")
    finally:
        await net.close()


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Start the NameServer and all brokers; kill them at the end."""
    try:
        cluster.name_server.start()
        cluster.name_server.ready()
        cluster.restart(*cluster.brokers)
        yield cluster
    finally:
        cluster.end()


def pair(folder: Path) -> Cluster:
    """SYNC_MASTER "master" and its slave "slave", both of broker name "pair"."""
    made = Cluster(folder)
    for name, number, role in (("master", 0, "SYNC_MASTER"), ("slave", 1, "SLAVE")):
        made.add(name, free_port((0, 1)), brokerName="pair", brokerId=str(number), brokerRole=role)
    return made


def ledger(folder: Path) -> Cluster:
    """Three members "n0".."n2" of the DLedger group and broker name "ledger"."""
    made = Cluster(folder)
    names = [f"n{number}" for number in range(3)]
    peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in zip(names, free_ports(3), strict=True))
    for name in names:
        made.add(
            name, free_port(), brokerName="ledger", dLegerGroup="ledger", dLegerPeers=peers, dLegerSelfId=name,
            enableDLegerCommitLog="true",
            **{"dledger.profile": "fast", "dledger.heartBeatTimeIntervalMs": "300", "dledger.indexFileUnits": "65536"},
        )  # fmt: skip
    return made
