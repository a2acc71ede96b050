"""Brokers: configuration, runtime state, statistics, cleaning, times of test sends.

Requirements: ADM-07, ADM-09, ADM-17.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saturnmq.admin.connection import AdminConnection, ask_each, failed
from saturnmq.config.settings import parse_properties, property_line
from saturnmq.protocol.bodies import BrokerData, ConsumeStatsList, KVTable, QueryConsumeQueueResponse
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.headers import messaging as h

if TYPE_CHECKING:
    from saturnmq.client.receipt import Receipt


@dataclass(frozen=True)
class BrokerState:
    """One broker of a cluster and its runtime information, or why it has none."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    runtime: Mapping[str, str] | SaturnError

    def text(self, key: str, absent: str = "") -> str:
        """A value of the runtime information. absent: of a broker that did not answer."""
        return absent if isinstance(self.runtime, SaturnError) else self.runtime.get(key, "null")

    def number(self, key: str) -> float:
        """The first word of a value as a number: the rate of the last 10 s, a ratio. 0 if there is none."""
        try:
            return float(self.text(key).split()[0])
        except (ValueError, IndexError):
            return 0.0

    def integer(self, key: str) -> int:
        """A value as a whole number; 0 if there is none."""
        try:
            return int(self.text(key))
        except ValueError:
            return 0


@dataclass(frozen=True)
class ConsumeQueueUnits:
    """Units of a consume queue with its bounds, and the broker's remark, such as that there is no such index."""

    response: QueryConsumeQueueResponse
    remark: str


@dataclass(frozen=True)
class TimedSend:
    """One send: its duration in whole ms, and the receipt or the error."""

    ms: int
    result: Receipt | SaturnError


class Brokers:
    """Brokers: configuration, runtime state, statistics, cleaning, times of test sends."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    # ---- configuration

    async def configuration(self, address: str) -> dict[str, str]:
        """Keys and values of a broker (26)."""
        answer = await self._connection.read(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties((answer.body or b"").decode())

    async def update_configuration(self, addresses: Iterable[str], key: str, value: str) -> dict[str, SaturnError]:
        """Set a key on several brokers (25); the errors by address."""
        body = property_line(key, value).encode()

        async def change(address: str) -> None:
            await self._connection.change(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

        return failed(await ask_each(addresses, change, seconds=self._connection.timeout_ms / 1000))

    async def groups(self, cluster: str) -> dict[str, dict[int, str]]:
        """The brokers of a cluster by name: addresses by id, 0 is the master. Raises UnknownCluster."""
        found = await self._connection.brokers(cluster)
        return {one.broker_name: dict(sorted(one.broker_addrs.items())) for one in found}

    async def name_of(self, address: str) -> str:
        """Name of the broker with this address. Raises ConfigError if the NameServer knows none."""
        table = (await self._connection.cluster()).broker_addr_table
        for name in sorted(table):
            if address in table[name].broker_addrs.values():
                return name
        raise ConfigError(f"no broker with address {address:.200} is registered at the NameServer")

    # ---- state

    async def runtime(self, address: str) -> dict[str, str]:
        """Runtime information of a broker (28)."""
        answer = await self._connection.read(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return KVTable.decode(answer.body).table

    async def states(self) -> list[BrokerState]:
        """Every broker of every cluster: by cluster, name and id. A broker that does not answer within 2 s has an error instead."""
        known = await self._connection.cluster()
        places = [
            (cluster, broker, number, address)
            for cluster in sorted(known.cluster_addr_table)
            for broker in _named(sorted(known.cluster_addr_table[cluster]), known.broker_addr_table)
            for number, address in sorted(broker.broker_addrs.items())
        ]
        found = await ask_each((address for *_, address in places), self.runtime)
        return [
            BrokerState(cluster, broker.broker_name, number, address, found[address])
            for cluster, broker, number, address in places
        ]

    async def consume_statistics(
        self, address: str, *, ordered: bool = False, timeout_ms: int | None = None
    ) -> ConsumeStatsList:
        """Progress of all groups of a broker, by topic and queue (317). ordered: of ordered topics only."""
        header = h.GetBrokerConsumeStats(is_order=ordered)
        answer = await self._connection.read(
            address, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout_ms=timeout_ms
        )
        return ConsumeStatsList.decode(answer.body)

    async def consume_queue(
        self, address: str, topic: str, queue_id: int, index: int, *, count: int = 10, group: str | None = None
    ) -> ConsumeQueueUnits:
        """Units of a consume queue from `index` (321), and what the filter of a group makes of them.

        Raises ResponseError, and SaturnError for an index outside the queue, for which Apache sends no bounds.
        """
        header = h.QueryConsumeQueue(topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group)
        answer = await self._connection.read(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        if not answer.body:
            raise SaturnError(answer.remark or f"{address} sent nothing of queue {queue_id} of {topic}", broker=address)
        return ConsumeQueueUnits(QueryConsumeQueueResponse.decode(answer.body), answer.remark or "")

    # ---- cleaning

    async def addresses(self, cluster: str | None = None) -> list[str]:
        """Addresses of the masters and slaves of a cluster, or of all. Raises UnknownCluster."""
        if cluster:
            return await self._connection.masters_and_slaves(cluster)
        known = await self._connection.cluster()
        return [address for name in sorted(known.cluster_addr_table) for address in await self.addresses(name)]

    async def clean_queues(self, addresses: Iterable[str]) -> dict[str, SaturnError]:
        """Drop consume queues whose messages have all expired (306); the errors by address."""
        return await self._clean(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, addresses)

    async def delete_expired_log(self, addresses: Iterable[str]) -> dict[str, SaturnError]:
        """Delete expired commit log files before the hour of `deleteWhen` (329); the errors by address."""
        return await self._clean(RequestCode.DELETE_EXPIRED_COMMITLOG, addresses)

    async def clean_unused_topics(self, addresses: Iterable[str]) -> dict[str, SaturnError]:
        """Drop consume queues of topics without a configuration (316); the errors by address."""
        return await self._clean(RequestCode.CLEAN_UNUSED_TOPIC, addresses)

    async def _clean(self, code: RequestCode, addresses: Iterable[str]) -> dict[str, SaturnError]:
        async def clean(address: str) -> None:
            await self._connection.change(address, code)

        return failed(await ask_each(addresses, clean, seconds=self._connection.timeout_ms / 1000))

    # ---- test sends

    async def timed_sends(self, topic: str, bodies: Sequence[bytes], *, group: str) -> AsyncIterator[TimedSend]:
        """Send messages, one after the other. In a dry run none is sent."""
        if self._connection.announce(f"send {len(bodies)} messages to topic {topic}"):
            return
        async with (await self._connection.messaging()).producer(group) as producer:
            for body in bodies:
                began = time.monotonic_ns()
                result: Receipt | SaturnError
                try:
                    result = await producer.send(topic, body)
                except SaturnError as error:
                    result = error
                yield TimedSend((time.monotonic_ns() - began) // 1_000_000, result)


def _named(names: Iterable[str], table: Mapping[str, BrokerData]) -> list[BrokerData]:
    return [table[name] for name in names if name in table]
