"""JSON paths, conditions, bounds of jobs, scans of a broker that does not answer, files for spreadsheets."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from browsing import Times, run

from saturnmq.admin import Admin
from saturnmq.console.download import csv_line
from saturnmq.console.jobs import JOBS_MAX, KEPT_MAX, KEPT_SECONDS, RUNNING_MAX, Jobs
from saturnmq.console.jsonpath import equals, parse_path, reached
from saturnmq.console.scanning import Scan, Span
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

    wanted: Any = None

    async def run(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.spec("CON-09")
def test_jobs_of_a_user_are_bounded_and_expire_after_an_hour() -> None:
    async def work() -> None:
        clock = Times()
        jobs = Jobs(clock)

        def start(owner: str) -> Any:
            clock.now += 1
            return jobs.start(owner, "search", "t", cast(Scan, Waiting()), [])

        first = [start("ann") for _ in range(RUNNING_MAX)]
        with pytest.raises(ConfigError, match="3 searches of ann are running"):
            start("ann")
        assert jobs.find("bob", first[0].id) is None and jobs.find("ann", first[0].id) is first[0]
        for _ in range(KEPT_MAX + 2):
            await jobs.cancel(jobs.of("ann")[0])
            start("ann")
        assert len(jobs.of("ann")) == KEPT_MAX
        for number in range(JOBS_MAX):
            await jobs.cancel(start(f"user{number}"))
        assert sum(len(jobs.of(owner)) for owner in ["ann", *(f"user{n}" for n in range(JOBS_MAX))]) == JOBS_MAX
        kept = jobs.of("user39")[0]
        clock.now += KEPT_SECONDS + 1
        assert jobs.find("user39", kept.id) is None
        await jobs.close()

    run(work)


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
def test_scan_names_a_dead_broker_and_asks_it_few_times() -> None:
    async def work() -> None:
        puller = DeadPuller()

        class Messages:
            async def puller(self) -> DeadPuller:
                return puller

        class Cluster:
            messages = Messages()

        scan = Scan(cast(Admin, Cluster()), Span("t", 0, 10), lambda message: False)
        await scan.run()
        assert scan.end == "complete" and scan.problems == {"dead": "no answer"} and puller.asked < 120

    run(work)
