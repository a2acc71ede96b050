"""The ways in which the code of `saturnmq.hot` runs: compiled, and the same files as Python."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

import saturnmq.hot

PACKAGE = "saturnmq.hot."


class Sources:
    """Finds the modules of `saturnmq.hot` as Python."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(PACKAGE):
            return None
        source = Path(saturnmq.hot.__file__).with_name(f"{name.removeprefix(PACKAGE)}.py")
        return importlib.util.spec_from_file_location(name, source)


def _loaded() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.startswith(PACKAGE)}


def interpreted(name: str) -> ModuleType:
    """A module of `saturnmq.hot`, and what it imports from there, run as Python."""
    before = _loaded()
    for loaded in before:
        del sys.modules[loaded]
    sys.meta_path.insert(0, Sources)  # type: ignore[arg-type]
    try:
        return importlib.import_module(PACKAGE + name)
    finally:
        sys.meta_path.remove(Sources)  # type: ignore[arg-type]
        for loaded in _loaded():
            del sys.modules[loaded]
        sys.modules.update(before)


def hot_module(name: str, way: str) -> ModuleType:
    """The module, `compiled` or `interpreted`; skips the test if nothing is compiled here."""
    if way == "interpreted":
        return interpreted(name)
    if not saturnmq.hot.is_compiled(name):
        pytest.skip("no compiled modules: there is no C compiler here, or SATURNMQ_PURE=1")
    return importlib.import_module(PACKAGE + name)
