"""Route suspicion: a broker that fails or no longer leads triggers a route query at once, without waiting for the next poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.client.connection import core
from saturnmq.client.connection.route_suspicion import RouteSuspicion, is_no_master
from saturnmq.protocol.bodies import BrokerData, HeartbeatData, MessageQueue, QueueData, TopicRouteData
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

Run = Callable[[Callable[[], Any]], Any]
NEVER_MS = 3_600_000
QUEUE = MessageQueue("T", "g", 0)


@pytest.fixture(autouse=True)
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable periodic route queries and heartbeats, so that only failures trigger them."""
    monkeypatch.setattr(core, "FIRST_ROUTE_POLL_MS", NEVER_MS)
    monkeypatch.setattr(core, "FIRST_HEARTBEAT_MS", NEVER_MS)


def led_by(address: str) -> TopicRouteData:
    """Route of a replication group under one broker name, with this master."""
    return TopicRouteData(queue_datas=[QueueData("g", 1, 1, 6)], broker_datas=[BrokerData("c", "g", {0: address})])


def master_of(client: Client) -> str | None:
    route = client._core.routes.cached("T")
    return route.master("g") if route is not None else None


async def until_learnt(client: Client, address: str) -> None:
    async with asyncio.timeout(30):
        while master_of(client) != address:
            await asyncio.sleep(0.01)  # poll


def refuse(command: Command) -> Command:
    return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker does not lead its group")


def ask_the_master(command: Command) -> Command:
    offset = command.ext["queueOffset"]
    ext = {"nextBeginOffset": offset, "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"}
    return command.reply(ResponseCode.PULL_RETRY_IMMEDIATELY, "ask the master", ext=ext)


@pytest.mark.spec("PR-11", "DL-B06", "DL-C09")
@pytest.mark.parametrize("how", ["refuses", "is down", "asks for the master"])
async def test_new_master_is_found_after_the_old_one_fails_or_redirects(cluster: Any, how: str) -> None:
    async with (
        cluster(brokers=2) as c,
        Client(name_servers=c.name_servers, route_poll_ms=NEVER_MS) as client,
    ):
        old, new = c.brokers.values()
        c.add("T", led_by(old.address))
        async with client.producer("p") as producer:
            await producer.send("T", b"1", queue=QUEUE)
            await asyncio.gather(*(ns.wait_for(105) for ns in c.ns))
            c.add("T", led_by(new.address))  # the leader changes; the client is not notified
            assert master_of(client) == old.address
            if how == "asks for the master":
                old.script[RequestCode.PULL_MESSAGE] = ask_the_master
                await client.puller().pull(QUEUE, 1)
            elif how == "refuses":
                old.script[RequestCode.SEND_MESSAGE_V2] = refuse
                assert (await producer.send("T", b"2", queue=QUEUE)).queue == QUEUE
            else:
                await old.stop()
                assert (await producer.send("T", b"2", queue=QUEUE)).queue == QUEUE
            await until_learnt(client, new.address)
            await producer.send("T", b"3", queue=QUEUE)
        assert new.of(RequestCode.SEND_MESSAGE_V2)[-1].body == b"3"


@pytest.mark.spec("PR-11", "DL-B06")
async def test_failing_sends_find_a_master_that_is_registered_late(cluster: Any) -> None:
    async with (
        cluster(brokers=2) as c,
        Client(name_servers=c.name_servers, route_poll_ms=NEVER_MS, attempts=1) as client,
    ):
        old, new = c.brokers.values()
        c.add("T", led_by(old.address))
        old.script[RequestCode.SEND_MESSAGE_V2] = refuse
        async with client.producer("p") as producer:
            tries = 0
            async with asyncio.timeout(30):
                while not new.of(RequestCode.SEND_MESSAGE_V2):
                    tries += 1
                    if tries == 20:
                        c.add("T", led_by(new.address))
                    try:
                        await producer.send("T", b"x", queue=QUEUE)
                    except SaturnError:
                        await asyncio.sleep(0.01)  # poll
        asked = [request for ns in c.ns for request in ns.of(105) if request.ext["topic"] == "T"]
        assert tries >= 20 and len(asked) < tries  # fewer route queries than failures


@pytest.mark.spec("HB-01", "TX-09", "DL-C05")
@pytest.mark.parametrize("busy", [False, True])
async def test_new_master_gets_a_heartbeat_at_once(cluster: Any, busy: bool) -> None:
    """The new master needs the producer groups for transaction checks, even if an earlier heartbeat is unanswered."""
    answer = asyncio.Event()

    async def no_answer(_: Command) -> None:
        await answer.wait()

    async with (
        cluster(brokers=2) as c,
        Client(name_servers=c.name_servers, route_poll_ms=NEVER_MS, heartbeat_ms=100_000, timeout=1) as client,
    ):
        old, new = c.brokers.values()
        c.add("T", led_by(old.address))
        if busy:
            old.script[RequestCode.HEART_BEAT] = no_answer
        async with client.producer("p"):
            await client._core.write_route("T")
            await old.wait_for(RequestCode.HEART_BEAT)
            c.add("T", led_by(new.address))
            await client._core.routes.refresh("T")
            (beat, *_) = await new.wait_for(RequestCode.HEART_BEAT)
            answer.set()
        groups = {data.group_name for data in HeartbeatData.decode(beat.body).producer_data_set}
        assert "p" in groups


@pytest.mark.spec("HB-01", "TX-09")
async def test_restarted_broker_gets_one_heartbeat_at_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "HEARTBEAT_RETRY_SECONDS", 0.01)
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, route_poll_ms=NEVER_MS, heartbeat_ms=100_000) as client,
    ):
        (broker,) = c.brokers.values()
        async with client.producer("p") as producer:
            await producer.send("T", b"1")
            sent = len(await broker.wait_for(RequestCode.HEART_BEAT))
            port = int(broker.address.rpartition(":")[2])
            await broker.stop()
            with pytest.raises(SaturnError):
                await producer.send("T", b"2", timeout=0.3)
            again = type(broker)(broker.name)
            await again.start(port)
            try:
                assert (await again.wait_for(RequestCode.HEART_BEAT)) and sent > 0
                await producer.send("T", b"3")
                assert len(again.of(RequestCode.HEART_BEAT)) == 1, "once it knows, the next one comes when it is due"
            finally:
                await again.stop()


@pytest.mark.spec("HB-01", "TX-09", "DL-C05")
@pytest.mark.parametrize("meanwhile", ["no master", "slave"])
async def test_broker_that_becomes_master_again_gets_a_heartbeat(cluster: Any, meanwhile: str) -> None:
    """It may have restarted, without our groups, and a producer that sends nothing has no failed call that would show it."""
    async with (
        cluster(brokers=2) as c,
        Client(name_servers=c.name_servers, route_poll_ms=NEVER_MS, heartbeat_ms=100_000) as client,
    ):
        one, other = c.brokers.values()
        c.add("T", led_by(one.address))
        async with client.producer("p"):
            await client._core.write_route("T")
            before = len(await one.wait_for(RequestCode.HEART_BEAT))
            route = led_by(other.address)
            addresses = {1: one.address, 0: other.address} if meanwhile == "slave" else {1: other.address}
            route.broker_datas = [BrokerData("c", "g", addresses)]
            c.add("T", route)
            await client._core.routes.refresh("T")
            if meanwhile == "slave":
                await other.wait_for(RequestCode.HEART_BEAT)
            assert len(one.of(RequestCode.HEART_BEAT)) == before
            c.add("T", led_by(one.address))
            await client._core.routes.refresh("T")
            beats = await one.wait_for(RequestCode.HEART_BEAT, before + 1)
        groups = {data.group_name for data in HeartbeatData.decode(beats[-1].body).producer_data_set}
        assert "p" in groups


@pytest.mark.spec("HB-01", "TX-09")
async def test_heartbeat_to_a_new_broker_is_repeated_until_answered(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(core, "HEARTBEAT_RETRY_SECONDS", 0.01)
    async with (
        cluster(brokers=2) as c,
        Client(name_servers=c.name_servers, route_poll_ms=NEVER_MS, heartbeat_ms=100_000) as client,
    ):
        old, new = c.brokers.values()
        c.add("T", led_by(old.address))
        port = int(new.address.rpartition(":")[2])
        await new.stop()
        async with client.producer("p"):
            await client._core.write_route("T")
            await old.wait_for(RequestCode.HEART_BEAT)
            c.add("T", led_by(new.address))
            await client._core.routes.refresh("T")
            async with asyncio.timeout(30):
                while f"heartbeat failed broker={new.address}" not in caplog.text:
                    await asyncio.sleep(0.01)  # poll
            again = type(new)(new.name)
            await again.start(port)
            try:
                assert await again.wait_for(RequestCode.HEART_BEAT)
            finally:
                await again.stop()


@pytest.mark.spec("PR-11", "API-25", "DL-C05")
async def test_pending_call_fails_once_its_unresponsive_broker_has_a_successor(cluster: Any) -> None:
    """A frozen master accepts connections and answers nothing: one timed-out call detects it, other pending calls are failed."""
    async with (
        cluster(brokers=2) as c,
        Client(name_servers=c.name_servers, route_poll_ms=NEVER_MS) as client,
    ):
        old, new = c.brokers.values()
        c.add("T", led_by(old.address))
        old.script[RequestCode.SEND_MESSAGE_V2] = lambda command: None
        async with client.producer("p") as producer:
            with pytest.raises(SaturnError):
                await producer.send("T", b"1", queue=QUEUE, timeout=2)
            waits = asyncio.create_task(producer.send("T", b"2", queue=QUEUE, timeout=3600))
            await old.wait_for(RequestCode.SEND_MESSAGE_V2, 2)
            c.add("T", led_by(new.address))
            assert (await waits).queue == QUEUE, "retried at the successor"
            assert (await producer.send("T", b"3", queue=QUEUE)).queue == QUEUE
        assert [request.body for request in new.of(RequestCode.SEND_MESSAGE_V2)] == [b"2", b"3"]


class Routes:
    """Stand-in for a RouteCache that records which topics were queried, and when."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []

    def topics_at(self, address: str) -> list[str]:
        return {"a": ["T", "U"], "b": ["V"]}.get(address, [])

    async def refresh(self, topic: str) -> None:
        self.asked.append((topic, asyncio.get_running_loop().time()))
        await asyncio.sleep(0)
        if topic == "T":
            raise SaturnError("no name server")


@pytest.mark.spec("PR-11")
async def test_route_suspicions_are_coalesced_and_the_last_one_is_kept() -> None:
    routes, tasks, replaced, pause = Routes(), [], [], 1.0

    def spawn(name: str, what: Any) -> asyncio.Task[Any]:
        tasks.append(asyncio.get_running_loop().create_task(what, name=name))
        return tasks[-1]

    suspicion = RouteSuspicion(routes, spawn, replaced.append, pause_seconds=pause)  # type: ignore[arg-type]
    suspicion.report("unknown")
    assert not tasks
    for _ in range(100):
        suspicion.report("a")
    await asyncio.sleep(0)
    while len(routes.asked) < 2:
        await asyncio.sleep(0)
    for _ in range(100):
        suspicion.report("b")
        suspicion.report("a")
        await asyncio.sleep(0)
    assert len(tasks) == 1
    await asyncio.gather(*tasks)
    assert [topic for topic, _ in routes.asked] == ["T", "U", "V", "T", "U"]
    assert routes.asked[2][1] - routes.asked[1][1] >= pause
    suspicion.report("b")
    await asyncio.gather(*tasks)
    assert len(tasks) == 2 and routes.asked[-1][0] == "V" and not replaced


@pytest.mark.spec("DL-C09", "BP-06")
def test_pull_without_matching_message_is_no_route_suspicion() -> None:
    pull = Command(RequestCode.PULL_MESSAGE, ext={"queueOffset": "7"})
    for code, after, expected in ((20, "7", True), (20, "8", False), (19, "7", False), (0, "7", False), (14, "", True)):
        assert is_no_master(pull, pull.reply(code, ext={"nextBeginOffset": after})) is expected
