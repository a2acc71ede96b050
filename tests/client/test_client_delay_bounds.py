"""Conversion of delays to message properties, at the bounds of every rule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from saturnmq.client.delays import Delay, delay_of
from saturnmq.errors import MessageRefused
from saturnmq.protocol.codes import PropertyKey

NOW_MS = 1_700_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)
# Delay in seconds of level 1..18, as Apache's brokers have it by default (messageDelayLevel).
LEVELS = [1, 5, 10, 30, *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120))]


@pytest.mark.parametrize(("level", "seconds"), [*enumerate(LEVELS, 1)])
def test_delay_that_is_a_level_is_sent_as_the_level(level: int, seconds: int) -> None:
    for delay in (seconds, float(seconds), timedelta(seconds=seconds)):
        assert delay_of(delay, None, 0, NOW_MS) == Delay(PropertyKey.DELAY, level, 0, ""), delay


@pytest.mark.parametrize("level", [1, 2, 18, 19, 65_535])
def test_level_is_sent_as_given(level: int) -> None:
    assert delay_of(None, None, level, NOW_MS) == Delay(PropertyKey.DELAY, level)


@pytest.mark.parametrize("level", [-1, 65_536, True, 1.0, "3"])
def test_level_out_of_range_is_refused(level: Any) -> None:
    with pytest.raises(MessageRefused, match=r"must be 1\.\.65535"):
        delay_of(None, None, level, NOW_MS)


@pytest.mark.parametrize(
    ("delay", "wait_ms"),
    [
        (0.0004, 1), (0.001, 1), (0.0011, 2), (1.5, 1500), (2, 2000), (29.9991, 30_000), (7201, 7_201_000), (0.29, 290),
        (timedelta(milliseconds=7), 7), (10**10, 10**13),
    ],
)  # fmt: skip
def test_other_delay_is_sent_in_ms_rounded_up(delay: Any, wait_ms: int) -> None:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    wanted = Delay(PropertyKey.TIMER_DELAY_MS, wait_ms, wait_ms, f"a delay of {seconds} s")
    assert delay_of(delay, None, 0, NOW_MS) == wanted


@pytest.mark.parametrize(
    "delay", [-0.001, -1, 10**10 + 1, float("nan"), float("inf"), True, False, "5", timedelta(seconds=-1)]
)
def test_delay_out_of_range_is_refused(delay: Any) -> None:
    with pytest.raises(MessageRefused, match=r"0\.\.10000000000"):
        delay_of(delay, None, 0, NOW_MS)


def test_no_delay_is_immediate() -> None:
    assert delay_of(None, None, 0, NOW_MS) is None
    assert delay_of(0, None, 0, NOW_MS) is None
    assert delay_of(timedelta(0), None, 0, NOW_MS) is None


@pytest.mark.parametrize("after_ms", [1, 2, 1000, 86_400_000])
def test_time_of_delivery_is_sent_in_unix_ms(after_ms: int) -> None:
    when = NOW + timedelta(milliseconds=after_ms)
    wanted = Delay(PropertyKey.TIMER_DELIVER_MS, NOW_MS + after_ms, after_ms, f"delivery at {when.isoformat()}")
    assert delay_of(None, when, 0, NOW_MS) == wanted


def test_time_of_delivery_is_rounded_up_to_ms() -> None:
    delay = delay_of(None, NOW + timedelta(microseconds=1100), 0, NOW_MS)
    assert delay is not None and (delay.value, delay.timer_ms) == (NOW_MS + 2, 2)


@pytest.mark.parametrize("after_ms", [0, -1, -86_400_000])
def test_time_of_delivery_that_has_passed_is_immediate(after_ms: int) -> None:
    assert delay_of(None, NOW + timedelta(milliseconds=after_ms), 0, NOW_MS) is None


@pytest.mark.parametrize("when", [datetime(2030, 1, 1), 5, "2030-01-01"])
def test_time_of_delivery_without_zone_is_refused(when: Any) -> None:
    with pytest.raises(MessageRefused, match="a datetime with a time zone"):
        delay_of(None, when, 0, NOW_MS)


@pytest.mark.parametrize(
    ("delay", "when", "level"), [(1, NOW, 0), (1, None, 1), (None, NOW, 1), (1, NOW, 1), (0, None, 1)]
)
def test_several_ways_to_delay_are_refused(delay: Any, when: Any, level: int) -> None:
    with pytest.raises(MessageRefused, match="not several"):
        delay_of(delay, when, level, NOW_MS)


@pytest.mark.parametrize(
    ("seconds", "nearest"),
    [(0.5, "1 s"), (1.5, "1 s and 5 s"), (60, "30 s and 120 s"), (61, "60 s and 120 s"), (7201, "7200 s")],
)
def test_refusal_by_a_broker_without_timers_names_the_nearest_levels(seconds: float, nearest: str) -> None:
    delay = Delay(PropertyKey.TIMER_DELAY_MS, 0, int(seconds * 1000), f"a delay of {seconds} s")
    assert delay.unsupported("broker b0") == (
        f"a delay of {seconds} s is not possible on broker b0, which has only the delay levels "
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h (delay= or delay_level=); "
        f"the nearest are {nearest}"
    )
