"""The released Go client, unmodified, against Apache's broker (the control) and against ours."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gotools
import pytest
from members import LAST_HEARTBEAT_S, no_members
from peers import Peer
from traced import make_topic, traces

import saturnmq
from harness.gate.peers import missing
from saturnmq.client.trace.records import Pub, SubAfter, SubBefore
from saturnmq.protocol.bodies import MessageQueue

pytestmark = pytest.mark.control("apache")

Rows = list[dict[str, Any]]
Run = Callable[..., Rows]
WAIT_S = 20
_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def go() -> None:
    """Skip every test here if the Go client is unavailable; otherwise build our program."""
    reason = gotools.why_not()
    if reason:
        missing(reason.removeprefix("skipped: "))


@pytest.fixture
def run(peer: Peer, tmp_path: Path) -> Run:
    """Run a command of our Go program against the peer; returns its report."""

    def start(command: str, **options: Any) -> Rows:
        return gotools.run_go(command, home=tmp_path, ns=peer.name_servers, **options).results

    return start


@pytest.fixture
def topic() -> str:
    return f"Go{next(_numbers)}"


def received(rows: Rows) -> Rows:
    return [row for row in rows if "received" in row]


def sent(rows: Rows) -> Rows:
    assert not [row for row in rows if "failed" in row], rows
    found = [row for row in rows if "sent" in row]
    assert {row["status"] for row in found} == {"SEND_OK"}
    return found


def check_whole(messages: Rows, count: int) -> None:
    """Check `count` different messages as made by sending.go, each once."""
    assert Counter(row["properties"]["number"] for row in messages) == {str(n): 1 for n in range(count)}
    for row in messages:
        number = row["properties"]["number"]
        assert (row["body"], row["keys"], row["tags"]) == (f"message {number}", f"key-{number}", "TagA")
        assert row["properties"]["sender"] == "jäva"
        assert row["bornHost"].startswith("127.0.0.1:")
        assert row["reconsumeTimes"] == 0


async def stored(peer: Peer, topic: str) -> list[saturnmq.Message[bytes]]:
    """All messages of a topic, read by our own client as an independent check of the broker's content."""
    async with asyncio.timeout(WAIT_S), saturnmq.Client(name_servers=peer.name_servers) as client:
        puller = client.puller()
        found: list[saturnmq.Message[bytes]] = []
        for queue in await puller.queues(topic):
            found += await _queue(puller, queue)
        return found


async def _queue(puller: saturnmq.Puller, queue: MessageQueue) -> list[saturnmq.Message[bytes]]:
    at, end = await puller.min_offset(queue), await puller.max_offset(queue)
    found: list[saturnmq.Message[bytes]] = []
    while at < end:
        result = await puller.pull(queue, at, timeout=5)
        found += result.messages()
        at = result.next_offset
    return found


@pytest.mark.interop
@pytest.mark.parametrize("mode", ["sync", "async", "ordered"])
@pytest.mark.spec("REM-01", "REM-04", "SND-06", "SND-13", "CA-13")
def test_go_send_returns_ids_and_offsets_that_pull_confirms(run: Run, topic: str, mode: str) -> None:
    rows = sent(run("send", mode=mode, topic=topic, count=12))
    queues = Counter(row["queue"] for row in rows)
    assert queues == {0: 6, 1: 6} if mode == "ordered" else set(queues) <= {0, 1, 2, 3}
    messages = received(run("pull", topic=topic, group=f"{topic}-group"))
    check_whole(messages, 12)
    where = {row["msgId"]: (row["queue"], row["offset"]) for row in messages}
    assert {row["msgId"]: (row["queue"], row["offset"]) for row in rows} == where


@pytest.mark.interop
@pytest.mark.spec("BP-02", "BP-05")
def test_go_pull_reports_the_bounds_of_a_queue(run: Run, topic: str) -> None:
    sent(run("send", mode="ordered", topic=topic, count=8))
    rows = {row["queue"]: row for row in run("pull", topic=topic, group=f"{topic}-group") if "beyond" in row}
    assert sorted(rows) == [0, 1, 2, 3]
    for queue, row in rows.items():
        maximum = 4 if queue < 2 else 0
        assert (row["min"], row["max"]) == (0, maximum)
        assert (row["beyond"], row["beyondNext"]) == ("OFFSET_ILLEGAL", maximum)


@pytest.mark.interop
@pytest.mark.spec("SND-06")
def test_go_one_way_messages_arrive(run: Run, topic: str) -> None:
    sent(run("send", topic=topic, count=1, body="first"))  # creates the topic
    run("send", mode="oneway", topic=topic, count=10)
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=11))
    assert {row["body"] for row in rows} == {"first 0", *(f"message {n}" for n in range(10))}


@pytest.mark.interop
@pytest.mark.spec("BAT-04", "BAT-05", "BAT-07")
def test_go_batch_is_stored_in_one_queue_at_consecutive_offsets(run: Run, peer: Peer, topic: str) -> None:
    (row,) = sent(run("send", mode="batch", topic=topic, count=10))
    assert len(set(row["offsetMsgId"].split(","))) == 10
    found = asyncio.run(stored(peer, topic))
    assert [message.value for message in found] == [b"message %d" % n for n in range(10)]
    assert {message.queue.queue_id for message in found} == {row["queue"]}
    assert [message.offset for message in found] == list(range(10))
    check_whole(received(run("consume", topic=topic, group=f"{topic}-group", count=10)), 10)


@pytest.mark.interop
@pytest.mark.timeout(LAST_HEARTBEAT_S + 180)
@pytest.mark.spec("OF-05", "CA-01")
def test_go_members_share_messages_and_their_offsets_persist(run: Run, peer: Peer, topic: str) -> None:
    sent(run("send", topic=topic, count=40))
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=40, members=2))
    assert {row["properties"]["number"] for row in rows} == {str(n) for n in range(40)}
    asyncio.run(no_members(peer, f"{topic}-group"))
    sent(run("send", topic=topic, count=1, body="later"))
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=1, only="later"))
    assert "later 0" in {row["body"] for row in rows}
    assert len(rows) < 40


@pytest.mark.interop
@pytest.mark.spec("OF-02")
def test_go_broadcast_delivers_everything_to_every_member(run: Run, topic: str) -> None:
    sent(run("send", topic=topic, count=8))
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=8, model="broadcast", members=2))
    by_member = {name: {row["body"] for row in rows if row["received"] == name} for name in ("member-0", "member-1")}
    everything = {f"message {n}" for n in range(8)}
    assert by_member == {"member-0": everything, "member-1": everything}


@pytest.mark.interop
@pytest.mark.spec("OR-09")
def test_go_ordered_consumer_keeps_queue_order_through_failures(run: Run, topic: str) -> None:
    sent(run("send", mode="ordered", topic=topic, count=20))
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=20, ordered=1, fail=1))
    for queue in (0, 1):
        offsets = [row["offset"] for row in rows if row["queue"] == queue]
        assert offsets == sorted(offsets)
        assert set(offsets) == set(range(10))
        assert set(Counter(offsets).values()) == {2}  # failed once, then consumed, before the next message


@pytest.mark.interop
@pytest.mark.spec("FIL-01")
def test_go_tag_expression_selects_messages(run: Run, topic: str) -> None:
    for tag in ("TagA", "TagB", "TagC"):
        sent(run("send", topic=topic, count=4, tags=tag))
    rows = received(run("consume", topic=topic, group=f"{topic}-tag", count=8, expression="TagB || TagC"))
    assert Counter(row["tags"] for row in rows) == {"TagB": 4, "TagC": 4}


@pytest.mark.interop
@pytest.mark.spec("FIL-02")
def test_go_sql_expression_selects_messages(run: Run, topic: str) -> None:
    sent(run("send", topic=topic, count=8))
    rows = received(run("consume", topic=topic, group=f"{topic}-sql", count=2, sql="number > 5 AND TAGS = 'TagA'"))
    assert {row["body"] for row in rows} == {"message 6", "message 7"}


@pytest.mark.interop
@pytest.mark.spec("DLY-02", "DLY-05")
def test_go_delayed_message_is_delivered_after_its_level(run: Run, topic: str) -> None:
    sent(run("send", topic=topic, count=3, delayLevel=1))
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=3))
    assert {row["body"] for row in rows} == {f"message {n}" for n in range(3)}
    assert all(row["storeTimestamp"] - row["bornTimestamp"] >= 900 for row in rows)


@pytest.mark.interop
@pytest.mark.spec("RTY-02", "RTY-03", "RTY-04")
def test_go_message_that_always_fails_becomes_a_dead_letter(run: Run, topic: str) -> None:
    original = {row["msgId"] for row in sent(run("send", topic=topic, count=2))}
    group = f"{topic}-group"
    rows = received(run("consume", topic=topic, group=group, count=4, dead=1, maxReconsume=1, warm=1))
    dead = [row for row in rows if row["received"] == "dead"]
    alive = [row for row in rows if row["received"] != "dead"]
    assert sorted(row["reconsumeTimes"] for row in alive) == [0, 0, 1, 1]
    assert {row["topic"] for row in alive} == {topic}
    assert {row["msgId"] for row in alive} == original
    assert {row["msgId"] for row in dead} == original
    assert {row["topic"] for row in dead} == {f"%DLQ%{group}"}
    assert sorted(row["body"] for row in dead) == ["message 0", "message 1"]


@pytest.mark.interop
@pytest.mark.spec("TX-03", "TX-05", "TX-09")
def test_go_transactions_commit_roll_back_and_are_checked(run: Run, topic: str) -> None:
    rows = run("transaction", topic=topic, count=6, group=f"{topic}-producers")
    assert [row["status"] for row in rows if "transaction" in row] == ["SEND_OK"] * 6
    checked = [row for row in received(rows) if row["received"] == "check"]
    assert {row["properties"]["number"] for row in checked} == {"2", "5"}
    rows = received(run("consume", topic=topic, group=f"{topic}-group", count=3))
    assert {row["properties"]["number"] for row in rows} == {"0", "2", "3"}  # 5 was rolled back by the check


@pytest.mark.interop
@pytest.mark.spec("CA-13", "OF-05")
def test_go_pull_consumer_polls_everything_and_commits(run: Run, topic: str) -> None:
    sent(run("send", topic=topic, count=12))
    check_whole(received(run("poll", topic=topic, group=f"{topic}-group", count=12)), 12)


@pytest.mark.interop
@pytest.mark.spec("RR-02", "RR-03")
def test_go_request_is_answered_through_the_broker(run: Run, topic: str) -> None:
    sent(run("send", topic=topic, count=1, body="first"))  # creates the topic
    rows = run("request", topic=topic, group=f"{topic}-group", count=2)
    assert not [row for row in rows if "failed" in row]
    assert [row["answer"] for row in rows if "answer" in row] == ["answer to message 0", "answer to message 1"]


@pytest.mark.interop
@pytest.mark.spec("TR-02", "TR-03", "TR-04", "TR-05", "TR-09")
def test_go_message_trace_is_found_by_message_id(run: Run, peer: Peer, topic: str) -> None:
    trace_topic, group = f"{topic}Trace", f"{topic}-group"
    asyncio.run(make_topic(peer, trace_topic))
    rows = sent(run("send", topic=topic, count=2, trace=1, group=f"{topic}-producers", traceTopic=trace_topic))
    run("consume", topic=topic, count=2, trace=1, group=group, traceTopic=trace_topic)
    wanted = rows[1]["msgId"]
    found = {type(record).__name__: record for record in asyncio.run(traces(peer, trace_topic, wanted, 3))}
    pub, before, after = found["Pub"], found["SubBefore"], found["SubAfter"]
    assert isinstance(pub, Pub)
    assert isinstance(before, SubBefore)
    assert isinstance(after, SubAfter)
    assert (pub.topic, pub.group, pub.keys, pub.tags) == (topic, f"{topic}-producers", "key-1", "TagA")
    assert (pub.message_id, pub.offset_message_id, pub.success) == (wanted, rows[1]["offsetMsgId"], True)
    assert (before.group, before.message_id, before.keys, before.retry_times) == (group, wanted, "key-1", 0)
    assert (after.request_id, after.message_id) == (before.request_id, wanted)
