"""Commands of mqadmin on topics: options, defaults, columns, texts."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest
from admincli import AdminCli, registered

import saturnmq.sync
from saturnmq.admin.sync import Admin

CONFIG = (
    "TopicConfig [topicName={0}, readQueueNums={1}, writeQueueNums={2}, perm={3}, topicFilterType=SINGLE_TAG, "
    "topicSysFlag={4}, order={5}]"
)
UNKNOWN = "[error] Make sure the specified clusterName exists or the name server connected to is correct."


def queues_of(admin_cli: AdminCli, topic: str) -> tuple[int, int, int, int]:
    """Read queues, write queues, permission and flag of the first route entry of a topic."""
    (row,) = admin_cli.json("topicRoute", "-t", topic)["rows"]
    entry = row["queue_datas"][0]
    return entry["read_queue_nums"], entry["write_queue_nums"], entry["perm"], entry["topic_sys_flag"]


# ---- updateTopic


@pytest.mark.spec("C-01")
def test_update_topic_has_the_defaults_of_mqadmin(admin_cli: AdminCli) -> None:
    for place in (("-b", "{broker}"), ("-c", "DefaultCluster")):
        text = admin_cli.text("updateTopic", *place, "-t", "t-default")
        assert text == "create topic to {broker} success.\n" + CONFIG.format("t-default", 8, 8, "RW-", 0, "false")
        assert queues_of(admin_cli, "t-default") == (8, 8, 6, 0)


@pytest.mark.spec("C-01")
def test_update_topic_sets_every_option_and_overwrites_the_others(admin_cli: AdminCli) -> None:
    words = ["--topic", "t-all", "-r", "2", "-w", "3", "-p", "4", "-u", "true", "-s", "TRUE"]
    text = admin_cli.text("updateTopic", "-b", "{broker}", *words)
    assert text.endswith("success.\n" + CONFIG.format("t-all", 2, 3, "R--", 3, "false"))
    assert queues_of(admin_cli, "t-all") == (2, 3, 4, 3)
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-all", "-w", "5")
    assert queues_of(admin_cli, "t-all") == (8, 5, 6, 0)
    for option, system_flags in (("-u", 1), ("-s", 2)):
        admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-all", option, "true")
        assert queues_of(admin_cli, "t-all") == (8, 8, 6, system_flags)


@pytest.mark.spec("C-01")
def test_update_topic_orders_a_broker_or_a_cluster(admin_cli: AdminCli) -> None:
    admin_cli.text("updateOrderConf", "-t", "t-order", "-m", "put", "-v", "broker-b:4")
    text = admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-order", "-o", "true", "-w", "6")
    first = "set broker orderConf. isOrder=true, orderConf=[broker-a:6]create topic to {broker} success.\n"
    assert text == first + CONFIG.format("t-order", 8, 6, "RW-", 0, "true")
    (row,) = admin_cli.json("updateOrderConf", "-t", "t-order", "-m", "get")["rows"]
    assert row["order_conf"] == "broker-b:4;broker-a:6"
    text = admin_cli.text("updateTopic", "-c", "DefaultCluster", "-t", "t-order", "-o", "true")
    second = "create topic to {broker} success.\nset cluster orderConf. isOrder=true, orderConf=[broker-a:8]"
    assert text == second + CONFIG.format("t-order", 8, 8, "RW-", 0, "true")
    (row,) = admin_cli.json("updateOrderConf", "-t", "t-order", "-m", "get")["rows"]
    assert row["order_conf"] == "broker-a:8"


@pytest.mark.parametrize("place", [("-b", "{broker}"), ("-c", "DefaultCluster")])
def test_a_broker_knows_an_ordered_topic_when_update_topic_returns(admin_cli: AdminCli, place: tuple[str, str]) -> None:
    topic = f"t-ordered{place[0]}"
    admin_cli.text("updateTopic", *place, "-t", topic, "-o", "true")
    with Admin(admin_cli.server.name_servers) as admin:
        config = admin.topics.configuration(admin_cli.server.broker_address, topic)
    assert config is not None and config.order


def test_update_topic_keeps_what_is_not_given(admin_cli: AdminCli) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-keep", "-r", "2", "-w", "3", "-p", "4")
    text = admin_cli.text("updateTopic", "-c", "DefaultCluster", "-t", "t-keep", "-w", "5", "--keep")
    assert text.endswith(CONFIG.format("t-keep", 2, 5, "R--", 0, "false"))
    assert queues_of(admin_cli, "t-keep") == (2, 5, 4, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-t", "x"), "-b | -c"),
        (("-c", "C", "-b", "a", "-t", "x"), "already selected"),
        (("-c", "C"), "Missing required option: t"),
        (("-b", "{broker}", "-t", "x", "-r", "many"), "whole number"),
    ],
)
def test_update_topic_refuses_wrong_options(admin_cli: AdminCli, words: tuple[str, ...], message: str) -> None:
    code, out, err = admin_cli.run("updateTopic", *words)
    assert code == 1 and out.startswith("usage: mqadmin updateTopic -b <arg> | -c <arg>  [-h]") and message in err


@pytest.mark.spec("ADM-07")
@pytest.mark.parametrize("command", ["updateTopic", "deleteTopic", "updateTopicPerm -p 4"])
def test_an_unknown_cluster_is_named_and_nothing_is_claimed(admin_cli: AdminCli, command: str) -> None:
    code, out, err = admin_cli.run(*command.split(), "-t", "BenchmarkTest", "-c", "Nowhere")
    assert (code, out) == (1, UNKNOWN)
    assert "no cluster 'Nowhere'" in err and "DefaultCluster" in err and "saturnmq admin clusterList" in err


def test_dry_run_changes_nothing_and_says_so(admin_cli: AdminCli) -> None:
    code, out, err = admin_cli.run("updateTopic", "-b", "{broker}", "-t", "t-dry", "--dry-run")
    assert (code, out) == (0, "") and "UPDATE_AND_CREATE_TOPIC topic=t-dry" in err
    assert "t-dry" not in admin_cli.text("topicList").splitlines()


# ---- deleteTopic, updateTopicPerm, updateOrderConf


@pytest.mark.spec("C-02")
def test_delete_topic_removes_it_from_brokers_and_name_servers(admin_cli: AdminCli) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-gone")
    text = admin_cli.text("deleteTopic", "-c", "DefaultCluster", "-t", "t-gone")
    assert text == (
        "delete topic [t-gone] from cluster [DefaultCluster] success.\ndelete topic [t-gone] from NameServer success.\n"
    )
    assert "t-gone" not in admin_cli.text("topicList").splitlines()
    for words in (("-t", "x"), ("-c", "x")):
        assert admin_cli.run("deleteTopic", *words)[0] == 1


def test_delete_topic_from_a_broker_only(admin_cli: AdminCli) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-one")
    server = admin_cli.server
    words = ("deleteTopic", "-c", "DefaultCluster", "-t", "t-one", "--broker")
    code, out, err = admin_cli.run(*words, "127.0.0.1:1")
    assert (code, out) == (1, "") and f"must be one of: {server.broker_address}" in err
    with Admin(server.name_servers) as admin:
        assert admin.topics.configuration(server.broker_address, "t-one") is not None
        assert admin_cli.text(*words, "{broker}") == "delete topic [t-one] from broker [{broker}] success.\n"
        assert admin.topics.configuration(server.broker_address, "t-one") is None


@pytest.mark.spec("C-03")
def test_update_topic_perm_on_a_broker(admin_cli: AdminCli) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-perm", "-r", "2", "-w", "3")
    text = admin_cli.text("updateTopicPerm", "-b", "{broker}", "-t", "t-perm", "-p", "4")
    first = "update topic perm from 6 to 4 in {broker} success.\n"
    assert text == first + CONFIG.format("t-perm", 2, 3, "R--", 0, "false") + ".\n"
    assert queues_of(admin_cli, "t-perm") == (2, 3, 4, 0)
    again = admin_cli.text("updateTopicPerm", "-b", "{broker}", "-t", "t-perm", "-p", "4")
    assert again == "new perm equals to the old one!\n"
    code, out, _ = admin_cli.run("updateTopicPerm", "-b", "127.0.0.1:1", "-t", "t-perm", "-p", "6")
    assert (code, out) == (1, "updateTopicPerm error broker not exit or broker is not master!.\n")


@pytest.mark.spec("C-03")
def test_update_topic_perm_in_a_cluster(admin_cli: AdminCli) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-perm2", "-r", "2", "-w", "3")
    text = admin_cli.text("updateTopicPerm", "-c", "DefaultCluster", "-t", "t-perm2", "-p", "2")
    assert text == "update topic perm from 6 to 2 in {broker} success.\n"
    assert queues_of(admin_cli, "t-perm2") == (2, 3, 2, 0)
    code, out, _ = admin_cli.run("updateTopicPerm", "-t", "t-perm2", "-p", "6")
    assert code == 1 and out.startswith("usage: mqadmin updateTopicPerm [-b <arg>] [-c <arg>] [-h] [-n <arg>] -p <arg>")
    assert admin_cli.run("updateTopicPerm", "-t", "nowhere", "-p", "6", "-c", "DefaultCluster")[:2] == (1, "")


@pytest.mark.spec("C-09")
def test_update_order_conf_puts_gets_and_deletes(admin_cli: AdminCli) -> None:
    order = ("updateOrderConf", "-t", "t-conf", "-m")
    pairs = "topic=[t-conf], orderConf=[broker-a:2;broker-b:4]"
    assert admin_cli.text(*order, "put", "-v", " broker-a:2;broker-b:4 ") == f"update orderConf success. {pairs}"
    assert admin_cli.text(*order, "get") == f"get orderConf success. {pairs} "
    assert admin_cli.text(*order, "delete") == "delete orderConf success. topic=[t-conf]"
    code, out, err = admin_cli.run(*order, "get")
    assert (code, out) == (1, "") and "ORDER_TOPIC_CONFIG" in err
    code, out, err = admin_cli.run(*order, "put")
    assert (code, out) == (1, "") and "please set orderConf with option -v." in err
    code, out, _ = admin_cli.run(*order, "other")
    assert code == 1 and out.startswith("usage: mqadmin updateOrderConf [-h] -m <arg> [-n <arg>] -t <arg> [-v <arg>]\n")


# ---- reading


@pytest.mark.spec("C-04")
def test_topic_route_is_indented_json_or_a_list(admin_cli: AdminCli) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-route", "-r", "2", "-w", "3", "-p", "4")
    text = admin_cli.text("topicRoute", "-t", "t-route")
    assert text.startswith('{\n\t"brokerDatas":[\n\t\t{\n\t\t\t"brokerAddrs":{0:"{broker}"\n\t\t\t},\n')
    assert text.endswith('"topicSysFlag":0,\n\t\t\t"writeQueueNums":3\n\t\t}\n\t]\n}\n')
    layout = "{:<45} {:<32} {:<50} {:<10} {:<11} {:<5}"
    address = f"{{0={admin_cli.server.broker_address}}}"
    code, out, _ = admin_cli.run("topicRoute", "-t", "t-route", "-l")
    assert code == 0 and out.splitlines() == [
        layout.format("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"),
        layout.format("DefaultCluster", "broker-a", address, 2, 3, 4),
        "-" * 158,
        layout.format("Total:", 1, "", 2, 3, ""),
    ]
    with registered(admin_cli.server, "broker-b", "127.0.0.1:1", "t-route"):
        lines = admin_cli.text("topicRoute", "-t", "t-route", "-l").splitlines()
    assert lines[-1] == layout.format("Total:", 2, "", 3, 4, "")
    assert admin_cli.run("topicRoute", "-t", "nowhere")[:2] == (1, "")


@pytest.mark.spec("C-05")
def test_topic_status_has_a_row_per_queue(admin_cli: AdminCli, admin_client: saturnmq.sync.Client) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-status", "-r", "2", "-w", "2")
    with admin_client.producer("p") as out:
        receipt = out.send("t-status", b"x")
    document = admin_cli.json("topicStatus", "-t", "t-status")
    row = document["rows"][receipt.queue.queue_id]
    assert (row["broker_name"], row["min_offset"], row["max_offset"]) == ("broker-a", 0, 1)
    assert row["last_updated_ms"] > 0 and row["last_updated"].endswith("+00:00")
    lines = admin_cli.text("topicStatus", "-t", "t-status").splitlines()
    layout = "{:<32}  {:<4}  {:<20}  {:<20}    {}"
    assert lines[0] == layout.format("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated")
    other = 1 - receipt.queue.queue_id
    assert lines[1 + other] == layout.format("broker-a", other, 0, 0, "")
    time = lines[1 + receipt.queue.queue_id].split("    ")[-1].strip()
    stored = admin_client.view_message(receipt.offset_message_id).stored_at.astimezone()
    assert time == f"{stored:%Y-%m-%d %H:%M:%S},{stored.microsecond // 1000:03}"
    assert admin_cli.run("topicStatus", "-t", "nowhere")[:2] == (1, "")


@pytest.mark.spec("C-06")
def test_topic_cluster_list(admin_cli: AdminCli) -> None:
    assert admin_cli.text("topicClusterList", "-t", "BenchmarkTest") == "DefaultCluster\n"
    assert admin_cli.run("topicClusterList", "-t", "nowhere")[:2] == (1, "")
    places = {"a-broker": "First", "b-broker": "Second"}
    with ExitStack() as brokers:
        for port, (name, cluster) in enumerate(places.items(), 1):
            brokers.enter_context(registered(admin_cli.server, name, f"127.0.0.1:{port}", "t-two", cluster=cluster))
        first = admin_cli.json("topicRoute", "-t", "t-two")["rows"][0]["broker_datas"][0]["broker_name"]
        assert admin_cli.text("topicClusterList", "-t", "t-two") == f"{places[first]}\n", "of the first broker alone"
        brokers.enter_context(registered(admin_cli.server, first, "127.0.0.1:9", "t-two", cluster="Other", broker_id=1))
        clusters = sorted(("Other", places[first]))
        assert admin_cli.text("topicClusterList", "-t", "t-two").splitlines() == clusters


@pytest.mark.spec("C-07")
def test_topic_list_with_clusters_and_groups(admin_cli: AdminCli, admin_client: saturnmq.sync.Client) -> None:
    for topic in ("t-used", "%DLQ%reader"):
        admin_cli.text("updateTopic", "-b", "{broker}", "-t", topic)
    with admin_client.producer("p") as out:
        out.send("t-used", b"x")
    with admin_client.consumer("reader", start="first") as inbox:
        inbox.subscribe("t-used")
        inbox.recv(30).ack()
        names = admin_cli.text("topicList").splitlines()
        assert {"t-used", "TBW102", "%RETRY%reader", "%DLQ%reader"} <= set(names) and len(names) == len(set(names))
        lines = admin_cli.text("topicList", "-c").splitlines()
        assert lines[0] == f"{'#Cluster Name':<20}  {'#Topic':<48}  {'#Consumer Group':<48}"
        assert f"{'DefaultCluster':<20}  {'t-used':<64}  {'reader':<64}" in lines
        assert f"{'DefaultCluster':<20}  {'TBW102':<64}  {'':<64}" in lines
        assert not [line for line in lines if "%RETRY%" in line or "%DLQ%" in line]
        rows = admin_cli.json("topicList", "-c")["rows"]
        assert {"cluster": "DefaultCluster", "topic": "t-used", "group": "reader"} in rows


@pytest.mark.spec("C-08")
def test_allocate_mq_divides_the_queues_averagely(admin_cli: AdminCli) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-share", "-r", "5")
    result = json.loads(admin_cli.text("allocateMQ", "-t", "t-share", "-i", "ip1,ip2,ip3"))["result"]
    shares = {member: [queue["queueId"] for queue in queues] for member, queues in result.items()}
    assert shares == {"ip1": [4, 3], "ip2": [2, 1], "ip3": [0]}, "neighbours in the order of Java's set"
    assert list(result["ip3"][0]) == ["brokerName", "queueId", "topic"]


@pytest.mark.spec("C-08")
@pytest.mark.parametrize(("strategy", "queues"), [("average", [[0, 1, 2], [3, 4]]), ("circle", [[0, 2, 4], [1, 3]])])
def test_allocate_mq_by_a_strategy_of_clients(admin_cli: AdminCli, strategy: str, queues: list[list[int]]) -> None:
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "t-share2", "-r", "5")
    rows = admin_cli.json("allocateMQ", "-t", "t-share2", "-i", "a,b", "--strategy", strategy)["rows"]
    assert [[queue["queue_id"] for queue in row["queues"]] for row in rows] == queues
    assert admin_cli.run("allocateMQ", "-t", "t-share2", "-i", "a", "--strategy", "x")[0] == 1
