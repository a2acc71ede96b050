"""Where the bytes recorded from Apache RocketMQ 4.9.7 and the requirements lie in this repository."""

from __future__ import annotations

from pathlib import Path

_TESTS = Path(__file__).resolve().parent
VECTORS = _TESTS / "vectors"
SPEC = _TESTS.parent / "docs" / "spec"
