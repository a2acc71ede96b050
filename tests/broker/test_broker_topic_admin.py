"""Administration of topics: names that are refused, what a change reaches and in which order, what a deletion leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from wire import Wire, commit, wire

from saturnmq.client.connection.url import ClientSettings
from saturnmq.net import Connection, Reply
from saturnmq.protocol.bodies import (
    ConsumerOffsetTable,
    RegisterBrokerBody,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
)
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.names import NAME_LENGTH_MAX


async def update(w: Wire, topic: str, *, queues: int = 2, perm: int = 6, filter_type: str = "SINGLE_TAG") -> Command:
    return await w.call(
        RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, defaultTopic="TBW102", readQueueNums=queues, writeQueueNums=queues,
        perm=perm, topicFilterType=filter_type, topicSysFlag=0, order=False,
    )  # fmt: skip


async def route(w: Wire, topic: str) -> TopicRouteData | None:
    ask = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})
    answer = await w.client.invoke(w.server.name_servers, ask, 5000)
    return TopicRouteData.decode(answer.body) if answer.code == 0 else None


@pytest.mark.spec("ADM-16", "ADM-25")
async def test_illegal_and_system_topics_are_neither_changed_nor_deleted() -> None:
    async with wire(cluster_name="shop", auto_create_topic=False) as w:
        before = dict(w.broker.topics.table)
        illegal = ("", " ", "a b", "a/b", "a.b", "ü", "a" * (NAME_LENGTH_MAX + 1))
        system = (
            "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC",
            "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
            "shop", "broker-a", "shop_REPLY_TOPIC", "rmq_sys_anything",
        )  # fmt: skip
        for topic in illegal + system:
            deleted = await w.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
            for answer in (await update(w, topic), deleted):
                assert answer.code == 1, topic
                assert ("conflict with system topic" in (answer.remark or "")) is (topic in system)
        assert w.broker.topics.table == before
        for topic in ("a" * NAME_LENGTH_MAX, "%a|B_9-"):
            assert (await update(w, topic)).code == 0
            assert (await w.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)).code == 0
        listed = TopicList.decode((await w.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body)
        assert set(system[:-1]) <= set(listed.topic_list)


async def test_topic_has_one_of_two_filter_types() -> None:
    async with wire() as w:
        for given, kept in (("SINGLE_TAG", "SINGLE_TAG"), ("MULTI_TAG", "MULTI_TAG"), ("", "SINGLE_TAG")):
            assert (await update(w, "T", filter_type=given)).code == 0
            assert w.broker.topics.table["T"].topic_filter_type == kept
        refused = await update(w, "T", filter_type="OTHER")
        assert refused.code == 1 and "must be one of SINGLE_TAG, MULTI_TAG" in (refused.remark or "")


@pytest.mark.spec("ADM-18")
async def test_changed_topic_is_in_file_and_name_server_when_the_answer_comes(tmp_path: Path) -> None:
    async with wire(data=tmp_path) as w:
        await w.broker.registrar.wait_registered()
        registered: list[tuple[set[str], int]] = []
        handle = w.server.namesrv._server.handler

        def perm_in_file() -> int:
            file = json.loads((tmp_path / "store" / "config" / "topics.json").read_bytes())
            return int(file["topicConfigTable"]["T"]["perm"])

        def recorded(connection: Connection, request: Command) -> Reply:
            if request.code == RequestCode.REGISTER_BROKER:
                table = RegisterBrokerBody.decode(request.body or b"").topic_config_serialize_wrapper
                registered.append((set(table.topic_config_table), w.broker.topics.table["T"].perm))
            return handle(connection, request)

        for connection in w.server.namesrv._server.connections:
            connection.requests.handler = recorded
        for queues, perm in ((2, 6), (3, 4)):
            assert (await update(w, "T", queues=queues, perm=perm)).code == 0
            config = w.broker.topics.table["T"]
            assert (config.write_queue_nums, config.perm) == (queues, perm)
            assert perm_in_file() == perm
            found = await route(w, "T")
            assert found is not None
            assert [(q.write_queue_nums, q.perm) for q in found.queue_datas] == [(queues, perm)]
        assert registered == [({"T"}, 6), ({"T"}, 4)], "the changed topic alone, after the table"
    assert ClientSettings(name_servers=("n:1",)).route_poll_ms == 30_000, "when clients see it"


@pytest.mark.spec("ADM-15")
async def test_deleted_topic_loses_settings_and_queues_at_once(tmp_path: Path) -> None:
    async with wire(data=tmp_path) as w:
        for queue in (0, 1):
            assert (await w.send(queue=queue)).code == 0
        assert (await w.send("Other")).code == 0
        await commit(w, 1)
        await w.broker.store.write_all()
        end = w.broker.store.log.end
        assert (await w.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
        assert not (tmp_path / "store" / "consumequeue" / "T").exists()
        assert {topic for topic, _ in w.broker.store.topic_queues()} == {"Other"}
        assert w.broker.store.log.end == end, "records stay"
        table = TopicConfigTable.decode((await w.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body).topic_config_table
        file = json.loads((tmp_path / "store" / "config" / "topics.json").read_bytes())["topicConfigTable"]
        assert "T" not in table and "T" not in file and "Other" in table
        while await route(w, "T") is not None:  # the next registration does not have it; code 216 is not needed
            await asyncio.sleep(0)
        ask = Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext={"topic": "T", "clusterName": "DefaultCluster"})
        assert (await w.client.invoke(w.server.name_servers, ask, 5000)).code == 0
        again = await w.send("T", queue=1)  # a live producer creates it again
        assert (again.code, again.ext["queueOffset"]) == (0, "0") and "T" in w.broker.topics.table
        assert w.broker.offsets.get("T", "G", 0) is None
        assert (await w.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="None")).code == 0


@pytest.mark.spec("ADM-25")
async def test_offset_table_and_unknown_names_are_answered_as_in_4_9_7(wire: Wire) -> None:
    assert (await wire.call(RequestCode.GET_TOPIC_STATS_INFO, topic="None")).code == ResponseCode.TOPIC_NOT_EXIST
    await wire.send()
    await commit(wire, 1)
    offsets = ConsumerOffsetTable.decode((await wire.call(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
    assert offsets.offset_table == {"T@G": {0: 1}}
    for code in (301, 302, 9999):
        answer = await wire.call(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")
