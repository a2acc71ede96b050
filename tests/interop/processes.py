"""Server processes under test: start, wait for the ready line, measure, stop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ServerProcess:
    """A child process whose output a thread reads line by line, so that it never blocks on a full pipe."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bool = False,
    ) -> None:
        self.name = name
        self.lines: list[str] = []
        self.started_s = time.monotonic()
        self.ready_s: float | None = None
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        with self._changed:
            return "\n".join(self.lines)

    def wait_for_line(self, pattern: str, timeout_s: float, *, after: int = 0) -> re.Match[str]:
        """The first match in a line from number `after` on. Raises RuntimeError at the end of the process or at the deadline."""
        compiled = re.compile(pattern)
        deadline = time.monotonic() + timeout_s
        at = after
        with self._changed:
            while True:
                while at < len(self.lines):
                    match = compiled.search(self.lines[at])
                    at += 1
                    if match:
                        return match
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    why = f"ended with {self.process.poll()}" if self._ended else f"no {pattern!r} in {timeout_s} s"
                    raise RuntimeError(f"{self.name} {why}; it said:\n" + "\n".join(self.lines[-60:]))
                self._changed.wait(left)

    def wait_ready(self, pattern: str, timeout_s: float = 60.0) -> re.Match[str]:
        """As wait_for_line; also records how long the start took (`ready_s`, seconds)."""
        match = self.wait_for_line(pattern, timeout_s)
        self.ready_s = time.monotonic() - self.started_s
        return match

    def say(self, line: str) -> int:
        """Write a line to the process's stdin; returns the number of output lines before its response."""
        assert self.process.stdin is not None
        with self._changed:
            before = len(self.lines)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return before

    def cpu_s(self) -> float:
        """CPU seconds, user and system, of the process and all its threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S

    def rss_bytes(self) -> int:
        """Resident memory now, bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def stop(self, timeout_s: float = 20.0) -> int:
        """Send SIGTERM, then SIGKILL after timeout_s; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait(10)
        self._reader.join(10)
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
