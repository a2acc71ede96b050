"""Delay levels: their durations and the delivery time of a delayed message. Pure functions, times in Unix ms.

Requirements: ST-08, CQ-03.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from saturnmq.protocol.codes import SCHEDULE_TOPIC, TIMER_TOPIC, PropertyKey
from saturnmq.protocol.message import Message

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL_MS: Final = 1000


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


def wake_ms(message: Message) -> int:
    """Time (Unix ms) at which a message of the timer topic is next examined; 0 if the property is missing or malformed."""
    text = message.properties.get(PropertyKey.TIMER_WAKE_MS, "")
    return int(text[:15]) if text.isascii() and text.isdigit() else 0


def delivery_code(message: Message, levels_text: str) -> int | None:
    """The delivery time stored instead of the tags code of a delayed message (CQ-03); None for any other message."""
    if message.topic == TIMER_TOPIC:
        return wake_ms(message)
    if message.topic != SCHEDULE_TOPIC:
        return None
    text = message.properties.get(PropertyKey.DELAY, "")
    level = int(text) if text.isascii() and text.isdigit() else 0
    if level <= 0:
        return None
    levels = delay_levels(levels_text)
    return due_ms(min(level, len(levels)), message.store_timestamp_ms, levels)
