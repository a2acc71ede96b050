"""Rates of a consumer: what each figure counts, over which time."""

from __future__ import annotations

import pytest

from saturnmq.client.consumer.consume_stats import ConsumeCounters
from saturnmq.protocol.bodies import ConsumeStatus


class Seconds:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.spec("RT-10", "UPG-12")
def test_rates_are_those_of_the_last_minute_and_failures_of_the_last_hour() -> None:
    clock = Seconds()
    stats = ConsumeCounters(clock)
    assert stats.status("T") == ConsumeStatus()
    for _ in range(3):
        stats.pulled("T", 0.020)
        stats.fetched("T", 32)
        stats.consumed("T", 0.004, failed=False)
        stats.consumed("T", 0.008, failed=True)
        clock.now += 10
    stats.consumed("U", 1.0, failed=True)
    found = stats.status("T")
    assert (found.pull_rt, found.consume_rt) == (pytest.approx(20.0), pytest.approx(6.0)), "ms per pull and per message"
    assert (found.pull_tps, found.consume_ok_tps, found.consume_failed_tps) == (1.6, 0.05, 0.05)
    assert found.consume_failed_msgs == 3
    clock.now += 60
    later = stats.status("T")
    assert (later.pull_rt, later.pull_tps, later.consume_ok_tps, later.consume_failed_tps) == (0, 0, 0, 0)
    assert later.consume_rt == pytest.approx(6.0), "of the hour if the minute has none"
    assert later.consume_failed_msgs == 3
    clock.now += 3540
    assert stats.status("T") == ConsumeStatus()
