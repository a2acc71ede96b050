"""The public API as others rely on it: types that a checker sees, examples that type-check, names that do not disappear."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import saturnmq
import saturnmq.sync

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
LISTED = HERE / "public_names.txt"
MODULES = ("saturnmq", "saturnmq.sync", "saturnmq.testing")
GUIDE_HEAD = """
from __future__ import annotations
import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from saturnmq import Batch, Client, Message, MessageQueue, TransactionState, json_codec, sql, tag
from saturnmq.testing import EmbeddedBroker
URL = "rmq://127.0.0.1:9876"
"""
SYNC_HEAD = 'from saturnmq.sync import Client\nURL = "rmq://127.0.0.1:9876"\n'


@pytest.mark.spec("API-33")
def test_package_declares_that_it_is_typed() -> None:
    package = Path(saturnmq.__file__).parent
    assert (package / "py.typed").is_file()
    assert 'saturnmq = ["py.typed", ' in (REPOSITORY / "pyproject.toml").read_text()


@pytest.mark.spec("API-33", "TST-08")
@pytest.mark.timeout(300)
def test_api_sketch_and_guide_examples_pass_mypy_strict(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    guide = (REPOSITORY / "docs" / "guide.md").read_text(encoding="utf-8")
    files = [HERE / "typed_use.py"]
    for number, (kind, code) in enumerate(re.findall(r"```python( sync)?\n(.*?)```", guide, re.S)):
        path = tmp_path / f"guide_example_{number}.py"
        body = (
            SYNC_HEAD + code if kind else f"{GUIDE_HEAD}\nasync def example() -> None:\n{textwrap.indent(code, '    ')}"
        )
        path.write_text(body, encoding="utf-8")
        files.append(path)
    assert len(files) > 8
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--config-file=",
        "--no-error-summary",
    ]
    done = subprocess.run(
        [*command, f"--cache-dir={REPOSITORY / '.mypy_cache' / 'examples'}", *map(str, files)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "" and done.returncode == 0, done.stdout + done.stderr


# ---- public names


def members(owner: type) -> list[str]:
    """Public members of a class, own and inherited from this package, with their parameters."""
    found = []
    for name in sorted(
        {name for kind in owner.__mro__ if kind.__module__.startswith("saturnmq") for name in vars(kind)}
    ):
        value = inspect.getattr_static(owner, name)
        if name.startswith("_") or isinstance(value, type):
            continue
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function):
            found.append(f"{name}({', '.join(p for p in parameters(function) if p not in ('self', 'cls'))})")
        else:
            found.append(name)
    return found


def parameters(function: Any) -> list[str]:
    """The names of the parameters; those of typed keyword options one by one."""
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        options = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        names += inspect.unwrap(function).__globals__[options[1]].__annotations__ if options else [name]
    return names


def public_names() -> list[str]:
    """`module.name` and `module.Class.member(parameters)`, sorted."""
    lines = []
    for module_name in MODULES:
        module: Any = importlib.import_module(module_name)
        for name in sorted(module.__all__):
            value = getattr(module, name)
            lines.append(f"{module_name}.{name}")
            if isinstance(value, type):
                lines += [f"{module_name}.{name}.{member}" for member in members(value)]
            elif inspect.isfunction(value):
                lines[-1] += f"({', '.join(parameters(value))})"
    return lines


def parts(line: str) -> tuple[str, list[str]]:
    name, _, rest = line.partition("(")
    return name, [word for word in rest.rstrip(")").split(", ") if word]


@pytest.mark.spec("API-33", "PKG-08")
def test_public_names_do_not_vanish_and_new_ones_are_listed() -> None:
    """Removing a name or parameter breaks users: deprecate it for two minor releases. New names must be listed:
    `python tests/testing/test_testing_typing.py` writes the list.
    """
    now = dict(parts(line) for line in public_names())
    listed = dict(parts(line) for line in LISTED.read_text().splitlines())
    assert [name for name in listed if name not in now] == []
    for name, words in listed.items():
        assert [p for p in words if p not in now[name]] == [], name
    top = {name for name in now if name.rpartition(".")[0] in MODULES}
    assert sorted(top - set(listed)) == []


def test_public_name_list_detects_removed_names_and_parameters() -> None:
    lines = public_names()
    assert "saturnmq.Client" in lines and "saturnmq.testing.BrokerFixture" in lines
    send = next(line for line in lines if line.startswith("saturnmq.Producer.send("))
    assert {"topic", "value", "tag", "keys", "delay", "timeout"} <= set(parts(send)[1])


if __name__ == "__main__":
    LISTED.write_text("\n".join(public_names()) + "\n")
