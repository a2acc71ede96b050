"""Listings of one server: runtime values, topics, groups, offsets; one function per request that several families need.

Each returns the decoded body and raises the errors of `AdminConnection.read`. timeout_ms: None for that of the connection.

Requirements: ADM-09.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from saturnmq.admin.connection import AdminConnection, ask_each, failed
from saturnmq.protocol.bodies import (
    Body,
    ConsumeStats,
    GroupList,
    KVTable,
    SubscriptionGroupTable,
    TopicConfigTable,
    TopicList,
    TopicStatsTable,
)
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError, SaturnError
from saturnmq.protocol.headers.messaging import GetConsumeStats, GetTopicStatsInfo, QueryTopicConsumeByWho

PROMPT_SECONDS: Final = 0.3  # until a broker is asked whether it is alive
SLOW: Final = 3  # times the timeout: requests for which a broker reads the store or asks a client
LARGE_BYTES: Final = 256 * 1024  # a body of this size takes some 20 ms to decode

B = TypeVar("B", bound=Body)
R = TypeVar("R")


async def decoded(kind: type[B], body: bytes | None) -> B:
    """The decoded body of an answer; a large one is decoded in a thread. Raises BodyError.

    A hostile broker's 12 MB would otherwise hold up the pages of the console for seconds.
    """
    if body is None or len(body) < LARGE_BYTES:
        return kind.decode(body)
    return await asyncio.to_thread(kind.decode, body)


async def runtime_values(connection: AdminConnection, address: str) -> dict[str, str]:
    """Runtime information of a broker (28), by key."""
    answer = await connection.read(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    return (await decoded(KVTable, answer.body)).table


def runtime_integer(values: Mapping[str, str], key: str, default: int = 0) -> int:
    """A runtime value as a whole number of 64 bits; the default if there is none."""
    try:
        number = int(values.get(key, ""))
    except ValueError:
        return default
    return number if abs(number) < 2**63 else default


async def dead_brokers(connection: AdminConnection, addresses: Iterable[str]) -> dict[str, SaturnError]:
    """Which of these brokers cannot be reached or do not answer a cheap request within 2 s, by address, with the error."""

    async def probe(address: str) -> None:
        with contextlib.suppress(ResponseError):  # it answers
            await connection.read(address, RequestCode.GET_BROKER_RUNTIME_INFO)

    return failed(await ask_each(addresses, probe))


async def ask_live(
    connection: AdminConnection, addresses: Iterable[str], ask: Callable[[str], Awaitable[R]]
) -> dict[str, R | SaturnError]:
    """As `ask_each`, for large answers: a broker that hangs costs 2.3 s, one that is slow has the time of a slow request.

    Only a broker that has not answered after PROMPT_SECONDS is asked whether it is alive.
    """

    async def unless_dead(address: str) -> R:
        answer = asyncio.ensure_future(ask(address))
        try:
            done, _ = await asyncio.wait((answer,), timeout=PROMPT_SECONDS)
            dead = {} if done else await dead_brokers(connection, (address,))
            if dead and not answer.done():
                raise dead[address]
            return await answer
        finally:
            answer.cancel()

    return await ask_each(addresses, unless_dead, seconds=SLOW * connection.timeout_ms / 1000)


async def topic_table(connection: AdminConnection, address: str, *, timeout_ms: int | None = None) -> TopicConfigTable:
    """Configurations of all topics of a broker, with the version of the table (21)."""
    answer = await connection.read(address, RequestCode.GET_ALL_TOPIC_CONFIG, timeout_ms=timeout_ms)
    return await decoded(TopicConfigTable, answer.body)


async def group_table(
    connection: AdminConnection, address: str, *, timeout_ms: int | None = None
) -> SubscriptionGroupTable:
    """Configurations of all groups of a broker, with the version of the table (201)."""
    answer = await connection.read(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout_ms=timeout_ms)
    return await decoded(SubscriptionGroupTable, answer.body)


async def topic_offsets(connection: AdminConnection, address: str, topic: str) -> TopicStatsTable:
    """Offsets of the queues of a topic on a broker (202)."""
    header = GetTopicStatsInfo(topic=topic)
    timeout_ms = connection.timeout_ms * SLOW
    answer = await connection.read(address, RequestCode.GET_TOPIC_STATS_INFO, header, timeout_ms=timeout_ms)
    return await decoded(TopicStatsTable, answer.body)


async def group_offsets(
    connection: AdminConnection, address: str, group: str, topic: str | None = None
) -> ConsumeStats:
    """Offsets of a group by queue on a broker (208), of all its topics or of one."""
    header = GetConsumeStats(consumer_group=group, topic=topic)
    timeout_ms = connection.timeout_ms * SLOW
    answer = await connection.read(address, RequestCode.GET_CONSUME_STATS, header, timeout_ms=timeout_ms)
    return await decoded(ConsumeStats, answer.body)


async def topic_groups(connection: AdminConnection, address: str, topic: str) -> list[str]:
    """Groups that consume a topic, as a broker knows them (300)."""
    header = QueryTopicConsumeByWho(topic=topic)
    answer = await connection.read(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
    return (await decoded(GroupList, answer.body)).group_list


async def topic_names(connection: AdminConnection) -> list[str]:
    """Names of all topics that the NameServer knows (206), in its order."""
    answer = await connection.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return (await decoded(TopicList, answer.body)).topic_list
