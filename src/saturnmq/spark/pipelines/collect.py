"""Collects broker counters over the network as ticks: one row per topic, group and broker.

Requests: 202 and 208, which SaturnMQ and Apache RocketMQ both support, 315 for bytes where supported, and 28 for the runtime
information of every broker, slaves included. Does not import pyspark.

Requirements: PIP-11, EXP-05.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from saturnmq.history.file import Sample
from saturnmq.protocol.bodies import ClusterInfo, KVTable, TopicList
from saturnmq.protocol.bodies.admin import BrokerStatsData, ConsumeStats, GroupList, TopicStatsTable
from saturnmq.protocol.codes import DLQ_PREFIX, RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.spark.connect import ConnectionOptions, Link, linked
from saturnmq.spark.planning import is_system_topic

logger = logging.getLogger(__name__)
PRODUCER_GROUP: Final = "SATURN_STATS_PRODUCER"
AT_ONCE: Final = 16  # topics queried concurrently


@dataclass(frozen=True)
class Tick:
    """Counters at one time. ts: Unix ms. group "" is the producer side: total counts messages stored, else messages consumed.

    bytes: stored in the last minute, where the broker reports it. lag: unread messages; lag_s: age of the last message
    consumed, of the queues with a lag (the oldest). fail: messages in the group's dead-letter topic so far.
    """

    ts: int
    topic: str
    group: str
    broker_name: str
    total: int
    bytes: int | None = None
    lag: int = 0
    lag_s: float = 0.0
    fail: int = 0


@dataclass(frozen=True)
class RuntimeInfo:
    """One entry of a broker's runtime information (28) at one time, as text. ts: Unix ms. broker_id: 0 for a master."""

    ts: int
    broker_name: str
    broker_id: int
    address: str
    key: str
    value: str


def decode_tick(text: bytes) -> Tick:
    """Parse a tick from JSON. Raises ValueError naming what is wrong."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("a tick is a JSON object")
    kinds: dict[str, Any] = {
        "ts": int,
        "topic": str,
        "group": str,
        "broker_name": str,
        "total": int,
        "lag": int,
        "fail": int,
    }
    fields = {name: value[name] for name in Tick.__dataclass_fields__ if name in value}
    for name, kind in kinds.items():
        if name in fields and type(fields[name]) is not kind:
            raise ValueError(f"{name} is {fields[name]!r}, must be {kind.__name__}")
    try:
        return Tick(**fields)
    except TypeError as error:
        raise ValueError(str(error).replace("Tick.__init__() ", "")) from None


def encode_tick(tick: Tick) -> bytes:
    """Return a tick as JSON."""
    return json.dumps(asdict(tick)).encode()


def ticks_of(samples: Sequence[tuple[int, Sample]]) -> list[Tick]:
    """Return the ticks of samples of a history file with their times (Unix seconds); none of brokers and of system topics.

    The history sums topics over brokers: broker_name is the cluster. It has neither bytes nor the age of a lag.
    """
    dead = {
        (at, s.series.cluster, s.series.topic): s.total for at, s in samples if s.series.topic.startswith(DLQ_PREFIX)
    }
    return [
        Tick(
            at * 1000,
            s.series.topic,
            s.series.group,
            s.series.cluster,
            s.total,
            lag=round(s.level) if s.series.group else 0,
            fail=dead.get((at, s.series.cluster, DLQ_PREFIX + s.series.group), 0) if s.series.group else 0,
        )
        for at, s in samples
        if s.series.topic and not is_system_topic(s.series.topic)
    ]


def collect(options: ConnectionOptions, now_ms: int) -> list[Tick]:
    """Return a tick for every topic, and for each of its groups, of every broker.

    A broker that does not answer is skipped with a warning.
    """
    with linked(options) as link:
        return link.run(_collect(link, now_ms))


async def _collect(link: Link, now_ms: int) -> list[Tick]:
    core = link.core
    answer = await core.name_servers.call(
        Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), core.settings.api_timeout_ms
    )
    system = await core.name_servers.call(
        Command(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS), core.settings.api_timeout_ms
    )
    system_topics = set(TopicList.decode(system.body or b"{}").topic_list)
    topics = [
        t
        for t in TopicList.decode(answer.body or b"{}").topic_list
        if t not in system_topics and not is_system_topic(t)
    ]
    limiter = asyncio.Semaphore(AT_ONCE)

    async def topic_ticks(topic: str) -> list[Tick]:
        async with limiter:
            return await _topic(link, topic, now_ms)

    return [tick for ticks in await asyncio.gather(*map(topic_ticks, sorted(topics))) for tick in ticks]


def runtime_info(options: ConnectionOptions, now_ms: int) -> list[RuntimeInfo]:
    """Return all entries of request code 28 of every broker of the cluster.

    A broker that does not answer is skipped with a warning.
    """
    with linked(options) as link:
        return link.run(_runtime_info(link, now_ms))


async def _runtime_info(link: Link, now_ms: int) -> list[RuntimeInfo]:
    core = link.core
    answer = await core.name_servers.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO), core.settings.api_timeout_ms)
    brokers = ClusterInfo.decode(answer.body or b"{}").broker_addr_table
    members = [
        (name, number, address)
        for name in sorted(brokers)
        for number, address in sorted(brokers[name].broker_addrs.items())
    ]

    async def broker_entries(name: str, number: int, address: str) -> list[RuntimeInfo]:
        try:
            body = await _ask(link, address, RequestCode.GET_BROKER_RUNTIME_INFO)
        except SaturnError as error:
            logger.warning("no runtime information broker=%s address=%s error=%s", name, address, error)
            return []
        table = KVTable.decode(body).table if body is not None else {}
        return [RuntimeInfo(now_ms, name, number, address, key, value) for key, value in sorted(table.items())]

    return [
        entry for entries in await asyncio.gather(*(broker_entries(*member) for member in members)) for entry in entries
    ]


async def _topic(link: Link, topic: str, now_ms: int) -> list[Tick]:
    ticks: list[Tick] = []
    try:
        route = await link.core.read_route(topic)
    except SaturnError as error:
        logger.warning("no route topic=%s error=%s", topic, error)
        return ticks
    for broker in sorted(route.addresses):
        address = route.master(broker)
        if address is None:
            continue
        try:
            ticks += await _on_broker(link, topic, broker, address, now_ms)
        except SaturnError as error:
            logger.warning("no topic statistics broker=%s topic=%s error=%s", broker, topic, error)
    return ticks


async def _ask(link: Link, address: str, code: RequestCode, **ext: str) -> bytes | None:
    """Return the response body, None when the broker rejects the request."""
    answer = await link.core.remote.call(address, Command(code, ext=ext), link.core.settings.api_timeout_ms)
    return (answer.body or b"{}") if answer.code == ResponseCode.SUCCESS else None


async def _on_broker(link: Link, topic: str, broker: str, address: str, now_ms: int) -> list[Tick]:
    body = await _ask(link, address, RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
    if body is None:
        return []
    stored = sum(offset.max_offset for offset in TopicStatsTable.decode(body).offset_table.values())
    ticks = [Tick(now_ms, topic, "", broker, stored, await _bytes(link, address, topic))]
    groups = await _ask(link, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=topic)
    for group in GroupList.decode(groups).group_list if groups else []:
        stats = await _ask(link, address, RequestCode.GET_CONSUME_STATS, consumerGroup=group, topic=topic)
        if stats is None:
            continue
        table = ConsumeStats.decode(stats).offset_table
        behind = {queue: w for queue, w in table.items() if w.broker_offset > w.consumer_offset}
        since = [now_ms - w.last_timestamp for w in behind.values() if w.last_timestamp > 0]
        dead = await _ask(link, address, RequestCode.GET_TOPIC_STATS_INFO, topic=DLQ_PREFIX + group)
        ticks.append(
            Tick(
                now_ms,
                topic,
                group,
                broker,
                sum(w.consumer_offset for w in table.values()),
                None,
                sum(w.broker_offset - w.consumer_offset for w in behind.values()),
                max(max(since, default=0), 0) / 1000,
                sum(o.max_offset for o in TopicStatsTable.decode(dead).offset_table.values()) if dead else 0,
            )
        )
    return ticks


async def _bytes(link: Link, address: str, topic: str) -> int | None:
    body = await _ask(link, address, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_SIZE", statsKey=topic)
    if body is None:
        return None
    minute = BrokerStatsData.decode(body).stats_minute
    return int(minute.sum)


def publish(options: ConnectionOptions, topic: str, bodies: list[tuple[bytes, str]]) -> None:
    """Send messages, each with one key. Raises the client's errors."""

    async def send(link: Link) -> None:
        async with link.client.producer(PRODUCER_GROUP) as producer:
            for body, key in bodies:
                await producer.send(topic, body, keys=[key])

    if bodies:
        with linked(options) as link:
            link.run(send(link))


__all__ = ["RuntimeInfo", "Tick", "collect", "decode_tick", "encode_tick", "publish", "runtime_info"]
