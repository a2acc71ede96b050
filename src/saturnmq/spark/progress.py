"""Progress of long operations: a bar on a terminal's stderr, a line every 5 s elsewhere, nothing when quiet.

Requirements: CLI-07.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_SECONDS: Final = 5.0


class ProgressReport:
    """Progress of one operation with a known or unknown total. rich honours NO_COLOR by itself."""

    def __init__(
        self,
        title: str,
        total: int | None = None,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        unit: str = "",
    ) -> None:
        self._title = title
        self._unit = unit
        self._total = total
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._completed = 0
        self._line_at = time.monotonic()

    def __enter__(self) -> Self:
        console = Console(file=self._stream)
        if not self._quiet and console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total)
        return self

    def rename(self, title: str) -> None:
        """Change the title, for the next step of the same operation."""
        self._title = title
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=title)

    def advance(self, count: int = 1) -> None:
        """Add to the amount done."""
        self.at(self._completed + count)

    def at(self, completed: int) -> None:
        """Set the completed amount."""
        self._completed = completed
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=completed)
        elif not self._quiet and time.monotonic() - self._line_at >= LINE_SECONDS:
            self._line_at = time.monotonic()
            self._write()

    def _write(self) -> None:
        of = f" of {self._total:,}" if self._total is not None else ""
        self._stream.write(f"{self._title}: {self._completed:,}{of}{f' {self._unit}' if self._unit else ''}\n")
        self._stream.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self._quiet:
            self._write()
