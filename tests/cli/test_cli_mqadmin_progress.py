"""Commands of mqadmin on progress, clients and offsets of groups: options, columns, texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from admincli import AdminCli

import saturnmq.sync
from saturnmq.admin.groups import GroupSummary
from saturnmq.admin.statistics import Flow, GroupFlow, TopicFlow
from saturnmq.cli.mqadmin import groups, stats
from saturnmq.protocol.bodies import Connection, ConsumerConnection, ConsumeStats, MessageQueue, OffsetWrapper
from saturnmq.testing.embedded import SyncEmbeddedBroker

OFFLINE = ["#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset", "#rollbackOffset"]
WITH_CLIENTS = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s  %s"
CLIENT = "%-36s %-22s %-10s %s"
SUBSCRIPTION = "%-20s %s"


@pytest.fixture(scope="module")
def client(embedded: SyncEmbeddedBroker) -> Iterator[saturnmq.sync.Client]:
    """A client with messages in two queues, a group `reader` that is connected and has consumed them, and a producer."""
    with saturnmq.sync.Client.from_url(embedded.url) as client, client.producer("shown-p") as out:
        client.create_topic("shown", queues=2)
        for number in range(6):
            out.send("shown", b"x", shard_by=number)
        with client.consumer("reader", start="first") as inbox:
            inbox.subscribe("shown", "*")
            for _ in range(6):
                inbox.recv(timeout=30).ack()
            puller = client.puller()
            for queue in puller.queues("shown"):
                puller.commit("reader", queue, puller.max_offset(queue))
            yield client


def commit(client: saturnmq.sync.Client, group: str, offset: int = 1) -> int:
    """Commit an offset in each queue of the topic; returns how many messages are not consumed then."""
    puller = client.puller()
    queues = puller.queues("shown")
    for queue in queues:
        puller.commit(group, queue, offset)
    return sum(puller.max_offset(queue) - offset for queue in queues)


@pytest.mark.spec("C-37")
def test_consumer_progress_of_a_group(
    admin_cli: AdminCli, client: saturnmq.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = SimpleNamespace(over=lambda _: SimpleNamespace(tps=2.5))
    monkeypatch.setattr(
        admin_cli.server.inner.broker.stats.sets, "find", lambda name, key: counted if key == "shown@reader" else None
    )
    lines = admin_cli.text("consumerProgress", "-g", "reader").splitlines()
    layout = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"
    columns = ("#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#LastTime")
    assert lines[0] == layout % columns
    assert lines[-3:-1] == ["", "Consume TPS: 2.50"]
    assert re.fullmatch(r"Diff Total: -?\d+", lines[-1])
    rows = [line.split() for line in lines[1:-3]]
    assert [row[2] for row in rows if row[0] == "shown"] == ["0", "1"]
    with_clients = admin_cli.text("consumerProgress", "-g", "reader", "-s", "true").splitlines()
    assert with_clients[0] == WITH_CLIENTS % (*columns[:5], "#Client IP", *columns[5:])
    shown = [line.split() for line in with_clients[1:] if line.startswith("shown")]
    assert {row[5] for row in shown} == {"127.0.0.1"}


@pytest.mark.spec("C-37")
def test_consumer_progress_of_all_groups(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    lines = admin_cli.text("consumerProgress").splitlines()
    layout = "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s"
    assert lines[0] == layout % ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total")
    (row,) = [line.split() for line in lines if line.startswith("reader")]
    assert row[1:5] == ["1", "V4_9_7", "PUSH", "CLUSTERING"]
    (as_json,) = [row for row in admin_cli.json("consumerProgress")["rows"] if row["group"] == "reader"]
    assert as_json["count"] == 1 and isinstance(as_json["tps"], float)
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "%RETRY%away", "-r", "1", "-w", "1")
    unread = commit(client, "away")
    (row,) = [line.split() for line in admin_cli.text("consumerProgress").splitlines() if line.startswith("away")]
    assert row == ["away", "0", "OFFLINE", "0", str(unread)]
    *rows, _, tps, diff = admin_cli.text("consumerProgress", "-g", "away").splitlines()[1:]
    cells = [row.split() for row in rows]
    assert [(cell[0], cell[1], cell[2], cell[4]) for cell in cells] == [
        ("shown", "broker-a", "0", "1"), ("shown", "broker-a", "1", "1"),
    ]  # fmt: skip
    assert sum(int(cell[3]) for cell in cells) == 6 and all(int(c[5]) == int(c[3]) - int(c[4]) for c in cells)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", " ".join(cell[6:])) for cell in cells)
    assert (tps, diff) == ("Consume TPS: 0.00", f"Diff Total: {unread}")
    commit(client, "away", 0)
    rows = admin_cli.text("consumerProgress", "-g", "away").splitlines()[1:3]
    assert [row.split()[-1] for row in rows] == ["N/A", "N/A"], "no message was consumed"
    member = Connection("c", "127.0.0.1:1", "JAVA", 407)
    pulls = ConsumerConnection([member], {}, "CONSUME_ACTIVELY", "CLUSTERING")
    pushes = ConsumerConnection([member, member], {}, "CONSUME_PASSIVELY", "BROADCASTING")
    progress = ConsumeStats({MessageQueue("t", "b", number): OffsetWrapper(9, 4, 0) for number in range(2)}, 2.5)
    for summary, row in (
        (GroupSummary("p", None, pulls), ["p", "1", "V4_9_7", "PULL", "", "0", "0"]),
        (GroupSummary("p", progress, pushes), ["p", "2", "V4_9_7", "PUSH", "BROADCASTING", "2", "10"]),
        (GroupSummary("p", progress), ["p", "0", "OFFLINE", "", "", "2", "10"]),
    ):
        assert [str(cell) for cell in groups._summary_row(summary)] == row


@pytest.mark.spec("C-36")
def test_consumer_connection(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    for place in ((), ("-b", "{broker}")):
        lines = admin_cli.text("consumerConnection", "-g", "reader", *place).splitlines()
        assert lines[0] == CLIENT % ("#ClientId", "#ClientAddr", "#Language", "#Version")
        assert lines[1].split()[0] == client.client_id and lines[1].split()[2:] == ["PYTHON", "V4_9_7"]
        assert lines[2:5] == ["", "Below is subscription:", SUBSCRIPTION % ("#Topic", "#SubExpression")]
        assert sorted(lines[5:7]) == [SUBSCRIPTION % (topic, "*") for topic in ("%RETRY%reader", "shown")]
        assert lines[7:10] == ["", "ConsumeType: CONSUME_PASSIVELY", "MessageModel: CLUSTERING"]
        assert lines[10:] == ["ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET"]


@pytest.mark.spec("C-36", "C-38")
@pytest.mark.parametrize("words", [("consumerConnection",), ("consumerStatus",), ("consumerStatus", "-i", "reader-1")])
def test_only_the_named_broker_is_asked_for_consumers(
    admin_cli: AdminCli,
    client: saturnmq.sync.Client,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # consumerStatus writes files there
    code, out, err = admin_cli.run(*words, "-g", "reader", "-b", "127.0.0.1:1")
    assert (code, out) == (4, "") and "127.0.0.1:1" in err


@pytest.mark.spec("C-39", "C-40")
def test_producers(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    text = admin_cli.text("producerConnection", "-g", "shown-p", "-t", "shown")
    assert re.fullmatch(rf"0001  {re.escape(client.client_id)} +127\.0\.0\.1:\d+ +PYTHON   V4_9_7\n", text)
    pattern = (
        rf"producer group \(shown-p\) instance : clientId={re.escape(client.client_id)},remoteIP=/127\.0\.0\.1:\d+, "
        r"language=PYTHON, version=407, lastUpdateTimestamp=\d+"
    )
    assert re.search(f"(?m)^{pattern}$", admin_cli.text("producer", "-b", "{broker}"))


@pytest.mark.parametrize(
    "words",
    [("consumerConnection", "-g", "unknown"), ("consumerProgress", "-g", "unknown"),
     ("producerConnection", "-g", "unknown", "-t", "shown")],
)  # fmt: skip
def test_unknown_groups_are_errors(admin_cli: AdminCli, client: saturnmq.sync.Client, words: tuple[str, ...]) -> None:
    code, out, err = admin_cli.run(*words)
    assert code == 1 and not out and "unknown" in err


@pytest.mark.spec("C-41", "ADM-26")
def test_reset_of_a_group_without_clients(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    behind = commit(client, "away")
    text = admin_cli.text("resetOffsetByTime", "-g", "away", "-t", "shown", "-s", "now")
    head, columns, *rows = text.splitlines()
    assert head == (
        "rollback consumer offset by specified consumerGroup[away], topic[shown], force[true], timestamp(string)[now], "
        "timestamp(long)[-1]"
    )
    assert columns == "  ".join(f"{name:<20}" for name in OFFLINE)
    cells = [[int(cell) for cell in row.split()[1:]] for row in rows]
    assert sum(row[4] - row[2] for row in cells) == behind and all(row[1] == row[3] == row[4] for row in cells)


@pytest.mark.spec("C-41", "ADM-26")
def test_reset_without_force_never_moves_forward(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    commit(client, "held")
    (row, *_) = admin_cli.json("resetOffsetByTime", "-g", "held", "-t", "shown", "-s", "now", "-f", "false")["rows"]
    assert (row["consumer_offset"], row["rollback_offset"]) == (1, 1) and row["timestamp_offset"] > 1
    date = "2020-01-01#00:00:00:000"
    (row, *_) = admin_cli.json("resetOffsetByTime", "-g", "held", "-t", "shown", "-s", date, "-f", "false")["rows"]
    assert (row["consumer_offset"], row["rollback_offset"]) == (1, 0)


@pytest.mark.spec("ADM-26")
def test_a_group_that_never_ran_can_be_positioned(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    text = admin_cli.text("skipAccumulatedMessage", "-g", "never", "-t", "shown")
    assert text.splitlines()[0] == "  ".join(f"{name:<20}" for name in OFFLINE)
    puller = client.puller()
    assert all(puller.committed("never", queue) == puller.max_offset(queue) for queue in puller.queues("shown"))


@pytest.mark.spec("C-41", "C-42")
def test_reset_of_a_connected_group(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    columns = "  ".join(f"{name:<40}" for name in ("#brokerName", "#queueId", "#offset"))
    head, names, *rows = admin_cli.text(
        "resetOffsetByTime", "-g", "reader", "-t", "shown", "-s", "now", "-c"
    ).splitlines()
    assert head == (
        "rollback consumer offset by specified group[reader], topic[shown], force[true], timestamp(string)[now], "
        "timestamp(long)[-1]"
    )
    assert names == columns and sum(int(row.split()[2]) for row in rows) == 6
    names, *rows = admin_cli.text("skipAccumulatedMessage", "-g", "reader", "-t", "shown", "-f", "false").splitlines()
    assert names == columns and len(rows) == 2


def test_a_wrong_time_is_refused_with_the_forms(admin_cli: AdminCli) -> None:
    code, out, err = admin_cli.run("resetOffsetByTime", "-g", "x", "-t", "shown", "-s", "yesterday")
    assert code == 1 and out.startswith("usage: mqadmin resetOffsetByTime") and "yyyy-MM-dd#HH:mm:ss:SSS" in err


def test_dry_run_of_a_reset_commits_nothing(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    commit(client, "dry")
    code, _, err = admin_cli.run("resetOffsetByTime", "-g", "dry", "-t", "shown", "-s", "now", "--dry-run")
    puller = client.puller()
    assert code == 0 and err.count("UPDATE_CONSUMER_OFFSET") == 2
    assert all(puller.committed("dry", queue) == 1 for queue in puller.queues("shown"))


@pytest.mark.spec("C-43")
def test_clone_group_offset(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    puller = client.puller()
    source = {queue: puller.committed("reader", queue) for queue in puller.queues("shown")}
    text = admin_cli.text("cloneGroupOffset", "-s", "reader", "-d", "copy", "-t", "shown", "-o", "true")
    assert text == "clone group offset success. srcGroup[reader], destGroup=[copy], topic[shown]"
    cloned = {queue: puller.committed("copy", queue) for queue in source}
    assert cloned == source


@pytest.mark.spec("C-44")
def test_stats_all(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "%DLQ%reader")
    for _ in admin_cli.server.inner.broker.stats.sample_sets():
        pass
    head, *rows = admin_cli.text("statsAll").splitlines()
    layout = "%-64s  %-64s %12s %11s %11s %14s %14s"
    columns = ("#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour")
    assert head == layout % columns
    assert not [row for row in rows if row.startswith(("%RETRY%", "%DLQ%"))]
    assert any(row.split()[:2] == ["shown", "reader"] for row in rows)
    (lonely,) = [row for row in rows if row.startswith("TBW102")]
    assert lonely == layout % ("TBW102", "", 0, "0.00", "", 0, "NO_CONSUMER")
    assert {row.split()[0] for row in admin_cli.text("statsAll", "-t", "shown").splitlines()[1:]} == {"shown"}
    active = admin_cli.text("statsAll", "-a")
    assert "TBW102" not in active
    (row,) = [row.split() for row in active.splitlines() if row.split()[1] == "reader"]
    assert row[5] == "6"
    sent_and_read = TopicFlow("orders", Flow(1.5, 70), [GroupFlow("billing", Flow(0.5, 60), 8)])
    (cells,) = stats._rows(sent_and_read, only_active=True)
    assert [str(cell) for cell in cells] == ["orders", "billing", "8", "1.50", "0.50", "70", "60"]


@pytest.mark.spec("C-38")
def test_consumer_status(
    admin_cli: AdminCli, client: saturnmq.sync.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in ((), ("-b", "{broker}"), ("-s",)):
        lines = admin_cli.text("consumerStatus", "-g", "reader", *words).splitlines()
        layout = "%-10s %-40s %-20s %s"
        assert lines[0] == layout % ("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile")
        number, client_id, version, path = lines[1].split()
        assert (number, client_id, version) == ("1", client.client_id, "V4_9_7")
        assert re.fullmatch(rf"\d{{13}}/{re.escape(client_id)}", path)
        assert lines[2:] == ["", "", "Same subscription in the same group of consumer", "", "Rebalance OK"]
        text = (tmp_path / path).read_text()
        assert ("#Consumer jstack#" in text) == (words == ("-s",))


@pytest.mark.spec("C-38")
def test_consumer_status_of_one_client_prints_its_state(admin_cli: AdminCli, client: saturnmq.sync.Client) -> None:
    lines = admin_cli.text("consumerStatus", "-g", "reader", "-i", client.client_id).splitlines()
    heads = [line for line in lines if re.fullmatch("#Consumer [A-Z].*#", line)]
    names = ("Properties", "Subscription", "Offset", "MQ Detail", "RT&TPS")
    assert heads == [f"#Consumer {name}#" for name in names]
    assert f"001 Topic: {'%RETRY%reader':<40} ClassFilter: {'false':<8} SubExpression: *" in lines
    (row,) = admin_cli.json("consumerStatus", "-g", "reader")["rows"]
    assert row["client_id"] == client.client_id and {queue["topic"] for queue in row["queues"]} >= {"shown"}
