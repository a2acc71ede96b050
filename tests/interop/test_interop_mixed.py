"""Combinations of our parts and Apache's: NameServer and broker of different make, our Python client with Apache's servers,
and one store read by both brokers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apache
import pytest
import saturn
from javatools import java_command, java_environment, mqadmin, run_client
from peers import Peer
from printed import comparable
from processes import ServerProcess

from ports import free_port
from saturnmq import PullStatus, sync

_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"Mixed{next(_numbers)}"


def java_round_trip(name_servers: str, home: Path, topic: str) -> None:
    """Let a Java client send, consume and commit through these servers."""
    sent = [
        row for row in run_client("send", home=home, ns=name_servers, topic=topic, count=10).results if "sent" in row
    ]
    group = f"{topic}-group"
    rows = run_client("consume", home=home, ns=name_servers, topic=topic, group=group, count=10).results
    assert {row["msgId"] for row in rows if "received" in row} == {row["msgId"] for row in sent}


class Mixed:
    """A NameServer and a broker of different make."""

    def __init__(self, name_servers: str, broker_address: str, processes: list[ServerProcess]) -> None:
        self.name_servers = name_servers
        self.broker_address = broker_address
        self.processes = processes


@pytest.fixture(scope="module", params=["our NameServer, its broker", "its NameServer, our broker"])
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("mixed")
    namesrv_port, broker_port = free_port(), free_port(apache.BROKER_PORT_OFFSETS)
    name_servers = f"127.0.0.1:{namesrv_port}"
    running: list[ServerProcess] = []
    try:
        if request.param.startswith("our"):
            running.append(saturn.start_namesrv(namesrv_port))
            running.append(apache.start_broker(folder, broker_port, name_servers))
        else:
            running.append(apache.start_namesrv(folder, namesrv_port))
            running.append(saturn.start_broker(folder, broker_port, name_servers))
        yield Mixed(name_servers, f"127.0.0.1:{broker_port}", running)
    finally:
        for process in reversed(running):
            process.stop()


def test_java_client_sends_and_consumes_through_mixed_servers(mixed: Mixed, home: Path, topic: str) -> None:
    java_round_trip(mixed.name_servers, home, topic)


def test_mqadmin_prints_the_same_for_mixed_and_apache_servers(
    mixed: Mixed, apache_peer: apache.ApacheCluster, home: Path
) -> None:
    for servers, broker in (
        (mixed.name_servers, mixed.broker_address),
        (apache_peer.name_servers, apache_peer.broker_address),
    ):
        mqadmin(servers, "updateTopic", "-b", broker, "-t", "SameRoute", "-r", "3", "-w", "2", home=home)
    commands = (["clusterList"], ["topicRoute", "-t", "SameRoute"], ["topicStatus", "-t", "SameRoute"], ["topicList"])

    def printed(servers: str, command: list[str]) -> str:
        return mqadmin(servers, *command, home=home)

    with ThreadPoolExecutor(4) as pool:  # each command waits three seconds for its own client to shut down
        ours = list(pool.map(printed, [mixed.name_servers] * 4, commands))
        theirs = list(pool.map(printed, [apache_peer.name_servers] * 4, commands))
    assert [comparable(text) for text in ours[:3]] == [comparable(text) for text in theirs[:3]]
    topics = ours[3].split()
    assert {"SameRoute", "DefaultCluster", "broker-a", "SCHEDULE_TOPIC_XXXX"} <= set(topics)


@pytest.mark.spec("NS-18", "NS-19")
def test_stopped_broker_leaves_the_route(tmp_path: Path, home: Path, topic: str) -> None:
    port, broker_port = free_port(), free_port(apache.BROKER_PORT_OFFSETS)
    namesrv = saturn.start_namesrv(port)
    try:
        broker = apache.start_broker(tmp_path, broker_port, f"127.0.0.1:{port}")
        assert "broker-a" in mqadmin(f"127.0.0.1:{port}", "clusterList", home=home)
        broker.stop()
        assert "broker-a" not in mqadmin(f"127.0.0.1:{port}", "clusterList", home=home)
    finally:
        namesrv.stop()


@pytest.mark.spec("DG-03")
def test_sigkill_keeps_acknowledged_messages_and_java_producer_continues(
    tmp_path: Path, home: Path, topic: str
) -> None:
    """SIGKILL while a Java producer sends: nothing acknowledged is lost, and the producer finishes after the restart."""
    servers = f"127.0.0.1:{free_port()}"
    broker_port = free_port(apache.BROKER_PORT_OFFSETS)
    namesrv = saturn.start_namesrv(int(servers.rpartition(":")[2]))
    broker = saturn.start_broker(tmp_path, broker_port, servers)
    words = ["send", f"ns={servers}", f"topic={topic}", "mode=stubborn", "count=3000"]
    sender = ServerProcess(
        java_command("interop.Interop", words, home=home), name="Java producer", env=java_environment(home)
    )
    try:
        sender.wait_for_line(r'^RESULT {"sent":1000,', 60)
        broker.process.kill()
        broker.stop()
        broker = saturn.start_broker(tmp_path, broker_port, servers)
        sender.wait_for_line(r'^RESULT {"done"', 90)
        rows = [json.loads(line[7:]) for line in sender.lines if line.startswith("RESULT ")]
        sent = [row["msgId"] for row in rows if "sent" in row]
        assert len(sent) == 3000
        found = run_client("pull", home=home, ns=servers, topic=topic, group="puller").results
        assert set(sent) <= {row["msgId"] for row in found if "received" in row}
    finally:
        sender.stop(2)
        broker.stop()
        namesrv.stop()


# ---- the Python client


def drain(puller: sync.Puller, topic: str) -> list[Any]:
    """Every message of a topic, read by our client."""
    found: list[Any] = []
    for queue in puller.queues(topic):
        at, end = puller.min_offset(queue), puller.max_offset(queue)
        while at < end:
            result = puller.pull(queue, at)
            found += result.messages()
            at = result.next_offset
        assert puller.pull(queue, end).status in (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL)
    return found


@pytest.mark.control("apache")
def test_java_client_reads_what_our_client_sends(peer: Peer, home: Path, topic: str) -> None:
    with sync.Client(name_servers=peer.name_servers) as client, client.producer("py") as producer:
        receipts = [
            producer.send(
                topic,
                f"message {n}".encode(),
                tag="TagA",
                keys=[f"key-{n}"],
                properties={"number": str(n), "word": "jäva"},
            )
            for n in range(10)
        ]
        receipts += producer.send_many(topic, [f"batch {n}".encode() for n in range(5)], properties={"number": "b"})
        big = producer.send(topic, b"z" * 100_000, properties={"number": "big"})
    rows = run_client("pull", home=home, ns=peer.name_servers, topic=topic, group="puller").results
    rows = [row for row in rows if "received" in row]
    assert {row["msgId"]: row["offset"] for row in rows} == {r.message_id: r.offset for r in [*receipts, big]}
    assert {row["bodyBytes"] for row in rows} >= {100_000}
    singles = [row for row in rows if row.get("tags") == "TagA"]
    assert sorted(row["body"] for row in singles) == [f"message {n}" for n in range(10)]
    assert {row["properties"]["word"] for row in singles} == {"jäva"}


@pytest.mark.control("apache")
def test_our_client_reads_what_java_client_sends(peer: Peer, home: Path, topic: str) -> None:
    options: dict[str, Any] = {"home": home, "ns": peer.name_servers, "topic": topic}
    sent = [row for row in run_client("send", count=8, **options).results if "sent" in row]
    run_client("send", mode="batch", count=5, body="batch", **options)
    run_client("send", count=1, body="big", bodyBytes=100_000, **options)
    with sync.Client(name_servers=peer.name_servers) as client:
        messages = drain(client.puller(), topic)
    by_id = {message.message_id: message for message in messages}
    assert len(by_id) == 14
    for row in sent:
        message = by_id[row["msgId"]]
        assert message.body == f"message {row['sent']}".encode()
        assert (message.tag, list(message.keys)) == ("TagA", [f"key-{row['sent']}"])
        assert message.properties["sender"] == "jäva"
    assert max(len(message.body) for message in messages) == 100_000


@pytest.mark.control("apache")
def test_mqadmin_shows_offsets_committed_by_our_client(peer: Peer, home: Path, topic: str) -> None:
    run_client("send", home=home, ns=peer.name_servers, topic=topic, count=8)
    run_client("consume", home=home, ns=peer.name_servers, topic=topic, group=f"{topic}-group", count=8)
    with sync.Client(name_servers=peer.name_servers) as client:
        puller = client.puller()
        for queue in puller.queues(topic):
            assert puller.committed(f"{topic}-group", queue) == 2
            puller.commit(f"{topic}-group", queue, 1)
    shown = mqadmin(peer.name_servers, "consumerProgress", "-g", f"{topic}-group", home=home)
    assert "Diff Total: 4" in shown


# ---- one store, read by both

OUR_STORE = {**apache.SMALL_STORE, "storeProfile": "standard"}


@pytest.mark.interop_full  # test_interop_store.py moves stores too
@pytest.mark.spec("RC-03", "RC-12")
@pytest.mark.parametrize("first", ["saturn", "apache"])
def test_store_of_one_broker_is_served_by_the_other(tmp_path: Path, home: Path, topic: str, first: str) -> None:
    port, broker_port = free_port(), free_port(apache.BROKER_PORT_OFFSETS)
    servers = f"127.0.0.1:{port}"
    options: dict[str, Any] = {"home": home, "ns": servers, "topic": topic}

    def start(make: str) -> ServerProcess:
        if make == "saturn":
            return saturn.start_broker(tmp_path, broker_port, servers, settings=OUR_STORE)
        return apache.start_broker(tmp_path, broker_port, servers)

    namesrv = apache.start_namesrv(tmp_path, port)
    try:
        broker = start(first)
        run_client("send", count=20, **options)
        run_client("consume", count=20, group="store-group", **options)
        before = [row for row in run_client("pull", group="puller", **options).results if "received" in row]
        assert broker.stop() in (0, 143)
        broker = start("apache" if first == "saturn" else "saturn")
        after = [row for row in run_client("pull", group="puller", **options).results if "received" in row]
        assert sorted(after, key=_place) == sorted(before, key=_place)
        # Topics, groups and offsets were recovered too: the group continues at its offset, new messages follow the old ones.
        (row,) = [row for row in run_client("send", count=1, body="later", **options).results if "sent" in row]
        assert row["offset"] == 5
        rows = run_client("consume", count=1, group="store-group", **options).results
        assert {row["body"] for row in rows if "received" in row} == {"later 0"}
        found = run_client("query", id=row["offsetMsgId"], **options).results
        assert [row["body"] for row in found if "received" in row] == ["later 0"]
        assert broker.stop() in (0, 143)
    finally:
        namesrv.stop()


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["queue"], row["offset"]
