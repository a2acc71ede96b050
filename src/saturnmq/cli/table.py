"""The rows of the command table: commands and options, and the parser made from them.

Requirements: CLI-01, CLI-03.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, NoReturn

from saturnmq.cli.output import EXIT_USAGE, print_error

PORT_MAX: Final = 65535
_CHOICE: Final = re.compile(
    r"argument (?P<what>[^:]+): invalid choice: '(?P<word>.*)' \(choose from (?P<names>.*)\)$"
)  # as argparse says it
_VALUE: Final = re.compile(
    r"^argument (?:-\w/)?(?P<name>--[a-z-]+): (?P<problem>'.*' must be .*)$", re.DOTALL
)  # of `type`
_PORT_AFTER_P: Final = re.compile(r"unrecognized arguments: (\d+)$")


class Option(NamedTuple):
    """One option or argument. keywords: of `ArgumentParser.add_argument`.

    exclusive: of this group at most one is allowed, and of a command in mqadmin's form exactly one is required. is_extension: of a
    command in mqadmin's form: not an option of mqadmin; it has a long name only, and the help text, which is Apache's, does not
    show it.
    """

    names: tuple[str, ...]
    keywords: dict[str, Any]
    exclusive: str = ""
    is_extension: bool = False

    @property
    def key(self) -> str:
        """The first name without dashes: the letter, if the option has one."""
        return self.names[0].lstrip("-")

    @property
    def long(self) -> str:
        """The last name without dashes."""
        return self.names[-1].lstrip("-")

    @property
    def help(self) -> str:
        """The meaning."""
        return str(self.keywords["help"])

    @property
    def is_required(self) -> bool:
        """Whether the option must be given."""
        return bool(self.keywords.get("required"))

    @property
    def takes_value(self) -> bool:
        """Whether a value follows."""
        return self.keywords.get("action") != "store_true"


def option(*names: str, exclusive: str = "", **keywords: Any) -> Option:
    """Define an option as `ArgumentParser.add_argument` does."""
    return Option(names, keywords, exclusive)


def flag(*names: str, exclusive: str = "", **keywords: Any) -> Option:
    """Define an option without a value."""
    return Option(names, {"action": "store_true", **keywords}, exclusive)


class CliCommand(NamedTuple):
    """One row of the table.

    name: the words after `saturnmq`, separated by blanks; in mqadmin's form the word after `saturnmq admin`. function:
    `module:function`, imported when the command runs; it gets the parsed options and returns an exit code. It is empty for a name
    under which further commands stand.
    delegates: options other than the common ones are parsed by the function, which finds them in `args.unparsed`.
    Of commands in mqadmin's form: changes: whether it changes something, and so knows --dry-run; listing: whether --watch is of
    use; is_extension: not in Apache's list.
    """

    name: str
    help: str
    example: str
    function: str = ""
    options: tuple[Option, ...] = ()
    delegates: bool = False
    aliases: tuple[str, ...] = ()
    changes: bool = False
    listing: bool = False
    is_extension: bool = False

    def load(self) -> Callable[..., Any]:
        """Import and return the function."""
        module, _, name = self.function.partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        return function


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in the format of the commands."""

    def error(self, message: str) -> NoReturn:
        """Report invalid options, with the nearest name of a command, and exit with code 2."""
        choice = _CHOICE.match(message)
        if choice is None:
            self.report(_VALUE.sub(r"\g<name> \g<problem>", message))
        names = re.findall(r"'([^']+)'", choice["names"]) or choice["names"].split(", ")
        near = _nearest(choice["word"], names)
        kind = "command" if choice["what"] in ("COMMAND", "ACTION") else choice["what"]
        listed = "" if near else f"; there are: {', '.join(names)}"
        self.report(f"unknown {kind} {choice['word']!r}{listed}", f"did you mean {near[0]}?" if near else "")

    def report_unknown(
        self, arguments: Sequence[str], command: CliCommand | None, common: Sequence[Option]
    ) -> NoReturn:
        """Report words that belong to no option of a command, with the nearest option, and exit with code 2."""
        options = (*(command.options if command is not None else ()), *common)
        names = [name for option in options for name in option.names if name.startswith("--")]
        strange = next((argument.partition("=")[0] for argument in arguments if argument.startswith("--")), "")
        near = _nearest(strange, names) if strange else []
        prog = f"{self.prog} {command.name}" if command is not None else self.prog
        hint = f"did you mean {near[0]}? " if near else ""
        self.report(f"unrecognized arguments: {' '.join(arguments)}", f"{hint}{prog} --help lists the options.")

    def report(self, message: str, hint: str = "") -> NoReturn:
        """Print an error and what to do, and exit with code 2."""
        argv = sys.argv[1:]
        port = _PORT_AFTER_P.match(message)
        if port and "-p" in argv:
            hint = f"-p prints the configuration, as mqbroker's does; the port is --port {port[1]} (key listenPort)."
        print_error([message], hint or f"{self.prog} --help lists the options.", None, as_json="--json" in argv)
        raise SystemExit(EXIT_USAGE)


def _nearest(name: str, names: Sequence[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, names, 1)


def whole_number(low: int, high: int, noun: str = "number") -> Callable[[str], int]:
    """The type of an option that is a whole number in a range."""

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > 12 or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} must be a {noun} in {low}..{high}")
        return int(text)

    return parse


port_number: Final = whole_number(0, PORT_MAX, "port")  # 0 selects a free one


def quantity(kind: str, low: int, high: int, allowed: str = "") -> Callable[[str], int]:
    """The type of an option that is a "duration", in ms, or a "size", in bytes. allowed: the range, for people."""

    def parse(text: str) -> int:
        from saturnmq.config.settings import parse_duration_ms, parse_size

        try:
            value = parse_size(text) if kind == "size" else parse_duration_ms(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text[:60]!r} {error}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text[:60]!r} must be {allowed or f'in {low}..{high}'}")
        return value

    return parse


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option], **more: Any) -> None:
    """Add options to a parser. more: keywords that override those of every option."""
    groups: dict[str, argparse._MutuallyExclusiveGroup] = {}
    for each in options:
        target: Any = parser
        if each.exclusive:
            target = groups.get(each.exclusive) or groups.setdefault(
                each.exclusive, parser.add_mutually_exclusive_group()
            )
        target.add_argument(*each.names, **{**each.keywords, **more})


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!")) else ".")


def parser_of(
    description: str,
    commands: Sequence[CliCommand],
    common: Sequence[Option],
    root_only: Sequence[Option],
    argv: Sequence[str] | None = None,
) -> Parser:
    """Build the parser of a whole command line.

    The common options are accepted before and after every command name: the root has their defaults, and a command sets only those
    that it was given.

    argv: the words to be parsed. The options of a command that they do not name are left out: those of all commands take longer to
    build than a NameServer takes to start.
    """
    root = Parser(prog="saturnmq", description=description)
    add_options(root, (*root_only, *common))
    unnamed = Parser(add_help=False)  # in the list of commands only

    def make(*, named: bool = True, **options: Any) -> Parser:
        return Parser(**options) if named else unnamed

    parser_class: Any = make
    groups: dict[str, Any] = {"": root.add_subparsers(dest="verb", metavar="COMMAND", parser_class=parser_class)}
    for command in commands:
        parent, _, name = command.name.rpartition(" ")
        if parent not in groups:
            continue
        if argv is not None and name not in argv:
            groups[parent].add_parser(name, help=command.help, named=False)
            continue
        parser: argparse.ArgumentParser = groups[parent].add_parser(
            name,
            help=command.help,
            description=sentence(command.help),
            epilog=f"example: {command.example}",
            add_help=not command.delegates,
            allow_abbrev=not command.delegates,
        )
        parser.set_defaults(command=command)
        add_options(parser, common, default=argparse.SUPPRESS)
        add_options(parser, command.options)
        if any(subcommand.name.startswith(command.name + " ") for subcommand in commands):
            groups[command.name] = parser.add_subparsers(
                dest="action", metavar="ACTION", required=not command.function, parser_class=parser_class
            )
    return root
