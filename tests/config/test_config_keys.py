"""Every configuration key is read somewhere, or marked as without effect, which causes a warning when it is set."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import re
from pathlib import Path
from typing import Any, Final

import pytest

import saturnmq
from saturnmq.config.settings import keys_of, without_effect

SOURCE: Final = Path(saturnmq.__file__).parent
ATTRIBUTE: Final = re.compile(r"\.\s*(\w+)")


def settings_classes() -> list[type[Any]]:
    """All classes with fields made by `key`."""
    found: list[type[Any]] = []
    for path in sorted(SOURCE.rglob("*.py")):
        if " = key(" in path.read_text(encoding="utf-8"):
            name = ".".join(("saturnmq", *path.relative_to(SOURCE).with_suffix("").parts))
            module = importlib.import_module(name)
            found += [
                member
                for member in vars(module).values()
                if isinstance(member, type) and member.__module__ == name and dataclasses.is_dataclass(member)
            ]
    return [cls for cls in found if keys_of(cls)]


@functools.cache
def attributes_read() -> frozenset[str]:
    """Names of keys that the sources read as an attribute. A source is parsed only where one that is not found yet may be read."""
    missing = {name for cls in settings_classes() for name, _ in keys_of(cls).values()}
    read: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if missing.isdisjoint(ATTRIBUTE.findall(text)):
            continue
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
        read |= {node.attr for node in nodes if isinstance(node.ctx, ast.Load)}
        missing -= read
    return frozenset(read)


def test_all_key_tables_are_found() -> None:
    names = {cls.__name__ for cls in settings_classes()}
    assert {
        "BrokerSettings",
        "StoreSettings",
        "NetSettings",
        "TlsSettings",
        "RaftSettings",
        "NameServerSettings",
    } <= names


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("cls", settings_classes(), ids=lambda cls: cls.__name__)
def test_each_key_is_read_or_marked_without_effect(cls: type[Any]) -> None:
    read = attributes_read()
    wrong = [java for java, (name, meta) in keys_of(cls).items() if (name in read) == bool(meta.no_effect)]
    assert wrong == [], "read the key somewhere, or define it with no_effect=reason"


@pytest.mark.parametrize("cls", settings_classes(), ids=lambda cls: cls.__name__)
def test_each_key_without_effect_is_warned_about(cls: type[Any]) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    assert without_effect(cls(**defaults)) == []
    for java, (name, meta) in keys_of(cls).items():
        if not meta.no_effect:
            continue
        usual = defaults[name]
        other: Any = not usual if isinstance(usual, bool) else usual + 1 if isinstance(usual, int) else f"{usual}-other"
        (text,) = without_effect(cls(**{name: other}))
        assert text.startswith(f"{java}="), java
