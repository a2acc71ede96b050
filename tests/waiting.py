"""Waits for a condition in tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.002  # the first pause
PAUSE_GROWTH, PAUSE_SECONDS_MAX = 1.2, 0.05


async def until(
    condition: Callable[[], Any], within_s: float = 30.0, *, why: Callable[[], object] = lambda: "condition"
) -> Any:
    """Poll until the condition holds, and return its value; the event loop runs in between.

    Raises AssertionError with the text of `why()` after within_s seconds.
    """
    try:
        async with asyncio.timeout(within_s) as deadline:
            pause = POLL_SECONDS
            while not (value := condition()):
                await asyncio.sleep(pause)  # poll
                pause = min(pause * PAUSE_GROWTH, PAUSE_SECONDS_MAX)
            return value
    except TimeoutError:
        if not deadline.expired():
            raise
        raise AssertionError(f"not within {within_s} s: {why()}") from None


async def elapse(seconds: float) -> None:
    """Let so much time of the virtual clock pass."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Future()
