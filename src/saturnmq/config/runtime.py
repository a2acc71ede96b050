"""Configuration that administrators change while a server runs: which keys, and the new values.

The keys are those with `runtime` in the settings classes. Settings are frozen for everything that reads them;
`RuntimeSettings.apply` is their only writer, so readers that ask a settings object at each use see the new value. Pure.

Requirements: SEC-03, SEC-07, NS-29.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from saturnmq.config.settings import MASK, keys_of, parse_value, to_properties, type_of
from saturnmq.protocol.errors import ConfigError

_LINE: Final = re.compile(r"[^\n]*\n?")


SHOWN_CHARACTERS: Final = 100  # of a key or value of a request in an error
_SHOWN_KEYS: Final = 10


class SettingChange(NamedTuple):
    """A key with its new value, and both values as text."""

    name: str
    owner: object
    attribute: str
    value: object
    before: str
    after: str


class FixedKey(ConfigError):
    """A key that cannot be changed while the server runs."""


class BlackListedKey(FixedKey):
    """A key that requests may not even name."""


class RuntimeSettings:
    """The settings objects of one server. fixed: keys that this server takes at its start only, with the reason.

    black_list: keys that requests may not even name; the value says what would allow it. required: keys that cannot become empty.
    """

    def __init__(
        self,
        *parts: Any,
        fixed: Mapping[str, str] | None = None,
        black_list: Mapping[str, str] | None = None,
        required: frozenset[str] = frozenset(),
    ) -> None:
        self._parts = parts
        self._required = required
        self._black_list = dict(black_list or {})
        self._fixed = dict(fixed or {})

    @property
    def reloadable(self) -> list[str]:
        """The keys that can change when the file is read again, sorted."""
        return sorted(
            name
            for part in self._parts
            for name, (_, meta) in keys_of(type(part)).items()
            if meta.runtime and name not in self._fixed
        )

    @property
    def names(self) -> list[str]:
        """The keys that a request can change, sorted."""
        return [name for name in self.reloadable if name not in self._black_list]

    def part(self, cls: type[Any]) -> Any | None:
        """The settings object of a class; None if there is none."""
        return next((part for part in self._parts if type(part) is cls), None)

    def parse(self, pairs: Mapping[str, str], unchanged: Mapping[str, str]) -> list[SettingChange]:
        """The changes that these pairs ask for; pairs with the present value ask for none. Changes nothing.

        unchanged: values of further keys, which may be named but not changed. Raises FixedKey that names the keys and those that
        can change, ConfigError with all invalid values.
        """
        listed = sorted(set(pairs) & set(self._black_list))
        if listed:
            reasons = "; ".join(f"{name}: {self._black_list[name]}" for name in listed)
            raise BlackListedKey(f"{reasons}; nothing was changed")
        return self._parse(pairs, unchanged, self.names)

    def parse_reloaded(self, parts: Iterable[Any]) -> list[SettingChange]:
        """The changes to the values of `parts`, as `differing_values` selects them. Raises ConfigError."""
        return self._parse(self.differing_values(parts), {}, self.reloadable)

    def _parse(self, pairs: Mapping[str, str], unchanged: Mapping[str, str], names: list[str]) -> list[SettingChange]:
        changes: list[SettingChange] = []
        refused: list[str] = []
        problems: list[str] = []
        present: dict[str, str] = {}
        owners: dict[str, Any] = {}
        for part in self._parts:
            for name, text in to_properties(part).items():
                present[name], owners[name] = text, part
        present |= unchanged
        for name, raw in pairs.items():
            text, owner = raw.strip(), owners.get(name)
            if name in present and text in (present[name].strip(), MASK):
                continue
            if owner is None or name not in names:
                refused.append(name)
                continue
            attribute, meta = keys_of(type(owner))[name]
            try:
                if not text and name in self._required:
                    raise ValueError("cannot become empty while the server runs")
                value = parse_value(text, type_of(type(owner), attribute), meta)
            except ValueError as error:
                problems.append(f"{name}={text[:SHOWN_CHARACTERS]!r}: {error}")
                continue
            if value == getattr(owner, attribute):
                continue
            after = to_properties(dataclasses.replace(owner, **{attribute: value}))[name]
            if isinstance(meta.runtime, tuple) and after not in meta.runtime:
                problems.append(f"{name}={text!r}: while the server runs it can only become {', '.join(meta.runtime)}")
                continue
            changes.append(SettingChange(name, owner, attribute, value, present[name], after))
        if refused:
            reasons = "".join(f" ({self._fixed[name]})" for name in refused if name in self._fixed)
            unknown_names = [name for name in refused if name not in owners and name not in self._fixed]
            near = (
                get_close_matches(unknown_names[0][:SHOWN_CHARACTERS], owners, 1) if unknown_names else []
            )  # one: it takes milliseconds
            reasons += f" (did you mean {near[0]}?)" if near else ""
            raise FixedKey(
                f"{_some(refused)} cannot change at run time{reasons}; nothing was changed. Set it in the "
                f"configuration file and restart this server. Keys that can: {', '.join(names)}"
            )
        problems += [text for part in self._parts for text in _problems(part, changes)]
        if problems:
            raise ConfigError(problems)
        return changes

    def differing_values(self, parts: Iterable[Any]) -> dict[str, str]:
        """The keys that can change and have another value in `parts`, settings of the same classes, with that value.

        A value that the key cannot take while the server runs is left out.
        """
        differing_values = {}
        names = set(self.reloadable)
        current = {type(part): to_properties(part) for part in self._parts}
        for part in parts:
            present = current.get(type(part), {})
            for name, text in to_properties(part).items():
                runtime = keys_of(type(part))[name][1].runtime
                allowed = text in runtime if isinstance(runtime, tuple) else text or name not in self._required
                if name in names and name in present and text != present[name] and allowed:
                    differing_values[name] = text
        return differing_values

    def apply(self, changes: Iterable[SettingChange]) -> None:
        """Set the new values in the settings objects, for all their readers at once."""
        for change in changes:
            object.__setattr__(change.owner, change.attribute, change.value)


def _problems(part: Any, changes: Iterable[SettingChange]) -> list[str]:
    """The problems that `validate` reports about a settings object with the changes."""
    values = {change.attribute: change.value for change in changes if change.owner is part}
    validate = getattr(part, "validate", None)
    return list(dataclasses.replace(part, **values).validate()) if values and validate is not None else []


def _some(names: list[str]) -> str:
    """The first of these keys, for an error."""
    shown = ", ".join(name[:SHOWN_CHARACTERS] for name in sorted(names)[:_SHOWN_KEYS])
    return shown + (f" and {len(names) - _SHOWN_KEYS} more" if len(names) > _SHOWN_KEYS else "")


def edited(text: str, values: Mapping[str, str]) -> str:
    """The text of a properties file with new values of some keys: their lines are replaced, missing keys are appended.

    Comments and all other lines stay as they are.
    """
    lines: list[str] = []
    unwritten = dict(values)
    continued = drop = False
    for line in _LINE.findall(text):
        body = line.strip()
        if not continued:
            name = re.split(r"[=:\s]", body, maxsplit=1)[0] if body and body[0] not in "#!" else ""
            drop = name in values
            if name in unwritten:
                lines.append(f"{name}={unwritten.pop(name)}\n")
        comment = not continued and body[:1] in ("#", "!")
        continued = not comment and (len(body) - len(body.rstrip("\\"))) % 2 == 1
        if not drop and line:
            lines.append(line if line.endswith("\n") else line + "\n")
    return "".join(lines) + "".join(f"{name}={value}\n" for name, value in unwritten.items())
