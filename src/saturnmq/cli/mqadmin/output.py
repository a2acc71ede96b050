"""Printing of admin commands: the text of mqadmin, tables on a terminal, JSON on demand.

A command calls `line` and `table`; which form they take is decided here. Names and bodies come from the network: control and
bidirectional characters are escaped in text.

Requirements: ADM-05, ADM-11, CLI-02.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from saturnmq.cli.output import emit, show, warn, without_exception_name, write
from saturnmq.escaping import escaped

if TYPE_CHECKING:
    from saturnmq.admin import Admin
    from saturnmq.cli.mqadmin.options import AdminOptions
    from saturnmq.protocol.errors import SaturnError

_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_TIME: Final = "%Y-%m-%d %H:%M:%S"
_LATEST_MS: Final = 253_402_000_000_000  # in the year 9999


@dataclass(frozen=True)
class Time:
    """A point in time, Unix ms. Text: local time, or `absent` for 0. JSON: raw ms, and ISO 8601 UTC beside it.

    millis: whether the text has milliseconds.
    """

    ms: int
    absent: str = ""
    millis: bool = True

    def __str__(self) -> str:
        if not 0 < self.ms <= _LATEST_MS:
            return str(self.ms) if self.ms > 0 else self.absent
        text = datetime.fromtimestamp(self.ms // 1000).strftime(_TIME)
        return f"{text},{self.ms % 1000:03d}" if self.millis else text

    @property
    def iso(self) -> str | None:
        """ISO 8601 in UTC; None for 0 and for what is no time."""
        if not 0 < self.ms <= _LATEST_MS:
            return None
        return datetime.fromtimestamp(self.ms / 1000, UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Shown:
    """A cell whose text differs from its JSON value."""

    text: str
    value: Any

    def __str__(self) -> str:
        return self.text


@contextmanager
def frame(repeats: bool) -> Iterator[None]:
    """Print a listing that repeats on a terminal in place, by one write: without scrolling and without flicker."""
    stdout = sys.stdout
    if not repeats or not stdout.isatty():
        yield
        return
    held = _Held()
    sys.stdout = held
    try:
        yield
    finally:
        sys.stdout = stdout
        text = held.getvalue().replace("\n", f"{_CLEAR_LINE}\n")
        stdout.write(f"{_HOME}{text}{_CLEAR_BELOW}")
        stdout.flush()


class _Held(StringIO):
    """Text for a terminal that is printed later."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Call:
    """One run of a command, the argument of its function: its options, the administration library, and where to print."""

    options: AdminOptions
    admin: Admin
    out: AdminOutput


class AdminOutput:
    """The output of one command. as_json: rows are collected and printed as one document by `finish`.

    dry_run: nothing is changed, so `change_line` is silent. problems: how many were reported.
    """

    def __init__(self, command: str, *, as_json: bool = False, dry_run: bool = False) -> None:
        self._command = command
        self.as_json = as_json
        self.dry_run = dry_run
        self.problems = 0
        self._rows: list[dict[str, Any]] = []
        self._more: dict[str, Any] = {}
        self._open = False
        self._reported = ""  # the problems reported

    def line(self, text: str = "", *, end: str = "\n", **fields: Any) -> None:
        """Print a line of text; in JSON the fields, if any, are one row. end: "" where mqadmin does not end the line."""
        if not self.as_json:
            write(escaped(text), end)
            self._open = not end
        elif fields:
            self._rows.append(_json_row(fields))

    def block(self, text: str, **fields: Any) -> None:
        """As `line`, for a text of several lines that may hold tabs."""
        for line in () if self.as_json else text.split("\n"):
            write("\t".join(map(escaped, line.split("\t"))))
        if self.as_json and fields:
            self._rows.append(_json_row(fields))

    def change_line(self, text: str, *, end: str = "\n", **fields: Any) -> None:
        """As `line`, for the sentence that reports a change; silent in a dry run."""
        if not self.dry_run:
            self.line(text, end=end, **fields)

    def problem(self, text: str) -> None:
        """Report on stderr what failed; the command goes on, and its exit code should be a failure."""
        text = without_exception_name(text)
        self.problems += 1
        self._reported += f"{text}\n"
        warn(f"error: {escaped(text)}")

    def unanswered(self, errors: Mapping[str, SaturnError], reported_text: str = "") -> None:
        """Report brokers that did not answer and that no problem, nor `reported_text`, has named: what they have is missing."""
        for address, error in errors.items():
            if address not in self._reported and address not in reported_text:
                self.problem(f"{address}: what this broker has is missing: {error.message}")

    def summary(self, text: str, *, end: str = "\n", **fields: Any) -> None:
        """Print a line of text; in JSON the fields stand beside the rows."""
        if not self.as_json:
            write(escaped(text), end)
            self._open = not end
        else:
            self._more |= _json_row(fields)

    def table(
        self, layout: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]], *, head: str = ""
    ) -> None:
        """Print a table. layout: printf form of a line of text, as in mqadmin. columns: heading and JSON key of each.

        head: the form of the headings if it is another one.
        """
        if self.as_json:
            keys = [key for _, key in columns]
            self._rows.extend(_json_row(dict(zip(keys, row, strict=True))) for row in rows)
        elif sys.stdout.isatty():
            _on_terminal([heading.lstrip("#") for heading, _ in columns], rows)
        else:
            write(((head or layout) % tuple(heading for heading, _ in columns)).rstrip("\n"))
            for row in rows:
                cells = tuple(map(str, row))
                if not "".join(cells).isprintable():
                    cells = tuple(map(escaped, cells))
                write((layout % cells).rstrip("\n"))

    def finish(self) -> None:
        """Print the JSON document; end a line of text on a terminal."""
        self._reported = ""
        if self.as_json:
            emit(f"admin {self._command}", self._rows, **self._more)
            self._rows, self._more = [], {}
        elif self._open and sys.stdout.isatty():
            write("")
            self._open = False


def _on_terminal(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table with columns as narrow as their cells; on a terminal that is narrower still its lines wrap, and no cell is cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[escaped(str(cell)).strip() for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    if sum(widths) + 2 * len(widths) > Console(file=sys.stdout).width:
        for row in (list(headings), *cells):
            write("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    table = Table(*headings, box=None)
    for row in cells:
        table.add_row(*map(Text, row))
    show(table)


def _json_row(fields: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, Time):
            row[f"{key}_ms"], row[key] = value.ms, value.iso
        else:
            row[key] = value.value if isinstance(value, Shown) else value
    return row
