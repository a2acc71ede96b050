"""The count of names without meaning (tools/names.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

import names


def test_bindings_of_every_kind_are_counted(tmp_path: Path) -> None:
    code = """
class Place: ...
def given(found, record):
    self.known = found.one
    for left in record: pass
    with open(record) as made: return [one for one in made]
"""
    (tmp_path / "module.py").write_text(code)
    counts = names.count_names(tmp_path)
    assert counts.meaningless == {"place": 1, "given": 1, "found": 1, "known": 1, "left": 1, "made": 1, "one": 1}
    assert counts.bindings == 8  # these and the parameter `record`
    assert counts.first_lines["found"] == "module.py:3"


def test_classes_of_one_name_in_two_modules_are_listed(tmp_path: Path) -> None:
    for module in ("a", "b"):
        (tmp_path / f"{module}.py").write_text("class Route: ...\nclass _Entry: ...\n")
    assert names.count_names(tmp_path).repeated_classes == {"Route": ["a.py", "b.py"]}


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], 0),
        (["--rate-max", "500", "--classes-max", "1"], 0),
        (["--rate-max", "499"], 1),
        (["--classes-max", "0"], 1),
    ],
)
def test_exceeded_limit_fails(tmp_path: Path, options: list[str], status: int) -> None:
    for module in ("a", "b"):
        (tmp_path / f"{module}.py").write_text("class Route:\n    found = 1\n")
    assert names.main([str(tmp_path), *options]) == status
