"""When a message is to be delivered: the delay levels of a broker, and what a sender asks for. Pure.

Source: spec 03 DLY-01, spec 08 API-13.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from saturnmq.client.errors import MessageRefused, Unsupported

# Delay of level 1..18 in seconds, the broker's default `messageDelayLevel` (DLY-01).
LEVEL_SECONDS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
LEVEL_MAX: Final = 65_535  # a broker may have more than 18


def level_of(delay: timedelta | float | None, deliver_at: datetime | None, level: int) -> int:
    """The level that stands for what `send` was asked; 0: at once.

    Raises MessageRefused for what means nothing, Unsupported for a time that is no level's, naming the nearest ones.
    """
    if (delay is not None) + (deliver_at is not None) + (level != 0) > 1:
        raise MessageRefused("give one of delay, deliver_at and delay_level, not several")
    if level:
        if isinstance(level, bool) or not isinstance(level, int) or not 0 < level <= LEVEL_MAX:
            raise MessageRefused(f"delay_level is {level!r:.40}, must be 1..{LEVEL_MAX}")
        return level
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime) or deliver_at.tzinfo is None:
            raise MessageRefused("deliver_at must be a datetime with a time zone")
        raise Unsupported(f"no broker here delivers at a time of day such as {deliver_at.isoformat()}: use delay")
    if delay is None:
        return 0
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise MessageRefused(f"delay is {delay!r:.40}, must be a timedelta or seconds, not below 0")
    if seconds == 0:
        return 0
    if seconds in LEVEL_SECONDS:
        return LEVEL_SECONDS.index(int(seconds)) + 1
    shorter = [length for length in LEVEL_SECONDS if length < seconds][-1:]
    longer = [length for length in LEVEL_SECONDS if length > seconds][:1]
    nearest = " and ".join(f"{length} s" for length in shorter + longer)
    raise Unsupported(f"a delay of {seconds} s is none of the delay levels; the nearest are {nearest}")
