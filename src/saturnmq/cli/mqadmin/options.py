"""Options of a command in mqadmin's form: parsing, and the help text.

Apache's tools parse with Commons CLI 1.2 (PosixParser): `-t orders`, `-torders`, `--topic orders`, `--topic=orders`,
`-topic orders`, `-ab` for the flags a and b. A word that belongs to no option is an error here.

Requirements: ADM-01, ADM-03, ADM-04.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from saturnmq.cli.commands import COMMON
from saturnmq.cli.table import Option, flag
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.signatures import SIGNATURES

ENV_VIP_CHANNEL: Final = "SATURNMQ_VIP_CHANNEL"
SECONDS_MAX: Final = 86_400
HELP_WIDTH: Final = 110  # characters
_DESCRIPTION_PAD: Final = 3


class WrongOptions(SaturnError):
    """Options that the command does not have, or required ones that are missing; the help text is printed."""


def opt(
    letter: str,
    long: str,
    help_text: str,
    *,
    required: bool = False,
    value: bool = True,
    group: str = "",
    is_extension: bool = False,
) -> Option:
    """One option. long: may end with a blank, which Apache's help prints; it is not typed."""
    names = (f"-{letter}", f"--{long}") if letter else (f"--{long}",)
    keywords: dict[str, Any] = {"help": help_text, "required": required}
    return Option(names, keywords if value else keywords | {"action": "store_true"}, group, is_extension)


HELP: Final = opt("h", "help", "Print help", value=False)
NAME_SERVERS: Final = opt("n", "namesrvAddr", "Name server address list, eg: '192.168.0.1:9876;192.168.0.2:9876'")


def seconds(text: str) -> float:
    """Parse a number of seconds, at most a day. Raises ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) <= SECONDS_MAX:
            return value
    raise argparse.ArgumentTypeError(f"{text!r:.80} must be seconds in 0..{SECONDS_MAX}")


# Options that every command has beside those of mqadmin; they have long names only.
COMMON_EXTENSIONS: Final = (
    *COMMON,
    flag("--dry-run", help="report changes on stderr instead of sending them"),
    flag("--vip-channel", help=f"ask brokers at their port minus 2; also {ENV_VIP_CHANNEL}=true"),
    Option(("--watch",), {"type": seconds, "default": 0.0, "help": "SECONDS: repeat a listing"}),
    Option(
        ("--tools-yml",),
        {"type": Path, "help": "FILE: accessKey and secretKey (default: $ROCKETMQ_HOME/conf/tools.yml, if it exists)"},
    ),
    Option(
        ("--signature",),
        {"choices": SIGNATURES, "default": "v1", "help": "v1 or v2: how requests are signed; v2: SaturnMQ only (default v1)"},
    ),
    Option(("--config",), {"type": Path, "help": "FILE: a node's configuration file; its tls.* keys apply"}),
    Option(("--timeout",), {"type": seconds, "default": 0.0, "help": "SECONDS: of one request (default 5)"}),
)  # fmt: skip
_EXTENSION_DEFAULTS: Final[dict[str, Any]] = {
    each.long: each.keywords.get("default", None if each.takes_value else False) for each in COMMON_EXTENSIONS
}
_EXTENSION_BY_NAME: Final = {each.names[0]: each for each in COMMON_EXTENSIONS}


def take_extensions(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The values of COMMON_EXTENSIONS, wherever they stand in a command line, and the other words. Raises WrongOptions."""
    values = dict(_EXTENSION_DEFAULTS)
    command_argv: list[str] = []
    tokens = iter(argv)
    for token in tokens:
        name, equals, text = token.partition("=")
        extension = _EXTENSION_BY_NAME.get(name)
        if extension is None or (equals and not extension.takes_value):
            command_argv.append(token)
        elif extension.takes_value:
            values[extension.long] = _value(extension, text if equals else next(tokens, None))
        else:
            values[extension.long] = True
    values["vip-channel"] |= os.environ.get(ENV_VIP_CHANNEL, "").strip().lower() == "true"
    return argparse.Namespace(**{name.replace("-", "_"): value for name, value in values.items()}), command_argv


def _value(extension: Option, text: str | None) -> Any:
    name, choices = extension.names[0], extension.keywords.get("choices")
    if text is None:
        raise WrongOptions(f"Missing argument for option: {name}")
    if choices and text not in choices:
        raise WrongOptions(f"{name} {text!r:.80} must be one of {', '.join(choices)}")
    try:
        return extension.keywords.get("type", str)(text)
    except argparse.ArgumentTypeError as error:
        raise WrongOptions(f"{name} {error}") from None


class AdminOptions(Mapping[str, str]):
    """Values by letter; an option without a value has the text "true"."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def __getitem__(self, letter: str) -> str:
        return self._values[letter]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def text(self, letter: str, default: str = "") -> str:
        """The value without blanks around it."""
        return self._values.get(letter, default).strip()

    def integer(self, letter: str, default: int) -> int:
        """A whole number. Raises WrongOptions."""
        value = self._values.get(letter)
        if value is None:
            return default
        try:
            return int(value.strip())
        except ValueError:
            raise WrongOptions(f"-{letter} {value!r:.80} must be a whole number") from None

    def boolean(self, letter: str, default: bool) -> bool:
        """Java's `Boolean.parseBoolean`: true in any case is true, everything else false."""
        value = self._values.get(letter)
        return default if value is None else value.strip().lower() == "true"


def parse(tokens: Sequence[str], options: Sequence[Option]) -> AdminOptions:
    """Parse the words after a command's name. Raises WrongOptions naming the word and the nearest option.

    Of an option that is given twice the first value counts, as with Commons CLI.
    """
    by_name = {name.lstrip("-").strip(): option for option in options for name in option.names}
    values: dict[str, str] = {}
    at = 0
    while at < len(tokens):
        matches = _recognise(tokens[at], by_name)
        at += 1
        for option, attached in matches:
            value = attached
            if option.takes_value and value is None:
                if at >= len(tokens) or _is_option(tokens[at], by_name):
                    raise WrongOptions(f"Missing argument for option: {option.key}")
                value = tokens[at]
                at += 1
            values.setdefault(option.key, "true" if value is None else value)
    if HELP.key not in values:
        _require(values, options)
    return AdminOptions(values)


def _is_option(token: str, by_name: Mapping[str, Option]) -> bool:
    return token.startswith("-") and token.lstrip("-") in by_name


def _recognise(token: str, by_name: Mapping[str, Option]) -> list[tuple[Option, str | None]]:
    """The options that a word names, with the value of the last one if the word holds it. `-ab`: the flags a and b."""
    name, equals, value = token.lstrip("-").partition("=")
    if token.startswith("-") and name in by_name and (by_name[name].takes_value or not equals):
        return [(by_name[name], value if equals else None)]
    if token.startswith("-") and not token.startswith("--"):
        flags: list[tuple[Option, str | None]] = []
        for at, letter in enumerate(token[1:], 2):
            option = by_name.get(letter)
            if option is None:
                break
            if option.takes_value:
                return [*flags, (option, token[at:] or None)]
            flags.append((option, None))
        else:
            if flags:
                return flags
    near = get_close_matches(name, list(by_name), 1)
    hint = f"; did you mean --{near[0]}?" if near and len(near[0]) > 1 else ""
    raise WrongOptions(f"Unrecognized option: {token!r:.120}{hint}")


def _require(values: Mapping[str, str], options: Sequence[Option]) -> None:
    missing = [option.key for option in options if option.is_required and option.key not in values]
    groups = {option.exclusive for option in options if option.exclusive}
    for group in sorted(groups):
        members = [option.key for option in options if option.exclusive == group]
        selected = [letter for letter in members if letter in values]
        if not selected:
            missing.append(" | ".join(f"-{letter}" for letter in members))
        elif len(selected) > 1:
            raise WrongOptions(
                f"The option '{selected[1]}' was specified but an option from this group was already selected: '{selected[0]}'"
            )
    if missing:
        raise WrongOptions(f"Missing required option{'s' * (len(missing) > 1)}: {', '.join(missing)}")


# ---- help, as HelpFormatter of Commons CLI 1.2 prints it


def help_text(name: str, options: Sequence[Option]) -> str:
    """The help of a command, 110 characters wide."""
    ordered = sorted((option for option in options if not option.is_extension), key=lambda option: option.key.lower())
    heads = [f" -{option.key},--{option.long}{' <arg>' * option.takes_value}" for option in ordered]
    column = max(map(len, heads)) + _DESCRIPTION_PAD
    usage = _usage(name, ordered)
    lines = _wrapped(usage, usage.index(" ") + 1)
    for head, option in zip(heads, ordered, strict=True):
        lines.extend(_wrapped(f"{head:<{column}}{option.help}", column))
    return "\n".join(lines)


def _usage(name: str, ordered: Sequence[Option]) -> str:
    """The usage line before it is wrapped. The second and later members of a group leave an empty word."""
    parts: list[str] = []
    groups_shown: set[str] = set()
    for option in ordered:
        if not option.exclusive:
            parts.append(_usage_word(option) if option.is_required else f"[{_usage_word(option)}]")
        elif option.exclusive in groups_shown:
            parts.append("")
        else:
            groups_shown.add(option.exclusive)
            parts.append(" | ".join(_usage_word(member) for member in ordered if member.exclusive == option.exclusive))
    return f"usage: mqadmin {name} " + " ".join(parts)


def _usage_word(option: Option) -> str:
    return f"-{option.key}{' <arg>' * option.takes_value}"


def _wrapped(text: str, indent: int) -> list[str]:
    """The text in lines of HELP_WIDTH, all but the first one indented."""
    lines: list[str] = []
    end = _wrap_position(text)
    while end is not None:
        lines.append(text[:end].rstrip())
        text = " " * indent + text[end:].strip()
        end = _wrap_position(text)
        if end == indent - 1 and len(text) > HELP_WIDTH:
            end = HELP_WIDTH  # a word longer than the line
    return [*lines, text if lines else text.rstrip()]


def _wrap_position(text: str) -> int | None:
    """Where the first line of a text ends: at a line break or tab, else at the last blank that fits, else at the next one."""
    for mark in "\n\t":
        at = text.find(mark)
        if 0 <= at <= HELP_WIDTH:
            return at + 1
    if len(text) <= HELP_WIDTH:
        return None
    blanks = [at for at, letter in enumerate(text) if letter in " \n\r"]
    before = [at for at in blanks if 0 < at <= HELP_WIDTH]
    after = [at for at in blanks if at > HELP_WIDTH]
    return before[-1] if before else after[0] if after else None
