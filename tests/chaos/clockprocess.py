"""Runs a Python program whose wall clock can jump. Arguments: a switch file, then Python's own (`-m module ...` or
`script ...`).

The file holds the offset of the clock in seconds, negative when behind; without the file the clock is correct. The
offset in use is written to a file with the suffix `.ahead`. Only the wall clock changes: `time.monotonic` and file
system times stay correct.

Requirements: CHA-09.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from time import struct_time
from typing import Any, Final

LOOK_EVERY_SECONDS: Final = 0.01
_time, _time_ns, _localtime, _gmtime, _strftime = time.time, time.time_ns, time.localtime, time.gmtime, time.strftime


class Clock:
    def __init__(self, switch: str) -> None:
        self._switch = Path(switch)
        self._ahead_seconds = 0
        self._look_again = 0.0

    def ahead_seconds(self) -> int:
        """The current offset, re-read every LOOK_EVERY_SECONDS; a half-written file changes nothing."""
        now = time.monotonic()
        if now >= self._look_again:
            self._look_again = now + LOOK_EVERY_SECONDS
            before = self._ahead_seconds
            try:
                self._ahead_seconds = int(self._switch.read_text())
            except FileNotFoundError:
                self._ahead_seconds = 0
            except ValueError:
                pass
            if self._ahead_seconds != before:
                Path(f"{self._switch}.ahead").write_text(str(self._ahead_seconds))
        return self._ahead_seconds

    def time(self) -> float:
        return _time() + self.ahead_seconds()

    def time_ns(self) -> int:
        return _time_ns() + self.ahead_seconds() * 1_000_000_000

    def install(self) -> None:
        stand_ins: dict[str, Any] = {
            "time": self.time,
            "time_ns": self.time_ns,
            "localtime": OfNow(self, _localtime),
            "gmtime": OfNow(self, _gmtime),
            "strftime": lambda form, at=None: _strftime(form, time.localtime() if at is None else at),
        }
        for name, stand_in in stand_ins.items():
            setattr(time, name, stand_in)


class OfNow:
    """A time function that defaults to this clock's time. Not a plain function, because logging stores it as a class attribute."""

    def __init__(self, clock: Clock, broken_down: Callable[[float], struct_time]) -> None:
        self._clock = clock
        self._broken_down = broken_down

    def __call__(self, seconds: float | None = None) -> struct_time:
        return self._broken_down(self._clock.time() if seconds is None else seconds)


def main(switch: str, program: list[str]) -> None:
    Clock(switch).install()
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path.insert(0, str(Path(program[0]).parent))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
