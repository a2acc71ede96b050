"""The workflows: accepted by actionlint and zizmor, and a release needs no stored secret."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from realtools import REPOSITORY, checked_by

WORKFLOWS = REPOSITORY / ".github" / "workflows"


@pytest.mark.spec("PKG-09")
def test_release_comes_from_a_tag_by_a_trusted_publisher() -> None:
    text = (WORKFLOWS / "release.yml").read_text()
    workflow: dict[Any, Any] = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # `on`, a boolean in YAML 1.1
    publish = workflow["jobs"]["publish"]
    assert workflow["permissions"] == {"contents": "read"}
    assert publish["permissions"]["id-token"] == "write" and publish["environment"] == "release"
    assert publish["needs"] == ["distributions", "wheels"]
    assert "secrets." not in text
    used = [step.get("uses", "") for step in publish["steps"]]
    assert any(name.startswith("actions/attest-build-provenance@") for name in used)
    assert "SHA256SUMS" in text and "docker buildx build" in text and "helm push" in text


@pytest.mark.parametrize("tool", ["actionlint", "zizmor"])
def test_workflows_are_accepted_by(tool: str) -> None:
    checked_by(tool, *(["--offline", "--quiet"] if tool == "zizmor" else []), *sorted(WORKFLOWS.glob("*.yml")))
