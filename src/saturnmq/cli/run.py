"""Runs one command: parses, sets up logging, calls the function of the command's row, and maps errors to exit codes.

Requirements: CLI-01..CLI-04, CLI-11.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import takewhile

import saturnmq
from saturnmq.cli.commands import COMMANDS, COMMON, build_parser
from saturnmq.cli.output import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    emit,
    fail,
    write,
)
from saturnmq.cli.runtime import implementation, uncollected, version_facts
from saturnmq.cli.table import CliCommand
from saturnmq.protocol.errors import SaturnError


def print_version(as_json: bool) -> int:
    """Print the version and what it runs on."""
    if as_json:
        emit("version", [{"version": saturnmq.__version__, **version_facts()}])
    else:
        pairs = " ".join(f"{name}={value}" for name, value in version_facts().items())
        write(f"saturnmq {saturnmq.__version__} {pairs}")
    return EXIT_DONE


def set_up_logging(*, debug: bool, quiet: bool, errors_only: bool = False, shard: int | None = None) -> None:
    """Log to stderr, one line per event. errors_only: where a program reads stderr, as that of admin commands with --json.

    shard: of which this process is one; its number is in each line.
    """
    import logging

    from saturnmq.escaping import OneLine

    usual = logging.ERROR if errors_only else logging.WARNING if quiet else logging.INFO
    level = logging.DEBUG if debug else usual
    handler = logging.StreamHandler(sys.stderr)
    mark = "" if shard is None else f"shard={shard} "
    handler.setFormatter(OneLine(f"%(asctime)s %(levelname)s {mark}%(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def admin_words(argv: Sequence[str]) -> list[str] | None:
    """The words for `saturnmq.cli.mqadmin` if they name `admin` and none of its commands in this table, else None."""
    flags = {name for each in COMMON for name in each.names}
    before = list(takewhile(flags.__contains__, argv))
    remaining = list(argv[len(before) :])
    if remaining[:1] != ["admin"]:
        return None
    table_verbs = {command.name.split()[1] for command in COMMANDS if command.name.startswith("admin ")}
    verb = next((argument for argument in remaining[1:] if argument not in flags), None)
    return None if verb in table_verbs else [*before, *remaining[1:]]


def run_admin(argv: Sequence[str]) -> int:
    """Run a command in mqadmin's form; return its exit code."""
    from saturnmq.cli.mqadmin import run

    set_up_logging(debug="--debug" in argv, quiet=True, errors_only="--json" in argv)
    implementation()
    return run.main(argv)


def end_of_pipe() -> int:
    """End quietly when the reader of stdout has gone; returns the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_DONE


def run_command(argv: Sequence[str]) -> int:
    """Run a command of the table; return its exit code."""
    parser = build_parser(argv)
    args, unparsed = parser.parse_known_args(argv)
    command: CliCommand | None = getattr(args, "command", None)
    if unparsed and not (command is not None and command.delegates):
        parser.report_unknown(unparsed, command, COMMON)
    args.unparsed, args.argv = unparsed, list(argv)
    try:
        if args.version:
            return print_version(args.json)
        if command is None:
            parser.print_help(sys.stderr)
            return EXIT_USAGE
        set_up_logging(debug=args.debug, quiet=args.quiet, shard=getattr(args, "shard", None))
        implementation()
        with uncollected():
            function = command.load()
        code: int = function(args)
        return code
    except BrokenPipeError:
        raise
    except (SaturnError, OSError) as error:
        return fail(error, args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    admin_argv = admin_words(argv)
    try:
        code = run_command(argv) if admin_argv is None else run_admin(admin_argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return end_of_pipe()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
