"""Collects broker counters over the network as ticks: one row per topic, group and broker.

It is the survey that the console and the history take (`admin/survey.py`), and request 315 for the bytes of each topic, where a
broker supports it. Does not import pyspark.

Requirements: PIP-11, EXP-05.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from saturnmq.admin import Admin
from saturnmq.admin.connection import ask_each
from saturnmq.admin.survey import GroupState, MasterState, Surveyor
from saturnmq.admin.system_names import is_system
from saturnmq.escaping import quoted
from saturnmq.history.file import Sample
from saturnmq.protocol.codes import DLQ_PREFIX
from saturnmq.protocol.errors import SaturnError
from saturnmq.spark.connect import ConnectionOptions, Link, linked, run
from saturnmq.spark.planning import is_system_topic

logger = logging.getLogger(__name__)
PRODUCER_GROUP: Final = "SATURN_STATS_PRODUCER"


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


def collect(name_servers: str, now_ms: int) -> tuple[list[Tick], list[RuntimeInfo]]:
    """Return a tick for every topic, and for each of its groups, of every master, and the runtime information of every broker.

    What a broker does not answer is left out, with a warning. Raises SaturnError if no NameServer answers.
    """
    return run(_collect(name_servers, now_ms))


async def _collect(name_servers: str, now_ms: int) -> tuple[list[Tick], list[RuntimeInfo]]:
    async with Admin(name_servers) as admin:
        survey = await Surveyor(admin.connection).survey()
        for where, problem in survey.problems.items():
            logger.warning("no statistics where=%s error=%s", quoted(where), quoted(problem))
        # By the sums over all masters: a topic is a broker's own by the names of the brokers that have it.
        system = {key for key, topic in survey.topics.items() if is_system(topic)}
        ticks: list[Tick] = []
        for address, master in survey.masters.items():
            names = [name for name in sorted(master.topics) if (master.cluster, name) not in system]
            stored = await ask_each(names, partial(_bytes, admin, address))
            for name in names:
                size = stored[name]
                minute = None if isinstance(size, SaturnError) else size
                ticks.append(Tick(now_ms, name, "", master.broker, master.topics[name].total, minute))
                ticks += [
                    _tick(now_ms, master, group, name) for group in master.groups.values() if name in group.topics
                ]
    entries = [
        RuntimeInfo(now_ms, broker.name, broker.number, broker.address, key, value)
        for broker in survey.brokers
        for key, value in sorted(broker.runtime.items())
    ]
    return ticks, entries


def _tick(now_ms: int, master: MasterState, group: GroupState, topic: str) -> Tick:
    progress, dead = group.topics[topic], master.topics.get(DLQ_PREFIX + group.name)
    lag_s = max(now_ms - progress.consumed_ms, 0) / 1000 if progress.consumed_ms else 0.0
    fail = dead.total if dead is not None else 0
    return Tick(now_ms, topic, group.name, master.broker, progress.total, None, progress.lag, lag_s, fail)


async def _bytes(admin: Admin, address: str, topic: str) -> int:
    return int((await admin.statistics.broker(address, "TOPIC_PUT_SIZE", topic)).stats_minute.sum)


def publish(options: ConnectionOptions, topic: str, bodies: list[tuple[bytes, str]]) -> None:
    """Send messages, each with one key. Raises the client's errors."""

    async def send(link: Link) -> None:
        async with link.client.producer(PRODUCER_GROUP) as producer:
            for body, key in bodies:
                await producer.send(topic, body, keys=[key])

    if bodies:
        with linked(options) as link:
            link.run(send(link))


__all__ = ["RuntimeInfo", "Tick", "collect", "decode_tick", "encode_tick", "publish"]
