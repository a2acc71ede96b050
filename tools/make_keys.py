#!/usr/bin/env python3
"""Writes docs/configuration.md, the reference of every configuration key, and docs/client-options.md from the settings classes.

The meaning of a key is taken from key_meanings.py, else it is the field's name in words.

usage: make_keys.py [--check]
exit status: 0; 1 if --check finds that a page is not current.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_type_hints

import client_options
from key_meanings import MEANINGS

TOP: Final = Path(__file__).resolve().parent.parent
PAGE: Final = TOP / "docs" / "configuration.md"
CLIENT_PAGE: Final = PAGE.with_name("client-options.md")
HEAD: Final = """# Configuration keys

Generated from the settings classes by `python tools/make_keys.py`.

A key is given in a properties file (`-c FILE`), by an environment variable, which overrides the file, or on the command line
(`--set key=value` and options such as `--port`, which override both). The variable of a key is `SATURNMQ_` and the key in upper
snake case, dots as underscores: `SATURNMQ_BROKER_NAME` for `brokerName`, `SATURNMQ_TLS_SERVER_CERT_PATH` for
`tls.server.certPath`; two variables that name one key are an error. `--print-config` shows every value and its origin.
The names are those of Apache RocketMQ where it has the key. Sizes accept
`64MiB`, durations in ms accept `90s`. An unknown key is named with the nearest known one, a value outside its range is an error.
**run time**: administrators may change the key while the server runs, or change the file and send SIGHUP
([operations](operations.md)); all others need a restart. **no effect**: accepted so that
files of Apache RocketMQ load; a warning says so when it is set. "per profile": 0 stands for the value of the profile.
"""
SECTIONS: Final = {
    "saturnmq.broker.settings": "Broker",
    "saturnmq.store.settings": "Store",
    "saturnmq.raft.settings": "DLedger group",
    "saturnmq.replication.masterslave.settings": "Master and slaves",
    "saturnmq.net.settings": "Network",
    "saturnmq.net.tls": "TLS",
    "saturnmq.namesrv.settings": "NameServer",
}


def settings_classes() -> Iterator[type[Any]]:
    """All classes with fields made by `key`: those of SECTIONS, then those of other modules."""
    source = TOP / "src" / "saturnmq"
    names = [
        ".".join(("saturnmq", *path.relative_to(source).with_suffix("").parts))
        for path in sorted(source.rglob("*.py"))
        if " = key(" in path.read_text(encoding="utf-8")
    ]
    order = list(SECTIONS)
    for name in sorted(names, key=lambda each: (order.index(each) if each in order else len(order), each)):
        for member in vars(importlib.import_module(name)).values():
            own = isinstance(member, type) and member.__module__ == name and dataclasses.is_dataclass(member)
            if own and not _has_heir(member):  # the fields of a base class are listed with those of its heir
                yield member


def _has_heir(cls: type[Any]) -> bool:
    """Whether a class of this package inherits from cls; those of tests do not count."""
    return any(heir.__module__.startswith("saturnmq.") for heir in cls.__subclasses__())


def words(attribute: str) -> str:
    """The name of a field in words."""
    return attribute.replace("_", " ").removesuffix(" ms").removesuffix(" bytes")


def shown(value: Any) -> str:
    """A default as it is written in a file."""
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, Enum):
        return f"`{value.name}`"
    return f"`{str(value).replace(str(Path.home()), '~')}`" if value not in ("", None) else "empty"


def rows(cls: type[Any]) -> Iterator[str]:
    """The table of one class."""
    hints = get_type_hints(cls)
    yield from ("| key | default | allowed | meaning |", "|---|---|---|---|")
    items = [item for item in dataclasses.fields(cls) if "key" in item.metadata]
    for item in sorted(items, key=lambda item: bool(item.metadata["key"].no_effect)):
        meta = item.metadata["key"]
        kind = hints[item.name]
        allowed = meta.allowed() or meta.unit
        if isinstance(kind, type) and issubclass(kind, Enum):
            allowed = "one of " + ", ".join(member.name for member in kind)
        parts = [MEANINGS.get(meta.java) or words(item.name)]
        if meta.runtime:
            to = f" (to {', '.join(meta.runtime)})" if isinstance(meta.runtime, tuple) else ""
            parts.append(f"**run time**{to}")
        if meta.no_effect:
            parts.append(f"**no effect**: {meta.no_effect}")
        if meta.default_text:
            default = f"`{meta.default_text}`"
        else:
            default = "secret" if meta.secret and item.default else shown(item.default)
        if item.default == 0 and meta.unit == "bytes" and meta.low == 0:
            default += " (per profile)"
        cells = (f"`{meta.java}`", default, allowed, "; ".join(parts))
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for cls in settings_classes():
        title = SECTIONS.get(cls.__module__, cls.__module__.removeprefix("saturnmq."))
        lines += [f"## {title}", "", *rows(cls), ""]
    return "\n".join(lines)


def main() -> int:
    texts = {PAGE: page(), CLIENT_PAGE: client_options.page()}
    if sys.argv[1:] == ["--check"]:
        return int(any(not path.exists() or path.read_text(encoding="utf-8") != text for path, text in texts.items()))
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
