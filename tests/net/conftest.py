"""A certificate for the tests of TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates import write_certificate


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Self-signed, for 127.0.0.1; certificate and key."""
    return write_certificate(tmp_path, "server")
