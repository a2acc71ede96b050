"""Settings shared by all tests: Hypothesis profiles and the folder of recorded bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from recorded import VECTORS

# The default profile is deterministic and has no deadline, so that a result depends on the tree only. The profile "deep"
# (--hypothesis-profile=deep) searches for new examples and takes minutes.
_QUIET = [HealthCheck.too_slow]
settings.register_profile("gate", deadline=None, derandomize=True, database=None, suppress_health_check=_QUIET)
settings.register_profile("deep", deadline=None, max_examples=10_000, suppress_health_check=_QUIET)
settings.load_profile("gate")


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Folder with bytes recorded from Apache RocketMQ 4.9.7 (tests/vectors)."""
    return VECTORS
