"""The modules for packages of others, without these packages."""

from __future__ import annotations

import importlib
import re
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "package", "requirement"),
    [
        ("saturnmq.opentelemetry", "opentelemetry", "opentelemetry-api"),
        ("saturnmq.fastapi", "starlette", "starlette"),
        ("saturnmq.django", "django", "django"),
        ("saturnmq.flask", "flask", "flask"),
        ("saturnmq.cloudevents", "cloudevents", "cloudevents"),
        ("saturnmq.sqlalchemy", "sqlalchemy", "sqlalchemy"),
    ],
)
def test_missing_package_is_named_with_its_command(
    module: str, package: str, requirement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith((module, f"{package}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    expected = f"{module} needs package {requirement}: {re.escape(sys.executable)} -m pip install '{requirement}>="
    with pytest.raises(ModuleNotFoundError, match=expected):
        importlib.import_module(module)
