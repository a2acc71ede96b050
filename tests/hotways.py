"""The ways in which the code of `saturnmq.hot` runs: compiled, and the same files as Python."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import saturnmq.hot


def interpreted(name: str) -> ModuleType:
    """A module of `saturnmq.hot`, run as Python."""
    path = Path(saturnmq.hot.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"saturnmq.hot.{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hot_module(name: str, way: str) -> ModuleType:
    """The module, `compiled` or `interpreted`; skips the test if nothing is compiled here."""
    if way == "interpreted":
        return interpreted(name)
    if not saturnmq.hot.is_compiled(name):
        pytest.skip("no compiled modules: there is no C compiler here, or SATURNMQ_PURE=1")
    return importlib.import_module(f"saturnmq.hot.{name}")
