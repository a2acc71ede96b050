"""`saturnmq top`: brokers, topics and groups of a cluster by rate and lag, as they change.

Rates are differences of counts between two surveys. On a terminal the screen is updated; elsewhere each interval prints tables, or
one JSON document.

Requirements: CLI-02, SEC-20.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from saturnmq.admin.brokers import BrokerState
from saturnmq.admin.survey import Survey, Surveyor
from saturnmq.admin.system_names import is_system, is_system_group
from saturnmq.cli.cluster import admin_of, run
from saturnmq.cli.output import EXIT_DONE, emit, show, warn
from saturnmq.escaping import escaped
from saturnmq.protocol.errors import SaturnError

if TYPE_CHECKING:
    from rich.table import Table

TIMEOUT_MS: Final = 3000
Row = dict[str, Any]


@dataclass(frozen=True)
class TopView:
    """The content of `top`: brokers, topics by rate, groups by lag, and problems. A rate is None before the second survey."""

    brokers: list[Row]
    topics: list[Row]
    groups: list[Row]
    problems: Mapping[str, str]


def view_of(now: Survey, before: Survey | None, seconds: float, *, system: bool = False) -> TopView:
    """The view of a survey. before: the one that was taken `seconds` earlier. system: with the topics and groups of brokers."""

    def rate(total: int, then: int | None) -> float | None:
        return None if then is None or seconds <= 0 else round(max(total - then, 0) / seconds, 1)

    topics: list[Row] = []
    for key, topic in now.topics.items():
        if is_system(topic) and not system:
            continue
        then = before.topics.get(key) if before is not None else None
        per_s = rate(topic.total, then.total if then is not None else None)
        topics.append({"topic": topic.name, "messages_per_s": per_s, "total": topic.total, "kept": topic.kept})
    groups: list[Row] = []
    for key, group in now.groups.items():
        if is_system_group(group.name) and not system:
            continue
        old = before.groups.get(key) if before is not None else None
        consumed = sum(progress.total for progress in group.topics.values())
        consumed_then = sum(progress.total for progress in old.topics.values()) if old is not None else None
        row: Row = {"group": group.name, "lag": group.lag, "messages_per_s": rate(consumed, consumed_then)}
        groups.append(row | {"topics": len(group.topics)})
    topics.sort(key=lambda row: (-(row["messages_per_s"] or 0), -row["total"], row["topic"]))
    groups.sort(key=lambda row: (-row["lag"], -(row["messages_per_s"] or 0), row["group"]))
    return TopView([_broker(broker) for broker in now.brokers], topics, groups, now.problems)


def _broker(state: BrokerState) -> Row:
    def rate(key: str) -> float | None:  # of three numbers: over 10 s, 1 min, 10 min
        value = state.first_number(key)
        return None if value is None else round(value, 1)

    disk = state.first_number("commitLogDiskRatio")
    return {
        "broker": f"{state.name}/{state.number}",
        "address": state.address,
        "in_per_s": rate("putTps"),
        "out_per_s": rate("getTransferedTps"),
        "disk_percent": None if disk is None else round(disk * 100),
        "version": state.runtime.get("brokerVersionDesc"),
        "problem": state.problem or None,
    }


def run_top(args: argparse.Namespace) -> int:
    """Show the view every --interval until Ctrl-C; with --once two surveys and one view."""
    interval = args.interval / 1000

    async def main() -> int:
        async with admin_of(args, timeout_ms=TIMEOUT_MS) as admin:
            surveyor = Surveyor(admin.connection)
            if args.once or args.json or not sys.stdout.isatty():
                await _print(surveyor, interval, args)
            else:
                await _live(surveyor, interval, args)
        return EXIT_DONE

    return run(main, args)


class _Watch:
    """Takes surveys one after the other; each view has the rates since the one before."""

    def __init__(self, surveyor: Surveyor, *, system: bool) -> None:
        self._surveyor = surveyor
        self._system = system
        self._last: Survey | None = None
        self._at = 0.0

    async def view(self) -> TopView:
        """The next view. Raises SaturnError if no NameServer answers."""
        survey, at = await self._surveyor.survey(), time.monotonic()
        view = view_of(survey, self._last, at - self._at, system=self._system)
        self._last, self._at = survey, at
        return view


async def _print(surveyor: Surveyor, interval: float, args: argparse.Namespace) -> None:
    watch = _Watch(surveyor, system=args.system)
    await watch.view()
    while True:
        await asyncio.sleep(min(interval, 1.0) if args.once else interval)
        view = await watch.view()
        if args.json:
            rows = [{"kind": "broker"} | row for row in view.brokers]
            rows += [{"kind": "topic"} | row for row in view.topics[: args.rows]]
            rows += [{"kind": "group"} | row for row in view.groups[: args.rows]]
            emit("top", rows, problems=dict(view.problems))
        else:
            for table in _tables(view, args.rows):
                show(table)
            for subject, text in view.problems.items():
                warn(f"warning: {escaped(f'{subject}: {text}')}")
        if args.once:
            return


async def _live(surveyor: Surveyor, interval: float, args: argparse.Namespace) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    watch = _Watch(surveyor, system=args.system)
    view = await watch.view()
    with Live(screen=True, auto_refresh=False) as live:
        problem = ""
        while True:
            height = max((live.console.height - len(view.brokers) - 8) // 2, 3)
            notes = [f"{subject}: {text}" for subject, text in view.problems.items()][:3]
            head = Text(escaped(f"{time.strftime('%H:%M:%S')}  {problem}"))
            tables = _tables(view, min(height, args.rows))
            live.update(Group(head, *tables, Text(escaped("  ".join(notes)))), refresh=True)
            await asyncio.sleep(interval)
            try:
                view, problem = await watch.view(), ""
            except SaturnError as error:
                problem = str(error)


def _tables(view: TopView, rows_max: int) -> list[Table]:
    """A table of each kind; names come from the cluster, so they are escaped and not read as markup."""
    from rich.table import Table
    from rich.text import Text

    tables = []
    for rows in (view.brokers, view.topics[:rows_max], view.groups[:rows_max]):
        if not rows:
            continue
        table = Table(box=None)
        for name in rows[0]:
            numeric = any(isinstance(row[name], int | float) for row in rows)
            table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(_cell(value)) for value in row.values()))
        tables.append(table)
    return tables


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float):
        return f"{value:,}"
    return escaped(str(value))
