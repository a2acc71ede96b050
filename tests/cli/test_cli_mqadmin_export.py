"""Commands that export what a cluster consists of."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from admincli import AdminCli, registered

import saturnmq.sync
from saturnmq.admin.export import _add, _growth, _rate
from saturnmq.broker.services.statistics import Stats
from saturnmq.cli.mqadmin import export

TOPIC, GROUP = "Exported", "exported-group"


@pytest.fixture(autouse=True)
def content(admin_cli: AdminCli) -> None:
    for words in (
        ("updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", "3", "-w", "2"),
        ("updateTopic", "-c", "DefaultCluster", "-t", f"%RETRY%{GROUP}", "-r", "1", "-w", "1"),
        ("updateTopic", "-c", "DefaultCluster", "-t", "Exported-too"),
        ("updateSubGroup", "-c", "DefaultCluster", "-g", GROUP, "-q", "2"),
    ):
        admin_cli.text(*words)


def exported(admin_cli: AdminCli, folder: Path, name: str, *words: str, end: str = "") -> dict[str, Any]:
    """The document that a command writes; checks what it prints."""
    assert admin_cli.text(*words, "-f", str(folder)) == f"export {folder}/{name}.json success{end}"
    document: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return document


@pytest.mark.spec("C-55")
def test_metadata_has_topics_and_groups_of_users(admin_cli: AdminCli, tmp_path: Path) -> None:
    of_cluster = ("exportMetadata", "-c", "DefaultCluster")
    found = exported(admin_cli, tmp_path / "new" / "folder", "metadata", *of_cluster, end="\n")
    assert set(found) == {"topicConfigTable", "subscriptionGroupTable", "exportTime"}
    assert found["topicConfigTable"][TOPIC] | {"perm": 6} == found["topicConfigTable"][TOPIC]
    assert (found["topicConfigTable"][TOPIC]["readQueueNums"], found["topicConfigTable"][TOPIC]["writeQueueNums"]) == (
        3,
        2,
    )
    assert found["subscriptionGroupTable"][GROUP]["retryQueueNums"] == 2
    assert f"%RETRY%{GROUP}" not in found["topicConfigTable"] and "TBW102" not in found["topicConfigTable"]
    assert "TOOLS_CONSUMER" not in found["subscriptionGroupTable"]
    admin_cli.text("updateTopic", "-c", "DefaultCluster", "-t", f"%DLQ%{GROUP}", "-r", "1", "-w", "1")
    special = {f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"}
    assert not special & exported(admin_cli, tmp_path, "topic", *of_cluster, "-t", end="\n")["topicConfigTable"].keys()
    assert special <= exported(admin_cli, tmp_path, "topic", *of_cluster, "-ts", end="\n")["topicConfigTable"].keys()
    assert export.FOLDER == "/tmp/rocketmq/export"
    assert set(exported(admin_cli, tmp_path, "subscriptionGroup", *of_cluster, "-g", end="\n")) == {
        "subscriptionGroupTable", "exportTime",
    }  # fmt: skip
    of_broker = ("exportMetadata", "-b", "{broker}")
    code, out, err = admin_cli.run(*of_broker)
    assert (code, out) == (1, "") and "-b needs -t" in err
    broker = admin_cli.server.broker_address
    folder = str(tmp_path / "broker")
    for name, letter, key in (
        ("topic", "-t", "topicConfigTable"),
        ("subscriptionGroup", "-g", "subscriptionGroupTable"),
    ):
        assert admin_cli.run("exportMetadata", "-b", broker, letter, "-f", folder)[0] == 0
        assert set(json.loads(Path(folder, f"{name}.json").read_text())) == {key, "dataVersion"}


def twice(admin_cli: AdminCli) -> AbstractContextManager[None]:
    """The broker as a second master of the cluster, under another name and address."""
    port = admin_cli.server.broker_address.rpartition(":")[2]
    return registered(admin_cli.server, "broker-b", f"localhost:{port}")


@pytest.mark.spec("C-55")
def test_metadata_of_a_cluster_has_the_sums_over_its_brokers(admin_cli: AdminCli, tmp_path: Path) -> None:
    with twice(admin_cli):
        found = exported(admin_cli, tmp_path, "metadata", "exportMetadata", "-c", "DefaultCluster", end="\n")
    topic, group = found["topicConfigTable"][TOPIC], found["subscriptionGroupTable"][GROUP]
    assert (topic["readQueueNums"], topic["writeQueueNums"], group["retryQueueNums"]) == (6, 4, 4)


@pytest.mark.spec("C-55")
def test_queues_of_several_brokers_are_added_up() -> None:
    table = {"t": {"writeQueueNums": 2, "readQueueNums": 3, "perm": 6}}
    _add(
        table, {"t": {"writeQueueNums": 8, "readQueueNums": 8, "perm": 4}, "u": {}}, ("writeQueueNums", "readQueueNums")
    )
    assert table == {"t": {"writeQueueNums": 10, "readQueueNums": 11, "perm": 4}, "u": {}}


@pytest.mark.spec("C-56", "ADM-28")
def test_configs_have_16_settings_per_master_and_the_scale(admin_cli: AdminCli, tmp_path: Path) -> None:
    found = exported(admin_cli, tmp_path, "configs", "exportConfigs", "-c", "DefaultCluster")
    assert {name: set(config) for name, config in found["brokerConfigs"].items()} == {"broker-a": {
        "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums",
        "flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn",
        "traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
    }}  # fmt: skip
    assert found["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 1, "slaveBrokerSize": 0}
    with registered(admin_cli.server, "broker-a", "127.0.0.1:1", broker_id=1):
        found = exported(admin_cli, tmp_path, "configs", "exportConfigs", "-c", "DefaultCluster")
    assert found["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 1, "slaveBrokerSize": 1}


@pytest.mark.spec("C-57")
def test_metrics_have_load_size_and_clients(
    admin_cli: AdminCli, admin_client: saturnmq.sync.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stats, "sample", lambda *_: ())  # only the test samples
    with admin_client.consumer(GROUP) as consumer:
        consumer.subscribe(TOPIC)
        with admin_client.producer("exported-p") as out:
            out.send(TOPIC, b"x", delay=timedelta(hours=1))
        for _ in admin_cli.server.inner.broker.stats.sample_sets():
            pass
        metadata = exported(admin_cli, tmp_path, "metadata", "exportMetadata", "-c", "DefaultCluster", end="\n")
        found = exported(admin_cli, tmp_path, "metrics", "exportMetrics", "-c", "DefaultCluster")
        with twice(admin_cli):
            doubled = exported(admin_cli, tmp_path, "metrics", "exportMetrics", "-c", "DefaultCluster")["totalData"]
    assert list(found["evaluateReport"]) == ["broker-a"]
    broker = found["evaluateReport"]["broker-a"]
    assert set(broker) == {"runtimeEnv", "runtimeQuota", "runtimeVersion"}
    assert int(broker["runtimeEnv"]["cpuNum"]) >= 0
    quota = broker["runtimeQuota"]
    assert set(quota) == {"diskRatio", "tps", "oneDayNum", "messageAverageSize", "topicSize", "groupSize"}
    assert set(quota["tps"]) == {"normalInTps", "normalOutTps", "transInTps", "scheduleInTps"}
    assert set(quota["diskRatio"]) == {"commitLogDiskRatio", "consumeQueueDiskRatio"}
    assert float(quota["messageAverageSize"]) > 100
    assert quota["topicSize"] == len(metadata["topicConfigTable"])
    assert quota["groupSize"] == len(metadata["subscriptionGroupTable"])
    assert quota["oneDayNum"]["scheduleOneDayInNum"] == 1 and quota["tps"]["scheduleInTps"] > 0
    assert broker["runtimeVersion"] == {"rocketmqVersion": "V4_9_7", "clientInfo": ["PYTHON%V4_9_7"]}
    assert found["totalData"]["totalTps"] == {f"total{k[0].upper()}{k[1:]}": v for k, v in quota["tps"].items()}
    assert found["totalData"]["totalOneDayNum"] == quota["oneDayNum"]
    assert doubled["totalOneDayNum"] == {name: 2 * count for name, count in quota["oneDayNum"].items()}
    assert doubled["totalTps"]["totalScheduleInTps"] == 2 * quota["tps"]["scheduleInTps"]


def test_values_of_the_first_seconds_are_zero() -> None:
    assert (
        _rate({"putTps": "  "}, "putTps") == _rate({}, "putTps") == 0.0
        and _rate({"putTps": "2.5 1 0"}, "putTps") == 2.5
    )
    assert _growth({}, "msgPutTotal") == 0
    assert _growth({"msgPutTotalTodayMorning": "7", "msgPutTotalYesterdayMorning": "3"}, "msgPutTotal") == 4


def test_unknown_cluster_is_named_and_nothing_written(admin_cli: AdminCli, tmp_path: Path) -> None:
    for command in ("exportMetadata", "exportConfigs", "exportMetrics"):
        code, out, _ = admin_cli.run(command, "-c", "Nowhere", "-f", str(tmp_path / "x"))
        assert code == 1 and out.startswith("[error] Make sure the specified clusterName exists")
    assert not (tmp_path / "x").exists()


def test_export_follows_no_link_of_another_user(
    admin_cli: AdminCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    folder = tmp_path / "rocketmq" / "export"
    folder.mkdir(parents=True)
    (folder / "configs.json").symlink_to(victim)
    monkeypatch.setattr(export, "FOLDER", str(folder))
    admin_cli.text("exportConfigs", "-c", "DefaultCluster")
    assert victim.read_text() == "kept" and json.loads((folder / "configs.json").read_text())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(export, "FOLDER", str(tmp_path / "link" / "export"))
    (tmp_path / "link").symlink_to(elsewhere)
    code, _, err = admin_cli.run("exportConfigs", "-c", "DefaultCluster")
    assert code == 1 and "belongs to another user" in err and not any(elsewhere.iterdir())
