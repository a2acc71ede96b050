"""`saturnmq history`: what a history file has of a topic or a group.

Requirements: EXP-05, CLI-02.
"""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime

from saturnmq.cli.output import EXIT_DONE, EXIT_PROBLEMS, emit, show_rows, warn
from saturnmq.history.file import History, Kind, Point, Series
from saturnmq.protocol.errors import ConfigError


def run_history(args: argparse.Namespace) -> int:
    """Print the points of a series; without --topic the series that there are. Exit code 3: there is none."""
    if not args.data.is_file():
        raise ConfigError(f"{args.data} is no file; saturnmq collect writes one")
    if args.group and not args.topic:
        raise ConfigError("--group needs --topic: the progress of a group is kept by topic")
    with History(args.data) as history:
        rows = _points(history, args, int(time.time()) - args.since // 1000) if args.topic else _series(history)
    if args.json:
        emit("history", rows)
    elif rows:
        show_rows([{name: value for name, value in row.items() if name != "at_ms"} for row in rows])
    else:
        warn("no samples; saturnmq history without --topic lists what there is")
    return EXIT_DONE if rows else EXIT_PROBLEMS


def _series(history: History) -> list[dict[str, object]]:
    kinds: tuple[Kind, ...] = ("broker", "topic", "group")
    return [
        {
            "kind": series.kind,
            "cluster": series.cluster,
            "broker": series.broker,
            "topic": series.topic,
            "group": series.group,
        }
        for kind in kinds
        for series in history.series(kind)
    ]


def _points(history: History, args: argparse.Namespace, since: int) -> list[dict[str, object]]:
    kind: Kind = "group" if args.group else "topic"
    series = Series(kind, args.cluster, topic=args.topic, group=args.group or "")
    level = "lag" if args.group else "kept"
    return [_row(point, level) for point in history.read(series, since)]


def _row(point: Point, level: str) -> dict[str, object]:
    at = datetime.fromtimestamp(point.at, UTC).isoformat(timespec="seconds")
    rate = None if point.rate is None else round(point.rate, 2)
    return {
        "at": at,
        "at_ms": 1000 * point.at,
        "total": point.total,
        "rate": rate,
        level: round(point.level),
        f"{level}_peak": round(point.peak),
    }
