"""Printing of admin commands: the text of mqadmin, tables on a terminal, JSON on demand.

A command calls `line` and `table`; which form they take is decided here. Names and bodies come from the network: control and
bidirectional characters are escaped in text.

Requirements: ADM-05, ADM-11, CLI-02.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from saturnmq.cli.output import emit, show, write
from saturnmq.escaping import escaped

_TIME: Final = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class Time:
    """A point in time, Unix ms. Text: local time with milliseconds, or `absent` for 0. JSON: raw ms, and ISO 8601 UTC beside it."""

    ms: int
    absent: str = ""

    def __str__(self) -> str:
        if self.ms <= 0:
            return self.absent
        return datetime.fromtimestamp(self.ms / 1000).strftime(_TIME) + f",{self.ms % 1000:03d}"

    @property
    def iso(self) -> str | None:
        """ISO 8601 in UTC; None for 0."""
        return datetime.fromtimestamp(self.ms / 1000, UTC).isoformat(timespec="milliseconds") if self.ms > 0 else None


@dataclass(frozen=True)
class Shown:
    """A cell whose text differs from its JSON value."""

    text: str
    value: Any

    def __str__(self) -> str:
        return self.text


class Output:
    """What one command prints. as_json: rows are collected and printed as one document by `finish`."""

    def __init__(self, command: str, *, as_json: bool = False) -> None:
        self._command = command
        self.as_json = as_json
        self._rows: list[dict[str, Any]] = []
        self._more: dict[str, Any] = {}

    def line(self, text: str = "", *, end: str = "\n", **fields: Any) -> None:
        """Print a line of text; in JSON the fields, if any, are one row. end: "" where mqadmin does not end the line."""
        if not self.as_json:
            write(escaped(text), end)
        elif fields:
            self._rows.append(_json_row(fields))

    def summary(self, text: str, *, end: str = "\n", **fields: Any) -> None:
        """Print a line of text; in JSON the fields stand beside the rows."""
        if not self.as_json:
            write(escaped(text), end)
        else:
            self._more |= _json_row(fields)

    def table(self, layout: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]) -> None:
        """Print a table. layout: printf form of a line of text, as in mqadmin. columns: heading and JSON key of each."""
        if self.as_json:
            keys = [key for _, key in columns]
            self._rows.extend(_json_row(dict(zip(keys, row, strict=True))) for row in rows)
        elif sys.stdout.isatty():
            self._rich(columns, rows)
        else:
            write((layout % tuple(heading for heading, _ in columns)).rstrip("\n"))
            for row in rows:
                write((layout % tuple(escaped(str(cell)) for cell in row)).rstrip("\n"))

    def finish(self) -> None:
        """Print the JSON document."""
        if self.as_json:
            emit(f"admin {self._command}", self._rows, **self._more)
            self._rows, self._more = [], {}

    def _rich(self, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(*(heading.lstrip("#") for heading, _ in columns), box=None)
        for row in rows:
            table.add_row(*(Text(escaped(str(cell))) for cell in row))
        show(table)


def _json_row(fields: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, Time):
            row[f"{key}_ms"], row[key] = value.ms, value.iso
        else:
            row[key] = value.value if isinstance(value, Shown) else value
    return row
