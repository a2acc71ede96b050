"""Differential test of pulls and offset commits: what `saturnmq.hot` takes is answered, counted and kept as by the reference."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordedclient import RecordedClient

from hotways import hot_module
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.broker.requests.context import OffsetContext
from saturnmq.broker.requests.plain_requests import PlainRequests, plain_commits, plain_pulls
from saturnmq.broker.requests.plain_sends import PlainRules, plain_sends
from saturnmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.message import Host, Message, decode_records
from saturnmq.testing import EmbeddedBroker

PULL, LITE_PULL = int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)
COMMIT = int(RequestCode.UPDATE_CONSUMER_OFFSET)
COMMITTED = ("consumerGroup", "topic", "queueId", "commitOffset")  # fields of a commit
MARK = 1_000_000
COUNT = 90  # messages of queue 0
HOST = Host("127.0.0.1", 10911)
FIELDS = {
    "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
    "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip


def pull_frame(opaque: int, more: dict[str, str], **how: Any) -> bytes:
    ext = {name: value for name, value in (FIELDS | more).items() if value != "absent"}
    code = how.pop("code", PULL)
    if code == COMMIT:
        ext = {name: value for name, value in ext.items() if name in COMMITTED or name in more}
    return encode_frame(Command(code, ext=ext, opaque=opaque, language=0, **how))


def heartbeat_frame(opaque: int) -> bytes:
    """A member of group G that subscribes to tag a of topic T, and of group B that reads all as a broadcast."""
    groups = [
        {"groupName": name, "consumeType": "CONSUME_PASSIVELY", "messageModel": model, "unitMode": False,
         "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [
             {"topic": "T", "subString": text, "tagsSet": [], "codeSet": codes, "subVersion": 7, "expressionType": "TAG",
              "classFilterMode": False}]}
        for name, model, text, codes in (("G", "CLUSTERING", "a", [97]), ("B", "BROADCASTING", "*", []))
    ]  # fmt: skip
    body = json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": groups}).encode()
    return encode_frame(Command(RequestCode.HEART_BEAT, body=body, opaque=opaque))


class CountingRequests(PlainRequests):
    """Plain requests of a broker, counted."""

    def __init__(self, broker: Broker, way: str) -> None:
        rules = PlainRules(broker.admission, None, broker._server.frame_limits)
        sends = plain_sends(broker._send_context, rules, hot_module("sends", way))
        pulls = plain_pulls(broker._pull_context, rules, hot_module("pulls", way))
        context = cast("OffsetContext", broker._all_routes[COMMIT].context)
        commits = plain_commits(context, rules, hot_module("commits", way))
        super().__init__(sends, (pulls, commits))
        self.counts: Counter[int] = Counter()

    def finish(self) -> dict[int, int]:
        counts = super().finish()
        self.counts.update(counts)
        return counts

    @property
    def count(self) -> int:
        return self.counts.total()


class Pair:
    """Two brokers with the same messages in one event loop. The first takes plain pulls; the second decodes all."""

    def __init__(self, way: str, reads: str) -> None:
        """reads: `slaves`, if clients of old records are sent to a slave."""
        self.way, self.reads = way, reads
        self.loop = asyncio.new_event_loop()
        self.servers: list[EmbeddedBroker] = []
        self.pulls: CountingRequests | None = None

    def start(self) -> None:
        for taking in (True, False):
            server = EmbeddedBroker(settings=BrokerSettings(slave_read_enable=self.reads == "slaves"))
            self.loop.run_until_complete(server.start())
            broker = server.broker
            broker._server.request_seconds = broker.metrics.request_seconds
            if taking:
                self.pulls = CountingRequests(broker, self.way)
                broker._server.take_plain(self.pulls)
            self.servers.append(server)
            for topic in ("T", "%RETRY%G"):
                broker.topics.table[topic] = TopicConfig(topic, 2, 2)
            for name in ("G", "B", "load"):
                assert broker.groups.find(name, "") is not None
            if self.reads == "slaves":
                broker.groups.set(SubscriptionGroupConfig("G", broker_id=3, which_broker_when_consume_slowly=2))
                broker.store.memory_bytes = 250_000  # some of the messages are old, others are not
            random = Random(5)
            for number in range(COUNT):
                tag, size = "ab"[number % 7 == 0], random.choice([0, 10, 1000, 5000, 20_000])
                for topic in ("T", "%RETRY%G"):
                    message = Message(topic, bytes(size), f"TAGS\x01{tag}".encode(), 0, born_host=HOST, store_host=HOST)
                    broker.store.put(message)

    def stop(self) -> None:
        for server in self.servers:
            self.loop.run_until_complete(server.stop())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    @property
    def brokers(self) -> list[Broker]:
        return [server.broker for server in self.servers]

    def exchange(self, frames: list[bytes], answers: int) -> list[list[Command]]:
        """The responses of each broker to frames sent in one write."""

        async def both() -> list[list[Command]]:
            async with asyncio.timeout(30):
                return await asyncio.gather(*(self._exchange(s, b"".join(frames), answers) for s in self.servers))

        return self.loop.run_until_complete(both())

    async def _exchange(self, server: EmbeddedBroker, data: bytes, answers: int) -> list[Command]:
        host, port = server.broker_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        decoder, commands = FrameDecoder(), []
        writer.write(data)
        while len(commands) < answers and (received := await reader.read(1 << 20)):
            commands += [command for command in decoder.feed(received) if command.is_response]
        writer.close()
        await writer.wait_closed()
        return commands

    def fates(self, pieces: list[bytes]) -> list[tuple[list[Command], bool]]:
        """What each broker answers to pieces of bytes that arrive one by one, and whether it closes the connection."""
        return [self.loop.run_until_complete(self._fate(broker, pieces)) for broker in self.brokers]

    async def _fate(self, broker: Broker, pieces: list[bytes]) -> tuple[list[Command], bool]:
        client = RecordedClient(broker)
        answers = await client.send(pieces)
        return answers, client.end()


def facts(answer: Command, broker: Broker) -> dict[str, Any]:
    """A response without what differs between two brokers: their address, the time, and the client's port."""
    messages = [
        (m.topic, m.queue_id, m.queue_offset, m.physical_offset, m.body, m.properties_raw)
        for m in decode_records(answer.body or b"")
    ]
    remark = (answer.remark or "").replace(broker.advertised_address, "ADDRESS").partition("consumer:")[0]
    return {"code": answer.code, "opaque": answer.opaque, "flag": answer.flag, "language": answer.language,
            "version": answer.version, "serialization": answer.serialization, "remark": remark, "ext": list(answer.ext.items()),
            "messages": messages, "bytes": len(answer.body or b"")}  # fmt: skip


def counters(broker: Broker) -> dict[str, Any]:
    stats = broker.stats
    items = {
        (name, key): (item.value, item.times)
        for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE")
        for key in ("T@G", "T@B", "T@load", "%RETRY%G@G")
        if (item := stats.sets.find(name, key)) is not None
    }
    latencies = {
        key: item.times
        for key in ("0@T@G", "0@T@load", "1@T@G")
        if (item := stats.sets.find("GROUP_GET_LATENCY", key)) is not None
    }
    return {
        "totals": (stats.get_messages, stats.get_bytes, stats.get_found, stats.get_miss), "items": items, "latencies": latencies,
        "fall": dict(stats.fall_size), "times": sorted(stats.fall_ms),
        "offsets": {(topic, group): broker.offsets.of(topic, group) for topic in ("T", "%RETRY%G") for group in ("G", "B", "load")},
        "requests": {code: sum(times.counts) for code, times in (broker.metrics.request_seconds or {}).items()},
        "groups": sorted(broker.groups.table), "parked": broker.long_polling.count,
    }  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[("compiled", ""), ("interpreted", ""), ("compiled", "slaves"), ("interpreted", "slaves")],
    ids=lambda param: "-".join(filter(None, param)),
)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    hot_module("pulls", request.param[0])
    made = Pair(*request.param)
    with contextlib.ExitStack() as stack:
        stack.callback(made.stop)
        made.start()
        yield made


def assert_same(pair: Pair, frames: list[bytes], answers: int) -> list[list[dict[str, Any]]]:
    both = [
        sorted((facts(answer, broker) for answer in commands), key=lambda answer: answer["opaque"])
        for commands, broker in zip(pair.exchange(frames, answers), pair.brokers, strict=True)
    ]
    assert both[0] == both[1]
    assert counters(pair.brokers[0]) == counters(pair.brokers[1])
    return both


ODD: dict[str, list[str]] = {
    "consumerGroup": ["G", "load", "B", "new group", "", "absent"],
    "topic": ["T", "%RETRY%G", "unknown", "", "absent"],
    "queueId": ["0", "1", "2", "-1", "00", "+0", "x", "", "absent", "\uff10", "2147483648"],
    "queueOffset": ["0", "1", "57", "088", str(COUNT - 1), str(COUNT), "1000", "-1", "9223372036854775808", "x", "absent"],
    "maxMsgNums": ["1", "2", "32", "33", "0", "-5", "5000", "4294967296", "absent"],
    "sysFlag": ["4", "5", "0", "1", "6", "7", "8", "12", "20", "21", "36", "absent"],
    "commitOffset": ["0", "5", "12", "-3", "", "x", "absent"],
    "suspendTimeoutMillis": ["0", "absent"],
    "subscription": ["*", "", "a", "b", "a || b", "none", "||", "absent", "x\x01y", "\u4e2d"],
    "subVersion": ["0", "7", "8", "x", "absent"],
    "expressionType": ["TAG", "", "SQL92", "absent"],
    "bulkBytes": ["100000", ""],
    "unknown": ["1"],
}  # fmt: skip
changes = st.lists(
    st.sampled_from(sorted(ODD)).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(ODD[name]))), max_size=2
).map(dict)
pulls = st.tuples(
    changes,
    st.sampled_from([PULL, PULL, LITE_PULL, COMMIT, COMMIT]),
    st.sampled_from(Serialization),
    st.sampled_from([0, 0, 0, 2]),
)


@pytest.mark.spec("FUZ-04", "BP-01", "BP-02")
def test_arbitrary_pulls_equal_reference_implementation(pair: Pair) -> None:
    @settings(max_examples=250, deadline=None, derandomize=True)
    @given(st.lists(pulls, min_size=1, max_size=6), st.booleans())
    def check(requests: list[Any], subscribed: bool) -> None:
        frames = [heartbeat_frame(0) if subscribed else pull_frame(0, {})]
        answers = len(frames)
        for more, code, serialization, flag in requests:
            frames.append(pull_frame(len(frames) + 1, more, code=code, serialization=serialization, flag=flag))
            answers += flag == 0
        frames.append(pull_frame(MARK, {}))
        assert_same(pair, frames, answers + 1)

    check()
    assert pair.pulls is not None and pair.pulls.count > 150 and pair.pulls.counts[COMMIT] > 50


@pytest.mark.spec("BP-03", "BP-04", "FIL-02")
def test_plain_pulls_are_all_taken(pair: Pair) -> None:
    assert pair.pulls is not None
    for serialization in Serialization:
        for code in (PULL, LITE_PULL):
            before = pair.pulls.count
            frames = [
                pull_frame(
                    number,
                    {
                        "queueOffset": str(number),
                        "subscription": "*ab"[number % 3],
                        "sysFlag": "5",
                        "commitOffset": str(number),
                    },
                    code=code,
                    serialization=serialization,
                )
                for number in range(40)
            ]
            both = assert_same(pair, frames, len(frames))
            assert [answer["code"] for answer in both[0]] == [0] * 40
            suggested = {dict(answer["ext"])["suggestWhichBrokerId"] for answer in both[0]}
            assert suggested == ({"2", "3"} if pair.reads == "slaves" else {"0"})
            # a frame may arrive in two reads, which is decoded, as is what follows it in the same step
            assert pair.pulls.count - before > 30


@pytest.mark.spec("FUZ-04")
@pytest.mark.parametrize("flag", [0, 2])
def test_repeated_commits_are_all_taken(pair: Pair, flag: int) -> None:
    assert pair.pulls is not None
    for serialization in Serialization:
        assert_same(pair, [pull_frame(0, {"commitOffset": "3"}, code=COMMIT)], 1)
        before = pair.pulls.counts[COMMIT]
        frames = [
            pull_frame(
                number, {"commitOffset": str(number * 7 % 40)}, code=COMMIT, serialization=serialization, flag=flag
            )
            for number in range(40)
        ]
        both = assert_same(pair, [*frames, pull_frame(MARK, {})], 1 if flag else 41)
        assert {answer["code"] for answer in both[0]} == {0}
        assert pair.pulls.counts[COMMIT] - before > 30  # see above
        assert [broker.offsets.get("T", "G", 0) for broker in pair.brokers] == [39 * 7 % 40] * 2


@pytest.mark.spec("FUZ-04")
def test_damaged_pull_frames_have_the_same_fate(pair: Pair) -> None:
    """Cut, overwritten, repeated and removed bytes, in reads of any size: equal answers and counters."""
    random = Random(21)
    for _ in range(150):
        frames = [
            pull_frame(
                number,
                {
                    "queueOffset": str(random.randrange(COUNT)),
                    "sysFlag": random.choice("45"),
                    "commitOffset": str(number),
                },
                code=random.choice([PULL, LITE_PULL, COMMIT]),
                serialization=random.choice(list(Serialization)),
            )
            for number in range(random.randint(1, 5))
        ]
        data = bytearray(b"".join(frames))
        for _ in range(random.randrange(3)):
            at = random.randrange(len(data))
            kind = random.randrange(3)
            if kind == 0:
                data[at] = random.choice([0, 1, 0x22, 0x5C, 0x7B, 0x7D, 0x80, 0xFF, random.randrange(256)])
            elif kind == 1:
                del data[at : at + random.randrange(1, 4)]
            else:
                data[at:at] = data[at : at + random.randrange(1, 4)]
        cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(3)))
        pieces = [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        first, second = (
            ([facts(answer, broker) for answer in answers], closed)
            for (answers, closed), broker in zip(pair.fates(pieces), pair.brokers, strict=True)
        )
        assert first == second, bytes(data)
        assert counters(pair.brokers[0]) == counters(pair.brokers[1]), bytes(data)
