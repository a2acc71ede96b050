"""Reads and edits encoded property strings (`name 0x01 value 0x02 ...`) without decoding them.

The send path uses it: WAIT is honoured and removed from single messages, CLUSTER is added to every message.

Requirements: SND-10, BAT-06.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_PAIR: Final = "\x02"


def find(text: str, name: str) -> str | None:
    """The value of one property of an encoded string; None if it is absent or empty."""
    mark = name + "\x01"
    at = text.find(mark)
    while at > 0 and text[at - 1] != _PAIR:
        at = text.find(mark, at + 1)
    if at < 0:
        return None
    start = at + len(mark)
    end = text.find(_PAIR, start)
    return (text[start:end] if end >= 0 else text[start:]) or None


def is_set(text: str, names: Iterable[str]) -> bool:
    """Whether any of these properties has a non-empty value."""
    return any(name in text and find(text, name) is not None for name in names)


def take(text: str, name: str) -> tuple[str, str]:
    """The string without the first property of this name, and that property's value; "" if it is absent."""
    mark = name + "\x01"
    at = text.find(mark)
    while at > 0 and text[at - 1] != _PAIR:
        at = text.find(mark, at + 1)
    if at < 0:
        return text, ""
    end = text.find(_PAIR, at)
    if end < 0:
        return text[: max(at - 1, 0)], text[at + len(mark) :]
    return text[:at] + text[end + 1 :], text[at + len(mark) : end]


def without(text: str, name: str) -> str:
    """The string without one property."""
    return take(text, name)[0]


def with_property(text: str, name: str, value: str) -> str:
    """The string with a property set, replacing an earlier value."""
    if name in text:
        text = without(text, name)
    if not text:
        return f"{name}\x01{value}"
    return f"{text}{name}\x01{value}" if text.endswith(_PAIR) else f"{text}\x02{name}\x01{value}"
