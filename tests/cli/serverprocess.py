"""A `saturnmq` server in a process of its own."""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

READY_SECONDS_MAX = 30


class Server:
    """A `saturnmq` server process that has printed its ready line; `facts` holds the key=value pairs of that line.

    descriptors: soft and hard limit of its file descriptors. program: what is run instead of `saturnmq`.
    """

    def __init__(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        descriptors: tuple[int, int] | None = None,
        program: Path | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [*([sys.executable, "-m", "saturnmq.cli"] if program is None else [str(program)]), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (env or {}),
            preexec_fn=None if descriptors is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, descriptors),
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.out, True)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.err, False)),
        ]
        for reader in self._readers:
            reader.start()
        self.facts = self._await_ready()

    def _read(self, stream: Any, into: list[str], watch: bool) -> None:
        for line in stream:
            into.append(line.rstrip("\n"))
            if watch:
                self._lines.put(line)
        if watch:
            self._lines.put(None)

    def _await_ready(self) -> dict[str, str]:
        while True:
            line = self._lines.get(timeout=READY_SECONDS_MAX)
            if line is None:
                self.stop()
                raise AssertionError("server ended before it was ready:\n" + "\n".join(self.err))
            if line.startswith("saturnmq: ready "):
                return dict(word.split("=", 1) for word in line.split()[2:])
            if line.startswith("{"):
                facts: dict[str, str] = json.loads(line)["rows"][0]
                return facts

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code. Fails when the process takes more than 12 s (10 s are promised)."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=12)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            for reader in self._readers:
                reader.join(timeout=5)
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()
