"""Which series a survey gives: of replicas, of whole clusters, of alarms."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from saturnmq.admin import Admin
from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.survey import GroupState, Survey, TopicProgress, TopicState
from saturnmq.cli.console import count_alarms
from saturnmq.console.alarms import Alarms
from saturnmq.history import History, Sample, Series
from saturnmq.history.collector import END, samples_of


def broker(name: str, number: int, end: str | None, *, cluster: str = "C", problem: str = "") -> BrokerState:
    runtime = {} if end is None else {END: end}
    return BrokerState(cluster, name, number, f"127.0.0.1:{number}", runtime, problem)


def survey(*brokers: BrokerState, groups: tuple[GroupState, ...] = ()) -> Survey:
    return Survey(list(brokers), {}, {(one.cluster, one.name): one for one in groups}, {})


def series_of(found: Survey, kind: str) -> dict[tuple[str, str], tuple[int, float]]:
    """Total and level by cluster and broker."""
    return {
        (one.series.cluster, one.series.broker): (one.total, one.level)
        for one in samples_of(found)
        if one.series.kind == kind
    }


@pytest.mark.spec("EXP-05")
def test_replica_has_the_bytes_it_is_behind_its_master() -> None:
    found = survey(
        broker("a", 0, "1000"), broker("a", 1, "400"), broker("a", 2, "1200"),  # 2: asked later than its master
        broker("b", 0, "70"), broker("b", 1, "70"),
        broker("a", 0, "9000", cluster="D"), broker("a", 1, "8000", cluster="D"),
    )  # fmt: skip
    assert series_of(found, "replica") == {
        ("C", "a:1"): (0, 600), ("C", "a:2"): (0, 0), ("C", "b:1"): (0, 0), ("D", "a:1"): (0, 1000),
    }  # fmt: skip


def test_replica_has_no_sample_if_it_or_its_master_does_not_answer() -> None:
    found = survey(
        broker("a", 0, None, problem="no response"), broker("a", 1, "400"),
        broker("b", 0, "70"), broker("b", 1, None, problem="no response"), broker("b", 2, None),
        broker("c", 1, "5"),
    )  # fmt: skip
    assert series_of(found, "replica") == {}


@pytest.mark.spec("EXP-05")
def test_cluster_has_the_consumed_messages_and_the_lag_of_its_groups() -> None:
    groups = (
        GroupState("C", "g", {"orders": TopicProgress(10, 3), "%RETRY%g": TopicProgress(2, 1)}),
        GroupState("C", "h", {"orders": TopicProgress(5, 8)}),
        GroupState("D", "g", {"orders": TopicProgress(100, 0)}),
        GroupState("C", "TOOLS_CONSUMER", {"orders": TopicProgress(1000, 1000)}),  # of the brokers: not counted
    )
    found = survey(broker("a", 0, "1"), broker("b", 0, "1"), broker("a", 0, "1", cluster="D"), groups=groups)
    assert series_of(found, "cluster") == {("C", ""): (17, 12), ("D", ""): (100, 0)}


@pytest.mark.spec("EXP-05")
def test_alarms_that_hold_are_counted_each_round(tmp_path: Path) -> None:
    minute = 1_000_000_020
    assert minute % 60 == 0

    class Surveys:
        """Surveys of a cluster with a full disk, and then of one without."""

        rounds = 0
        problem = ""

        async def recent(self, seconds: float) -> Survey:
            self.rounds += 1
            full = "0.99" if self.rounds == 1 else "0.1"
            return survey(BrokerState("C", "a", 0, "127.0.0.1:1", {"commitLogDiskRatio": full}))

    with History(tmp_path / "h.db") as history:
        history.record(minute, [Sample(Series("broker", "C", broker="a:0"), 1, 0.5)])
        surveys = Surveys()
        alarms = Alarms(clock=lambda: minute + 60.0 * surveys.rounds, counted=partial(count_alarms, history))

        async def sleep(seconds: float) -> None:
            if surveys.rounds == 2:
                raise asyncio.CancelledError

        async def work() -> None:
            async with Admin("127.0.0.1:1") as admin:
                with pytest.raises(asyncio.CancelledError):
                    await alarms.run(surveys, admin, sleep=sleep)

        asyncio.run(work())
        points = history.read(Series("alarms", ""), 0)
        assert [(point.at - minute, point.level) for point in points] == [(60, 1.0), (120, 0.0)]


@pytest.mark.spec("EXP-05")
def test_incoming_messages_of_a_cluster_leave_out_topics_of_brokers() -> None:
    names = {"orders": 7, "bills": 5, "RMQ_SYS_TRACE_TOPIC": 100, "%DLQ%g": 3, "%RETRY%g": 2, "C": 1}
    topics = {("C", name): TopicState("C", name, total, total - 1) for name, total in names.items()}
    found = Survey([broker("a", 0, "1")], topics, {}, {})
    assert series_of(found, "incoming") == {("C", ""): (12, 10)}
