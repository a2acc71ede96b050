"""Progress and clients of groups over several brokers, of which some do not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scriptedadmin import ScriptedConnection

from saturnmq.admin import connection as admin_connection
from saturnmq.admin.clients import Clients
from saturnmq.admin.consumption import consume_stats, consumer_connection, groups_of, lag
from saturnmq.admin.groups import Groups
from saturnmq.protocol.bodies import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    KVTable,
    MessageQueue,
    OffsetWrapper,
    ProducerConnection,
)
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import response_error

BROKERS = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
NOT_ONLINE = response_error(ResponseCode.CONSUMER_NOT_ONLINE, "not online")


def stats(address: str, _ext: Any) -> ConsumeStats:
    name = "a" if address == BROKERS["a"] else "b"
    return ConsumeStats({MessageQueue("orders", name, 0): OffsetWrapper(10, 7, 0)}, 1.5)


def clients(address: str, _ext: Any) -> Any:
    client = Connection(f"client-{address[-1]}", address, "JAVA", 407)
    return ConsumerConnection([client], {}, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")


async def test_progress_and_clients_are_merged_over_all_brokers() -> None:
    script = {RequestCode.GET_CONSUME_STATS: stats, RequestCode.GET_CONSUMER_CONNECTION_LIST: clients}
    connection = ScriptedConnection(BROKERS, script)
    found = await consume_stats(connection, "g")
    assert (lag(found), found.consume_tps, len(found.offset_table)) == (6, 3.0, 2)
    merged = await consumer_connection(connection, "g")
    assert [one.client_id for one in merged.connection_set] == ["client-1", "client-2"]
    one = await Clients(connection).consumers("g", BROKERS["b"])
    assert [client.client_id for client in one.connection_set] == ["client-2"]


async def test_a_broker_that_does_not_know_the_group_is_left_out() -> None:
    def some(address: str, ext: Any) -> Any:
        return clients(address, ext) if address == BROKERS["b"] else NOT_ONLINE

    connection = ScriptedConnection(BROKERS, {RequestCode.GET_CONSUMER_CONNECTION_LIST: some})
    assert len((await consumer_connection(connection, "g")).connection_set) == 1
    unknown = ScriptedConnection(BROKERS, {RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda *_: NOT_ONLINE})
    with pytest.raises(type(NOT_ONLINE)):
        await consumer_connection(unknown, "g")


async def test_producers_and_groups_of_a_topic_are_merged() -> None:
    def producers(address: str, _ext: Any) -> ProducerConnection:
        return ProducerConnection([Connection(f"p-{address[-1]}", address, "JAVA", 407)])

    def groups(address: str, _ext: Any) -> GroupList:
        return GroupList(["both", f"only-{address[-1]}"])

    script = {RequestCode.GET_PRODUCER_CONNECTION_LIST: producers, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups}
    connection = ScriptedConnection(BROKERS, script)
    found = await Clients(connection).producers("p", "orders")
    assert [one.client_id for one in found] == ["p-1", "p-2"]
    assert await groups_of(connection, "orders") == ["both", "only-1", "only-2"]


def test_a_hanging_broker_costs_its_own_queues_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of 100 groups need one timeout, not one for each."""

    async def work() -> None:
        def hangs(answer: Any) -> Any:
            return lambda address, ext: None if address == BROKERS["b"] else answer(address, ext)

        script = {
            RequestCode.GET_BROKER_RUNTIME_INFO: hangs(lambda *_: KVTable()),
            RequestCode.GET_CONSUME_STATS: hangs(stats),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: hangs(clients),
        }
        topics = [f"%RETRY%g{number}" for number in range(100)]
        connection = ScriptedConnection(BROKERS, script, topics)
        found = await Groups(connection).summaries()
        assert list(found.unreachable) == [BROKERS["b"]] and len(found.groups) == 100
        assert all(one.lag == 3 and one.clients is not None for one in found.groups)
        assert [code for address, code in connection.asked if address == BROKERS["b"]] == [
            RequestCode.GET_BROKER_RUNTIME_INFO
        ]

    monkeypatch.setattr(admin_connection.ask_each, "__kwdefaults__", {"seconds": 0.05})
    asyncio.run(work())
