"""Output of all commands: results on stdout, errors on stderr, and the exit codes.

Requirements: CLI-02, CLI-03, CLI-04, CLI-09.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from typing import Any, Final, NoReturn

from saturnmq.protocol.errors import ConfigError, SaturnError

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 4
EXIT_INTERRUPTED: Final = 130
_PORT_AFTER_P: Final = re.compile(r"unrecognized arguments: (\d+)$")


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in the format of the commands."""

    def error(self, message: str) -> NoReturn:
        """Report invalid options and exit with code 2."""
        argv = sys.argv[1:]
        hint = f"{self.prog} --help lists the options."
        port = _PORT_AFTER_P.match(message)
        if port and "-p" in argv:
            hint = f"-p prints the configuration, as mqbroker's does; the port is --port {port[1]} (key listenPort)."
        print_error([message], hint, None, as_json="--json" in argv)
        raise SystemExit(EXIT_USAGE)


def complain(text: str) -> None:
    """Print a line on stderr."""
    print(f"saturnmq: {text}", file=sys.stderr, flush=True)


def emit_rows(command: str, rows: list[dict[str, Any]]) -> None:
    """Print one JSON document on stdout (CLI-02)."""
    print(json.dumps({"schema": 1, "command": command, "rows": rows}), flush=True)


def fail(error: Exception, args: argparse.Namespace, code: int) -> int:
    """Report an error, with its traceback under --debug; return the exit code."""
    if getattr(args, "debug", False):
        logging.getLogger("saturnmq").error("failed", exc_info=error)
    problems = error.problems if isinstance(error, ConfigError) else [_text(error)]
    hint = getattr(error, "hint", None)
    if hint is None and isinstance(error, ConfigError):
        hint = "See saturnmq --help, or --print-config for every key with its value."
    number = error.code if isinstance(error, SaturnError) else None
    print_error(problems, hint or "Run it again with --debug for the traceback.", number, getattr(args, "json", False))
    return code


def _text(error: Exception) -> str:
    """The error text without the exception class."""
    if isinstance(error, SaturnError):
        return error.message
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or "interrupted"


def print_error(problems: list[str], hint: str, number: int | None, as_json: bool) -> None:
    """Print one line per problem and one with the next step, or one JSON object (CLI-03). number: the response code, if any."""
    if as_json:
        document = {"code": number, "message": "; ".join(problems), "hint": hint}
        print(json.dumps(document), file=sys.stderr, flush=True)
        return
    for problem in problems:
        complain(f"error: {problem}")
    complain(f"next: {hint}")


def ready(command: str, facts: dict[str, str], args: argparse.Namespace) -> None:
    """Print the line that reports a server as ready (CLI-09)."""
    if args.json:
        emit_rows(command, [facts])
    else:
        print("saturnmq: ready " + " ".join(f"{name}={value}" for name, value in facts.items()), flush=True)
