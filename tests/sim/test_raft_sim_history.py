"""Checks the histories of simulated groups like those of real ones (SIM-09), and the explanation of a failed seed (SIM-14)."""

from __future__ import annotations

import pytest
from simfailure import explain, fails

from harness.history.check import check
from harness.history.raft import record_log
from harness.raftsim.group import ALL_FAULTS, Cluster, Violation
from longruns import repetitions
from saturnmq.raft.core import state, voting
from saturnmq.raft.ledger.layout import entry_bytes

SEEDS = range(300, 300 + repetitions(8, 30))


def cluster_of(seed: int, left_out: frozenset[int] = frozenset()) -> Cluster:
    cluster = Cluster(seed, members=5 if seed % 4 == 0 else 3)
    cluster.mix = tuple(fault for fault in ALL_FAULTS if fault != "trim")  # the final reads need all entries
    cluster.crash_between = 0.0003 if seed % 3 == 0 else 0.0
    cluster.left_out = left_out
    return cluster


def run(seed: int, left_out: frozenset[int] = frozenset()) -> Cluster:
    cluster = cluster_of(seed, left_out)
    cluster.run(faulty_ms=20_000, calm_ms=15_000)
    return cluster


def finished(cluster: Cluster) -> Cluster:
    for member in cluster.members.values():
        record_log(cluster.history, member.name, cluster.events.now_ms, member.log.live.entries, cluster.noop)
    return cluster


@pytest.mark.repeated
@pytest.mark.spec("SIM-09", "CHK-01", "CHK-04")
def test_history_of_each_seed_is_valid_and_committed_prefixes_equal() -> None:
    unknown = 0
    for seed in SEEDS:
        cluster = finished(run(seed))
        report = check(cluster.history)
        assert [str(problem) for problem in report.problems] == [], f"seed {seed}"
        unknown += report.counts["unknown but stored"]
        committed = min(member.committed for member in cluster.members.values())
        prefixes = {
            b"".join(entry_bytes(entry) for entry in member.log.live.entries if entry.index <= committed)
            for member in cluster.members.values()
        }
        assert len(prefixes) == 1 and len(prefixes.pop()) > 0
    assert unknown > 0


@pytest.mark.spec("SIM-09")
def test_lost_or_swapped_entry_is_found_in_history() -> None:
    for damage, kinds in (("lose", {"lost-write"}), ("swap", {"duplicate", "inconsistent-offsets"})):
        cluster = run(SEEDS[0])
        acked = min(cluster.observer.acked)
        for member in cluster.members.values():
            entries = member.log.live.entries
            at = next(number for number, entry in enumerate(entries) if entry.index == acked)
            if damage == "lose":
                del entries[at]
            elif member.name == "n1":
                entries[at], entries[at + 1] = entries[at + 1], entries[at]
                first, second = entries[at], entries[at + 1]
                object.__setattr__(first, "index", acked)
                object.__setattr__(second, "index", acked + 1)
        found = set(check(finished(cluster).history).found)
        assert kinds & found, f"{damage}: {found}"


@pytest.mark.spec("SIM-14")
def test_failed_seed_explanation_has_command_and_shorter_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voting, "quorum", lambda members: members // 2)
    monkeypatch.setattr(state, "quorum", lambda members: members // 2)
    for seed in range(50):
        cluster = cluster_of(seed)
        try:
            cluster.run(faulty_ms=20_000, calm_ms=15_000)
        except Violation as violation:
            why = violation
            if len(cluster.schedule) > 2:
                break
    else:
        raise AssertionError("the defect was not found")

    def again(left_out: frozenset[int]) -> Cluster:
        return run(seed, left_out)

    text = explain(seed, "every_seed", why, cluster, again)
    lines = text.splitlines()
    assert f"seed {seed}, commit " in lines[1]
    assert f"SATURNMQ_SIM_SEED={seed} python -m pytest" in lines[2]
    assert lines[3].startswith("shortest schedule found: ")
    kept, _, faults = lines[3].removeprefix("shortest schedule found: ").partition(" faults")[0].partition(" of ")
    assert int(kept) <= int(faults) == len(cluster.schedule)
    left_out = frozenset(int(word) for word in lines[3].partition("[")[2].rstrip("]").split(", ") if word)
    assert left_out, "nothing could be left out"
    assert fails(again, left_out)[0]
    assert all(" ms " in line for line in lines[4 : 4 + int(kept)])
