"""Delayed delivery: conversion of delays to delay levels, or to timer properties for brokers that support them. Pure.

Requirements: DLY-01, API-13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from saturnmq.errors import MessageRefused
from saturnmq.protocol.codes import PropertyKey

# Delay of level 1..18 in seconds, the broker's default `messageDelayLevel` (DLY-01).
LEVEL_SECONDS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
LEVEL_NAMES: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVEL_MAX: Final = 65_535  # a broker may have more than 18
SECONDS_MAX: Final = 10**10  # far beyond any broker's limit; keeps the arithmetic exact


@dataclass(frozen=True, slots=True)
class Delay:
    """A delay as the one message property that encodes it on the wire.

    timer_ms: ms from now for a delay that is not a level, which only some brokers support; 0 for a level.
    text: description of the delay for error messages.
    """

    name: str
    value: int
    timer_ms: int = 0
    text: str = ""

    def unsupported(self, brokers: str) -> str:
        """The error text for brokers that have delay levels only; it names the nearest levels."""
        seconds = self.timer_ms / 1000
        shorter = [length for length in LEVEL_SECONDS if length < seconds][-1:]
        longer = [length for length in LEVEL_SECONDS if length > seconds][:1]
        nearest = " and ".join(f"{length} s" for length in shorter + longer)
        return (
            f"{self.text} is not possible on {brokers}, which has only the delay levels {LEVEL_NAMES} (delay= or "
            f"delay_level=); the nearest are {nearest}"
        )


def delay_of(delay: timedelta | float | None, deliver_at: datetime | None, level: int, now_ms: int) -> Delay | None:
    """The delay of a `send`; None for immediate delivery, also if deliver_at is in the past.

    now_ms: Unix ms. Raises MessageRefused if several are given, and for values out of range.
    """
    if (delay is not None) + (deliver_at is not None) + (level != 0) > 1:
        raise MessageRefused("give one of delay, deliver_at and delay_level, not several")
    if level:
        if isinstance(level, bool) or not isinstance(level, int) or not 0 < level <= LEVEL_MAX:
            raise MessageRefused(f"delay_level is {level!r:.40}, must be 1..{LEVEL_MAX}")
        return Delay(PropertyKey.DELAY, level)
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime) or deliver_at.tzinfo is None:
            raise MessageRefused("deliver_at must be a datetime with a time zone")
        at_ms = math.ceil(deliver_at.timestamp() * 1000)
        if at_ms <= now_ms:
            return None
        return Delay(PropertyKey.TIMER_DELIVER_MS, at_ms, at_ms - now_ms, f"delivery at {deliver_at.isoformat()}")
    if delay is None:
        return None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= SECONDS_MAX:
        raise MessageRefused(f"delay is {delay!r:.40}, must be a timedelta or seconds, 0..{SECONDS_MAX}")
    if seconds == 0:
        return None
    if seconds in LEVEL_SECONDS:
        return Delay(PropertyKey.DELAY, LEVEL_SECONDS.index(int(seconds)) + 1)
    wait_ms = math.ceil(round(seconds * 1000, 6))
    return Delay(PropertyKey.TIMER_DELAY_MS, wait_ms, wait_ms, f"a delay of {seconds} s")
