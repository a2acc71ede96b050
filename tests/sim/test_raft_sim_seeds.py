"""Simulated groups: Raft's invariants are checked at every step, for many seeds.

`SATURNMQ_SIM_SEEDS=n` runs n seeds of each kind, `SATURNMQ_SIM_SEED=k` only that one; the same seed gives the same run.
`SATURNMQ_SIM_NIGHT=1` makes each run 260 simulated seconds long.

The name of `test_every_seed_...` is part of the command printed for a failed seed.
"""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import pytest
from simfailure import explain

from harness.raftsim.group import Cluster, Violation
from harness.raftsim.simulation import Events, Network
from longruns import repetitions
from recorded import with_harness
from saturnmq.raft.core.settings import CoreSettings

SEEDS = int(os.environ.get("SATURNMQ_SIM_SEEDS", repetitions(12, 45)))
ONLY = os.environ.get("SATURNMQ_SIM_SEED")
NIGHT = os.environ.get("SATURNMQ_SIM_NIGHT") is not None  # 260 simulated seconds per seed instead of 60 (SIM-13)
LONG_SECONDS = 120 + 8 * SEEDS  # timeout of tests that run seeds
FAULTY_MS, CALM_MS = 240_000 if NIGHT else 40_000, 20_000


# It had acknowledged more than its checkpoint said; it was restarted while its log grew again.
RELEASED_TOO_EARLY = (7369, 100_155)


def seeds(share: float, first: int, least: int = 2) -> range:
    if ONLY is not None:
        return range(int(ONLY), int(ONLY) + 1)
    return range(first, first + max(int(SEEDS * share), least))


def cluster_of(seed: int) -> Cluster:
    """The seed determines the group's size, the push mode, the timers and the kinds of faults (SIM-07)."""
    settings = CoreSettings(file_bytes=2048)
    if seed % 4 == 1:
        settings = dataclasses.replace(settings, batch_push=True, batch_push_bytes=600)
    if seed % 4 == 2:
        settings = dataclasses.replace(settings, batch_push_auto=True, batch_push_auto_bytes=600)
    if seed % 5 == 2:
        settings = dataclasses.replace(
            settings,
            heartbeat_interval_ms=500,
            vote_interval_min_ms=150,
            vote_interval_max_ms=500,
            rpc_timeout_ms=1000,
            preferred_leaders=("n1",),
        )
    if seed % 7 == 3:
        settings = dataclasses.replace(settings, push_pending_max=3, push_requests_max=4, pending_requests_max=20)
    cluster = Cluster(seed, members=5 if seed % 6 == 4 else 3, settings=settings)
    if seed % 3 == 0:
        cluster.crash_between = 0.0003
    return cluster


def again(seed: int, left_out: frozenset[int]) -> Cluster:
    cluster = cluster_of(seed)
    cluster.left_out = left_out
    cluster.run(faulty_ms=FAULTY_MS, calm_ms=CALM_MS)
    return cluster


@dataclasses.dataclass
class Runs:
    """Results of all seeds of the first kind. failure: explanation of the first violation, after which no further seed was run."""

    seeds: int = 0
    seen: Counter[str] = dataclasses.field(default_factory=Counter)
    idle: list[int] = dataclasses.field(default_factory=list)  # seeds that committed nothing
    used_seconds: float = 0.0
    failure: str | None = None

    @property
    def simulated_seconds(self) -> float:
        return self.seeds * (FAULTY_MS + CALM_MS) / 1000


@pytest.fixture(scope="module")
def runs() -> Runs:
    found, began = Runs(), time.process_time()
    for seed in seeds(1.0, 1):
        cluster = cluster_of(seed)
        found.seeds += 1
        try:
            cluster.run(faulty_ms=FAULTY_MS, calm_ms=CALM_MS)
        except Violation as violation:
            found.failure = explain(seed, "every_seed", violation, cluster, partial(again, seed))
            break
        finally:
            found.seen += cluster.seen
        if cluster.observer.top < 0:  # the first entry has index 0
            found.idle.append(seed)
    found.used_seconds = time.process_time() - began
    return found


@pytest.mark.repeated
@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.spec("SIM-08", "SIM-10", "DL-X03", "DL-X10", "DUR-12")
def test_every_seed_keeps_raft_invariants(runs: Runs) -> None:
    """Fails with the seed; SATURNMQ_SIM_SEED=<seed> replays it."""
    assert runs.failure is None, runs.failure
    assert runs.idle == [], "seeds that committed nothing"


@pytest.mark.repeated
@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.spec("SIM-13", "G03")
def test_simulation_runs_fifty_times_faster_than_real_time(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """Each seed runs 60 simulated seconds, 260 with SATURNMQ_SIM_NIGHT."""
    ratio = runs.simulated_seconds / runs.used_seconds
    summary = f"{runs.seeds} seeds, {runs.simulated_seconds:.0f} s simulated in {runs.used_seconds:.1f} s of a core"
    with capsys.disabled():
        print(f"\nraft: {summary}, {ratio:.0f}:1")
    assert runs.simulated_seconds == runs.seeds * (260 if NIGHT else 60)
    assert ratio > 50, summary


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.skipif(ONLY is not None, reason="one seed does not draw every fault")
@pytest.mark.spec("SIM-03", "SIM-04", "SIM-05", "SIM-07")
def test_runs_include_every_fault_and_effect(runs: Runs) -> None:
    """Without an occurrence of a fault or effect, the runs prove nothing about it. The rarest may take some seeds more."""
    wanted = ("crash", "lost unsynced", "disk failed", "partition", "one way", "freeze", "skew", "trim", "truncate")
    wanted += ("restart", "transfer 200", "append 200", "append 415", "append 501", "append 502")
    wanted += ("stall", "full", "flip", "flip read", "flip at start", "emptied")
    seen = +runs.seen
    for seed in range(SEEDS + 1, SEEDS + 91):
        if all(seen[kind] for kind in wanted):
            break
        seen += again(seed, frozenset()).seen
    assert [kind for kind in wanted if not seen[kind]] == []


@pytest.mark.repeated
@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.spec("SIM-03", "SIM-08", "SIM-09")
def test_partitions_of_every_shape_keep_raft_invariants() -> None:
    """Halves, one-way cuts, rings, bridges, flapping links and stalled receivers, with loss, duplicates and delay."""
    shapes = ("partition", "one way", "ring", "bridge", "flap", "stall")
    seen: Counter[str] = Counter()
    for seed in seeds(0.08, 12_000, 7):
        cluster = Cluster(seed, members=3 if seed % 3 == 0 else 5)
        cluster.mix = (*shapes, "isolate leader", "lossy", "transfer", "heal")
        cluster.run(faulty_ms=FAULTY_MS, calm_ms=CALM_MS, fault_every_ms=1500)
        seen += cluster.seen
        seen += Counter(lost=cluster.network.lost, duplicated=cluster.network.duplicated)
    assert [kind for kind in (*shapes, "lost", "duplicated", "append 200") if not seen[kind]] == []


def test_ring_and_bridge_partitions_cut_expected_links() -> None:
    names = ["a", "b", "c", "d", "e"]
    network = Network(Events(), random.Random(1))
    network.ring(names)
    assert {receiver for sender, receiver in network.cut if sender == "a"} == {"c", "d"}
    assert len(network.cut) == 10
    network.bridge(names)
    assert network.cut == {(x, y) for x in "bc" for y in "de"} | {(x, y) for x in "de" for y in "bc"}
    network.stalled["a"] = 50.0
    network.heal()
    assert not network.cut and not network.stalled


@pytest.mark.repeated
@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.spec("SIM-08", "DL-X02")
def test_async_flush_keeps_acknowledged_entries_without_power_loss() -> None:
    """ASYNC_FLUSH: entries are acknowledged before they are synced, and written data survives the process."""
    for seed in seeds(0.1, 5000, 9):
        cluster = Cluster(seed, settings=CoreSettings(file_bytes=2048, sync_before_ack=False))
        for member in cluster.members.values():
            member.keeps_writes = True
        cluster.run(faulty_ms=20_000, calm_ms=CALM_MS)
        assert len(cluster.observer.acked) > 0


@pytest.mark.spec("SIM-02")
def test_seed_determines_the_run() -> None:
    """The trace hash is the same in another process with another hash seed."""
    code = (
        "from harness.raftsim.group import Cluster\n"
        "c = Cluster(42, members=5)\n"
        "c.trace.hashes = True\n"
        "c.crash_between = 0.0003\n"
        "c.run(faulty_ms=8000, calm_ms=16000)\n"
        "print(c.trace.digest())\n"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**with_harness(), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1
    assert len(digests.pop()) == 64


@pytest.mark.spec("SIM-11", "DL-Q07", "DL-X10")
def test_checkpoint_never_passes_the_synced_log() -> None:
    """Regression: a crash lost a truncation and its new entry; the checkpoint already counted the entry as committed."""
    for seed in (285, 39, 103):
        cluster = Cluster(seed)
        cluster.crash_between = 0.0005
        cluster.harsh("isolate leader", "isolate leader", "crash leader", "heal", "transfer", "transfer, isolate")
        cluster.run(faulty_ms=20_000, calm_ms=15_000, load_every_ms=60, fault_every_ms=900)
        assert len(cluster.observer.acked) > 0


@pytest.mark.repeated
@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.spec("SIM-04", "DUR-10")
def test_disk_losing_synced_entries_loses_no_acknowledged_entry() -> None:
    """One member's log restarts shorter than what it had acknowledged; the others still have all entries."""
    rotten = 0
    for seed in seeds(0.2, 7000, 18) if ONLY else (*seeds(0.2, 7000, 18), *RELEASED_TOO_EARLY):
        cluster = Cluster(seed)
        cluster.members["n1"].rots = True
        if seed % 2:
            cluster.harsh("crash", "crash", "crash leader", "isolate leader", "heal")
            cluster.crash_after_cut = 0.0
            cluster.run(faulty_ms=20_000, calm_ms=15_000, load_every_ms=100, fault_every_ms=900)
        else:
            cluster.run(faulty_ms=FAULTY_MS, calm_ms=CALM_MS)
        rotten += cluster.seen["rot"]
    assert rotten > 0 or ONLY
