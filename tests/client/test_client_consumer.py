# ruff: noqa: SIM117 - separate nested blocks for cluster, client and the objects created from it
"""The consumer against a scripted cluster: rebalance, pulls, settling, offsets, listeners."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from saturnmq import (
    Ack,
    AlreadySettled,
    Client,
    Closed,
    ConsumerStopped,
    DecodeError,
    Message,
    MessageQueue,
    Retry,
    json_codec,
    tag,
)
from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.running_info import answer_broker
from saturnmq.client.consumer.send_back import level_for
from saturnmq.client.message import next_attempt
from saturnmq.errors import GroupInUse
from saturnmq.net import NO_RESPONSE
from saturnmq.protocol.bodies import BrokerData, QueueData, ResetOffsetBody, TopicRouteData
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_properties
from saturnmq.protocol.offsets import QueueOffset
from waiting import until

Run = Callable[[Callable[[], Any]], Any]


def one_queue(c: Any, topic: str = "T") -> None:
    c.add(topic, c.route(read=1, write=1))


# receiving and settling


@pytest.mark.spec("API-15", "API-19", "CC-05", "BAT-07")
async def test_messages_arrive_in_queue_order_and_settled_head_is_committed(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(5):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            messages = [await inbox.recv(30) for _ in range(5)]
            assert [message.value for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
            queue = MessageQueue("T", "b0", 0)
            await messages[1].ack()
            await messages[2].ack()
            assert inbox.committed().get(queue, 0) == 0, "0 is still open"
            await messages[0].ack()
            assert inbox.committed()[queue] == 3
        assert c.broker.offsets["g", "T", 0] == 3, "the rest comes again"
        async with client.consumer("g", start="first") as again:
            await again.subscribe("T")
            assert (await again.recv(30)).value == b"3"


@pytest.mark.spec("API-19")
async def test_settling_again_is_a_no_op_and_another_verdict_raises(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.put("T", 0, b"a")
        c.broker.put("T", 0, b"b")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            first, second = await inbox.recv(30), await inbox.recv(30)
            await first.ack()
            await first.ack()
            with pytest.raises(AlreadySettled):
                await first.retry()
            await second.reject()
            await second.reject()
            with pytest.raises(AlreadySettled):
                await second.ack()
            assert len(c.broker.sent_back) == 1


@pytest.mark.spec("API-07", "API-08")
async def test_message_exposes_all_sent_fields_and_is_frozen(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        one_queue(c, "%RETRY%g")
        text = "TAGS\x01paid\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01UID\x02a\x01b\x02RETRY_TOPIC\x01T"
        c.broker.put("%RETRY%g", 0, b"text", text, reconsume_times=2, born_timestamp_ms=1_700_000_000_123, flag=9)
        decoded: list[bytes] = []

        class NotingCodec:
            def encode(self, value: str) -> bytes:
                return value.encode()

            def decode(self, body: bytes) -> str:
                decoded.append(body)
                return body.decode()

        async with client.consumer("g", codec=NotingCodec()) as inbox:
            await inbox.subscribe("T")
            message = await inbox.recv(30)
            assert message.body == b"text" and decoded == [], "the body is decoded when its value is asked for"
            assert message.value == message.value == "text" and decoded == [b"text"], "and once"
            assert (message.topic, message.tag, message.keys, message.properties["a"]) == (
                "T",
                "paid",
                ("k1", "k2"),
                "b",
            )
            assert (message.message_id, message.attempt, message.flag, message.offset) == ("UID", 3, 9, 0)
            assert message.queue == MessageQueue("%RETRY%g", "b0", 0)
            assert message.born_at == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
            assert message.stored_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
            assert message.stored_at.tzinfo is UTC and len(message.offset_message_id) == 32
            for name in ("value", "topic", "queue", "new"):
                with pytest.raises(AttributeError):
                    setattr(message, name, 1)
                with pytest.raises(AttributeError):
                    delattr(message, name)
            assert not hasattr(message, "__dict__")


@dataclass(frozen=True, slots=True)
class Line:
    sku: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Order:
    id: int
    total: float
    lines: list[Line]
    note: str | None = None


@pytest.mark.spec("API-08")
def test_json_codec_round_trips_dataclasses_and_rejects_mismatches() -> None:
    codec = json_codec(Order)
    order = Order(1, 9.5, [Line("a", 2)])
    assert codec.decode(codec.encode(order)) == order
    assert json.loads(codec.encode(order)) == {"id": 1, "total": 9.5, "lines": [{"sku": "a", "count": 2}], "note": None}
    assert codec.decode(b'{"id":1,"total":2,"lines":[],"extra":1}') == Order(1, 2.0, [])
    for body in (
        b"",
        b"{",
        b"[]",
        b'{"id":"1","total":2,"lines":[]}',
        b'{"id":1}',
        b'{"id":1,"total":2,"lines":[1]}',
        b"[" * 9999,
    ):
        with pytest.raises(DecodeError):
            codec.decode(body)


@pytest.mark.spec("PL-06", "PRC-05")
async def test_tag_filter_compares_text_and_commits_filtered_messages(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for name in ("AaAa", "BBBB", "", "AaAa", "BBBB"):  # AaAa and BBBB have the same hash
            c.broker.put("T", 0, name.encode() or b"-", f"TAGS\x01{name}" if name else "")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T", tag("AaAa"))
            got = [await inbox.recv(30), await inbox.recv(30)]
            assert [message.value for message in got] == [b"AaAa", b"AaAa"]
            for message in got:
                await message.ack()
            assert inbox.committed()[MessageQueue("T", "b0", 0)] == 5, "the filtered tail advances too"


@pytest.mark.spec("PL-06", "API-07")
async def test_consumed_message_has_the_bounds_of_its_queue(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(5):
            c.broker.put("T", 0, b"%d" % n, f"UNIQ_KEY\x01U{n}\x02MIN_OFFSET\x01stored")
        async with client.consumer("g", start="first", pull_batch=2) as inbox:
            await inbox.subscribe("T")
            messages = [await inbox.recv(30) for _ in range(5)]
            for message in messages:
                assert message.properties == {"UNIQ_KEY": message.message_id, "MIN_OFFSET": "0", "MAX_OFFSET": "5"}
                assert message.record.properties["MIN_OFFSET"] == "stored", "the record is as it was pulled"
            again = next_attempt(messages[0])
            assert (again.attempt, again.properties["MAX_OFFSET"]) == (2, "5")
        (pulled,) = (await client.puller().pull(messages[4].queue, 4)).messages()
        assert "MAX_OFFSET" not in pulled.properties, "a PullResult has the bounds itself"


@pytest.mark.spec("PL-06")
@pytest.mark.parametrize(
    ("properties", "transaction_id"),
    [
        ("UNIQ_KEY\x01U\x02TRAN_MSG\x01true", "U"),
        ("UNIQ_KEY\x01U\x02TRAN_MSG\x01TRUE", "U"),
        ("UNIQ_KEY\x01U\x02TRAN_MSG\x01false", None),
        ("UNIQ_KEY\x01U", None),
        ("TRAN_MSG\x01true", None),
    ],
)
async def test_transactional_message_has_its_transaction_id(
    cluster: Any, properties: str, transaction_id: str | None
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.put("T", 0, b"x", properties)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            assert (await inbox.recv(30)).transaction_id == transaction_id


@pytest.mark.spec("API-15")
async def test_recv_times_out_batches_collect_and_stop_ends_iteration(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        inbox = client.consumer("g", start="first")
        async with inbox:
            await inbox.subscribe("T")
            with pytest.raises(TimeoutError, match=r"^no message for group g within 0\.01 s$"):
                await inbox.recv(0.01)
            for n in range(5):
                c.broker.put("T", 0, b"%d" % n)
            batches = inbox.batches(3, wait=0.1)
            assert [message.value for message in await anext(batches)] == [b"0", b"1", b"2"]
            clock = asyncio.get_running_loop().time
            began = clock()
            assert [message.value for message in await anext(batches)] == [b"3", b"4"]
            assert 0.09 < clock() - began < 0.4, "the wait, from its first message on"
            await batches.aclose()
            waiting = asyncio.ensure_future(anext(inbox, None))
            receiving = asyncio.ensure_future(inbox.recv())
            await asyncio.sleep(0)
        assert await waiting is None
        with pytest.raises(Closed):
            await receiving
        with pytest.raises(Closed):
            await inbox.recv()


@pytest.mark.spec("RTY-01", "API-21")
async def test_retry_and_reject_send_back_with_a_delay_level(cluster: Any) -> None:
    assert [level_for(timedelta(seconds=s)) for s in (0.5, 1, 2, 10, 31, 7200, 9999)] == [1, 1, 2, 3, 5, 18, 18]
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n, f"UNIQ_KEY\x01U{n}")
        async with client.consumer("g", start="first", max_times=5) as inbox:
            await inbox.subscribe("T")
            first, second, third = [await inbox.recv(30) for _ in range(3)]
            await first.retry(after=timedelta(seconds=7))
            await second.retry()
            await third.reject()
            levels = [command.ext["delayLevel"] for command in c.broker.sent_back]
            assert levels == ["3", "0", "-1"]
            assert c.broker.sent_back[0].ext == {
                "offset": str(first.record.physical_offset),
                "group": "g",
                "delayLevel": "3",
                "originMsgId": "U0",
                "originTopic": "T",
                "unitMode": "false",
                "maxReconsumeTimes": "5",
                "bname": "b0",
            }
            assert inbox.committed()[MessageQueue("T", "b0", 0)] == 3


@pytest.mark.spec("RTY-01", "API-21", "UPG-08")
async def test_failed_send_back_sends_a_copy_that_carries_the_reason(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.add("%RETRY%g")
        for n in range(2):
            c.broker.put("T", 0, b"%d" % n, f"UNIQ_KEY\x01U{n}\x02TRAN_MSG\x01true", reconsume_times=n)
        c.broker.script[36] = lambda command: command.reply(1, "no")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            first, second = await inbox.recv(30), await inbox.recv(30)
            await first.retry()
            (copy,) = c.broker.of(310)
            properties = decode_properties(copy.ext["i"])
            assert (copy.ext["a"], copy.ext["b"]) == ("CLIENT_INNER_PRODUCER", "%RETRY%g")
            assert (copy.ext["j"], copy.ext["l"], properties["DELAY"], properties["RETRY_TOPIC"]) == (
                "1",
                "16",
                "3",
                "T",
            )
            assert properties["ORIGIN_MESSAGE_ID"] and "TRAN_MSG" not in properties and copy.ext["f"] == "0"
            await second.reject(reason="bad data")
            dead = c.broker.of(310)[1]
            properties = decode_properties(dead.ext["i"])
            assert properties["DEAD_LETTER_REASON"] == "bad data" and "DELAY" not in properties
            assert int(dead.ext["j"]) >= int(dead.ext["l"]), "the broker stores it in the dead letters"
            assert inbox.committed()[MessageQueue("T", "b0", 0)] == 2


@pytest.mark.spec("API-19")
async def test_failed_retry_settles_nothing_and_can_be_repeated(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.put("T", 0, b"x")
        c.broker.script[36] = lambda command: command.reply(13, "no")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            message = await inbox.recv(30)
            with pytest.raises(Exception, match="No route info"):
                await message.retry()
            assert inbox.committed().get(MessageQueue("T", "b0", 0), 0) == 0
            c.broker.script.clear()
            await message.retry()
            assert inbox.committed()[MessageQueue("T", "b0", 0)] == 1


@pytest.mark.spec("API-20", "PL-14")
async def test_unsettled_message_is_sent_back_after_ack_timeout(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first", ack_timeout=1.0) as inbox:
            await inbox.subscribe("T")
            first, second = await inbox.recv(30), await inbox.recv(30)
            await second.ack()
            await c.broker.wait_for(36)
            await until(lambda: inbox.committed().get(MessageQueue("T", "b0", 0)) == 2)
            (command,) = c.broker.sent_back
            assert command.ext["delayLevel"] == "3" and command.ext["offset"] == str(first.record.physical_offset)
            with pytest.raises(AlreadySettled):
                await first.ack()


# flow control


@pytest.mark.spec("PL-01", "API-23")
async def test_pulling_stops_at_prefetch_and_resumes_at_half(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(100):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first", prefetch=10, pull_batch=5) as inbox:
            await inbox.subscribe("T")
            held = [await inbox.recv(30) for _ in range(10)]
            with pytest.raises(TimeoutError):
                await inbox.recv(0.05)
            assert len(c.broker.of(11)) - sum(r.ext["topic"] != "T" for r in c.broker.of(11)) == 2
            for message in held[:4]:
                await message.ack()
            with pytest.raises(TimeoutError):
                await inbox.recv(0.02)
            await held[4].ack()
            assert (await inbox.recv(30)).value == b"10"


@pytest.mark.spec("API-23", "PL-01")
async def test_prefetch_bytes_bounds_all_queues_together(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        for queue_id in range(4):
            for _ in range(20):
                c.broker.put("T", queue_id, b"x" * 1000)
        async with client.consumer("g", start="first", prefetch_bytes=10_000, pull_batch=2) as inbox:
            await inbox.subscribe("T")
            held = [await inbox.recv(30) for _ in range(10)]
            with pytest.raises(TimeoutError):
                while True:
                    held.append(await inbox.recv(0.1))
            assert len(held) <= 10 + 4 * 2, "at most one pull per queue beyond the limit"
            for message in held:
                await message.ack()
            for _ in range(80 - len(held)):
                await (await inbox.recv(30)).ack()


QUIET: dict[str, Any] = {"rebalance_ms": 60_000, "heartbeat_ms": 100_000, "route_poll_ms": 100_000}


def open_messages(inbox: Any, topic: str = "T") -> list[int]:
    """How many messages of each assigned queue of the topic are pulled and not settled."""
    return [len(item.generation.process_queue) for item in inbox.assignments if item.queue.topic == topic]


@pytest.mark.spec("RB-06", "CA-06", "PL-01")
@pytest.mark.parametrize("option", ["prefetch_per_topic", "prefetch_bytes_per_topic"])
async def test_threshold_per_topic_is_divided_by_the_queues_of_each_assignment(cluster: Any, option: str) -> None:
    limits: dict[str, Any] = {"prefetch_per_topic": {option: 20}, "prefetch_bytes_per_topic": {option: 20_000}}[option]
    pull_batch = 5 if option == "prefetch_per_topic" else 1  # a limit of bytes is checked before each pull
    async with cluster() as c, Client(name_servers=c.name_servers, **QUIET) as client:
        for queue_id in range(4):
            for _ in range(40):
                c.broker.put("T", queue_id, b"x" * 1000)
        async with client.consumer("g", start="first", pull_batch=pull_batch, **limits) as inbox:
            await inbox.subscribe("T")
            await until(lambda: open_messages(inbox) == [5] * 4, why=lambda: open_messages(inbox))
            with pytest.raises(TimeoutError):
                while True:
                    await inbox.recv(0.05)
            assert open_messages(inbox) == [5] * 4
            c.broker.groups["g"].add("zzz")  # sorts behind this client: two queues are left
            inbox.wake_rebalance()
            await until(lambda: open_messages(inbox) == [10] * 2, why=lambda: open_messages(inbox))
            c.broker.groups["g"].remove("zzz")
            inbox.wake_rebalance()
            await until(lambda: open_messages(inbox) == [10, 10, 5, 5], why=lambda: open_messages(inbox))
            many = {f"z{n:02}" for n in range(3)}
            c.broker.groups["g"] |= many  # one queue each
            inbox.wake_rebalance()
            await until(lambda: open_messages(inbox) == [20], why=lambda: open_messages(inbox))


@pytest.mark.spec("RB-06")
async def test_threshold_below_the_number_of_queues_leaves_one_message_each(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, **QUIET) as client:
        for queue_id in range(4):
            for n in range(3):
                c.broker.put("T", queue_id, b"%d" % n)
        async with client.consumer("g", start="first", prefetch_per_topic=3) as inbox:
            await inbox.subscribe("T")
            await until(lambda: open_messages(inbox) == [1] * 4, why=lambda: open_messages(inbox))
            assert {r.ext["maxMsgNums"] for r in c.broker.of(11) if r.ext["topic"] == "T"} == {"1"}
            for _ in range(12):
                await (await inbox.recv(30)).ack()


async def test_pull_interval_passes_between_pulls_that_found_messages(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float, *rest: Any) -> None:
        if seconds == 7.5:
            pauses.append(seconds)
            seconds = 0
        await real_sleep(seconds, *rest)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(4):
            c.broker.put("T", 0, b"%d" % n, "TAGS\x01" + ("other" if n == 3 else "mine"))
        options: dict[str, Any] = {"start": "first", "pull_batch": 1, "pull_interval": 7.5}
        async with client.consumer("g", **options) as inbox:
            await inbox.subscribe("T", "mine")
            for _ in range(3):
                await (await inbox.recv(30)).ack()
            await until(lambda: inbox.committed() == {MessageQueue("T", "b0", 0): 4})
            await until(lambda: len(c.broker._grown[("T", 0)]) == 1)  # the next pull is long-polling
            assert len(pauses) == 3, "none after a pull whose messages were all filtered, none while waiting"
        async with client.consumer("h", start="first", pull_batch=1) as inbox:
            await inbox.subscribe("T")
            for _ in range(4):
                await inbox.recv(30)
        assert len(pauses) == 3, "by default there is none"


@pytest.mark.spec("PL-01")
async def test_stuck_message_stops_its_queue_at_the_span_limit(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(2100):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            stuck = await inbox.recv(30)
            count = 1
            ended = False
            while not ended:
                try:
                    await (await inbox.recv(0.1)).ack()
                    count += 1
                except TimeoutError:
                    ended = count > 2000
            assert 2000 < count <= 2000 + 33 and inbox.committed().get(MessageQueue("T", "b0", 0), 0) == 0
            await stuck.ack()
            assert (await inbox.recv(30)).offset == count


# pulling


@pytest.mark.spec("PL-03", "PL-04", "PL-07", "MS-07")
async def test_pull_request_of_a_push_consumer(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.put("T", 0, b"x")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await (await inbox.recv(30)).ack()
            c.broker.put("T", 0, b"y")
            await inbox.recv(30)
            await until(lambda: len([r for r in c.broker.of(11) if r.ext["topic"] == "T"]) >= 3)
            pulls = [r.ext for r in c.broker.of(11) if r.ext["topic"] == "T"]
            assert pulls[0]["maxMsgNums"] == "32" and pulls[0]["suspendTimeoutMillis"] == "15000"
            assert "subscription" not in pulls[0] and pulls[0]["expressionType"] == "TAG"
            assert int(pulls[0]["subVersion"]) > 0 and pulls[0]["bname"] == "b0"
            assert (pulls[0]["sysFlag"], pulls[0]["commitOffset"]) == ("2", "0"), "suspend alone"
            assert (pulls[-1]["sysFlag"], pulls[-1]["commitOffset"]) == ("3", "1"), "suspend and commit"


@pytest.mark.spec("PL-07")
async def test_filtered_messages_are_committed_without_a_reader(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for _ in range(5):
            c.broker.put("T", 0, b"x", "TAGS\x01other")
        filtered = {"nextBeginOffset": "3", "minOffset": "0", "maxOffset": "5", "suggestWhichBrokerId": "0"}
        c.broker.script[11] = [lambda command: command.reply(20, ext=filtered)]
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T", tag("mine"))
            await until(lambda: inbox.committed().get(MessageQueue("T", "b0", 0)) == 5)
            pulls = [r.ext for r in c.broker.of(11) if r.ext["topic"] == "T"]
            assert [pull["queueOffset"] for pull in pulls[:2]] == ["0", "3"]


@pytest.mark.spec("PL-07")
@pytest.mark.parametrize("code", [19, 20], ids=["no new message", "no matched message"])
async def test_pull_goes_on_at_the_offset_of_an_answer_without_messages(cluster: Any, code: int) -> None:
    seconds = asyncio.get_running_loop().time
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        asked: list[tuple[str, float]] = []

        def answer(command: Command) -> Any:
            if command.ext["topic"] != "T":
                return c.broker.on_11(command)
            asked.append((command.ext["queueOffset"], seconds()))
            ext = {
                "nextBeginOffset": str(3 * len(asked)),
                "minOffset": "0",
                "maxOffset": "0",
                "suggestWhichBrokerId": "0",
            }
            return command.reply(code, ext=ext) if len(asked) < 3 else None

        c.broker.script[11] = answer
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await until(lambda: len(asked) == 3)
            assert [offset for offset, _ in asked] == ["0", "3", "6"]
            assert asked[2][1] - asked[0][1] < 0.2, "at once, or after 50 ms"
            assert inbox.committed()[MessageQueue("T", "b0", 0)] == 6


@pytest.mark.spec("PL-08")
async def test_illegal_offset_is_corrected_from_the_broker_answer(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.offsets["g", "T", 0] = 99
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            # The commit offset may decrease here.
            await until(lambda: inbox.committed().get(MessageQueue("T", "b0", 0)) == 0)
            c.broker.put("T", 0, b"x")
            assert (await inbox.recv(30)).value == b"x"


@pytest.mark.spec("PL-09")
async def test_pull_errors_are_retried_and_lost_subscription_is_resent(cluster: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("saturnmq.client.consumer.assigned_queue.EXCEPTION_DELAY_S", 0.01)
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.put("T", 0, b"x")
        c.broker.script[11] = [
            lambda command: command.reply(215, "slow down"),
            lambda command: command.reply(24, "the consumer's group info not exist"),
            lambda command: command.reply(2, "busy"),
        ]
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            beats = len(c.broker.of(34))
            assert (await inbox.recv(30)).value == b"x"
            await c.broker.wait_for(34, beats + 1)


@pytest.mark.spec("API-26")
async def test_pull_loop_failure_raises_consumer_stopped_in_the_reader(cluster: Any, monkeypatch: Any) -> None:
    def broken(self: AssignedQueue, generation: Any, result: Any) -> None:
        raise ZeroDivisionError("bug")

    monkeypatch.setattr(AssignedQueue, "_take", broken)
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.put("T", 0, b"x")
        async with client.consumer("g", start="first") as inbox, client.producer("p") as out:
            await inbox.subscribe("T")
            with pytest.raises(ConsumerStopped, match="bug") as caught:
                await inbox.recv(30)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            with pytest.raises(ConsumerStopped):
                await inbox.recv(30)
            await out.send("T", b"the client itself goes on")


# rebalance


@pytest.mark.spec("RB-01", "RB-02", "RB-03", "RB-04", "CA-01")
async def test_members_divide_the_queues_and_take_over(cluster: Any) -> None:
    async with cluster(2) as c:
        async with (
            Client(name_servers=c.name_servers, rebalance_ms=50) as a,
            Client(name_servers=c.name_servers, rebalance_ms=50) as b,
        ):
            one, two = a.consumer("g"), b.consumer("g")
            async with one:
                await one.subscribe("T")
                await until(lambda: len(one.assigned) == 8)
                async with two:
                    await two.subscribe("T")
                    await until(lambda: len(one.assigned) == len(two.assigned) == 4)
                    assert not set(one.assigned) & set(two.assigned)
                    both = sorted(one.assigned + two.assigned)
                    assert len(both) == 8 and one.assigned in (both[:4], both[4:]), "contiguous blocks"
                await until(lambda: len(one.assigned) == 8)
                assert any(r.ext.get("consumerGroup") == "g" for r in c.brokers["b1"].of(35))


@pytest.mark.spec("RB-03")
async def test_reassigned_queue_hands_out_and_commits_nothing_more(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, rebalance_ms=60_000) as client:
        one_queue(c)
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            first = await inbox.recv(30)
            await first.ack()
            second = await inbox.recv(30)
            c.broker.groups["g"] = {"someone@else"}
            c.broker.script[34] = lambda command: command.reply()
            inbox.wake_rebalance()
            await until(lambda: not inbox.assigned)
            await until(lambda: c.broker.offsets.get(("g", "T", 0)) == 1)  # stored on release
            await second.ack()
            with pytest.raises(TimeoutError):
                await inbox.recv(0.05)
            await inbox.commit()
            assert c.broker.offsets["g", "T", 0] == 1


@pytest.mark.spec("RB-02", "RB-04")
async def test_assignment_is_kept_without_member_list_route_or_offset(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, rebalance_ms=60_000) as client:
        async with client.consumer("g") as inbox:
            c.broker.script[14] = lambda command: command.reply(1, "not now")
            await inbox.subscribe("T")
            await c.broker.wait_for(14, 4)
            assert not inbox.assigned
            c.broker.script.clear()
            inbox.wake_rebalance()
            assert len(await inbox.wait_assigned()) == 4
            c.broker.script[38] = lambda command: command.reply(1, "no consumer for this group")
            asked, rounds = len(c.broker.of(38)), inbox._rounds
            inbox.wake_rebalance()
            await until(lambda: inbox._rounds > rounds)
            assert len(c.broker.of(38)) > asked and len(inbox.assigned) == 4
            c.broker.script.clear()
            del c.ns[0].routes["T"]
            await client._core.routes.refresh("T")
            rounds = inbox._rounds
            inbox.wake_rebalance()
            await until(lambda: inbox._rounds > rounds)
            assert len(inbox.assigned) == 4, "nor does a missing route take queues away"


@pytest.mark.spec("RB-05", "API-18")
@pytest.mark.parametrize(
    ("start", "stored", "expected"),
    [
        ("first", None, 0),
        ("last", None, 3),
        ("first", 2, 2),
        ("last", 1, 1),
        (datetime(2024, 1, 1, tzinfo=UTC), None, 1),
    ],
)
async def test_start_offset_is_the_stored_one_or_as_configured(
    cluster: Any, start: Any, stored: int | None, expected: int
) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(3):
            c.broker.put("T", 0, b"%d" % n)
        if stored is not None:
            c.broker.offsets["g", "T", 0] = stored
        async with client.consumer("g", start=start) as inbox:
            await inbox.subscribe("T")
            await inbox.wait_assigned()
            await until(lambda: [r for r in c.broker.of(11) if r.ext["topic"] == "T"])
            pull = next(r for r in c.broker.of(11) if r.ext["topic"] == "T")
            assert pull.ext["queueOffset"] == str(expected)
            if isinstance(start, datetime):
                assert c.broker.of(29)[0].ext["timestamp"] == "1704067200000"


@pytest.mark.spec("HB-01", "CA-11")
async def test_heartbeat_announces_subscriptions_before_the_first_pull(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client:
        route = c.route("b0")
        route.broker_datas[0].broker_addrs[1] = c.brokers["b1"].address
        c.add("T", route)
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T", "b || a")
            for broker in c.brokers.values():
                assert broker.of(34), "the slave too"
            body = json.loads(c.brokers["b0"].of(34)[-1].body or b"")
            (consumer,) = body["consumerDataSet"]
            assert consumer["groupName"] == "g" and consumer["consumeType"] == "CONSUME_PASSIVELY"
            assert (
                consumer["messageModel"] == "CLUSTERING" and consumer["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
            )
            by_topic = {entry["topic"]: entry for entry in consumer["subscriptionDataSet"]}
            assert by_topic["T"]["subString"] == "b || a" and sorted(by_topic["T"]["codeSet"]) == [97, 98]
            assert by_topic["%RETRY%g"]["subString"] == "*"
            await inbox.wait_assigned()
            codes = [r.code for r in c.brokers["b0"].requests]
            assert codes.index(34) < codes.index(11) if 11 in codes else True
            with pytest.raises(GroupInUse):
                await client.consumer("g").start()
        (left,) = c.brokers["b0"].of(35)
        assert left.ext == {"clientID": client.client_id, "consumerGroup": "g"}


@pytest.mark.spec("API-15", "RB-03")
async def test_unsubscribe_releases_the_queues(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("U")
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            await inbox.subscribe("U")
            await until(lambda: len(inbox.assigned) == 8)
            await inbox.unsubscribe("T")
            assert {queue.topic for queue in inbox.assigned} == {"U"}
            await inbox.subscribe("T")
            await until(lambda: len(inbox.assigned) == 8)
            both = [inbox.unsubscribe("T"), asyncio.sleep(0)]
            inbox.wake_rebalance()  # concurrently with a rebalance round
            await asyncio.gather(*both)
            await until(lambda: {queue.topic for queue in inbox.assigned} == {"U"})
            topics = [
                e["topic"]
                for e in json.loads(c.broker.of(34)[-1].body or b"")["consumerDataSet"][0]["subscriptionDataSet"]
            ]
            assert "T" not in topics and "U" in topics


@pytest.mark.spec("OF-06")
async def test_reset_of_a_queue_ends_the_doubt_about_its_position(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", c.route(read=1, write=1))
        for number in range(3):
            c.broker.put("T", 0, b"%d" % number)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            assert (await inbox.recv(30)).value == b"0"
            (item,) = (item for item in inbox.assignments if item.queue.topic == "T")
            item.suspect()
            item.reset(QueueOffset(2))
            assert not item.unverified and (await inbox.recv(30)).value == b"2"


@pytest.mark.spec("RB-01")
async def test_topic_created_after_subscribe_is_assigned(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("LATER")
            c.add("LATER")
            c.broker.put("LATER", 1, b"x")
            assert (await inbox.recv(30)).value == b"x"


@pytest.mark.spec("OF-03")
async def test_offset_timer_sends_oneway_and_only_changed_offsets(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, persist_offsets_ms=20) as client:
        one_queue(c)
        c.broker.put("T", 0, b"x")
        c.broker.put("T", 0, b"y")
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            await (await inbox.recv(30)).ack()
            (first,) = await c.broker.wait_for(15)
            assert not first.is_oneway and first.ext["commitOffset"] == "1" and first.ext["bname"] == "b0"
            await (await inbox.recv(30)).ack()
            (_, command) = await c.broker.wait_for(15, 2)
            assert command.is_oneway and command.ext["commitOffset"] == "2" and command.ext["bname"] == "b0"
            for _ in range(3):
                await client._core._persist_offsets()
            await client.puller().max_offset(MessageQueue("T", "b0", 0))
            assert len(c.broker.of(15)) == 2


# requests from the broker


@pytest.mark.spec("RB-01")
async def test_member_change_notification_rebalances_at_once(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, rebalance_ms=60_000) as client:
        async with client.consumer("g") as inbox:
            await inbox.subscribe("T")
            await inbox.wait_assigned()
            asked = len(c.broker.of(38))
            c.broker.connections[-1].invoke_oneway(Command(40, ext={"consumerGroup": "g"}))
            assert len(await c.broker.wait_for(38, asked + 1)) > asked


@pytest.mark.spec("RB-03")  # and the client side of OF-06
async def test_offset_reset_continues_there_and_discards_pulled_messages(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(5):
            c.broker.put("T", 0, b"%d" % n)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            messages = [await inbox.recv(30) for _ in range(5)]
            for message in messages[:4]:
                await message.ack()
            body = ResetOffsetBody({MessageQueue("T", "b0", 0): 1}).encode()
            ext = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
            assert answer_broker(inbox, Command(220, ext=ext)) is NO_RESPONSE, "no body resets no queue"
            c.broker.connections[-1].invoke_oneway(Command(220, ext=ext, body=body))
            again = await inbox.recv(30)
            assert again.offset == 1
            await messages[4].ack()
            assert inbox.committed()[MessageQueue("T", "b0", 0)] == 1


# listeners


@pytest.mark.spec("API-16", "API-19", "API-08")
async def test_listener_settles_by_the_handler_result(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        seen: list[Any] = []
        bodies = [
            b'{"sku":"ok"}',
            b'{"sku":"again"}',
            b'{"sku":"dead"}',
            b'{"sku":"boom"}',
            b"not json",
            b'{"sku":"slow"}',
        ]

        @client.listener("T", group="g", concurrency=1, retry=Retry(after=timedelta(seconds=5)), time_limit=0.05)
        async def handle(message: Message[Line]) -> Ack | None:
            seen.append(message.value)
            match message.value.sku:
                case "again":
                    return Ack.RETRY
                case "dead":
                    return Ack.REJECT
                case "boom":
                    raise ValueError("boom")
                case "slow":
                    await asyncio.Event().wait()
            return None

        c.broker.offsets["g", "T", 0] = 0
        for body in bodies:
            c.broker.put("T", 0, body)
        began = asyncio.get_running_loop().time()
        running = asyncio.ensure_future(client.run(drain_timeout=1))
        await c.broker.wait_for(36, 5)
        assert 0.05 <= asyncio.get_running_loop().time() - began < 0.4, "the slow one ends at its limit"
        assert seen == [Line("ok"), Line("again"), Line("dead"), Line("boom"), Line("slow")]
        assert [command.ext["delayLevel"] for command in c.broker.sent_back] == ["2", "-1", "2", "2", "2"]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert c.broker.offsets["g", "T", 0] == 6 and c.broker.of(35)


@pytest.mark.parametrize("batch", [None, 1])
async def test_cancelled_future_in_a_handler_is_a_failure_of_that_message(cluster: Any, batch: int | None) -> None:
    """It ended the worker silently; after the last one the listeners returned as if they had been stopped."""
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        c.broker.offsets["g", "T", 0] = 0
        handled: list[Any] = []

        @client.listener("T", group="g", concurrency=1, batch=batch, retry=Retry(after=timedelta(seconds=5)))
        async def handle(argument: Any) -> None:
            handled.append(argument)
            if len(handled) < 3:
                future = asyncio.get_running_loop().create_future()
                future.cancel()
                await future

        for number in range(4):
            c.broker.put("T", 0, b"%d" % number)
        running = asyncio.create_task(client.run())
        await until(lambda: len(handled) == 4 or running.done())
        assert not running.done()
        await c.broker.wait_for(36, 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [command.ext["delayLevel"] for command in c.broker.sent_back] == ["2", "2"]
        assert c.broker.offsets["g", "T", 0] == 4


@pytest.mark.spec("API-19")
def test_verdict_given_by_the_handler_itself_overrides_its_result(
    run: Run, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            one_queue(c)
            seen: list[bytes] = []

            @client.listener("T", group="g", start="first", concurrency=1)
            async def handle(message: Message[bytes]) -> None:
                seen.append(message.body)
                match message.body:
                    case b"ack first":
                        await message.ack()
                        raise ValueError("too late to matter")
                    case b"retry":
                        await message.retry(after=timedelta(seconds=5))
                    case b"reject":
                        await message.reject()

            for body in (b"ack first", b"retry", b"reject", b"end"):
                c.broker.put("T", 0, body)
            running = asyncio.ensure_future(client.run())
            await until(lambda: len(seen) == 4)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert c.broker.offsets["g", "T", 0] == 4
            assert [command.ext["delayLevel"] for command in c.broker.sent_back] == ["2", "-1"]
            assert seen == [b"ack first", b"retry", b"reject", b"end"]

    run(work)
    assert [r.getMessage().partition(" ")[0] for r in caplog.records if r.levelname == "WARNING"] == ["handler"]


@pytest.mark.spec("API-16", "API-27", "UPG-14", "SPR-10")
async def test_sigterm_drains_handlers_stores_offsets_and_leaves_the_group(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        started, finish, done = asyncio.Event(), asyncio.Event(), []

        @client.listener("T", group="g", concurrency=2)
        async def handle(message: Message[bytes]) -> None:
            started.set()
            await finish.wait()
            done.append(message.value)

        threads: list[int] = []

        @client.listener("T", group="plain", concurrency=2)
        def plain(message: Message[bytes]) -> Ack:
            import threading

            threads.append(threading.get_ident())
            return Ack.SUCCESS

        for group in ("g", "plain"):
            c.broker.offsets[group, "T", 0] = 0
        c.broker.put("T", 0, b"x")
        running = asyncio.ensure_future(client.run(drain_timeout=5, handle_signals=True))
        await started.wait()
        await until(lambda: threads)
        signal.raise_signal(signal.SIGTERM)
        for _ in range(5):
            await asyncio.sleep(0)
        finish.set()
        await running
        import threading

        assert done == [b"x"] and threads != [threading.get_ident()]
        assert c.broker.offsets["g", "T", 0] == c.broker.offsets["plain", "T", 0] == 1
        assert {r.ext.get("consumerGroup") for r in c.broker.of(35)} == {"g", "plain"}


@pytest.mark.spec("API-27", "API-19")
async def test_second_signal_cancels_a_stuck_handler_without_settling(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        started, cancelled = asyncio.Event(), asyncio.Event()

        @client.listener("T", group="g")
        async def handle(message: Message[bytes]) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        c.broker.offsets["g", "T", 0] = 0
        c.broker.put("T", 0, b"x")
        before = signal.getsignal(signal.SIGINT)
        running = asyncio.ensure_future(client.run(drain_timeout=100, handle_signals=True))
        await started.wait()
        signal.raise_signal(signal.SIGINT)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not running.done()
        signal.raise_signal(signal.SIGINT)  # the second signal ends draining at once
        await running
        assert cancelled.is_set() and not c.broker.sent_back and c.broker.offsets["g", "T", 0] == 0
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.spec("API-27", "API-24")
async def test_run_cancelled_twice_cancels_handlers_and_leaves_the_group(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        started, before = asyncio.Event(), signal.getsignal(signal.SIGTERM)

        @client.listener("T", group="g")
        async def handle(message: Message[bytes]) -> None:
            started.set()
            await asyncio.Event().wait()

        c.broker.offsets["g", "T", 0] = 0
        c.broker.put("T", 0, b"x")
        running = asyncio.ensure_future(client.run(drain_timeout=100))
        await started.wait()
        assert signal.getsignal(signal.SIGTERM) is before, "no handler unless asked for"
        for _ in range(2):
            running.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [command.ext["consumerGroup"] for command in c.broker.of(35)] == ["g"]
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert not {name for name in names if name.startswith("saturnmq listener")}


@pytest.mark.spec("API-27", "API-19")
async def test_drain_timeout_cancels_a_handler_and_its_message_is_redelivered(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        started, cancelled = asyncio.Event(), asyncio.Event()

        @client.listener("T", group="g", start="first")
        async def handle(message: Message[bytes]) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        c.broker.put("T", 0, b"x")
        running = asyncio.ensure_future(client.run(drain_timeout=0.05))
        await started.wait()
        began = asyncio.get_running_loop().time()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert 0.05 <= asyncio.get_running_loop().time() - began < 0.3
        assert cancelled.is_set() and not c.broker.sent_back and c.broker.of(35)
        assert c.broker.offsets.get(("g", "T", 0), 0) == 0
        async with client.consumer("g", start="first") as again:
            await again.subscribe("T")
            assert (await again.recv(30)).body == b"x"


def test_settling_after_stop_is_logged_and_ignored(run: Run, cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with cluster() as c, Client(name_servers=c.name_servers) as client:
            one_queue(c)
            c.broker.put("T", 0, b"x")
            async with client.consumer("g", start="first") as inbox:
                await inbox.subscribe("T")
                message = await inbox.recv(30)
            await message.ack()
            assert c.broker.offsets.get(("g", "T", 0), 0) == 0

    run(work)
    (text,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("settled too late")]
    assert "group=g" in text and "verdict=success" in text and "T b0/0@0" in text


@pytest.mark.spec("API-04")
async def test_concurrent_consumer_starts_and_stops_run_once(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        inbox = client.consumer("g")
        await inbox.subscribe("T")
        await asyncio.gather(*(inbox.start() for _ in range(5)))
        beats = [r for r in c.broker.of(34) if b'"groupName":"g"' in (r.body or b"")]
        loops = [t for t in asyncio.all_tasks() if t.get_name() == "saturnmq rebalance g"]
        assert len(loops) == 1
        assert 2 <= len(beats) <= 3, "before and after the first rebalance, and one for the route that was found"
        await asyncio.gather(*(inbox.stop() for _ in range(5)))
        assert len([r for r in c.broker.of(35) if r.ext.get("consumerGroup") == "g"]) == 1
        with pytest.raises(Closed):
            await inbox.start()


@pytest.mark.spec("API-18")
async def test_lag_counts_messages_behind_the_settled_head(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        one_queue(c)
        for n in range(5):
            c.broker.put("T", 0, b"%d" % n)
        queue = MessageQueue("T", "b0", 0)
        async with client.consumer("g", start="first") as inbox:
            await inbox.subscribe("T")
            held = [await inbox.recv(30) for _ in range(3)]
            assert await inbox.lag() == await inbox.lag(queue) == {queue: 5}
            await held[0].ack()
            await held[2].ack()
            assert await inbox.lag("T") == {queue: 4} and inbox.position() == {queue: 3}


@pytest.mark.spec("UX-07", "PL-05")
async def test_pull_reads_from_the_slave_when_the_route_has_no_master(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client:
        c.add("T", TopicRouteData([QueueData("b0", 1, 1, 6)], [BrokerData("c", "b0", {1: c.broker.address})]))
        c.broker.put("T", 0, b"x")
        puller = client.puller()
        (queue,) = await puller.queues("T")
        assert (await puller.pull(queue, 0)).messages()[0].value == b"x"
