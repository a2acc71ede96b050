"""Reads and edits encoded property strings (`name 0x01 value 0x02 ...`) without decoding them.

Two forms: text, for headers of send requests, and bytes, for stored records. Each function holds its own scan loop, because
they run once or more per message. `message.decode_properties` decodes a whole string.

Requirements: BAT-06, CQ-02, IX-02, SND-10.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable
from typing import Final

from saturnmq.protocol.message import java_hash

UNIQUE_KEY: Final = b"UNIQ_KEY\x01"
KEYS: Final = b"KEYS\x01"
_TAGS: Final = b"TAGS\x01"
_PAIR: Final = "\x02"
_KEY: Final = re.compile("[^ ]+")
_TAG_HASHES_MAX: Final = 10_000


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


def find_bytes(properties_raw: bytes, start: bytes) -> bytes:
    """Value of the first property with the prefix `start` (name and separator); b"" if there is none."""
    at = properties_raw.find(start)
    while at > 0 and properties_raw[at - 1] != 2:
        at = properties_raw.find(start, at + 1)
    if at < 0:
        return b""
    at += len(start)
    end = properties_raw.find(b"\x02", at)
    return properties_raw[at:end] if end >= 0 else properties_raw[at:]


def find_last_bytes(raw: bytes, start: bytes) -> bytes:
    """As `find_bytes`, but of the last such property with a non-empty value."""
    at = raw.rfind(start)
    while at >= 0:
        if at == 0 or raw[at - 1] == 2:
            end = raw.find(b"\x02", at)
            value = raw[at + len(start) : end if end >= 0 else None]
            if value:
                return value
        at = raw.rfind(start, 0, at + len(start) - 1)
    return b""


def keys_of(properties_raw: bytes, words_max: int = sys.maxsize) -> list[str]:
    """The keys of a record: its unique key, then the words of its KEYS property, the first words_max of them (IX-02)."""
    unique = find_last_bytes(properties_raw, UNIQUE_KEY)
    keys = [unique.decode("utf-8", "replace")] if unique else []
    return keys + key_words(properties_raw, words_max) if KEYS in properties_raw else keys


def key_words(properties_raw: bytes, words_max: int) -> list[str]:
    """The first words_max words of the KEYS property; the time taken does not depend on how many there are."""
    keys_text = find_last_bytes(properties_raw, KEYS).decode("utf-8", "replace")
    if len(keys_text) <= words_max:
        return [key for key in keys_text.split(" ") if key]
    return [match[0] for match in itertools.islice(_KEY.finditer(keys_text), words_max)]


def tags_code(properties_raw: bytes) -> int:
    """Java hash of the TAGS property in an encoded property string; 0 without tags (CQ-02)."""
    value = find_bytes(properties_raw, _TAGS)
    return _tag_hash(value) if value else 0


_tag_hashes: dict[bytes, int] = {}


def _tag_hash(value: bytes) -> int:
    code = _tag_hashes.get(value)
    if code is None:
        if len(_tag_hashes) > _TAG_HASHES_MAX:
            _tag_hashes.clear()
        code = _tag_hashes[value] = java_hash(value.decode("utf-8", "replace"))
    return code
