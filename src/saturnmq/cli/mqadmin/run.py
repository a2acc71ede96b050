"""Runs one admin command: parses its options, connects, calls its function, maps errors to exit codes.

Requirements: ADM-01..ADM-06, CLI-02..CLI-04.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from difflib import get_close_matches

from saturnmq.cli.mqadmin.options import (
    COMMON_EXTENSIONS,
    HELP,
    NAME_SERVERS,
    AdminOptions,
    WrongOptions,
    help_text,
    parse,
    take_extensions,
)
from saturnmq.cli.mqadmin.output import AdminOutput, Call, frame
from saturnmq.cli.mqadmin.table import BY_NAME, COMMANDS, find
from saturnmq.cli.output import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, exit_code, fail, print_error, warn, write
from saturnmq.cli.table import CliCommand
from saturnmq.escaping import escaped
from saturnmq.protocol.errors import SaturnError


def main(argv: Sequence[str]) -> int:
    """Run `saturnmq admin` with the words after `admin`; return the exit code."""
    as_json = "--json" in argv
    try:
        args, command_argv = take_extensions(argv)
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
    return run(command, command_argv[1:], args)


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


def _print_help(command: CliCommand) -> int:
    """Print Apache's help on stdout, and what SaturnMQ has in addition on stderr."""
    write(help_text(command.name, command.options))
    extensions = {f"--{option.long}": option.help for option in command.options if option.is_extension}
    for name, text in (extensions | {each.names[0]: each.help for each in COMMON_EXTENSIONS}).items():
        warn(f"also {name:<14} {text}")
    warn(f"example: {command.example}")
    return EXIT_DONE


def run(command: CliCommand, argv: Sequence[str], args: argparse.Namespace) -> int:
    """Run one command; return its exit code."""
    try:
        options = parse(argv, command.options)
        if args.watch and not command.listing:
            raise WrongOptions(f"--watch repeats listings, and {command.name} is none")
    except WrongOptions as error:
        return _wrong(command, error, args)
    if HELP.key in options:
        return _print_help(command)
    try:
        return asyncio.run(_run(command, options, args))
    except WrongOptions as error:  # a value, or options that need each other
        return _wrong(command, error, args)
    except BrokenPipeError:  # the reader of stdout has gone
        raise
    except (SaturnError, OSError) as error:
        code = exit_code(error)
        return fail(error, args, EXIT_FAILED if code == EXIT_USAGE else code)  # as of wrong options (ADM-01)


def _wrong(command: CliCommand, error: WrongOptions, args: argparse.Namespace) -> int:
    print_error([error.message], f"saturnmq admin help {command.name} lists the options.", None, args.json)
    if not args.json:
        write(help_text(command.name, command.options))
    return EXIT_FAILED


async def _run(command: CliCommand, options: AdminOptions, args: argparse.Namespace) -> int:
    from saturnmq.admin.connection import TIMEOUT_MS, UNKNOWN_CLUSTER, UnknownCluster
    from saturnmq.cli.cluster import admin_of, name_cluster

    dry_run = (lambda line: warn(f"dry run: {line}")) if args.dry_run else None
    out = AdminOutput(command.name, as_json=args.json, dry_run=args.dry_run)
    function = command.load()
    args.name_servers = options.text(NAME_SERVERS.key)
    source = await name_cluster(args)
    async with admin_of(
        args, timeout_ms=int(args.timeout * 1000) or TIMEOUT_MS, vip_channel=args.vip_channel, dry_run=dry_run
    ) as admin:
        if command.changes and not (args.quiet or args.json):
            warn(f"cluster: NameServer {';'.join(admin.connection.name_servers)} ({source})")
        while True:
            try:
                with frame(bool(args.watch) and not args.json):
                    code = await function(Call(options, admin, out))
                    out.unanswered(admin.connection.unanswered)
                    out.finish()
                admin.connection.unanswered.clear()
            except UnknownCluster:
                if not args.json:
                    out.line(UNKNOWN_CLUSTER, end="")
                    out.finish()
                raise
            except SaturnError as error:
                out.unanswered(admin.connection.unanswered, error.message)
                raise
            if not args.watch:
                return code or (EXIT_FAILED if out.problems else EXIT_DONE)
            await asyncio.sleep(args.watch)


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
