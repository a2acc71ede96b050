"""Every runbook of docs/runbooks.md, step by step, on two brokers with a live producer and consumer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from runbooks import FAST, SECONDS_MAX, Cli, Live, Runbook, Servers, until

import saturnmq.sync
from saturnmq.cli import main
from saturnmq.cli.mqadmin import files
from saturnmq.errors import ClientError
from saturnmq.protocol.codes import ResponseCode

TOPIC, GROUP = "orders", "billing"
Row = dict[str, Any]
Start = Callable[..., Live]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """A NameServer, broker-a and broker-b."""
    with Servers(tmp_path) as servers:
        servers.start("broker-a")
        servers.start("broker-b")
        yield servers


@pytest.fixture
def book(servers: Servers, cli: Cli) -> Callable[[str], Runbook]:
    """A runbook of the page by its heading, with the addresses of the servers."""

    def find(heading: str) -> Runbook:
        addresses = [servers.brokers[name].address for name in ("broker-a", "broker-b")]
        values = dict(zip(("10.0.0.11:10911", "10.0.0.12:10911"), addresses, strict=True))
        return Runbook(heading, cli, values | {"10.0.0.1:9876": servers.name_servers})

    return find


@pytest.fixture
def admin(servers: Servers, cli: Cli) -> Callable[..., str]:
    """Runs an admin command that has to succeed; `a` and `b` stand for the addresses of the brokers."""

    def run(line: str) -> str:
        words = [servers.brokers[f"broker-{word}"].address if word in ("a", "b") else word for word in line.split()]
        done = cli("admin", *words, env={"NAMESRV_ADDR": servers.name_servers})
        assert done.returncode == 0, done
        return done.stdout

    return run


@pytest.fixture
def live(servers: Servers) -> Iterator[Start]:
    """Starts a producer and a consumer; they are closed at the end."""
    started: list[Live] = []

    def start() -> Live:
        started.append(Live(servers.url, TOPIC, GROUP))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs commands in this process, with a folder for bodies of messages instead of Apache's below /tmp."""
    monkeypatch.setattr(files, "BODIES", tmp_path / "bodies")
    monkeypatch.chdir(tmp_path)  # where consumerStatus writes

    def run(*words: str, env: dict[str, str], stdin: bytes = b"") -> CompletedProcess[str]:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return CompletedProcess(words, code, printed.out, printed.err)

    return run


def of(rows: list[Row], broker: str, topic: str = TOPIC) -> list[Row]:
    """The rows of a topic on a broker."""
    return [row for row in rows if row["topic"] == topic and row["broker_name"] == broker]


def permissions(text: str) -> dict[str, str]:
    """Permission by broker name, as `topicRoute -l` prints it."""
    lines = [line.split() for line in text.splitlines() if line.startswith("DefaultCluster")]
    return {cells[1]: cells[-1] for cells in lines}


@pytest.mark.spec("OPS-10")
def test_a_topic_is_retired(
    book: Callable[[str], Runbook], admin: Callable[..., str], live: Start, servers: Servers
) -> None:
    admin(f"updateTopic -c DefaultCluster -t {TOPIC} -r 2 -w 2")
    clients = live()
    clients.grows("broker-a")
    runbook = book("Retire a topic")
    runbook.run("saturnmq admin updateTopicPerm")
    clients.refused()
    assert GROUP in runbook.run("saturnmq admin statsAll")
    runbook.repeat("saturnmq admin consumerProgress", lambda rows: not sum(row["diff"] for row in rows))
    ends = runbook.rows("saturnmq admin topicStatus")
    assert sum(row["max_offset"] for row in ends) == len(clients.sent)
    clients.stop()
    assert runbook.run("saturnmq admin deleteTopic").count("success") == 2
    runbook.run("saturnmq admin cleanUnusedTopic")
    runbook.run("saturnmq admin topicRoute", code=1)
    runbook.finish()
    for broker in ("broker-a", "broker-b"):
        assert not (servers.store(broker) / "consumequeue" / TOPIC).exists()


@pytest.mark.spec("OPS-11")
def test_a_topic_is_moved(book: Callable[[str], Runbook], admin: Callable[..., str], live: Start) -> None:
    admin(f"updateTopic -b a -t {TOPIC} -r 4 -w 4")
    clients = live()
    clients.grows("broker-a")
    runbook = book("Move a topic between brokers")
    assert "Order is lost" in runbook.text and "Stop the producers of an ordered topic" in runbook.text
    runbook.run("saturnmq admin updateTopic ")
    assert set(permissions(runbook.run("saturnmq admin topicRoute"))) == {"broker-a", "broker-b"}
    clients.grows("broker-b")
    runbook.run("saturnmq admin updateTopicPerm")
    clients.spared("broker-a", "broker-b")

    def drained(rows: list[Row]) -> bool:
        found = of(rows, "broker-a")
        return len(found) == 4 and not any(row["diff"] for row in found)

    runbook.repeat("saturnmq admin consumerProgress", drained)
    ends = runbook.rows("saturnmq admin topicStatus")
    assert sum(row["max_offset"] for row in ends if row["broker_name"] == "broker-a") == clients.sent_to("broker-a")
    assert runbook.run("saturnmq admin deleteTopic").count("success") == 1
    runbook.until("saturnmq admin topicRoute", lambda text: set(permissions(text)) == {"broker-b"})
    runbook.finish()
    clients.grows("broker-b")
    clients.stop()
    assert not clients.errors


def take_out(runbook: Runbook, clients: Live, servers: Servers, broker: str, other: str) -> None:
    """Follow the runbook for one broker, down to its return."""
    runbook.run("saturnmq admin updateBrokerConfig")
    runbook.until("saturnmq admin topicRoute", lambda text: permissions(text) == {broker: "4", other: "6"})
    clients.spared(broker, other)
    assert {queue.broker_name for queue in clients.inbox.assigned} == {broker, other}, "no rebalance (OPS-04)"
    assert len(runbook.rows("saturnmq admin clusterList")) == 2
    runbook.repeat(
        "saturnmq admin brokerConsumeStats",
        lambda rows: of(rows, broker) and not any(row["diff"] for row in of(rows, broker)),
    )
    runbook.take("systemctl stop")
    servers.stop(broker)
    assert not (servers.store(broker) / "abort").exists(), "stopped in order"
    runbook.repeat("saturnmq admin clusterList", lambda rows: [row["broker_name"] for row in rows] == [other])
    clients.grows(other)
    runbook.take("systemctl start")
    servers.start(broker)
    (value,) = re.findall(r"^brokerPermission +=+ +(\d)$", runbook.run("saturnmq admin getBrokerConfig"), re.MULTILINE)
    assert value == "4", "survived the restart"
    runbook.run("saturnmq admin updateBrokerConfig")
    runbook.until("saturnmq admin topicRoute", lambda text: permissions(text) == {broker: "6", other: "6"})
    clients.grows(broker)
    runbook.finish()


@pytest.mark.spec("OPS-02", "OPS-04", "OPS-06")
def test_brokers_are_taken_out_in_turn(
    book: Callable[[str], Runbook], admin: Callable[..., str], live: Start, servers: Servers
) -> None:
    admin(f"updateTopic -c DefaultCluster -t {TOPIC} -r 2 -w 2")
    clients = live()
    for broker, other in (("broker-b", "broker-a"), ("broker-a", "broker-b")):
        runbook = book("Take a broker out")
        runbook.values["10.0.0.12:10911"] = servers.brokers[broker].address
        clients.grows(broker)
        take_out(runbook, clients, servers, broker, other)
    clients.stop()
    assert not clients.errors


@pytest.mark.spec("OPS-03")
def test_a_read_only_broker_refuses_ordered_sends_and_returned_messages(
    admin: Callable[..., str], servers: Servers
) -> None:
    admin("updateTopic -c DefaultCluster -t ordered -r 1 -w 1 -o true")
    admin(f"updateTopic -c DefaultCluster -t {TOPIC} -r 1 -w 1")
    with saturnmq.sync.Client.from_url(servers.url, timeout=SECONDS_MAX) as client, client.producer("p") as out:
        queues = {topic: [q for q in out.queues(topic) if q.broker_name == "broker-b"] for topic in ("ordered", TOPIC)}
        out.send(TOPIC, b"before", queue=queues[TOPIC][0])
        admin("updateBrokerConfig -b b -k brokerPermission -v 4")

        with pytest.raises(ClientError) as refused:  # at once, while the route still allows it
            out.send("ordered", b"x", queue=queues["ordered"][0])
        assert refused.value.code == ResponseCode.NO_PERMISSION
        out.send(TOPIC, b"old route", queue=queues[TOPIC][0])
        with client.consumer(GROUP, start="first") as inbox:
            inbox.subscribe(TOPIC)
            first = inbox.recv(timeout=SECONDS_MAX)
            first.retry(timedelta(seconds=1))
            seen = [(message.body, message.attempt) for message in (inbox.recv(SECONDS_MAX), inbox.recv(SECONDS_MAX))]
        assert (first.body, 2) in seen


@pytest.mark.spec("OPS-05")
def test_wiped_write_permission_is_undone_by_a_change(
    book: Callable[[str], Runbook], admin: Callable[..., str]
) -> None:
    admin(f"updateTopic -c DefaultCluster -t {TOPIC} -r 2 -w 2")
    admin("updateTopic -b b -t another -r 1 -w 1")
    runbook = book("Take a broker out at the NameServers")
    runbook.run("saturnmq admin wipeWritePerm")
    assert permissions(runbook.run("saturnmq admin topicRoute")) == {"broker-a": "6", "broker-b": "4"}
    runbook.run("saturnmq admin addWritePerm")
    assert permissions(runbook.run("saturnmq admin topicRoute")) == {"broker-a": "6", "broker-b": "6"}
    runbook.finish()
    admin("wipeWritePerm -b broker-b")
    admin("deleteTopic -c DefaultCluster -t another --broker b")
    last: list[str] = []

    def both_writable() -> bool:
        last[:] = [admin(f"topicRoute -t {TOPIC} -l")]
        return permissions(last[0]) == {"broker-a": "6", "broker-b": "6"}

    until(both_writable, lambda: last)


@pytest.mark.spec("OPS-07")
def test_a_broker_is_added(
    book: Callable[[str], Runbook], admin: Callable[..., str], live: Start, servers: Servers
) -> None:
    admin(f"updateTopic -c DefaultCluster -t {TOPIC} -r 2 -w 2")
    admin(f"updateSubGroup -c DefaultCluster -g {GROUP} -r 3")
    clients = live()
    clients.grows("broker-a")
    runbook = book("Scale out")
    runbook.take("scp")
    servers.copy_metadata("broker-a", "broker-c")
    runbook.take("systemctl start")
    servers.start("broker-c")
    runbook.repeat("saturnmq admin clusterList", lambda rows: "broker-c" in {row["broker_name"] for row in rows})
    runbook.until("saturnmq admin topicRoute", lambda text: permissions(text).get("broker-c") == "6")
    clients.grows("broker-c")
    runbook.repeat(
        "saturnmq admin consumerProgress",
        lambda rows: [bool(row["client_ip"]) for row in of(rows, "broker-c")] == [True] * 2,
    )
    runbook.finish()
    assert admin(f"getConsumerConfig -g {GROUP}").count("broker-c") == 1
    clients.stop()
    assert not clients.errors


@pytest.mark.spec("OPS-12")
def test_a_backlog_is_examined_and_skipped(
    book: Callable[[str], Runbook], admin: Callable[..., str], servers: Servers, here: Cli
) -> None:
    admin(f"updateTopic -c DefaultCluster -t {TOPIC} -r 2 -w 2")
    with saturnmq.sync.Client.from_url(servers.url, **FAST) as client, client.producer("p") as out:
        for number in range(8):
            out.send(TOPIC, b"old", shard_by=number)
        with client.consumer(GROUP, start="first") as inbox:
            inbox.subscribe(TOPIC)
            inbox.recv(timeout=SECONDS_MAX)  # and never acknowledged
            for queue in out.queues(TOPIC):
                client.puller().commit(GROUP, queue, 0)
            runbook = book("Backlog")
            runbook.use(here)
            rows = runbook.repeat("saturnmq admin consumerProgress", lambda rows: of(rows, "broker-a") and rows)
            assert {row["client_ip"] for row in rows if row["topic"] == TOPIC} == {"127.0.0.1"}
            assert sum(row["diff"] for row in rows if row["topic"] == TOPIC) == 8
            assert client.client_id in runbook.run("saturnmq admin consumerStatus")
            runbook.run("saturnmq admin consumerConnection")
            (stats,) = [row for row in runbook.rows("saturnmq admin statsAll") if row["consumer_group"] == GROUP]
            assert stats["accumulation"] == 8
            assert len(permissions(runbook.run("saturnmq admin topicRoute"))) == 2
            runbook.run("saturnmq admin skipAccumulatedMessage")
            until(lambda: sum(inbox.lag().values()) == 0, inbox.lag)
            runbook.values["TIME"] = "0"
            assert len(runbook.rows("saturnmq admin resetOffsetByTime")) == 4
            until(lambda: sum(inbox.lag().values()) == 8, inbox.lag)
            runbook.finish()
            with saturnmq.sync.Client.from_url(servers.url, **FAST) as stranger, stranger.consumer(GROUP) as differs:
                differs.subscribe(TOPIC, "paid")
                command = ("admin", "consumerConnection", "-g", GROUP)
                warned = until(
                    lambda: here(*command, env={"NAMESRV_ADDR": servers.name_servers}).stderr, lambda: "no warning"
                )
                assert f"subscribe to {TOPIC} differently" in warned and stranger.client_id in warned


@pytest.mark.spec("OPS-13")
def test_a_message_is_found(
    book: Callable[[str], Runbook], admin: Callable[..., str], servers: Servers, here: Cli
) -> None:
    admin(f"updateTopic -b a -t {TOPIC} -r 1 -w 1")
    with saturnmq.sync.Client.from_url(servers.url, **FAST) as client, client.producer("p") as out:
        sent = out.send(TOPIC, b"wanted", keys=["order-1"], tag="paid")
        out.send(TOPIC, b"later", tag="refunded")
        with (
            client.consumer(GROUP, start="first") as done,
            client.consumer("slow", start="first") as slow,
            client.consumer("other", start="first") as other,
        ):
            done.subscribe(TOPIC)
            slow.subscribe(TOPIC)
            other.subscribe(TOPIC, "refunded")
            done.recv(timeout=SECONDS_MAX).ack()
            held = slow.recv(timeout=SECONDS_MAX)
            other.recv(timeout=SECONDS_MAX).ack()  # the second message: the first one is filtered
            runbook = book("Find a message")
            assert "Producers should set a business key on every message." in runbook.text
            runbook.use(
                here, MESSAGE_ID=sent.message_id, OFFSET_ID=sent.offset_message_id, BEGIN="0", END="9999999999999"
            )
            assert sent.message_id in runbook.run("saturnmq admin queryMsgByKey")
            tracks = {GROUP: "CONSUMED", "slow": "NOT_CONSUME_YET", "other": "CONSUMED_BUT_FILTERED"}

            def complete(text: str) -> bool:
                return all(f"[consumerGroup={name}, trackType={track}," in text for name, track in tracks.items())

            for command in ("queryMsgByUniqueKey", "queryMsgById", "queryMsgByOffset"):
                runbook.until(f"saturnmq admin {command}", complete)
            for command in ("printMsg ", "printMsgByQueue"):
                assert sent.message_id in runbook.run(f"saturnmq admin {command}")
            runbook.finish()
            held.ack()


@pytest.mark.spec("OPS-14")
def test_dead_letters_are_sent_again(
    book: Callable[[str], Runbook], admin: Callable[..., str], servers: Servers
) -> None:
    admin(f"updateTopic -b a -t {TOPIC} -r 1 -w 1")
    with saturnmq.sync.Client.from_url(servers.url, **FAST) as client, client.producer("p") as out:
        for body in (b"rejected", b"exhausted"):
            out.send(TOPIC, body, keys=["order-1"], tag="paid")
        with client.consumer(GROUP, start="first", max_times=0) as inbox:
            inbox.subscribe(TOPIC)
            inbox.recv(timeout=SECONDS_MAX).reject()
            inbox.recv(timeout=SECONDS_MAX).retry()
            until(lambda: client.topic_exists(f"%DLQ%{GROUP}"), lambda: "no dead-letter topic")
            runbook = book("Dead letters")
            runbook.repeat("saturnmq admin topicStatus", lambda rows: sum(row["max_offset"] for row in rows) == 2)
            assert runbook.run("saturnmq tail").count('"tag": "paid"') == 2
            runbook.run("saturnmq tail")
            again = [inbox.recv(timeout=SECONDS_MAX) for _ in range(2)]
            assert {(one.body, one.topic, one.tag, one.keys, one.attempt) for one in again} == {
                (body, TOPIC, "paid", ("order-1",), 1) for body in (b"rejected", b"exhausted")
            }
            for one in again:
                one.ack()
            assert runbook.run("saturnmq consume").count('"keys": ["order-1"]') == 1
            runbook.finish()
            (dead, *_) = client.query_messages(f"%DLQ%{GROUP}", "order-1")
            admin(f"queryMsgById -i {dead.offset_message_id} -s true")
            assert len(client.query_messages(f"%DLQ%{GROUP}", "order-1")) == 3, (
                "it goes to the dead-letter topic itself"
            )
