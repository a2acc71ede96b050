"""Histories: what clients did to a broker and what they saw, one JSON object per line. Source: spec 07 sections 3 and 4.

Times are milliseconds of one clock, begin when the call was made, end when it returned. `queue` is a name chosen by whoever
records ("topic/broker/0"); names that begin with %RETRY% or %DLQ% hold copies. An append is known by value and attempt (CHA-05).

  op      members besides op, process, begin, end
  send    result, attempt, messages [[value, offset or null]...], queue or null; key, deliver_at, half where they apply
  end     result, value, attempt, outcome: commit or rollback of a half message
  poll    group, queue, mode (assigned, subscribed, final), messages [[offset, value, attempt]...]; ordered
  assign  the process got other queues, sought, or started anew: its next poll may begin anywhere
  switch  another broker became the master
  offset  group, queue, offset: the committed offset, as read from the broker
  reset   group, queue: somebody set the committed offset
  dead    group, value, attempt: delivered as often as the group allows, without success

A history is closed by polls of mode `final` from the first offset of each queue to its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

Operation: TypeAlias = Mapping[str, Any]

OK: Final = "ok"
FAIL: Final = "fail"  # certainly not stored
UNKNOWN: Final = "unknown"  # stored or not, now or later
RESULTS: Final = (OK, FAIL, UNKNOWN)

_OK_CODES: Final = frozenset({0})
_FAIL_CODES: Final = frozenset({2, 3, 13, 14, 16, 17})  # refused before anything was written


class HistoryError(ValueError):
    """Not a history: a line that cannot be read, or one that contradicts an earlier one in what was done."""


def result_of(code: int | None, *, refused: bool = False) -> str:
    """What a response code says about a send (CHA-06). None: no answer; refused: the connection never came about.

    1 is unknown: a broker with a replicated log says it for entries that may still be committed.
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
        """Record one operation; members that are None are left out."""
        made: dict[str, Any] = {"op": op, "process": process, "begin": begin, "end": end}
        made.update((name, value) for name, value in members.items() if value is not None)
        self.operations.append(made)

    def write(self, path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            for operation in self.operations:
                file.write(json.dumps(operation, separators=(",", ":")) + "\n")


def read_history(path: Path) -> Iterator[Operation]:
    """One operation per line, as it is read. Raises HistoryError with the line's number, OSError."""
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
