# ruff: noqa: SIM117 - separate nested blocks for cluster, client and the objects created from it
"""Routes: choice of the name server, lookup and polling, failures of name servers; and the puller's use of routes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client, ConfigError, NoNameServer, PullStatus, RouteNotFound
from saturnmq.client.connection import address_server
from saturnmq.client.connection import core as core_module
from saturnmq.client.connection.core import Core
from saturnmq.client.connection.name_servers import NameServerList
from saturnmq.net.reconnection import RECONNECT_SECONDS_MAX
from saturnmq.protocol.bodies import BrokerData, QueueData, TopicRouteData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


def ask() -> Command:
    return Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})


# choice of the name server


@pytest.mark.spec("REM-27", "DG-01")
async def test_name_server_is_kept_while_its_connection_lives(cluster: Any) -> None:
    async with cluster(name_servers=3) as c, Client(name_servers=c.name_servers) as client:
        servers = client._core.name_servers
        for _ in range(10):
            await servers.call(ask(), 1000)
        assert sorted(len(ns.of(105)) > 0 for ns in c.ns) == [False, False, True]
        first = next(ns for ns in c.ns if ns.address == servers.chosen)
        await first.stop()
        await servers.call(ask(), 1000)
        assert servers.chosen != first.address
        second = next(ns for ns in c.ns if ns.address == servers.chosen)
        await second.stop()
        await servers.call(ask(), 1000)
        assert servers.chosen not in (first.address, second.address), "the last one is enough"


@pytest.mark.spec("REM-27")
async def test_name_server_list_is_shuffled_with_a_random_start(cluster: Any) -> None:
    async with cluster(name_servers=3) as c, Client(name_servers=c.name_servers) as client:
        addresses = [ns.address for ns in c.ns]
        orders, chosen = set(), set()
        for _ in range(60):
            servers = NameServerList(addresses, client._core.remote)
            orders.add(servers.addresses)
            await servers.call(ask(), 1000)
            chosen.add(servers.chosen)
        assert len(orders) > 1 and chosen == set(addresses)
        orders.clear()
        for _ in range(60):
            servers.update([*addresses, "127.0.0.1:1"])
            servers.update(addresses)
            orders.add(servers.addresses)
        assert len(orders) > 1, "a new list is shuffled, too"


@pytest.mark.spec("REM-27")
async def test_first_name_server_follows_a_random_index_below_999(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(name_servers=3) as c, Client(name_servers=c.name_servers) as client:
        for index in (1, 998, 0):
            with monkeypatch.context() as patched:
                patched.setattr(random, "randrange", lambda most, index=index: index if most == 999 else -1)
                servers = NameServerList([ns.address for ns in c.ns], client._core.remote)
            await servers.call(ask(), 1000)
            assert servers.chosen == servers.addresses[(index + 1) % 3]
        first = next(ns for ns in c.ns if ns.address == servers.chosen)
        await first.stop()
        while client._core.remote.is_connected(first.address):
            await asyncio.sleep(0)
        await servers.call(ask(), 1000)
        assert servers.chosen == servers.addresses[2], "the next of the list, not its first"


@pytest.mark.spec("REM-27")
async def test_new_name_server_list_drops_a_removed_choice(cluster: Any) -> None:
    async with cluster(name_servers=2) as c, Client(name_servers=c.name_servers) as client:
        servers = client._core.name_servers
        await servers.call(ask(), 1000)
        removed = servers.chosen
        left = next(ns.address for ns in c.ns if ns.address != removed)
        servers.update([ns.address for ns in c.ns])
        assert servers.chosen == removed, "the same list changes nothing"
        servers.update([])
        assert len(servers.addresses) == 2
        servers.update([left])
        assert servers.chosen is None
        await servers.call(ask(), 1000)
        assert servers.chosen == left


@pytest.mark.spec("UX-06", "REM-27")
async def test_each_name_server_is_tried_once_and_named_in_the_error(cluster: Any) -> None:
    async with cluster(name_servers=2) as c:
        for ns in c.ns:
            await ns.stop()
        async with Client(name_servers=c.name_servers) as client:
            with pytest.raises(NoNameServer) as caught:
                await client.topic_exists("T")
            text = str(caught.value)
            assert text.startswith("cannot reach any NameServer (tried ")
            for ns in c.ns:
                assert text.count(f"{ns.address}: connection refused") == 1
            assert text.endswith("Start one: saturnmq standalone --data ./data, or set SATURNMQ_URL.")


@pytest.mark.spec("REM-27", "DG-01")
async def test_unresponsive_name_server_uses_only_its_share_of_the_timeout(cluster: Any) -> None:
    async with cluster(name_servers=2) as c, Client(name_servers=c.name_servers) as client:
        for quiet in c.ns:
            other = next(ns for ns in c.ns if ns is not quiet)
            quiet.script[105] = lambda _: None
            other.script.clear()
            await client._core.name_servers.call(ask(), 400)
            assert client._core.name_servers.chosen == other.address


@pytest.mark.spec("DG-01", "PR-11")
async def test_cached_routes_work_while_all_name_servers_are_down(cluster: Any) -> None:
    async with cluster(name_servers=2) as c, Client(name_servers=c.name_servers, route_poll_ms=10) as client:
        async with client.producer("g") as out, client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await out.send("T", b"0")
            assert (await inbox.recv(30)).body == b"0"
            for ns in c.ns:
                await ns.stop()
            await client._core.routes.poll()
            for number in range(1, 11):
                await out.send("T", b"%d" % number)
            assert len(c.broker.of(310)) == 11
            assert {(await inbox.recv(30)).body for _ in range(10)} == {b"%d" % number for number in range(1, 11)}


# lookup and poll


@pytest.mark.spec("PR-10", "PR-13")
async def test_unknown_topic_uses_the_default_topics_route_until_created(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.add("TBW102", c.route(read=8, write=8, perm=7))
        queues = await out.queues("NEW")
        assert [(queue.topic, queue.queue_id) for queue in queues] == [("NEW", n) for n in range(4)]
        await out.send("NEW", b"x")
        assert c.broker.of(310)[0].ext["b"] == "NEW" and c.broker.of(310)[0].ext["c"] == "TBW102"
        c.add("NEW", c.route(read=2, write=2))
        await client._core.routes.poll()
        assert len(await out.queues("NEW")) == 2


@pytest.mark.spec("PR-13")
async def test_readers_ignore_a_route_derived_from_the_default_topic(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("TBW102", c.route(read=8, write=8))
        routes, puller = client._core.routes, client.puller()
        derived = await routes.for_send("New")
        assert derived is not None and derived.substitute
        assert await routes.for_read("New") is None
        with pytest.raises(RouteNotFound):
            await puller.queues("New")
        async with client.consumer("g") as inbox:
            await inbox.subscribe("New")
            await client._core.heartbeat()
            with pytest.raises(TimeoutError):
                await inbox.wait_assigned(0.05)
            c.add("New", c.route(read=2, write=2))
            await client._core.routes.poll()
            assert len(await inbox.wait_assigned(30)) == 2
        assert len(await puller.queues("New")) == 2


@pytest.mark.spec("PR-10")
async def test_cached_route_is_used_without_a_new_query(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        for _ in range(5):
            await out.send("T", b"x")
        # The lookup, and possibly the first poll.
        assert len([r for r in c.ns[0].of(105) if r.ext["topic"] == "T"]) <= 2


@pytest.mark.spec("PR-10")
async def test_known_topic_without_write_queues_does_not_fall_back(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.add("TBW102")
        c.add("RO", c.route(perm=4))
        with pytest.raises(RouteNotFound):
            await out.send("RO", b"x")
        assert not c.broker.of(310)


@pytest.mark.spec("PR-10", "API-28")
async def test_concurrent_lookups_share_one_route_query(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, route_poll_ms=60_000) as client:
        async with client.producer("g", batch_bytes=0) as out:
            sends = [asyncio.ensure_future(out.send("T", b"x")) for _ in range(20)]
            await asyncio.sleep(0)
            sends[0].cancel()
            done = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(done[0], asyncio.CancelledError) and len(c.broker.of(310)) == 19
            assert len([r for r in c.ns[0].of(105) if r.ext["topic"] == "T"]) <= 2


@pytest.mark.spec("PR-11")
async def test_route_poll_keeps_the_route_when_a_query_fails(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, route_poll_ms=20) as client:
        async with client.producer("g") as out:
            before = await out.queues("T")
            c.ns[0].script[105] = lambda command: command.reply(1, "confused")
            await c.ns[0].wait_for(105, len(c.ns[0].of(105)) + 4)
            assert await out.queues("T") == before
            c.ns[0].script.clear()
            c.add("T", c.route(write=1))
            while len(await out.queues("T")) != 1:
                await c.ns[0].wait_for(105, len(c.ns[0].of(105)) + 1)


async def test_an_error_in_the_reconnection_to_a_name_server_ends_no_consumer(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        raise RuntimeError("bug")

    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            monkeypatch.setattr(client._core, "_reconnect", broken)
            await c.ns[0].stop()
            await until(lambda: "task failed name='saturnmq name server reconnection'" in caplog.text)
            c.broker.put("T", 0, b"still read")
            assert (await inbox.recv(30)).body == b"still read"


async def test_routes_are_queried_again_when_a_name_server_returns(cluster: Any) -> None:
    """At once, and again when brokers had time to register; the period of route polls is 30 s, here an hour."""
    async with cluster() as c, Client(name_servers=c.name_servers, route_poll_ms=3_600_000) as client:
        routes, clock = client._core.routes, asyncio.get_running_loop().time
        assert len((await client._core.write_route("T")).write_queues) == 4
        port = int(c.ns[0].address.rpartition(":")[2])
        await c.ns[0].stop()
        c.ns[0] = again = type(c.ns[0])()
        await again.start(port)
        try:
            began = clock()
            await again.wait_for(105)
            assert clock() - began <= RECONNECT_SECONDS_MAX + 1
            c.add("T", c.route(write=1))
            await until(lambda: len(routes.cached("T").write_queues) == 1)
            assert clock() - began <= 3 * RECONNECT_SECONDS_MAX + 1
        finally:
            await again.stop()


@pytest.mark.spec("PR-11")
async def test_route_poll_continues_after_a_failed_topic(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, route_poll_ms=3_600_000) as client:
        routes = client._core.routes
        c.add("A")
        for topic in ("A", "T"):
            await routes.refresh(topic)
        c.add("T", c.route(write=1))

        def answer(command: Command) -> Any:
            return command.reply(1, "confused") if command.ext["topic"] == "A" else c.ns[0].builtin(command)

        c.ns[0].script[105] = answer
        await routes.poll()
        left, asked = routes.cached_for_send("A"), routes.cached_for_send("T")
        assert left is not None and len(left.write_queues) == 4
        assert asked is not None and len(asked.write_queues) == 1


@pytest.mark.spec("PR-11")
async def test_unchanged_route_causes_no_update(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        routes = client._core.routes
        changes: list[Any] = []
        routes._on_change = changes.append
        await routes.refresh("T")
        data = c.route()
        data.queue_datas.reverse()
        c.add("T", data)
        await routes.refresh("T")
        assert len(changes) == 1
        c.add("T", c.route(write=1))
        await routes.refresh("T")
        assert len(changes) == 2


@pytest.mark.spec("PR-35", "HB-02", "HB-03")
async def test_brokers_in_no_route_get_no_heartbeats(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client, client.producer("g"):
        core = client._core
        older, newer = c.brokers["b0"], c.brokers["b1"]

        def answer(command: Command) -> Command:
            reply = command.reply()
            reply.version = 232
            return reply

        sending: list[str] = []
        send = core._send_heartbeat

        async def noted(address: str, body: bytes) -> None:
            sending.append(address)
            try:
                await send(address, body)
            finally:
                sending.remove(address)

        call, timeouts = core.remote.call, set[int]()

        async def timed(address: str, command: Command, timeout_ms: int, **more: Any) -> Command:
            if command.code == 34:
                timeouts.add(timeout_ms)
            return await call(address, command, timeout_ms, **more)

        core.remote.call = timed  # type: ignore[method-assign]
        core._send_heartbeat = noted  # type: ignore[method-assign]
        older.script[34] = answer
        await core.routes.refresh("T")
        await core.heartbeat()
        assert core.broker_versions == {older.address: 232, newer.address: 407}
        c.add("T", c.route("b1"))
        await core.routes.refresh("T")
        await core.heartbeat()
        while older.address in sending:  # one that began before the new route
            await asyncio.sleep(0.001)  # poll
        await core.heartbeat()  # forgets the version that its answer brought
        before = len(c.brokers["b0"].of(34))
        core.broker_versions[older.address] = 232  # as an answer does that arrives after the change
        await core.heartbeat()
        assert len(c.brokers["b0"].of(34)) == before
        assert list(core.broker_versions) == [c.brokers["b1"].address]
        assert timeouts == {3000}  # mqClientApiTimeout


@pytest.mark.spec("PR-10")
async def test_route_query_uses_the_client_api_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def noted(self: NameServerList, command: Command, timeout_ms: int) -> Command:
        asked.append(timeout_ms)
        return command.reply(17)

    monkeypatch.setattr(NameServerList, "call", noted)
    async with Client(name_servers="127.0.0.1:1") as client, client.producer("g") as out:
        with pytest.raises(RouteNotFound):
            await out.queues("T")
    assert set(asked) == {3000}


@pytest.mark.spec("PR-10")
async def test_route_request_accepts_standard_json_only(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        assert await client.topic_exists("T") and not await client.topic_exists("nothing")
        assert c.ns[0].of(105)[0].ext["acceptStandardJsonOnly"] == "true"


# puller


@pytest.mark.spec("PR-02")
async def test_pull_answers_are_parsed_into_results(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        puller = client.puller()
        queue = (await puller.queues("T"))[0]
        for n in range(40):
            c.broker.put("T", 0, b"%d" % n, f"TAGS\x01{'ab'[n % 2]}")
        result = await puller.pull(queue, 0, max_count=10, expression="a")
        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (
            PullStatus.FOUND,
            10,
            0,
            40,
        )
        assert result.body == b"".join(c.broker.stored["T", 0][:10])
        assert [message.value for message in result.messages()] == [b"0", b"2", b"4", b"6", b"8"]
        request = c.broker.of(11)[0].ext
        assert (request["sysFlag"], request["subscription"], request["suspendTimeoutMillis"]) == ("4", "a", "0")
        assert request["consumerGroup"].startswith("CID_RMQ_SYS_")
        assert (await puller.pull(queue, 40)).status is PullStatus.NO_NEW_MESSAGE
        moved = await puller.pull(queue, 99)
        assert (moved.status, moved.next_offset, moved.body) == (PullStatus.OFFSET_ILLEGAL, 40, b"")
        c.broker.script[11] = lambda command: command.reply(
            20, ext={"nextBeginOffset": "7", "minOffset": "0", "maxOffset": "9"}
        )
        assert (await puller.pull(queue, 5)).status is PullStatus.NO_MATCHED_MESSAGE
        assert await puller.committed("cg", queue) is None
        await puller.commit("cg", queue, 7)
        assert await puller.committed("cg", queue) == 7


@pytest.mark.spec("PR-02")
async def test_long_poll_returns_when_a_message_arrives(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        puller = client.puller()
        queue = (await puller.queues("T"))[0]
        pulling = asyncio.ensure_future(puller.pull(queue, 0, wait=10))
        await c.broker.wait_for(11)
        c.broker.put("T", 0, b"new")
        assert [message.value for message in (await pulling).messages()] == [b"new"]
        assert (await puller.pull(queue, 1, wait=0.05)).status is PullStatus.NO_NEW_MESSAGE


@pytest.mark.spec("PR-02")
async def test_long_poll_ends_in_time_when_the_broker_answers_late(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        puller = client.puller()
        queue = (await puller.queues("T"))[0]
        c.broker.script[11] = lambda command: None if int(command.ext["sysFlag"]) & 2 else c.broker.on_11(command)
        begin = asyncio.get_running_loop().time()
        result = await puller.pull(queue, 0, wait=0.1)
        assert asyncio.get_running_loop().time() - begin < 2
        assert (result.status, result.max_offset) == (PullStatus.NO_NEW_MESSAGE, 0)
        assert client._core.remote.is_connected(c.broker.address), "a late answer costs no connection"


@pytest.mark.spec("PL-05", "PR-22", "UPG-09")
async def test_puller_falls_back_to_the_slave_and_follows_a_moved_broker(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        master, other = c.brokers["b0"], c.brokers["b1"]
        c.add("T", c.route("b0"))
        puller = client.puller()
        queue = (await puller.queues("T"))[0]
        for broker in (master, other):
            broker.put("T", 0, broker.name.encode())
        assert (await puller.pull(queue, 0)).messages()[0].value == b"b0"
        await master.stop()
        c.add(
            "T",
            TopicRouteData([QueueData("b0", 4, 4, 6)], [BrokerData("c", "b0", {0: master.address, 1: other.address})]),
        )
        assert (await puller.pull(queue, 0)).messages()[0].value == b"b1", "the slave answers"
        c.add("T", TopicRouteData([QueueData("b0", 4, 4, 6)], [BrokerData("c", "b0", {0: other.address})]))
        await client._core.routes.refresh("T")
        assert await puller.max_offset(queue) == 1


@pytest.mark.spec("PL-05")
async def test_puller_retries_busy_brokers_and_raises_final_errors(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        puller = client.puller()
        queue = (await puller.queues("T"))[0]
        c.broker.put("T", 0, b"x")
        c.broker.script[11] = [lambda command: command.reply(2, "[TIMEOUT_CLEAN_QUEUE]broker busy")]
        assert (await puller.pull(queue, 0)).status is PullStatus.FOUND
        c.broker.script[11] = lambda command: command.reply(16, "the broker forbids it")
        with pytest.raises(Exception, match="forbids") as caught:
            await puller.pull(queue, 0)
        assert caught.value.code == 16 and "permission" in str(caught.value)  # type: ignore[attr-defined]


@pytest.mark.spec("UX-07")
async def test_pull_from_an_unreachable_broker_names_its_address(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        queue = (await client.puller().queues("T"))[0]
        await c.broker.stop()
        with pytest.raises(Exception, match=f"topic T is on b0 at {c.broker.address}, not reachable from here"):
            await client.puller().pull(queue, 0)


@pytest.mark.spec("ACL-19")
async def test_requests_are_signed_with_the_credentials_of_the_url(cluster: Any) -> None:
    async with cluster() as c:
        async with Client.from_url(f"rmq://RocketMQ:12345678@{c.name_servers}") as client:
            await client._core.name_servers.call(Command(105, ext={"topic": "TopicTest"}), 1000)
            sent = next(r for r in c.ns[0].of(105) if r.ext["topic"] == "TopicTest")
            assert sent.ext["AccessKey"] == "RocketMQ"
            assert sent.ext["Signature"] == "0jiwhsaYp5ObE5GObbZH1I8/FT4="
            assert "12345678" not in json.dumps(sent.ext)


@pytest.mark.spec("PR-07", "PR-11", "HB-01", "PR-35")
async def test_route_and_heartbeat_timers_equal_those_of_apache(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: dict[str, tuple[int, int]] = {}

    def noted(self: Core, name: str, first_ms: int, period_ms: int, work: Any) -> None:
        timers[name] = (first_ms, period_ms)

    async def addresses(url: str, unit: str | None) -> tuple[str, ...]:
        return ("127.0.0.1:1",)

    monkeypatch.setattr(Core, "_every", noted)
    monkeypatch.setattr(core_module, "fetch_addresses", addresses)
    async with Client(address_server="http://h/x"):
        assert timers["name servers"] == (10_000, 120_000)
        assert (timers["routes"], timers["heartbeat"]) == ((10, 30_000), (1_000, 30_000))
        timers.clear()
    async with Client(name_servers="127.0.0.1:1"):
        assert "name servers" not in timers, "a list that was given is not looked up"


@pytest.mark.spec("NS-23", "PR-11", "PR-35", "HB-01")
async def test_routes_are_polled_and_heartbeats_sent_every_30_s(cluster: Any) -> None:
    async with cluster(2) as c:
        old, kept = c.brokers["b0"], c.brokers["b1"]
        clock = asyncio.get_running_loop().time
        beats: list[tuple[float, str]] = []
        polls: dict[str, list[float]] = {"T": [], "U": []}
        for broker in (old, kept):
            broker.script[34] = lambda command, name=broker.name: (
                beats.append((clock() - began, name)),
                command.reply(),
            )[1]

        def route(command: Command) -> Any:
            polls.setdefault(command.ext["topic"], []).append(clock() - began)
            return c.ns[0].builtin(command)

        c.add("U", c.route("b1"))
        c.ns[0].script[105] = route
        began = clock()
        async with Client(name_servers=c.name_servers) as client, client.producer("g") as out:
            for topic in polls:
                await out.queues(topic)
            await asyncio.sleep(25)  # poll: virtual time
            for times in (beats, polls["T"], polls["U"]):
                times.clear()
            c.add("T", c.route("b1"))
            await asyncio.sleep(70)  # poll: virtual time
        for topic in ("T", "U"):
            assert [round(at) for at in polls[topic]] == [30, 60, 90], topic
        assert {round(at) for at, name in beats if name == "b1"} == {31, 61, 91}
        assert "b0" not in {name for _, name in beats}, "in no route since the poll at 30 s, before the next heartbeat"


@pytest.mark.spec("PR-08", "API-03")
async def test_address_server_is_queried_only_when_configured(cluster: Any) -> None:
    answers: list[bytes] = []
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode())
        body = answers[-1]
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with cluster(name_servers=2) as c:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rocketmq/nsaddr"
            answers.append(f"{c.ns[0].address};{c.ns[1].address}\n".encode())
            assert address_server.TIMEOUT_S == 3.0
            async with Client(address_server=url, unit="u") as client:
                assert asked == ["/rocketmq/nsaddr-u?nofix=1"]
                assert await client.topic_exists("T")
                answers.append(c.ns[1].address.encode())
                await client._core._refresh_name_servers()
                assert client._core.name_servers.addresses == (c.ns[1].address,)
            async with Client(address_server=url, name_servers=c.name_servers):
                assert len(asked) == 2, "an explicit list needs no server"
            for junk in (b"", b"<html>no</html>"):
                answers.append(junk)
                failed = Client(address_server=url)
                with pytest.raises(NoNameServer, match="list"):
                    await failed.start()
                assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("saturnmq ")]
        with pytest.raises(NoNameServer, match="does not answer"):
            await Client(address_server=url).start()
        with pytest.raises(ConfigError, match="http"):
            Client(address_server="file:///etc/passwd")
