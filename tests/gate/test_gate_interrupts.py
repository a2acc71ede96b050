"""Tests in the background of a shell can interrupt the programs that they start."""

from __future__ import annotations

import signal
import subprocess
import sys

from harness.gate import interrupts

PROGRAM = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_programs_of_tests_in_the_background_can_be_interrupted() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupts.pytest_configure()
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.stdout == "True\n"
