"""Differential test of sends: the code of `saturnmq.hot` and the reference leave equal responses, records and counters."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plainpair import BATCH, V1, V2, BrokerPair, counters, damaged, facts, records, request_frame, units
from wire import wire

from hotways import hot_module
from saturnmq.broker.requests import send as reference
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command, Serialization
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.message import BatchItem, encode_batch
from saturnmq.store import FlushDiskType

MARK = 1_000_000


@pytest.fixture(
    scope="module",
    params=[
        ("compiled", FlushDiskType.ASYNC_FLUSH),
        ("interpreted", FlushDiskType.ASYNC_FLUSH),
        ("compiled", FlushDiskType.SYNC_FLUSH),
    ],
    ids=lambda param: f"{param[0]}-{param[1].value}",
)
def pair(request: pytest.FixtureRequest) -> Iterator[BrokerPair]:
    hot_module("sends", request.param[0])
    made = BrokerPair(*request.param)
    with contextlib.ExitStack() as stack:
        stack.callback(made.stop)
        made.start()
        yield made


TWO_MESSAGES = encode_batch([BatchItem(b"one", b"KEYS\x01k", 3), BatchItem(b"two")])
BATCHES = [
    TWO_MESSAGES,
    encode_batch([BatchItem(b"", b"TAGS\x01paid\x02", -1), BatchItem(bytes(5000), b"WAIT\x01false\x02CLUSTER\x01x")]),
    encode_batch([BatchItem(b"one"), BatchItem(b"late", b"DELAY\x013")]),
    encode_batch([BatchItem(b"one"), BatchItem(b"zero", b"KEYS\x01\0")]),
    encode_batch([BatchItem(b"one"), BatchItem(b"\xff", b"A\x01\xff")]),
    encode_batch([BatchItem(b"one"), BatchItem(b"long", b"A\x01" + b"x" * 32_740)]),
    encode_batch([BatchItem(b"%d" % number) for number in range(40)]),
    TWO_MESSAGES[:-1],
    TWO_MESSAGES + b"\0",
    TWO_MESSAGES[:3] + b"\x7f" + TWO_MESSAGES[4:],
    TWO_MESSAGES[:16] + b"\xff\xff\xff\xf0" + TWO_MESSAGES[20:],
]
ODD: dict[str, list[str]] = {
    "a": ["producers", "absent"],
    "b": ["T", "T", "Wide", "New1", "New2", "a b", "", "SCHEDULE_TOPIC_XXXX", "%RETRY%G", "%DLQ%G", "absent"],
    "c": ["TBW102", "T", "absent"],
    "d": ["4", "1", "x"],
    "e": ["0", "1", "2", "3", "4", "7", "99", "1024", "-1", "+1", " 1", "01", "x", "", "absent", "\uff11"],
    "f": ["0", "1", "4", "8", "12", "16", "32", "48", "256", "x", "absent"],
    "g": ["1795246686100", "0", "9223372036854775807", "9223372036854775808", "-5", "x", "absent"],
    "h": ["0", "77", "-1", "2147483648", "absent"],
    "j": ["0", "1", "16", "17", "", "x", "absent"],
    "k": ["false", "true", "absent"],
    "l": ["16", "3", "absent"],
    "m": ["false", "false", "true", "absent"],
    "confirmation": ["ask", "ask", ""],
}
changes = st.lists(
    st.sampled_from(sorted(ODD)).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(ODD[name]))), max_size=2
).map(dict)
names = st.sampled_from(
    ["KEYS", "TAGS", "WAIT", "NOWAIT", "TRAN_MSG", "DELAY", "MODEL", "CLUSTER", "MY_CLUSTER", "UNIQ_KEY", "A"]
)
values = st.sampled_from(["true", "false", "", "0", "x\x01y", "WAIT\x01true", "\u4e2d\u6587", "ABC"])
properties = st.one_of(
    st.sampled_from(
        ["", "absent", "\x02", "WAIT\x01true", "WAIT\x01false", "\x02WAIT\x01true", "x" * 32_760, "\x02\x02"]
    ),
    st.lists(st.tuples(names, values), max_size=4).map(lambda pairs: "\x02".join(f"{n}\x01{v}" for n, v in pairs)),
    st.lists(st.tuples(names, values), max_size=3).map(lambda pairs: "".join(f"{n}\x01{v}\x02" for n, v in pairs)),
)
varied = st.tuples(
    st.sampled_from(["0", "1", "3", "4", "-1", "x"]), st.sampled_from(["1", "1795246686101"]), properties
)
sends = st.tuples(
    changes,
    st.lists(varied, min_size=1, max_size=3),
    st.sampled_from([V2, V2, V1, BATCH, BATCH]),
    st.sampled_from([0, 0, 2]),
    st.sampled_from([b"body", b"", b"\0\0\0\1", *BATCHES]),
    st.sampled_from(Serialization),
)


@pytest.mark.spec("FUZ-04", "SND-01", "SND-10", "SND-13", "REM-06")
def test_arbitrary_sends_equal_reference_implementation(pair: BrokerPair) -> None:
    @settings(max_examples=250, deadline=None, derandomize=True)
    @given(st.lists(sends, min_size=1, max_size=5))
    def check(requests: list[Any]) -> None:
        frames: list[bytes] = []
        wanted = 1
        for more, others, code, flag, body, serialization in requests:
            same: dict[str, Any] = {"code": code, "flag": flag, "body": body, "serialization": serialization}
            frames += [request_frame(len(frames), more, **same), request_frame(len(frames) + 1, more, **same)]
            for queue_id, born, text in others:
                frames.append(request_frame(len(frames), more | {"e": queue_id, "g": born, "i": text}, **same))
            wanted += (2 + len(others)) * (flag == 0)
        frames.append(request_frame(MARK, {}))
        both = pair.exchange(frames, wanted)
        a, b = (
            [facts(answer, broker) for answer in answers] for answers, broker in zip(both, pair.brokers, strict=True)
        )
        assert a == b
        one, other = (broker.stats for broker in pair.brokers)
        assert (one.put_messages, one.put_bytes, one.put_failed) == (
            other.put_messages,
            other.put_bytes,
            other.put_failed,
        )

    check()
    one, other = (records(broker) for broker in pair.brokers)
    assert one == other and one
    assert pair.reads_taken > 100


@pytest.mark.spec("SND-01", "SND-13")
@pytest.mark.parametrize("serialization", Serialization)
def test_repeated_sends_take_fast_path(pair: BrokerPair, serialization: Serialization) -> None:
    called: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        count_reference(patch, called)
        pair.exchange([request_frame(queue_id, {"b": "Plain", "e": str(queue_id)}) for queue_id in range(4)], 4)
        for broker in pair.brokers:
            pair.loop.run_until_complete(broker.topics.writer.saved())
        called.clear()
        frames = []
        for number in range(100, 120):
            more = {"b": "Plain", "e": str(number % 4), "i": f"K\x01{number:03}\x02WAIT\x01true"}
            frames.append(request_frame(number, more, serialization=serialization))
        both = pair.exchange(frames, 20)
    assert [answer.code for answers in both for answer in answers] == [0] * 40
    assert_fast(pair, called, [*range(100, 120)])


@pytest.mark.spec("FUZ-04")
def test_damaged_frames_have_the_same_fate(pair: BrokerPair) -> None:
    """Cut, overwritten, repeated and removed bytes, in reads of any size: equal answers, records, units and counters."""
    random = Random(20)
    pair.exchange([request_frame(queue_id, {"b": "Fate", "e": str(queue_id)}) for queue_id in range(4)], 4)
    for broker in pair.brokers:
        pair.loop.run_until_complete(broker.topics.writer.saved())
    for _ in range(150):
        frames = [
            request_frame(
                number,
                {
                    "b": "Fate",
                    "e": str(random.randrange(4)),
                    "i": f"TAGS\x01t{number % 3}\x02KEYS\x01k{number}\x02WAIT\x01true",
                },
                code=code,
                flag=random.choice([0, 0, 0, 2]),
                body=random.choice(BATCHES) if code == BATCH else random.randbytes(random.randrange(40)),
                serialization=random.choice(list(Serialization)),
            )
            for number, code in enumerate(random.choices([V1, V2, BATCH], k=random.randint(1, 6)))
        ]
        pieces = damaged(frames, random)
        first, second = (
            [facts(answer, broker) for answer in answers]
            for answers, broker in zip(pair.fates(pieces), pair.brokers, strict=True)
        )
        if pair.brokers[
            0
        ].store.acknowledges_at_once:  # else the connection may be closed before the disk has the message
            assert first == second, pieces
        assert counters(pair.brokers[0]) == counters(pair.brokers[1]), pieces
    one, other = (records(broker) for broker in pair.brokers)
    assert one == other
    assert units(pair.brokers[0]) == units(pair.brokers[1])


def count_reference(patch: pytest.MonkeyPatch, called: list[int]) -> None:
    """Note the opaque of each request that the reference implementation handles."""
    original = reference.refused_at_arrival

    def noted(ctx: Any, request: Command, base: dict[str, str]) -> Command | None:
        called.append(request.opaque)
        return original(ctx, request, base)

    patch.setattr(reference, "refused_at_arrival", noted)


def assert_fast(pair: BrokerPair, called: list[int], opaques: list[int]) -> None:
    """The reference implementation was called for each request of the second broker, and for those of the first that it must be."""
    assert set(called) == set(opaques)
    assert len(opaques) <= len(called) <= len(opaques) + 2  # frames that arrive in two reads are decoded


REAL = {
    "UNIQ_KEY": "7F0000010BB818B4AAC2", "WAIT": "true", "TAGS": "paid", "KEYS": "order-1 customer-2", "MODEL": "S DELTA",
    "region": "eu-west", "AWAIT": "false", "MY_CLUSTER": "blue", "CLUSTER": "DefaultCluster", "NO_TRAN_MSG": "true",
}  # fmt: skip


@pytest.mark.spec("SND-10")
@pytest.mark.parametrize("serialization", Serialization)
@pytest.mark.parametrize("code", [V1, V2])
def test_properties_in_any_order_take_fast_path(pair: BrokerPair, code: int, serialization: Serialization) -> None:
    random = Random(code)
    texts = ["", "TAGS\x01paid"]
    if pair.brokers[0].store.acknowledges_at_once:  # else such a sender is answered before the message is durable
        texts.append("WAIT\x01false\x02TAGS\x01paid")
    for number in range(60):
        chosen = random.sample(sorted(REAL.items()), random.randint(1, len(REAL)))
        texts.append(
            "\x02".join(f"{name}\x01{value}{'x' * (number % 7)}" for name, value in chosen) + "\x02" * (number % 2)
        )
    same: dict[str, Any] = {"code": code, "serialization": serialization}
    more = {"b": "Real"}
    pair.exchange([request_frame(queue_id, more | {"e": str(queue_id)}, **same) for queue_id in range(4)], 4)
    for broker in pair.brokers:
        pair.loop.run_until_complete(broker.topics.writer.saved())
    called: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        count_reference(patch, called)
        frames = [request_frame(1, more, **same)]
        for number, text in enumerate(texts, 2):
            frames.append(request_frame(number, more | {"i": text, "e": str(number % 4)}, **same))
        both = pair.exchange(frames, len(frames))
    assert [answer.code for answers in both for answer in answers] == [0] * 2 * len(frames)
    assert_fast(pair, called, [*range(1, len(frames) + 1)])
    one, other = ([row for row in records(broker) if row[0] == "Real"] for broker in pair.brokers)
    assert one == other and len(one) >= len(frames)


@pytest.mark.spec("LIM-10")
def test_more_sends_than_may_be_in_flight_are_all_answered_in_order(pair: BrokerPair) -> None:
    pair.exchange([request_frame(queue_id, {"b": "Many", "e": str(queue_id)}) for queue_id in range(4)], 4)
    assert pair.brokers[0]._server.settings.in_flight_max < 1000
    for answers in pair.exchange([request_frame(number, {"b": "Many"}) for number in range(1000)], 1000):
        assert [answer.code for answer in answers] == [0] * 1000
        offsets = [int(answer.ext["queueOffset"]) for answer in answers]
        assert offsets == list(range(offsets[0], offsets[0] + 1000))


@pytest.mark.spec("SND-13")
def test_failed_put_on_fast_path_equals_reference(pair: BrokerPair) -> None:
    frames = [request_frame(n, {}, body=bytes(4_194_305)) for n in range(3)]
    one, other = pair.exchange(frames, 3)
    assert [answer.code for answer in one] == [13, 13, 13]
    assert [a.remark for a in one] == [a.remark for a in other]


@pytest.mark.spec("SND-02", "REM-14", "ST-04")
@pytest.mark.parametrize("state", ["later", "many", "busy", "stopped", "narrow", "order", "rejected"])
async def test_fast_path_checks_state_changed_after_a_send(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire() as w:
        host, port = w.server.broker_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))

        async def send(opaque: int) -> Command:
            writer.write(request_frame(opaque, {"e": "3"}))
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            (answer,) = FrameDecoder().feed(struct.pack(">i", length) + await reader.readexactly(length))
            return answer

        try:
            for number in range(3):
                assert (await send(number)).code == 0
                await w.broker.topics.writer.saved()
            broker = w.broker
            if state == "later":
                monkeypatch.setattr(
                    type(broker.settings), "accept_send_from_ms", property(lambda self: 2**62), raising=False
                )
            elif state == "many":
                broker.in_flight.sends = broker.settings.send_queue_max
            elif state == "busy":
                monkeypatch.setattr(type(broker.store), "busy", property(lambda self: True))
            elif state == "rejected":
                broker.admission.rejected = frozenset({RequestCode.SEND_MESSAGE_V2})
                broker._reject(broker.admission.rejected)
            elif state == "stopped":
                broker.store.failure = reference.StoreError("the disk failed")
            elif state == "narrow":
                broker.topics.table["T"].write_queue_nums = broker.topics.table["T"].read_queue_nums = 2
            else:
                broker.topics.table["T"].order = True
                monkeypatch.setattr(type(broker.settings), "broker_permission", property(lambda self: 4), raising=False)
            answer = await send(9)
            assert answer.code == {"many": 2, "busy": 2, "rejected": 2, "stopped": 14, "order": 16}.get(state, 1)
            assert answer.opaque == 9
            assert state == "rejected" or answer.ext["MSG_REGION"] == "DefaultRegion"
        finally:
            broker.in_flight.sends = 0
            monkeypatch.undo()
            broker.store.failure = None
            writer.close()
            await writer.wait_closed()
