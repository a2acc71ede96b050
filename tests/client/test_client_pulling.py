"""Pulling: start offsets, choice of broker, delays and limits, request flags, send-back of failed messages."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from saturnmq import Ack, Client
from saturnmq.client.consumer import assigned_queue, offsets, queue_locks, send_back
from saturnmq.client.consumer.assigned_queue import FLOW_CONTROL_DELAY_S, QueueGeneration
from saturnmq.client.consumer.member import ConsumerMember
from saturnmq.client.consumer.ordered_queue import OrderedQueue
from saturnmq.client.consumer.settings import ConsumerSettings
from saturnmq.client.puller.puller import PullStatus, pull_result
from saturnmq.errors import BrokerNotExist
from saturnmq.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_properties
from waiting import until

Run = Callable[[Callable[[], Any]], Any]
QUEUE = MessageQueue("T", "b0", 0)


def one_queue(c: Any, topic: str = "T") -> None:
    c.add(topic, c.route("b0", read=1, write=1))


def with_slave(c: Any, number: int = 1) -> None:
    """Make b1 a slave of b0 with this broker id."""
    addresses = {0: c.brokers["b0"].address, number: c.brokers["b1"].address}
    c.add("T", TopicRouteData([QueueData("b0", 1, 1, 6)], [BrokerData("c", "b0", addresses)]))


def suggesting(broker: Any, broker_id: int) -> Callable[[Command], Any]:
    """Answer pulls as usual, suggesting this broker id for the next one."""

    async def answer(command: Command) -> Command:
        reply = broker.on_11(command)
        reply = await reply if inspect.isawaitable(reply) else reply
        reply.ext["suggestWhichBrokerId"] = str(broker_id)
        return reply  # type: ignore[no-any-return]

    return answer


def pulls(broker: Any, topic: str = "T") -> list[dict[str, str]]:
    return [request.ext for request in broker.of(11) if request.ext["topic"] == topic]


@pytest.mark.spec("RB-05")
@pytest.mark.parametrize(
    ("start", "stored", "expected"),
    [
        ("first", None, 0),
        ("last", None, 0),
        (datetime(2024, 1, 1, tzinfo=UTC), None, 3),
        ("last", 2, 2),
    ],
)
async def test_retry_topic_start_offset_loses_no_message_of_the_group(
    cluster: Any, start: Any, stored: int | None, expected: int
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        for topic in ("T", "%RETRY%g"):
            one_queue(c, topic)
            for n in range(3):
                c.broker.put(topic, 0, b"%d" % n)
        if stored is not None:
            c.broker.offsets["g", "%RETRY%g", 0] = stored
        async with client.consumer("g", start=start) as inbox:
            await inbox.subscribe("T")
            await until(lambda: pulls(c.broker, "%RETRY%g"))
            assert pulls(c.broker, "%RETRY%g")[0]["queueOffset"] == str(expected)
            assert not [request for request in c.broker.of(29) if request.ext["topic"] == "%RETRY%g"]


@pytest.mark.spec("PL-03", "PL-05", "RW-04", "RW-06", "MS-07")
async def test_pull_from_a_slave_commits_no_offset(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        master, slave = c.brokers["b0"], c.brokers["b1"]
        with_slave(c)
        for broker in (master, slave):
            broker.put("T", 0, b"0")
            broker.script[11] = suggesting(broker, 1)
        slave.put("T", 0, b"1")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for _ in range(2):
                await (await inbox.recv(30)).ack()
            slave.put("T", 0, b"2")
            await inbox.recv(30)
            await until(lambda: len(pulls(slave)) == 3)
            assert [pull["queueOffset"] for pull in pulls(master)] == ["0"]
            assert [pull["queueOffset"] for pull in pulls(slave)] == ["1", "2", "3"]
            assert pulls(slave)[-1]["commitOffset"] == "2"
            assert [int(pull["sysFlag"]) & 1 for pull in pulls(slave)] == [0, 0, 0]


@pytest.mark.spec("PL-04")
async def test_pull_without_answer_is_repeated_after_30_s(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", c.route(read=1, write=1))
        times: list[float] = []
        repeated = asyncio.Event()

        def silent(command: Command) -> None:
            if command.ext["topic"] == "T":
                times.append(asyncio.get_running_loop().time())
                if len(times) == 2:
                    repeated.set()

        c.broker.script[11] = silent
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await repeated.wait()
        assert 30 <= times[1] - times[0] < 30 + 2 * assigned_queue.EXCEPTION_DELAY_S


@pytest.mark.spec("STR-12")
async def test_puller_commits_to_the_master_while_a_slave_is_suggested(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        master, slave = c.brokers["b0"], c.brokers["b1"]
        with_slave(c)
        for broker in (master, slave):
            broker.put("T", 0, b"0")
            broker.script[11] = suggesting(broker, 1)
        puller = client.puller()
        (queue,) = await puller.queues("T")
        for _ in range(2):
            await puller.pull(queue, 0)
        assert len(pulls(slave)) == 1
        await puller.commit("g", queue, 1)
        assert master.offsets == {("g", "T", 0): 1} and not slave.of(15)


@pytest.mark.spec("MS-07")
async def test_pull_of_a_broadcast_consumer_commits_no_offset(cluster: Any, tmp_path: Path) -> None:
    settings: Any = {"instance": "one", "offsets_dir": str(tmp_path)}
    async with cluster() as c, Client(name_servers=c.name_servers, **settings) as client:
        one_queue(c)
        c.broker.put("T", 0, b"0")
        async with client.consumer("g", start="first", model="broadcast") as inbox:
            await inbox.subscribe("T")
            await (await inbox.recv(30)).ack()
            assert inbox.committed() == {QUEUE: 1}
            c.broker.put("T", 0, b"1")
            await inbox.recv(30)
            await until(lambda: len(pulls(c.broker)) == 3)
            assert {(int(pull["sysFlag"]) & 1, pull["commitOffset"]) for pull in pulls(c.broker)} == {(0, "0")}


@pytest.mark.spec("PL-05", "RW-05", "UPG-09", "DL-C09")
async def test_missing_slave_is_replaced_by_the_next_id_then_by_any(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        with_slave(c, 2)
        await client.puller().queues("T")
        master, slave = ((c.brokers[name].address, name == "b1") for name in ("b0", "b1"))
        for wanted, found in ((0, master), (1, slave), (2, slave), (3, master)):
            assert await client._core.read_address("T", "b0", wanted) == found


@pytest.mark.spec("PL-05")
async def test_broker_without_route_triggers_one_more_lookup(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers, route_poll_ms=100_000) as client:
        c.add("T", c.route("b0"))
        await client.puller().queues("T")
        asked = len(c.ns[0].of(105))
        with pytest.raises(BrokerNotExist, match="b1"):
            await client._core.read_address("T", "b1")
        assert len(c.ns[0].of(105)) == asked + 1
        c.add("T", c.route("b0", "b1"))
        assert await client._core.read_address("T", "b1") == (c.brokers["b1"].address, False)


@pytest.mark.spec("PL-05", "PL-09")
async def test_slave_error_sends_the_next_pull_to_the_master(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.client.consumer.assigned_queue.EXCEPTION_DELAY_S", 0.01)
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        master, slave = c.brokers["b0"], c.brokers["b1"]
        with_slave(c)
        for n in range(2):
            master.put("T", 0, b"%d" % n)
        master.script[11] = [suggesting(master, 1)]
        slave.script[11] = lambda command: command.reply(1, "the disk of this one is broken")
        async with client.consumer("g", start="first", pull_batch=1) as inbox:
            await inbox.subscribe("T")
            assert [(await inbox.recv(30)).value for _ in range(2)] == [b"0", b"1"]
            assert len(pulls(slave)) == 1


@pytest.mark.spec("PL-08")
async def test_illegal_offset_answer_resets_stores_and_discards_pulled(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, persist_offsets_ms=20) as client:
        one_queue(c)
        for n in range(4):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            for _ in range(3):
                await (await inbox.recv(30)).ack()
            held = await inbox.recv(30)
            await until(lambda: c.broker.offsets.get(("g", "T", 0)) == 3)
            moved = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1", "suggestWhichBrokerId": "0"}

            def answer(command: Command) -> Any:
                return command.reply(21, ext=moved) if int(command.ext["queueOffset"]) > 1 else c.broker.on_11(command)

            c.broker.script[11] = answer
            c.broker.put("T", 0, b"4")  # answers the waiting pull
            assert (await inbox.recv(30)).offset == 4
            await until(lambda: c.broker.offsets["g", "T", 0] == 1)
            await held.ack()
            await until(lambda: QUEUE in inbox.committed())  # it is released and assigned again
            assert inbox.committed()[QUEUE] == 1, "what was pulled before belongs to no queue any more"
            assert (await inbox.recv(30)).offset == 1


@pytest.mark.spec("CA-13")
async def test_puller_sends_its_filter_and_long_polls_only_when_asked(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.broker.put("T", 0, b"x")
        puller = client.puller()
        await puller.pull(QUEUE, 0, expression="a || b")
        for wait in (7.0, 100.0):
            await puller.pull(QUEUE, 0, wait=wait, max_count=5)
        plain, held, longest = pulls(c.broker)
        assert (plain["sysFlag"], plain["suspendTimeoutMillis"], plain["maxMsgNums"]) == ("4", "0", "32")
        assert (plain["subscription"], plain["expressionType"], plain["subVersion"]) == ("a || b", "TAG", "0")
        assert (held["sysFlag"], held["suspendTimeoutMillis"], held["maxMsgNums"]) == ("6", "7000", "5")
        assert (held["subscription"], held["commitOffset"]) == ("*", "0")
        assert longest["suspendTimeoutMillis"] == "15000", "not longer than a client waits for an answer"


@pytest.mark.spec("CA-09")
async def test_consumer_stop_unregisters_from_every_broker(cluster: Any) -> None:
    async with cluster(3) as c, Client(name_servers=c.name_servers) as client, client.producer("p") as out:
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await inbox.wait_assigned()
        for broker in c.brokers.values():
            (left,) = broker.of(35)
            assert left.ext == {"clientID": client.client_id, "consumerGroup": "g"}
        await out.send("T", b"the client goes on")


@pytest.mark.spec("PL-10")
async def test_records_returned_twice_are_delivered_once(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n)

        def all_of_it(command: Command) -> Any:
            command.ext["queueOffset"] = "0"
            return c.broker.on_11(command)

        c.broker.script[11] = [c.broker.on_11, all_of_it]
        async with client.consumer("g", start="first", pull_batch=2) as inbox:
            await inbox.subscribe("T")
            assert (await inbox.recv(30)).value == b"0"
            await until(lambda: len(pulls(c.broker)) == 4)
            assert [(await inbox.recv(30)).value for _ in range(2)] == [b"1", b"2"]
            c.broker.put("T", 0, b"3")
            assert (await inbox.recv(30)).value == b"3"


@pytest.mark.spec("PL-06")
@pytest.mark.parametrize(("first", "next_offset"), [(2, 3), (1, 3), (2, 1), (None, 1)])
async def test_answer_behind_the_requested_offset_is_logged_as_a_bug(
    cluster: Any, caplog: pytest.LogCaptureFixture, first: int | None, next_offset: int
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n)

        def answer(command: Command) -> Any:
            body = c.broker.stored["T", 0][first] if first is not None else b""
            return command.reply(0, "FOUND", c.broker._pulled(next_offset, 3), body)

        c.broker.script[11] = [c.broker.on_11, answer]
        async with client.consumer("g", start="first", pull_batch=2) as inbox:
            await inbox.subscribe("T")
            with caplog.at_level("WARNING"):
                await until(lambda: len(pulls(c.broker)) >= 3)
    logged = [record.getMessage() for record in caplog.records if "[BUG]" in record.getMessage()]
    is_behind = next_offset < 2 or (first is not None and first < 2)
    assert len(logged) == is_behind, logged
    assert not logged or (f"next={next_offset} requested=2" in logged[0] and "group=g" in logged[0])


@pytest.mark.spec("RTY-01", "API-21")
async def test_send_back_copy_keeps_the_delay_and_drops_transaction_flags(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        one_queue(c, "%RETRY%g")
        c.broker.put("T", 0, b"x", flag=5, sys_flag=8)
        c.broker.script[36] = lambda command: command.reply(1, "no")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await (await inbox.recv(30)).retry(timedelta(minutes=9))
            (copy,) = c.broker.of(310)
            assert (decode_properties(copy.ext["i"])["DELAY"], copy.ext["h"], copy.ext["f"]) == ("13", "5", "0")


@pytest.mark.spec("PL-09")
@pytest.mark.parametrize(("code", "constant", "pause_s"), [
    (215, "FLOW_CONTROL_DELAY_S", FLOW_CONTROL_DELAY_S), (2, "EXCEPTION_DELAY_S", 0.05),
])  # fmt: skip
async def test_pull_delay_depends_on_the_error_code(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, code: int, constant: str, pause_s: float
) -> None:
    for name in ("FLOW_CONTROL_DELAY_S", "EXCEPTION_DELAY_S"):
        monkeypatch.setattr(f"saturnmq.client.consumer.assigned_queue.{name}", pause_s if name == constant else 3600.0)
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.put("T", 0, b"x")
        times: list[float] = []

        def answer(command: Command) -> Any:
            times.append(asyncio.get_running_loop().time())
            return command.reply(code, "not now") if len(times) == 1 else c.broker.on_11(command)

        c.broker.script[11] = answer
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            assert (await inbox.recv(30)).value == b"x"
            assert pause_s * 0.95 <= times[1] - times[0] < pause_s + 0.03
            assert FLOW_CONTROL_DELAY_S == 0.02


@pytest.mark.spec("PL-14")
def test_ack_timeout_defaults_to_15_minutes() -> None:
    assert ConsumerSettings().ack_timeout == 15 * 60


@pytest.mark.spec("PL-14")
def test_at_most_16_expired_messages_per_queue_are_sent_back_at_once() -> None:
    generation = QueueGeneration(None, 0)  # type: ignore[arg-type]
    messages: list[Any] = [SimpleNamespace(offset=n) for n in range(40)]
    for message in messages:
        generation.delivered[message.offset] = (message.offset, message)
    generation.verdicts[3] = Ack.SUCCESS
    assert generation.expired(before=1.5) == messages[:2]
    assert generation.expired(before=100) == [*messages[:3], *messages[4:17]]


@pytest.mark.spec("OR-07")
@pytest.mark.parametrize(
    ("setting_s", "after_s", "pause_s"),
    [(1, None, 1), (0, None, 0.01), (60, None, 30), (1, 0, 0.01), (1, 0.5, 0.5), (1, 7200, 30)],
)
def test_ordered_retry_blocks_its_queue_for_10_ms_to_30_s(
    monkeypatch: pytest.MonkeyPatch, setting_s: float, after_s: float | None, pause_s: float
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("saturnmq.client.consumer.ordered_queue.asyncio", SimpleNamespace(sleep=sleep))
    core = SimpleNamespace(spawn=lambda name, work, vital: asyncio.run(work), settings=SimpleNamespace(namespace=None))
    offered: list[Any] = []
    host: Any = SimpleNamespace(core=core, deliver=offered.extend)
    queue = OrderedQueue(host, QUEUE, 0, None, setting_s, auto_commit=True)
    message: Any = SimpleNamespace(offset=0)
    after = None if after_s is None else timedelta(seconds=after_s)
    queue.repeat_later(queue._now, [message], after)
    assert slept == [pause_s] and offered == [message]


@pytest.mark.spec("OR-05", "OR-06")
def test_locks_are_renewed_every_20_s_or_3_s_while_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Queue(OrderedQueue):
        def __init__(self, ours: list[bool]) -> None:
            self.ours = ours

        @property
        def locked(self) -> bool:
            return self.ours[0]

    ours, slept, renewed = [True], [], 0

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            raise asyncio.CancelledError

    async def renew() -> None:
        nonlocal renewed
        renewed += 1
        ours[0] = renewed != 2  # one lock is missing after the second renewal

    monkeypatch.setattr("saturnmq.client.consumer.member.asyncio", SimpleNamespace(sleep=sleep))
    consumer: Any = SimpleNamespace(_renew_locks=renew, _assigned={0: Queue([True]), 1: Queue(ours)})
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ConsumerMember._lock_loop(consumer))
    assert slept == [1, 20, 3, 20] and renewed == 3


@pytest.mark.spec("PL-03", "CA-12")
async def test_pull_flags_in_broadcast_and_manual_assignment(cluster: Any, tmp_path: Path) -> None:
    settings: Any = {"instance": "one", "offsets_dir": str(tmp_path)}
    async with cluster() as c, Client(name_servers=c.name_servers, **settings) as client:
        one_queue(c)
        for n in range(2):
            c.broker.put("T", 0, b"%d" % n)
        broadcast = client.consumer("all", start="first", model="broadcast", pull_batch=1)
        assigned = client.consumer("own", start="first", pull_batch=1)
        await assigned.assign([QUEUE], "a || b")
        await broadcast.subscribe("T")

        def asked(group: str) -> list[dict[str, str]]:
            return [pull for pull in pulls(c.broker) if pull["consumerGroup"] == group]

        async with broadcast:
            for _ in range(2):
                await (await broadcast.recv(30)).ack()
            await until(lambda: asked("all")[-1]["queueOffset"] == "2")
        async with assigned:
            await until(lambda: asked("own") and asked("own")[-1]["queueOffset"] == "2")
        assert {(pull["sysFlag"], pull.get("subscription")) for pull in asked("all")} == {("2", None)}
        flags = [(pull["sysFlag"], pull.get("subscription")) for pull in asked("own")]
        assert flags == [("6", "a || b"), ("7", "a || b"), ("7", "a || b")], "the filter travels in the request"


@pytest.mark.spec("BP-05")
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, PullStatus.FOUND),
        (19, PullStatus.NO_NEW_MESSAGE),
        (20, PullStatus.NO_MATCHED_MESSAGE),
        (21, PullStatus.OFFSET_ILLEGAL),
        (1, None),
        (2, None),
        (16, None),
    ],
)
def test_pull_answer_code_maps_to_a_status(code: int, status: PullStatus | None) -> None:
    ext = {"nextBeginOffset": "4", "minOffset": "1", "maxOffset": "9", "suggestWhichBrokerId": "1"}
    result = pull_result(Command(11).reply(code, ext=ext, body=b"records"), QUEUE)
    if status is None:
        assert result is None, "raised as the error of its code"
        return
    assert result is not None and result.status is status
    assert (result.next_offset, result.min_offset, result.max_offset, result.suggested_broker_id) == (4, 1, 9, 1)
    assert result.body == (b"records" if code == 0 else b"")


@pytest.mark.spec("PL-01")
def test_span_limit_is_2000_offsets() -> None:
    assert assigned_queue.SPAN_MAX == 2000
    core = SimpleNamespace(settings=SimpleNamespace(namespace=None))
    host: Any = SimpleNamespace(
        core=core, prefetch_of=lambda topic: 10_000, prefetch_bytes_of=lambda topic: None, bytes_left=lambda: True
    )
    queue = assigned_queue.AssignedQueue(host, QUEUE, 0)
    queue.generation.process_queue.put([(0, 1), (2000, 1)])
    assert not queue._full, "a span of exactly 2000 is no reason to wait"
    queue.generation.process_queue.put([(2001, 1)])
    assert queue._full


@pytest.mark.spec("OR-05", "OR-06", "PL-04", "PL-09", "PL-13", "RTY-01", "OF-03")
def test_consumer_timeouts_equal_those_of_apache() -> None:
    assert (send_back._SEND_BACK_TIMEOUT_MS, offsets.PERSIST_TIMEOUT_MS) == (5000, 5000)
    assert (queue_locks.LOCK_TIMEOUT_MS, queue_locks.LIVE_S) == (1000, 30)
    assert (assigned_queue.BROKER_SUSPEND_MS, assigned_queue.PULL_TIMEOUT_MS, assigned_queue.EXCEPTION_DELAY_S) == (
        15_000,
        30_000,
        1,
    )
