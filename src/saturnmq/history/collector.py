"""The collector: once a minute it takes a survey of the cluster and stores the counts of every topic, group and broker.

When a broker does not answer, its own series has no sample, and its topics and groups keep their last values.

Requirements: EXP-05.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from saturnmq.admin import Admin
from saturnmq.admin.survey import Survey, Surveyor
from saturnmq.admin.system_names import is_system, is_system_group
from saturnmq.errors import CallTimeout
from saturnmq.escaping import quoted
from saturnmq.history.file import STEP_SECONDS, History, Sample, Series
from saturnmq.protocol.errors import SaturnError, StoreError

log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 50.0
THIN_ROUNDS: Final = 60
END: Final = "commitLogMaxOffset"  # runtime value of a broker
PROBLEMS_MAX: Final = 10  # lines of log a round


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
        self._surveyor = Surveyor(admin.connection)
        self._history = history
        self._clock = clock
        self._sleep = sleep
        self.rounds = 0

    async def run(self, rounds: int | None = None) -> None:
        """Collect at every full minute, without end or for a number of rounds. Raises StoreError if the file cannot be written.

        A round that fails as a whole, for want of a NameServer, is logged and the next one is tried.
        """
        while rounds is None or self.rounds < rounds:
            # At full minutes of the clock: samples of two collectors, or of before and after a restart, have the same times.
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
                survey = await self._surveyor.survey()
        except TimeoutError:
            raise CallTimeout(f"the brokers did not answer all requests within {ROUND_SECONDS:g} s") from None
        for where, problem in list(survey.problems.items())[:PROBLEMS_MAX]:
            log.warning("history incomplete where=%s reason=%s", quoted(where), problem)
        count = await asyncio.to_thread(self._history.record, at, samples_of(survey))
        if self.rounds % THIN_ROUNDS == 0:
            await asyncio.to_thread(self._history.thin, at)
        return count


def samples_of(survey: Survey) -> list[Sample]:
    """The samples that a survey gives; none of a broker that did not answer."""
    samples = [
        Sample(
            Series("broker", broker.cluster, broker=f"{broker.name}:{broker.number}"),
            _integer(broker.runtime.get("msgPutTotalTodayNow")),
            min(max(broker.first_number("commitLogDiskRatio") or 0.0, -1.0), 1.0),
        )
        for broker in survey.brokers
        if not broker.problem
    ]
    ends = {
        (broker.cluster, broker.name): broker.integer(END)
        for broker in survey.brokers
        if broker.number == 0 and not broker.problem
    }
    for broker in survey.brokers:
        if broker.number and not broker.problem and END in broker.runtime and (broker.cluster, broker.name) in ends:
            behind = max(ends[broker.cluster, broker.name] - broker.integer(END), 0)
            samples.append(
                Sample(Series("replica", broker.cluster, broker=f"{broker.name}:{broker.number}"), 0, behind)
            )
    for cluster in {broker.cluster for broker in survey.brokers}:
        groups = [
            group for group in survey.groups.values() if group.cluster == cluster and not is_system_group(group.name)
        ]
        parts = [each for group in groups for each in group.topics.values()]
        total, lag = sum(part.total for part in parts), sum(part.lag for part in parts)
        samples.append(Sample(Series("cluster", cluster), total, lag))
        topics = [topic for topic in survey.topics.values() if topic.cluster == cluster and not is_system(topic)]
        sent, retained = sum(topic.total for topic in topics), sum(topic.kept for topic in topics)
        samples.append(Sample(Series("incoming", cluster), sent, retained))
    for topic in survey.topics.values():
        samples.append(Sample(Series("topic", topic.cluster, topic=topic.name), topic.total, topic.kept))
    for group in survey.groups.values():
        for name, progress in group.topics.items():
            series = Series("group", group.cluster, topic=name, group=group.name)
            samples.append(Sample(series, progress.total, progress.lag))
    return samples


def _integer(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else 0
