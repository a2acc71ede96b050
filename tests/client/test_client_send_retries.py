"""Sends whose broker or NameServer is away for a while: which causes are retried until the deadline, which fail at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from saturnmq import (
    Client,
    ConnectFailed,
    MessageQueue,
    NoNameServer,
    ResponseError,
    RouteNotFound,
    SendFailed,
    TransactionState,
)
from saturnmq.client.producer.retries import MISSING_SECONDS
from saturnmq.errors import BrokerNotExist
from saturnmq.protocol.bodies import BrokerData, ClusterInfo, TopicRouteData
from saturnmq.protocol.frames.command import Command
from saturnmq.testing import BrokerFixture

Run = Callable[..., Any]
QUEUE = MessageQueue("T", "b0", 1)
OUTAGE_SECONDS = 6.0

SENDS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda out: out.send("T", b"x"),
    "key": lambda out: out.send("T", b"x", shard_by="k"),
    "queue": lambda out: out.send("T", b"x", queue=QUEUE),
    "selector": lambda out: out.send("T", b"x", selector=lambda queues, _: queues[0]),
    "oneway": lambda out: out.send_oneway("T", b"x"),
    "oneway queue": lambda out: out.send_oneway("T", b"x", queue=QUEUE),
    "many": lambda out: out.send_many("T", [b"x", b"y"]),
    "transaction": lambda out: transact(out),
}


async def transact(out: Any) -> None:
    async with out.transaction("T", b"x"):
        pass


async def commit(message: Any) -> TransactionState:
    return TransactionState.COMMIT


@asynccontextmanager
async def sending(
    cluster: Any, *, brokers: int = 1, max_in_flight: int = 1024, **settings: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """A scripted cluster and a started producer."""
    async with (
        cluster(brokers) as c,
        Client(name_servers=c.name_servers, **settings) as client,
        client.producer("g", check=commit, max_in_flight=max_in_flight) as out,
    ):
        yield c, out


async def pause(seconds: float) -> None:
    """A wait on the virtual clock."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


async def restart_after(server: Any, seconds: float) -> None:
    await pause(seconds)
    await server.start(port_of(server.address))


def without_master(c: Any) -> TopicRouteData:
    data = c.route()
    return TopicRouteData(data.queue_datas, [BrokerData("c", "b0", {1: c.broker.address})])


@pytest.mark.parametrize("kind", SENDS)
async def test_send_waits_for_a_broker_that_restarts(cluster: Any, kind: str) -> None:
    async with sending(cluster, timeout=15) as (c, out):
        await out.send("T", b"before")
        await c.broker.stop()
        await pause(0.1)  # one-way requests are lost on a connection that is not closed yet
        before = len(c.broker.requests)
        begin = asyncio.get_running_loop().time()
        back = asyncio.ensure_future(restart_after(c.broker, OUTAGE_SECONDS))
        await SENDS[kind](out)
        elapsed = asyncio.get_running_loop().time() - begin
        assert OUTAGE_SECONDS <= elapsed < OUTAGE_SECONDS + 1.5
        await back
        await c.broker.wait_for(320 if kind == "many" else 310, 1 if kind == "many" else 2)
        sent = [command for command in c.broker.requests[before:] if command.code in (310, 320)]
        assert len(sent) == 1 and (sent[0].ext["e"] == "1" or "queue" not in kind)


async def test_request_waits_for_a_broker_that_restarts(cluster: Any) -> None:
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, timeout=15) as client,
        client.producer("g") as out,
    ):
        await out.send("T", b"before")
        await c.broker.stop()
        asking = asyncio.ensure_future(out.request("T", b"question"))
        await restart_after(c.broker, OUTAGE_SECONDS)
        (request,) = (await c.broker.wait_for(310, 2))[1:]
        assert request.body == b"question"
        asking.cancel()


@pytest.mark.parametrize("kind", SENDS)
async def test_send_waits_for_a_name_server_that_restarts(cluster: Any, kind: str) -> None:
    async with sending(cluster, timeout=15) as (c, out):
        await c.ns[0].stop()
        back = asyncio.ensure_future(restart_after(c.ns[0], OUTAGE_SECONDS))
        await SENDS[kind](out)
        await back


@pytest.mark.parametrize("kind", SENDS)
async def test_send_waits_for_a_master(cluster: Any, kind: str) -> None:
    """During a failover the route names followers only: the topic exists."""
    async with sending(cluster, timeout=15) as (c, out):
        c.add("T", without_master(c))
        asyncio.get_running_loop().call_later(OUTAGE_SECONDS, lambda: c.add("T"))
        await SENDS[kind](out)


async def test_send_without_a_master_names_the_broker(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.add("T", without_master(c))
        with pytest.raises(BrokerNotExist, match=r"topic T exists, but broker\[b0\] has no master now"):
            await out.send("T", b"x", timeout=1)


@pytest.mark.parametrize("code", [14, 2, 215])
@pytest.mark.parametrize("kind", ["plain", "queue"])
async def test_busy_brokers_are_asked_until_the_deadline_with_backoff(cluster: Any, code: int, kind: str) -> None:
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, timeout=15) as client,
        client.producer("g") as out,
    ):
        c.broker.script[310] = lambda command: command.reply(code, "later")
        begin = asyncio.get_running_loop().time()
        with pytest.raises(SendFailed) as caught:
            await SENDS[kind](out)
        elapsed = asyncio.get_running_loop().time() - begin
        assert 14 < elapsed < 16
        requests = len(c.broker.of(310))
        assert caught.value.attempts == requests and 15 <= requests <= 45
        failures = caught.value.failures
        assert len(failures) == requests and {failure.broker for failure in failures} == {"b0"}
        assert {failure.address for failure in failures} == {c.broker.address}
        times = [failure.after_ms for failure in failures]
        assert times == sorted(times) and times[0] < 1000 and 14_000 < times[-1] <= 16_000
        assert f"{requests} attempts" in str(caught.value) and c.broker.address in str(caught.value)
        assert str(caught.value).count("later") <= 2, "equal causes are listed once"


async def test_attempts_of_one_makes_no_retry(cluster: Any) -> None:
    async with sending(cluster, timeout=15, attempts=1) as (c, out):
        await out.queues("T")
        c.broker.script[310] = lambda command: command.reply(14, "later")
        with pytest.raises(SendFailed) as caught:
            await out.send("T", b"x")
        assert caught.value.attempts == len(c.broker.of(310)) == 1
        await c.broker.stop()
        await pause(0.1)  # until the connection is closed here too
        with pytest.raises(ConnectFailed):
            await out.send_oneway("T", b"x")
        await c.ns[0].stop()
        with pytest.raises(NoNameServer):
            await out.send("U", b"x")
        assert len([call for call in c.ns[0].of(105) if call.ext["topic"] == "U"]) == 0


@pytest.mark.parametrize("kind", ["plain", "queue", "many"])
async def test_denied_send_asks_every_broker_once(cluster: Any, kind: str) -> None:
    async with (
        cluster(2) as c,
        Client(name_servers=c.name_servers, timeout=15) as client,
        client.producer("g") as out,
    ):
        for broker in c.brokers.values():
            broker.script[310] = broker.script[320] = lambda command: command.reply(16, "denied")
        begin = asyncio.get_running_loop().time()
        with pytest.raises((SendFailed, ResponseError), match="denied"):
            await SENDS[kind](out)
        assert asyncio.get_running_loop().time() - begin < 1
        asked = [len(broker.of(310)) + len(broker.of(320)) for broker in c.brokers.values()]
        assert sorted(asked) == ([0, 1] if kind == "queue" else [1, 1])


@pytest.mark.parametrize("kind", SENDS)
async def test_unknown_topic_fails_before_the_deadline(cluster: Any, kind: str) -> None:
    """The NameServer is asked again for a while, since the brokers may be about to register."""
    async with sending(cluster, timeout=30) as (c, out):
        data = c.ns[0].routes.pop("T")
        begin = asyncio.get_running_loop().time()
        with pytest.raises((RouteNotFound, SendFailed, BrokerNotExist)):
            await SENDS[kind](out)
        elapsed = asyncio.get_running_loop().time() - begin
        if kind != "queue" and kind != "oneway queue":
            assert elapsed < MISSING_SECONDS + 1.5
        asyncio.get_running_loop().call_later(MISSING_SECONDS / 2, lambda: c.add("T", data))
        await SENDS[kind](out)


def cluster_info(c: Any, **masters: bool) -> Callable[[Command], Command]:
    """An answer to GET_BROKER_CLUSTER_INFO: brokers by name, and whether their master is registered."""
    table = {name: BrokerData("c", name, {0 if there else 1: c.broker.address}) for name, there in masters.items()}
    return lambda command: command.reply(body=ClusterInfo(table, {"c": list(table)}).encode())


ABSENT: dict[str, dict[str, bool]] = {"empty": {}, "slave only": {"b0": False}, "one of two": {"b0": True, "b1": False}}


@pytest.mark.parametrize("masters", ABSENT.values(), ids=ABSENT)
@pytest.mark.parametrize("kind", ["plain", "key", "selector", "oneway", "many", "transaction"])
async def test_send_waits_for_the_route_while_brokers_are_not_registered(
    cluster: Any, kind: str, masters: dict[str, bool]
) -> None:
    async with sending(cluster, timeout=30) as (c, out):
        data = c.ns[0].routes.pop("T")
        c.ns[0].script[106] = cluster_info(c, **masters)
        asyncio.get_running_loop().call_later(OUTAGE_SECONDS, lambda: c.add("T", data))
        await SENDS[kind](out)


@pytest.mark.parametrize("masters", [*ABSENT.values(), {"b0": True}], ids=[*ABSENT, "complete"])
async def test_topic_is_to_be_created_only_if_all_brokers_are_registered(
    cluster: Any, masters: dict[str, bool]
) -> None:
    async with sending(cluster, timeout=5) as (c, out):
        c.ns[0].routes.pop("T")
        c.ns[0].script[106] = cluster_info(c, **masters)
        begin = asyncio.get_running_loop().time()
        with pytest.raises(RouteNotFound) as caught:
            await out.send("T", b"x")
        elapsed, complete = asyncio.get_running_loop().time() - begin, masters == {"b0": True}
        assert ("Create it" in str(caught.value)) == complete, caught.value
        assert (elapsed < MISSING_SECONDS + 1.5) == complete
        if not complete:
            absent = next((name for name, there in masters.items() if not there), "none registered")
            assert absent in str(caught.value) and "saturnmq admin clusterList" in str(caught.value)


async def test_topic_may_be_on_a_broker_of_another_cached_route(cluster: Any) -> None:
    """A NameServer that was restarted does not list brokers that have not registered yet."""
    async with sending(cluster, brokers=2, timeout=30) as (c, out):
        await out.send("T", b"x")
        c.ns[0].script[106] = cluster_info(c, b0=True)
        asyncio.get_running_loop().call_later(OUTAGE_SECONDS, lambda: c.add("U", c.route("b1")))
        await out.send("U", b"x")


async def test_stale_route_is_retried_while_the_topic_may_return(cluster: Any) -> None:
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, timeout=30) as client,
        client.producer("g") as out,
    ):
        c.broker.script[310] = lambda command: command.reply(17, "no topic")
        begin = asyncio.get_running_loop().time()
        with pytest.raises(SendFailed, match="no topic") as caught:
            await out.send("T", b"x")
        assert caught.value.code == 17 and caught.value.attempts >= 3
        assert MISSING_SECONDS <= asyncio.get_running_loop().time() - begin < MISSING_SECONDS + 1.5
        asyncio.get_running_loop().call_later(MISSING_SECONDS / 2, lambda: c.broker.script.pop(310))
        await out.send("T", b"x")


async def test_waiting_sends_are_spread_when_a_broker_returns(cluster: Any) -> None:
    async with (
        cluster() as c,
        Client(name_servers=c.name_servers, timeout=30) as client,
        client.producer("g", batch_bytes=0) as out,
    ):
        await out.send("T", b"before")
        await c.broker.stop()
        sends = [asyncio.ensure_future(out.send("T", b"%d" % n)) for n in range(100)]
        times: list[float] = []

        def store(command: Command) -> Command:
            times.append(asyncio.get_running_loop().time())
            return c.broker.on_310(command)  # type: ignore[no-any-return]

        c.broker.script[310] = store
        await restart_after(c.broker, 10)
        await asyncio.gather(*sends)
        assert len(times) == 100
        assert max(sum(1 for at in times if begin <= at < begin + 0.1) for begin in times) < 50


@pytest.mark.parametrize("away", ["broker", "name server"])
async def test_waiting_send_is_cancelled_at_once(cluster: Any, away: str) -> None:
    async with sending(cluster, timeout=3600, max_in_flight=1) as (c, out):
        if away == "broker":
            await out.send("T", b"before")
            await c.broker.stop()
        else:
            await c.ns[0].stop()
        for seconds in (0.0, 0.005, 0.5, 20.0):
            task = asyncio.ensure_future(out.send("T", b"x"))
            await pause(seconds)
            task.cancel()
            begin = asyncio.get_running_loop().time()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.get_running_loop().time() - begin < 0.1


async def test_waiting_send_ends_when_the_client_stops(cluster: Any) -> None:
    async with cluster() as c:
        client = Client(name_servers=c.name_servers, timeout=3600)
        await client.start()
        out = client.producer("g")
        await out.start()
        await out.send("T", b"before")
        await c.broker.stop()
        task = asyncio.ensure_future(out.send("T", b"x"))
        await pause(1)
        await client.stop()
        begin = asyncio.get_running_loop().time()
        with pytest.raises(SendFailed):
            await task
        assert asyncio.get_running_loop().time() - begin < 2


def test_no_send_fails_while_the_only_broker_is_killed_and_restarted(
    saturn_broker: BrokerFixture, saturn_topic: str
) -> None:
    async def work() -> None:
        async with Client.from_url(saturn_broker.url, timeout=20) as client, client.producer("p") as out:
            await out.send(saturn_topic, b"before")
            await asyncio.to_thread(saturn_broker.kill)
            sends = [asyncio.ensure_future(out.send(saturn_topic, b"%d" % number)) for number in range(20)]
            await asyncio.wait(sends, timeout=1)
            assert not any(send.done() for send in sends)
            await asyncio.to_thread(saturn_broker.restart)
            receipts = await asyncio.gather(*sends)
            assert len({receipt.message_id for receipt in receipts}) == 20

    asyncio.run(asyncio.wait_for(work(), 60))
