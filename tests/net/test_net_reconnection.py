"""Pauses between attempts to reconnect."""

from __future__ import annotations

import pytest

from saturnmq.net.reconnection import reconnect_seconds


@pytest.mark.parametrize(
    ("attempt", "chance", "seconds"),
    [(1, 0, 0.25), (1, 1, 0.125), (2, 0, 0.5), (5, 0, 4), (6, 0, 4), (6, 0.5, 3), (6, 1, 2), (100_000, 0, 4)],
)
def test_reconnect_pause_doubles_to_four_seconds_less_jitter(attempt: int, chance: float, seconds: float) -> None:
    assert reconnect_seconds(attempt, chance) == seconds
