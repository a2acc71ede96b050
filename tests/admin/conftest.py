"""Servers that a test gets started, in its own event loop."""

from __future__ import annotations

import pytest
from admincluster import admin_cluster

from harness.gate.coroutines import Entered


@pytest.fixture
def cluster() -> Entered:
    """A broker, a NameServer and an `Admin` of them."""
    return Entered(admin_cluster())
