"""JSON paths, conditions, bounds of jobs, scans of a broker that does not answer, files for spreadsheets."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from browsing import Times

from saturnmq.admin import Admin
from saturnmq.console.conditions import equals, parse_path, reached
from saturnmq.console.download import csv_line
from saturnmq.console.jobs import Jobs
from saturnmq.console.scanning import ScanRange, TopicScan
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, SaturnError

DOCUMENT = {"a": [{"b": 1}, {"b": "x"}, {"c": None}], "d e": {"0": True}, "": 5}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("a[*].b", [1, "x"]),
        ("$.a[1].b", ["x"]),
        ("['d e']['0']", [True]),
        ("a[9].b", []),
        ("a.*.c", [None]),
        ("a.b", []),
    ],
)
def test_path_reaches_values(path: str, values: list[Any]) -> None:
    assert list(reached(DOCUMENT, parse_path(path))) == values


def test_wrong_path_is_named_and_values_are_written_as_json() -> None:
    for path in ("a[", "a..b", "a[-1]", "a[x]", "a" + "[0]" * 40, "x" * 600, "$$"):
        with pytest.raises(ConfigError, match="JSON path"):
            parse_path(path)
    assert equals(1, "1") and equals(True, "true") and equals(None, "null") and equals("1", "1")
    assert not equals([], "[]") and not equals("a", "b")


def test_values_of_a_wide_body_are_bounded() -> None:
    document = json.loads("[" + ",".join(["[1,2,3]"] * 20_000) + "]")
    assert len(list(reached(document, parse_path("[*][*]")))) == 10_000


def test_formulas_are_text_in_a_table() -> None:
    line = csv_line(["=1", "+1", "@a", "\t=1", " =1", "plain", 5, -3, {"=": "1"}]).decode()
    assert line == '"\'=1","\'+1","\'@a","\'\t=1","\' =1","plain",5,-3,"{""="": ""1""}"\r\n'
    assert csv_line(["\ud800\0"]) == b'"?"\r\n'


class Waiting:
    """A scan that runs until it is cancelled."""

    is_viewed: Any = None

    async def run(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.spec("CON-09")
async def test_jobs_of_a_user_are_bounded_and_expire_after_an_hour() -> None:
    clock = Times()
    jobs = Jobs(clock)

    def start(owner: str) -> Any:
        clock.now += 1
        return jobs.start(owner, "search", "t", cast(TopicScan, Waiting()), [])

    first = [start("ann") for _ in range(3)]
    with pytest.raises(ConfigError, match="3 searches of ann are running"):
        start("ann")
    assert jobs.find("bob", first[0].id) is None and jobs.find("ann", first[0].id) is first[0]
    for _ in range(12):
        await jobs.cancel(jobs.of("ann")[0])
        start("ann")
    assert len(jobs.of("ann")) == 10
    for number in range(40):
        await jobs.cancel(start(f"user{number}"))
    assert sum(len(jobs.of(owner)) for owner in ["ann", *(f"user{n}" for n in range(40))]) == 40
    kept = jobs.of("user39")[0]
    clock.now = kept.began + 3600
    assert jobs.find("user39", kept.id) is kept
    clock.now += 1
    assert jobs.find("user39", kept.id) is None
    await jobs.close()


class Ending:
    """A scan that ends as a test says: with a state, or an exception; it has read 7 of 9."""

    is_viewed: Any = None
    scanned, expected = 7, 9

    def __init__(self, end: str | Exception) -> None:
        self.end = end

    async def run(self) -> None:
        if isinstance(self.end, Exception):
            raise self.end


async def test_job_has_the_end_of_its_scan_or_its_problem() -> None:
    jobs = Jobs(Times())

    async def ended(end: str | Exception) -> tuple[str, str, int, bool]:
        job = jobs.start("ann", "search", "t", cast(TopicScan, Ending(end)), [])
        assert (job.state, job.running, job.percent) == ("running", True, 77)
        assert job.task is not None
        await asyncio.wait([job.task])
        return job.state, job.problem, job.percent, job.running

    assert await ended("enough") == ("enough", "", 100, False)
    assert await ended(SaturnError("no route")) == ("failed", "no route", 100, False)
    assert await ended(ValueError("a defect")) == ("failed", "ValueError", 100, False)
    job = jobs.start("bob", "search", "t", cast(TopicScan, Waiting()), [])
    await asyncio.sleep(0)
    await jobs.cancel(job)
    assert (job.state, job.problem) == ("cancelled", "")
    early = jobs.start("bob", "search", "t", cast(TopicScan, Waiting()), [])
    await jobs.cancel(early)
    assert (early.state, early.running) == ("cancelled", False), "before it began"
    left = jobs.start("bob", "search", "t", cast(TopicScan, Waiting()), [])
    await asyncio.sleep(0)
    await jobs.close()
    assert left.state == "cancelled"


@pytest.mark.parametrize(
    ("scanned", "expected", "percent"), [(0, 0, 0), (0, 9, 0), (1, 0, 99), (99, 100, 99), (500, 100, 99)]
)
async def test_progress_of_a_running_job_is_below_100_percent(scanned: int, expected: int, percent: int) -> None:
    jobs, scan = Jobs(), Ending("complete")
    scan.scanned, scan.expected = scanned, expected  # type: ignore[misc]
    job = jobs.start("ann", "search", "t", cast(TopicScan, scan), [])
    assert job.percent == percent
    await jobs.close()


async def test_job_that_no_page_asks_for_is_wanted_for_20_seconds() -> None:
    clock, scan = Times(), Waiting()
    jobs = Jobs(clock)
    job = jobs.start("ann", "tail", "t", cast(TopicScan, scan), [])
    clock.now += 19
    assert scan.is_viewed()
    assert jobs.find("ann", job.id) is job and jobs.find("bob", job.id) is None
    clock.now += 19
    assert scan.is_viewed()
    jobs.find("bob", job.id)
    clock.now += 1
    assert not scan.is_viewed(), "a question of another user does not count"
    clock.now += 10_000
    assert jobs.find("ann", job.id) is job, "a job that runs does not expire"
    await jobs.close()


async def test_newest_jobs_of_all_users_are_kept() -> None:
    clock = Times()
    jobs = Jobs(clock)

    async def ended(owner: str) -> Any:
        clock.now += 1
        job = jobs.start(owner, "search", "t", cast(TopicScan, Ending("complete")), [])
        await asyncio.wait([cast("asyncio.Task[None]", job.task)])
        return job

    kept = [await ended(f"user{number}") for number in range(40)]
    ann = [await ended("ann") for _ in range(10)]
    assert [jobs.find(job.owner, job.id) is job for job in kept] == [False] * 10 + [True] * 30
    newest = await ended("ann")
    assert jobs.of("ann") == [newest, *reversed(ann[1:])], "of ten jobs of one user its own oldest"
    assert sum(jobs.find(job.owner, job.id) is job for job in kept) == 30
    running = Jobs(clock)
    for number in range(40):
        running.start(f"user{number}", "search", "t", cast(TopicScan, Waiting()), [])
    with pytest.raises(ConfigError, match="40 searches are running; at most 40 may; try again later"):
        running.start("ann", "search", "t", cast(TopicScan, Waiting()), [])
    await running.close()


class DeadPuller:
    """A topic of two brokers, one of which does not answer and the other of which is empty."""

    def __init__(self) -> None:
        self.asked = 0

    async def refresh(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, "dead" if number % 2 else "live", number) for number in range(200)]

    async def max_offset(self, queue: MessageQueue) -> int:
        self.asked += 1
        if queue.broker_name == "dead":
            raise SaturnError("no answer")
        return 0

    async def min_offset(self, queue: MessageQueue) -> int:
        return 0

    async def offset_by_time(self, queue: MessageQueue, when: int) -> int:
        return 0


@pytest.mark.spec("UX-14")
async def test_scan_names_a_dead_broker_and_asks_it_few_times() -> None:
    puller = DeadPuller()

    class Messages:
        async def puller(self) -> DeadPuller:
            return puller

    class Cluster:
        messages = Messages()

    scan = TopicScan(cast(Admin, Cluster()), ScanRange("t", 0, 10), lambda message: False)
    await scan.run()
    assert scan.end == "complete" and scan.problems == {"dead": "no answer"} and puller.asked < 120
