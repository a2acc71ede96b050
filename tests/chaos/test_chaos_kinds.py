"""The same faults on other kinds of servers, long runs only: plain brokers, groups of five.

Short runs, also with Apache's members: tests/interop/test_interop_chaos.py. chaosrun.py lists the environment
variables of `make chaos`.

Requirements: CHA-10.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from chaosbrokers import FiveBrokers, PlainBroker, PlainSyncBroker
from chaosfaults import FIVE
from chaosrun import LONG, RUN_SECONDS_MAX, long_run, tell

OTHERS = {
    "plain, ASYNC_FLUSH": (PlainBroker, ("fixed-kill", "fixed-suspend", "clock-jump")),
    "plain, SYNC_FLUSH": (PlainSyncBroker, ("fixed-kill", "fixed-suspend")),
    "five members": (FiveBrokers, ("minor-kill", "leader-partition", *FIVE)),
}
CASES = [(kind, name) for kind, (_, names) in OTHERS.items() for name in names if name in LONG]


@pytest.mark.skipif(not LONG, reason="make chaos")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("CHA-10")
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_plain_brokers_and_groups_of_five_lose_nothing(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = long_run(name, tmp_path, OTHERS[kind][0], kind, *(("G01", "G07") if kind == "five members" else ("G07",)))
    tell(capsys, f"{kind}, {name}", found)
    assert found["acknowledged"] > 0
