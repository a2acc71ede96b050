"""docs/security-tests.md names tests that exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
PAGE = TESTS.parent / "docs" / "security-tests.md"
NAMED = sorted(set(re.findall(r"`((?:\w+/)?test_\w+\.py(?:::\w+)?)`", PAGE.read_text(encoding="utf-8"))))


@functools.cache
def functions(path: str) -> frozenset[str]:
    """Names of the functions of a test file, which several rows may name."""
    nodes = ast.walk(ast.parse((TESTS / path).read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("named", NAMED)
def test_named_test_exists(named: str) -> None:
    path, _, function = named.partition("::")
    names = functions(path)
    assert function in names or (not function and any(name.startswith("test_") for name in names)), named


def test_every_row_names_a_test() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| [^|]", line)]
    bare = [row for row in rows if "test_" not in row and "SECURITY.md" not in row and "| tests" not in row]
    assert len(NAMED) > 80 and bare == []
