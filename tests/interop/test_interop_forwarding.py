"""A Java client with default settings, which polls routes every 30 s, while leaders of a group of ours are killed and restarted.

A killed leader is started again at once under its old address, as a supervisor does. The client still sends to it; it is a follower
then and passes requests on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import javatools
import pytest
import saturn
from processes import ServerProcess

from ports import free_port
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import KVTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

pytestmark = [pytest.mark.interop, pytest.mark.realtime]

TOPIC = "Steady"
ROUTE_SECONDS = 33.0  # after this time every client has polled its routes since a change
DRAIN_SECONDS = 35.0
OUTAGE_MS_MAX = 4000  # over MANY kills, on a quiet machine
MANY = 20
POLL_MS_MAX = 15_000  # half of the time after which clients poll their routes: they go on without having done so
SETTINGS = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "g",
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": "16777216",
    "fastPortEnable": "false",
    "forwardDrainMs": str(int(DRAIN_SECONDS * 1000)),
}


class Cluster:
    """A NameServer and three brokers of one group, each on a port of its own that it keeps over restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = ("n0", "n1", "n2")
        self.ports = {name: free_port() for name in self.names}
        self.peers = ";".join(f"{name}-127.0.0.1:{free_port()}" for name in self.names)
        self.namesrv = free_port()
        self.servers: list[ServerProcess] = [saturn.start_namesrv(self.namesrv)]
        self.brokers: dict[str, ServerProcess] = {}

    @property
    def name_servers(self) -> str:
        return f"127.0.0.1:{self.namesrv}"

    def start(self, name: str) -> None:
        more = {"dLegerPeers": self.peers, "dLegerSelfId": name}
        self.brokers[name] = saturn.start_broker(
            self.folder / name, self.ports[name], self.name_servers, name="g", settings=SETTINGS | more
        )

    def states(self) -> dict[str, dict[str, str]]:
        """The runtime information of each broker that answers."""

        async def ask() -> dict[str, dict[str, str]]:
            found = {}
            client = RemotingClient(settings=NetSettings())
            for name, port in self.ports.items():
                try:
                    command = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
                    answer = await client.invoke(f"127.0.0.1:{port}", command, 3000)
                    found[name] = KVTable.decode(answer.body).table
                except SaturnError:
                    continue
            await client.close()
            return found

        return asyncio.run(ask())

    def leader(self) -> str:
        """The member that serves as leader, once there is one and the other two follow it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            states = self.states()
            serving = [name for name, state in states.items() if state.get("dledgerServing") == "true"]
            followed = {state.get("dledgerLeaderId") for state in states.values()}
            if len(states) == len(self.names) and len(serving) == 1 and followed == set(serving):
                return serving[0]
            time.sleep(0.2)  # poll
        raise AssertionError(f"no leader that all follow: {self.states()}")

    def stop(self) -> None:
        for server in (*self.brokers.values(), *self.servers):
            server.stop(60)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        for name in made.names:
            made.start(name)
        yield made
    finally:
        for broker in made.brokers.values():
            broker.process.kill()
        made.stop()


class Steady:
    """The Java program `steady`: sends a message every 20 ms with a default producer and consumes them."""

    def __init__(self, made: Cluster, home: Path) -> None:
        arguments = ["steady", f"ns={made.name_servers}", f"topic={TOPIC}"]
        command = javatools.java_command("interop.Interop", arguments, home=home)
        self.process = ServerProcess(command, name="steady", env=javatools.java_environment(home), stdin=True)

    def results(self) -> list[dict[str, Any]]:
        return [json.loads(line[7:]) for line in self.process.output.splitlines() if line.startswith("RESULT ")]

    def sent(self) -> list[dict[str, Any]]:
        return [result for result in self.results() if "sent" in result]

    def wait(self, condition: Callable[[], Any], seconds: float, why: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{why}: {self.process.lines[-5:]}"
            time.sleep(0.1)  # poll

    def works(self) -> None:
        """Wait until a message that is sent from now on was acknowledged and consumed."""
        begin = time.time() * 1000

        def done() -> bool:
            found = self.results()
            sent = {str(r["sent"]) for r in found if "sent" in r and r["begin"] > begin and not r["problem"]}
            return bool(sent & {r["received"] for r in found if "received" in r})

        self.wait(done, 90, "nothing is sent and consumed")

    def outage_ms(self, from_ms: float) -> int:
        """The longest time between two successful sends since from_ms; the first interval begins there."""
        times = [from_ms, *(r["at"] for r in self.sent() if r["at"] > from_ms and not r["problem"])]
        return int(max(after - before for before, after in pairwise(times)))

    def end(self) -> list[dict[str, Any]]:
        self.process.say("end")
        self.process.process.wait(60)
        return self.results()

    def __enter__(self) -> Steady:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop(5)


def lost(results: list[dict[str, Any]]) -> set[str]:
    """Acknowledged messages that were not consumed."""
    acknowledged = {str(r["sent"]) for r in results if "sent" in r and not r["problem"]}
    return acknowledged - {r["received"] for r in results if "received" in r}


def percentile_95(values: list[int]) -> int:
    return sorted(values)[max(-(-len(values) * 95 // 100) - 1, 0)]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kills", [2, pytest.param(MANY, marks=pytest.mark.interop_full)])
def test_default_java_client_goes_on_after_a_leader_is_killed(tmp_path: Path, home: Path, kills: int) -> None:
    with cluster(tmp_path) as made, Steady(made, home) as steady:
        made.leader()
        steady.works()
        outages, restarts = [], []
        for _ in range(kills):
            time.sleep(ROUTE_SECONDS)  # clients poll their routes
            name, begin = made.leader(), time.time() * 1000
            os.kill(made.brokers[name].pid, signal.SIGKILL)
            made.brokers[name].stop()
            made.start(name)
            restarts.append(int(time.time() * 1000 - begin))
            steady.works()
            outages.append(steady.outage_ms(begin))
            print(f"outage_ms={outages[-1]} restart_ms={restarts[-1]} load={os.getloadavg()[0]:.1f}", flush=True)
        results = steady.end()
    assert not lost(results)
    p95 = percentile_95(outages)
    print(f"kills={kills} outage_ms p50={sorted(outages)[kills // 2]} p95={p95} max={max(outages)} {sorted(outages)}")
    slow = max(max(restarts) - 2000, 0)  # a busy machine starts the process later than the 2 s of the requirement
    assert p95 < (OUTAGE_MS_MAX if kills == MANY else POLL_MS_MAX) + slow


@pytest.mark.interop_full
@pytest.mark.timeout(600)
@pytest.mark.spec("DL-L01")
def test_default_java_client_sees_no_failed_send_in_a_planned_restart(tmp_path: Path, home: Path) -> None:
    with cluster(tmp_path) as made, Steady(made, home) as steady:
        made.leader()
        steady.works()
        for _ in range(2):
            time.sleep(ROUTE_SECONDS)  # clients poll their routes
            name, begin = made.leader(), time.time() * 1000
            assert made.brokers[name].stop(DRAIN_SECONDS + 30) == 0
            made.start(name)
            steady.works()
            failed = [r for r in steady.sent() if r["problem"] and r["at"] > begin]
            print(f"outage_ms={steady.outage_ms(begin)} failed={len(failed)} load={os.getloadavg()[0]:.1f}", flush=True)
            assert not failed, failed[:3]
        results = steady.end()
    assert not lost(results)
