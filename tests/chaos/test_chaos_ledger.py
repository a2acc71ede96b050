"""Processes of a replicated log under load and faults: nothing acknowledged is lost, duplicated or out of order.

The short run injects a few faults one after the other. `make chaos` is the long run; chaosrun.py lists its variables.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from chaosdamage import FAULTS_OF_GOALS
from chaosfaults import FAULTS, FIVE, GOALS, faults_asked_for
from chaosgroup import Group, failovers
from chaosrun import (
    CAUGHT_UP_SECONDS,
    LONG,
    ONLY,
    RUN_SECONDS_MAX,
    SEED,
    SHORT_HEARTBEAT_MS,
    a_run,
    check_promise,
    children,
    consumed_again,
    long_run,
    phases,
    resolved_seconds,
    tell,
)

from harness.gate.goals import RTO_MAX_MS, RTO_P95_MS, rows
from harness.history.operations import History

SHORT = ("leader-kill", "random-loss", "leader-suspend", "one-way", "disk-full", "kill-all", "leader-partition")
LABEL = "replicated log of three (five for ring and bridge)"


def test_unknown_fault_is_rejected_and_does_not_run_the_short_form() -> None:
    assert faults_asked_for(None, 0.0) == [] and faults_asked_for(None, 60.0) == list(FAULTS)
    assert faults_asked_for("corrupt", 60.0) == [] and faults_asked_for("corrupt", 60.0, FAULTS_OF_GOALS) == ["corrupt"]
    assert tuple(FAULTS_OF_GOALS) == GOALS
    assert faults_asked_for("leader-kill", 0.0) == ["leader-kill"]
    with pytest.raises(ValueError, match="CHAOS_FAULT=rain: no such fault; there are noop, minor-kill, "):
        faults_asked_for("rain", 60.0)


@pytest.mark.spec("CHA-02", "CHA-09")
def test_faults_are_those_of_openchaos_and_ten_more() -> None:
    kills = [f"{whom}-{how}" for how in ("kill", "suspend") for whom in ("minor", "major", "random", "fixed", "leader")]
    partitions = ["random-partition", "fixed-partition", "partition-majorities-ring", "bridge", "random-loss"]
    more = ["one-way", "flapping", "kill-all", "kill-during-recovery", "rolling-restart", "clock-jump"]
    more += ["disk-full", "disk-slow", "disk-eio"]
    ours = ("leader-partition", "leader-deaf")
    assert [name for name in FAULTS if name not in ours] == ["noop", *kills, *partitions, *more]
    assert set(FIVE) == {"partition-majorities-ring", "bridge"}


@pytest.mark.spec("CHA-03")
def test_a_minute_has_two_rounds_of_15_s() -> None:
    assert phases(60.0) == (2, 15.0)
    assert phases(20.0) == (2, 5.0)


class Unstartable(Group):
    """Its processes start, and then its start fails."""

    async def start(self) -> None:
        await super().start()
        raise AssertionError("failed after its start")


@pytest.mark.spec("CHA-11")
def test_failed_run_keeps_its_records_and_leaves_no_process(tmp_path: Path) -> None:
    before, folder = children(), tmp_path / "run"
    with pytest.raises(AssertionError, match="failed after its start"):
        asyncio.run(a_run(folder, ["noop"], 0.1, 0.1, SHORT_HEARTBEAT_MS, Unstartable))
    assert children() <= before
    assert (folder / "history.jsonl").stat().st_size > 0
    assert json.loads((folder / "schedule.json").read_text()) == {"seed": SEED, "done": []}
    for name in ("n0", "n1", "n2"):
        assert (folder / f"{name}.log").is_file() and (folder / f"dledger-{name}" / "currterm").is_file()


@pytest.mark.skipif(bool(LONG), reason="the long form is asked for")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("CHA-05", "CHA-06", "CHA-09", "DL-X08", "DUR-12")
def test_ledger_group_loses_nothing_under_successive_faults(tmp_path: Path) -> None:
    before = children()
    found = asyncio.run(a_run(tmp_path / "run", SHORT, 0.2, 0.8, SHORT_HEARTBEAT_MS))
    assert children() <= before
    assert found["acknowledged"] > 100
    assert sum(ms > 0 for ms in found["rto_ms"]) >= 3, "the faults were not felt"


@pytest.mark.skipif(not LONG, reason="make chaos")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("CHA-02", "CHA-03", "CHA-07", "CHA-08", "CHA-09")
@pytest.mark.parametrize("name", LONG)
def test_ledger_group_loses_nothing_under_a_long_fault(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = long_run(name, tmp_path, Group, LABEL, "G01", "G07")
    tell(capsys, name, found)
    check_promise(found["caught_up_s"] <= CAUGHT_UP_SECONDS, f"all equal after {found['caught_up_s']:.1f} s")
    check_promise(max(found["rto_ms"]) <= RTO_MAX_MS, f"RTO {max(found['rto_ms']):.0f} ms")


@pytest.mark.skipif(not LONG, reason="make chaos")
@pytest.mark.spec("CHA-07")
def test_failover_times_stay_within_limits(capsys: pytest.CaptureFixture[str]) -> None:
    took = sorted(ms for row in rows.all if row.kind == LABEL for ms in row.rto_ms if ms > 0)
    if not took and ONLY is not None:
        pytest.skip("it is not felt")
    assert took, "no fault was felt"
    p95 = took[min(int(len(took) * 0.95), len(took) - 1)]
    with capsys.disabled():
        print(
            f"\nrecovery of {len(took)} faults: median {took[len(took) // 2]:.0f} ms, p95 {p95:.0f} ms, max {took[-1]:.0f} ms"
        )
    assert p95 <= RTO_P95_MS


@pytest.mark.spec("CHA-07")
def test_failover_counts_an_in_flight_send_for_the_fault_that_hit_it() -> None:
    def history(*sends: tuple[float, float, str]) -> History:
        out = History()
        for begin, end, result in sends:
            out.add("send", "c", begin, end, result=result, queue=0, messages=[])
        return out

    faults = [(100.0, 100.0), (200.0, 350.0)]
    healthy = [(at, at + 1.0, "ok") for at in (10.0, 50.0, 110.0, 150.0)]
    assert failovers(history(*healthy, (199.0, 400.0, "fail"), (360.0, 365.0, "ok")), faults) == [0.0, 15.0]
    assert failovers(history((10.0, 11.0, "ok"), (99.0, 400.0, "fail"), (360.0, 365.0, "ok")), faults) == [265.0, 15.0]
    late = [(120.0, 140.0, "fail"), (150.0, 160.0, "ok"), (199.0, 400.0, "fail"), (360.0, 365.0, "ok")]
    assert failovers(history((10.0, 11.0, "ok"), *late), faults) == [40.0, 15.0]


def test_measures_of_transactions_and_redeliveries() -> None:
    history = History()
    history.add("end", "t", 10, 10, result="unknown", value="half-1", attempt=1, outcome="commit")
    history.add("end", "t", 500, 500, result="unknown", value="half-2", attempt=1, outcome="commit")
    for at, mode, offset, value in ((60, "assigned", 0, "half-1"), (2500, "assigned", 1, "half-2"), (70, "subscribed", 0, "half-1"),
                                    (90, "subscribed", 0, "half-1")):  # fmt: skip
        more = {"group": mode, "mode": mode, "queue": "q", "messages": [[offset, value, 1]]}
        history.add("poll", mode, at, at, **more)
    assert resolved_seconds(history, []) == 2.0
    assert resolved_seconds(history, [2400.0, 3000.0]) == 0.1, "counted from the last heal before it was read"
    assert consumed_again(history) == 1
