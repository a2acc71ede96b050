"""Runs one admin command: parses its options, connects, calls its function, maps errors to exit codes.

Requirements: ADM-01..ADM-06, CLI-02..CLI-04.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from saturnmq.cli.mqadmin.call import AdminCommand, Call
from saturnmq.cli.mqadmin.options import HELP, NAME_SERVERS, Options, WrongOptions, help_text, parse
from saturnmq.cli.mqadmin.output import Output
from saturnmq.cli.mqadmin.table import BY_NAME, COMMANDS, find
from saturnmq.cli.output import EXIT_DONE, EXIT_FAILED, EXIT_UNREACHABLE, fail, warn, write
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import SaturnError

NAME_SERVERS_VARIABLE: Final = "NAMESRV_ADDR"
DEFAULT_NAME_SERVERS: Final = "127.0.0.1:9876"
_FLAGS: Final = ("--json", "--quiet", "--debug", "--dry-run")
_VALUED: Final = ("--watch", "--tools-yml", "--signature", "--config", "--timeout")


@dataclass(frozen=True)
class Common:
    """Options that every command has beside those of mqadmin; they have long names only.

    watch: seconds between repetitions, 0 for one run. timeout_ms: of one request, None for the default.
    """

    json: bool = False
    quiet: bool = False
    debug: bool = False
    dry_run: bool = False
    watch: float = 0.0
    tools_yml: Path | None = None
    signature: str = "v1"
    config: Path | None = None
    timeout_ms: int | None = None


def take_common(words: Sequence[str]) -> tuple[Common, list[str]]:
    """The common options of a command line, and the other words. Raises WrongOptions."""
    found: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        at += 1
        if name in _FLAGS and not equals:
            found[name] = "true"
        elif name in _VALUED:
            if not equals:
                if at >= len(words):
                    raise WrongOptions(f"Missing argument for option: {name}")
                value, at = words[at], at + 1
            found[name] = value
        else:
            rest.append(words[at - 1])
    return _common(found), rest


def _common(found: dict[str, str]) -> Common:
    def number(name: str) -> float:
        try:
            value = float(found.get(name, "0"))
        except ValueError:
            value = -1.0
        if not 0 <= value <= 86_400:
            raise WrongOptions(f"{name} {found[name]!r:.80} must be seconds in 0..86400")
        return value

    tools, config = (Path(found[name]) if name in found else None for name in ("--tools-yml", "--config"))
    return Common(
        json="--json" in found,
        quiet="--quiet" in found,
        debug="--debug" in found,
        dry_run="--dry-run" in found,
        watch=number("--watch"),
        tools_yml=tools,
        signature=found.get("--signature", "v1"),
        config=config,
        timeout_ms=int(number("--timeout") * 1000) or None,
    )


def main(words: Sequence[str]) -> int:
    """Run `saturnmq admin` with the words after `admin`; return the exit code."""
    try:
        common, rest = take_common(words)
    except WrongOptions as error:
        warn(error.message)
        return EXIT_FAILED
    if not rest or (rest[0] == "help" and len(rest) == 1):
        print_list()
        return EXIT_DONE
    asks_help = rest[0] == "help"
    name = rest[1] if asks_help else rest[0]
    command = find(name)
    if command is None:
        write(f"The sub command {name} not exist.")
        near = get_close_matches(name.lower(), list(BY_NAME), 1)
        if near:
            warn(f"next: did you mean {BY_NAME[near[0]].name}?")
        return EXIT_FAILED
    if asks_help:
        write(help_text(command.name, command.all_options))
        return EXIT_DONE
    return run(command, rest[1:], common)


def run(command: AdminCommand, words: Sequence[str], common: Common) -> int:
    """Run one command; return its exit code."""
    try:
        options = parse(words, command.all_options)
    except WrongOptions as error:
        return _wrong(command, error)
    if HELP.key in options:
        write(help_text(command.name, command.all_options))
        return EXIT_DONE
    args = argparse.Namespace(debug=common.debug, json=common.json)
    try:
        return asyncio.run(_run(command, options, common))
    except WrongOptions as error:  # a value, or options that need each other
        return _wrong(command, error)
    except (SaturnError, OSError) as error:
        return fail(error, args, EXIT_UNREACHABLE if _is_unreachable(error) else EXIT_FAILED)


def _wrong(command: AdminCommand, error: WrongOptions) -> int:
    warn(error.message)
    write(help_text(command.name, command.all_options))
    return EXIT_FAILED


def _is_unreachable(error: Exception) -> bool:
    return isinstance(error, ConnectionError | TimeoutError) or (
        isinstance(error, SaturnError) and error.code == ResponseCode.NO_NAME_SERVER
    )


def name_servers_of(options: Options) -> str:
    """NameServers of -n, else of the environment, else the local one (ADM-03)."""
    return options.text(NAME_SERVERS.key) or os.environ.get(NAME_SERVERS_VARIABLE, "") or DEFAULT_NAME_SERVERS


async def _run(command: AdminCommand, options: Options, common: Common) -> int:
    from saturnmq.admin import Admin, read_access
    from saturnmq.admin.connection import TIMEOUT_MS, UNKNOWN_CLUSTER, UnknownCluster

    access = read_access(tools=common.tools_yml, config=common.config, signature=common.signature)
    dry_run = (lambda line: warn(f"dry run: {line}")) if common.dry_run else None
    out = Output(command.name, as_json=common.json, dry_run=common.dry_run)
    function = command.load()
    async with Admin(
        name_servers_of(options), access=access, timeout_ms=common.timeout_ms or TIMEOUT_MS, dry_run=dry_run
    ) as admin:
        while True:
            try:
                code = await function(Call(options, admin, out))
            except UnknownCluster:
                if not common.json:
                    out.line(UNKNOWN_CLUSTER, end="")
                    out.finish()
                raise
            out.finish()
            if not common.watch:
                return (EXIT_FAILED if out.problems else EXIT_DONE) if code is None else code
            await asyncio.sleep(common.watch)


def print_list() -> None:
    """Print all commands with their descriptions, as mqadmin without arguments does (ADM-01)."""
    write("The most commonly used mqadmin commands are:\n")
    for command in COMMANDS:
        write(f"   {command.name:<20} {command.help}")
    write("\nSee 'mqadmin help <command>' for more information on a specific command.")
