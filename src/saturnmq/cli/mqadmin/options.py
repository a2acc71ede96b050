"""Options of a command in mqadmin's form: parsing, and the help text.

Apache's tools parse with Commons CLI 1.2 (PosixParser): `-t orders`, `-torders`, `--topic orders`, `--topic=orders`,
`-topic orders`, `-ab` for the flags a and b. A word that belongs to no option is an error here.

Requirements: ADM-01, ADM-03, ADM-04.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from saturnmq.protocol.errors import SaturnError

HELP_WIDTH: Final = 110  # characters
_DESCRIPTION_PAD: Final = 3


class WrongOptions(SaturnError):
    """Options that the command does not have, or required ones that are missing; the help text is printed."""


@dataclass(frozen=True)
class Opt:
    """One option.

    long: may end with a blank, which Apache's help prints; it is not typed. group: of the options with the same group name exactly
    one is required, as with Commons CLI's OptionGroup. is_extension: not an option of mqadmin; it has a long name only,
    and the help text, which is Apache's, does not show it.
    """

    letter: str
    long: str
    help: str
    required: bool = False
    value: bool = True
    group: str = ""
    is_extension: bool = False

    @property
    def key(self) -> str:
        """The key under which its value is found: the letter, or the long name of an option without one."""
        return self.letter or self.long


HELP: Final = Opt("h", "help", "Print help", value=False)
NAME_SERVERS: Final = Opt("n", "namesrvAddr", "Name server address list, eg: '192.168.0.1:9876;192.168.0.2:9876'")
COMMON: Final = (HELP, NAME_SERVERS)


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


def parse(tokens: Sequence[str], options: Sequence[Opt]) -> AdminOptions:
    """Parse the words after a command's name. Raises WrongOptions naming the word and the nearest option.

    Of an option that is given twice the first value counts, as with Commons CLI.
    """
    by_name = {name: option for option in options for name in (option.letter, option.long.strip()) if name}
    values: dict[str, str] = {}
    at = 0
    while at < len(tokens):
        matches = _recognise(tokens[at], by_name)
        at += 1
        for option, attached in matches:
            value = attached
            if option.value and value is None:
                if at >= len(tokens) or _is_option(tokens[at], by_name):
                    raise WrongOptions(f"Missing argument for option: {option.key}")
                value = tokens[at]
                at += 1
            values.setdefault(option.key, "true" if value is None else value)
    if HELP.key not in values:
        _require(values, options)
    return AdminOptions(values)


def _is_option(token: str, by_name: Mapping[str, Opt]) -> bool:
    return token.startswith("-") and token.lstrip("-") in by_name


def _recognise(token: str, by_name: Mapping[str, Opt]) -> list[tuple[Opt, str | None]]:
    """The options that a word names, with the value of the last one if the word holds it. `-ab`: the flags a and b."""
    name, equals, value = token.lstrip("-").partition("=")
    if token.startswith("-") and name in by_name and (by_name[name].value or not equals):
        return [(by_name[name], value if equals else None)]
    if token.startswith("-") and not token.startswith("--"):
        flags: list[tuple[Opt, str | None]] = []
        for at, letter in enumerate(token[1:], 2):
            option = by_name.get(letter)
            if option is None:
                break
            if option.value:
                return [*flags, (option, token[at:] or None)]
            flags.append((option, None))
        else:
            if flags:
                return flags
    near = get_close_matches(name, list(by_name), 1)
    hint = f"; did you mean --{near[0]}?" if near and len(near[0]) > 1 else ""
    raise WrongOptions(f"Unrecognized option: {token!r:.120}{hint}")


def _require(values: Mapping[str, str], options: Sequence[Opt]) -> None:
    missing = [option.letter for option in options if option.required and option.key not in values]
    groups = {option.group for option in options if option.group}
    for group in sorted(groups):
        members = [option.letter for option in options if option.group == group]
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


def help_text(name: str, options: Sequence[Opt]) -> str:
    """The help of a command, 110 characters wide."""
    ordered = sorted(
        (option for option in options if not option.is_extension), key=lambda option: option.letter.lower()
    )
    heads = [f" -{option.letter},--{option.long}{' <arg>' * option.value}" for option in ordered]
    column = max(map(len, heads)) + _DESCRIPTION_PAD
    usage = _usage(name, ordered)
    lines = _wrapped(usage, usage.index(" ") + 1)
    for head, option in zip(heads, ordered, strict=True):
        lines.extend(_wrapped(f"{head:<{column}}{option.help}", column))
    return "\n".join(lines)


def _usage(name: str, ordered: Sequence[Opt]) -> str:
    """The usage line before it is wrapped. The second and later members of a group leave an empty word."""
    parts: list[str] = []
    groups_shown: set[str] = set()
    for option in ordered:
        if not option.group:
            parts.append(_usage_word(option) if option.required else f"[{_usage_word(option)}]")
        elif option.group in groups_shown:
            parts.append("")
        else:
            groups_shown.add(option.group)
            parts.append(" | ".join(_usage_word(member) for member in ordered if member.group == option.group))
    return f"usage: mqadmin {name} " + " ".join(parts)


def _usage_word(option: Opt) -> str:
    return f"-{option.letter}{' <arg>' * option.value}"


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
