"""Subscription groups: create, delete, configuration, progress.

Requirements: ADM-09, C-33..C-35, C-37.
"""

from __future__ import annotations

from dataclasses import dataclass

from saturnmq.admin.connection import AdminConnection, answered, ask_each, failed, read_address
from saturnmq.admin.consumption import consume_stats, consumer_connection, group_brokers, lag
from saturnmq.admin.listings import SLOW, ask_live, dead_brokers, group_table, topic_names
from saturnmq.protocol.bodies import (
    ConsumerConnection,
    ConsumeStats,
    SubscriptionGroupConfig,
)
from saturnmq.protocol.codes import DLQ_PREFIX, RETRY_PREFIX, RequestCode
from saturnmq.protocol.errors import ResponseError, SaturnError
from saturnmq.protocol.headers.messaging import DeleteSubscriptionGroup


@dataclass(frozen=True)
class GroupConfigured:
    """The configuration of a group on one broker."""

    cluster: str
    broker_name: str
    config: SubscriptionGroupConfig


@dataclass(frozen=True)
class GroupSummary:
    """One group in the list of all groups. progress, clients: None if no broker gave them, or if no client is connected."""

    group: str
    progress: ConsumeStats | None = None
    clients: ConsumerConnection | None = None

    @property
    def lag(self) -> int:
        """Messages not consumed, over all queues."""
        return lag(self.progress) if self.progress is not None else 0


@dataclass(frozen=True)
class GroupSummaries:
    """All groups. unreachable: brokers that did not answer, by address; their queues and clients are missing."""

    groups: list[GroupSummary]
    unreachable: dict[str, SaturnError]


class Groups:
    """Subscription groups: create, delete, configuration, progress.

    Example:
        for summary in (await admin.groups.summaries()).groups:
            print(summary.group, summary.lag)
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def put(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create a group on a broker or replace its configuration (200)."""
        await self._connection.change(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.encode())

    async def delete(self, address: str, group: str, *, remove_offset: bool = False) -> None:
        """Delete a group from a broker (207). remove_offset: also forget its committed offsets."""
        header = DeleteSubscriptionGroup(group_name=group, remove_offset=remove_offset)
        await self._connection.change(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    @staticmethod
    def topics_of(group: str) -> tuple[str, str]:
        """Names of the retry topic and of the dead-letter topic of a group."""
        return RETRY_PREFIX + group, DLQ_PREFIX + group

    async def all_on(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Configurations of all groups of a broker by name (201)."""
        return (await group_table(self._connection, address)).subscription_group_table

    async def configurations(self, group: str) -> list[GroupConfigured]:
        """The configuration of a group on every broker that has it, in the order of the NameServer's list of brokers.

        Brokers that do not answer within 2 s are left out, and `AdminConnection.unanswered` names them. Raises the first error if
        no broker answers, and a refusal.
        """
        cluster_info = await self._connection.cluster()
        cluster_of = {name: cluster for cluster, names in cluster_info.cluster_addr_table.items() for name in names}
        masters = {
            name: at
            for name, broker in cluster_info.broker_addr_table.items()
            if (at := read_address(broker)) is not None
        }
        outcomes = await ask_live(self._connection, masters.values(), self.all_on)
        for error in failed(outcomes).values():
            if isinstance(error, ResponseError) or not answered(outcomes):
                raise error
        tables = answered(outcomes)
        return [
            GroupConfigured(cluster_of.get(name, ""), name, config)
            for name, address in masters.items()
            if (config := tables.get(address, {}).get(group)) is not None
        ]

    async def progress(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Offsets of a group by queue (208). Raises ConsumerNotOnline (206) if it has consumed nothing.

        The queues of brokers that do not answer are left out, and `AdminConnection.unanswered` names them; if none answers, the
        first error is raised.
        """
        addresses = await group_brokers(self._connection, group)
        dead = await dead_brokers(self._connection, addresses)
        if len(dead) == len(addresses) > 0:
            raise next(iter(dead.values()))
        return await consume_stats(self._connection, group, topic, without=dead)

    async def names(self) -> list[str]:
        """Names of all groups, which are those with a retry topic."""
        topics = await topic_names(self._connection)
        return [topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)]

    async def summaries(self) -> GroupSummaries:
        """Progress and clients of every group. Brokers that do not answer within 2 s are left out, and named in the result."""
        brokers_by_name = (await self._connection.cluster()).broker_addr_table
        masters = [address for broker in brokers_by_name.values() if (address := read_address(broker)) is not None]
        dead = await dead_brokers(self._connection, masters)

        async def summary(group: str) -> GroupSummary:
            try:
                progress: ConsumeStats | None = await consume_stats(self._connection, group, without=dead)
            except SaturnError:
                progress = None
            try:
                clients: ConsumerConnection | None = await consumer_connection(self._connection, group, without=dead)
            except SaturnError:
                clients = None
            return GroupSummary(group, progress, clients)

        outcomes = await ask_each(await self.names(), summary, seconds=SLOW * self._connection.timeout_ms / 1000)
        rows = [
            GroupSummary(name) if isinstance(outcome, SaturnError) else outcome for name, outcome in outcomes.items()
        ]
        return GroupSummaries(rows, dead)
