"""Histories: what clients did to a broker and what they saw, one JSON object per line.

Times are milliseconds of one clock: begin when the call was made, end when it returned. `queue` is a name chosen by the
recorder ("topic/broker/0"); names that begin with %RETRY% or %DLQ% hold copies. An append is identified by value and
attempt (CHA-05).

op      members besides op, process, begin, end
send    result, attempt, messages [[value, offset or null]...], queue or null; key, deliver_at, half where they apply
end     result, value, attempt, outcome: commit or rollback of a half message
poll    group, queue, mode (assigned, subscribed, final), messages [[offset, value, attempt]...]; ordered
assign  the process got other queues, sought, or restarted: its next poll may begin anywhere
switch  another broker became the master
offset  group, queue, offset: the committed offset, as read from the broker
reset   group, queue: the committed offset was set explicitly
position  queue, kind, offset: where a broker said that the queue begins or ends, by kind: min, max, by time, or the next
        offset after a pull that it answered with another one than was asked for
dead    group, value, attempt: delivered as often as the group allows, without success

A history is closed by polls of mode `final` from the first offset of each queue to its end.

Requirements: CHA-05, CHA-06, CHK-01..CHK-16.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

Operation: TypeAlias = Mapping[str, Any]

OK: Final = "ok"
FAIL: Final = "fail"  # certainly not stored
UNKNOWN: Final = "unknown"  # may be stored, now or later
RESULTS: Final = (OK, FAIL, UNKNOWN)

_OK_CODES: Final = frozenset({0})
_FAIL_CODES: Final = frozenset({2, 3, 13, 14, 16, 17})  # rejected before anything was written


class HistoryError(ValueError):
    """Not a history: a line that cannot be parsed, or that contradicts an earlier line."""


def result_of(code: int | None, *, refused: bool = False) -> str:
    """The result of a send by its response code (CHA-06). None: no response; refused: the connection was never established.

    Code 1 is unknown: a broker with a replicated log returns it for entries that may still be committed.
    """
    if code is None:
        return FAIL if refused else UNKNOWN
    if code in _OK_CODES:
        return OK
    return FAIL if code in _FAIL_CODES else UNKNOWN


class History:
    """Operations in memory, in the order in which they ended."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        self.operations: list[Operation] = list(operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)

    def add(self, op: str, process: str, begin: float, end: float, **members: Any) -> None:
        """Record one operation; members that are None are omitted."""
        made: dict[str, Any] = {"op": op, "process": process, "begin": begin, "end": end}
        made.update((name, value) for name, value in members.items() if value is not None)
        self.operations.append(made)

    def write(self, path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            for operation in self.operations:
                file.write(json.dumps(operation, separators=(",", ":")) + "\n")


def read_history(path: Path) -> Iterator[Operation]:
    """Yield one operation per line. Raises HistoryError with the line number, OSError."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                operation = json.loads(line)
            except ValueError as error:
                raise HistoryError(f"{path}:{number}: {error}") from error
            if not isinstance(operation, dict):
                raise HistoryError(f"{path}:{number}: not an object")
            yield operation
