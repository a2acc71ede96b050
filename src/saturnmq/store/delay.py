"""Delay levels: their durations and the delivery time of a delayed message. Pure functions, times in Unix ms.

Requirements: ST-08, CQ-03.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from saturnmq.protocol.codes import SCHEDULE_TOPIC, TIMER_TOPIC, PropertyKey
from saturnmq.protocol.properties import find_last_bytes, tags_code

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL_MS: Final = 1000
_WAKE: Final = f"{PropertyKey.TIMER_WAKE_MS}\x01".encode()
_DELAY: Final = f"{PropertyKey.DELAY}\x01".encode()
TIMED_TOPICS: Final = frozenset((TIMER_TOPIC, SCHEDULE_TOPIC))
LEVEL_DIGITS_MAX: Final = 15


@lru_cache(maxsize=16)
def delay_levels(text: str) -> tuple[int, ...]:
    """Durations in ms of levels 1, 2, ... of `messageDelayLevel`, e.g. "1s 5s 1m". Raises ValueError naming the bad duration."""
    levels = []
    for duration in text.split():
        if duration[-1] not in _UNIT_MS or not duration[:-1].isdigit():
            raise ValueError(f"messageDelayLevel: {duration!r} is not a number followed by s, m, h or d")
        levels.append(int(duration[:-1]) * _UNIT_MS[duration[-1]])
    return tuple(levels)


def due_ms(level: int, stored_ms: int, levels: tuple[int, ...]) -> int:
    """Delivery time (Unix ms) of a message stored at stored_ms with a delay level; an unknown level counts as 1 s."""
    is_defined = 1 <= level <= len(levels)
    return stored_ms + (levels[level - 1] if is_defined else UNKNOWN_LEVEL_MS)


def wake_ms(properties_raw: bytes) -> int:
    """Time (Unix ms) at which a message of the timer topic is next examined; 0 if the property is missing or malformed."""
    return _number(properties_raw, _WAKE)


def unit_code(topic: str, properties_raw: bytes, stored_ms: int, levels_text: str) -> int:
    """The code of a consume queue unit: of the message's tags, or for a delayed one the time of its delivery (CQ-02, CQ-03)."""
    if topic not in TIMED_TOPICS:
        return tags_code(properties_raw)
    if topic == TIMER_TOPIC:
        return wake_ms(properties_raw)
    level = _number(properties_raw, _DELAY)
    if level <= 0:
        return tags_code(properties_raw)
    levels = delay_levels(levels_text)
    return due_ms(min(level, len(levels)), stored_ms, levels)


def _number(properties_raw: bytes, start: bytes) -> int:
    """The number in a property, which another broker may have written as it liked; 0 if there is none."""
    digits = find_last_bytes(properties_raw, start)[:LEVEL_DIGITS_MAX]
    return int(digits) if digits.isdigit() else 0
