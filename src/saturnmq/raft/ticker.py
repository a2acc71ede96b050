"""Schedules the ticks of a member's core: at least TICK_MS apart while inputs arrive, else at the core's next timer (DL-E02).

And the pause between two asynchronous flushes of its ledger (DL-S04).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

TICK_MS = 10
AFTER_INPUT_MS: Final = 2  # an append is usually answered by then, so the tick after it does not delay the answer
# The pause is SYNC_REST times the duration of the last flush, within SYNC_REST_MS. Not less, because an fsync delays writes of the
# event loop; not more, because that is the flush interval of a broker without DLedger.
SYNC_REST: Final = 4
SYNC_REST_MS: Final = range(50, 501)
SLEEP_MS_MAX: Final = 1000  # longest sleep of an idle member: its clock may run faster than the event loop's


class Ticker:
    """Calls tick periodically. due_in_ms returns the ms until the next tick; call `wake` after each input, which may change it."""

    def __init__(self, tick: Callable[[], None], due_in_ms: Callable[[], int]) -> None:
        self._tick = tick
        self._due_in_ms = due_in_ms
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0  # time of the event loop
        self._is_sleeping = False  # the next tick is later than TICK_MS after the last one
        self._stopped = False

    def start(self) -> None:
        """Tick now and schedule the next tick; ticks are at least TICK_MS apart.

        If the tick raises, the event loop reports the exception and the next tick follows after TICK_MS.
        """
        loop = asyncio.get_running_loop()
        # Before the tick: the interval does not grow with its duration.
        self._ticked_at = loop.time()
        self._is_sleeping = False
        delay_ms = TICK_MS
        try:
            self._tick()
            # The core's clock and the loop's may drift apart: look again after a second at the latest.
            delay_ms = max(TICK_MS, min(self._due_in_ms(), SLEEP_MS_MAX))
        finally:
            self._is_sleeping = delay_ms > TICK_MS
            # The tick itself may have stopped the member.
            if not self._stopped:
                self._timer = loop.call_at(self._ticked_at + delay_ms / 1000, self.start)

    def wake(self) -> None:
        """Schedule a tick soon after an input, which may have changed the timers."""
        if self._is_sleeping and self._timer is not None:  # else the next tick is due within TICK_MS anyway
            self._is_sleeping = False
            self._timer.cancel()
            loop = asyncio.get_running_loop()
            behind = loop.time() + AFTER_INPUT_MS / 1000
            # Not at once: the answer of an append usually comes first, see AFTER_INPUT_MS.
            self._timer = loop.call_at(max(self._ticked_at + TICK_MS / 1000, behind), self.start)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()


async def wait_until(due_in_ms: int, changed: asyncio.Event) -> None:
    """Wait until `changed` is set or due_in_ms has passed, but no longer than SLEEP_MS_MAX."""
    if due_in_ms > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(due_in_ms, SLEEP_MS_MAX) / 1000):
                await changed.wait()


class SyncPause:
    """Whether the next flush without waiters may begin. until_ms: when it may."""

    def __init__(self) -> None:
        self.until_ms = 0

    def sync_ended(self, now_ms: int, took_ms: int) -> None:
        self.until_ms = now_ms + min(max(SYNC_REST * took_ms, SYNC_REST_MS[0]), SYNC_REST_MS[-1])

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= self.until_ms
