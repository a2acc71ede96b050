"""Options of a consumer: defaults, allowed ranges, and what is rejected before any request is sent."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import Any

import pytest

from saturnmq import Client, ConfigError
from saturnmq.client.consumer.rebalance_strategies import average
from saturnmq.client.consumer.settings import ConsumerSettings, consumer_settings

LEAST_AND_MOST: list[tuple[str, float, float]] = [
    ("prefetch", 1, 65_535),
    ("prefetch_bytes", 1, 2**40),
    ("pull_batch", 1, 1024),
    ("ack_timeout", 0.01, 86_400),
    ("suspend", 0.01, 30),
    ("pull_interval", 0, 65.535),
]


@pytest.mark.spec("CA-06", "OR-08")
def test_consumer_defaults() -> None:
    settings = ConsumerSettings()
    assert (settings.prefetch, settings.prefetch_bytes, settings.pull_batch) == (256, 64 << 20, 32)
    assert (settings.start, settings.model, settings.strategy) == ("last", "cluster", average)
    assert (settings.prefetch_per_topic, settings.prefetch_bytes_per_topic, settings.pull_interval) == (None, None, 0)
    assert (settings.ack_timeout, settings.suspend, settings.ordered) == (15 * 60, 1.0, False)
    assert settings.times_max == 16
    assert ConsumerSettings(ordered=True).times_max == 2**31 - 1, "without a limit"


@pytest.mark.spec("CA-06")
@pytest.mark.parametrize(("name", "least", "most"), LEAST_AND_MOST)
def test_consumer_option_outside_its_range_is_rejected(name: str, least: float, most: float) -> None:
    for inside in (least, most):
        consumer_settings("g", {name: inside}, None)
    for outside in (least - 1, most + 1, "many", None, True):
        with pytest.raises(ConfigError, match=f"{name} is"):
            consumer_settings("g", {name: outside}, None)


@pytest.mark.spec("CA-06")
@pytest.mark.parametrize(
    ("name", "most"), [("prefetch_per_topic", 6_553_500), ("prefetch_bytes_per_topic", 102_400 * 2**20)]
)
def test_consumer_threshold_per_topic_outside_its_range_is_rejected(name: str, most: int) -> None:
    for inside in (1, most, None):
        consumer_settings("g", {name: inside}, None)
    for outside in (0, -1, most + 1, 1.5, "many", True):
        with pytest.raises(ConfigError, match=rf"{name} is .*, must be 1\.\.{most} or None"):
            consumer_settings("g", {name: outside}, None)


@pytest.mark.spec("CA-06")
def test_consumer_start_is_last_first_or_an_aware_datetime() -> None:
    for start in ("last", "first", datetime(2024, 1, 1, tzinfo=UTC)):
        consumer_settings("g", {"start": start}, None)
    for start in ("20240101000000", "", None, datetime(2024, 1, 1)):
        with pytest.raises(ConfigError, match="start is"):
            consumer_settings("g", {"start": start}, None)


@pytest.mark.spec("CA-06")
@pytest.mark.parametrize("group", ["", "  ", "a" * 256, "a b", "gr\u00fcn", "a\n", "DEFAULT_CONSUMER"])
def test_consumer_group_name_is_validated_before_start(group: str) -> None:
    with pytest.raises(ConfigError, match="group"):
        Client(name_servers="h:1").consumer(group)


@pytest.mark.spec("CA-06")
def test_consumer_group_name_may_have_255_allowed_characters() -> None:
    for group in ("a" * 255, "%RETRY%x|y-Z_9"):
        assert Client(name_servers="h:1").consumer(group).group == group


@pytest.mark.spec("CA-06", "CA-07", "UPG-06")
def test_listener_concurrency_is_1_to_1000_with_default_20() -> None:
    assert inspect.signature(Client.listener).parameters["concurrency"].default == 20

    async def handle(message: Any) -> None: ...

    for concurrency in (1, 1000):
        Client(name_servers="h:1").listener("T", group="g", concurrency=concurrency)(handle)
    for concurrency in (0, 1001, 1.5, True):
        with pytest.raises(ConfigError, match="concurrency is"):
            Client(name_servers="h:1").listener("T", group="g", concurrency=concurrency)(handle)  # type: ignore[arg-type]
