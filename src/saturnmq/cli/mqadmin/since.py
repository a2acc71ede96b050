"""`consumerProgress --since`: how lag and consumption of groups changed, from the history file of a collector.

Requirements: EXP-05, C-37.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from saturnmq.cli.mqadmin.options import WrongOptions
from saturnmq.cli.mqadmin.output import Call, Shown, Time
from saturnmq.protocol.errors import SaturnError

if TYPE_CHECKING:
    from saturnmq.history.progress import Baseline, GroupChange
    from saturnmq.protocol.bodies import ConsumeStats

DEFAULTS: Final = (Path("history.db"), Path("console") / "history.db")
LAYOUT: Final = "  %-19s  %-10s  %-10s  %-10s  %s"
COLUMNS: Final = (
    ("#Since", "since"), ("#Diff Then", "diff_then"), ("#Consumed", "consumed"), ("#Produced", "produced"),
    ("#Catch Up", "catch_up_seconds"),
)  # fmt: skip
_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def baseline_of(call: Call) -> Baseline | None:
    """The baseline that --since compares with, None without the option. Raises WrongOptions, SaturnError if there is no history."""
    text = call.options.text("since")
    if not text:
        if "history" in call.options:
            raise WrongOptions("--history belongs to --since")
        return None
    from saturnmq.config.settings import parse_duration_ms
    from saturnmq.history import Baseline, History

    try:
        seconds = parse_duration_ms(text) / 1000
    except ValueError as error:
        raise WrongOptions(f"--since {text!r:.40} {error}") from None
    path = _file(call.options.text("history"))
    since = int(time.time() - seconds)
    with History(path) as history:
        baseline = Baseline.read(history, max(since, 0))
    if not baseline:
        raise SaturnError(
            f"{path} has no sample of a group in the last {text}; does its collector run?", hint=_start(path)
        )
    return baseline


def _file(named: str) -> Path:
    candidates = (Path(named),) if named else DEFAULTS
    for path in candidates:
        if path.is_file():
            return path
    where = " or ".join(map(str, candidates))
    raise SaturnError(
        f"--since needs the history of the cluster, and there is no file {where}", hint=_start(candidates[0])
    )


def _start(path: Path) -> str:
    return f"saturnmq collect -n NAMESERVERS --data {path} writes it once a minute, as saturnmq console does; --history FILE"


def change_of(baseline: Baseline, group: str, progress: ConsumeStats | None) -> GroupChange | None:
    """The change of a group with these offsets; None if the history does not have it."""
    from saturnmq.history import Now

    if progress is None:
        return None
    now: dict[str, Now] = {}
    for queue, offsets in progress.offset_table.items():
        before = now.get(queue.topic, Now(0, 0))
        behind = max(offsets.broker_offset - offsets.consumer_offset, 0)  # as the collector counts it
        now[queue.topic] = Now(before.consumed + offsets.consumer_offset, before.lag + behind)
    return baseline.change(group, now, time.time())


def cells(change: GroupChange | None) -> tuple[object, ...]:
    """The cells of COLUMNS."""
    if change is None:
        return tuple(Shown("N/A", None) for _ in COLUMNS)
    return (
        Time(change.at * 1000, millis=False), change.lag_before, change.consumed, change.produced, catch_up(change),
    )  # fmt: skip


def catch_up(change: GroupChange) -> Shown:
    """The estimated time until the group has consumed all, such as 2h 5min; JSON: seconds, null for never."""
    seconds = change.catch_up_seconds
    if seconds is None:
        return Shown("never at these rates", None)
    remaining_seconds, parts = round(seconds), []
    for unit, size in _UNITS:
        if remaining_seconds >= size:
            parts.append(f"{remaining_seconds // size}{unit}")
            remaining_seconds %= size
    return Shown(" ".join(parts[:2]) or "0s", round(seconds, 1))
