"""What the console does for a user in the background: searches, live tails, analyses; each with an id, and bounded in number.

Requirements: CON-09, UX-14.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from saturnmq.console.scanning import TopicScan
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.tasks import cancel

log = logging.getLogger(__name__)

RUNNING_MAX: Final = 3  # of one user
KEPT_MAX: Final = 10  # of one user
JOBS_MAX: Final = 40  # of all users
KEPT_SECONDS: Final = 3600.0
LEFT_SECONDS: Final = 20.0  # a job that follows ends when no page has asked for it for so long


@dataclass
class Job:
    """One scan for a user. collector: of what the scan reads. kind: search, tail or analysis. state: running, or how it ended."""

    id: str
    owner: str
    kind: str
    title: str
    scan: TopicScan
    collector: Any
    began: float
    viewed: float
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    state: str = "running"
    problem: str = ""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.state == "running"

    @property
    def percent(self) -> int:
        """How much is read, of what was there at the start."""
        scan = self.scan
        return 100 if not self.running else min(100 * scan.scanned // max(scan.expected, 1), 99)


class Jobs:
    """All jobs. clock: seconds. Jobs expire KEPT_SECONDS after their start, or earlier to make space for newer ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: dict[str, Job] = {}

    def start(self, owner: str, kind: str, title: str, scan: TopicScan, collector: Any) -> Job:
        """Begin a scan for a user. Raises ConfigError if too many run."""
        self._expire()
        owner_jobs = self.of(owner)
        running = sum(job.running for job in owner_jobs)
        if running >= RUNNING_MAX:
            raise ConfigError(f"{running} searches of {owner} are running; at most {RUNNING_MAX} may; cancel one first")
        ended = [job for job in self._jobs.values() if not job.running]
        if len(owner_jobs) >= KEPT_MAX:  # users make space among their own first
            ended = [job for job in ended if job.owner == owner]
        if len(owner_jobs) >= KEPT_MAX or len(self._jobs) >= JOBS_MAX:
            if not ended:
                raise ConfigError(f"{len(self._jobs)} searches are running; at most {JOBS_MAX} may; try again later")
            del self._jobs[min(ended, key=lambda job: job.began).id]
        now = self._clock()
        job = Job(secrets.token_urlsafe(12), owner, kind, title, scan, collector, now, now)
        # Each request for the job's page renews `viewed`; a tail whose tab was closed ends by this.
        scan.is_viewed = lambda: self._clock() - job.viewed < LEFT_SECONDS
        self._jobs[job.id] = job
        job.task = asyncio.get_running_loop().create_task(_run(job), name=f"console {kind}")
        return job

    def find(self, owner: str, number: str) -> Job | None:
        """A job of this user; None for one of another user, or one that has expired."""
        self._expire()
        job = self._jobs.get(number)
        if job is None or job.owner != owner:
            return None
        job.viewed = self._clock()
        return job

    def of(self, owner: str) -> list[Job]:
        """The jobs of a user, newest first."""
        self._expire()
        return sorted((job for job in self._jobs.values() if job.owner == owner), key=lambda job: -job.began)

    async def cancel(self, job: Job) -> None:
        """End a job; what it has found stays."""
        await cancel(job.task)
        if job.running:  # cancelled before it began
            job.state = "cancelled"

    async def close(self) -> None:
        """End all jobs."""
        await cancel(*(job.task for job in self._jobs.values()))

    def _expire(self) -> None:
        old = [job.id for job in self._jobs.values() if not job.running and self._clock() - job.began > KEPT_SECONDS]
        for number in old:
            del self._jobs[number]


async def _run(job: Job) -> None:
    try:
        await job.scan.run()
        job.state = job.scan.end
    except asyncio.CancelledError:
        job.state = "cancelled"
        raise
    except SaturnError as error:
        job.state, job.problem = "failed", error.message
    except Exception as error:
        job.state, job.problem = "failed", type(error).__name__
        log.exception("search failed kind=%s", job.kind)
