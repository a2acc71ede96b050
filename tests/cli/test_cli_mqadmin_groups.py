"""Commands of mqadmin on groups: options, defaults, columns, texts."""

from __future__ import annotations

import time

import pytest
from admincli import AdminCli

import saturnmq.sync

CONFIG = (
    "SubscriptionGroupConfig [groupName={0}, consumeEnable={1}, consumeFromMinEnable={2}, consumeBroadcastEnable={3}, "
    "retryQueueNums={4}, retryMaxTimes={5}, brokerId={6}, whichBrokerWhenConsumeSlowly={7}, notifyConsumerIdsChangedEnable={8}]"
)


@pytest.mark.spec("C-33")
def test_update_sub_group_has_the_defaults_of_mqadmin(admin_cli: AdminCli) -> None:
    shown = CONFIG.format("g-default", "true", "false", "false", 1, 16, 0, 1, "true")
    for place in (("-b", "{broker}"), ("-c", "DefaultCluster")):
        text = admin_cli.text("updateSubGroup", *place, "-g", "g-default")
        assert text == "create subscription group to {broker} success.\n" + shown


@pytest.mark.spec("C-33")
def test_update_sub_group_overwrites_every_field(admin_cli: AdminCli) -> None:
    given = [
        "-g",
        "g-all",
        "-s",
        "false",
        "-m",
        "true",
        "-d",
        "true",
        "-q",
        "2",
        "-r",
        "3",
        "-i",
        "1",
        "-w",
        "0",
        "-a",
        "false",
    ]
    text = admin_cli.text("updateSubGroup", "-b", "{broker}", *given)
    assert text.endswith(CONFIG.format("g-all", "false", "true", "true", 2, 3, 1, 0, "false"))
    admin_cli.text("updateSubGroup", "-b", "{broker}", "-g", "g-all", "-r", "5")
    (row,) = admin_cli.json("getConsumerConfig", "-g", "g-all")["rows"]
    assert (row["retry_max_times"], row["retry_queue_nums"], row["consume_enable"]) == (5, 1, True)


def test_update_sub_group_needs_a_place(admin_cli: AdminCli) -> None:
    code, out, err = admin_cli.run("updateSubGroup", "-g", "x")
    assert code == 1 and out.startswith("usage: mqadmin updateSubGroup") and "-b brokerAddr or -c" in err


def test_dry_run_changes_nothing_and_says_so(admin_cli: AdminCli) -> None:
    code, out, err = admin_cli.run("updateSubGroup", "-b", "{broker}", "-g", "g-dry", "--dry-run")
    assert code == 0 and not out and "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP" in err
    assert not admin_cli.text("getConsumerConfig", "-g", "g-dry")


@pytest.mark.spec("C-34")
def test_delete_sub_group_on_a_broker_and_in_a_cluster(admin_cli: AdminCli) -> None:
    topics = ("%RETRY%g-gone", "%DLQ%g-gone")
    for topic in topics:
        admin_cli.text("updateTopic", "-b", "{broker}", "-t", topic)
    admin_cli.text("updateSubGroup", "-b", "{broker}", "-g", "g-gone")
    text = admin_cli.text("deleteSubGroup", "-b", "{broker}", "-g", "g-gone")
    assert text == "delete subscription group [g-gone] from broker [{broker}] success.\n"
    assert not admin_cli.text("getConsumerConfig", "-g", "g-gone")
    assert set(topics) <= set(admin_cli.text("topicList").splitlines()), "only -c deletes its topics"
    lines = ["delete subscription group [g-gone] from broker [{broker}] in cluster [DefaultCluster] success."]
    admin_cli.text("updateSubGroup", "-b", "{broker}", "-g", "g-gone")
    for topic in topics:
        lines += [f"delete topic [{topic}] from cluster [DefaultCluster] success."]
        lines += [f"delete topic [{topic}] from NameServer success."]
    assert admin_cli.text("deleteSubGroup", "-c", "DefaultCluster", "-g", "g-gone").splitlines() == lines
    assert not admin_cli.text("getConsumerConfig", "-g", "g-gone")
    assert not set(topics) & set(admin_cli.text("topicList").splitlines())
    assert not set(topics) & admin_cli.server.inner.broker.topics.table.keys()


@pytest.mark.spec("C-34")
def test_delete_sub_group_removes_offsets_only_if_asked(
    admin_cli: AdminCli, admin_client: saturnmq.sync.Client
) -> None:
    admin_client.create_topic("removed", queues=1)
    with admin_client.producer("removed-p") as out:
        out.send("removed", b"x")
    puller = admin_client.puller()
    (queue,) = puller.queues("removed")
    puller.commit("g-offset", queue, 1)
    admin_cli.text("deleteSubGroup", "-b", "{broker}", "-g", "g-offset")
    assert puller.committed("g-offset", queue) == 1
    admin_cli.text("deleteSubGroup", "-b", "{broker}", "-g", "g-offset", "-r", "true")
    assert puller.committed("g-offset", queue) == 0  # as of a new group


@pytest.mark.spec("C-35")
def test_get_consumer_config_lists_every_field(admin_cli: AdminCli) -> None:
    admin_cli.text("updateSubGroup", "-b", "{broker}", "-g", "g-shown", "-r", "7")
    head, *lines = admin_cli.text("getConsumerConfig", "-g", "g-shown").splitlines()
    rule = "=" * 29
    assert head == f"{rule}DefaultCluster:broker-a{rule}"
    assert lines == [
        "groupName                               =  g-shown",
        "consumeEnable                           =  true",
        "consumeFromMinEnable                    =  false",
        "consumeBroadcastEnable                  =  false",
        "retryQueueNums                          =  1",
        "retryMaxTimes                           =  7",
        "brokerId                                =  0",
        "whichBrokerWhenConsumeSlowly            =  1",
        "notifyConsumerIdsChangedEnable          =  true",
    ]


@pytest.mark.spec("UX-10")
def test_consumer_connection_warns_of_clients_in_conflict(admin_cli: AdminCli) -> None:
    clients = admin_cli.server.inner.broker.clients
    group = "g-conflict"
    for topic in ("orders-1", "orders-2"):
        admin_cli.text("updateTopic", "-b", "{broker}", "-t", topic)
    url = admin_cli.server.url
    with saturnmq.sync.Client.from_url(url) as one, saturnmq.sync.Client.from_url(url) as other:  # noqa: SIM117
        with one.consumer(group) as first, other.consumer(group) as second:
            first.subscribe("orders-1")
            second.subscribe("orders-2")
            deadline = time.monotonic() + 30
            while group not in clients.unequal:
                assert time.monotonic() < deadline
                time.sleep(0.05)  # poll
            code, out, err = admin_cli.run("consumerConnection", "-g", group)
            assert code == 0 and "warn" not in out
            members = clients.consumers[group].members
            assert all(f"{info.client_id} ({c.remote_address})" in err for c, info in members.items())
            assert "orders-1, orders-2 differently" in err
            conflicts = admin_cli.json("consumerConnection", "-g", group)["conflicts"]
            assert [(c["kind"], c["topics"]) for c in conflicts] == [("subscriptions", ["orders-1", "orders-2"])]
