"""A consumer command of a web framework in a process of its own, ended by SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


def handled_line(arguments: list[str], folder: Path, **environment: str) -> str:
    """The first line that the command prints; then it is sent SIGTERM and must end with code 0."""
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        limit = threading.Timer(60, process.kill)
        limit.start()
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline().strip()
            process.send_signal(signal.SIGTERM)
            rest = process.stdout.read() + process.stderr.read()
            assert process.wait() == 0, rest
        finally:
            limit.cancel()
            process.kill()
    return line
