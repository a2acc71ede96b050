"""Rates and lag of topics and their groups, over all brokers.

Requirements: ADM-09, C-44.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from saturnmq.admin.connection import MASTER_ID, AdminConnection, answered, ask_each
from saturnmq.admin.consumption import consume_stats, groups_of, lag
from saturnmq.protocol.bodies import BrokerStatsData
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.headers.messaging import ViewBrokerStatsData

TOPIC_PUT: Final = "TOPIC_PUT_NUMS"
_GET: Final = "GROUP_GET_NUMS"


@dataclass(frozen=True)
class Flow:
    """Messages per second in the last minute, and messages in the last 24 hours, or of the longest shorter window with any."""

    tps: float = 0.0
    day: int = 0


@dataclass(frozen=True)
class GroupFlow:
    """The consumption of a topic by a group. lag: messages not consumed, at least 0."""

    group: str
    flow: Flow
    lag: int


@dataclass(frozen=True)
class TopicFlow:
    """The rates of sends to a topic, and of its consumption by groups."""

    topic: str
    flow: Flow
    groups: list[GroupFlow]


class Statistics:
    """Rates and lag of topics and their groups, over all brokers.

    Example:
        flow = await admin.statistics.topic("orders")
        print(flow.flow.tps, [(one.group, one.lag) for one in flow.groups])
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def broker(self, address: str, name: str, key: str) -> BrokerStatsData:
        """One item of a broker's statistics (315). Raises ResponseError (1) for an item that it has not counted yet."""
        header = ViewBrokerStatsData(stats_name=name, stats_key=key)
        answer = await self._connection.read(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return BrokerStatsData.decode(answer.body)

    async def topic(self, topic: str, *, without: Collection[str] = ()) -> TopicFlow:
        """Rates of a topic and of its groups, and their lag. Items and brokers that do not answer count as 0.

        without: addresses of brokers that are not asked.
        """
        route = await self._connection.route(topic)
        masters = [broker.broker_addrs[MASTER_ID] for broker in route.broker_datas if MASTER_ID in broker.broker_addrs]
        masters = [address for address in masters if address not in without]
        sent = await self._flow(masters, TOPIC_PUT, topic)
        groups = []
        for group in await groups_of(self._connection, topic, without=without):
            try:
                behind = max(lag(await consume_stats(self._connection, group, topic, without=without)), 0)
            except SaturnError:
                behind = 0
            groups.append(GroupFlow(group, await self._flow(masters, _GET, f"{topic}@{group}"), behind))
        return TopicFlow(topic, sent, groups)

    async def _flow(self, masters: list[str], name: str, key: str) -> Flow:
        async def ask(address: str) -> BrokerStatsData:
            return await self.broker(address, name, key)

        stats_of_brokers = answered(await ask_each(masters, ask)).values()
        return Flow(sum(stats.stats_minute.tps for stats in stats_of_brokers), sum(map(day_sum, stats_of_brokers)))


def day_sum(stats: BrokerStatsData) -> int:
    """Sum of the day; while that is 0, of the hour, else of the minute."""
    return stats.stats_day.sum or stats.stats_hour.sum or stats.stats_minute.sum
