"""Fixtures for the TLS tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificates import write_certificate


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Certificate and key files, self-signed for 127.0.0.1."""
    return write_certificate(tmp_path, "server")
