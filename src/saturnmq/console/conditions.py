"""What a search looks for: tag, key, property, JSON path and text, all of which a message must meet. Pure.

A JSON path is such as `order.items[0].id`, `items[*].id`, `$['a b']`.

Requirements: CON-09.
"""

# path  = ["$"] step*          step  = "." name | "[" index "]" | "[" quoted "]" | ".*" | "[*]"
# name  = characters except . [ ]   quoted = '...' or "..."   a first name needs no dot
from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from saturnmq.client.message import Message
from saturnmq.console.forms import WrongField
from saturnmq.escaping import escaped
from saturnmq.protocol.errors import ConfigError, SaturnError

BODY_BYTES_MAX: Final = 256 * 1024  # a larger body matches no JSON path
VALUE_MAX: Final = 1000
SHOWN_MAX: Final = 120  # characters of a body in a list
STEPS_MAX: Final = 32
VALUES_MAX: Final = 10_000  # that a path with * may reach in one body
PATH_MAX: Final = 500
_STEP: Final = re.compile(
    r"""\.?(?P<name>[^.\[\]'"*$][^.\[\]]*)|\.?(?P<any>\*)|\[(?P<all>\*)\]|\[(?P<index>\d{1,9})\]|\['(?P<one>[^']*)'\]|\["(?P<two>[^"]*)"\]"""
)
FIELDS: Final = ("tag", "key", "property", "json", "text")
Step = str | int | None  # None: every value


@dataclass(frozen=True)
class Conditions:
    """Empty fields are met by every message. path: None without a condition on the body's JSON."""

    tag: str = ""
    key: str = ""
    property: str = ""
    property_value: str | None = None
    path: tuple[Step, ...] | None = None
    path_value: str | None = None
    text: bytes = b""

    def met(self, message: Message[bytes]) -> bool:
        """Whether a message meets all. Nothing is found in a body that does not decompress."""
        if self.tag and message.tag != self.tag:
            return False
        if self.key and self.key not in message.keys:
            return False
        if self.property and not _same(message.properties.get(self.property), self.property_value):
            return False
        if not self.text and self.path is None:
            return True
        body = readable(message)
        return body is not None and self.text in body and (self.path is None or self._in_body(body))

    def _in_body(self, body: bytes) -> bool:
        if len(body) > BODY_BYTES_MAX or body.lstrip()[:1] not in (b"{", b"["):
            return False
        try:
            document: Any = json.loads(body)
        except (ValueError, RecursionError):
            return False
        expected = self.path_value
        return any(expected is None or equals(value, expected) for value in reached(document, self.path or ()))


def readable(message: Message[bytes]) -> bytes | None:
    """The body; None if it does not decompress."""
    try:
        return message.body
    except SaturnError:
        return None


def beginning(body: bytes | None) -> str:
    """The beginning of a body as text, for a list; empty for none."""
    return "" if body is None else escaped(body[: 4 * SHOWN_MAX].decode(errors="replace")[:SHOWN_MAX])


def parse_conditions(form: Mapping[str, Any]) -> Conditions:
    """The conditions of a form: `property` and `json` as name=value or name alone. Raises ConfigError."""
    inputs = {name: str(form.get(name, "")).strip() for name in FIELDS}
    for name, value in inputs.items():
        if len(value) > VALUE_MAX:
            raise WrongField(name, f"{name} has {len(value)} characters; at most {VALUE_MAX} are allowed")
    property_name, property_value = _pair(inputs["property"])
    path, path_value = _pair(inputs["json"])
    try:
        steps = parse_path(path) if path else None
    except ConfigError as error:
        raise WrongField("json", error.message) from None
    return Conditions(
        tag=inputs["tag"],
        key=inputs["key"],
        property=property_name,
        property_value=property_value,
        path=steps,
        path_value=path_value,
        text=inputs["text"].encode(),
    )


def _pair(text: str) -> tuple[str, str | None]:
    name, equal, value = text.partition("=")
    return name.strip(), value.strip() if equal else None


def _same(actual: str | None, expected: str | None) -> bool:
    return actual is not None and (expected is None or actual == expected)


# ---- JSON paths


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
