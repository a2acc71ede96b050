"""One look at a whole cluster: brokers, topics and groups with their counts, over requests that any 4.x broker answers.

For each master: topics (21), groups (201), offsets of each topic (202) and of each group (208), and of every broker its runtime
values (28). For 1,000 topics and 2,500 groups these are 3,500 short requests to each master, eight at a time.

Requirements: EXP-05, UX-14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from saturnmq.admin.brokers import BrokerState, broker_rows, broker_states
from saturnmq.admin.connection import MASTER_ID, AdminConnection
from saturnmq.admin.listings import group_offsets, group_table, topic_offsets, topic_table
from saturnmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from saturnmq.protocol.errors import SaturnError

CONCURRENT_MAX: Final = 8  # requests to one broker


@dataclass(slots=True)
class TopicState:
    """One topic. total: messages ever, kept: messages there; configs: by broker name.

    totals: as total, by the name of each broker that gave it.
    """

    cluster: str
    name: str
    total: int = 0
    kept: int = 0
    configs: dict[str, TopicConfig] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class TopicProgress:
    """A group in a topic, messages: consumed ever, and not consumed yet.

    consumed_ms: store time of the last consumed message of the queue with a lag where it is oldest, Unix ms; 0 if none is known.
    """

    total: int = 0
    lag: int = 0
    consumed_ms: int = 0

    def add(self, total: int, lag: int, consumed_ms: int) -> None:
        """Add the counts of another queue or broker."""
        self.total += total
        self.lag += lag
        if consumed_ms > 0:
            self.consumed_ms = min(self.consumed_ms or consumed_ms, consumed_ms)


@dataclass(slots=True)
class GroupState:
    """One group. topics: progress by topic, the retry topic included; tps: consumed per second; configs: by broker name."""

    cluster: str
    name: str
    topics: dict[str, TopicProgress] = field(default_factory=dict)
    tps: float = 0.0
    configs: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """Messages not consumed yet, over all topics."""
        return sum(progress.lag for progress in self.topics.values())


@dataclass(slots=True)
class MasterState:
    """The topics and groups of one master, as it alone counts them; problems by name of a topic or group."""

    cluster: str
    broker: str
    topics: dict[str, TopicState] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Survey:
    """The state of a cluster. topics and groups: by (cluster, name). problems: error text by broker address or `name@address`.

    masters: those that gave the topics and groups, by address.
    """

    brokers: list[BrokerState]
    topics: dict[tuple[str, str], TopicState]
    groups: dict[tuple[str, str], GroupState]
    problems: dict[str, str]
    masters: dict[str, MasterState] = field(default_factory=dict)


class Surveyor:
    """Takes surveys. A broker that does not answer costs its own values: what it shares with others keeps its last ones."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection
        self._last: dict[str, MasterState] = {}  # by address of the master

    async def survey(self) -> Survey:
        """Ask all brokers once. Raises SaturnError if no NameServer answers."""
        cluster_info = await self._connection.cluster()
        masters = {
            address: MasterState(cluster, name)
            for cluster, name, number, address in broker_rows(cluster_info)
            if number == MASTER_ID and encodable(cluster, name, address)
        }
        problems: dict[str, str] = {}
        states, _ = await asyncio.gather(
            broker_states(self._connection, cluster_info, seconds=self._connection.timeout_ms / 1000),
            asyncio.gather(*(self._master(address, part, problems) for address, part in masters.items())),
        )
        self._last = {address: part for address, part in self._last.items() if address in masters}
        brokers = [state for state in states if encodable(state.cluster, state.name, state.address)]
        problems |= {state.address: state.problem for state in brokers if state.problem}
        return Survey(brokers, *_merged(self._last.values()), problems, dict(self._last))

    async def _master(self, address: str, part: MasterState, problems: dict[str, str]) -> None:
        try:
            await self._fill(address, part)
        except SaturnError as error:
            problems[address] = error.message
            return
        before = self._last.get(address)
        if before is not None:  # what failed this time keeps its last values
            for name in part.problems:
                if name in before.topics and name in part.topics:
                    part.topics[name] = before.topics[name]
                if name in before.groups and name in part.groups:
                    part.groups[name] = before.groups[name]
        self._last[address] = part
        problems |= {f"{name}@{address}": problem for name, problem in part.problems.items()}

    async def _fill(self, address: str, part: MasterState) -> None:
        connection = self._connection
        configs = (await topic_table(connection, address)).topic_config_table
        groups = (await group_table(connection, address)).subscription_group_table
        configs = {name: config for name, config in configs.items() if encodable(name)}
        groups = {name: config for name, config in groups.items() if encodable(name)}

        async def topic(name: str) -> None:
            state = part.topics[name] = TopicState(part.cluster, name, configs={part.broker: configs[name]})
            queues = (await topic_offsets(connection, address, name)).offset_table.values()
            state.total = state.totals[part.broker] = sum(bounds.max_offset for bounds in queues)
            state.kept = sum(bounds.max_offset - bounds.min_offset for bounds in queues)

        async def group(name: str) -> None:
            state = part.groups[name] = GroupState(part.cluster, name, configs={part.broker: groups[name]})
            stats = await group_offsets(connection, address, name)
            state.tps = stats.consume_tps
            for queue, offsets in stats.offset_table.items():
                if not encodable(queue.topic):
                    continue
                lag = max(offsets.broker_offset - offsets.consumer_offset, 0)
                progress = state.topics.setdefault(queue.topic, TopicProgress())
                progress.add(offsets.consumer_offset, lag, offsets.last_timestamp if lag else 0)

        permits = asyncio.Semaphore(CONCURRENT_MAX)
        await asyncio.gather(
            *(_within(permits, topic, name, part.problems) for name in configs),
            *(_within(permits, group, name, part.problems) for name in groups),
        )


def encodable(*names: str) -> bool:
    """Whether names are text: JSON of a broken broker may hold half a surrogate pair, which no page and no file can keep."""
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        return False
    return True


async def _within(
    permits: asyncio.Semaphore, ask: Callable[[str], Awaitable[None]], name: str, problems: dict[str, str]
) -> None:
    async with permits:
        try:
            await ask(name)
        except SaturnError as error:
            problems[name] = error.message


def _merged(
    parts: Iterable[MasterState],
) -> tuple[dict[tuple[str, str], TopicState], dict[tuple[str, str], GroupState]]:
    """Topics and groups with their counts summed over the brokers."""
    topics: dict[tuple[str, str], TopicState] = {}
    groups: dict[tuple[str, str], GroupState] = {}
    for part in parts:
        for topic in part.topics.values():
            topic_sum = topics.setdefault((topic.cluster, topic.name), TopicState(topic.cluster, topic.name))
            topic_sum.total += topic.total
            topic_sum.kept += topic.kept
            topic_sum.configs |= topic.configs
            topic_sum.totals |= topic.totals
        for group in part.groups.values():
            group_sum = groups.setdefault((group.cluster, group.name), GroupState(group.cluster, group.name))
            group_sum.tps += group.tps
            group_sum.configs |= group.configs
            for name, progress in group.topics.items():
                sum_of = group_sum.topics.setdefault(name, TopicProgress())
                sum_of.add(progress.total, progress.lag, progress.consumed_ms)
    return topics, groups
