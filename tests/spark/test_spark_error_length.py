"""Errors about thousands of queues stay short: Java matches the texts of Python's errors with regular expressions."""

from __future__ import annotations

import pytest

from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.planning import _brief
from saturnmq.spark.ranges import Bounds, listed, resolved_offsets

MANY = {MessageQueue("T", "broker-a", n): Bounds(0, 9) for n in range(10_000)}


def test_option_that_names_the_wrong_queues_is_a_short_error() -> None:
    with pytest.raises(ConfigError) as raised:
        resolved_offsets(MANY, {"U": {"broker-a": dict.fromkeys(range(10_000), 1)}}, "startingOffsets")
    text = str(raised.value)
    assert len(text) < 1500 and "does not name T/broker-a/0, T/broker-a/1," in text
    assert text.count("and 9980 more") == 2 and "names U/broker-a/0," in text


def test_listed_queues_and_option_values_are_cut_with_their_number() -> None:
    assert listed(MANY).endswith("T/broker-a/19 and 9980 more")
    assert listed([("T", "b", 1), ("T", "a", 7)]) == "T/a/7, T/b/1"
    assert _brief("x" * 300) == "x" * 300
    assert _brief({"T": "y" * 400}) == '{"T": "' + "y" * 293 + "... (409 characters)"
