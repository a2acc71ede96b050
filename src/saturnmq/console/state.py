"""The state of the cluster as pages show it: a survey every few seconds while a page is viewed, with rates and its age.

A badge is the state of a group in one word, with its colour: what an operator has to look at stands out without reading numbers.

Requirements: UX-14, CON-06.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.connection import MASTER_ID
from saturnmq.admin.survey import GroupState, Survey, Surveyor
from saturnmq.console.texts import N_
from saturnmq.protocol.bodies import ConsumerConnection
from saturnmq.protocol.errors import SaturnError

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 120.0  # without a page view for so long, no survey is taken
SURVEY_SECONDS: Final = 30.0
PAUSE_FACTOR: Final = 4  # a survey that takes long is followed by a pause so many times as long
FIRST_WAIT_SECONDS: Final = 0.8
STALE_SECONDS: Final = 60.0  # an older view is not shown as the state of now


@dataclass(frozen=True)
class View:
    """One survey. at: of the clock. rates: messages per second by (cluster, name); None for the first survey."""

    survey: Survey
    at: float
    in_rates: dict[tuple[str, str], float] = field(default_factory=dict)
    out_rates: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def masters(self) -> list[BrokerState]:
        """The masters of all clusters, also those that do not answer."""
        return [broker for broker in self.survey.brokers if broker.number == MASTER_ID]


class ClusterState:
    """Takes surveys in the background. `view` returns at once with the latest."""

    def __init__(
        self,
        surveyor: Surveyor,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._surveyor = surveyor
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._view: View | None = None
        self._looked = clock()
        self._view_requested = asyncio.Event()
        self._ready = asyncio.Event()
        self.problem = ""

    def age(self, view: View) -> int:
        """Seconds since a view was taken."""
        return round(self._clock() - view.at)

    @property
    def view_age(self) -> int:
        """Seconds since the latest view was taken; 0 without one."""
        return self.age(self._view) if self._view is not None else 0

    @property
    def is_stale(self) -> bool:
        """Whether there is a view that must not be shown as the state of now: no later survey succeeded, or it is old."""
        return self._view is not None and (bool(self.problem) or self._clock() - self._view.at > STALE_SECONDS)

    async def view(self) -> View | None:
        """The latest survey; None if there is none. Waits up to FIRST_WAIT_SECONDS for the first one, and for one that replaces an
        old one."""
        self._looked = self._clock()
        self._view_requested.set()
        if self._view is None or (self.is_stale and not self.problem):
            self._ready.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WAIT_SECONDS):
                    await self._ready.wait()
        return self._view

    async def recent(self, seconds: float) -> Survey | None:
        """A survey that is not older, taken now if need be; None if two attempts fail: the first may meet a closed connection."""
        if self._view is None or self.problem or self._clock() - self._view.at > seconds:
            await self.refresh()
            if self.problem:
                await self.refresh()
        return self._view.survey if self._view is not None and not self.problem else None

    async def run(self) -> None:
        """Take surveys until cancelled; pauses while no page is viewed."""
        while True:
            if self._clock() - self._looked > IDLE_SECONDS:
                self._view_requested.clear()
                await self._view_requested.wait()
            began = self._clock()
            await self.refresh()
            # A cluster for which a survey takes long is busy a fifth of the time at most.
            await asyncio.sleep(max(self._refresh_seconds, PAUSE_FACTOR * (self._clock() - began)))

    async def refresh(self) -> None:
        """Take one survey now. A failure is kept as `problem`, and the last view stays."""
        try:
            async with asyncio.timeout(SURVEY_SECONDS):
                survey = await self._surveyor.survey()
        except TimeoutError:
            self.problem = f"no survey within {SURVEY_SECONDS:g} s"
            return
        except SaturnError as error:
            self.problem = error.message
            log.warning("no survey reason=%s", error.message)
            return
        except Exception:  # the loop goes on with the next survey, and pages show the problem
            self.problem = "the survey failed; the log of the console shows why"
            log.exception("survey failed")
            return
        self.problem = ""
        self._view = with_rates(survey, self._clock(), self._view)
        self._ready.set()


def with_rates(survey: Survey, at: float, before: View | None) -> View:
    """The view of a survey, with the rates since the one before."""
    if before is None or at <= before.at:
        return View(survey, at)
    seconds = at - before.at
    known_topics, known_groups = before.survey.topics, before.survey.groups
    in_rates = {
        key: max(topic.total - known_topics[key].total, 0) / seconds
        for key, topic in survey.topics.items()
        if key in known_topics
    }
    out_rates = {
        key: max(_consumed(group) - _consumed(known_groups[key]), 0) / seconds
        for key, group in survey.groups.items()
        if key in known_groups
    }
    return View(survey, at, in_rates, out_rates)


def _consumed(group: GroupState) -> int:
    return sum(progress.total for progress in group.topics.values())


@dataclass(frozen=True)
class Badge:
    """kind: ok, idle, warn or bad, as in the style sheet; text: in English."""

    kind: str
    text: str


def group_badge(lag: int, clients: int | None, rate: float | None) -> Badge:
    """The state of a group. clients: None if a broker did not answer; rate: consumed messages per second, None if not known yet."""
    if clients is None:
        return Badge("idle", N_("not known"))
    if not clients:
        return Badge("bad", N_("stopped: no client")) if lag else Badge("idle", N_("no client"))
    if lag and rate == 0:
        return Badge("warn", N_("stuck: nothing consumed"))
    return Badge("ok", N_("consuming") if lag else N_("up to date"))


def badge_of(
    view: View, group: GroupState, clients: Mapping[tuple[str, str], ConsumerConnection], silent: Mapping[str, str]
) -> Badge:
    """The state of a group. clients: of groups that have any, by cluster and name; silent: problems of brokers that were asked."""
    key = (group.cluster, group.name)
    count = len(clients[key].connection_set) if key in clients else None if silent else 0
    return group_badge(group.lag, count, view.out_rates.get(key))
