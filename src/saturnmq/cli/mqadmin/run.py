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
from saturnmq.cli.mqadmin.options import HELP, NAME_SERVERS, AdminOptions, WrongOptions, help_text, parse
from saturnmq.cli.mqadmin.output import AdminOutput, frame
from saturnmq.cli.mqadmin.table import BY_NAME, COMMANDS, find
from saturnmq.cli.output import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, exit_code, fail, print_error, warn, write
from saturnmq.escaping import escaped
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.signatures import SIGNATURES

VIP_VARIABLE: Final = "SATURNMQ_VIP_CHANNEL"
_SECONDS_MAX: Final = 86_400
_FLAGS: Final = {
    "--json": "print one JSON document",
    "--quiet": "warnings only",
    "--debug": "log everything, show tracebacks",
    "--dry-run": "report changes on stderr instead of sending them",
    "--vip-channel": f"ask brokers at their port minus 2; also {VIP_VARIABLE}=true",
}
_VALUED: Final = {
    "--watch": "SECONDS: repeat a listing",
    "--tools-yml": "FILE: accessKey and secretKey (default: $ROCKETMQ_HOME/conf/tools.yml, if it exists)",
    "--signature": "v1 or v2: how requests are signed; v2: SaturnMQ only (default v1)",
    "--config": "FILE: a node's configuration file; its tls.* keys apply",
    "--timeout": "SECONDS: of one request (default 5)",
}


@dataclass(frozen=True)
class Common:
    """Options that every command has beside those of mqadmin; they have long names only.

    watch: seconds between repetitions, 0 for one run. timeout_ms: of one request, None for the default. vip_channel: ADM-10.
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
    vip_channel: bool = False


def take_common(argv: Sequence[str]) -> tuple[Common, list[str]]:
    """The common options of a command line, and the other words. Raises WrongOptions."""
    values: dict[str, str] = {}
    command_argv: list[str] = []
    at = 0
    while at < len(argv):
        name, equals, value = argv[at].partition("=")
        at += 1
        if name in _FLAGS and not equals:
            values[name] = "true"
        elif name in _VALUED:
            if not equals:
                if at >= len(argv):
                    raise WrongOptions(f"Missing argument for option: {name}")
                value, at = argv[at], at + 1
            values[name] = value
        else:
            command_argv.append(argv[at - 1])
    return _common(values), command_argv


def _common(values: dict[str, str]) -> Common:
    def number(name: str) -> float:
        try:
            value = float(values.get(name, "0"))
        except ValueError:
            value = -1.0
        if not 0 <= value <= _SECONDS_MAX:
            raise WrongOptions(f"{name} {values[name]!r:.80} must be seconds in 0..{_SECONDS_MAX}")
        return value

    signature = values.get("--signature", SIGNATURES[0])
    if signature not in SIGNATURES:
        raise WrongOptions(f"--signature {signature!r:.80} must be one of {', '.join(SIGNATURES)}")

    tools, config = (Path(values[name]) if name in values else None for name in ("--tools-yml", "--config"))
    return Common(
        json="--json" in values,
        quiet="--quiet" in values,
        debug="--debug" in values,
        dry_run="--dry-run" in values,
        watch=number("--watch"),
        tools_yml=tools,
        signature=signature,
        config=config,
        timeout_ms=int(number("--timeout") * 1000) or None,
        vip_channel="--vip-channel" in values or os.environ.get(VIP_VARIABLE, "").strip().lower() == "true",
    )


def main(argv: Sequence[str]) -> int:
    """Run `saturnmq admin` with the words after `admin`; return the exit code."""
    as_json = "--json" in argv
    try:
        common, command_argv = take_common(argv)
    except WrongOptions as error:
        print_error([error.message], "saturnmq admin help COMMAND lists the options.", None, as_json)
        return EXIT_FAILED
    if not command_argv or (command_argv[0] == "help" and len(command_argv) == 1):
        print_list()
        return EXIT_DONE
    asks_help = command_argv[0] == "help"
    name = command_argv[1] if asks_help else command_argv[0]
    command = find(name)
    if command is None:
        return _report_unknown(name, as_json)
    if asks_help:
        return _print_help(command)
    return run(command, command_argv[1:], common)


def _report_unknown(name: str, as_json: bool) -> int:
    text = f"The sub command {escaped(name)} not exist."
    near = get_close_matches(name.lower(), list(BY_NAME), 1)
    hint = f"did you mean {BY_NAME[near[0]].name}?" if near else "List all commands: saturnmq admin"
    if as_json:
        print_error([text], hint, None, True)
    else:
        write(text)
        warn(f"next: {hint}")
    return EXIT_FAILED


def _print_help(command: AdminCommand) -> int:
    """Print Apache's help on stdout, and what SaturnMQ has in addition on stderr."""
    write(help_text(command.name, command.all_options))
    extensions = {f"--{option.long}": option.help for option in command.options if option.is_extension}
    for name, text in {**extensions, **_FLAGS, **_VALUED}.items():
        warn(f"also {name:<14} {text}")
    warn(f"example: {command.example}")
    return EXIT_DONE


def run(command: AdminCommand, argv: Sequence[str], common: Common) -> int:
    """Run one command; return its exit code."""
    try:
        options = parse(argv, command.all_options)
        if common.watch and not command.listing:
            raise WrongOptions(f"--watch repeats listings, and {command.name} is none")
    except WrongOptions as error:
        return _wrong(command, error, common)
    if HELP.key in options:
        return _print_help(command)
    args = argparse.Namespace(debug=common.debug, json=common.json)
    try:
        return asyncio.run(_run(command, options, common))
    except WrongOptions as error:  # a value, or options that need each other
        return _wrong(command, error, common)
    except BrokenPipeError:  # the reader of stdout has gone
        raise
    except (SaturnError, OSError) as error:
        code = exit_code(error)
        return fail(error, args, EXIT_FAILED if code == EXIT_USAGE else code)  # as of wrong options (ADM-01)


def _wrong(command: AdminCommand, error: WrongOptions, common: Common) -> int:
    print_error([error.message], f"saturnmq admin help {command.name} lists the options.", None, common.json)
    if not common.json:
        write(help_text(command.name, command.all_options))
    return EXIT_FAILED


async def _run(command: AdminCommand, options: AdminOptions, common: Common) -> int:
    from saturnmq.admin.connection import TIMEOUT_MS, UNKNOWN_CLUSTER, UnknownCluster
    from saturnmq.cli.cluster import admin_of, name_cluster

    dry_run = (lambda line: warn(f"dry run: {line}")) if common.dry_run else None
    out = AdminOutput(command.name, as_json=common.json, dry_run=common.dry_run)
    function = command.load()
    args = argparse.Namespace(**{**vars(common), "name_servers": options.text(NAME_SERVERS.key)})
    source = await name_cluster(args)
    async with admin_of(
        args, timeout_ms=common.timeout_ms or TIMEOUT_MS, vip_channel=common.vip_channel, dry_run=dry_run
    ) as admin:
        if command.changes and not (common.quiet or common.json):
            warn(f"cluster: NameServer {';'.join(admin.connection.name_servers)} ({source})")
        while True:
            try:
                with frame(bool(common.watch) and not common.json):
                    code = await function(Call(options, admin, out))
                    out.unanswered(admin.connection.unanswered)
                    out.finish()
                admin.connection.unanswered.clear()
            except UnknownCluster:
                if not common.json:
                    out.line(UNKNOWN_CLUSTER, end="")
                    out.finish()
                raise
            except SaturnError as error:
                out.unanswered(admin.connection.unanswered, error.message)
                raise
            if not common.watch:
                return code or (EXIT_FAILED if out.problems else EXIT_DONE)
            await asyncio.sleep(common.watch)


def print_list() -> None:
    """Print all commands with their descriptions, as mqadmin without arguments does, and then ours (ADM-01)."""
    write("The most commonly used mqadmin commands are:")
    for name, text in listed():
        write(f"   {name:<20} {text}")
    write("\nSee 'mqadmin help <command>' for more information on a specific command.")


def listed() -> list[tuple[str, str]]:
    """Names and descriptions of all commands: those of Apache's list, ours, and those on ledgers."""
    from saturnmq.cli.commands import ADMIN

    ledgers = [(command.name.split()[1], command.help) for command in ADMIN if command.function]
    return [*((command.name, command.help) for command in COMMANDS), *ledgers]
