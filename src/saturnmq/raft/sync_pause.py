"""The pause between two asynchronous flushes of a ledger (DL-S04)."""

from __future__ import annotations

from typing import Final

# SYNC_REST times the duration of the last flush, within SYNC_REST_MS. Not less, because an fsync delays writes of the event loop;
# not more, because that is the flush interval of a broker without DLedger.
SYNC_REST: Final = 4
SYNC_REST_MS: Final = range(50, 501)


class SyncPause:
    """Whether the next flush without waiters may begin. until_ms: when it may."""

    def __init__(self) -> None:
        self.until_ms = 0

    def sync_ended(self, now_ms: int, took_ms: int) -> None:
        self.until_ms = now_ms + min(max(SYNC_REST * took_ms, SYNC_REST_MS[0]), SYNC_REST_MS[-1])

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= self.until_ms
