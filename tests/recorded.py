"""Paths of the recorded bytes, the requirements and the test harness, and settings of processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

_TESTS = Path(__file__).resolve().parent
VECTORS = _TESTS / "vectors"
SPEC = _TESTS.parent / "docs" / "spec"


# For programs that start a short Spark session: a third less processor time than Java's defaults. `java` reads this variable.
SHORT_JAVA = {
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
}


def with_harness() -> dict[str, str]:
    """Environment variables with which a separate Python process can import `harness`."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
