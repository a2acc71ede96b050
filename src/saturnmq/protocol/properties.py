"""Reads and edits encoded property strings (`name 0x01 value 0x02 ...`) without decoding them.

Two forms: text, for headers of send requests, and bytes, for stored records. `MessageProperties` is what a broker reads of a
message that it receives. `message.decode_properties` decodes a whole string.

Requirements: BAT-06, CQ-02, IX-02, SND-10.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from saturnmq.protocol.codes import PropertyKey
from saturnmq.protocol.message import java_hash

UNIQUE_KEY: Final = b"UNIQ_KEY\x01"
KEYS: Final = b"KEYS\x01"
_TAGS: Final = b"TAGS\x01"
_PAIR: Final = "\x02"
_KEY: Final = re.compile("[^ ]+")
_TAG_HASHES_MAX: Final = 10_000
DELAYS: Final = (
    PropertyKey.DELAY,
    PropertyKey.TIMER_DELIVER_MS,
    PropertyKey.TIMER_DELAY_MS,
    PropertyKey.TIMER_DELAY_SEC,
)
_SPECIAL: Final = (*DELAYS, PropertyKey.TRAN_MSG, PropertyKey.PGROUP)
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class MessageProperties:
    """The properties of a message on its way in, parsed once: every later step of a send reads this view.

    text: what the record holds: as it was sent, without WAIT, and with the CLUSTER of this broker. wait: whether the sender waits
    until the message is durable. special: values of what makes it more than a record in its queue, a transaction or a delay; empty
    for most messages.
    """

    __slots__ = ("special", "text", "wait")

    def __init__(self, text: str, cluster_suffix: str) -> None:
        self.wait = True
        before, found, after = (_PAIR + text).partition("\x02WAIT\x01")  # that of most producers: no calls
        if found:
            wait, separator, rest = after.partition(_PAIR)
            text = (before + separator + rest)[1:]
            self.wait = wait != "false"
        if "CLUSTER\x01" in text:
            text = without(text, PropertyKey.CLUSTER)
        self.special: Mapping[str, str] = _NONE
        if "DEL" in text or "TRAN_MSG\x01" in text:  # DEL is part of each name of a delay, and maybe of other text
            self.special = {name: value for name in _SPECIAL if (value := find(text, name)) is not None}
        self.text = text + (cluster_suffix if text and text[-1] != _PAIR else cluster_suffix[1:])

    @property
    def is_transactional(self) -> bool:
        """Whether the producer marked it as a half message."""
        return self.special.get(PropertyKey.TRAN_MSG, "").lower() == "true"


def find(text: str, name: str) -> str | None:
    """The value of one property of an encoded string; None if it is absent or empty."""
    mark = name + "\x01"
    value = text[len(mark) :] if text.startswith(mark) else text.partition(_PAIR + mark)[2]
    return value.partition(_PAIR)[0] or None


def take(text: str, name: str) -> tuple[str, str]:
    """The string without the first property of this name, and that property's value; "" if it is absent."""
    mark = name + "\x01"
    if text.startswith(mark):
        value, _, rest = text[len(mark) :].partition(_PAIR)
        return rest, value
    before, found, after = text.partition(_PAIR + mark)
    if not found:
        return text, ""
    value, separator, rest = after.partition(_PAIR)
    return before + separator + rest, value


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
    first = properties_raw.startswith(start)
    value = properties_raw[len(start) :] if first else properties_raw.partition(b"\x02" + start)[2]
    return value.partition(b"\x02")[0]


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
    value = find_bytes(properties_raw, _TAGS).decode("utf-8", "replace")
    return (_tag_hashes.get(value) or _tag_hash(value)) if value else 0


_tag_hashes: dict[str, int] = {}


def _tag_hash(value: str) -> int:
    if len(_tag_hashes) > _TAG_HASHES_MAX:
        _tag_hashes.clear()
    code = _tag_hashes[value] = java_hash(value)
    return code
