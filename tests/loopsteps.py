"""Processor time of the longest step of an event loop: what one callback or task keeps from all others."""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# In units of `reference_seconds`, 7 ms on a quiet machine of 2026: three times the 50 ms that no request may exceed, because other
# processes take caches, and a virtual machine counts time that its host has given to others.
STEP_MAX = 21.0


def reference_seconds() -> float:
    """Thread CPU seconds of a fixed amount of work, now: dictionaries, bytes and integers, as requests use them."""
    start = time.thread_time()
    names = {}
    for number in range(20_000):
        names[b"%d" % (number % 512)] = struct.pack(">qi", number, number)
    return time.thread_time() - start


class LoopSteps:
    """longest: the longest step, in units of `reference_seconds` measured just before and just after; 0 inside the block."""

    def __init__(self) -> None:
        self.longest = 0.0


@contextmanager
def loop_steps() -> Iterator[LoopSteps]:
    """Measure every step of the loop; without garbage collection, whose cost depends on what other tests have left.

    Tests that use this measure real time and are marked `realtime`.
    """
    steps = LoopSteps()
    longest = 0.0
    run = asyncio.events.Handle._run

    def measured(handle: Any) -> None:
        nonlocal longest
        start = time.thread_time()
        run(handle)
        longest = max(longest, time.thread_time() - start)

    gc.collect()
    gc.disable()
    unit = reference_seconds()
    asyncio.events.Handle._run = measured  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        steps.longest = longest / max(unit, reference_seconds())
        gc.enable()
