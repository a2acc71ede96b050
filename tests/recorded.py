"""Paths of the recorded bytes, the requirements and the test harness in this repository."""

from __future__ import annotations

import os
from pathlib import Path

_TESTS = Path(__file__).resolve().parent
VECTORS = _TESTS / "vectors"
SPEC = _TESTS.parent / "docs" / "spec"


def with_harness() -> dict[str, str]:
    """Environment variables with which a separate Python process can import `harness`."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
