"""Where a reader begins: the value of --from. Pure.

Requirements: CLI-11.
"""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

from saturnmq.config.settings import parse_duration_ms, parse_time_ms
from saturnmq.protocol.errors import ConfigError


class Start(NamedTuple):
    """At most one is set: the offset for every queue, or the store time in Unix ms. last: at the end of each queue."""

    offset: int | None = None
    time_ms: int | None = None
    last: bool = False


FIRST = Start()
LAST = Start(last=True)


def parse_start(text: str, now_ms: int) -> Start:
    """`first`, `last`, an offset, a duration before now, or a time in ISO 8601. Raises ConfigError."""
    text = text.strip()
    if text in ("first", "last", "now"):
        return FIRST if text == "first" else LAST
    if re.fullmatch(r"\d{1,18}", text):
        return Start(offset=int(text))
    with contextlib.suppress(ValueError, OverflowError):
        return Start(time_ms=max(now_ms - parse_duration_ms(text), 0))
    with contextlib.suppress(ValueError, OverflowError):
        return Start(time_ms=max(parse_time_ms(text, now_ms), 0))
    raise ConfigError(
        f"--from {text!r:.60} must be first, last, an offset such as 4711, a duration before now such as 10m, "
        "or a time such as 2026-01-31T12:00:00Z"
    )
