"""Output of all commands: results on stdout, errors on stderr, and the exit codes.

Requirements: CLI-02, CLI-03, CLI-04, CLI-09.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from saturnmq.escaping import escaped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.table import Table

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_PROBLEMS: Final = 3
EXIT_UNREACHABLE: Final = 4
EXIT_INTERRUPTED: Final = 130
EXIT_CODES: Final = {
    EXIT_DONE: "success",
    EXIT_FAILED: "failure",
    EXIT_USAGE: "invalid options or configuration",
    EXIT_PROBLEMS: "a check found problems; a pipeline found lost data",
    EXIT_UNREACHABLE: "a server cannot be reached",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
}
# Response codes of errors that say that a server did not answer; connection errors and timeouts of the system do as well.
_UNREACHABLE: Final = (10001, 10002, 10004)  # CONNECT_BROKER, ACCESS_BROKER_TIMEOUT, NO_NAME_SERVER
_PIPE_COLUMNS: Final = 200
# What brokers answer for missing rights: between the name and the place of an exception of Java's.
_ACL: Final = re.compile(
    r"org\.apache\.rocketmq\.acl\.common\.AclException: (.+?)(?:, org\.apache\.[\w.]+\([\w.:]+\))?$", re.DOTALL
)
_SEE: Final = "\nSee http"  # what 4.9.7 appends to its texts: pages that do not exist any more


def write(text: str, end: str = "\n") -> None:
    """Print a line on stdout."""
    print(text, end=end, flush=True)


def warn(text: str) -> None:
    """Print a line on stderr; control and bidirectional characters, which a server may have sent, are escaped."""
    print(f"saturnmq: {escaped(text)}", file=sys.stderr, flush=True)


def emit(command: str, rows: Sequence[dict[str, Any]], **more: Any) -> None:
    """Print one JSON document on stdout (CLI-02)."""
    write(json.dumps({"schema": 1, "command": command, "rows": rows, **more}, default=str))


def show(table: Table) -> None:
    """Print a table on stdout; wide unless stdout is a terminal, so that lines are not broken."""
    from rich.console import Console

    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=_PIPE_COLUMNS)
    console.print(table)


def show_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows, of which there is at least one, as a table with their keys as header."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*rows[0], box=None)
    for row in rows:  # Text: a name with brackets is no markup
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    show(table)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else escaped(str(value))


def without_exception_name(text: str) -> str:
    """A server's text without the name and place of a Java exception."""
    return _ACL.sub(r"\1", text)


def exit_code(error: Exception) -> int:
    """The exit code of a command that ends with this error; `admin` has EXIT_FAILED instead of EXIT_USAGE (ADM-01)."""
    from saturnmq.protocol.errors import ConfigError, SaturnError

    if isinstance(error, ConfigError):
        return EXIT_USAGE
    unanswered = error.code in _UNREACHABLE if isinstance(error, SaturnError) else False
    return EXIT_UNREACHABLE if unanswered or isinstance(error, ConnectionError | TimeoutError) else EXIT_FAILED


def fail(error: Exception, args: argparse.Namespace, code: int | None = None) -> int:
    """Report an error, with its traceback under --debug; return the exit code, by default that of `exit_code`."""
    from saturnmq.cli.next_step import next_step
    from saturnmq.protocol.errors import ConfigError, SaturnError

    if args.debug:
        import logging

        logging.getLogger("saturnmq").error("failed", exc_info=error)
    problems = error.problems if isinstance(error, ConfigError) else [_text(error)]
    number = error.code if isinstance(error, SaturnError) else None
    print_error(problems, next_step(error, _name(args)), number, args.json)
    return exit_code(error) if code is None else code


def _name(args: argparse.Namespace) -> str:
    """The name of the command, such as `store verify`; empty before one is chosen."""
    command = getattr(args, "command", None)
    return "" if command is None else command.name


def _text(error: Exception) -> str:
    """The error text without the exception class."""
    from saturnmq.protocol.errors import SaturnError

    if isinstance(error, SaturnError):
        return without_exception_name(error.message.partition(_SEE)[0])
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
        warn(f"error: {problem}")
    warn(f"next: {hint}")


def ready(command: str, facts: dict[str, str], args: argparse.Namespace) -> None:
    """Print the line that reports a server as ready (CLI-09), and notify the service manager."""
    from saturnmq.cli.systemd import report_ready  # here: it imports asyncio

    if args.json:
        emit(command, [facts])
    else:
        write("saturnmq: ready " + " ".join(f"{name}={value}" for name, value in facts.items()))
    report_ready()
