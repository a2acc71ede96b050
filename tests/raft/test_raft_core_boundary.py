"""The state of the Raft core changes through methods of Node only: no other package reads or assigns its private parts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import saturnmq

SOURCE = Path(saturnmq.__file__).parent
CORE = SOURCE / "raft" / "core"
OUTSIDE = [
    path for path in sorted(SOURCE.rglob("*.py")) if CORE not in path.parents and "raft" in path.read_text("utf-8")
]


def private_parts() -> set[str]:
    """The private attributes that Node assigns to itself."""
    tree = ast.parse((CORE / "node.py").read_text(encoding="utf-8"))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and isinstance(node.ctx, ast.Store)
    }


def violations(text: str) -> list[str]:
    """Accesses to private parts of a Node, and assignments to any of its attributes."""
    parts, found = private_parts(), []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        is_node = owner.split(".")[-1] in ("node", "_node", "_node()")
        if is_node and (node.attr in parts or not isinstance(node.ctx, ast.Load)):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_node_has_private_parts_to_protect() -> None:
    assert {"_state", "_elector", "_heartbeats", "_follower", "_leader", "_transfers"} <= private_parts()


@pytest.mark.parametrize(
    "text",
    [
        "self.node._state.log.durable = 1",
        "self._node().term = 3",
        "x = member.node._leader.peers",
        "node._state = None",
    ],
)
def test_check_finds_access_to_core_state(text: str) -> None:
    assert violations(text)


def test_no_package_outside_the_core_touches_its_state() -> None:
    found = {str(path.relative_to(SOURCE)): violations(path.read_text(encoding="utf-8")) for path in OUTSIDE}
    assert {path: lines for path, lines in found.items() if lines} == {}
