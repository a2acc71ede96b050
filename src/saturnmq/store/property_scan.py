"""Reads single properties from an encoded property string without decoding all of it: the tags code and the keys.

Requirements: CQ-02, IX-02.
"""

from __future__ import annotations

from typing import Final

from saturnmq.protocol.message import java_hash

UNIQUE_KEY: Final = b"UNIQ_KEY\x01"
KEYS: Final = b"KEYS\x01"
_TAGS_START: Final = b"TAGS\x01"


def property_value(properties_raw: bytes, start: bytes) -> bytes:
    """Value of the first property with the prefix `start` (name and separator); b"" if there is none."""
    at = properties_raw.find(start)
    while at > 0 and properties_raw[at - 1] != 2:
        at = properties_raw.find(start, at + 1)
    if at < 0:
        return b""
    at += len(start)
    end = properties_raw.find(b"\x02", at)
    return properties_raw[at:end] if end >= 0 else properties_raw[at:]


def last_property(raw: bytes, start: bytes) -> bytes:
    """As `property_value`, but of the last such property with a non-empty value."""
    at = raw.rfind(start)
    while at >= 0:
        if at == 0 or raw[at - 1] == 2:
            end = raw.find(b"\x02", at)
            value = raw[at + len(start) : end if end >= 0 else None]
            if value:
                return value
        at = raw.rfind(start, 0, at + len(start) - 1)
    return b""


def keys_of(properties_raw: bytes) -> list[str]:
    """The keys under which a record is indexed: its unique key, then the words of its KEYS property (IX-02)."""
    unique = last_property(properties_raw, UNIQUE_KEY)
    words = last_property(properties_raw, KEYS)
    keys = [unique.decode("utf-8", "replace")] if unique else []
    if words:
        keys += [word for word in words.decode("utf-8", "replace").split(" ") if word]
    return keys


def tags_code(properties_raw: bytes) -> int:
    """Java hash of the TAGS property in an encoded property string; 0 without tags (CQ-02)."""
    value = property_value(properties_raw, _TAGS_START)
    return _tag_hash(value) if value else 0


_tag_hashes: dict[bytes, int] = {}


def _tag_hash(value: bytes) -> int:
    code = _tag_hashes.get(value)
    if code is None:
        if len(_tag_hashes) > 10_000:
            _tag_hashes.clear()
        code = _tag_hashes[value] = java_hash(value.decode("utf-8", "replace"))
    return code
