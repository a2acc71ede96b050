"""Fixtures: a connected server and client, and a certificate."""

from __future__ import annotations

from pathlib import Path

import netpair
import pytest

from certificates import write_certificate
from harness.gate.coroutines import Entered


@pytest.fixture
def pair() -> Entered:
    """A server that echoes requests, and a client."""
    return Entered(netpair.pair())


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Certificate and key files, self-signed for 127.0.0.1."""
    return write_certificate(tmp_path, "server")
