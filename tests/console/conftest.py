"""Fixtures of the console's tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browsing import opened


@pytest.fixture
def console(tmp_path: Path) -> Callable[..., Any]:
    """Opens a console for the NameServers of an address."""
    return partial(opened, tmp_path)
