"""Values that users of the client rely on: defaults, limits, back-off times."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from saturnmq import Client
from saturnmq.client.client import Client as AsyncClient
from saturnmq.client.connection.url import ClientSettings
from saturnmq.client.consumer.settings import ConsumerSettings
from saturnmq.client.producer import attempts
from saturnmq.client.producer.retries import backoff_ms
from saturnmq.client.producer.settings import RETRY_CODES, ProducerSettings
from saturnmq.protocol.codes import ResponseCode

MIB = 1024 * 1024


def default(function: Any, name: str) -> Any:
    return inspect.signature(function).parameters[name].default


@pytest.mark.spec("API-16")
def test_listener_defaults_are_20_workers_and_15_minutes() -> None:
    assert default(AsyncClient.listener, "concurrency") == 20
    assert default(AsyncClient.listener, "time_limit") == 15 * 60.0


@pytest.mark.spec("API-20")
def test_ack_timeout_is_15_minutes_and_above_a_listeners_time_limit() -> None:
    assert ConsumerSettings().ack_timeout == 15 * 60.0
    client = Client(name_servers="h")
    client.listener("T", group="g")(lambda message: None)
    client.listener("T", group="quick", time_limit=1.0)(lambda message: None)
    assert [spec.consumer_options["ack_timeout"] for spec in client._listeners] == [1800.0, 60.0]


@pytest.mark.spec("API-22")
def test_producer_limits_in_flight_to_1024_messages_and_64_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[tuple[int, int]] = []
    monkeypatch.setattr(attempts, "InFlightLimit", lambda count, size: bounds.append((count, size)))
    assert ProducerSettings().max_in_flight == 1024
    Client(name_servers="h").producer("g")
    assert bounds == [(1024, 64 * MIB)]


@pytest.mark.spec("API-23")
def test_consumer_prefetch_is_256_messages_per_queue_and_64_mib() -> None:
    settings = ConsumerSettings()
    assert (settings.prefetch, settings.prefetch_bytes) == (256, 64 * MIB)


@pytest.mark.spec("API-27")
def test_drain_timeout_defaults_to_20_seconds() -> None:
    assert default(AsyncClient.run, "drain_timeout") == 20.0


@pytest.mark.spec("API-28")
def test_send_makes_3_attempts_in_3_s_with_jittered_backoff() -> None:
    settings = ClientSettings(name_servers=("h:1",))
    assert (settings.timeout, settings.attempts) == (3.0, 3)
    assert [backoff_ms(attempt, 1.0) for attempt in (1, 2, 3, 4, 5, 5000)] == [10, 40, 160, 640, 1000, 1000]
    assert [backoff_ms(attempt, 0.0) for attempt in (1, 2, 3, 4, 5, 50)] == [10, 20, 80, 320, 500, 500]


@pytest.mark.spec("API-29")
def test_retry_codes_add_busy_and_flow_control_to_javas() -> None:
    java = {1, 14, 16, 17, 204, 205}
    assert java | {ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL} == RETRY_CODES
    settings = ClientSettings(name_servers=("h:1",))
    assert settings.latency_fault is True and settings.avoid_ms_max == 30_000


@pytest.mark.spec("API-18")
def test_consumer_starts_at_the_queue_end_by_default() -> None:
    assert ConsumerSettings().start == "last"
