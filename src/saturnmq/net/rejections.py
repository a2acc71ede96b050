"""Rejected connections and requests: counted by reason, logged at most once per second and address (docs/spec/07 section 6)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from saturnmq.log_limit import LogLimit
from saturnmq.protocol.addresses import host_of, network_of

log = logging.getLogger(__name__)


class Rejections:
    """Counts by reason, for `saturnmq_rejected_total{reason}`. Reasons are constants of the code, never text from a peer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: dict[str, int] = {}
        self._log_limit = LogLimit(clock)

    def note(self, reason: str, peer: str, text: str) -> None:
        """Count a rejection, and log it if the limit on lines permits. peer: ip:port."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        # By network: a flood from many ports or addresses of one /64 gives one line per second.
        suppressed = self._log_limit.suppressed(network_of(host_of(peer)))
        if suppressed is not None:
            log.warning("rejected reason=%s peer=%s suppressed=%s detail=%s", reason, peer, suppressed, text)
