"""Progress of a command on stderr: a bar on a terminal, a line every 5 s elsewhere, nothing with --quiet or --json.

rich is imported at the first second of an operation, so that a short one starts fast.

Requirements: CLI-07.
"""

from __future__ import annotations

import argparse
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from saturnmq.spark.progress import ProgressReport

FIRST_SECONDS: Final = 1.0


class CommandProgress:
    """Reports how much is done, from the first second on."""

    def __init__(
        self, title: str, args: argparse.Namespace, *, total: int | None = None, unit: str = "messages"
    ) -> None:
        self._title = title
        self._total = total
        self._unit = unit
        self._silent = bool(args.quiet or args.json)
        self._report: ProgressReport | None = None
        self._from = time.monotonic() + FIRST_SECONDS

    def __enter__(self) -> Self:
        return self

    def at(self, amount: int) -> None:
        """Set the amount done."""
        if self._report is not None:
            self._report.at(amount)
        elif not self._silent and time.monotonic() >= self._from:
            from saturnmq.spark.progress import ProgressReport

            self._report = ProgressReport(self._title, self._total, unit=self._unit).__enter__()
            self._report.at(amount)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._report is not None:
            self._report.__exit__(kind, error, trace)
