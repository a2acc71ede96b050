"""Apache's Java client, unmodified, against Apache's broker (the control) and against ours."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from javatools import run_client
from members import LAST_HEARTBEAT_S, no_members
from peers import Peer
from traced import make_topic, traces

from saturnmq.client.trace.records import Pub, SubAfter, SubBefore

pytestmark = pytest.mark.control("apache")

Rows = list[dict[str, Any]]
Run = Callable[..., Rows]
_numbers = itertools.count()


@pytest.fixture
def run(peer: Peer, home: Path) -> Run:
    """Run a command of our Java program against the peer; returns its report."""

    def go(command: str, **options: Any) -> Rows:
        return run_client(command, home=home, ns=peer.name_servers, **options).results

    return go


@pytest.fixture
def topic() -> str:
    return f"Interop{next(_numbers)}"


def received(rows: Rows) -> Rows:
    return [row for row in rows if "received" in row]


def sent(rows: Rows) -> Rows:
    assert not [row for row in rows if "failed" in row], rows
    return [row for row in rows if "sent" in row]


def check_whole(messages: Rows, count: int) -> None:
    """Check `count` different messages as made by Sending.java, each once, with consecutive offsets."""
    assert Counter(row["properties"]["number"] for row in messages) == {str(n): 1 for n in range(count)}
    offsets: dict[int, list[int]] = {}
    for row in messages:
        number = row["properties"]["number"]
        assert (row["body"], row["keys"], row["tags"]) == (f"message {number}", f"key-{number}", "TagA")
        assert row["properties"]["sender"] == "jäva"
        assert row["bornHost"].startswith("/127.0.0.1:")
        assert row["reconsumeTimes"] == 0
        assert abs(row["storeTimestamp"] - row["bornTimestamp"]) < 60_000
        offsets.setdefault(row["queue"], []).append(row["offset"])
    for found in offsets.values():
        assert found == list(range(len(found)))


@pytest.mark.parametrize("serialization", ["JSON", "ROCKETMQ"])
@pytest.mark.parametrize("mode", ["sync", "async", "selector"])
@pytest.mark.spec("REM-01", "REM-04", "SND-06", "SND-13")
def test_send_returns_ids_and_offsets_that_pull_confirms(run: Run, topic: str, mode: str, serialization: str) -> None:
    rows = sent(run("send", mode=mode, topic=topic, count=12, serialization=serialization))
    assert [row["status"] for row in rows] == ["SEND_OK"] * 12
    assert {row["broker"] for row in rows} == {"broker-a"}
    queues = Counter(row["queue"] for row in rows)
    assert set(queues) == ({0, 1} if mode == "selector" else {0, 1, 2, 3})
    messages = received(run("pull", topic=topic, group="puller", serialization=serialization))
    check_whole(messages, 12)
    where = {row["msgId"]: (row["queue"], row["offset"]) for row in messages}
    assert {row["msgId"]: (row["queue"], row["offset"]) for row in rows} == where


@pytest.mark.parametrize("serialization", ["JSON", "ROCKETMQ"])
def test_oneway_messages_arrive(run: Run, topic: str, serialization: str) -> None:
    run("send", topic=topic, count=1, body="first", serialization=serialization)  # creates the topic
    run("send", mode="oneway", topic=topic, count=10, serialization=serialization)
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=10, serialization=serialization))
    assert {row["body"] for row in rows} >= {f"message {n}" for n in range(1, 10)}


@pytest.mark.parametrize("serialization", ["JSON", "ROCKETMQ"])
@pytest.mark.spec("BAT-04", "BAT-05", "BAT-07")
def test_batch_messages_get_own_ids_and_consecutive_offsets(run: Run, topic: str, serialization: str) -> None:
    (row,) = sent(run("send", mode="batch", topic=topic, count=10, serialization=serialization))
    assert row["status"] == "SEND_OK"
    assert len(set(row["msgId"].split(","))) == 10
    assert len(set(row["offsetMsgId"].split(","))) == 10
    messages = received(run("pull", topic=topic, group="puller", serialization=serialization))
    check_whole(messages, 10)
    assert {message["queue"] for message in messages} == {row["queue"]}
    assert [message["msgId"] for message in messages] == row["msgId"].split(",")


def test_ten_thousand_async_sends_lose_no_message(run: Run, topic: str) -> None:
    rows = sent(run("send", mode="async", topic=topic, count=10_000, serialization="ROCKETMQ", timeoutMs=20_000))
    assert len({row["msgId"] for row in rows}) == 10_000
    messages = received(run("consume", topic=topic, group=f"{topic}-group", count=10_000, batch=32))
    assert {row["msgId"] for row in messages} == {row["msgId"] for row in rows}


def test_large_body_compressed_by_the_client_round_trips(run: Run, topic: str) -> None:
    run("send", topic=topic, count=2, bodyBytes=200_000)
    rows = received(run("pull", topic=topic, group="puller"))
    assert [row["bodyBytes"] for row in rows] == [200_000, 200_000]


def test_message_is_found_by_its_offset_id(run: Run, topic: str) -> None:
    rows = sent(run("send", topic=topic, count=4))
    (found,) = received(run("query", topic=topic, id=rows[2]["offsetMsgId"]))
    assert (found["body"], found["msgId"]) == ("message 2", rows[2]["msgId"])


@pytest.mark.spec("IX-02")
def test_query_by_key_and_by_unique_id(run: Run, topic: str) -> None:
    rows = sent(run("send", topic=topic, count=4))
    found = received(run("query", topic=topic, key="key-2", id=rows[2]["msgId"]))
    assert [row["received"] for row in found] == ["key", "id"]
    assert {row["body"] for row in found} == {"message 2"}


@pytest.mark.spec("BP-02", "BP-05", "OF-04")
def test_pull_reports_bounds_statuses_times_and_committed_offsets(run: Run, topic: str) -> None:
    run("send", mode="selector", topic=topic, count=8)
    group = f"{topic}-group"
    rows = {row["queue"]: row for row in run("pull", topic=topic, group=group) if "atEnd" in row}
    assert sorted(rows) == [0, 1, 2, 3]
    for queue, row in rows.items():
        maximum = 4 if queue < 2 else 0
        assert (row["min"], row["max"], row["next"]) == (0, maximum, maximum)
        assert (row["atEnd"], row["atEndNext"]) == ("NO_NEW_MSG", maximum)
        assert (row["beyond"], row["beyondNext"]) == ("OFFSET_ILLEGAL", maximum) or maximum == 0
        assert row["byTimeZero"] == 0
        assert row["byTimeFuture"] == max(0, maximum - 1)  # the nearest bound: the last message
        assert row["committed"] == maximum
        assert row["earliest"] is (maximum > 0)


@pytest.mark.spec("FIL-01")
def test_tag_expression_selects_messages(run: Run, topic: str) -> None:
    run("send", topic=topic, count=4, tags="TagA")
    run("send", topic=topic, count=4, tags="TagB")
    rows = received(run("pull", topic=topic, group="puller", expression="TagB"))
    assert [row["tags"] for row in rows] == ["TagB"] * 4
    rows = received(run("consume", topic=topic, group=f"{topic}-tag", count=4, expression="TagB || TagC"))
    assert {row["tags"] for row in rows} == {"TagB"}


def test_sql_expression_selects_messages(run: Run, topic: str) -> None:
    run("send", topic=topic, count=8)
    rows = received(run("consume", topic=topic, group=f"{topic}-sql", count=2, sql="number > 5 AND TAGS = 'TagA'"))
    assert {row["body"] for row in rows} == {"message 6", "message 7"}


@pytest.mark.timeout(LAST_HEARTBEAT_S + 180)
@pytest.mark.spec("OF-05")
def test_two_members_consume_everything_once(run: Run, peer: Peer, topic: str) -> None:
    run("send", topic=topic, count=40)
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=40, members=2))
    check = Counter(row["properties"]["number"] for row in rows)
    assert set(check) == {str(n) for n in range(40)}
    asyncio.run(no_members(peer, f"{topic}-group"))
    # Everything is consumed: the offsets were committed at shutdown, a later member gets only new messages.
    run("send", topic=topic, count=1, body="later")
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=1))
    assert "later 0" in {row["body"] for row in rows}
    assert len(rows) < 40


@pytest.mark.spec("RB-07", "HB-07")
def test_group_members_share_queues_and_take_over_when_one_leaves(run: Run, topic: str) -> None:
    run("send", topic=topic, count=4)
    rows = run("rebalance", topic=topic, group=f"{topic}-group")
    alone, shared, left = (next(row for row in rows if key in row) for key in ("alone", "shared", "left"))
    assert alone["alone"] == [0, 1, 2, 3]
    assert sorted(shared["shared"] + shared["second"]) == [0, 1, 2, 3]
    assert len(shared["shared"]) == 2
    assert left["left"] == [0, 1, 2, 3]
    # The broker notifies members of the change, so that they do not wait for their own 20 s timer.
    assert shared["ms"] < 15_000
    assert left["ms"] < 15_000


def test_broadcast_delivers_everything_to_every_member(run: Run, topic: str) -> None:
    run("send", topic=topic, count=8)
    options = {"topic": topic, "group": f"{topic}-group", "count": 8, "model": "BROADCASTING"}
    rows = received(run("consume", **options))
    assert len(rows) == 8


def test_lite_pull_consumer_polls_everything(run: Run, topic: str) -> None:
    run("send", topic=topic, count=12)
    check_whole(sorted(received(run("litepull", topic=topic, group=f"{topic}-group", count=12)), key=_order), 12)


@pytest.mark.spec("CA-12", "CQ-06")
def test_lite_pull_consumer_seeks_to_offsets_bounds_and_times(run: Run, topic: str) -> None:
    rows = run("seek", topic=topic, group=f"{topic}-group")
    polled = {row["polled"]: row["bodies"] for row in rows if "polled" in row}
    everything = [f"message {n}" for n in range(10)]
    assert polled == {
        "begin": everything,
        "offset": everything[7:],
        "time": everything[5:],
        "end": [],
        "paused": [],
        "resumed": everything,
        "committed": everything[3:],
    }
    found = {
        key: row[key]
        for row in rows
        for key in ("offsetForTimestamp", "beyond", "exclusive", "committed")
        if key in row
    }
    assert (found["offsetForTimestamp"], found["committed"]) == (5, 10)
    assert "min offset = 0, max offset = 10" in found["beyond"]
    assert "Subscribe and assign are mutually exclusive." in found["exclusive"]


@pytest.mark.spec("TR-02", "TR-03", "TR-04", "TR-05", "TR-09")
def test_message_trace_is_found_by_message_id(run: Run, peer: Peer, topic: str) -> None:
    trace = {"trace": 1, "traceTopic": f"{topic}Trace"}
    asyncio.run(make_topic(peer, f"{topic}Trace"))
    (row,) = sent(run("send", topic=topic, count=1, group=f"{topic}-producers", **trace))
    run("consume", topic=topic, group=f"{topic}-group", count=1, **trace)
    wanted = row["msgId"]
    found = {type(record).__name__: record for record in asyncio.run(traces(peer, f"{topic}Trace", wanted, 3))}
    pub, before, after = found["Pub"], found["SubBefore"], found["SubAfter"]
    assert isinstance(pub, Pub)
    assert isinstance(before, SubBefore)
    assert isinstance(after, SubAfter)
    assert (pub.topic, pub.group, pub.keys, pub.tags) == (topic, f"{topic}-producers", "key-0", "TagA")
    assert (pub.message_id, pub.offset_message_id, pub.success) == (wanted, row["offsetMsgId"], True)
    assert (pub.store_host, pub.body_bytes) == (peer.broker_address, len("message 0"))
    assert (before.group, before.message_id, before.keys, before.retry_times) == (f"{topic}-group", wanted, "key-0", 0)
    assert (after.request_id, after.message_id, after.group) == (before.request_id, wanted, f"{topic}-group")


@pytest.mark.spec("OR-09")
def test_orderly_consumer_locks_queues_and_keeps_their_order(run: Run, topic: str) -> None:
    run("send", mode="selector", topic=topic, count=20)
    rows = received(run("orderly", topic=topic, group=f"{topic}-group", count=20))
    for queue in (0, 1):
        assert [row["offset"] for row in rows if row["queue"] == queue] == list(range(10))


def _order(row: dict[str, Any]) -> tuple[int, int]:
    return row["queue"], row["offset"]


@pytest.mark.spec("RTY-02", "RTY-04")
def test_failed_message_is_redelivered_from_the_retry_topic(run: Run, topic: str) -> None:
    original = {row["msgId"] for row in sent(run("send", topic=topic, count=3))}
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=3, fail=1))
    assert sorted(row["reconsumeTimes"] for row in rows) == [0, 0, 0, 1, 1, 1]
    again = [row for row in rows if row["reconsumeTimes"] == 1]
    assert {row["msgId"] for row in again} == original
    assert {row["topic"] for row in again} == {topic}  # the client restores the topic of the first send


@pytest.mark.spec("RTY-03")
def test_failed_message_is_redelivered_after_its_delay_level(run: Run, topic: str) -> None:
    run("send", topic=topic, count=3)
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=3, fail=1))
    first = {row["msgId"]: row["storeTimestamp"] for row in rows if row["reconsumeTimes"] == 0}
    again = {row["msgId"]: row["storeTimestamp"] for row in rows if row["reconsumeTimes"] == 1}
    assert [again[key] - first[key] >= 1000 for key in first] == [True] * 3


@pytest.mark.spec("DLY-02", "DLY-05")
def test_delayed_message_is_delivered_after_its_level(run: Run, topic: str) -> None:
    run("send", topic=topic, count=3, delayLevel=1)
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=3))
    assert len(rows) == 3
    for row in rows:
        assert row["storeTimestamp"] - row["bornTimestamp"] >= 900
        assert row["properties"]["DELAY"] == "1"


@pytest.mark.spec("TX-03", "TX-05", "TX-09")
def test_transactions_commit_roll_back_and_are_checked(run: Run, topic: str) -> None:
    rows = run("transaction", topic=topic, count=6, checks=1, group=f"{topic}-producers")
    assert {row["status"] for row in rows if "transaction" in row} == {"SEND_OK"}
    assert {row["properties"]["number"] for row in received(rows)} == {"2", "5"}
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=4))
    assert {row["properties"]["number"] for row in rows} == {"0", "2", "3", "5"}


@pytest.mark.spec("RR-02", "RR-03")
def test_request_is_answered_through_the_broker(run: Run, topic: str) -> None:
    rows = run("request", topic=topic, group=f"{topic}-group", waitMs=5000)
    assert [row["answer"] for row in rows if "answer" in row] == ["answer to message 1"]
