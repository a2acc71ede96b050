"""Statistics of a broker over the wire: codes 315, 28 and 208."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import pytest
from wire import Wire, wire

from saturnmq.broker import broker as broker_module
from saturnmq.broker.services.statistics import EDGES_MS, NAMES, PutTimes, Stats
from saturnmq.protocol.bodies import (
    BrokerStatsData,
    ConsumeStats,
    HeartbeatData,
    ProducerConnection,
    ProducerData,
    ProducerTableInfo,
)
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.message import BatchItem
from saturnmq.protocol.offsets import QueueOffset

CLUSTER = "DefaultCluster"


@pytest.fixture(autouse=True)
def only_the_test_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "SAMPLE_SECONDS", 1e9)


class Clock:
    """A wall clock that tests move."""

    def __init__(self) -> None:
        self.now_ms = int(time.time() * 1000)

    def __call__(self) -> int:
        return self.now_ms


def sample(w: Wire, clock: Clock, count: int = 1) -> None:
    for _ in range(count):
        clock.now_ms += 10_000
        for _ in w.broker.stats.sample_sets():
            pass


async def stats(w: Wire, name: str, key: str) -> BrokerStatsData:
    answer = await w.call(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return BrokerStatsData.decode(answer.body or b"")


async def table(w: Wire) -> dict[str, str]:
    answer = await w.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    found: dict[str, str] = json.loads(answer.body or b"")["table"]
    return found


@pytest.mark.spec("MON-13", "MON-07")
async def test_six_batches_of_ten_in_a_minute() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        for _ in range(6):
            assert (await w.send_batch([BatchItem(b"x")] * 10)).code == ResponseCode.SUCCESS
            sample(w, clock)
        found = await stats(w, "TOPIC_PUT_NUMS", "T")
        assert (found.stats_minute.sum, found.stats_minute.tps, found.stats_minute.avgpt) == (60, 1.0, 10.0)
        assert (found.stats_hour.sum, found.stats_day.sum) == (0, 0)
        sample(w, clock, 60)
        found = await stats(w, "TOPIC_PUT_NUMS", "T")
        assert (found.stats_minute.sum, found.stats_hour.sum, found.stats_day.sum) == (0, 60, 0)
        sample(w, clock, 300)
        found = await stats(w, "TOPIC_PUT_NUMS", "T")
        assert (found.stats_minute.sum, found.stats_day.sum) == (0, 60)
        answer = await w.call(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T")
        body = json.loads(answer.body or b"")
        assert set(body) == {"statsMinute", "statsHour", "statsDay"}
        assert set(body["statsDay"]) == {"sum", "tps", "avgpt"}


@pytest.mark.spec("MON-01")
@pytest.mark.parametrize(
    ("name", "key"), [("TOPIC_PUT_NUMS", "Unseen"), ("NO_SUCH_NAME", "T"), ("GROUP_GET_NUMS", "T")]
)
async def test_unseen_item_is_answered_as_by_apache(wire: Wire, name: str, key: str) -> None:
    await wire.send()
    answer = await wire.call(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"The stats <{name}> <{key}> not exist"


@pytest.mark.spec("MON-01")
async def test_each_kind_of_traffic_has_its_items() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        first = await w.send(body=b"a" * 100)
        size = w.broker.store.max_physical_offset
        await w.send(body=b"b", properties={"DELAY": "3"})
        await w.heartbeat("g", "T")
        pulled = await w.pull(group="g")
        back = await w.call(
            RequestCode.CONSUMER_SEND_MSG_BACK, group="g", offset=0, delayLevel=0, originMsgId=first.ext["msgId"],
            originTopic="T", unitMode=False, maxReconsumeTimes=16,
        )  # fmt: skip
        assert (pulled.code, back.code) == (0, 0)
        sample(w, clock)

        async def minute(name: str, key: str) -> tuple[int, int]:
            found = (await stats(w, name, key)).stats_minute
            return found.sum, round(found.sum / found.avgpt) if found.avgpt else 0

        assert await minute("TOPIC_PUT_NUMS", "T") == (1, 1)
        assert await minute("TOPIC_PUT_SIZE", "T") == (size, 1)
        assert await minute("GROUP_GET_NUMS", "T@g") == (1, 1)
        assert await minute("GROUP_GET_SIZE", "T@g") == (size, 1)
        assert (await minute("GROUP_GET_LATENCY", "0@T@g"))[0] >= 0
        assert await minute("SNDBCK_PUT_NUMS", "T@g") == (1, 1)
        assert await minute("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX") == (2, 2)
        assert await minute("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@2") == (2, 2)
        assert (await minute("QUEUE_PUT_SIZE", "SCHEDULE_TOPIC_XXXX@2"))[0] > 100
        assert await minute("BROKER_PUT_NUMS", CLUSTER) == (3, 0), "its times are never counted"
        assert await minute("BROKER_GET_NUMS", CLUSTER) == (1, 0)
        assert {name for name, _ in w.broker.stats.sets} == set(NAMES) and len(NAMES) == 23


@pytest.mark.spec("MON-01")
async def test_delivered_delayed_messages_are_counted_for_their_group_and_topic() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        await w.send(properties={"DELAY": "1"})
        clock.now_ms += 1_100
        async with asyncio.timeout(20):
            while w.broker.store.max_offset("T", 0) < 1:
                await asyncio.sleep(0)
        sample(w, clock)
        for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            assert (await stats(w, name, "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER")).stats_minute.sum > 0
        assert (await stats(w, "QUEUE_GET_NUMS", "SCHEDULE_TOPIC_XXXX@0@SCHEDULE_CONSUMER")).stats_minute.sum == 1
        assert (await stats(w, "QUEUE_GET_SIZE", "SCHEDULE_TOPIC_XXXX@0@SCHEDULE_CONSUMER")).stats_minute.sum > 0
        assert (await stats(w, "TOPIC_PUT_NUMS", "T")).stats_minute.sum == 1


@pytest.mark.spec("MON-01")
async def test_keys_that_switch_parts_of_the_statistics_off() -> None:
    clock = Clock()
    off = {"detail_stats": False, "delay_stats": False, "fall_stats": False}
    async with wire(clock_ms=clock, **off) as w:
        await w.send(properties={"DELAY": "1"})
        await w.send()
        clock.now_ms += 1_100
        async with asyncio.timeout(20):
            while w.broker.store.max_offset("T", 0) < 2:
                await asyncio.sleep(0)
        await w.heartbeat("g", "T")
        assert (await w.pull(group="g")).code == ResponseCode.SUCCESS
        counted = w.broker.stats
        assert not any(name.startswith("QUEUE_") for name, _ in counted.sets)
        assert counted.find("GROUP_GET_LATENCY", "T@g") and not counted.find("GROUP_GET_LATENCY", "0@T@g")
        assert counted.sets.find("GROUP_GET_NUMS", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER") is None
        own, broker = counted.find("TOPIC_PUT_NUMS", "T"), counted.find("BROKER_PUT_NUMS", CLUSTER)
        assert own is not None and own.value == 1 and broker is not None and broker.value == 2
        assert counted.put_messages == 3, "what code 28 shows has all"
        assert counted.fall_size == {} and set(counted.fall_ms) == {"0@T@g"}


@pytest.mark.spec("MON-01")
async def test_distance_from_the_end_counts_from_the_last_pulled_message() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        for _ in range(3):
            await w.send(body=b"a" * 100)
        size = w.broker.store.max_physical_offset // 3
        await w.heartbeat("g", "T")
        clock.now_ms += 700
        for offset, bytes_behind in ((0, 3 * size), (2, size)):
            assert (await w.pull(group="g", offset=offset, maxMsgNums=1)).code == ResponseCode.SUCCESS
            assert w.broker.stats.fall_size == {"0@T@g": bytes_behind}
        assert w.broker.stats.fall_ms["0@T@g"] >= 700


@pytest.mark.spec("MON-01")
async def test_distance_from_the_end_counts_for_pulls_that_match_nothing(wire: Wire) -> None:
    for _ in range(3):
        await wire.send(body=b"a" * 100, properties={"TAGS": "other"})
    end = wire.broker.store.max_physical_offset
    await wire.heartbeat("g", "T")
    pulled = await wire.pull(group="g", subscription="wanted")
    assert pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    looked_at = wire.broker.store.physical_offset("T", 0, QueueOffset(int(pulled.ext["nextBeginOffset"]) - 1))
    assert wire.broker.stats.fall_size == {"0@T@g": end - looked_at} and wire.broker.stats.fall_ms == {}
    for _ in range(3):
        assert (await wire.pull(group="g", offset=3)).code == ResponseCode.PULL_NOT_FOUND
    assert wire.broker.stats.fall_size == {"0@T@g": end - looked_at}, "nothing was read"


@pytest.mark.spec("MON-12")
def test_only_keys_of_the_deleted_name_are_removed() -> None:
    """The name of a topic may be that of a group, of the cluster, or a number."""
    made = Stats("T", Clock(), delete_unused=True)

    def keys() -> set[str]:
        return {key for _, one in made.sets for key in one.items} | set(made.fall_size) | set(made.fall_ms)

    def count() -> None:
        for topic, group in (("T", "g"), ("T2", "T"), ("7", "8")):
            made.put(topic, 1, 1)
            made.fetched(topic, group, 1, 1)
            made.pulled(topic, group, 7, 0, 1, 1)
            made.sent_back(topic, group)
        made.delivered("T2", 8, 1)
        for _ in made.sample_sets():
            pass

    count()
    everything = keys()
    made.deleted(topic="T")
    assert everything - keys() == {"T@g", "7@T@g"}
    assert made.sets.find("TOPIC_PUT_NUMS", "T") is None and made.sets.find("BROKER_PUT_NUMS", "T") is not None
    made.deleted(group="8")
    assert everything - keys() == {"T@g", "7@T@g", "7@8", "7@7@8"}, "queue 8 of the delay topic is no group"
    made.deleted(topic="7")
    assert keys() == {"T", "T2", "T2@T", "7@T2@T", "SCHEDULE_TOPIC_XXXX@8@SCHEDULE_CONSUMER",
                      "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER"}  # fmt: skip
    count()
    assert keys() == everything
    found = made.sets.find("TOPIC_PUT_NUMS", "T")
    assert found is not None and found.value == 1, "counted from its new start"


@pytest.mark.spec("RT-03")
async def test_consume_tps_is_the_groups_rate_of_the_last_minute() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        for _ in range(30):
            await w.send()
        await w.heartbeat("g", "T")
        await w.pull(group="g")
        sample(w, clock, 6)
        await w.call(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=0, commitOffset=30)
        answer = await w.call(RequestCode.GET_CONSUME_STATS, consumerGroup="g")
        assert ConsumeStats.decode(answer.body or b"").consume_tps == 0.5


@pytest.mark.spec("MON-12")
@pytest.mark.parametrize("enabled", [False, True])
async def test_deleted_topics_and_groups_keep_their_items_unless_configured(enabled: bool) -> None:
    async with wire(delete_unused_stats=enabled) as w:
        for topic in ("T", "U"):
            await w.send(topic)
        await w.heartbeat("g", "T")
        await w.pull(group="g")
        counted = w.broker.stats.sets
        assert counted.find("GROUP_GET_NUMS", "T@g") and counted.find("GROUP_GET_LATENCY", "0@T@g")
        await w.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", removeOffset=True)
        assert (counted.find("GROUP_GET_NUMS", "T@g") is None) == enabled
        assert (counted.find("GROUP_GET_LATENCY", "0@T@g") is None) == enabled
        await w.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        assert (counted.find("TOPIC_PUT_NUMS", "T") is None) == enabled
        assert counted.find("TOPIC_PUT_NUMS", "U") is not None
        del w.broker.topics.table["U"]
        await w.call(RequestCode.CLEAN_UNUSED_TOPIC)
        assert (counted.find("TOPIC_PUT_NUMS", "U") is None) == enabled


RUNTIME_KEYS = (
    "bootTimestamp", "runtime", "putMessageEntireTimeMax", "getMessageEntireTimeMax", "putMessageTimesTotal",
    "putMessageFailedTimes", "putMessageSizeTotal", "putMessageAverageSize", "putMessageDistributeTime", "putTps",
    "getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps", "putLatency99", "putLatency999",
    "dispatchMaxBuffer", "dispatchBehindBytes", "commitLogDiskRatio", "consumeQueueDiskRatio", "commitLogMinOffset",
    "commitLogMaxOffset", "brokerVersionDesc", "brokerVersion", "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning", "msgPutTotalTodayNow", "msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow", "sendThreadPoolQueueSize", "sendThreadPoolQueueCapacity", "pullThreadPoolQueueSize",
    "pullThreadPoolQueueCapacity", "queryThreadPoolQueueSize", "queryThreadPoolQueueCapacity",
    "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity", "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills",
    "earliestMessageTimeStamp", "startAcceptSendRequestTimeStamp", "remainTransientStoreBufferNumbs",
    "remainHowManyDataToFlush", "commitLogDirCapacity",
)  # fmt: skip


@pytest.mark.spec("RT-01")
async def test_runtime_information_has_every_key_from_the_first_second() -> None:
    async with wire() as w:
        found = await table(w)
        assert not set(RUNTIME_KEYS) - set(found)
        folder = w.broker.store.settings.commit_log_dirs[0]
        assert 0 <= float(found[f"commitLogDiskRatio_{folder}"]) <= 1
        assert {f"scheduleMessageOffset_{level}" for level in range(1, 19)} >= {
            key for key in found if key.startswith("scheduleMessageOffset_")
        }
        assert found["putMessageTimesTotal"] == "1", "Apache shows 1 for none"
        assert found["putMessageDistributeTime"] == "null", "of the last full minute"
        assert found["remainHowManyDataToFlush"].endswith(" B")
        capacity = re.fullmatch(r"Total : (\d+\.\d [MGT]iB), Free : (\d+\.\d [MGT]iB)\.", found["commitLogDirCapacity"])
        assert capacity, found["commitLogDirCapacity"]
        assert "remainHowManyDataToCommit" not in found
        for key in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps"):
            assert [float(part) for part in found[key].split(" ")] == [0.0, 0.0, 0.0]
        await w.send()
        w.broker.stats.put_times.rotate()
        found = await table(w)
        counts = [part.rpartition(":") for part in found["putMessageDistributeTime"].split()]
        assert [label for label, _, _ in counts] == [
            "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]",
            "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
        ]  # fmt: skip
        assert sum(int(count) for _, _, count in counts) == 1
    async with wire({"transient_pool_enable": True, "transient_pool_size": 2}) as w:
        assert (await table(w))["remainHowManyDataToCommit"].endswith("B")


@pytest.mark.spec("RT-01")
def test_put_times_are_classified_and_interpolated() -> None:
    assert len(EDGES_MS) == 75 and EDGES_MS[19:21] == (20, 22) and EDGES_MS[-1] == 10_000
    times = PutTimes()
    assert (times.distribution(), times.percentile(0.99)) == ("null", 0.0)
    times.under_1_ms = 90
    for ms in (1, 9, 10, 49, 50, 99, 999, 1000, 9999, 10_000):
        times.add(ms)
    times.rotate()
    numbers = [int(part.rpartition(":")[2]) for part in times.distribution().split()]
    assert numbers == [90, 2, 2, 2, 0, 0, 1, 1, 0, 0, 0, 1, 1]
    assert times.percentile(0.5) == pytest.approx(50 / 90)
    assert times.percentile(0.91) == 2.0 and times.percentile(1.0) == 10_000
    times.rotate()
    assert times.percentile(0.99) == 0.0, "only the last full minute"


@pytest.mark.spec("MON-14")
def test_daily_counters_change_at_local_midnight(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        clock = Clock()
        clock.now_ms = 1_700_000_000_000  # 06:13:20 there
        midnight = 1_700_064_000_000
        made = Stats(CLUSTER, clock)

        def days() -> list[int]:
            rows = made.table(0.0)
            names = ("msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow",
                     "msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning", "msgGetTotalTodayNow")  # fmt: skip
            return [int(rows[name]) for name in names]

        assert days() == [0] * 6, "nothing is kept over a restart"
        made.put("T", 5, 500)
        made.fetched("T", "g", 2, 200)
        made.note_time(midnight - 1)
        assert days() == [0, 0, 5, 0, 0, 2]
        with caplog.at_level("INFO", "saturnmq"):
            made.note_time(midnight)
        assert "yesterday put message total: 5" in caplog.text and "yesterday get message total: 2" in caplog.text
        made.put("T", 1, 100)
        made.note_time(midnight + 86_400_000 - 1)
        assert days() == [0, 5, 6, 0, 2, 2]
        made.note_time(midnight + 86_400_000)
        assert days() == [5, 6, 6, 2, 2, 2]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.spec("MON-18")
async def test_committed_transactional_message_counts_for_its_own_topic(wire: Wire) -> None:
    half = await wire.send(properties={"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "k"}, f=4)
    fields: dict[str, Any] = {
        "producerGroup": "producers", "tranStateTableOffset": half.ext["queueOffset"], "commitLogOffset": 0,
        "commitOrRollback": 8, "fromTransactionCheck": False, "msgId": half.ext["msgId"], "transactionId": "x",
    }  # fmt: skip
    assert wire.broker.stats.sets.find("TOPIC_PUT_NUMS", "T") is None
    assert (await wire.call(RequestCode.END_TRANSACTION, **fields)).code == 0
    found = wire.broker.stats.sets.find("TOPIC_PUT_NUMS", "T")
    assert found is not None and found.value == 1


@pytest.mark.spec("RT-07")
async def test_producers_are_listed_by_group_with_the_address_in_javas_form(wire: Wire) -> None:
    missing = await wire.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="producers")
    assert missing.code == ResponseCode.SYSTEM_ERROR
    assert missing.remark == "the producer group[producers] not exist"
    before_ms = int(time.time() * 1000)
    await wire.heartbeat()
    listed = await wire.call(RequestCode.GET_ALL_PRODUCER_INFO)
    ((group, (one,)),) = ProducerTableInfo.decode(listed.body or b"").data.items()
    other = HeartbeatData("c1", [ProducerData("others"), ProducerData("producers")], [])
    assert (await wire.call(RequestCode.HEART_BEAT, other.encode())).code == ResponseCode.SUCCESS
    both = ProducerTableInfo.decode((await wire.call(RequestCode.GET_ALL_PRODUCER_INFO)).body or b"").data
    assert {name: len(members) for name, members in both.items()} == {"producers": 1, "others": 1}, "all groups"
    assert group == "producers" and re.fullmatch(r"/127\.0\.0\.1:\d+", one.remote_ip or "")
    assert before_ms <= one.last_update_timestamp <= time.time() * 1000 + 1 and one.client_id == "c1"
    found = await wire.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="producers")
    (connection,) = ProducerConnection.decode(found.body or b"").connection_set
    assert (connection.client_id, f"/{connection.client_addr}") == ("c1", one.remote_ip)
