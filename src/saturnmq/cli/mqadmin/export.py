"""Commands that export what a cluster consists of to files.

Requirements: C-55..C-57.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from saturnmq.cli.mqadmin.files import make_own, write_file
from saturnmq.cli.mqadmin.java_forms import indented, version_name
from saturnmq.cli.mqadmin.options import WrongOptions
from saturnmq.cli.mqadmin.output import Call
from saturnmq.protocol.errors import ConfigError

FOLDER: Final = "/tmp/rocketmq/export"  # noqa: S108 - the default of Apache's tools; its owner is checked


async def metadata(call: Call) -> None:
    """Export topics and groups of a cluster or of one broker."""
    options, export = call.options, call.admin.export
    special = "s" in options
    if "b" in options:
        address = options.text("b")
        if "t" in options:
            _write(call, "topic", await export.topics(address, special=special))
        elif "g" in options:
            _write(call, "subscriptionGroup", await export.groups(address))
        else:
            raise ConfigError("-b needs -t for topics or -g for subscription groups")
    elif "c" in options:
        topics, groups = "g" not in options or "t" in options, "t" not in options
        name = "metadata" if topics and groups else "topic" if topics else "subscriptionGroup"
        document = await export.metadata(options.text("c"), topics=topics, groups=groups, special=special)
        _write(call, name, document, end="\n")
    else:
        raise WrongOptions("Missing required option: -b | -c")


async def configs(call: Call) -> None:
    """Export settings of the masters of a cluster."""
    _write(call, "configs", await call.admin.export.settings(call.options.text("c")))


async def metrics(call: Call) -> None:
    """Export load, size and clients of the masters of a cluster."""
    _write(call, "metrics", await call.admin.export.metrics(call.options.text("c"), version_name))


def _write(call: Call, name: str, document: dict[str, Any], end: str = "") -> None:
    folder = call.options.text("f", FOLDER)
    path = Path(folder) / f"{name}.json"
    if not call.out.dry_run:
        if folder == FOLDER:
            make_own(path.parent.parent, path.parent)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path.parent.resolve(), path.name, indented(document).encode())
    call.out.change_line(f"export {folder}/{name}.json success", end=end, path=str(path))
