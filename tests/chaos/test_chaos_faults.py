"""What the faults beyond those of OpenChaos do, on a group whose processes are only recorded. Long runs inflict them on real ones.

Requirements: CHA-09.
"""

from __future__ import annotations

import asyncio
import errno
import signal
from pathlib import Path
from typing import Any

import pytest
from chaosfaults import FAULTS
from chaosgroup import Group, Member
from ledgerprocess import FaultyDisk

from saturnmq.protocol.errors import DiskFull

LEADER = "n1"
FOLLOWERS = ("n0", "n2")


class RecordedMember(Member):
    """Records what is done to the process, and when."""

    group: RecordedGroup

    async def start(self) -> None:
        self.group.record(self.name, "start")

    async def ready(self) -> None:
        self.group.record(self.name, "ready")

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.group.record(self.name, number.name)
        return 0


class RecordedGroup(Group):
    """Three members, of which one always leads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, size=3, heartbeat_ms=500, seed=1)
        self.members = {name: RecordedMember(self, name) for name in self.names}
        self.calls: list[tuple[float, str, str]] = []

    def record(self, name: str, call: str) -> None:
        self.calls.append((asyncio.get_running_loop().time(), name, call))

    async def leader(self) -> str:
        return LEADER


async def inflict(name: str, group: RecordedGroup, seconds: float) -> list[tuple[float, str, str]]:
    """The calls, each with the seconds from the begin of the fault."""
    began = asyncio.get_running_loop().time()
    await FAULTS[name](group, seconds)
    return [(round(at - began, 2), member, call) for at, member, call in group.calls]


@pytest.mark.spec("CHA-09")
async def test_flapping_cuts_and_joins_the_leader_five_times(tmp_path: Path) -> None:
    group = RecordedGroup(tmp_path)
    running = asyncio.ensure_future(inflict("flapping", group, 10.0))
    await asyncio.sleep(0.5)  # poll: virtual time
    cuts = []
    for _ in range(10):
        cuts.append(group.network.cut)
        await asyncio.sleep(1.0)  # poll: virtual time
    await running
    both_ways = {way for other in FOLLOWERS for way in ((LEADER, other), (other, LEADER))}
    assert cuts == [both_ways, set()] * 5


@pytest.mark.spec("CHA-09")
async def test_one_way_cuts_what_the_leader_sends_only(tmp_path: Path) -> None:
    group = RecordedGroup(tmp_path)
    await inflict("one-way", group, 1.0)
    assert group.network.cut == {(LEADER, other) for other in FOLLOWERS}


@pytest.mark.spec("CHA-09")
async def test_all_are_killed_while_the_leader_recovers(tmp_path: Path) -> None:
    calls = await inflict("kill-during-recovery", RecordedGroup(tmp_path), 4.0)
    assert calls[:2] == [(0.0, LEADER, "SIGKILL"), (2.0, LEADER, "start")]
    assert sorted(call[1:] for call in calls[2:]) == [(name, "SIGKILL") for name in ("n0", "n1", "n2")]
    assert all(2.0 <= at <= 2.5 for at, *_ in calls[2:]), "before it has caught up"


@pytest.mark.spec("CHA-09")
async def test_all_are_killed_at_once(tmp_path: Path) -> None:
    calls = await inflict("kill-all", RecordedGroup(tmp_path), 1.0)
    assert calls == [(0.0, name, "SIGKILL") for name in ("n0", "n1", "n2")]


@pytest.mark.spec("CHA-09")
async def test_rolling_restart_stops_a_member_once_the_one_before_is_ready(tmp_path: Path) -> None:
    calls = await inflict("rolling-restart", RecordedGroup(tmp_path), 3.0)
    steps = ("SIGTERM", "start", "ready")
    assert calls == [(float(at), name, step) for at, name in enumerate(("n0", "n1", "n2")) for step in steps]


@pytest.mark.spec("CHA-09")
async def test_clocks_of_two_members_jump_an_hour_both_ways(tmp_path: Path) -> None:
    group = RecordedGroup(tmp_path)
    running = asyncio.ensure_future(inflict("clock-jump", group, 2.0))
    ahead = []
    for _ in range(2):
        await asyncio.sleep(0.75)  # poll: virtual time
        ahead.append({name: int(group._clock_of(name).read_text()) for name in (LEADER, "n0")})
    await running
    assert ahead == [{LEADER: 3600, "n0": -3600}, {LEADER: -3600, "n0": 3600}]


@pytest.mark.spec("CHA-09")
@pytest.mark.parametrize("fault", ["full", "slow", "eio"])
async def test_disk_of_the_leader_is_full_slow_or_fails(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Waiting:
        def wait(self, seconds: float) -> None:
            waits.append(seconds)

    group = RecordedGroup(tmp_path)
    await inflict(f"disk-{fault}", group, 1.0)
    faults = tmp_path / "faults"
    assert [path.name for path in faults.iterdir()] == [f"{LEADER}.{fault}"]
    for name in (LEADER, "n0"):
        disk, path = FaultyDisk(faults / name), tmp_path / f"{name}-{fault}"
        harmed = fault if name == LEADER else ""
        outcomes: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr("ledgerprocess.threading.Event", Waiting)
            try:
                fd = disk.create(path, 4096, allocate=False)
                disk.sync(fd)
                disk.close(fd)
            except DiskFull:
                outcomes.append("full")
            except OSError as error:
                outcomes.append(error.errno)
        assert outcomes == {"full": ["full"], "eio": [errno.EIO]}.get(harmed, [])
        assert waits == ([0.3] if fault == "slow" else [])
