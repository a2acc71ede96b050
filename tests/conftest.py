"""Shared by all rooms' tests: where the golden bytes lie, and how examples are made."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from recorded import VECTORS

# The same examples in every run, however slow the machine: a gate says the same of the same tree. New ones are looked for by
# --hypothesis-profile=deep, which takes minutes.
_QUIET = [HealthCheck.too_slow]
settings.register_profile("gate", deadline=None, derandomize=True, database=None, suppress_health_check=_QUIET)
settings.register_profile("deep", deadline=None, max_examples=10_000, suppress_health_check=_QUIET)
settings.load_profile("gate")


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Folder of bytes recorded from Apache RocketMQ 4.9.7 (tests/vectors)."""
    return VECTORS
