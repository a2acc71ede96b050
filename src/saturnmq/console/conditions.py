"""What a search looks for: tag, key, property, JSON path and text, all of which a message must meet. Pure.

Requirements: CON-09.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from saturnmq.client.message import Message
from saturnmq.console.forms import WrongField
from saturnmq.console.jsonpath import Step, equals, parse_path, reached
from saturnmq.protocol.errors import ConfigError, SaturnError

BODY_BYTES_MAX: Final = 256 * 1024  # a larger body matches no JSON path
VALUE_MAX: Final = 1000
FIELDS: Final = ("tag", "key", "property", "json", "text")


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
