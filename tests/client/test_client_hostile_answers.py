"""Answers of hostile or faulty NameServers and brokers: bounded memory, named errors, and periodic tasks that go on."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.client.codecs import BytesCodec
from saturnmq.client.connection.remote import SHORT_BODY_BYTES_MAX
from saturnmq.client.connection.routes import QUEUES_MAX, build_route
from saturnmq.client.connection.transaction_checks import CHECK_BYTES_MAX, Checker, Checks
from saturnmq.client.receipt import TransactionState
from saturnmq.net import Connection
from saturnmq.protocol.bodies import BrokerData, QueueData, TopicRouteData
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import BodyError, HeaderError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import CheckTransactionState
from saturnmq.protocol.message import Message, encode_record
from saturnmq.tasks import one_round
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


def route_of(*queues: int, order: str | None = None) -> TopicRouteData:
    """A route with this number of read and write queues on one broker each."""
    return TopicRouteData(
        queue_datas=[QueueData(f"b{n}", count, count, 6) for n, count in enumerate(queues)],
        broker_datas=[BrokerData("c", f"b{n}", {0: "127.0.0.1:1"}) for n in range(len(queues))],
        order_topic_conf=order,
    )


# routes


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (route_of(1_000_000), "broker b0 has 1000000 read queues, allowed are 0..65536"),
        (route_of(4, 2_000_000_000), "broker b1 has 2000000000 read queues"),
        (route_of(-1), "broker b0 has -1 read queues"),
        (route_of(*[60_000] * 20), "1200000 queues on 20 brokers"),
        (TopicRouteData([QueueData(f"b{n}", 60_000, 1, 6) for n in range(2)]), "120000 queues on 2 brokers"),
        (TopicRouteData([QueueData(f"b{n}", 1, 60_000, 6) for n in range(2)]), "120000 queues on 2 brokers"),
        (route_of(4, order="b0:" + "9" * 5000), f"broker b0 has {'9' * 20} queues"),
        (route_of(4, order="b0:65537"), "broker b0 has 65537 queues"),
        (route_of(4, order=";".join(["b0:65536"] * 100)), "may have 65536 in all"),
        (route_of(*[1] * 4097), "4097 broker addresses, at most 4096"),
    ],
)
def test_route_with_too_many_queues_is_refused_before_any_is_created(data: TopicRouteData, named: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BodyError) as caught:
            build_route("orders", data)
        grown = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "topic orders" in str(caught.value) and named in str(caught.value)
    assert len(str(caught.value)) < 500
    assert grown < 20_000_000


def test_route_with_the_most_queues_is_accepted() -> None:
    route = build_route("orders", route_of(QUEUES_MAX))
    assert len(route.read_queues) == len(route.write_queues) == QUEUES_MAX
    assert (
        build_route("orders", route_of(2, order="b0:no;b0:2;:5")).write_queues
        == build_route("orders", route_of(2)).write_queues
    )


async def test_refused_route_keeps_the_old_one_and_other_topics_work(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as c:
        c.add("honest")
        async with Client(name_servers=c.name_servers, route_poll_ms=20) as client, client.producer("g") as out:
            await out.send("T", b"1")
            await out.send("honest", b"1")
            asked = len(c.ns[0].of(RequestCode.GET_ROUTEINFO_BY_TOPIC))
            c.add("T", c.route(write=2_000_000_000))
            c.add("forged", c.route(read=1_000_000))
            with pytest.raises(BodyError, match="topic forged: broker b0 has 1000000 read queues"):
                await out.send("forged", b"x")
            await c.ns[0].wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked + 20)
            for _ in range(20):
                await out.send("T", b"2")
                await out.send("honest", b"2")
            client._core.check_running()
        assert "route not refreshed topic=T" in caplog.text


# other answers


async def test_answer_without_messages_is_bounded(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        core = client._core
        c.broker.script[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda command: command.reply(
            body=b" " * (SHORT_BODY_BYTES_MAX + 1)
        )
        with pytest.raises(BodyError, match="request 38 has 4194305 bytes, at most 4194304"):
            await core.remote.call(c.broker.address, Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP), 3000)
        c.broker.script[RequestCode.PULL_MESSAGE] = lambda command: command.reply(
            body=b" " * (SHORT_BODY_BYTES_MAX + 1)
        )
        answer = await core.remote.call(c.broker.address, Command(RequestCode.PULL_MESSAGE), 3000)
        assert len(answer.body or b"") > SHORT_BODY_BYTES_MAX


@pytest.mark.parametrize(
    "hostile",
    [
        lambda command: command.reply(body=b"\xda\xa3" * 100, ext={"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}),
        lambda command: command.reply(ext={"nextBeginOffset": "9" * 5000, "minOffset": "0", "maxOffset": "1"}),
        lambda command: command.reply(ext={"nextBeginOffset": "x", "minOffset": "0", "maxOffset": "1"}),
        lambda command: command.reply(
            body=encode_record(Message("T", b"x", b"", queue_offset=0)) * 5000,
            ext={"nextBeginOffset": "5000", "minOffset": "0", "maxOffset": "5000"},
        ),
    ],
    ids=["damaged records", "5000 digits", "no number", "more than asked for"],
)  # fmt: skip
async def test_consumer_goes_on_after_a_pull_answer_that_does_not_parse(cluster: Any, hostile: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", c.route(read=1, write=1))
        c.broker.put("T", 0, b"honest")
        c.broker.script[RequestCode.PULL_MESSAGE] = [hostile]
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            message = await inbox.recv(30)
            assert message.body == b"honest"


@pytest.mark.parametrize("offset", ["9" * 5000, "none", "-9223372036854775809"])
async def test_offset_answer_that_is_no_number_only_delays_the_queue(cluster: Any, offset: str) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, rebalance_ms=50) as client:
        c.add("T", c.route(read=1, write=1))
        c.broker.put("T", 0, b"honest")
        answers = [lambda command: command.reply(ext={"offset": offset})] * 2
        c.broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = answers
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            assert (await inbox.recv(30)).body == b"honest"
            assert not answers, "the refused answers were used"


@pytest.mark.parametrize("follows", [-1, 0, 3])
async def test_pull_answer_with_messages_must_advance(cluster: Any, follows: int) -> None:
    """Readers of a range, such as `printMsg`, would otherwise print the same messages without end."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", c.route(read=1, write=1))
        c.broker.put("T", 0, b"honest")
        record = encode_record(Message("T", b"x", b"", queue_offset=3))
        ext = {"nextBeginOffset": str(follows), "minOffset": "0", "maxOffset": "9"}
        c.broker.script[RequestCode.PULL_MESSAGE] = [lambda command: command.reply(body=record, ext=ext)]
        puller = client.puller()
        (queue,) = await puller.queues("T")
        with pytest.raises(HeaderError, match=f"nextBeginOffset={follows} does not follow offset 3"):
            await puller.pull(queue, 3)


def test_pending_transaction_checks_are_bounded_in_bytes(caplog: pytest.LogCaptureFixture) -> None:
    spawned: list[Any] = []
    checks = Checks(None, lambda name, work: spawned.append(work), lambda connection, command: None)
    checks.add("p", Checker(lambda message: TransactionState.COMMIT, BytesCodec()))
    body = encode_record(Message("T", b"x" * 8_000_000, b"PGROUP\x01p", queue_offset=0))
    header = CheckTransactionState(tran_state_table_offset=0, commit_log_offset=0)
    request = Command(RequestCode.CHECK_TRANSACTION_STATE, ext=header.to_ext(), body=body)

    class Peer:
        remote_address = "127.0.0.1:1"

    peer: Any = Peer()
    connection: Connection = peer
    for _ in range(50):
        checks.handle(connection, request)
    assert len(spawned) == CHECK_BYTES_MAX // 8_000_000
    for work in spawned:
        asyncio.run(work)
    spawned.clear()
    checks.handle(connection, request)
    assert len(spawned) == 1, "answered checks make space again"
    spawned[0].close()


# periodic tasks


def test_one_round_survives_every_exception(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        for error in (SaturnError("known"), ZeroDivisionError("bug"), RecursionError(), MemoryError(), ValueError("x")):

            async def fail(error: BaseException = error) -> None:
                raise error

            assert await one_round("routes", fail) is False
        assert await one_round("routes", lambda: asyncio.sleep(0)) is True

        async def cancelled() -> None:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await one_round("routes", cancelled)

    asyncio.run(work())
    assert [record.levelno for record in caplog.records] == [logging.WARNING] + [logging.ERROR] * 4
    assert all("periodic task failed task='routes'" in record.getMessage() for record in caplog.records)


@pytest.mark.spec("UPG-06")
async def test_every_timer_of_the_client_survives_any_exception(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as c:
        client = Client(
            name_servers=c.name_servers, route_poll_ms=10, heartbeat_ms=10, persist_offsets_ms=10, rebalance_ms=10
        )
        rounds: dict[str, int] = {}

        def broken(name: str) -> Any:
            async def fail(*_: Any) -> None:
                rounds[name] = rounds.get(name, 0) + 1
                raise ZeroDivisionError(name)

            return fail

        monkeypatch.setattr("saturnmq.client.connection.core.FIRST_HEARTBEAT_MS", 10)
        core = client._core
        for name in ("heartbeat", "_persist_offsets", "_rebalance"):
            monkeypatch.setattr(core, name, broken(name))
        async with client, client.producer("g") as out:
            monkeypatch.setattr(core.routes, "refresh", broken("refresh"))
            core.heartbeat_soon()
            await until(lambda: len(rounds) == 4 and min(rounds.values()) >= 5)
            client._core.check_running()
            monkeypatch.undo()
            await out.send("T", b"x")


async def test_loops_of_a_consumer_survive_any_exception(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.client.consumer.member.FIRST_RENEW_S", 0.01)
    monkeypatch.setattr("saturnmq.client.consumer.member.RENEW_S", 0.01)
    monkeypatch.setattr("saturnmq.client.consumer.member.RELOCK_S", 0.01)
    async with cluster() as c, Client(name_servers=c.name_servers, rebalance_ms=10) as client:
        c.broker.script[RequestCode.LOCK_BATCH_MQ] = lambda command: command.reply(ResponseCode.SYSTEM_ERROR)
        inbox = client.consumer("g", start="first", ordered=True, ack_timeout=0.01)
        rounds: dict[str, int] = {}

        def broken(name: str) -> Any:
            async def fail(*_: Any) -> None:
                rounds[name] = rounds.get(name, 0) + 1
                raise ZeroDivisionError(name)

            return fail

        for name in ("_rebalance", "_renew_locks", "_expire"):
            monkeypatch.setattr(inbox, name, broken(name))
        async with inbox:
            await inbox.subscribe("T")
            await until(lambda: len(rounds) == 3 and min(rounds.values()) >= 3)
            inbox._check()
            assert not any(task.done() for task in inbox._tasks)


async def test_refresh_of_suspected_routes_survives_any_exception(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.send("T", b"x")
        core = client._core
        rounds: list[str] = []

        async def fail(topic: str) -> None:
            rounds.append(topic)
            raise ZeroDivisionError(topic)

        with monkeypatch.context() as patched:
            patched.setattr(core.routes, "refresh", fail)
            core._suspect(c.broker.address, False)
            await until(lambda: rounds)
        await out.send("T", b"the client itself goes on")


@pytest.mark.parametrize("address", ["nowhere", "h:", "h:x", "h:" + "9" * 5000, "[::1]"])
async def test_broker_address_without_port_is_named_in_the_error(cluster: Any, address: str) -> None:
    async with cluster() as c:
        c.add("forged", TopicRouteData([QueueData("f", 4, 4, 6)], [BrokerData("c", "f", {0: address})]))
        async with (
            Client(name_servers=c.name_servers, vip_channel=True, attempts=1) as client,
            client.producer("g") as out,
        ):
            with pytest.raises(SaturnError, match="must be host:port"):
                await out.send("forged", b"x")
            await client._core.heartbeat()


async def test_trace_goes_on_after_a_record_that_cannot_be_encoded(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as c:
        c.add("RMQ_SYS_TRACE_TOPIC", c.route())
        async with Client(name_servers=c.name_servers, trace=True) as client, client.producer("g") as out:
            await out.send("T", b"x")
            tracer = out._tracer
            assert tracer is not None
            _, record = tracer._records[0]
            tracer._records.clear()
            tracer.stats.made -= 1
            tracer.offer(replace(record, keys="\udc80"))
            tracer.offer(record)
            await until(lambda: tracer.stats.sent == 1 and tracer.stats.failed == 1)
    assert "trace record not encoded" in caplog.text
