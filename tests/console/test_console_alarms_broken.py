"""Every rule of the alarms, by breaking what it watches and mending it again."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from breaking import RULES, Watched, watched
from browsing import Times

from ports import free_port
from saturnmq.admin import Admin
from saturnmq.admin.survey import Surveyor
from saturnmq.console.alarms import GROWTH_SECONDS, LIMITS, ROUND_SECONDS, WAITS, Alarms, GroupRule
from saturnmq.console.state import ClusterState
from saturnmq.console.texts import LABELS
from saturnmq.protocol.bodies import KVTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from waiting import until

Fault = Callable[[Watched], AbstractAsyncContextManager[None]]
FAULTS: list[tuple[str, str, Fault]] = []  # rule, text of the alarm as a pattern, what breaks and then mends it


def breaks(rule: str, text: str) -> Callable[[Callable[[Watched], AsyncIterator[None]]], Fault]:
    """Add a row to FAULTS: a function that breaks something up to its `yield` and mends it after."""

    def add(fault: Callable[[Watched], AsyncIterator[None]]) -> Fault:
        row = asynccontextmanager(fault)
        FAULTS.append((rule, text, row))
        return row

    return add


@breaks("cluster", r"127\.0\.0\.1:\d+: cannot reach any NameServer .*")
async def name_server_is_down(cluster: Watched) -> AsyncIterator[None]:
    await cluster.stop_name_server()
    yield
    await cluster.start_name_server()


@breaks("cluster", r"127\.0\.0\.1:\d+: cannot reach any NameServer .*")
async def all_is_down(cluster: Watched) -> AsyncIterator[None]:
    await cluster.kill_broker("b")
    await cluster.stop_name_server()
    yield
    await cluster.start_name_server()
    await cluster.start_broker("b")


@breaks("cluster", r"127\.0\.0\.1:\d+: no broker is registered")
async def name_server_restarts_without_brokers(cluster: Watched) -> AsyncIterator[None]:
    await cluster.kill_broker("b")
    await cluster.stop_name_server()
    await cluster.start_name_server()
    yield
    await cluster.start_broker("b")


@breaks("cluster", r"127\.0\.0\.1:\d+: no broker is registered")
async def only_broker_is_killed(cluster: Watched) -> AsyncIterator[None]:
    await cluster.kill_broker("b")
    yield
    await cluster.start_broker("b")


@breaks("broker", r"DefaultCluster/b:0: .*(no response|timed out).*")
async def broker_hangs(cluster: Watched) -> AsyncIterator[None]:
    cluster.hung.add("b")
    yield
    cluster.hung.clear()


@breaks("missing", "DefaultCluster/other: 0 of 1")
async def one_of_two_brokers_is_killed(cluster: Watched) -> AsyncIterator[None]:
    await cluster.start_broker("other")
    await cluster.look()
    await cluster.kill_broker("other")
    yield
    await cluster.start_broker("other")


@breaks("leader", "DefaultCluster/b: no master")
async def master_of_a_slave_is_away(cluster: Watched) -> AsyncIterator[None]:
    await cluster.start_broker("slave", slave_of="b")
    await cluster.look()
    await cluster.kill_broker("b")
    yield
    await cluster.start_broker("b")


@breaks("slave", r"DefaultCluster/b:1: \d+ B")
async def slave_does_not_copy(cluster: Watched) -> AsyncIterator[None]:
    async with cluster.client() as client, client.producer("p") as out:
        await out.send("T", random.randbytes(20_000))
    await cluster.start_broker("slave", slave_of="b", master_address="127.0.0.1:1")
    yield
    await cluster.kill_broker("slave")
    await cluster.start_broker("slave", slave_of="b")


@breaks("disk", "DefaultCluster/b:0: 100 %")
async def disk_is_full(cluster: Watched) -> AsyncIterator[None]:
    disk = cluster.disk("b")
    disk.fill()
    yield
    disk.heal()


@breaks("head_wait", r"DefaultCluster/b:0: send \d+ ms")
async def disk_is_slow(cluster: Watched) -> AsyncIterator[None]:
    released, disk = threading.Event(), cluster.disk("b")
    store = cluster.brokers["b"].store
    sync = store.disk.sync
    async with cluster.client() as client, client.producer("p") as out:
        await out.send("T", b"creates the topic")

        def blocked(fd: int) -> None:
            released.wait()
            sync(fd)

        store.disk.sync = blocked
        sending = asyncio.ensure_future(out.send("T", b"waits for the disk", timeout=3600))
        await until(lambda: cluster.brokers["b"].store.max_physical_offset > 0)
        try:
            while int((await cluster.admin.brokers.runtime(cluster.brokers["b"].address))[WAITS["send"]]) <= 20:
                await asyncio.sleep(0.01)  # poll, with the deadline of the test
            yield
        finally:
            released.set()
            disk.heal()
            await sending


@breaks("page_cache", "DefaultCluster/b:0: 31 ms")
async def append_of_an_apache_broker_is_slow(cluster: Watched) -> AsyncIterator[None]:
    """A SaturnMQ broker appends in its event loop: what is slow there shows as waiting requests."""
    original = cluster.admin.connection.read

    async def read(address: str, code: RequestCode, *rest: Any, **options: Any) -> Command:
        answer = await original(address, code, *rest, **options)
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = KVTable.decode(answer.body).table | {"pageCacheLockTimeMills": "31"}
            answer.body = KVTable(table).encode()
        return answer

    cluster.admin.connection.read = read  # type: ignore[method-assign]
    yield
    cluster.admin.connection.read = original  # type: ignore[method-assign]


@breaks("lag", "DefaultCluster/billing: 6")
async def consumer_is_behind(cluster: Watched) -> AsyncIterator[None]:
    async with cluster.client() as client, client.producer("p") as out:
        async with client.consumer("billing", start="first") as inbox:
            await out.send("T", b"0")
            await inbox.subscribe("T")
            await (await inbox.recv(30)).ack()
        for _ in range(6):
            await out.send("T", b"1")
        yield
        async with client.consumer("billing") as inbox:
            await inbox.subscribe("T")
            for _ in range(6):
                await (await inbox.recv(30)).ack()


@breaks("members", "watched: 0 < 1")
async def consumer_leaves(cluster: Watched) -> AsyncIterator[None]:
    await cluster.alarms.with_group("watched", GroupRule(1, 0))
    async with cluster.client() as client, client.producer("p") as out:
        await out.send("T", b"creates the topic")
        async with client.consumer("watched") as inbox:
            await inbox.subscribe("T")
            await cluster.look()
    yield
    client = await cluster.clients.enter_async_context(cluster.client())
    inbox = await cluster.clients.enter_async_context(client.consumer("watched"))
    await inbox.subscribe("T")


@breaks("dead_letters", r"DefaultCluster/billing: \+1")
async def first_message_is_rejected(cluster: Watched) -> AsyncIterator[None]:
    await cluster.look()
    async with (
        cluster.client() as client,
        client.producer("p") as out,
        client.consumer("billing", start="first") as inbox,
    ):
        await inbox.subscribe("T")
        await out.send("T", b"wrong")
        await (await inbox.recv(30)).reject()
    yield
    cluster.times.now += GROWTH_SECONDS


@pytest.mark.spec("OPS-17")
@pytest.mark.parametrize(("rule", "text", "fault"), FAULTS, ids=[fault.__name__ for _, _, fault in FAULTS])
@pytest.mark.loop(seconds=7200)
async def test_what_breaks_raises_its_alarm_until_it_is_mended(
    rule: str, text: str, fault: Fault, tmp_path: Path
) -> None:
    async with watched(tmp_path) as cluster:
        await cluster.look()
        async with fault(cluster):
            alarm = await cluster.until(rule, begun=True)
            assert re.fullmatch(text, alarm, re.DOTALL), alarm
            if rule == "cluster":
                assert cluster.alarms.listed()[0].rule == "cluster"
        await cluster.until(rule, begun=False)
        own = [event for event in cluster.alarms.events if event.rule == rule]
        assert [event.began for event in own] == [True, False], own


def test_faults_cover_every_rule() -> None:
    rules = LABELS["alarm"].keys()
    assert {rule for rule, _, _ in FAULTS} == rules
    names = {"slave_bytes": "slave"}
    assert {names.get(limit, limit) for limit in LIMITS} <= rules
    assert set(RULES.limits) == set(LIMITS) and timedelta(seconds=ROUND_SECONDS) <= timedelta(minutes=1)


@pytest.mark.loop(seconds=7200)
async def test_pages_show_the_state_before_an_outage_as_stale(console: Callable[..., Any], tmp_path: Path) -> None:
    clock = Times()
    async with watched(tmp_path) as cluster, console(cluster.address, clock=clock) as one:
        await one.log_in()
        await one.services.state.refresh()
        page = (await one.browser.get("/brokers")).text
        assert "online" in page and "not known now" not in page
        await cluster.stop_name_server()
        for _ in range(2):  # the first attempt meets the closed connection
            await one.services.state.refresh()
        clock.now += 136
        for path in ("/brokers", "/", "/topics", "/groups"):
            page = (await one.browser.get(path)).text
            assert "The cluster is not seen now (cannot reach any NameServer" in page, path
            assert "this is its state of 136 s ago" in page and "online" not in page, path
        assert "not known now" in (await one.browser.get("/brokers")).text
        part = (await one.browser.get("/brokers", headers={"hx-request": "true"})).text
        assert "136 s ago" in part
        one.services.state.problem = ""  # not failed, but not renewed either
        assert "not seen now: this is its state of 136 s ago" in (await one.browser.get("/brokers")).text
        await cluster.start_name_server()
        await one.services.state.refresh()
        assert "not seen now" not in (await one.browser.get("/brokers")).text


@pytest.mark.loop(seconds=7200)
async def test_outage_ends_no_alarm_about_what_is_not_seen(tmp_path: Path) -> None:
    """A broker with a lag and a full disk dies, and its registration expires: nothing of this has got better."""
    async with watched(tmp_path) as cluster:
        await cluster.start_broker("other")
        async with consumer_is_behind(cluster), disk_is_full(cluster):
            assert await cluster.look() >= {"lag", "disk"}
            await cluster.stop_name_server()
            assert await cluster.look() == {"cluster", "lag", "disk"}
            await cluster.start_name_server()
            await cluster.until("cluster", begun=False)
            cluster.hung.add("b")
            assert await cluster.look() == {"broker", "lag", "disk"}
            await cluster.kill_broker("b")
            assert await cluster.look() == {"broker", "lag", "disk"}
            assert await cluster.look() == {"broker", "lag", "disk", "missing"}
            ended = [event for event in cluster.alarms.events if not event.began]
            assert [event.rule for event in ended] == ["cluster"]
            cluster.hung.clear()
            await cluster.start_broker("b")
            assert await cluster.look() == {"lag"}


@pytest.mark.loop(seconds=7200)
async def test_missing_members_are_forgotten_on_demand(tmp_path: Path) -> None:
    async with watched(tmp_path) as cluster:
        await cluster.start_broker("other")
        async with disk_is_full(cluster):
            assert await cluster.look() == {"disk"}
            await cluster.kill_broker("other")
            await cluster.until("missing", begun=True)
            with pytest.raises(Exception, match="missing are: DefaultCluster/other"):
                cluster.alarms.forget("DefaultCluster/b")
            cluster.alarms.forget("DefaultCluster/other")
            assert {rule for rule, _ in cluster.alarms.active} == {"disk"}, "of the broker that is left"
            assert await cluster.look() == {"disk"}
        assert await cluster.look() == set() and await cluster.look() == set()


class Process:
    """A server of the command line on a fixed port; killed and started again."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "saturnmq.cli", *self._words]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def send(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[tuple[str, Process, Process]]:
    """Address of a NameServer, its process, and that of a broker."""
    port = free_port()
    names = Process("namesrv", "--port", str(port), "--set", f"kvConfigPath={tmp_path / 'kv.json'}")
    words = ("--port", "0", "--data", str(tmp_path / "b"), "--set", "storeProfile=small", "--set", "brokerName=b")
    broker = Process("broker", "-n", f"127.0.0.1:{port}", *words)
    names.start()
    broker.start()
    yield f"127.0.0.1:{port}", names, broker
    broker.kill()
    names.kill()


@pytest.mark.realtime
@pytest.mark.loop(real=True)
async def test_killed_and_stopped_processes_raise_alarms(processes: tuple[str, Process, Process]) -> None:
    address, names, broker = processes
    times = Times()
    alarms = Alarms(clock=times)
    async with asyncio.timeout(100), Admin(address, timeout_ms=1000) as admin:
        state = ClusterState(Surveyor(admin.connection), clock=times)

        async def holds(*rules: str) -> None:
            """Look until exactly these alarms hold."""
            while True:
                times.now += ROUND_SECONDS
                await alarms.round(state, admin)
                if [event.rule for event in alarms.listed()] == list(rules):
                    return
                await asyncio.sleep(0.1)  # poll, with the deadline above

        await holds()
        broker.send(signal.SIGSTOP)
        await holds("broker")
        broker.send(signal.SIGCONT)
        await holds()
        broker.send(signal.SIGSTOP)
        await holds("broker")
        names.kill()
        await holds("cluster", "broker")
        broker.kill()
        names.start()
        await holds("cluster", "broker")  # no broker is registered
        broker.start()
        await holds()
