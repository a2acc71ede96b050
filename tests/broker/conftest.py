"""Servers that a test gets started, in its own event loop."""

from __future__ import annotations

from pathlib import Path

import brokergroup
import brokerpair
import protected as access
import pytest
import wire as connection

from harness.gate.coroutines import Entered


@pytest.fixture
def wire() -> Entered:
    """A broker with default settings, and a connection to it."""
    return Entered(connection.wire())


@pytest.fixture
def protected(tmp_path: Path) -> Entered:
    """A broker with access control, and a connection to it."""
    return Entered(access.protected(tmp_path))


@pytest.fixture
def pair(tmp_path: Path) -> Entered:
    """A master and its slave."""
    return Entered(brokerpair.pair(tmp_path))


@pytest.fixture
def ledger_group(tmp_path: Path) -> Entered:
    """A group of three brokers that has a leader."""
    return Entered(brokergroup.ledger_group(tmp_path))
