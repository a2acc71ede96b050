"""Pulls, long polling, consumer groups, offsets and queue locks over the wire."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path

import pytest
from wire import Clock, Wire, run, wire

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.broker.masterslave import Master
from saturnmq.broker.services import long_polling as hold
from saturnmq.broker.state.clients import ClientInfo, Clients
from saturnmq.broker.state.locks import LOCK_LIVE_MS, QueueLockTable
from saturnmq.log_limit import LogLimit
from saturnmq.net import NetSettings, RemotingClient, RemotingServer
from saturnmq.protocol.bodies import (
    ConsumerData,
    ConsumerIdList,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import decode_records
from saturnmq.slices import Slices
from saturnmq.store import GetResult, GetStatus, StoreProfile, StoreSettings
from saturnmq.store.queue.consume_queue import ConsumeQueue


@pytest.mark.spec("BP-04", "BP-05")
async def test_pull_returns_records_and_next_offset(wire: Wire) -> None:
    for n in range(40):
        await wire.send(body=b"%d" % n)
    answer = await wire.pull()
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert answer.ext == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "32", "minOffset": "0", "maxOffset": "40",
    }  # fmt: skip
    assert [m.body for m in decode_records(answer.body or b"")] == [b"%d" % n for n in range(32)]


@pytest.mark.spec("BP-04", "SPP-11")
async def test_pull_with_bulk_bytes_returns_more_messages(wire: Wire) -> None:
    for n in range(100):
        await wire.send(body=b"%d" % n * 1000)
    assert (await wire.pull(maxMsgNums=90)).ext["nextBeginOffset"] == "32"  # as Apache RocketMQ
    answer = await wire.pull(maxMsgNums=90, bulkBytes=1_000_000)
    assert [m.queue_offset for m in decode_records(answer.body or b"")] == list(range(90))
    assert answer.ext["nextBeginOffset"] == "90"
    few = await wire.pull(maxMsgNums=90, offset=20, bulkBytes=1)  # bulkBytes never lowers the limit
    assert few.ext["nextBeginOffset"] == "100"
    assert (await wire.pull(maxMsgNums=90, bulkBytes=-5)).ext["nextBeginOffset"] == "32"


@pytest.mark.spec("BP-02", "BP-05")
async def test_pull_outside_queue_returns_apache_codes(wire: Wire) -> None:
    await wire.send()
    for offset, code, status, following in (
        (1, 19, "OFFSET_OVERFLOW_ONE", "1"),
        (2, 21, "OFFSET_OVERFLOW_BADLY", "1"),
        (-1, 21, "OFFSET_TOO_SMALL", "0"),
    ):
        answer = await wire.pull(offset=offset)
        assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (code, status, following)
    empty = await wire.pull(queue=1)
    assert (empty.code, empty.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    moved = await wire.pull(queue=1, offset=7)
    assert moved.code == 21 and empty.ext["nextBeginOffset"] == moved.ext["nextBeginOffset"] == "0"


@pytest.mark.spec("BP-02")
@pytest.mark.parametrize(
    ("is_slave", "checks", "is_skipped"), [(False, False, True), (True, True, True), (True, False, False)]
)
async def test_unreadable_queue_file_is_not_skipped_by_a_slave(
    monkeypatch: pytest.MonkeyPatch, is_slave: bool, checks: bool, is_skipped: bool
) -> None:
    """Its master may still be able to read that file."""
    async with wire(offset_check_in_slave=checks) as w:
        await w.send()
        w.broker.role.slave = is_slave
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "read", lambda queue, first, count: b"")
            answer = await w.pull()
        w.broker.role.slave = False
        following = w.broker.store.settings.consume_queue_bytes // 20 if is_skipped else 0
        assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (19, "OFFSET_FOUND_NULL", str(following))


@pytest.mark.spec("BP-05")
@pytest.mark.parametrize(
    ("status", "offset", "code"),
    [
        ("FOUND", 0, 0),
        ("NO_MATCHED_MESSAGE", 3, 20),
        ("MESSAGE_WAS_REMOVING", 3, 20),
        ("OFFSET_FOUND_NULL", 3, 19),
        ("OFFSET_OVERFLOW_ONE", 3, 19),
        ("OFFSET_OVERFLOW_BADLY", 3, 21),
        ("OFFSET_TOO_SMALL", 3, 21),
        ("NO_MESSAGE_IN_QUEUE", 0, 19),
        ("NO_MESSAGE_IN_QUEUE", 3, 21),
        ("NO_MATCHED_LOGIC_QUEUE", 0, 19),
        ("NO_MATCHED_LOGIC_QUEUE", 3, 21),
    ],
)
async def test_pull_maps_get_status_to_code_and_remark(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, status: str, offset: int, code: int
) -> None:
    await wire.send()
    found = wire.broker.store.get("T", 0, 0, 1).buffers if status == "FOUND" else []
    result = GetResult(GetStatus(status), next_offset=7, min_offset=1, max_offset=9, buffers=found)
    monkeypatch.setattr(wire.broker.store, "get", lambda *_, **__: result)
    answer = await wire.pull(offset=offset)
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (code, status, "7")


@pytest.mark.spec("BP-01")
async def test_rejected_pull_states_reason() -> None:
    async with wire() as w:
        await w.send()
        assert (await w.pull("nowhere")).code == 17
        for outside in (4, -1):
            queue = await w.pull(queue=outside)
            assert queue.code == 1 and f"queueId[{outside}] is illegal" in (queue.remark or "")
        assert (await w.pull(sysFlag=0)).code == 24
        await w.heartbeat("G", "other")
        assert (await w.pull(sysFlag=0)).code == 24
        await w.heartbeat("G", "T", version=5)
        assert (await w.pull(sysFlag=0, subVersion=5)).code == 0
        assert (await w.pull(sysFlag=0, subVersion=6)).code == 25
        assert (await w.pull(subscription="||")).code == 23
        assert (await w.pull(subscription="a > 1", expressionType="SQL92")).code == 1
        assert (await w.pull(queue=4, subscription="||")).code == 1, "the queue is checked before the expression"
        w.broker.topics.table["T"].perm = 2
        assert (await w.pull()).code == (await w.pull(queue=4)).code == 16, "the topic before the queue"
        w.broker.topics.table["T"].perm = 6
        await w.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                     SubscriptionGroupConfig("G", consume_enable=False).encode())  # fmt: skip
        assert (await w.pull()).code == (await w.pull("nowhere")).code == 16, "the group before the topic"
        bad = await w.call(RequestCode.PULL_MESSAGE, topic="T")
        assert (bad.code, bad.remark) == (1, "the custom field <consumerGroup> is null")
    async with wire(auto_create_group=False) as w:
        assert (await w.pull()).code == 26


@pytest.mark.spec("BP-01", "OPS-03")
async def test_pull_requires_readable_broker_and_broadcast_permission() -> None:
    async with wire(broker_permission=2) as w:
        assert (await w.send()).code == 0
        refused = await w.pull("nowhere", queue=9)
        assert (refused.code, (refused.remark or "").partition("] ")[2]) == (16, "pulling message is forbidden")
    async with wire(broker_permission=2, auto_create_group=False) as w:
        assert (await w.pull("nowhere")).code == 16, "the broker before the group"
    async with wire() as w:
        await w.send()
        await w.heartbeat("G", "T", message_model="BROADCASTING")
        assert (await w.pull(sysFlag=0)).code == 0
        w.broker.groups.set(SubscriptionGroupConfig("G", consume_broadcast_enable=False))
        refused = await w.pull(sysFlag=0)
        assert refused.code == 16 and "can not consume by broadcast way" in (refused.remark or "")
        await w.send("U")
        assert (await w.pull("U", sysFlag=0)).code == 16, "the way before the subscription"
        await w.heartbeat("G", "T")
        assert (await w.pull(sysFlag=0)).code == 0


@pytest.mark.spec("BP-03", "CQ-02")
async def test_pull_filters_by_tag_hash_and_advances(wire: Wire) -> None:
    for tag in ("a", "b", "a", "c"):
        await wire.send(body=tag.encode(), properties={"TAGS": tag})
    answer = await wire.pull(subscription="a || c")
    assert [m.body for m in decode_records(answer.body or b"")] == [b"a", b"a", b"c"]
    none = await wire.pull(subscription="z")
    assert (none.code, none.remark, none.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "4")


@pytest.mark.spec("LP-01", "LP-03", "LP-04")
async def test_parked_pull_is_answered_by_next_matching_message(wire: Wire) -> None:
    await wire.send(queue=1)
    held = asyncio.create_task(wire.pull(suspend_ms=20_000, subscription="wanted"))
    while not wire.broker.long_polling.count:
        await asyncio.sleep(0)
    await wire.send(properties={"TAGS": "other"})
    assert not held.done() and wire.broker.long_polling.count == 1
    await wire.send(body=b"mine", properties={"TAGS": "wanted"})
    answer = await held
    assert [m.body for m in decode_records(answer.body or b"")] == [b"mine"]
    assert wire.broker.long_polling.count == 0


@pytest.mark.spec("LP-01")
async def test_pull_without_suspend_flag_or_timeout_returns_at_once(wire: Wire) -> None:
    await wire.send()
    for fields in ({"sysFlag": 4, "suspendTimeoutMillis": 60_000}, {"sysFlag": 6, "suspendTimeoutMillis": 0}):
        answer = await wire.pull(offset=1, **fields)
        assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")
    badly = await wire.pull(offset=2, sysFlag=6, suspendTimeoutMillis=60_000)
    assert badly.code == 21, "only code 19 waits"


@pytest.mark.spec("BP-07")
async def test_pull_commits_offset_only_with_commit_flag(wire: Wire) -> None:
    await wire.send()
    await wire.pull(sysFlag=4, commitOffset=1)
    assert wire.broker.offsets.get("T", "G", 0) is None
    await wire.pull(sysFlag=5, commitOffset=1)
    assert wire.broker.offsets.get("T", "G", 0) == 1


@pytest.mark.spec("LP-01", "LP-02", "LP-04")
async def test_parked_pull_times_out_with_not_found(wire: Wire) -> None:
    await wire.send(queue=1)
    began = asyncio.get_running_loop().time()
    answer = await wire.pull(suspend_ms=2000)
    assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert 2 <= asyncio.get_running_loop().time() - began < 2.8, "at the next of the checks, every 500 ms"


@pytest.mark.spec("RP-04")
async def test_slave_scans_parked_pulls_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hold.SCAN_SECONDS == 5.0
    monkeypatch.setattr(hold, "SCAN_SECONDS", 0.01)
    monkeypatch.setattr(hold, "TICK_SECONDS", 0.01)
    async with wire() as w:
        await w.send()
        w.broker.role.slave = True  # as on a follower: appends do not wake pulls
        w.broker.store.on_append = None
        held = asyncio.create_task(w.pull(offset=1, suspend_ms=20_000))
        while not w.broker.long_polling.count:
            await asyncio.sleep(0)
        await w.send(body=b"found by the scan")
        async with asyncio.timeout(10):
            answer = await held
        assert [m.body for m in decode_records(answer.body or b"")] == [b"found by the scan"]


@pytest.mark.spec("LP-02", "HB-06")
async def test_closed_connection_drops_its_parked_pulls(wire: Wire) -> None:
    await wire.send(queue=1)
    held = asyncio.create_task(wire.pull(suspend_ms=60_000, timeout_ms=60_000))
    while not wire.broker.long_polling.count:
        await asyncio.sleep(0)
    await wire.client.close()
    await asyncio.gather(held, return_exceptions=True)
    while wire.broker.long_polling.count:
        await asyncio.sleep(0)
    assert wire.broker.long_polling.count == 0


@pytest.mark.spec("REM-28", "ADM-10")
async def test_fast_port_serves_all_codes_except_pull(wire: Wire) -> None:
    fast = wire.broker._fast
    sockets = fast._server.sockets  # type: ignore[union-attr]
    address = "{}:{}".format(*sockets[0].getsockname())
    assert address != wire.server.broker_address
    command_of = wire.client.invoke
    from saturnmq.protocol.frames.command import Command

    assert (await command_of(address, Command(RequestCode.GET_BROKER_CONFIG), 1000)).code == 0
    info = await command_of(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO), 1000)
    stats = await command_of(address, Command(RequestCode.GET_TOPIC_STATS_INFO, ext={"topic": "TBW102"}), 1000)
    deleted = await command_of(address, Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext={"groupName": "G"}), 1000)
    assert (info.code, stats.code, deleted.code) == (0, 0, 0), "consoles ask and change through this port"
    for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        refused = await command_of(address, Command(code), 1000)
        assert (refused.code, refused.remark) == (3, f" request type {code} not supported")


@pytest.mark.spec("REM-28")
def test_main_port_is_10911_and_fast_port_two_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    start = RemotingServer.start

    async def elsewhere(self: RemotingServer, host: str, port: int, **more: str) -> tuple[str, int]:
        asked.append(port)
        await start(self, host, 0)
        return host, port

    async def ha(self: Master, host: str, port: int) -> None:
        asked.append(port)

    monkeypatch.setattr(RemotingServer, "start", elsewhere)
    monkeypatch.setattr(Master, "start", ha)

    async def work() -> None:
        broker = Broker(BrokerSettings(), StoreSettings(str(tmp_path), profile=StoreProfile.SMALL), NetSettings())
        await broker.start()
        await broker.stop()

    run(work)
    assert asked == [10911, 10909, 10912]


@pytest.mark.spec("REM-10", "REM-12")
async def test_unknown_request_code_is_answered_with_code_3(wire: Wire) -> None:
    for code in (13, 301, 4711):
        answer = await wire.call(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


@pytest.mark.spec("HB-03", "HB-04", "RB-08")
async def test_heartbeat_registers_clients_group_and_retry_topic(wire: Wire) -> None:
    answer = await wire.heartbeat("G", "T")
    assert (answer.code, answer.body, answer.version) == (0, None, 407)
    assert wire.broker.groups.table["G"].retry_max_times == 16
    retry = wire.broker.topics.table["%RETRY%G"]
    assert (retry.read_queue_nums, retry.perm) == (1, 6)
    listed = await wire.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
    assert ConsumerIdList.decode(listed.body).consumer_id_list == ["c1"]
    assert "producers" in wire.broker.clients.producers
    notified = await wire.pushed.get()
    assert (notified.code, notified.ext, notified.is_oneway) == (40, {"consumerGroup": "G"}, True)
    assert (await wire.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="none")).code == 1


@pytest.mark.spec("HB-04", "RB-08")
@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
async def test_retry_topic_has_retry_queue_nums_in_both_models(wire: Wire, model: str) -> None:
    wire.broker.groups.set(SubscriptionGroupConfig("G", retry_queue_nums=3))
    await wire.heartbeat("G", "T", message_model=model)
    retry = wire.broker.topics.table["%RETRY%G"]
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (3, 3, 6)


@pytest.mark.spec("HB-04", "HB-07", "RB-07")
async def test_members_are_notified_of_membership_and_topic_changes(wire: Wire) -> None:
    await wire.heartbeat("G", "T")
    await wire.pushed.get()
    other = Wire(wire.server)
    await other.heartbeat("G", "T", client_id="c2")
    assert (await wire.pushed.get()).code == 40
    await other.call(RequestCode.UNREGISTER_CLIENT, clientID="c2", consumerGroup="G", producerGroup="producers")
    assert (await wire.pushed.get()).code == 40
    await other.heartbeat("G", "T", client_id="c2")
    await wire.pushed.get()
    await other.client.close()
    assert (await wire.pushed.get()).code == 40
    listed = await wire.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
    assert ConsumerIdList.decode(listed.body).consumer_id_list == ["c1"]
    await wire.heartbeat("G", "T")
    assert wire.pushed.empty()
    await wire.heartbeat("G", "T", "U")
    assert (await wire.pushed.get()).ext == {"consumerGroup": "G"}, "another topic"


@pytest.mark.spec("HB-07")
async def test_unregister_leaves_only_named_groups(wire: Wire) -> None:
    clients = wire.broker.clients
    await wire.heartbeat("G", "T")
    gone = {"clientID": "c1", "producerGroup": "producers"}
    assert (await wire.call(RequestCode.UNREGISTER_CLIENT, **gone)).code == 0
    assert clients.producers == {} and list(clients.consumers) == ["G"]
    await wire.heartbeat("G", "T")
    assert (await wire.call(RequestCode.UNREGISTER_CLIENT, clientID="c1", consumerGroup="G")).code == 0
    assert list(clients.producers) == ["producers"] and clients.consumers == {}


@pytest.mark.spec("HB-05", "RB-07")
def test_subscription_update_rules() -> None:
    clients, changes = Clients(), []
    clients.changed.subscribe(lambda group: changes.append(sorted(group.subscriptions)))
    connection, info = object(), ClientInfo("c", 0, 407, 0)

    def beat(*subscriptions: SubscriptionData) -> None:
        data = ConsumerData("G", "CONSUME_ACTIVELY", "BROADCASTING", subscription_data_set=list(subscriptions))
        clients.register_consumer(data, connection, info, notify=True)  # type: ignore[arg-type]

    beat(SubscriptionData("T", "a", sub_version=5))
    group = clients.consumers["G"]
    assert (group.consume_type, group.message_model) == ("CONSUME_ACTIVELY", "BROADCASTING")
    beat(SubscriptionData("T", "old", sub_version=4))
    assert clients.consumers["G"].subscriptions["T"].sub_string == "a"
    beat(SubscriptionData("T", "new", sub_version=6))
    assert clients.consumers["G"].subscriptions["T"].sub_string == "new"
    assert changes == [["T"]]
    beat(SubscriptionData("T", "equal", sub_version=6))
    assert clients.consumers["G"].subscriptions["T"].sub_string == "new"
    beat(SubscriptionData("T", "new", sub_version=6), SubscriptionData("U", sub_version=1))
    assert changes == [["T"], ["T", "U"]], "a topic more"
    beat(SubscriptionData("U", sub_version=1))
    assert changes == [["T"], ["T", "U"], ["U"]], "a topic less"


@pytest.mark.spec("HB-06", "RB-07")
async def test_silent_client_is_removed_and_disconnected(wire: Wire) -> None:
    await wire.heartbeat("G", "T")
    real = wire.broker._clock_ms
    wire.broker._clock_ms = lambda: real() + 119_000
    wire.broker.expire_clients()
    assert "G" in wire.broker.clients.consumers
    (info,) = wire.broker.clients.consumers["G"].members.values()
    at_limit = wire.broker.clients.expired(info.heartbeat_ms + 120_000, 120_000)
    assert Slices().run(at_limit) == set()
    wire.broker._clock_ms = lambda: real() + 121_000
    wire.broker.expire_clients()
    assert wire.broker.clients.consumers == {} and wire.broker.clients.producers == {}
    while wire.client.connections:
        await asyncio.sleep(0)
    assert (BrokerSettings().client_scan_ms, BrokerSettings().client_expiry_ms) == (10_000, 120_000)


@pytest.mark.spec("OF-04", "OF-05", "BP-07")
async def test_consumer_offsets_survive_restart(tmp_path: object) -> None:
    from saturnmq.testing import EmbeddedBroker

    folder = Path(str(tmp_path)) / "data"
    async with EmbeddedBroker(folder) as server:
        w = Wire(server)
        await w.send(body=b"kept")
        ask = {"consumerGroup": "G", "topic": "T", "queueId": 0}
        assert (await w.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)).ext["offset"] == "0"
        assert (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=9, **ask)).code == 0
        await w.pull(group="H", sysFlag=5, commitOffset=4)
        await w.client.close()
    async with EmbeddedBroker(folder) as server:
        w = Wire(server)
        assert (await w.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)).ext["offset"] == "9"
        ask["consumerGroup"] = "H"
        assert (await w.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)).ext["offset"] == "4"
        assert [m.body for m in await w.messages()] == [b"kept"]
        assert server.broker.topics.table["T"].write_queue_nums == 4
        assert (await w.send()).ext["queueOffset"] == "1"
        await w.client.close()


@pytest.mark.spec("OF-05")
def test_offset_decrease_is_accepted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        now = 0.0
        async with wire() as w:
            w.broker.offsets._log_limit = LogLimit(lambda: now)
            await w.send()
            for offset in (9, 9, 10**12, 3, -1):
                ask = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": offset}
                assert (await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **ask)).code == 0
                assert w.broker.offsets.get("T", "G", 0) == offset
            now = 1.0
            await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, **ask | {"commitOffset": -2})

    run(work)
    lines = [(r.levelno, r.getMessage()) for r in caplog.records if r.getMessage().startswith("offset set backwards")]
    assert lines == [
        (logging.WARNING, "offset set backwards topic=T group=G queue=0 from=1000000000000 to=3 suppressed=0"),
        (logging.WARNING, "offset set backwards topic=T group=G queue=0 from=-1 to=-2 suppressed=1"),
    ]


@pytest.mark.spec("OF-04")
async def test_group_without_offset_starts_at_0_while_first_is_in_memory(wire: Wire) -> None:
    ask = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    await wire.send(queue=1)
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)).ext["offset"] == "0", "an empty queue"
    await wire.send()
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)).ext["offset"] == "0"
    store = wire.broker.store
    memory_bytes, store.memory_bytes = store.memory_bytes, 0
    old = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)
    assert old.code == 22 and "maybe this group consumer boot first" in (old.remark or "")
    empty = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask | {"queueId": 2})
    assert (empty.code, empty.ext.get("offset")) == (0, "0"), "an empty queue has no entry on disk"
    store.memory_bytes = memory_bytes
    store.min_offset = lambda topic, queue_id: 1  # type: ignore[method-assign]
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)).code == 22, "the first one is deleted"
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **ask)
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)).ext["offset"] == "1"


async def test_negative_committed_offset_counts_as_none(wire: Wire) -> None:
    await wire.send()
    ask = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=-1, **ask)).code == 0
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)).ext["offset"] == "0"
    wire.broker.store.memory_bytes = 0  # the first message counts as on disk only
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)).code == 22


@pytest.mark.parametrize("closed", [{"write_queue_nums": 1}, {"perm": 4}])
async def test_queues_closed_for_writes_accept_commits(wire: Wire, closed: dict[str, int]) -> None:
    await wire.send(queue=3)
    topics = wire.broker.topics
    topics.table["T"] = dataclasses.replace(topics.table["T"], **closed)
    ask = {"consumerGroup": "G", "topic": "T", "queueId": 3}
    assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **ask)).code == 0
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, **ask)).ext["offset"] == "1"


@pytest.mark.spec("CQ-06", "CQ-11", "OF-05")
async def test_queue_offsets_by_bound_and_time(wire: Wire) -> None:
    times = []
    for _ in range(5):
        await wire.send()
        times.append((await wire.messages(offset=len(times)))[0].store_timestamp_ms)
    where = {"topic": "T", "queueId": 0}
    assert (await wire.call(RequestCode.GET_MAX_OFFSET, **where)).ext["offset"] == "5"
    assert (await wire.call(RequestCode.GET_MIN_OFFSET, **where)).ext["offset"] == "0"
    first = await wire.call(RequestCode.GET_EARLIEST_MSG_STORETIME, **where)
    assert first.ext["timestamp"] == str(times[0])
    for at, offset in ((0, 0), (times[-1] + 10_000, 4)):
        found = await wire.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=at, **where)
        assert found.ext["offset"] == str(offset)
    nowhere = await wire.call(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="none", queueId=0)
    assert nowhere.ext["timestamp"] == "-1"


@pytest.mark.spec("OR-09")
def test_queue_lock_is_owned_renewed_released_and_expires() -> None:
    assert LOCK_LIVE_MS == 60_000
    locks = QueueLockTable()
    queue = MessageQueue("T", "b", 0)
    assert locks.lock("G", "c1", [queue], 0) == [queue]
    assert locks.lock("G", "c2", [queue], LOCK_LIVE_MS) == []
    assert locks.lock("G", "c1", [queue], LOCK_LIVE_MS) == [queue]
    assert locks.lock("G", "c2", [queue], 2 * LOCK_LIVE_MS + 1) == [queue]
    locks.unlock("G", "c1", [queue])
    assert locks.lock("G", "c1", [queue], 2 * LOCK_LIVE_MS + 2) == []
    locks.unlock("G", "c2", [queue])
    assert locks.lock("G", "c1", [queue], 2 * LOCK_LIVE_MS + 3) == [queue]


@pytest.mark.spec("OR-09")
async def test_queue_locks_over_the_wire(wire: Wire) -> None:
    assert (await wire.send()).code == 0
    queue = MessageQueue("T", "broker-a", 0)

    async def lock(client: str) -> list[MessageQueue]:
        body = LockBatchRequest("G", client, [queue]).encode()
        return LockBatchResponse.decode((await wire.call(RequestCode.LOCK_BATCH_MQ, body)).body).lock_ok_mq_set

    assert await lock("c1") == [queue]
    assert await lock("c2") == []
    await wire.call(RequestCode.UNLOCK_BATCH_MQ, LockBatchRequest("G", "c1", [queue]).encode())
    assert await lock("c2") == [queue]


@pytest.mark.spec("RTY-02", "RTY-03", "RTY-04", "RTY-06", "OPS-14")
async def test_message_sent_back_goes_to_retry_topic_then_dlq() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        sent = await w.send(body=b"again", properties={"KEYS": "k"}, h=9)
        (message,) = await w.messages()
        back = {"group": "G", "delayLevel": 0, "originTopic": "T", "offset": message.physical_offset}
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, maxReconsumeTimes=1, **back)).code == 0
        clock.ms += 9999
        w.broker.master.delay.deliver_due()
        assert await w.messages("%RETRY%G") == []
        clock.ms += 1
        w.broker.master.delay.deliver_due()
        (retry,) = await w.messages("%RETRY%G")
        assert (retry.body, retry.reconsume_times) == (b"again", 1)
        assert (retry.properties["RETRY_TOPIC"], retry.properties["DELAY"]) == ("T", "3")
        assert (retry.born_host, retry.store_host) == (message.born_host, message.store_host)
        assert (retry.flag, retry.born_timestamp_ms, retry.properties["KEYS"]) == (9, 1234, "k")
        assert retry.physical_offset > message.physical_offset and retry.queue_offset == 0
        assert [one.physical_offset for one in await w.messages()] == [message.physical_offset], "it stays"
        assert retry.properties["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]
        back["offset"] = retry.physical_offset
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, maxReconsumeTimes=1, **back)).code == 0
        (dead,) = await w.messages("%DLQ%G")
        assert (dead.body, dead.reconsume_times, dead.properties["DELAY"]) == (b"again", 2, "0")
        config = w.broker.topics.table["%DLQ%G"]
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
        assert dead.properties["ORIGIN_MESSAGE_ID"] == sent.ext["msgId"]
        back["offset"] = 7
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == 1


@pytest.mark.spec("HB-08", "REM-12")
async def test_heartbeat_is_answered_while_pulls_are_parked(wire: Wire) -> None:
    """Heartbeats never queue: there is one event loop, and no handler blocks it."""
    await wire.send(queue=1)
    held = [asyncio.create_task(wire.pull(suspend_ms=60_000, timeout_ms=60_000)) for _ in range(100)]
    while wire.broker.long_polling.count < 100:
        await asyncio.sleep(0)
    answer = await wire.heartbeat("G", "T")
    assert answer.code == 0 and not any(task.done() for task in held)
    await wire.send()
    assert {task.code for task in await asyncio.gather(*held)} == {0}


@pytest.mark.spec("REM-11", "HB-03")
async def test_junk_heartbeat_is_answered_with_error(wire: Wire) -> None:
    for body in (b"", b"\xff\x00", b"[]", b'{"clientID":5,"consumerDataSet":7}'):
        assert (await wire.call(RequestCode.HEART_BEAT, body)).code == 1
    client = RemotingClient(settings=NetSettings())
    assert (await wire.heartbeat("../evil", "T")).code == 1
    assert len(wire.client.connections) == 1
    await client.close()
