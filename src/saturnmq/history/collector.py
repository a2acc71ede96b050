"""The collector: once a minute, the counts of every topic, group and broker, over requests that any 4.x broker answers.

For each master: topics (21), groups (201), offsets of each topic (202) and of each group (208), and of every broker its runtime
values (28). When a broker does not answer, its own series has no sample, and its topics and groups keep their last values.

Requirements: EXP-05.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from saturnmq.admin import Admin
from saturnmq.escaping import quoted
from saturnmq.history.file import STEP_SECONDS, History, Sample, Series
from saturnmq.net.errors import CallTimeout
from saturnmq.protocol.bodies import ConsumeStats, KVTable, SubscriptionGroupTable, TopicConfigTable, TopicStatsTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import SaturnError, StoreError
from saturnmq.protocol.headers.messaging import GetConsumeStats, TopicOnly

log = logging.getLogger(__name__)
R = TypeVar("R")

CONCURRENT_MAX: Final = 8  # requests to one broker
ROUND_SECONDS: Final = 50.0
THIN_ROUNDS: Final = 60
PROBLEMS_MAX: Final = 10  # lines of log a round


@dataclass(frozen=True, slots=True)
class Round:
    """What one round found. problems: error text by broker address, and by `name of a topic or group@address`."""

    samples: list[Sample]
    problems: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Found:
    """Values of one broker: (total, level) by series without broker."""

    values: dict[Series, tuple[int, float]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


class Collector:
    """Fills a history file from one cluster or several behind the same NameServers.

    Example:
        async with Admin("127.0.0.1:9876") as admin:
            with History(Path("history.db")) as history:
                await Collector(admin, history).run()
    """

    def __init__(
        self,
        admin: Admin,
        history: History,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._admin = admin
        self._history = history
        self._clock = clock
        self._sleep = sleep
        self._last: dict[str, _Found] = {}  # by address of the master
        self.rounds = 0

    async def run(self, rounds: int | None = None) -> None:
        """Collect at every full minute, without end or for a number of rounds. Raises StoreError if the file cannot be written.

        A round that fails as a whole, for want of a NameServer, is logged and the next one is tried.
        """
        while rounds is None or self.rounds < rounds:
            await self._sleep(STEP_SECONDS - self._clock() % STEP_SECONDS)
            try:
                await self.round()
            except SaturnError as error:
                if isinstance(error, StoreError):
                    raise
                log.warning("no history of this minute reason=%s", error)

    async def round(self) -> int:
        """Collect now and store the values as those of this minute; return how many. Raises SaturnError."""
        self.rounds += 1
        at = round(self._clock())
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                found = await self.collect()
        except TimeoutError:
            raise CallTimeout(f"the brokers did not answer all requests within {ROUND_SECONDS:g} s") from None
        for where, problem in list(found.problems.items())[:PROBLEMS_MAX]:
            log.warning("history incomplete where=%s reason=%s", quoted(where), problem)
        count = await asyncio.to_thread(self._history.record, at, found.samples)
        if self.rounds % THIN_ROUNDS == 0:
            await asyncio.to_thread(self._history.thin, at)
        return count

    async def collect(self) -> Round:
        """Ask all brokers once. Raises SaturnError if no NameServer answers."""
        known = await self._admin.connection.cluster()
        masters: dict[str, str] = {}
        samples: list[Sample] = []
        problems: dict[str, str] = {}
        runtimes: dict[str, tuple[str, str]] = {}
        for data in known.broker_addr_table.values():
            for number, address in data.broker_addrs.items():
                runtimes[address] = (data.cluster, f"{data.broker_name}:{number}")
                if number == 0:
                    masters[address] = data.cluster
        await asyncio.gather(
            *(self._runtime(address, *names, samples, problems) for address, names in runtimes.items()),
            *(self._master(address, cluster, problems) for address, cluster in masters.items()),
        )
        self._last = {address: found for address, found in self._last.items() if address in masters}
        return Round(samples + _summed(self._last.values()), problems)

    async def _runtime(
        self, address: str, cluster: str, broker: str, samples: list[Sample], problems: dict[str, str]
    ) -> None:
        try:
            answer = await self._admin.connection.read(address, RequestCode.GET_BROKER_RUNTIME_INFO)
            table = KVTable.decode(answer.body).table
            samples.append(
                Sample(
                    Series("broker", cluster, broker=broker),
                    _integer(table.get("msgPutTotalTodayNow")),
                    _ratio(table.get("commitLogDiskRatio")),
                )
            )
        except SaturnError as error:
            problems[address] = error.message

    async def _master(self, address: str, cluster: str, problems: dict[str, str]) -> None:
        try:
            found = await self._offsets(address, cluster)
        except SaturnError as error:
            problems[address] = error.message
            return
        before = self._last.get(address)
        if before is not None and found.problems:
            found.values = before.values | found.values  # what failed this time keeps its last values
        self._last[address] = found
        problems |= {f"{what}@{address}": problem for what, problem in found.problems.items()}

    async def _offsets(self, address: str, cluster: str) -> _Found:
        ask = self._admin.connection.read
        topics = TopicConfigTable.decode((await ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)).body)
        answer = await ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        groups = SubscriptionGroupTable.decode(answer.body)
        found = _Found()

        async def topic(name: str) -> None:
            answer = await ask(address, RequestCode.GET_TOPIC_STATS_INFO, TopicOnly(topic=name))
            queues = TopicStatsTable.decode(answer.body).offset_table.values()
            kept = sum(one.max_offset - one.min_offset for one in queues)
            found.values[Series("topic", cluster, topic=name)] = (sum(one.max_offset for one in queues), kept)

        async def group(name: str) -> None:
            answer = await ask(address, RequestCode.GET_CONSUME_STATS, GetConsumeStats(consumer_group=name))
            for queue, one in ConsumeStats.decode(answer.body).offset_table.items():
                series = Series("group", cluster, topic=queue.topic, group=name)
                total, lag = found.values.get(series, (0, 0.0))
                lag += max(one.broker_offset - one.consumer_offset, 0)
                found.values[series] = (total + one.consumer_offset, lag)

        permits = asyncio.Semaphore(CONCURRENT_MAX)
        await asyncio.gather(
            *(_within(permits, topic, name, found.problems) for name in topics.topic_config_table),
            *(_within(permits, group, name, found.problems) for name in groups.subscription_group_table),
        )
        return found


async def _within(
    permits: asyncio.Semaphore, ask: Callable[[str], Awaitable[None]], name: str, problems: dict[str, str]
) -> None:
    async with permits:
        try:
            await ask(name)
        except SaturnError as error:
            problems[name] = error.message


def _summed(brokers: Iterable[_Found]) -> list[Sample]:
    """One sample per series, its values summed over the brokers."""
    total: dict[Series, tuple[int, float]] = {}
    for found in brokers:
        for series, (count, level) in found.values.items():
            before = total.get(series, (0, 0.0))
            total[series] = (before[0] + count, before[1] + level)
    return [Sample(series, count, level) for series, (count, level) in total.items()]


def _integer(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else 0


def _ratio(text: str | None) -> float:
    try:
        return min(max(float(text or "0"), -1.0), 1.0)
    except ValueError:
        return 0.0
