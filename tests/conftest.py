"""Shared by all rooms' tests: where the golden bytes lie."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Folder of bytes produced by the original; tests that need it are skipped where it is not beside the checkout."""
    folder = REPOSITORY.parent / "shared" / "vectors"
    if not folder.is_dir():
        pytest.skip("no golden vectors: ../shared/vectors is not beside this checkout")
    return folder
