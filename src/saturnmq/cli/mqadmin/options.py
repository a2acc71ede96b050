"""Options of a command in mqadmin's form: parsing, and the help text.

Apache's tools parse with Commons CLI 1.2 (PosixParser): `-t orders`, `-torders`, `--topic orders`, `--topic=orders`,
`-topic orders`.

Requirements: ADM-01, ADM-03, ADM-04.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from textwrap import wrap
from typing import Final

from saturnmq.protocol.errors import SaturnError

HELP_WIDTH: Final = 110
_LEFT_PAD: Final = 1
_DESCRIPTION_PAD: Final = 3


class WrongOptions(SaturnError):
    """Options that the command does not have, or required ones that are missing; the help text is printed."""


@dataclass(frozen=True)
class Opt:
    """One option.

    long: may end with a blank, which Apache's help prints; it is not typed. group: of the options with the same group name exactly
    one is required, as with Commons CLI's OptionGroup. ours: not an option of mqadmin; it has a long name only, and the help text,
    which is Apache's, does not show it.
    """

    letter: str
    long: str
    help: str
    required: bool = False
    value: bool = True
    group: str = ""
    ours: bool = False

    @property
    def key(self) -> str:
        """The key under which its value is found: the letter, or the long name of an option without one."""
        return self.letter or self.long


HELP: Final = Opt("h", "help", "Print help", value=False)
NAME_SERVERS: Final = Opt("n", "namesrvAddr", "Name server address list, eg: '192.168.0.1:9876;192.168.0.2:9876'")
COMMON: Final = (HELP, NAME_SERVERS)


class Options(Mapping[str, str]):
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


def parse(words: Sequence[str], options: Sequence[Opt]) -> Options:
    """Parse the words after a command's name. Raises WrongOptions naming the word and the nearest option."""
    by_name = {name: option for option in options for name in (option.letter, option.long.strip()) if name}
    values: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        option, value = _recognise(word, by_name)
        if option.value and value is None:
            if at >= len(words):
                raise WrongOptions(f"Missing argument for option: {option.letter}")
            value = words[at]
            at += 1
        values[option.key] = "true" if value is None else value
    if HELP.key not in values:
        _require(values, options)
    return Options(values)


def _recognise(word: str, by_name: Mapping[str, Opt]) -> tuple[Opt, str | None]:
    """The option that a word names, and its value if the word holds one."""
    name, equals, value = word.lstrip("-").partition("=")
    if word.startswith("-") and name in by_name and (by_name[name].value or not equals):
        return by_name[name], value if equals else None
    if word.startswith("-") and not word.startswith("--") and len(word) > 2 and word[1] in by_name:
        option = by_name[word[1]]
        if option.value:
            return option, word[2:]
    near = get_close_matches(name, list(by_name), 1)
    hint = f"; did you mean --{near[0]}?" if near and len(near[0]) > 1 else ""
    raise WrongOptions(f"Unrecognized option: {word!r:.120}{hint}")


def _require(values: Mapping[str, str], options: Sequence[Opt]) -> None:
    missing = [option.letter for option in options if option.required and option.key not in values]
    groups = {option.group for option in options if option.group}
    for group in sorted(groups):
        members = [option.letter for option in options if option.group == group]
        given = [letter for letter in members if letter in values]
        if not given:
            missing.append(" | ".join(f"-{letter}" for letter in members))
        elif len(given) > 1:
            raise WrongOptions(
                f"The option '{given[1]}' was specified but an option from this group was already selected: '{given[0]}'"
            )
    if missing:
        raise WrongOptions(f"Missing required option{'s' * (len(missing) > 1)}: {', '.join(missing)}")


def help_text(name: str, options: Sequence[Opt]) -> str:
    """The help of a command as Commons CLI formats it, 110 characters wide."""
    ordered = sorted(
        (one for one in options if not one.ours), key=lambda option: (option.letter.lower(), option.letter)
    )
    left = [f"{' ' * _LEFT_PAD}-{one.letter},--{one.long}{' <arg>' * one.value}" for one in ordered]
    column = max(map(len, left)) + _DESCRIPTION_PAD
    lines = [*_usage(name, ordered)]
    for head, option in zip(left, ordered, strict=True):
        first, *others = wrap(option.help, HELP_WIDTH - column) or [""]
        lines.append(f"{head:<{column}}{first}".rstrip())
        lines.extend(" " * column + other for other in others)
    return "\n".join(lines)


def _usage(name: str, ordered: Sequence[Opt]) -> list[str]:
    words: list[str] = []
    seen: set[str] = set()
    for option in ordered:
        if option.group:
            if option.group not in seen:
                seen.add(option.group)
                members = " | ".join(_usage_word(one) for one in ordered if one.group == option.group)
                words.append(f"{members} ")  # Commons CLI puts another blank behind a group
            continue
        word = _usage_word(option)
        words.append(word if option.required else f"[{word}]")
    text = f"usage: mqadmin {name} " + " ".join(words)
    indent = " " * len("usage: ")
    return wrap(text, HELP_WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _usage_word(option: Opt) -> str:
    return f"-{option.letter}{' <arg>' * option.value}"
