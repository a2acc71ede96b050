"""Examples of Hypothesis depend on the tree, not on what is loaded."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hypothesis.internal.conjecture import providers

MESSAGE_MAGIC = -626843481  # of a record in the commit log
LATE = 8_736_251_904


def test_module_loaded_by_a_test_adds_no_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loaded_late.py").write_text(f"NUMBER = {LATE}\n")
    before = providers._get_local_constants()
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("loaded_late").NUMBER == LATE
    after = providers._get_local_constants()
    assert LATE not in after.integers and len(after) == len(before)


def test_constants_of_all_sources_are_drawn() -> None:
    constants = providers._get_local_constants()
    assert MESSAGE_MAGIC in constants.integers
    assert len(constants.strings) > 3000, "those of modules that no test here loads"
