"""Configuration switches and smaller rules of a broker, by their effect on clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from brokergroup import ledger_group
from wire import Wire, wire

from saturnmq.broker import BrokerSettings
from saturnmq.broker.services.delay import DelayService
from saturnmq.broker.services.timer import TimerService
from saturnmq.broker.state.locks import LOCK_LIVE_MS
from saturnmq.config.settings import to_properties
from saturnmq.protocol.bodies import SubscriptionGroupConfig
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.store import PutResult, PutStatus

# ---- messages sent back


async def sent_back(w: Wire, *, version: int = 407, **more: object) -> Command:
    """Send back the first message of T; returns the response."""
    (message,) = await w.messages()
    fields = {"group": "G", "delayLevel": 0, "originTopic": "T", "offset": message.physical_offset} | more
    return await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, version=version, **fields)


@pytest.mark.spec("RTY-06")
async def test_send_back_fails_unless_copy_is_stored(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    await wire.send()
    for status in PutStatus:

        async def confirmed(result: PutResult, status: PutStatus = status) -> PutStatus:
            return status

        monkeypatch.setattr(wire.broker.store, "wait_confirmed", confirmed)
        answer = await sent_back(wire)
        stored = status is PutStatus.PUT_OK
        assert answer.code == (0 if stored else 1) and (stored or status.value in (answer.remark or ""))


@pytest.mark.spec("RTY-02")
async def test_send_back_without_retry_queues_drops_message() -> None:
    async with wire() as w:
        await w.send()
        for queues in (0, -1):
            w.broker.groups.set(SubscriptionGroupConfig("G", retry_queue_nums=queues))
            before = w.broker.store.log.end
            assert (await sent_back(w)).code == 0
            assert w.broker.store.log.end == before and "%RETRY%G" not in w.broker.topics.table
    async with wire(auto_create_group=False) as w:
        fields = {"group": "G", "delayLevel": 0, "offset": int((await w.send()).ext["msgId"][16:], 16)}
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **fields)).code == 26


@pytest.mark.spec("RTY-02")
async def test_send_back_checks_group_then_broker_then_topic_then_message() -> None:
    """Each request has all the later reasons for a refusal, too: its offset is that of no message."""

    async def answered(w: Wire) -> tuple[int, str]:
        answer = await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, group="G", delayLevel=0, offset=7)
        return answer.code, answer.remark or ""

    async with wire(auto_create_group=False, broker_permission=4) as w:
        assert (await answered(w))[0] == 26
        w.broker.groups.set(SubscriptionGroupConfig("G", retry_queue_nums=0))
        assert (await answered(w))[0] == 16
    async with wire() as w:
        w.broker.groups.set(SubscriptionGroupConfig("G", retry_queue_nums=0))
        assert await answered(w) == (0, "") and "%RETRY%G" not in w.broker.topics.table
        w.broker.groups.set(SubscriptionGroupConfig("G", retry_queue_nums=3))
        assert await answered(w) == (1, "look message by offset failed, 7")
        created = w.broker.topics.table["%RETRY%G"]
        assert (created.read_queue_nums, created.write_queue_nums, created.perm) == (3, 3, 6)
        created.perm = 4
        assert await answered(w) == (16, "the topic[%RETRY%G] sending message is forbidden")


@pytest.mark.spec("RTY-02")
@pytest.mark.parametrize(("version", "topic"), [(120, "SCHEDULE_TOPIC_XXXX"), (121, "%DLQ%G")])
async def test_max_reconsume_times_applies_from_client_3_4_9(wire: Wire, version: int, topic: str) -> None:
    await wire.send()
    assert (await sent_back(wire, version=version, maxReconsumeTimes=0)).code == 0
    assert {name for name, _ in wire.broker.store.topic_queues()} == {"T", topic}


@pytest.mark.spec("RTY-02", "RTY-03", "RTY-05", "SND-09")
async def test_retry_max_times_of_the_group_decide_about_dead_letters() -> None:
    async with wire() as w:
        w.broker.groups.set(SubscriptionGroupConfig("G", retry_queue_nums=3, retry_max_times=2))
        for failed, topic in ((1, "%RETRY%G"), (2, "%DLQ%G")):
            assert (await w.send("%RETRY%G", j=failed)).code == 0
            assert [m.reconsume_times for m in await w.messages(topic)] == [failed]
            offset = int((await w.send(j=failed)).ext["msgId"][16:], 16)
            before = w.broker.store.max_offset("%DLQ%G", 0)
            back = {"group": "G", "delayLevel": 0, "originTopic": "T", "offset": offset}
            assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == 0
            assert w.broker.store.max_offset("%DLQ%G", 0) - before == failed - 1
        assert w.broker.topics.table["%DLQ%G"].write_queue_nums == 1, "whatever the group's number of retry queues"


@pytest.mark.spec("RTY-02", "OPS-03")
async def test_read_only_broker_rejects_send_back() -> None:
    async with wire() as w:
        await w.send()
        (message,) = await w.messages()
    async with wire(broker_permission=4) as w:
        fields = {"group": "G", "delayLevel": 0, "originTopic": "T", "offset": message.physical_offset}
        answer = await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **fields)
        assert answer.code == 16 and "sending message is forbidden" in (answer.remark or "")


@pytest.mark.spec("RTY-02", "RTY-04")
async def test_messages_sent_back_are_spread_over_retry_queues(wire: Wire) -> None:
    wire.broker.groups.set(SubscriptionGroupConfig("G", retry_queue_nums=2))
    for _ in range(4):
        await wire.send()
    for message in await wire.messages():
        fields = {"group": "G", "delayLevel": 1, "originTopic": "T", "offset": message.physical_offset}
        assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, **fields)).code == 0
    waiting = await wire.messages("SCHEDULE_TOPIC_XXXX", 0)
    assert sorted(m.properties["REAL_QID"] for m in waiting) == ["0", "0", "1", "1"]


# ---- progress


@pytest.mark.spec("LP-04", "BP-07")
async def test_resumed_pull_does_not_overwrite_newer_commit(wire: Wire) -> None:
    for _ in range(3):
        await wire.send()
    place = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    held = asyncio.create_task(wire.pull(offset=3, suspend_ms=20_000, sysFlag=7, commitOffset=1))
    while not wire.broker.long_polling.count:
        await asyncio.sleep(0)
    assert wire.broker.offsets.get("T", "G", 0) == 1
    assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=3, **place)).code == 0
    await wire.send()
    assert (await held).code == 0
    assert wire.broker.offsets.get("T", "G", 0) == 3


# ---- members and topics


@pytest.mark.spec("RB-07", "HB-04")
async def test_members_are_not_notified_if_disabled() -> None:
    async with wire() as w:
        w.broker.groups.set(SubscriptionGroupConfig("Quiet", notify_consumer_ids_changed_enable=False))
        other = Wire(w.server)
        for group in ("Quiet", "Loud"):  # notified in this order, if at all
            await w.heartbeat(group, "T")
        assert (await w.pushed.get()).ext == {"consumerGroup": "Loud"}
        for group in ("Quiet", "Loud"):
            await other.heartbeat(group, "T", client_id="c2")
        assert (await w.pushed.get()).ext == {"consumerGroup": "Loud"}
        await other.client.close()
        assert (await w.pushed.get()).ext == {"consumerGroup": "Loud"}
    async with wire(notify_ids_changed=False) as w:
        await w.heartbeat("Loud", "T")
        assert not w.broker.notices.pending and w.broker.clients.consumers["Loud"].members


@pytest.mark.spec("SND-06")
async def test_auto_created_topic_inherits_filter_type_and_unit_flag(wire: Wire) -> None:
    table = wire.broker.topics.table
    assert (await wire.send("plain")).code == 0
    table["TBW102"].topic_filter_type = "MULTI_TAG"
    assert (await wire.send("unit", k=True)).code == 0
    found = [(table[name].topic_filter_type, table[name].topic_sys_flag) for name in ("plain", "unit")]
    assert found == [("SINGLE_TAG", 0), ("MULTI_TAG", 1)]


# ---- a group member that does not lead


LEADERS_ONLY = {
    RequestCode.SEND_MESSAGE: 14,
    RequestCode.SEND_MESSAGE_V2: 14,
    RequestCode.SEND_BATCH_MESSAGE: 14,
    RequestCode.CONSUMER_SEND_MSG_BACK: 14,
    RequestCode.END_TRANSACTION: 11,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: 14,
    RequestCode.SEND_REPLY_MESSAGE: 14,
    RequestCode.SEND_REPLY_MESSAGE_V2: 14,
    RequestCode.UPDATE_CONSUMER_OFFSET: 14,
    RequestCode.LOCK_BATCH_MQ: 14,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: 14,
    RequestCode.CLONE_GROUP_OFFSET: 14,
    RequestCode.CLEAN_UNUSED_TOPIC: 14,
    RequestCode.UPDATE_AND_CREATE_TOPIC: 14,
    RequestCode.DELETE_TOPIC_IN_BROKER: 14,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: 14,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: 14,
}


@pytest.mark.spec("DL-X08", "TX-04")
@pytest.mark.loop(real=True)
async def test_member_that_does_not_lead_refuses_all_changes(tmp_path: Path) -> None:
    async with asyncio.timeout(30), ledger_group(tmp_path, start=False) as group:
        lonely = await group.start("n0")
        assert {code: (await group.call(lonely, code)).code for code in LEADERS_ONLY} == LEADERS_ONLY


# ---- settings

DEFAULTS = """
    brokerClusterName=DefaultCluster brokerId=0 brokerPermission=6 defaultTopicQueueNums=8 autoCreateTopicEnable=true
    clusterTopicEnable=true brokerTopicEnable=true autoCreateSubscriptionGroup=true msgTraceTopicName=RMQ_SYS_TRACE_TOPIC
    traceTopicEnable=false regionId=DefaultRegion registerBrokerTimeoutMills=6000 registerNameServerPeriod=30000
    compressedRegister=false forceRegister=true fetchNamesrvAddrByAddressServer=false brokerRole=ASYNC_MASTER
    flushConsumerOffsetInterval=5000 flushDelayOffsetInterval=10000 longPollingEnable=true shortPollingTimeMills=1000
    notifyConsumerIdsChangedEnable=true slaveReadEnable=false offsetCheckInSlave=false
    disableConsumeIfConsumerReadSlowly=false consumerFallbehindThreshold=17179869184 startAcceptSendRequestTimeStamp=0
    rejectTransactionMessage=false transactionTimeOut=6000 transactionCheckMax=15 transactionCheckInterval=60000
    aclEnable=false storeReplyMessageEnable=true traceOn=true enableCalcFilterBitMap=false expectConsumerNumUseFilter=32
    maxErrorRateOfBloomFilter=20 filterDataCleanTimeSpan=86400000 filterSupportRetry=false enablePropertyFilter=false
    sendThreadPoolQueueCapacity=10000 pullThreadPoolQueueCapacity=100000 replyThreadPoolQueueCapacity=10000
"""


@pytest.mark.spec(
    "SND-01", "SND-02", "SND-06", "SND-12", "NS-08", "NS-32", "NS-33", "NS-35", "OF-05", "DLY-07", "LP-01", "HB-04",
    "BP-06", "BP-08", "BP-09", "BP-10", "RP-04", "RP-05", "CF-03",
    "TX-07", "TX-08", "RR-04", "FIL-04", "FIL-05", "FIL-06", "FIL-07", "REM-14",
)  # fmt: skip
def test_broker_defaults_match_apache() -> None:
    properties = to_properties(BrokerSettings())
    expected = dict(word.split("=") for word in DEFAULTS.split())
    assert {name: properties.get(name) for name in expected} == expected
    assert LOCK_LIVE_MS == 60_000


# ---- background tasks


@pytest.mark.parametrize("service", [DelayService, TimerService])
async def test_failed_background_task_stops_the_broker(service: type, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise KeyError("level")

    monkeypatch.setattr(service, "deliver_due", fails)
    async with wire() as w:
        await w.broker.failed.wait()
        assert str(w.broker.failure) == "a background task ended with KeyError('level'). The log has the trace."
