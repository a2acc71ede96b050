"""Admin operations on consumer groups, suggested broker of pulls, offset-moved events, draining and address server lookup."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from wire import Clock, Wire, commit, member, wall_clock_ms, wire

from loglines import own_messages
from saturnmq.admin.connection import TIMEOUT_MS
from saturnmq.admin.listings import SLOW
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.broker.requests import relay
from saturnmq.broker.services import registrar as registrar_module
from saturnmq.broker.services.address_server import LookupFailed, parse
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NO_RESPONSE, Connection, NetSettings
from saturnmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    GetConsumerStatusBody,
    GroupList,
    HeartbeatData,
    MessageQueue,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRouteData,
)
from saturnmq.protocol.codes import Language, RequestCode, ResponseCode, SysFlag
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Host, Message, decode_records, java_hash
from saturnmq.store import PutStatus, StoreProfile, StoreSettings

QUEUE = MessageQueue("T", "broker-a", 0)


async def send_at(w: Wire, clock: Clock, *times_ms: int) -> None:
    for ms in times_ms:
        clock.ms = ms
        assert (await w.send(d=1)).code == 0


# ---- offsets by time (OF-06)


@pytest.mark.spec("OF-06")
@pytest.mark.parametrize(
    ("after_first_ms", "force", "committed", "expected"),
    [
        (2000, False, 4, 2),  # backward
        (3000, False, 1, 1),  # never forward without force
        (3000, True, 1, 3),
        (-1, True, 1, 4),  # end of the queue
        (-1, False, 4, 4),
        (0, False, 3, 0),
    ],
)
async def test_reset_offset_by_time_is_pushed_to_every_member(
    after_first_ms: int, force: bool, committed: int, expected: int
) -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        start = clock.ms
        await send_at(w, clock, start, start + 1000, start + 2000, start + 3000)
        await commit(w, committed)
        notices: asyncio.Queue[tuple[str, Command]] = asyncio.Queue()
        async with (
            member(w, lambda c, r: notices.put_nowait(("java", r))),
            member(w, lambda c, r: notices.put_nowait(("cpp", r)), client_id="m2", language=Language.CPP),
        ):
            time_ms = start + after_first_ms if after_first_ms >= 0 else -1
            answer = await w.call(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", group="G", timestamp=time_ms, isForce=force
            )
            assert answer.code == 0, answer
            assert ResetOffsetBody.decode(answer.body).offset_table == {QUEUE: expected}
            pushed: dict[str, Command] = {}
            while len(pushed) < 2:
                who, command = await notices.get()
                if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                    pushed[who] = command
            assert all(c.is_oneway and c.ext["group"] == "G" and c.ext["topic"] == "T" for c in pushed.values())
            assert ResetOffsetBody.decode(pushed["java"].body).offset_table == {QUEUE: expected}
            rows = json.loads(pushed["cpp"].body or b"")["offsetTable"]  # C++ clients read plain JSON
            assert rows == [{"topic": "T", "brokerName": "broker-a", "queueId": 0, "offset": expected}]


@pytest.mark.spec("OF-06")
async def test_reset_offset_requires_topic_committed_group_and_member() -> None:
    async with wire() as w:
        ask = {"group": "G", "timestamp": 0, "isForce": True}
        nowhere = await w.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="None", **ask)
        assert nowhere.code == ResponseCode.SYSTEM_ERROR and "no topic in this broker" in (nowhere.remark or "")
        await w.send()
        never = await w.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", **ask)
        assert never.code == ResponseCode.SYSTEM_ERROR and "not exist" in (never.remark or "")
        await commit(w, 1)
        offline = await w.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", **ask)
        assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert w.broker.offsets.get("T", "G", 0) == 1


# ---- clone, correction, time span (OF-07)


@pytest.mark.spec("OF-07", "ADM-23")
async def test_clone_group_offset_copies_offsets() -> None:
    async with wire() as w:
        for topic in ("T", "U"):
            await w.send(topic)
            await w.send(topic)
        await commit(w, 1)
        await commit(w, 2, topic="U")
        await commit(w, 1, queue=1)
        ask = {"srcGroup": "G", "destGroup": "H"}
        assert (await w.call(RequestCode.CLONE_GROUP_OFFSET, topic="T", offline=True, **ask)).code == 0
        offsets = w.broker.offsets
        assert (offsets.of("T", "H"), offsets.of("U", "H")) == ({0: 1, 1: 1}, {})
        await w.heartbeat("G", "T")  # no longer subscribes U
        assert (await w.call(RequestCode.CLONE_GROUP_OFFSET, offline=False, **ask)).code == 0
        assert offsets.get("U", "H", 0) is None
        assert (await w.call(RequestCode.CLONE_GROUP_OFFSET, offline=True, **ask)).code == 0
        assert offsets.get("U", "H", 0) == 2
        offsets.set("T", "G", 0, 2)
        assert offsets.get("T", "H", 0) == 1  # a copy, not a shared table
        bad = await w.call(RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="a/b", offline=True)
        assert bad.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.spec("OF-07", "ADM-25")
async def test_correction_offset_is_minimum_of_all_groups() -> None:
    async with wire() as w:
        await w.send(d=2)
        for group, offset in (("A", 5), ("B", 3), ("C", 1), ("D", 9)):
            await commit(w, offset, group=group)
            await commit(w, offset + 10, group=group, queue=1)

        async def asked(compare: str, filtered: str | None = None) -> dict[int, int]:
            ext = {"topic": "T", "compareGroup": compare} | ({"filterGroups": filtered} if filtered else {})
            answer = await w.call(RequestCode.QUERY_CORRECTION_OFFSET, **ext)
            assert answer.code == 0
            return QueryCorrectionOffsetBody.decode(answer.body).correction_offsets

        assert await asked("A") == {0: 1, 1: 11}
        assert await asked("A", "C") == {0: 3, 1: 13}
        assert await asked("B", "C") == {0: 3, 1: 13}, "the least one itself is not behind"
        assert await asked("C", "C") == {0: 2**63 - 1, 1: 2**63 - 1}  # C itself is behind the others
        assert w.broker.offsets.get("T", "C", 0) == 1  # the query deletes nothing


@pytest.mark.spec("OF-07")
async def test_consume_time_span_reports_delay_of_next_message() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        start = clock.ms
        await send_at(w, clock, start, start + 1000, start + 5000)
        await commit(w, 1)
        clock.ms = start + 9000

        async def span() -> Any:
            answer = await w.call(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")
            (only,) = ConsumeTimeSpans.decode(answer.body).consume_time_span_set
            assert only.message_queue == QUEUE
            return (
                only.min_time_stamp - start,
                only.max_time_stamp - start,
                only.consume_time_stamp - start,
                only.delay_time,
            )

        assert await span() == (0, 5000, 0, 8000)
        await commit(w, 3)
        assert await span() == (0, 5000, 5000, 0)
        missing = await w.call(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="None", group="G")
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.spec("OF-07")
async def test_broker_consume_stats_cover_all_groups() -> None:
    async with wire() as w:
        for _ in range(3):
            await w.send(d=1)
        for group, offset in (("G", 1), ("H", 3)):
            w.broker.groups.find(group)
            await commit(w, offset, group=group)
        answer = await w.call(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False)
        found = ConsumeStatsList.decode(answer.body)
        table = {group: stats for entry in found.consume_stats_list for group, stats in entry.items()}
        assert found.total_diff == 2 and found.broker_addr == w.server.broker_address
        assert table["G"][0].offset_table[QUEUE].consumer_offset == 1
        ordered = ConsumeStatsList.decode((await w.call(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=True)).body)
        assert ordered.total_diff == 0 and not any(s for e in ordered.consume_stats_list for s in e.values())


@pytest.mark.spec("RT-05")
async def test_broker_consume_stats_of_ordered_topics_only() -> None:
    async with wire() as w:
        for topic in ("T", "Ordered"):
            assert (await w.send(topic, d=1)).code == 0
            w.broker.offsets.set(topic, "G", 0, 0)
        w.broker.groups.find("G")
        w.broker.topics.table["Ordered"].order = True
        for ordered, topics, lag in ((False, {"T", "Ordered"}, 2), (True, {"Ordered"}, 1)):
            answer = await w.call(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=ordered)
            found = ConsumeStatsList.decode(answer.body)
            groups = {group: stats for entry in found.consume_stats_list for group, stats in entry.items()}
            assert groups.keys() == w.broker.groups.table.keys(), "groups without offsets too"
            assert {queue.topic for stats in groups["G"] for queue in stats.offset_table} == topics
            assert found.total_diff == lag


@pytest.mark.spec("RT-05")
async def test_broker_consume_stats_list_every_write_queue() -> None:
    """They listed the read queues, so that a topic whose read queues were reduced showed too small a lag."""
    async with wire() as w:
        w.broker.topics.set(TopicConfig("T", read_queue_nums=1, write_queue_nums=3))
        await w.send(e=2)
        w.broker.groups.find("G")
        w.broker.offsets.set("T", "G", 0, 0)
        answer = await w.call(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False)
        found = ConsumeStatsList.decode(answer.body)
        (stats,) = next(entry["G"] for entry in found.consume_stats_list if "G" in entry)
        assert {queue.queue_id for queue in stats.offset_table} == {0, 1, 2} and found.total_diff == 1
        one = ConsumeStats.decode((await w.call(RequestCode.GET_CONSUME_STATS, consumerGroup="G", topic="T")).body)
        assert {queue.queue_id for queue in one.offset_table} == {0}  # code 208: read queues, as in 4.9.7


# ---- relayed requests (CA-15)


@pytest.mark.spec("CA-15", "RT-08", "ADM-22")
async def test_relayed_requests_reach_consumer() -> None:
    async with wire() as w:
        sent = await w.send(body=b"again")
        asked: list[Command] = []

        def answer(connection: Connection, request: Command) -> Command | bytes:
            if request.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:  # may arrive at any time
                asked.append(request)
            if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                return request.reply(body=ConsumerRunningInfo({"PROP_CONSUMER_START_TIMESTAMP": "7"}).encode())
            if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
                result = ConsumeMessageDirectlyResult(consume_result="CR_LATER", spent_time_mills=3)
                return request.reply(body=result.encode())
            if request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return request.reply(body=GetConsumerStatusBody({QUEUE: 5}).encode())
            return NO_RESPONSE

        async with member(w, answer):
            who = {"consumerGroup": "G", "clientId": "m1"}
            info = await w.call(RequestCode.GET_CONSUMER_RUNNING_INFO, b"relayed", jstackEnable=True, **who)
            assert ConsumerRunningInfo.decode(info.body).properties["PROP_CONSUMER_START_TIMESTAMP"] == "7"
            assert (asked[-1].ext, asked[-1].body) == (who | {"jstackEnable": "true"}, b"relayed")
            direct = await w.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=sent.ext["msgId"], **who)
            result = ConsumeMessageDirectlyResult.decode(direct.body)
            assert (result.consume_result, result.spent_time_mills) == ("CR_LATER", 3)
            assert asked[-1].ext["brokerName"] == "broker-a"
            assert [m.body for m in decode_records(asked[-1].body or b"")] == [b"again"]
            where = {"topic": "T", "group": "G"}
            status = await w.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **where)
            assert GetConsumerStatusBody.decode(status.body).consumer_table == {"m1": {QUEUE: 5}}
            other = await w.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, clientAddr="m9", **where)
            assert GetConsumerStatusBody.decode(other.body).consumer_table == {}


@pytest.mark.spec("CA-15", "RT-08", "ADM-22")
async def test_relay_reports_offline_and_silent_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert relay.RELAY_TIMEOUT_MS == 10_000 and TIMEOUT_MS * SLOW == 15_000, "the administration waits longer"
    monkeypatch.setattr(relay, "RELAY_TIMEOUT_MS", 50)
    async with wire() as w:
        sent = await w.send()
        who = {"consumerGroup": "G", "clientId": "m1"}
        gone = await w.call(RequestCode.GET_CONSUMER_RUNNING_INFO, **who)
        assert gone.code == ResponseCode.SYSTEM_ERROR and "<G> <m1> not online" in (gone.remark or "")
        unknown = await w.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="G")
        assert unknown.code == ResponseCode.SYSTEM_ERROR
        async with member(w, lambda c, r: None):
            late = await w.call(RequestCode.GET_CONSUMER_RUNNING_INFO, **who)
            assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT
            late = await w.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=sent.ext["msgId"], **who)
            assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT
            for message_id in ("nonsense", sent.ext["msgId"][:-2] + "08"):
                bad = await w.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=message_id, **who)
                assert bad.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.spec("RT-08", "ADM-22")
async def test_relay_refuses_members_of_releases_that_would_not_answer() -> None:
    async with wire() as w:
        sent = await w.send()
        asked: list[int] = []

        def answer(connection: Connection, request: Command) -> Command:
            asked.append(request.code)
            return request.reply(body=b"{}")

        for version, code in ((61, 1), (62, 0)):
            who = {"consumerGroup": "G", "clientId": f"of-{version}"}
            async with member(w, answer, client_id=who["clientId"], version=version):
                for request, ext in (
                    (RequestCode.GET_CONSUMER_RUNNING_INFO, {}),
                    (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"msgId": sent.ext["msgId"]}),
                ):
                    relayed = await w.call(request, **who, **ext)
                    assert relayed.code == code
                    assert ("upgrade it to V3_1_8_SNAPSHOT" in (relayed.remark or "")) is bool(code)
        assert [code for code in asked if code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] == [307, 309]


@pytest.mark.spec("RT-11")
async def test_groups_of_a_topic_subscribe_it_or_have_offsets() -> None:
    async with wire() as w:
        assert (await w.send()).code == 0 and (await w.send("U")).code == 0
        for group in ("offline", "G"):
            await commit(w, 1, group=group)
        await w.heartbeat("G", "T")
        await w.heartbeat("online", "T", "U", client_id="c2")
        groups = {
            topic: GroupList.decode((await w.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=topic)).body).group_list
            for topic in ("T", "U", "None")
        }
        assert {topic: sorted(names) for topic, names in groups.items()} == {
            "T": ["G", "offline", "online"],
            "U": ["online"],
            "None": [],
        }


# ---- subscriptions of one group (CA-03)


@pytest.mark.spec("CA-03")
async def test_unequal_subscriptions_are_logged_once_and_newest_wins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with wire() as w:
        other = Wire(w.server)
        try:
            with caplog.at_level(logging.WARNING, "saturnmq.broker.state.clients"):
                await w.heartbeat("G", "T", tags="a", version=5)
                await other.heartbeat("G", "T", tags="a", version=5, client_id="c2")
                assert not own_messages(caplog)
                for _ in range(2):
                    await other.heartbeat("G", "T", tags="b", version=4, client_id="c2")
                live = w.broker.clients.consumers["G"]
                assert live.subscriptions["T"].sub_string == "a"  # the older version does not replace it
                await other.heartbeat("G", "T", tags="b", version=6, client_id="c2")
                assert live.subscriptions["T"].sub_string == "b"
            assert len(caplog.records) == 1
            words = caplog.records[0].getMessage()
            assert "unequal" in words and "group=G" in words and "c2" in words and "['T']" in words
        finally:
            await other.client.close()


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
@pytest.mark.parametrize("topics", [["T"], []])
async def test_member_skips_nothing_beside_a_stranger_in_its_group(kind: str, topics: list[str]) -> None:
    async def heartbeat(w: Wire, client_id: str, text: str, topics: list[str], version: int) -> None:
        codes = [java_hash(text)]
        subscriptions = [
            SubscriptionData(t, text, code_set=codes, expression_type=kind, sub_version=version) for t in topics
        ]
        data = HeartbeatData(client_id, [], [ConsumerData("G", subscription_data_set=subscriptions)])
        assert (await w.call(RequestCode.HEART_BEAT, data.encode())).code == 0

    async with wire(property_filter_enable=True) as w:
        stranger = Wire(w.server)
        own, foreign = ("paid", "other") if kind == "TAG" else ("TAGS = 'paid'", "TAGS = 'other'")
        now_ms = wall_clock_ms()
        try:
            await w.send(properties={"TAGS": "paid"})
            await heartbeat(w, "honest", own, ["T"], now_ms)
            await heartbeat(stranger, "stranger", foreign, topics, now_ms + 3_600_000)
            found = await w.pull(sysFlag=0, subVersion=now_ms, expressionType=kind)
            assert (found.code, found.ext["nextBeginOffset"]) == (0, "1")
            assert len(decode_records(found.body or b"")) == 1
            if topics:
                assert (await stranger.pull(sysFlag=0, subVersion=now_ms, expressionType=kind)).code == 20
        finally:
            await stranger.client.close()
        found = await w.pull(sysFlag=0, subVersion=now_ms, expressionType=kind)
        assert (found.code, found.ext["nextBeginOffset"]) == (0, "1")


# ---- pulls (BP-06, BP-08, BP-09, RP-05)


@pytest.mark.spec("BP-06")
async def test_lagging_group_is_directed_to_slow_consume_broker() -> None:
    config = SubscriptionGroupConfig("G", broker_id=2, which_broker_when_consume_slowly=3)
    for enabled in (False, True):
        async with wire(slave_read_enable=enabled) as w:
            w.broker.groups.set(config)
            for _ in range(3):
                await w.send(body=b"x" * 1000)
            near = await w.pull()
            assert near.ext["suggestWhichBrokerId"] == ("2" if enabled else "0")
            w.broker.store.memory_bytes = 500
            far = await w.pull(maxMsgNums=1)
            assert far.code == 0 and far.ext["suggestWhichBrokerId"] == ("3" if enabled else "0")
            end = await w.pull(offset=3)
            assert end.code == ResponseCode.PULL_NOT_FOUND
            assert end.ext["suggestWhichBrokerId"] == ("2" if enabled else "0")


@pytest.mark.spec("BP-08")
async def test_pull_outside_queue_writes_offset_moved_event() -> None:
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        await w.send()
        for _ in range(3):  # one event per queue and PAUSE_MS
            moved = await w.pull(offset=77)
            assert moved.code == ResponseCode.PULL_OFFSET_MOVED and moved.ext["nextBeginOffset"] == "1"
        clock.ms += 1000
        assert (await w.pull(offset=5, group="H")).code == ResponseCode.PULL_OFFSET_MOVED
        assert (await w.pull(offset=88)).code == ResponseCode.PULL_OFFSET_MOVED
        events = await w.messages("OFFSET_MOVED_EVENT")
        assert [json.loads(e.body)["offsetRequest"] for e in events] == [77, 5, 88]
        assert json.loads(events[0].body) == {
            "consumerGroup": "G",
            "messageQueue": {"topic": "T", "brokerName": "broker-a", "queueId": 0},
            "offsetRequest": 77,
            "offsetNew": 1,
        }
        assert (events[0].properties["TAGS"], events[0].properties["KEYS"]) == ("G", "G")
        assert events[0].queue_id == 0


@pytest.mark.spec("BP-08", "BP-07")
async def test_slave_directs_pull_outside_queue_to_group_broker() -> None:
    for checks in (False, True):
        async with wire(offset_check_in_slave=checks, slave_read_enable=True) as w:
            await w.send()
            w.broker.groups.set(SubscriptionGroupConfig("G", broker_id=4))
            w.broker.role.slave = True
            astray = await w.pull(offset=77, sysFlag=5, commitOffset=9)
            if checks:
                assert astray.code == ResponseCode.PULL_OFFSET_MOVED and astray.ext["nextBeginOffset"] == "1"
            else:
                assert astray.code == ResponseCode.PULL_RETRY_IMMEDIATELY and astray.ext["nextBeginOffset"] == "77"
            assert astray.ext["suggestWhichBrokerId"] == "4"
            assert w.broker.offsets.get("T", "G", 0) is None  # a slave does not store offsets either
            w.broker.role.slave = False
            assert await w.messages("OFFSET_MOVED_EVENT") == []
            await w.pull(sysFlag=5, commitOffset=1)
            assert w.broker.offsets.get("T", "G", 0) == 1


@pytest.mark.spec("BP-09")
async def test_pulls_do_not_queue_in_broker() -> None:
    """Apache RocketMQ answers 2 to pulls that waited 5 s for a thread; here each is answered within its event-loop iteration."""
    async with wire() as w:
        await w.send()
        answers = await asyncio.gather(*(w.pull() for _ in range(500)))
        assert {answer.code for answer in answers} == {0}


@pytest.mark.spec("RP-05", "LP-01")
async def test_short_polling_retries_pull_once() -> None:
    async with wire(long_polling=False, short_polling_ms=50) as w:
        await w.send()
        loop = asyncio.get_running_loop()
        began = loop.time()
        empty = await w.pull(offset=1, suspend_ms=20_000)
        assert empty.code == ResponseCode.PULL_NOT_FOUND
        assert 0.05 <= loop.time() - began < 10  # the request's 20 s are ignored
    async with wire(long_polling=False) as w:
        await w.send()
        began = loop.time()
        waiting = asyncio.ensure_future(w.pull(offset=1, suspend_ms=20_000))
        while not w.broker.long_polling.count:
            await asyncio.sleep(0)
        (held,) = w.broker.long_polling.parked()
        assert began + 1 <= held.deadline <= loop.time() + 1  # shortPollingTimeMills
        assert (await waiting).code == ResponseCode.PULL_NOT_FOUND
    async with wire() as w:
        await w.send()
        waiting = asyncio.ensure_future(w.pull(offset=1, suspend_ms=20_000))
        while not w.broker.long_polling.count:
            await asyncio.sleep(0)
        (held,) = w.broker.long_polling.parked()
        assert 15 < held.deadline - asyncio.get_running_loop().time() <= 20
        await w.send()
        assert (await waiting).code == 0


# ---- stored properties (ST-17, TR-01, TR-04) and draining (RTY-07)


@pytest.mark.spec("ST-17", "RR-02")
async def test_wait_property_is_dropped_and_cluster_added() -> None:
    async with wire(cluster_name="shop") as w:
        assert (await w.send(properties={"WAIT": "true", "own": "1"})).code == 0
        assert (await w.send(properties={"own": "2", "WAIT": "false"})).code == 0
        assert (await w.send(properties={"CLUSTER": "forged"})).code == 0
        found = [m.properties for m in await w.messages()]
        assert found == [{"own": "1", "CLUSTER": "shop"}, {"own": "2", "CLUSTER": "shop"}, {"CLUSTER": "shop"}]


@pytest.mark.spec("TR-01", "TR-04")
async def test_trace_topic_exists_if_enabled() -> None:
    async with wire(auto_create_topic=False) as w:
        assert w.broker.topics.get("RMQ_SYS_TRACE_TOPIC") is None
        assert (await w.send("RMQ_SYS_TRACE_TOPIC")).code == ResponseCode.TOPIC_NOT_EXIST
        w.broker.topics.ensure("T", 1)
        plain = await w.send()
        assert (plain.ext["MSG_REGION"], plain.ext["TRACE_ON"]) == ("DefaultRegion", "true")
    async with wire(auto_create_topic=False, trace_topic_enable=True, region_id="north", trace_on=False) as w:
        config = w.broker.topics.get("RMQ_SYS_TRACE_TOPIC")
        assert config is not None and (config.read_queue_nums, config.write_queue_nums) == (1, 1)
        sent = await w.send("RMQ_SYS_TRACE_TOPIC", body=b"Pub\x01")
        assert sent.code == 0 and (sent.ext["MSG_REGION"], sent.ext["TRACE_ON"]) == ("north", "false")
    async with wire(trace_topic_enable=True, trace_topic="own_trace") as w:
        assert w.broker.topics.get("own_trace") is not None


@pytest.mark.spec("RTY-07")
async def test_broker_is_drained_by_broker_permission(tmp_path: Path) -> None:
    async def route(w: Wire) -> tuple[int, int]:
        while "T" not in w.server.namesrv.routes.topics:
            await asyncio.sleep(0)
        body = await w.client.invoke(
            w.server.name_servers, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"}), 5000
        )
        (queue,) = TopicRouteData.decode(body.body).queue_datas
        return queue.perm, queue.read_queue_nums

    async def lag(w: Wire) -> int:
        body = (await w.call(RequestCode.GET_CONSUME_STATS, consumerGroup="G", topic="T")).body
        return sum(o.broker_offset - o.consumer_offset for o in ConsumeStats.decode(body).offset_table.values())

    async with wire(data=tmp_path) as w:
        for _ in range(2):
            assert (await w.send(d=1)).code == 0
        await w.heartbeat("G", "T")
        await commit(w, 1)
        assert await route(w) == (6, 1)
    async with wire(data=tmp_path, broker_permission=4) as w:
        assert await route(w) == (4, 1)  # no new sends; the queues stay assigned
        assert (await w.send(d=1)).code == 0  # a client with the old route can still send
        assert [(await w.messages(offset=offset))[0].queue_offset for offset in (1, 2)] == [1, 2]
        assert await lag(w) == 2
        await commit(w, 3)
        assert await lag(w) == 0
        back = {
            "group": "G",
            "offset": 0,
            "delayLevel": 0,
            "originMsgId": "x",
            "originTopic": "T",
            "unitMode": False,
        }
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == ResponseCode.NO_PERMISSION
    async with wire(data=tmp_path, broker_permission=6) as w:
        assert await route(w) == (6, 1)


# ---- messages that do not fit a record


@pytest.mark.spec("ST-03", "MSG-02")
async def test_store_rejects_message_that_does_not_fit_record() -> None:
    async with wire() as w:
        host = Host("127.0.0.1", 1)
        flags = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
        put = w.broker.store.put(Message("T", b"one", b"", 0, 0, flags, 0, host, host))
        assert put.status is PutStatus.PUT_OK
        bad = w.broker.store.put(Message("T", b"two", b"", 0, 2**40, 0, 0, host, host))
        assert bad.status is not PutStatus.PUT_OK and "does not fit its field" in bad.reason
        assert w.broker.store.put(Message("T", b"three", b"", 0, 0, 0, 0, host, host)).queue_offset == 1
        w.broker.topics.ensure("T", 1)
        assert [(m.body, m.sys_flag) for m in await w.messages()] == [(b"one", 0), (b"three", 0)]


# ---- NameServer lookup (NS-36)


@pytest.mark.spec("NS-36")
async def test_address_server_provides_name_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "LOOK_UP_SECONDS", 0.01)
    name_server = NameServer(NameServerSettings(kv_config_path=str(tmp_path / "kv.json")), NetSettings())
    host, port = await name_server.start("127.0.0.1", 0)
    asked: list[bytes] = []
    answer = b"HTTP/1.1 500 no\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    address_server = await asyncio.start_server(serve, "127.0.0.1", 0)
    domain = f"127.0.0.1:{address_server.sockets[0].getsockname()[1]}"
    settings = BrokerSettings(fetch_name_servers=True, name_server_domain=domain, listen_port=0)
    store = StoreSettings(store_path_root_dir=str(tmp_path / "store"), profile=StoreProfile.SMALL)
    broker = Broker(settings, store, NetSettings())
    await broker.start()  # starts also without an answer
    try:
        assert asked[0].startswith(b"GET /rocketmq/nsaddr HTTP/1.0\r\n") and broker.registrar.name_servers == []
        answer = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n{host}:{port}\n".encode()  # looked up again
        while broker.advertised_address not in name_server.routes.live:
            await asyncio.sleep(0)
        answer = b"HTTP/1.1 200 OK\r\n\r\n<html>"
        await broker.registrar.look_up()
        assert broker.registrar.name_servers == [f"{host}:{port}"]  # an invalid answer changes nothing
    finally:
        await broker.stop()
        assert name_server.routes.brokers == {}
        address_server.close()
        await address_server.wait_closed()
        await name_server.stop()


@pytest.mark.spec("NS-36")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\na:1;b.c:2", ["a:1", "b.c:2"]),
        (b"HTTP/1.0 200 OK\r\n\r\n [::1]:9876 ; ", ["[::1]:9876"]),
        (b"HTTP/1.0 200 OK\r\n\r\n", None),
        (b"HTTP/1.0 404 no\r\n\r\na:1", None),
        (b"HTTP/1.0 200 OK\r\n\r\na:1;x y:2", None),
        (b"a:1", None),
        (b"", None),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"a:1;" * 100, None),
        (b"HTTP/1.0 200 OK\r\n\r\n\xff:1", None),
    ],
)
def test_address_server_answer_is_list_or_error(answer: bytes, expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(LookupFailed):
            parse(answer)
    else:
        assert parse(answer) == expected
