"""Operations on topics: what is sent, what is kept, and what a broker that does not serve costs."""

from __future__ import annotations

import pytest
from admincluster import DEAD, AdminCluster, admin_cluster, silent_server

from saturnmq.admin import Admin
from saturnmq.admin.connection import UnknownCluster
from saturnmq.admin.topics import entries_by_broker, merged_config
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.errors import ResponseError, SaturnError


async def test_a_change_is_in_memory_file_and_route_at_once(cluster: AdminCluster) -> None:
    address = cluster.server.broker_address
    for config in (TopicConfig("orders", 2, 3, perm=4), TopicConfig("orders", 5, 6, perm=6)):
        await cluster.admin.topics.update(address, config)
        assert await cluster.admin.topics.configuration(address, "orders") == config
        text = (cluster.server.data / "store" / "config" / "topics.json").read_text()  # type: ignore[operator]
        assert f'"writeQueueNums":{config.write_queue_nums}' in text.replace(" ", "")
        entry = entries_by_broker(await cluster.admin.topics.route("orders"))["broker-a"]
        assert (entry.read_queue_nums, entry.write_queue_nums, entry.perm) == (
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
        )


@pytest.mark.spec("ADM-16")
@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("", "blank"),
        ("a" * 128, "longer than topic max length"),
        ("bad!", "illegal characters"),
        ("SCHEDULE_TOPIC_XXXX", "conflict with system topic"),
        ("rmq_sys_own", "conflict with system topic"),
    ],
)
async def test_names_that_a_broker_refuses(cluster: AdminCluster, topic: str, words: str) -> None:
    for name in (topic, "DefaultCluster", "broker-a"):
        with pytest.raises(ResponseError, match=words if name == topic else "system topic") as refused:
            await cluster.admin.topics.update(cluster.server.broker_address, TopicConfig(name))
        assert refused.value.code == 1
        with pytest.raises(ResponseError, match=words if name == topic else "system topic") as refused:
            await cluster.admin.topics.delete_from_brokers(name, "DefaultCluster")
        assert refused.value.code == 1


@pytest.mark.spec("ADM-16")
async def test_longest_name_with_every_character_is_allowed(cluster: AdminCluster) -> None:
    name = "aZ09%|_-".ljust(127, "x")
    await cluster.admin.topics.update(cluster.server.broker_address, TopicConfig(name))
    assert name in await cluster.admin.topics.names()


async def test_statistics_name_the_broker_that_does_not_answer() -> None:
    async with admin_cluster() as c, silent_server() as silent:
        await c.admin.topics.update(c.server.broker_address, TopicConfig("orders", 2, 2))
        await c.register(DEAD, "broker-dead", topics=("orders",))
        await c.register(silent, "broker-silent", topics=("orders",))
        found = await c.admin.topics.statistics("orders")
        assert [(queue.broker_name, queue.queue_id) for queue in found.offsets] == [
            ("broker-a", 0),
            ("broker-a", 1),
        ]
        assert sorted(found.failures) == sorted([DEAD, silent])
        assert "within 2 s" in found.failures[silent].message
        names = [one.topic for one in await c.admin.topics.uses()]
        assert "orders" in names


async def test_a_dry_run_sends_nothing() -> None:
    async with admin_cluster(dry_run=True) as c:
        await c.admin.topics.update(c.server.broker_address, TopicConfig("orders"))
        await c.admin.topics.delete_from_brokers("orders", "DefaultCluster")
        await c.admin.topics.set_order("orders", "broker-a:4")
        codes = [line.split()[1] for line in c.changes]
        assert codes == ["UPDATE_AND_CREATE_TOPIC", "DELETE_TOPIC_IN_BROKER", "PUT_KV_CONFIG"]
        assert "orders" not in await c.admin.topics.names()


async def test_a_topic_is_deleted_at_every_name_server() -> None:
    changes: list[str] = []
    async with Admin("127.0.0.1:1;127.0.0.1:2", dry_run=changes.append) as admin:
        await admin.topics.delete_from_name_servers("orders", "C")
    assert changes == [f"127.0.0.1:{port} DELETE_TOPIC_IN_NAMESRV topic=orders clusterName=C" for port in (1, 2)]


@pytest.mark.spec("ADM-07")
async def test_unknown_cluster_is_refused_with_the_known_ones(cluster: AdminCluster) -> None:
    with pytest.raises(UnknownCluster, match=r"'Nowhere'.*DefaultCluster"):
        await cluster.admin.topics.delete_from_brokers("orders", "Nowhere")


async def test_order_configuration_of_one_broker_leaves_the_others(cluster: AdminCluster) -> None:
    with pytest.raises(SaturnError):
        await cluster.admin.topics.order("orders")
    await cluster.admin.topics.merge_order("orders", "broker-b", 2)
    await cluster.admin.topics.merge_order("orders", "broker-a", 4)
    await cluster.admin.topics.merge_order("orders", "broker-b", 8)
    assert await cluster.admin.topics.order("orders") == "broker-b:8;broker-a:4"
    await cluster.admin.topics.delete_order("orders")
    with pytest.raises(SaturnError):
        await cluster.admin.topics.order("orders")


def test_kept_replaces_only_what_is_given() -> None:
    old, new = TopicConfig("t", 4, 5, perm=4, topic_sys_flag=3), TopicConfig("t", 8, 8)
    assert merged_config(old, new, {"write_queue_nums"}) == TopicConfig("t", 4, 8, perm=4, topic_sys_flag=3)
    assert merged_config(None, new, set()) is new
