"""Recorded runs of simulated groups: every action of every member, second by second, is the one recorded in recorded_runs.txt.

The other simulations check invariants, which hold for many behaviours. This one notices each change of a decision: a boundary of a
timer, an entry more in a batch, a peer asked in another order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from test_raft_sim_seeds import cluster_of
from test_raft_sim_timers import AUTO

from harness.raftsim.group import Cluster
from harness.raftsim.simulation import Trace, line_of
from recordedruns import check_run, public
from saturnmq.raft.core.settings import CoreSettings

RECORDED: Final = Path(__file__).with_name("recorded_runs.txt")
FAULTY_MS: Final = 20_000
CALM_MS: Final = 8_000


class Lines(Trace):
    """Keeps the text of all that happens, by the second."""

    def __init__(self) -> None:
        super().__init__()
        self.by_second: dict[int, list[str]] = {}

    def add(self, now_ms: float, member: str, what: object) -> None:
        self.by_second.setdefault(int(now_ms / 1000), []).append(line_of((now_ms, member, what)))
        super().add(now_ms, member, what)


def batches() -> Cluster:
    return Cluster(8, settings=CoreSettings(file_bytes=2048, batch_push=True, batch_push_bytes=600))


def few_pushes() -> Cluster:
    settings = CoreSettings(file_bytes=2048, push_pending_max=3, push_requests_max=4, pending_requests_max=20)
    return Cluster(9, members=5, settings=settings)


def throttled() -> Cluster:
    settings = CoreSettings(file_bytes=2048, push_throttle_entries=5, push_throttle_bytes=600, push_quota_bytes=900)
    return Cluster(10, settings=settings)


def timers() -> Cluster:
    return Cluster(11, settings=dataclasses.replace(AUTO, preferred_leaders=("n1",)))


def harsh() -> Cluster:
    cluster = Cluster(285)
    cluster.crash_between = 0.0005
    cluster.harsh("isolate leader", "isolate leader", "crash leader", "heal", "transfer", "transfer, isolate")
    return cluster


def changes() -> Cluster:
    cluster = Cluster(12)
    cluster.change_members(4)
    return cluster


KINDS: Final[dict[str, Callable[[], Cluster]]] = {
    "plain": lambda: cluster_of(1),
    "automatic batches": lambda: cluster_of(2),
    "preferred leader": lambda: cluster_of(7),
    "five members": lambda: cluster_of(10),
    "batches": batches,
    "few pushes": few_pushes,
    "throttled": throttled,
    "timers": timers,
    "harsh": harsh,
    "changes": changes,
}


@pytest.mark.parametrize("kind", KINDS)
def test_group_takes_each_decision_as_recorded(kind: str) -> None:
    cluster = KINDS[kind]()
    cluster.trace = lines = Lines()
    cluster.start()
    cluster.load(100)
    cluster.faults(1000)
    for until_ms in range(1000, FAULTY_MS + CALM_MS + 1, 1000):
        if until_ms == FAULTY_MS:
            cluster.calm()
        cluster.events.run_until(until_ms)
        for name, member in cluster.members.items():
            if member.node is not None:
                lines.add(until_ms - 1, name, public(member.node))
    check_run(RECORDED, kind, ["\n".join(texts) for texts in lines.by_second.values()])
