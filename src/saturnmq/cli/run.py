"""Runs one command: parses, sets up logging, calls the function of the command's row, and maps errors to exit codes.

Requirements: CLI-01..CLI-04, CLI-11.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import saturnmq
from saturnmq.cli.commands import build_parser
from saturnmq.cli.output import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    emit,
    fail,
    write,
)
from saturnmq.cli.runtime import implementation, version_facts
from saturnmq.cli.table import Command
from saturnmq.protocol.errors import ConfigError, SaturnError


def print_version(as_json: bool) -> int:
    """Print the version and what it runs on."""
    if as_json:
        emit("version", [{"version": saturnmq.__version__, **version_facts()}])
    else:
        pairs = " ".join(f"{name}={value}" for name, value in version_facts().items())
        write(f"saturnmq {saturnmq.__version__} {pairs}")
    return EXIT_DONE


def set_up_logging(*, debug: bool, quiet: bool) -> None:
    """Log to stderr, one line per event."""
    import logging

    from saturnmq.escaping import OneLine

    level = logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    command: Command | None = getattr(args, "command", None)
    if rest and not (command is not None and command.delegates):
        parser.parse_args(argv)  # reports the unknown options
    args.rest = rest
    try:
        if args.version:
            return print_version(args.json)
        if command is None:
            parser.print_help(sys.stderr)
            return EXIT_USAGE
        set_up_logging(debug=args.debug, quiet=args.quiet)
        implementation()
        code = command.load()(args)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        return fail(error, args, EXIT_USAGE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except ConnectionError as error:
        return fail(error, args, EXIT_UNREACHABLE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (SaturnError, OSError) as error:
        return fail(error, args, EXIT_FAILED)
