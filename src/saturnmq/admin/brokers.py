"""Brokers: configuration, runtime state, statistics, cleaning.

Requirements: ADM-07, ADM-09, ADM-17.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from saturnmq.admin.connection import LISTING_SECONDS, AdminConnection, ask_each, failed, read_address
from saturnmq.admin.listings import dead_brokers, runtime_integer, runtime_values
from saturnmq.config.settings import parse_properties, property_line
from saturnmq.protocol.bodies import ClusterInfo, ConsumeStatsList, QueryConsumeQueueResponse
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.headers import messaging as h


@dataclass(frozen=True, slots=True)
class BrokerState:
    """One broker. number: 0 is the master. runtime: keys and values of code 28; empty, with a problem, if it did not answer."""

    cluster: str
    name: str
    number: int
    address: str
    runtime: Mapping[str, str]
    problem: str = ""

    def text(self, key: str) -> str:
        """A value of the runtime information; empty of a broker that did not answer."""
        return "" if self.problem else self.runtime.get(key, "null")

    def first_number(self, key: str) -> float | None:
        """The first word of a value as a number: the rate of the last 10 s, a ratio. None without one that 64 bits can hold."""
        try:
            number = float(self.runtime.get(key, "").split()[0])
        except (ValueError, IndexError):
            return None
        return number if is_statistic(abs(number)) else None  # a ratio of -1: not known

    def integer(self, key: str) -> int:
        """A value as a whole number of 64 bits; 0 if there is none."""
        return runtime_integer(self.runtime, key)


@dataclass(frozen=True)
class ConsumeQueueUnits:
    """Units of a consume queue with its bounds, and the broker's remark, such as that there is no such index."""

    response: QueryConsumeQueueResponse
    remark: str


_FOLLOWER: Final = "does not lead its group"
_BELOW: Final = 2**63  # counts of brokers have 64 bits with sign


def is_statistic(value: float) -> bool:
    """Whether a count, rate or ratio can be true: not negative, infinite, no number, or beyond 64 bits."""
    return 0 <= value < _BELOW


class Brokers:
    """Brokers: configuration, runtime state, statistics, cleaning."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    # ---- configuration

    async def configuration(self, address: str) -> dict[str, str]:
        """Keys and values of a broker (26)."""
        answer = await self._connection.read(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties((answer.body or b"").decode(errors="replace"))

    async def update_configuration(self, addresses: Iterable[str], key: str, value: str) -> dict[str, SaturnError]:
        """Set a key on several brokers (25); the errors by address."""
        body = property_line(key, value).encode()

        async def change(address: str) -> None:
            await self._connection.change(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

        return failed(await ask_each(addresses, change, seconds=self._connection.timeout_ms / 1000))

    async def groups(self, cluster: str) -> dict[str, dict[int, str]]:
        """The brokers of a cluster by name: addresses by id, 0 is the master. Raises UnknownCluster."""
        brokers = await self._connection.brokers(cluster)
        return {broker.broker_name: dict(sorted(broker.broker_addrs.items())) for broker in brokers}

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
        return await runtime_values(self._connection, address)

    async def states(self) -> list[BrokerState]:
        """Every broker of every cluster: by cluster, name and id. A broker that does not answer within 2 s has an error instead."""
        return await broker_states(self._connection, await self._connection.cluster())

    async def dead(self) -> dict[str, SaturnError]:
        """The brokers, one per broker name, that do not answer within 2 s, by address, with the error."""
        brokers_by_name = (await self._connection.cluster()).broker_addr_table
        masters = [address for broker in brokers_by_name.values() if (address := read_address(broker)) is not None]
        return await dead_brokers(self._connection, masters)

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
        cluster_info = await self._connection.cluster()
        return [address for name in sorted(cluster_info.cluster_addr_table) for address in await self.addresses(name)]

    async def clean_queues(self, addresses: Iterable[str]) -> dict[str, SaturnError]:
        """Drop consume queues whose messages have all expired (306); the errors by address."""
        return await self._clean(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, addresses)

    async def delete_expired_log(self, addresses: Iterable[str]) -> dict[str, SaturnError]:
        """Delete expired commit log files before the hour of `deleteWhen` (329); the errors by address."""
        return await self._clean(RequestCode.DELETE_EXPIRED_COMMITLOG, addresses)

    async def clean_unused_topics(self, addresses: Iterable[str]) -> dict[str, SaturnError]:
        """Drop consume queues of topics without a configuration (316); the errors by address.

        Followers of a DLedger group of ours refuse, as they drop queues when they copy the leader's topics; that is no error.
        """
        failures = await self._clean(RequestCode.CLEAN_UNUSED_TOPIC, addresses)
        return {address: error for address, error in failures.items() if _FOLLOWER not in error.message}

    async def _clean(self, code: RequestCode, addresses: Iterable[str]) -> dict[str, SaturnError]:
        async def clean(address: str) -> None:
            await self._connection.change(address, code)

        return failed(await ask_each(addresses, clean, seconds=self._connection.timeout_ms / 1000))


def broker_rows(cluster_info: ClusterInfo) -> list[tuple[str, str, int, str]]:
    """Cluster, name, id and address of every broker, in this order."""
    return [
        (cluster, name, number, address)
        for cluster, names in sorted(cluster_info.cluster_addr_table.items())
        for name in sorted(names)
        if name in cluster_info.broker_addr_table
        for number, address in sorted(cluster_info.broker_addr_table[name].broker_addrs.items())
    ]


async def broker_states(
    connection: AdminConnection, cluster_info: ClusterInfo, *, seconds: float = LISTING_SECONDS
) -> list[BrokerState]:
    """The state of every broker; of one that does not answer within `seconds`, the problem."""
    rows = broker_rows(cluster_info)
    runtimes = await ask_each((address for *_, address in rows), partial(runtime_values, connection), seconds=seconds)
    return [
        BrokerState(*row, {}, runtime.message or type(runtime).__name__)
        if isinstance(runtime := runtimes[row[-1]], SaturnError)
        else BrokerState(*row, runtime)
        for row in rows
    ]
