"""The tables and goal lines of runs with faults: a broken promise is a FAILED, and a failed run is in its table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.gate.goals import Row, Rows, goals_of, tables


def measured(**given: object) -> dict[str, object]:
    nothing = {"sends": 10, "acknowledged": 9, "unknown": 1, "failed": 0, "lost": 0, "again": 0, "consumed_again": 0,
               "caught_up_s": 0.5, "resolved_s": 1.0, "rto_ms": [1000.0, 0.0], "found": {}}  # fmt: skip
    return {**nothing, **given}


def row(kind: str, *goals: str, fault: str = "leader-kill", **given: object) -> Row:
    return Row.of(kind, fault, goals, measured(**given))


def lines(*rows: Row) -> Sequence[str]:
    return [str(goal) for goal in goals_of(rows)]


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({}, "ok"),
        ({"lost": 1, "found": {"lost-write": 1}}, "FAILED"),
        ({"found": {"key-order": 1}}, "FAILED"),
        ({"found": {"duplicate": 1}}, "FAILED"),
        ({"rto_ms": [7000.0]}, "FAILED"),
        ({"rto_ms": [3500.0]}, "FAILED"),
    ],
)
def test_group_goal_fails_with_each_broken_promise(given: dict[str, object], verdict: str) -> None:
    assert lines(row("group", "G01", **given))[0].endswith(f": {verdict}")


def test_transaction_goal_bounds_resolution_and_deliveries() -> None:
    assert lines(row("tx", "G09", resolved_s=59.0))[0].endswith(": ok")
    assert lines(row("tx", "G09", resolved_s=61.0))[0].endswith(": FAILED")
    assert lines(row("tx", "G09", found={"G1a": 1}))[0].endswith(": FAILED")


def test_goal_beside_apache_compares_fault_by_fault() -> None:
    ours, theirs = row("ours", "G08", rto_ms=[2000.0]), row("Apache 4.9.7", "G08", rto_ms=[7000.0])
    assert lines(ours, theirs)[0].endswith("better or equal in each: ok")
    slow, fast = row("ours", "G08", rto_ms=[7000.0]), row("Apache 4.9.7", "G08", rto_ms=[2000.0])
    assert "leader-kill: RTO 7000 > 2000" in lines(slow, fast)[0]
    assert lines(ours)[0].endswith(": FAILED"), "nothing was compared"


def test_failed_run_stays_in_table_and_fails_its_goals() -> None:
    rows = Rows()
    with pytest.raises(AssertionError, match="lost"), rows.one("group", "kill-all", ("G01", "G07")):
        rows.last = measured(sends=77)
        raise AssertionError("one lost | message")
    with rows.one("group", "noop", ("G01",)):
        rows.last = measured()
    table = {line.split()[1]: line for line in tables(rows.all) if line.startswith("| ")}
    assert table["kill-all"].startswith("| kill-all | 77 |")
    assert table["kill-all"].endswith("FAILED: AssertionError one lost / message |")
    assert table["noop"].endswith("| ok |")
    assert all(line.endswith(": FAILED") for line in lines(*rows.all))
