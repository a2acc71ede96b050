"""Paths into JSON bodies: `order.items[0].id`, `items[*].id`, `$['a b']`. Pure.

Requirements: CON-09.
"""

# path  = ["$"] step*          step  = "." name | "[" index "]" | "[" quoted "]" | ".*" | "[*]"
# name  = characters except . [ ]   quoted = '...' or "..."   a first name needs no dot
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from saturnmq.protocol.errors import ConfigError

STEPS_MAX: Final = 32
VALUES_MAX: Final = 10_000  # that a path with * may reach in one body
PATH_MAX: Final = 500
_STEP: Final = re.compile(
    r"""\.?(?P<name>[^.\[\]'"*$][^.\[\]]*)|\.?(?P<any>\*)|\[(?P<all>\*)\]|\[(?P<index>\d{1,9})\]|\['(?P<one>[^']*)'\]|\["(?P<two>[^"]*)"\]"""
)
Step = str | int | None  # None: every value


def parse_path(text: str) -> tuple[Step, ...]:
    """The steps of a path. Raises ConfigError naming where it is wrong.

    Example:
        values = list(reached(json.loads(body), parse_path("order.items[*].id")))
    """
    if len(text) > PATH_MAX:
        raise ConfigError(f"the JSON path has {len(text)} characters; at most {PATH_MAX} are allowed")
    at, steps = 1 if text.startswith("$") else 0, list[Step]()
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or len(steps) == STEPS_MAX:
            why = f"at character {at + 1}" if match is None else f"it has more than {STEPS_MAX} steps"
            raise ConfigError(f"JSON path {text!r:.80} {why}; write such as order.items[0].id or items[*].id")
        steps.append(_step(match))
        at = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["any"] or match["all"]:
        return None
    if match["index"] is not None:
        return int(match["index"])
    return next(name for name in (match["name"], match["one"], match["two"]) if name is not None)


def reached(document: Any, steps: tuple[Step, ...]) -> Iterator[Any]:
    """The values at a path, at most VALUES_MAX."""
    values = [document]
    for step in steps:
        values = [value for parent in values for value in _below(parent, step)][:VALUES_MAX]
    yield from values


def _below(value: Any, step: Step) -> list[Any]:
    if isinstance(value, dict):
        if step is None:
            return list(value.values())
        return [value[str(step)]] if str(step) in value else []
    if isinstance(value, list):
        if step is None:
            return value
        return [value[step]] if isinstance(step, int) and step < len(value) else []
    return []


def equals(value: Any, text: str) -> bool:
    """Whether a JSON value is written as text: strings as they are, all else as JSON."""
    if isinstance(value, str):
        return value == text
    if isinstance(value, dict | list):
        return False
    return json.dumps(value) == text
