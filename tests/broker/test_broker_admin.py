"""Admin requests and registration with NameServers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from wire import Wire, wire

from ports import free_port
from saturnmq import Client
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.broker.requests.table import ROUTES
from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.state.topics import Topics
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import Connection, NetSettings, RemotingServer
from saturnmq.protocol.bodies import (
    ConsumeStats,
    KVTable,
    MessageQueue,
    ProducerConnection,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicStatsTable,
)
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.protocol.frames.command import Command
from saturnmq.store import StateFile, StoreProfile, StoreSettings
from saturnmq.testing import EmbeddedBroker


@pytest.mark.spec("NS-34")
async def test_topic_change_reaches_name_server_at_once(wire: Wire) -> None:
    created = await wire.call(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic="New", defaultTopic="TBW102", readQueueNums=3, writeQueueNums=2,
        perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
    )  # fmt: skip
    assert created.code == 0
    while "New" not in wire.server.namesrv.routes.topics:
        await asyncio.sleep(0)
    queue = wire.server.namesrv.routes.topics["New"]["broker-a"]
    assert (queue.read_queue_nums, queue.write_queue_nums) == (3, 2)
    await wire.send("Auto")
    while "Auto" not in wire.server.namesrv.routes.topics:
        await asyncio.sleep(0)
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="New")).code == 0
    table = TopicConfigTable.decode((await wire.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    assert "New" not in table.topic_config_table and "Auto" in table.topic_config_table


@pytest.mark.spec("UX-05", "SND-04")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"topic": "../x"}, "illegal characters"),
        ({"topic": "TBW102"}, "system topic"),
        ({"readQueueNums": 0}, "readQueueNums=0 must be in 1..65536"),
        ({"writeQueueNums": -1}, "writeQueueNums=-1"),
        ({"perm": 99}, "perm=99 must be in 0..15"),
    ],
)
async def test_update_topic_rejects_invalid_fields_with_allowed_range(
    wire: Wire, fields: dict[str, Any], words: str
) -> None:
    good = {
        "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    }  # fmt: skip
    answer = await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **(good | fields))
    assert answer.code == 1 and words in (answer.remark or "")
    deleted = await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="../../x")
    assert deleted.code == 1


@pytest.mark.spec("BP-10")
async def test_first_pull_creates_group_with_apache_defaults() -> None:
    async with wire() as w:
        await w.send()
        assert (await w.pull(group="New")).code == 0
        await w.broker.groups.writer.saved()
        file = w.broker.store.settings.root / "config" / "subscriptionGroup.json"
        assert json.loads(file.read_bytes())["subscriptionGroupTable"]["New"] == {
            "brokerId": 0,
            "consumeBroadcastEnable": True,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "groupName": "New",
            "notifyConsumerIdsChangedEnable": True,
            "retryMaxTimes": 16,
            "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }
    async with wire(auto_create_group=False) as w:
        await w.send()
        assert (await w.pull(group="New")).code == 26
        assert (await w.pull(group="CID_RMQ_SYS_New")).code == 0, "system groups are always created"
        assert "CID_RMQ_SYS_New" in w.broker.groups.table


@pytest.mark.spec("BP-10")
async def test_groups_are_created_listed_and_deleted(wire: Wire) -> None:
    config = SubscriptionGroupConfig("G", retry_max_times=3)
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config.encode())).code == 0
    listed = await wire.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert SubscriptionGroupTable.decode(listed.body).subscription_group_table["G"].retry_max_times == 3
    bad = SubscriptionGroupConfig("a/b")
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, bad.encode())).code == 1
    wire.broker.offsets.set("T", "G", 0, 5)
    assert (await wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G", removeOffset=True)).code == 0
    assert "G" not in wire.broker.groups.table
    assert wire.broker.offsets.get("T", "G", 0) is None


@pytest.mark.spec("DG-10")
async def test_admin_statistics_queries(wire: Wire) -> None:
    for _ in range(3):
        await wire.send(queue=1)
    await wire.heartbeat("G", "T")
    ask = {"consumerGroup": "G", "topic": "T", "queueId": 1}
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=2, **ask)
    queue = MessageQueue("T", "broker-a", 1)
    stats = TopicStatsTable.decode((await wire.call(RequestCode.GET_TOPIC_STATS_INFO, topic="T")).body)
    assert stats.offset_table[queue].max_offset == 3
    assert stats.offset_table[queue].last_update_timestamp > 0
    progress = ConsumeStats.decode((await wire.call(RequestCode.GET_CONSUME_STATS, consumerGroup="G")).body)
    found = progress.offset_table[queue]
    assert (found.broker_offset, found.consumer_offset) == (3, 2)
    table = KVTable.decode((await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    assert (table["putMessageTimesTotal"], table["brokerVersionDesc"]) == ("3", "V4_9_7")
    assert len(table["putTps"].split()) == 3
    who = await wire.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="producers")
    assert ProducerConnection.decode(who.body).connection_set[0].client_id == "c1"
    assert (await wire.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="none")).code == 206
    assert b"G" in ((await wire.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")).body or b"")
    text = ((await wire.call(RequestCode.GET_BROKER_CONFIG)).body or b"").decode()
    assert "brokerName=broker-a\n" in text and "flushDiskType=ASYNC_FLUSH\n" in text


@pytest.mark.spec("UX-12")
async def test_update_broker_config_is_rejected(wire: Wire) -> None:
    answer = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, b"brokerName=x")
    assert answer.code == 16 and "file" in (answer.remark or "")


@pytest.mark.spec("REM-08", "REM-11")
async def test_every_code_survives_missing_fields_and_junk_body(wire: Wire) -> None:
    for route in ROUTES:
        answer = await wire.call(route.code, b"\x00junk", nonsense=1)
        assert answer.is_response, route.code
    assert len(wire.client.connections) == 1


@pytest.mark.spec("NS-32", "NS-18", "NS-36")
async def test_registers_with_all_name_servers_despite_dead_one(tmp_path: Path) -> None:
    servers, addresses = [], []
    for n in range(2):
        server = NameServer(NameServerSettings(kv_config_path=str(tmp_path / f"kv{n}.json")), NetSettings())
        host, port = await server.start("127.0.0.1", 0)
        servers.append(server)
        addresses.append(f"{host}:{port}")
    settings = BrokerSettings(namesrv_addr=";".join([addresses[0], "127.0.0.1:1", addresses[1]]), listen_port=0)
    store = StoreSettings(store_path_root_dir=str(tmp_path / "store"), profile=StoreProfile.SMALL)
    broker = Broker(settings, store, NetSettings())
    await broker.start()
    for server in servers:
        assert server.routes.live.keys() == {broker.advertised_address}
        assert {"TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "DefaultCluster", "broker-a", "SCHEDULE_TOPIC_XXXX",
                "OFFSET_MOVED_EVENT", "DefaultCluster_REPLY_TOPIC"} <= set(server.routes.topics)  # fmt: skip
    await broker.stop()
    for server in servers:
        assert server.routes.brokers == {}
        await server.stop()


def registrar(tmp_path: Path, address: str, **more: Any) -> tuple[Registrar, Topics]:
    settings = BrokerSettings(namesrv_addr=address, **more)
    topics = Topics(settings, StateFile(tmp_path / "topics.json"), lambda: 1)
    made = Registrar(settings, NetSettings(), topics, address=lambda: "h:1", ha_address=lambda: "h:2")
    return made, topics


@pytest.mark.spec("NS-33")
async def test_register_without_force_only_on_changed_version(tmp_path: Path) -> None:
    codes: list[int] = []
    namesrv = NameServer(NameServerSettings(kv_config_path=str(tmp_path / "kv.json")), NetSettings())

    def count(connection: Connection, request: Command) -> Command:
        codes.append(request.code)
        return namesrv._handle(connection, request)

    server = RemotingServer(count, settings=NetSettings())
    host, port = await server.start("127.0.0.1", 0)
    made, topics = registrar(tmp_path, f"{host}:{port}", force_register=False, compressed_register=True)
    await made.register()
    await made.register()
    assert codes == [322, 103, 322]
    topics.set(TopicConfig("Fresh"))
    await made.register()
    assert codes[-2:] == [322, 103]
    assert "Fresh" in namesrv.routes.topics
    await topics.writer.settle()
    await made.stop()
    await server.stop()


@pytest.mark.spec("NS-33")
def test_register_period_is_clamped_to_10_60_seconds() -> None:
    periods = [BrokerSettings(register_period_ms=ms).register_seconds for ms in (1, 30_000, 10**6)]
    assert periods == [10, 30, 60]


@pytest.mark.spec("NS-11", "NS-32")
async def test_order_topic_config_of_name_server_is_applied(wire: Wire, tmp_path: Path) -> None:
    await wire.send("T")
    await wire.server.namesrv.kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    await wire.broker.registrar.register()
    assert wire.broker.topics.table["T"].order is True
    await wire.server.namesrv.kv.delete("ORDER_TOPIC_CONFIG", "T")
    await wire.broker.registrar.register()
    assert wire.broker.topics.table["T"].order is False


@pytest.mark.spec("UX-05")
def test_settings_reject_unusable_values() -> None:
    problems = BrokerSettings(acl_validators=" ,", acl_plain_admin_addresses="x", broker_name="a/b").validate()
    assert len(problems) == 3 and "aclValidators" in problems[0] and "aclPlainAdminAddresses=x" in problems[2]


@pytest.mark.spec("UX-05")
@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (BrokerSettings(listen_port=0, broker_role="SLAVE"), ("brokerRole=SLAVE", "brokerId")),
        (BrokerSettings(listen_port=0, broker_role="SYNC_MASTER"), ("brokerRole=SYNC_MASTER", "haPortEnable=true")),
    ],
)
async def test_roles_that_cannot_work_are_refused_at_start(
    tmp_path: Path, settings: BrokerSettings, parts: tuple[str, ...]
) -> None:
    """A slave with the id of a master, and a master that waits for slaves that cannot connect."""
    store = StoreSettings(store_path_root_dir=str(tmp_path / "store"), profile=StoreProfile.SMALL)
    with pytest.raises(ConfigError) as refused:
        await Broker(settings, store, NetSettings()).start()
    assert all(part in str(refused.value) for part in parts)
    assert not (tmp_path / "store").exists(), "nothing was created"


@pytest.mark.spec("UX-09", "RC-04")
async def test_start_with_damaged_state_file_fails_and_closes_all(tmp_path: Path) -> None:
    store = StoreSettings(store_path_root_dir=str(tmp_path / "store"), profile=StoreProfile.SMALL)
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{broken")
    broker = Broker(BrokerSettings(listen_port=0), store, NetSettings())
    with pytest.raises(StoreError, match=r"topics\.json"):
        await broker.start()
    (config / "topics.json").unlink()
    again = Broker(BrokerSettings(listen_port=0), store, NetSettings())
    await again.start()
    await again.stop()


@pytest.mark.spec("UX-03")
async def test_unresolvable_advertised_address_is_config_error(tmp_path: Path) -> None:
    store = StoreSettings(store_path_root_dir=str(tmp_path / "store"), profile=StoreProfile.SMALL)
    broker = Broker(BrokerSettings(listen_port=0, broker_ip1="no such host"), store, NetSettings())
    with pytest.raises(ConfigError, match="brokerIP1"):
        await broker.start()


@pytest.mark.spec("UX-03")
async def test_advertised_port_is_in_routes_and_message_ids() -> None:
    async with wire(advertised_port=free_port()) as w:
        port = w.broker.settings.advertised_port
        assert w.server.broker_address == f"127.0.0.1:{port}" != w.broker.address
        answer = await w.client.invoke(w.broker.address, Command(RequestCode.GET_BROKER_RUNTIME_INFO), 5000)
        assert answer.code == 0
        route = w.server.namesrv.routes.cluster_info()
        assert [one.broker_addrs for one in route.broker_addr_table.values()] == [{0: f"127.0.0.1:{port}"}]
        assert w.broker.identity.store_host.port == port


@pytest.mark.spec("UX-03")
async def test_messages_are_found_after_a_change_of_address(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path) as server, Client.from_url(server.url) as client:
        async with client.producer("p") as out:
            receipt = await out.send("orders", b"kept")
        before = server.broker_address
    settings = BrokerSettings(broker_ip1="localhost")
    async with EmbeddedBroker(tmp_path, settings=settings) as server, Client.from_url(server.url) as client:
        assert server.broker_address != before and server.broker_address.startswith("localhost:")
        assert server.broker.identity.store_host.ip == "127.0.0.1", "stored hosts hold the IPv4 address of a name"
        (found,) = await client.query_messages("orders", receipt.message_id, unique=True)
        assert (found.body, str(found.record.store_host.port)) == (b"kept", before.rpartition(":")[2])
        result = await client.puller().pull(receipt.queue, receipt.offset)
        assert [message.body for message in result.messages()] == [b"kept"]
