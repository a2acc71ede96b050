"""A NameServer that a test gets started, in its own event loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import served as nameserver

from harness.gate.coroutines import Entered


@pytest.fixture
def served(tmp_path: Path) -> Entered:
    """A NameServer with default settings, and a connection to it."""
    return Entered(nameserver.served(tmp_path))
