"""Commands of mqadmin on brokers: configuration, state, consume queues, cleaning."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack

import pytest
from admincli import AdminCli, registered

import saturnmq.sync
from saturnmq import sql
from saturnmq.admin.brokers import Brokers
from saturnmq.cli.mqadmin import brokers
from saturnmq.protocol.bodies import ConsumeStats, ConsumeStatsList, MessageQueue, OffsetWrapper

UNKNOWN = "[error] Make sure the specified clusterName exists or the name server connected to is correct."
STATS_HEAD = (
    f"{'#Topic':<64}  {'#Group':<64}  {'#Broker Name':<32}  {'#QID':<4}  {'#Broker Offset':<20}  "
    f"{'#Consumer Offset':<20}  {'#Diff':<20}  #LastTime"
)
LINE = "=" * 38


# ---- configuration


@pytest.mark.spec("C-10")
@pytest.mark.parametrize("place", [("-b", "{broker}"), ("-c", "DefaultCluster")])
def test_update_broker_config(admin_cli: AdminCli, place: tuple[str, str]) -> None:
    text = admin_cli.text("updateBrokerConfig", *place, "-k", "fileReservedTime", "-v", " 71 ")
    assert text == "update broker config success, {broker}\n"
    lines = admin_cli.text("getBrokerConfig", "-b", "{broker}").splitlines()
    assert f"{'fileReservedTime':<50}=  71" in lines


@pytest.mark.spec("C-10")
def test_update_broker_config_reports_what_a_broker_refuses(admin_cli: AdminCli) -> None:
    for place in (("-b", "{broker}"), ("-c", "DefaultCluster")):
        code, out, err = admin_cli.run("updateBrokerConfig", *place, "-k", "noSuchKey", "-v", "1")
        assert (code, out) == (1, "") and "noSuchKey" in err and admin_cli.server.broker_address in err
    code, out, _ = admin_cli.run("updateBrokerConfig", "-k", "fileReservedTime", "-v", "1")
    assert code == 1 and out.startswith(
        "usage: mqadmin updateBrokerConfig [-b <arg>] [-c <arg>] [-h] -k <arg> [-n <arg>]"
    )
    assert admin_cli.run("updateBrokerConfig", "-c", "Nowhere", "-k", "a", "-v", "1")[:2] == (1, UNKNOWN)


@pytest.mark.spec("C-11")
def test_get_broker_config_of_a_broker_or_a_cluster(admin_cli: AdminCli) -> None:
    lines = admin_cli.text("getBrokerConfig", "-b", "{broker}").splitlines()
    assert lines[0] == "============{broker}============" and lines[-1] == ""
    assert f"{'brokerName':<50}=  broker-a" in lines and lines[1:-1] == sorted(lines[1:-1])
    lines = admin_cli.text("getBrokerConfig", "-c", "DefaultCluster").splitlines()
    assert lines[0] == "============Master: {broker}============"
    rows = admin_cli.json("getBrokerConfig", "-b", "{broker}")["rows"]
    assert {"broker": admin_cli.server.broker_address, "key": "brokerName", "value": "broker-a"} in rows
    slave = f"localhost:{admin_cli.server.broker_address.rpartition(':')[2]}"  # the same broker by another name
    with registered(admin_cli.server, "broker-a", slave, broker_id=1):
        text = admin_cli.text("getBrokerConfig", "-c", "DefaultCluster")
    blocks = re.findall(r"^============(.*)============$", text, re.MULTILINE)
    assert blocks == ["Master: {broker}", f"My Master: {{broker}}=====Slave: {slave}"]
    assert text.count(f"{'brokerName':<50}=  broker-a") == 2
    assert admin_cli.run("getBrokerConfig") == (0, "", "")
    assert admin_cli.run("getBrokerConfig", "-c", "Nowhere")[:2] == (1, UNKNOWN)


# ---- state


@pytest.mark.spec("C-12")
def test_broker_status_of_a_broker_or_a_cluster(admin_cli: AdminCli) -> None:
    lines = admin_cli.text("brokerStatus", "-b", "{broker}").splitlines()
    keys = [line.split(":")[0].rstrip() for line in lines]
    assert keys == sorted(keys)
    assert f"{'brokerVersionDesc':<32}: V4_9_7" in lines
    code, out, _ = admin_cli.run("brokerStatus", "-c", "DefaultCluster")
    address = admin_cli.server.broker_address
    assert code == 0 and f"{address:<24} {'brokerVersionDesc':<32}: V4_9_7" in out.splitlines()
    assert [line[25:].split(":")[0].rstrip() for line in out.splitlines()] == keys, "sorted for a cluster, too"
    assert admin_cli.run("brokerStatus") == (0, "", "")
    assert admin_cli.run("brokerStatus", "-c", "Nowhere")[:2] == (1, UNKNOWN)
    code, out, err = admin_cli.run("brokerStatus", "-b", "127.0.0.1:1")
    assert out == "" and code != 0 and "127.0.0.1:1" in err


@pytest.mark.spec("C-13")
def test_broker_consume_stats(admin_cli: AdminCli, admin_client: saturnmq.sync.Client) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "b-stats", "-r", "1", "-w", "1")
    with admin_client.producer("p") as out:
        for _ in range(5):
            out.send("b-stats", b"x")
    for group, count in (("b-readers", 2), ("b-through", 5)):
        with admin_client.consumer(group, start="first") as inbox:
            inbox.subscribe("b-stats")
            for _ in range(count):
                inbox.recv(30).ack()
    document = admin_cli.json("brokerConsumeStats", "-b", "{broker}")
    rows = {row["group"]: row for row in document["rows"] if row["topic"] == "b-stats"}
    row = rows["b-readers"]
    assert (row["broker_offset"], row["consumer_offset"], row["diff"], row["queue_id"]) == (5, 2, 3, 0)
    assert row["last_time_ms"] > 0 and document["total_diff"] >= 3
    assert rows["b-through"]["diff"] == 0, "groups without a backlog are listed, too"
    lines = admin_cli.text("brokerConsumeStats", "-b", "{broker}", "-l", "3", "-t", "5000", "-o", "false").splitlines()
    assert lines[0] == STATS_HEAD and lines[-2:] == ["", f"Diff Total: {document['total_diff']}"]
    (line,) = [line for line in lines if line.startswith("b-stats ")]
    start = f"{'b-stats':<64}  {'b-readers':<64}  {'broker-a':<32}  {0:<4}  {5:<20}  {2:<20}  {3:<20}  "
    assert line.startswith(start) and re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line.removeprefix(start))
    assert "b-stats" not in admin_cli.text("brokerConsumeStats", "-b", "{broker}", "-l", "4")
    assert "b-stats" not in admin_cli.text("brokerConsumeStats", "-b", "{broker}", "-o", "true")
    assert admin_cli.run("brokerConsumeStats")[0] == 1


@pytest.mark.spec("C-13")
def test_broker_consume_stats_wait_as_long_as_asked(admin_cli: AdminCli, monkeypatch: pytest.MonkeyPatch) -> None:
    consume_statistics, timeouts = Brokers.consume_statistics, []

    async def timed(of: Brokers, address: str, *, ordered: bool, timeout_ms: int) -> ConsumeStatsList:
        timeouts.append(timeout_ms)
        return await consume_statistics(of, address, ordered=ordered, timeout_ms=timeout_ms)

    monkeypatch.setattr(Brokers, "consume_statistics", timed)
    for words in ((), ("-t", "7000")):
        admin_cli.text("brokerConsumeStats", "-b", "{broker}", *words)
    assert timeouts == [50_000, 7_000]


@pytest.mark.spec("C-13")
def test_broker_consume_stats_hides_queues_without_a_time() -> None:
    table = {
        MessageQueue("t" * 70, "b" * 40, 1): OffsetWrapper(5, 3, 1000),
        MessageQueue("t" * 70, "b" * 40, 0): OffsetWrapper(5, 3, 0),
    }
    found = ConsumeStatsList([{"g": [ConsumeStats(table)]}], "a", 4)
    (row,) = brokers._progress_rows(found, 0)
    assert [str(cell) for cell in row[:7]] == ["t" * 64, "g", "b" * 32, "1", "5", "3", "2"]
    assert not list(brokers._progress_rows(found, 3))


@pytest.mark.spec("C-18")
def test_query_cq_prints_units(admin_cli: AdminCli, admin_client: saturnmq.sync.Client) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "b-units", "-r", "1", "-w", "1")
    with admin_client.producer("p") as out:
        for _ in range(12):
            out.send("b-units", b"x", tag="TagA")
    lines = admin_cli.text("queryCq", "-t", "b-units", "-q", "0", "-i", "1").splitlines()
    assert lines[:4] == ["Queue data: ", "max: 12, min: 0", LINE, "idx: 1"]
    unit = r"ConsumeQueueData\{physicOffset=\d+, physicSize=\d+, tagsCode=2598919, extendDataJson='null', "
    assert re.fullmatch(unit + r"bitMap='null', eval=false, msg='null'\}", lines[4]) and lines[5] == LINE
    assert [line for line in lines if line.startswith("idx: ")] == [f"idx: {at}" for at in range(1, 11)]
    code, bounds, err = admin_cli.run("queryCq", "-t", "b-units", "-q", "0", "-i", "99")
    assert (code, bounds) == (0, f"Queue data: \nmax: 12, min: 0\n{LINE}\n") and "Index 99 of 0@b-units" in err
    few = admin_cli.json("queryCq", "-t", "b-units", "-q", "0", "-i", "3", "-c", "2", "-b", "{broker}")
    assert [row["index"] for row in few["rows"]] == [3, 4] and (few["max_index"], few["min_index"]) == (12, 0)


@pytest.mark.spec("C-18")
def test_query_cq_asks_the_first_broker_of_the_route(admin_cli: AdminCli) -> None:
    with ExitStack() as brokers:
        for port, name in enumerate(("b-cq", "a-cq", "c-cq"), 1):
            brokers.enter_context(registered(admin_cli.server, name, f"127.0.0.1:{port}", "b-three"))
        first = admin_cli.json("topicRoute", "-t", "b-three")["rows"][0]["broker_datas"][0]["broker_addrs"]["0"]
        code, out, err = admin_cli.run("queryCq", "-t", "b-three", "-q", "0", "-i", "0")
        assert (code, out) == (4, "") and [f"127.0.0.1:{port}" in err for port in (1, 2, 3)] == [
            first == f"127.0.0.1:{port}" for port in (1, 2, 3)
        ]
        for asked in (1, 2, 3):
            err = admin_cli.run("queryCq", "-t", "b-three", "-q", "0", "-i", "0", "-b", f"127.0.0.1:{asked}")[2]
            assert [port for port in (1, 2, 3) if f"127.0.0.1:{port}" in err] == [asked]


@pytest.mark.spec("C-18")
def test_query_cq_shows_the_filter_of_a_group(admin_cli: AdminCli, admin_client: saturnmq.sync.Client) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "b-filter", "-r", "1", "-w", "1")
    words = ("queryCq", "-t", "b-filter", "-q", "0", "-i", "0", "-c", "1")
    with admin_client.producer("p") as out:
        out.send("b-filter", b"x", tag="TagA")
    lines = admin_cli.text(*words, "-g", "b-unknown").splitlines()
    assert lines[:3] == ["Filter data: ", "b-unknown@b-filter is not online!", LINE]
    with admin_client.consumer("b-filters", start="first") as inbox:
        inbox.subscribe("b-filter", "TagA || TagB")
        inbox.recv(30).ack()
        lines = admin_cli.text(*words, "-g", "b-filters").splitlines()
        assert lines[:2] == ["Subscription data: ", "{"]
        assert '\t"subString":"TagA || TagB",' in lines and lines[lines.index("}") + 1] == LINE
        assert next(line for line in lines if line.startswith("ConsumeQueueData")).count("eval=true") == 1
    with admin_client.consumer("b-sql", start="first") as inbox:
        inbox.subscribe("b-filter", sql("TAGS = 'TagA'"))
        inbox.recv(30).ack()
        lines = admin_cli.text(*words, "-g", "b-sql").splitlines()
        record = json.loads(lines[lines.index("Filter data: ") + 1])
        assert (record["consumerGroup"], record["expression"]) == ("b-sql", "TAGS = 'TagA'")
    for wrong in (("-t", "nowhere", "-q", "0"), ("-t", "b-filter", "-q", "77")):
        code, out_text, err = admin_cli.run("queryCq", *wrong, "-i", "0")
        assert (code, out_text) == (1, "") and err


# ---- cleaning


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("cleanExpiredCQ", marks=pytest.mark.spec("C-15")),
        pytest.param("deleteExpiredCommitLog", marks=pytest.mark.spec("C-16")),
        pytest.param("cleanUnusedTopic", marks=pytest.mark.spec("C-17")),
    ],
)
def test_cleaning_prints_one_word(admin_cli: AdminCli, command: str) -> None:
    for place in (("-b", "{broker}"), ("-c", "DefaultCluster"), ()):
        assert admin_cli.text(command, *place) == "success"
    code, out, err = admin_cli.run(command, "-c", "Nowhere")
    assert (code, out) == (1, "false") and "Nowhere" in err and "DefaultCluster" in err
    code, out, err = admin_cli.run(command, "-b", "127.0.0.1:1")
    assert (code, out) == (1, "") and "127.0.0.1:1" in err
    code, out, err = admin_cli.run(command, "--dry-run")
    assert (code, out) == (0, "") and f"dry run: {admin_cli.server.broker_address}" in err
