"""Durations of appends, and the report of slow ones."""

from __future__ import annotations

import pytest

from saturnmq.protocol.codes import SCHEDULE_TOPIC, TIMER_TOPIC
from saturnmq.store.append_watch import AppendWatch
from saturnmq.store.delay import unit_code

NOW = 1_700_000_000_000


@pytest.mark.spec("ST-04")
def test_append_above_the_limit_is_reported_in_ms(caplog: pytest.LogCaptureFixture) -> None:
    watch, reported = AppendWatch(1000), []
    watch.note(2.5)
    watch.listener = reported.append
    for took in (0.0, 1.0, 1.0015):
        watch.note(took)
    assert reported == [1001]
    assert [text for text in caplog.messages if "slow append" in text] == [
        "slow append elapsed_ms=2500",
        "slow append elapsed_ms=1001",
    ]
    assert sum(watch.durations.counts) == 4 and watch.durations.sum == pytest.approx(4.5015)
    edges = watch.durations.edges
    other = AppendWatch(1000)
    other.note(edges[2])
    other.note(edges[2] * 1.001)
    assert [n for n, count in enumerate(other.durations.counts) if count] == [2, 3], "an edge belongs to its bucket"


@pytest.mark.spec("CQ-03", "ST-08")
@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        ("T", b"DELAY\x012", 0),
        ("T", b"TAGS\x01a\x02DELAY\x012", 97),
        (SCHEDULE_TOPIC, b"", 0),
        (SCHEDULE_TOPIC, b"DELAY\x010", 0),
        (SCHEDULE_TOPIC, b"DELAY\x01-1", 0),
        (SCHEDULE_TOPIC, b"DELAY\x01x", 0),
        (SCHEDULE_TOPIC, b"DELAY\x011", NOW + 1000),
        (SCHEDULE_TOPIC, b"DELAY\x012", NOW + 300_000),
        (SCHEDULE_TOPIC, b"DELAY\x0199", NOW + 300_000),
        (SCHEDULE_TOPIC, b"A\x01\xff\x02DELAY\x01" + b"9" * 5000, NOW + 300_000),
        (TIMER_TOPIC, b"", 0),
        (TIMER_TOPIC, b"TIMER_WAKE_MS\x01%d" % NOW, NOW),
        (TIMER_TOPIC, b"A\x01\xff\x02TIMER_WAKE_MS\x01%d" % NOW, NOW),
        (TIMER_TOPIC, b"TIMER_WAKE_MS\x01-5", 0),
        (TIMER_TOPIC, "TIMER_WAKE_MS\x01\u0665".encode(), 0),
        (TIMER_TOPIC, b"TIMER_WAKE_MS\x01" + b"1" * 30, 111_111_111_111_111),
    ],
)
def test_tags_code_of_a_delayed_message_is_its_delivery_time(topic: str, properties: bytes, code: int) -> None:
    assert unit_code(topic, properties, NOW, "1s 5m") == code
