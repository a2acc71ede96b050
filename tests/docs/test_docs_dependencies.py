"""Every dependency is in the reviewed list, docs/decisions/0002-dependencies.md, and the list holds no others."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
OWN = "saturnmq"
NAME = re.compile(r"[A-Za-z0-9_.-]+")


def declared() -> set[str]:
    """Names of all dependencies: of the build, of the package, and of its extras."""
    data = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    project = data["project"]
    lists = [data["build-system"]["requires"], project["dependencies"], *project["optional-dependencies"].values()]
    found = (NAME.match(text) for texts in lists for text in texts)
    return {match[0].lower() for match in found if match is not None and match[0] != OWN}


def reviewed() -> set[str]:
    """Names in the first column of the list."""
    text = (REPOSITORY / "docs" / "decisions" / "0002-dependencies.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    return {match[0].lower() for row in rows[1:] for name in row.split(",") if (match := NAME.match(name.strip()))}


@pytest.mark.spec("SEC-23")
def test_every_dependency_is_reviewed_and_nothing_else_is_listed() -> None:
    assert len(declared()) > 25
    assert declared() - reviewed() == set(), "review it, then add it to the list"
    assert reviewed() - declared() == {"htmx"}, "htmx is a file inside the package"
