"""Differential test of half messages and the ends of their transactions: `saturnmq.hot` leaves what the reference leaves."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from plainpair import V1, V2, BrokerPair, counters, damaged, facts, records, request_frame, units

from hotways import hot_module
from saturnmq.broker import Broker
from saturnmq.broker.services.transactions import Transactions
from saturnmq.protocol.codes import HALF_TOPIC, OP_HALF_TOPIC, RequestCode
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.store import FlushDiskType

COMMIT, ROLLBACK = "8", "12"
HALF = "TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01ABC\x02WAIT\x01true\x02TAGS\x01t"
ODD_HALVES = [
    HALF.replace("true", "TRUE", 1),
    HALF.replace("TRAN_MSG\x01true\x02", ""),
    HALF.replace("PGROUP\x01producers\x02", ""),
    HALF.replace("producers", ""),
    HALF.replace("producers", "a\x01b"),
    HALF.replace("producers", "\u4e2d"),
    HALF.replace("producers", "g" * 300),
    HALF + "\x02",
    HALF + "\x02PGROUP\x01others",
    HALF + "\x02REAL_TOPIC\x01Other\x02REAL_QID\x019",
    HALF + "\x02DELAY\x013",
    HALF + "\x02TRAN_MSG\x01false",
    HALF + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01300",
    HALF + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01x\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x014",
    HALF + "\x02TRANSACTION_CHECK_TIMES\x013",
    HALF + "\x02TAGS\x01u\x02CLUSTER\x01x",
    HALF + "\x02A\x01" + "x" * 32_600,
]
ODD_ENDS: dict[str, list[str]] = {
    "producerGroup": ["others", "", "absent", "\u4e2d"],
    "tranStateTableOffset": ["0", "-1", "x", "99999", "absent"],
    "commitLogOffset": ["0", "7", "-1", "9999999999", "9223372036854775808", "absent"],
    "commitOrRollback": ["0", "4", "x", "absent"],
    "fromTransactionCheck": ["true", "TRUE", "absent"],
    "msgId": ["", "absent"],
    "transactionId": ["absent", "\u4e2d"],
    "bname": ["broker-a"],
    "unknown": ["1"],
}


def end_frame(
    opaque: int, half: Command, decision: str, more: dict[str, str] | None = None, body: bytes | None = None, **how: Any
) -> bytes:
    """An end of the transaction whose half message was answered so."""
    _, physical = parse_offset_message_id(half.ext["msgId"])
    fields = {
        "producerGroup": "producers", "tranStateTableOffset": half.ext["queueOffset"], "commitLogOffset": str(physical),
        "commitOrRollback": decision, "fromTransactionCheck": "false", "msgId": "ABC", "transactionId": "ABC",
    } | (more or {})  # fmt: skip
    ext = {name: value for name, value in fields.items() if value != "absent"}
    return encode_frame(Command(RequestCode.END_TRANSACTION, ext=ext, body=body, opaque=opaque, language=0, **how))


def half_frame(opaque: int, more: dict[str, str] | None = None, **how: Any) -> bytes:
    return request_frame(opaque, {"b": "Real", "f": "4", "i": HALF} | (more or {}), **how)


def stored(broker: Broker) -> list[Any]:
    """All records; an operation without its time and unique id."""
    rows = []
    for topic, *row in records(broker):
        if topic == OP_HALF_TOPIC:
            row[4] = re.sub(rb"(?<=UNIQ_KEY\x01)[0-9A-F]{32}", b"ID", row[4])
            row[7] = 0
        rows.append((topic, *row))
    return rows


def table(broker: Broker) -> dict[str, Any]:
    """The undecided half messages, and the decisions."""
    halves = broker.master.transactions.table
    pending = [
        (half.offset, half.physical, half.immune_ms, half.op_floor, half.checks, half.group, half.host)
        for half in halves.pending.values()
    ]
    return {"pending": pending, "outcomes": halves._outcomes, "groups": halves._of_group, "hosts": halves._of_host}


@pytest.fixture(scope="module", params=["compiled", "interpreted"])
def pair(request: pytest.FixtureRequest) -> Iterator[BrokerPair]:
    hot_module("sends", request.param)
    made = BrokerPair(request.param, FlushDiskType.ASYNC_FLUSH)
    with contextlib.ExitStack() as stack:
        stack.callback(made.stop)
        made.start()
        made.exchange([request_frame(queue_id, {"b": "Real", "e": str(queue_id)}) for queue_id in range(4)], 4)
        (half,), _ = made.exchange([half_frame(1)], 1)
        made.exchange([end_frame(2, half, COMMIT)], 1)
        for broker in made.brokers:
            made.loop.run_until_complete(broker.topics.writer.saved())
        yield made


def check(pair: BrokerPair, pieces: list[bytes]) -> list[Command]:
    """Send pieces of bytes to both brokers, and compare what became of them; returns the answers."""
    both = pair.fates(pieces)
    first, second = (
        [facts(answer, broker) for answer in answers] for answers, broker in zip(both, pair.brokers, strict=True)
    )
    data = b"".join(pieces)
    assert first == second, data
    for compared in (counters, table):
        assert compared(pair.brokers[0]) == compared(pair.brokers[1]), data
    return both[0]


@pytest.mark.spec("FUZ-04")
def test_halves_and_ends_equal_reference_implementation(pair: BrokerPair) -> None:
    """Odd properties and fields, decisions repeated and contrary, and damaged bytes, among other sends."""
    random = Random(7)
    halves: list[Command] = []
    for number in range(220):
        frames: list[bytes] = []
        for opaque in range(random.randint(1, 8)):
            how: dict[str, Any] = {
                "flag": random.choice([0, 0, 2]),
                "serialization": random.choice(list(Serialization)),
            }
            kind = random.randrange(5) if halves else 0
            if kind < 2:
                properties = random.choice([HALF, HALF, random.choice(ODD_HALVES)])
                more = {"e": str(random.randrange(4)), "f": random.choice(["4", "4", "0", "12"]), "i": properties}
                how["body"] = random.choice([b"order", bytes(3000), b""])
                frames.append(half_frame(opaque, more, code=random.choice([V1, V2]), **how))
            elif kind == 2:
                frames.append(request_frame(opaque, {"b": "Real"}, **how))
            else:
                name = random.choice(list(ODD_ENDS))
                odd = {name: random.choice(ODD_ENDS[name])} if random.random() < 0.3 else {}
                how["body"] = b"x" if random.random() < 0.05 else None
                frames.append(
                    end_frame(opaque, random.choice(halves[-20:]), random.choice([COMMIT, ROLLBACK]), odd, **how)
                )
        answers = check(pair, damaged(frames, random) if number % 2 else [b"".join(frames)])
        halves += [answer for answer in answers if "queueOffset" in answer.ext and answer.ext["queueId"] != "x"]
    one, other = pair.brokers
    assert stored(one) == stored(other)
    assert units(one) == units(other)
    assert {row[0] for row in stored(one)} >= {"Real", HALF_TOPIC, OP_HALF_TOPIC}


@pytest.mark.parametrize("serialization", Serialization)
@pytest.mark.parametrize("flag", [0, 2])
def test_halves_and_ends_take_fast_path(pair: BrokerPair, flag: int, serialization: Serialization) -> None:
    how: dict[str, Any] = {"serialization": serialization}
    before = [list(pair.brokers[0].master.transactions.table.pending), len(stored(pair.brokers[0]))]
    with pytest.MonkeyPatch.context() as patch:
        called: list[Transactions] = []

        def by_reference(name: str) -> None:
            original = getattr(Transactions, name)
            patch.setattr(Transactions, name, lambda self, *given: (called.append(self), original(self, *given))[1])

        by_reference("end")
        by_reference("prepared")
        sent = check(pair, [b"".join(half_frame(n, {"e": str(n % 4)}, **how) for n in range(20))])
        ends = [end_frame(n, half, COMMIT if n % 3 else ROLLBACK, flag=flag, **how) for n, half in enumerate(sent)]
        answers = check(pair, [b"".join(ends)])
    transactions = [broker.master.transactions for broker in pair.brokers]
    assert called.count(transactions[1]) == 40
    assert called.count(transactions[0]) <= 2  # of frames that arrive in two reads
    assert [answer.code for answer in answers] == ([] if flag else [0] * 20)
    one, other = pair.brokers
    assert stored(one) == stored(other)
    assert list(transactions[0].table.pending) == before[0]
    assert len(stored(one)) == before[1] + 20 + 20 + 13


def test_halves_for_queues_without_messages_take_fast_path(pair: BrokerPair) -> None:
    for broker in pair.brokers:
        broker.topics.ensure("New", 4)
        pair.loop.run_until_complete(broker.topics.writer.saved())
    with pytest.MonkeyPatch.context() as patch:
        called: list[Transactions] = []
        original = Transactions.prepared
        patch.setattr(Transactions, "prepared", lambda self, *given: (called.append(self), original(self, *given))[1])
        sent = check(pair, [b"".join(half_frame(n, {"b": "New", "e": str(n % 4)}) for n in range(20))])
    transactions = [broker.master.transactions for broker in pair.brokers]
    assert called.count(transactions[0]) <= 2  # of frames that arrive in two reads
    assert called.count(transactions[1]) == 20
    check(pair, [b"".join(end_frame(n, half, COMMIT) for n, half in enumerate(sent))])
    one, other = pair.brokers
    assert stored(one) == stored(other) and units(one) == units(other)


@pytest.mark.parametrize("state", ["reject", "full", "loading", "other"])
def test_fast_path_leaves_what_it_may_not_decide(pair: BrokerPair, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half messages that are refused, and ends before the broker has read its half messages or of another record."""
    (half,) = check(pair, [half_frame(1)])
    for broker in pair.brokers:
        transactions = broker.master.transactions
        if state == "reject":
            monkeypatch.setattr(
                type(broker.settings), "reject_transactions", property(lambda self: True), raising=False
            )
        elif state == "full":
            monkeypatch.setattr(transactions.table, "problem", lambda group, host: "the table is full")
        elif state == "loading":
            monkeypatch.setattr(transactions, "ready", False)
        else:
            monkeypatch.setattr(transactions.table.pending[int(half.ext["queueOffset"])], "physical", 1)
    first, second = check(pair, [half_frame(2) + end_frame(3, half, COMMIT)])
    assert first.code == {"reject": 16, "full": 14}.get(state, 0)
    assert second.code == (state in ("loading", "other"))
    monkeypatch.undo()
