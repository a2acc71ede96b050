"""Options of clients, producers and consumers: one list of each for the type checker, the run time and the errors."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from saturnmq import Client, ConfigError, sync
from saturnmq.client.connection.url import ClientOptions, ClientSettings
from saturnmq.client.consumer.settings import ConsumerOptions, ConsumerSettings
from saturnmq.client.producer.settings import ProducerOptions, ProducerSettings

KINDS = [(ClientOptions, ClientSettings), (ProducerOptions, ProducerSettings), (ConsumerOptions, ConsumerSettings)]


@pytest.mark.parametrize(("options", "settings"), KINDS)
def test_typed_options_equal_the_fields_of_the_settings(options: Any, settings: Any) -> None:
    parsed = {"name_servers"}  # of which the constructor takes text too
    types, fields = get_type_hints(options), get_type_hints(settings)
    assert types.keys() == fields.keys()
    assert {name for name in types if types[name] != fields[name]} == parsed & fields.keys()


@pytest.mark.parametrize("kind", [Client, sync.Client])
def test_unknown_options_name_the_nearest(kind: Any) -> None:
    client = kind(name_servers="h")
    for make, problem in (
        (lambda: kind(name_servers="h", timeot=1), "unknown setting 'timeot', did you mean 'timeout'?"),
        (lambda: kind.from_url("rmq://h", tls_verfy=1), "unknown setting 'tls_verfy', did you mean 'tls_verify'?"),
        (lambda: client.producer("p", linger=1)._inner, "unknown option 'linger', did you mean 'linger_ms'?"),
        (lambda: client.consumer("c", acktimeout=1), "unknown option 'acktimeout', did you mean 'ack_timeout'?"),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.problems == [problem]


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("max_in_flight", 0, "1..65535"), ("max_in_flight", 1.5, "1..65535"), ("batch_bytes", 4_194_305, "0..4194304"),
     ("linger_ms", 10_001, "0..10000"), ("linger_ms", True, "0..10000")],
)  # fmt: skip
def test_producer_options_outside_their_range_are_refused(option: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client(name_servers="h").producer("p", **{option: value})  # type: ignore[call-overload]
    assert caught.value.problems == [f"{option} is {value!r}, must be {allowed}"]


def test_whole_numbers_take_no_fraction() -> None:
    with pytest.raises(ConfigError, match=r"attempts is 2.5, must be 1..100"):
        Client(name_servers="h", attempts=2.5)  # type: ignore[arg-type]
    assert Client(name_servers="h", timeout=2).settings.timeout == 2
