"""Rejected connections and requests: counted by reason, logged at most once per second and address (docs/spec/07 section 6)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from saturnmq.protocol.addresses import host_of

log = logging.getLogger(__name__)

LOG_INTERVAL_SECONDS: Final = 1.0
_ADDRESSES_MAX: Final = 10_000


class Rejections:
    """Counts by reason, for `saturnmq_rejected_total{reason}`. Reasons are constants of the code, never text from a peer.

    network_of: what an address counts as.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, network_of: Callable[[str], str] = str) -> None:
        self.counts: dict[str, int] = {}
        self._clock = clock
        self._network_of = network_of
        self._logged_at: dict[str, float] = {}  # time of the last log line by address without port
        self._suppressed = 0  # rejections without a log line since the last one

    def note(self, reason: str, peer: str, text: str) -> None:
        """Count a rejection, and log it unless one of the same address was logged within the last second. peer: ip:port."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        now = self._clock()
        address = self._network_of(host_of(peer))
        if now - self._logged_at.get(address, now - LOG_INTERVAL_SECONDS) < LOG_INTERVAL_SECONDS:
            self._suppressed += 1
            return
        if len(self._logged_at) >= _ADDRESSES_MAX:
            self._logged_at.clear()
        self._logged_at[address] = now
        log.warning("rejected reason=%s peer=%s suppressed=%s detail=%s", reason, peer, self._suppressed, text)
        self._suppressed = 0
