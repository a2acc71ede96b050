"""Operations on brokers: states of a cluster with brokers that do not serve, changes on several brokers, cleaning."""

from __future__ import annotations

import pytest
from admincluster import DEAD, AdminCluster, admin_cluster, silent_server

from saturnmq.admin.brokers import BrokerState
from saturnmq.protocol.errors import ConfigError


async def test_states_have_a_row_for_every_broker() -> None:
    async with admin_cluster() as c, silent_server() as silent:
        await c.register(silent, "broker-a", 1)
        await c.register(DEAD, "broker-b")
        found = await c.admin.brokers.states()
        assert [(one.cluster, one.name, one.number, one.address) for one in found] == [
            ("DefaultCluster", "broker-a", 0, c.server.broker_address),
            ("DefaultCluster", "broker-a", 1, silent),
            ("DefaultCluster", "broker-b", 0, DEAD),
        ]
        assert found[0].text("brokerVersionDesc") == "V4_9_7"
        assert [one.problem != "" for one in found] == [False, True, True]
        assert [found[1].text("x"), found[1].first_number("putTps"), found[1].integer("x")] == ["", None, 0]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.5 2 3", 1.5), ("", None), ("x", None), ("7", 7.0), ("nan", None), ("inf", None), ("1e400", None),
        ("1e308", None), ("-1 1 1", -1.0), ("-1e400", None), ("9" * 400, None), ("0", 0.0),
    ],
)  # fmt: skip
def test_first_rate_of_a_value(text: str, number: float | None) -> None:
    assert BrokerState("c", "b", 0, "a", {"putTps": text}).first_number("putTps") == number


@pytest.mark.spec("ADM-07")
async def test_a_cluster_has_masters_or_all_brokers(cluster: AdminCluster) -> None:
    address = cluster.server.broker_address
    await cluster.register(DEAD, "broker-a", 1)
    await cluster.register("127.0.0.1:2", "broker-b", 1)
    assert await cluster.admin.connection.masters("DefaultCluster") == {"broker-a": address}
    assert await cluster.admin.connection.masters_and_slaves("DefaultCluster") == [address, DEAD, "127.0.0.1:2"]
    groups = await cluster.admin.brokers.groups("DefaultCluster")
    assert groups == {"broker-a": {0: address, 1: DEAD}, "broker-b": {1: "127.0.0.1:2"}}
    assert await cluster.admin.brokers.addresses() == [address, DEAD, "127.0.0.1:2"]


async def test_changes_report_each_failure(cluster: AdminCluster) -> None:
    address = cluster.server.broker_address
    failures = await cluster.admin.brokers.update_configuration([address, DEAD], "fileReservedTime", "71")
    assert list(failures) == [DEAD]
    assert (await cluster.admin.brokers.configuration(address))["fileReservedTime"] == "71"
    failures = await cluster.admin.brokers.update_configuration([address], "storePathRootDir", "/tmp/x\ny")
    assert "storePathRootDir" in failures[address].message


async def test_name_of_an_address(cluster: AdminCluster) -> None:
    assert await cluster.admin.brokers.name_of(cluster.server.broker_address) == "broker-a"
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1 is registered"):
        await cluster.admin.brokers.name_of(DEAD)


async def test_cleaning_keeps_new_and_delay_queues(cluster: AdminCluster) -> None:
    client = await cluster.admin.connection.messaging()
    async with client.producer("p") as out:
        receipt = await out.send("orders", b"x")
        await out.send("orders", b"later", delay_level=18)
    address, store = cluster.server.broker_address, cluster.server.broker.store
    for clean in (cluster.admin.brokers.clean_queues, cluster.admin.brokers.clean_unused_topics):
        assert await clean([address, DEAD]) != {}
    found = await cluster.admin.topics.statistics("orders")
    assert found.offsets[receipt.queue].max_offset == 1
    assert store.max_offset("SCHEDULE_TOPIC_XXXX", 17) == 1
