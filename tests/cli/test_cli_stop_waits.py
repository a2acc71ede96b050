"""The limited waits of a stop: together they leave time for the writes of the 10 s that are promised."""

from __future__ import annotations

import pytest

from saturnmq.broker.services.registrar import UNREGISTER_TIMEOUT_MS
from saturnmq.console import serving
from saturnmq.net import NetSettings
from saturnmq.store.index import index_queue

PROMISED_SECONDS = 10.0


@pytest.mark.spec("DUR-17")
def test_waits_of_a_stop_end_within_the_promised_time() -> None:
    """Page requests, clients that do not read, here and at the NameServer, a NameServer that is down, an index that lags."""
    port = NetSettings().stop_timeout_ms / 1000
    index, unregister = index_queue.FINISH_SECONDS, UNREGISTER_TIMEOUT_MS / 1000
    assert unregister + port + index <= PROMISED_SECONDS - 2
    assert serving.STOP_SECONDS + port + index + port < PROMISED_SECONDS  # standalone: its own NameServer answers
