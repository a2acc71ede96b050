"""Delay levels: their durations, and when a message of a level is due. Pure. Source: ST-08, CQ-03."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from saturnmq.protocol.codes import SCHEDULE_TOPIC, TIMER_TOPIC, PropertyKey
from saturnmq.protocol.message import Message

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL_MS: Final = 1000


@lru_cache(maxsize=16)
def delay_levels(text: str) -> tuple[int, ...]:
    """Durations in ms of the levels 1, 2, ... of `messageDelayLevel`, e.g. "1s 5s 1m". Raises ValueError naming the word."""
    levels = []
    for word in text.split():
        if word[-1] not in _UNIT_MS or not word[:-1].isdigit():
            raise ValueError(f"messageDelayLevel: {word!r} is not a number followed by s, m, h or d")
        levels.append(int(word[:-1]) * _UNIT_MS[word[-1]])
    return tuple(levels)


def due_ms(level: int, stored_ms: int, levels: tuple[int, ...]) -> int:
    """When a message stored at a time with a level is to be delivered, Unix ms."""
    known = 1 <= level <= len(levels)
    return stored_ms + (levels[level - 1] if known else UNKNOWN_LEVEL_MS)


def wake_ms(message: Message) -> int:
    """When a message of the timer topic is to be looked at, Unix ms."""
    text = message.properties.get(PropertyKey.TIMER_WAKE_MS, "")
    return int(text[:15]) if text.isascii() and text.isdigit() else 0


def delivery_code(message: Message, levels_text: str) -> int | None:
    """What stands instead of the tags code for a delayed message (CQ-03); None for any other."""
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
