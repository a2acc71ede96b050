"""One run of a group under faults: load, schedule, checks, measurements.

Environment, set by `make chaos`: CHAOS_SECONDS=60 for each fault, CHAOS_FAULT=name for one of them, CHAOS_SEED=n, CHAOS_RATE=n
sends per second, CHAOS_KEEP=folder for histories, logs and stores, CHAOS_SLAVE_READ=true or false for slaveReadEnable of all groups
of brokers, otherwise about half of the tests run with each value. Bounds that are no promise are generous (DEADLINE_SECONDS): a
busy machine makes a run slow, not wrong. What is promised is read from the history.

Requirements: CHA-03, CHA-05, CHA-08, CHA-11.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from chaosdamage import FAULTS_OF_GOALS
from chaosfaults import FAULTS, FAULTS_OF_PAIRS, FIVE, faults_asked_for
from chaosgroup import DEADLINE_SECONDS, Group, failovers
from chaosproxy import pause

from harness.gate.goals import Row, rows
from harness.history.check import Report, check
from harness.history.operations import OK, History

SECONDS = float(os.environ.get("CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
RATE = float(os.environ.get("CHAOS_RATE", "1000"))
ONLY = os.environ.get("CHAOS_FAULT")
KEEP = os.environ.get("CHAOS_KEEP")
MODEL = os.environ.get("CHAOS_MODEL")  # tx: only ordered and transactional load
PEER = os.environ.get("CHAOS_PEER")  # java: the same faults on groups of Apache and of ours
WANTED = faults_asked_for(ONLY, SECONDS)
LONG = WANTED if MODEL is None and PEER is None else []
HEARTBEAT_MS, SHORT_HEARTBEAT_MS = 500, 200
CAUGHT_UP_SECONDS = 10.0  # CHA-08
STEPS = 4  # of a run that may take DEADLINE_SECONDS each: start, catch-up, late messages, final polls
RUN_SECONDS_MAX = int(STEPS * DEADLINE_SECONDS + 10 * SECONDS + 120)


@dataclass
class Schedule:
    """Executed faults, in ms of the history's clock: (fault, begin, healed, whether service was down until the heal)."""

    seed: int
    done: list[tuple[str, float, float, bool]] = field(default_factory=list)

    def recoveries(self) -> list[tuple[float, float]]:
        return [(begin, healed if down else begin) for _, begin, healed, down in self.done]


async def inflict(group: Group, names: Sequence[str], healthy: float, faulty: float, schedule: Schedule) -> float:
    """Alternate load and faults, then stop both. Returns the seconds until all members held everything acknowledged."""
    async with asyncio.TaskGroup() as clients:
        for client in group.load(RATE):
            clients.create_task(client)
        await pause(healthy)
        for name in names:
            begin = group.now()
            down = await (FAULTS | FAULTS_OF_PAIRS | FAULTS_OF_GOALS)[name](group, faulty)
            await group.heal()
            schedule.done.append((name, begin, group.now(), down))
            group.history.add("switch", "harness", begin, group.now())
            await pause(healthy)
        began = group.now()
        group.loading = False
        await group.leader()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await group.all_equal()
    caught_up = (group.now() - began) / 1000
    await group.settled()
    return caught_up


async def run(group: Group, names: Sequence[str], healthy: float, faulty: float) -> dict[str, Any]:
    """A complete run with all checks. Returns the measurements."""
    schedule = Schedule(SEED)
    seconds = 2 * len(names) * (healthy + faulty) + STEPS * DEADLINE_SECONDS
    stuck = asyncio.get_running_loop().call_later(seconds - 5, write_tasks, group.folder / "tasks.txt")
    gc.disable()  # a full collection over the history takes a second, in which the proxies of all members stop
    try:
        async with asyncio.timeout(seconds):
            await group.start()
            caught_up = await inflict(group, names, healthy, faulty, schedule)
            if group.reads_while_running:
                await group.final_polls()
    finally:
        stuck.cancel()
        gc.enable()
        codes = await group.stop()
        write_down(group, schedule)
    assert set(codes) <= group.ends_with, codes
    group.check_ledgers()
    if not group.reads_while_running:
        await group.final_polls()
    report = check(group.history)
    write_down(group, schedule)
    found = measured(group, schedule, report, caught_up)
    rows.last = found
    said = [text for text in found["problems"] if not text.startswith(group.excused)]
    assert said == [], f"seed {SEED}, {names}: what was recorded lies in {group.folder}"
    assert found_without_one_message(group.history, report)
    return found


async def a_run(
    folder: Path, names: Sequence[str], healthy: float, faulty: float, beat_ms: int, kind: type[Group] = Group
) -> dict[str, Any]:
    size = kind.size or (5 if names[0] in FIVE else 3)
    group = kind(folder, size=size, heartbeat_ms=beat_ms, seed=SEED)
    return await run(group, names, healthy, faulty)


def write_tasks(path: Path) -> None:
    """Write the stacks of all tasks, for a run that does not end."""
    with path.open("w") as file:
        for task in asyncio.all_tasks():
            task.print_stack(limit=6, file=file)


def write_down(group: Group, schedule: Schedule) -> None:
    group.history.write(group.folder / "history.jsonl")
    (group.folder / "schedule.json").write_text(json.dumps({"seed": schedule.seed, "done": schedule.done}))


def found_without_one_message(history: History, report: Report) -> bool:
    """Remove one acknowledged message from all reads: the checker must report it as lost, besides those in the report."""
    acked = next(op for op in history if op["op"] == "send" and op["result"] == OK and op["messages"][0][1] is not None)
    gone = acked["messages"][0][1]
    without = [
        op
        if op["op"] != "poll" or op["queue"] != acked["queue"]
        else {**op, "messages": [one for one in op["messages"] if one[0] != gone]}
        for op in history
    ]
    return check(without).found["lost-write"] == report.found["lost-write"] + 1


def measured(group: Group, schedule: Schedule, report: Report, caught_up: float) -> dict[str, Any]:
    sends = [op for op in group.history if op["op"] == "send"]
    seconds = (sends[-1]["end"] - sends[0]["begin"]) / 1000
    return {
        "sends": len(sends),
        "acknowledged": report.counts["messages acknowledged"],
        "problems": [str(problem) for problem in report.problems],
        "found": dict(report.found),
        "unknown": report.counts["sends unknown"],
        "failed": report.counts["sends fail"],
        "lost": report.found["lost-write"] + report.found["unseen"],
        "again": report.counts["stored again by a retry"],
        "late": report.counts["delayed, delivered again"],
        "per_second": report.counts["messages acknowledged"] / seconds,
        "rto_ms": failovers(group.history, schedule.recoveries()),
        "caught_up_s": caught_up,
        "consumed_again": consumed_again(group.history),
        "resolved_s": resolved_seconds(group.history, [healed for _, _, healed, _ in schedule.done]),
        **group.counts,
    }


def consumed_again(history: History) -> int:
    """Messages that a member of a group got again, without having been restarted itself."""
    seen: set[tuple[str, str, int]] = set()
    again = 0
    for op in history:
        if op["op"] == "poll" and op["mode"] == "subscribed":
            places = {(op["process"], op["queue"], offset) for offset, _, _ in op["messages"]}
            again += len(places & seen)
            seen |= places
    return again


def resolved_seconds(history: History, heals: Sequence[float]) -> float:
    """The longest time from the commit of a half message, or from the last heal before it was read, until it was read."""
    commits, read = {}, {}
    for op in history:
        if op["op"] == "end" and op["outcome"] == "commit":
            commits[op["value"]] = op["begin"]
        elif op["op"] == "poll" and op["mode"] == "assigned":
            for _, value, _ in op["messages"]:
                if value in commits:
                    read.setdefault(value, op["end"])
    waited = (at - max([commits[value], *(heal for heal in heals if heal <= at)]) for value, at in read.items())
    return max(waited, default=0.0) / 1000


def children() -> set[int]:
    """The processes below this one: a run leaves none, but what earlier tests started may end meanwhile."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def phases(seconds: float) -> tuple[int, float]:
    """Number and duration of the alternating healthy and faulty phases."""
    phase = min(15.0, seconds / 4)
    return max(int(seconds / (2 * phase)), 1), phase


def long_run(name: str, folder: Path, kind: type[Group], label: str, *goals: str) -> dict[str, Any]:
    """Run a fault for CHAOS_SECONDS, alternating healthy and faulty phases (CHA-03).

    label: what kind of servers the table of this session calls them; goals: to which of section 9 the run counts.
    """
    rounds, phase = phases(SECONDS or 60.0)
    try:
        with rows.one(label, name, goals):
            return asyncio.run(a_run(folder / "run", [name] * rounds, phase, phase, HEARTBEAT_MS, kind))
    finally:
        if KEEP is not None:
            shutil.copytree(folder / "run", Path(KEEP) / f"{kind.__name__}-{name}", dirs_exist_ok=True)


def check_promise(holds: bool, why: str) -> None:
    """Assert a promise that the history does not show; the row of the last run says why it failed."""
    if not holds:
        rows.fail(why)
    assert holds, why


def tell(capsys: pytest.CaptureFixture[str], name: str, found: dict[str, Any]) -> None:
    """Print one line for a run at once; the tables come at the end of the session."""
    readable = ", slaveReadEnable" if found.get("slave_read_enable") else ""
    with capsys.disabled():
        print(f"\n{name}{readable}: {Row.of(name, '', (), found).line()}")
