"""The garbage collector of a server: a full collection does not traverse tables that an earlier one found large.

A full collection stops the event loop for as long as it traverses all objects: 300 ms with 100,000 topics and 200,000 offsets. What
is loaded at the start is therefore frozen, and what survives a full collection that took FREEZE_SECONDS is frozen, too, so that the
next one is short again. How much one traverses beyond that is bounded by GENERATIONS_MAX. Reference counts still free frozen
objects; only those that are in a cycle by then stay in memory.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from time import thread_time
from typing import Final

log = logging.getLogger(__name__)

FREEZE_SECONDS: Final = 0.005
GENERATIONS_MAX: Final = (
    4  # a full collection comes after as many of the middle generation, with 7,000 new objects each
)
_OLDEST: Final = 2  # generation of a full collection


class StagedCollector:
    """Freezes survivors while it runs. One per process. clock: seconds of processor time, which a busy machine does not stretch."""

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        self._clock = clock
        self._began = 0.0
        self._thresholds = gc.get_threshold()

    def start(self) -> None:
        """Freeze what is loaded, without a collection: it would stop a server that may have clients already."""
        gc.freeze()
        gc.collect()  # the next one comes when a quarter of what this one found is added, not of what is frozen
        gc.set_threshold(*self._thresholds[:_OLDEST], GENERATIONS_MAX)
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Return everything to the collector."""
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._began = self._clock()
            return
        elapsed = self._clock() - self._began
        if elapsed >= FREEZE_SECONDS:
            gc.freeze()
            log.debug("survivors frozen elapsed_ms=%.1f objects=%s", elapsed * 1000, gc.get_freeze_count())
