"""Validation of names, bodies and properties that every broker would reject, before any I/O. Pure.

Requirements: PR-04, PR-09, SND-04, SND-05, SPR-08.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from saturnmq.errors import MessageRefused
from saturnmq.protocol.codes import (
    DEFAULT_CONSUMER_GROUP,
    DEFAULT_PRODUCER_GROUP,
    FORBIDDEN_SEND_TOPICS,
    GROUP_LENGTH_MAX,
    NAME_LENGTH_MAX,
    RESERVED_PROPERTIES,
)
from saturnmq.protocol.message import NAME_SEPARATOR, PAIR_SEPARATOR, PROPERTIES_BYTES_MAX
from saturnmq.protocol.names import LEGAL_NAME, PATTERN

_JAVA_BLANKS: Final = "".join(map(chr, range(33)))  # what Java's String.trim removes; other Unicode blanks are text


def group_problem(group: str, default: str) -> str | None:
    """Why the group name is invalid, None if it is valid. default: the reserved name (PR-04, CA-06)."""
    if not isinstance(group, str) or not group.strip():
        return "group is blank, must be 1..255 characters of %|a-zA-Z0-9_-"
    if len(group) > GROUP_LENGTH_MAX:
        return f"group has {len(group)} characters, must be 1..{GROUP_LENGTH_MAX}"
    if not LEGAL_NAME.fullmatch(group):
        return f"group {group!r:.80} contains illegal characters, allowing only %|a-zA-Z0-9_-"
    if group == default:
        return f"group {group} is reserved, choose another name"
    return None


def option_problems(
    options: Mapping[str, Any], known: Iterable[str], kind: str = "option"
) -> tuple[list[str], dict[str, Any]]:
    """One problem for each unknown name, with the nearest known one; and the other options."""
    names = list(known)
    problems = []
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.5)
            advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(names))}"
            problems.append(f"unknown {kind} {name[:60]!r}, {advice}")
    return problems, {name: value for name, value in options.items() if name in names}


def range_problems(settings: Any, ranges: Mapping[str, tuple[float, float]]) -> list[str]:
    """One problem for each field outside of its range. A field whose default is an int takes no other number."""
    problems = []
    for name, (low, high) in ranges.items():
        value, default = getattr(settings, name), type(settings).__dataclass_fields__[name].default
        kind = int if isinstance(default, int) else int | float
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
            problems.append(f"{name} is {value!r}, must be {low}..{high}")
    return problems


def producer_group_problem(group: str) -> str | None:
    return group_problem(group, DEFAULT_PRODUCER_GROUP)


def consumer_group_problem(group: str) -> str | None:
    return group_problem(group, DEFAULT_CONSUMER_GROUP)


def check_topic(topic: str, *, sending: bool = True) -> None:
    """Raise MessageRefused for an invalid topic name; with sending, also for topics that clients must not send to (PR-09)."""
    if not isinstance(topic, str) or not topic.strip():
        raise MessageRefused("The specified topic is blank.")
    if not LEGAL_NAME.fullmatch(topic):
        raise MessageRefused(f"The specified topic {topic!r:.150} contains illegal characters, allowing only {PATTERN}")
    if len(topic) > NAME_LENGTH_MAX:
        raise MessageRefused(f"The specified topic is longer than topic max length {NAME_LENGTH_MAX}: {len(topic)}.")
    if sending and topic in FORBIDDEN_SEND_TOPICS:
        raise MessageRefused(f"Sending message to topic [{topic}] is forbidden.")


def check_body(body: bytes, bytes_max: int) -> None:
    """Raise MessageRefused unless the body has 1..bytes_max bytes (PR-09). A Java consumer gets null for an empty body."""
    if not body:
        raise MessageRefused(
            "the message body is empty, must have at least 1 byte",
            hint="Java clients refuse it too, and Java consumers would get null: put a marker in the body or in a property.",
        )
    if len(body) > bytes_max:
        raise MessageRefused(f"the message body has {len(body)} bytes, more than body_bytes_max {bytes_max}")


def check_text(name: str, text: str) -> None:
    """Raise MessageRefused for a non-string, or text with a separator of the property string (0x01, 0x02)."""
    if not isinstance(text, str):
        raise MessageRefused(f"{name} is {type(text).__name__}, must be text")
    if PAIR_SEPARATOR in text or NAME_SEPARATOR in text:
        raise MessageRefused(f"{name} holds a separator character 0x01 or 0x02")


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise MessageRefused for reserved names, blank names or values, and separator characters (SPR-08)."""
    for name, value in properties.items():
        check_text("a property name", name)
        if name in RESERVED_PROPERTIES:
            raise MessageRefused(f"The Property<{name}> is used by system, input another please")
        if not name.strip(_JAVA_BLANKS):
            raise MessageRefused("The name of property can not be blank string")
        check_text(f"property {name}", value)
        if not value.strip(_JAVA_BLANKS):
            raise MessageRefused(f"The value of property {name} can not be blank string")


def check_property_bytes(text: str) -> None:
    """Raise MessageRefused if the property string is too long for a record (32767 bytes)."""
    if len(text) > PROPERTIES_BYTES_MAX // 4 and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise MessageRefused(f"the properties have {len(text.encode())} bytes, at most {PROPERTIES_BYTES_MAX} fit")


def join_keys(keys: Iterable[str] | str) -> str:
    """Join keys by one space, the form that the broker's index splits. Raises MessageRefused (PR-01)."""
    if isinstance(keys, str):
        keys = (keys,)
    parts = list(keys)
    for part in parts:
        check_text("a key", part)
    return " ".join(part for part in parts if part)
