"""Numeric settings of a client: the ends of their ranges are accepted and what lies beyond is refused, all settings alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from saturnmq import Client, ConfigError
from saturnmq.client.connection.url import ClientSettings

HOUR_MS = 3_600_000
RANGES: dict[str, tuple[float, float]] = {
    "timeout": (0.001, 3600.0),
    "attempts": (1, 100),
    "avoid_ms_max": (0, 10 * 60_000),
    "default_queues": (1, 65_535),
    "body_bytes_max": (1, 2**31 - 1),
    "compress_from_bytes": (1, 2**31 - 1),
    "compress_level": (0, 22),  # of zstd; zlib has 0..9
    "route_poll_ms": (10, HOUR_MS),
    "heartbeat_ms": (10, 110_000),  # a broker removes a client 120 s after its last heartbeat
    "persist_offsets_ms": (10, HOUR_MS),
    "rebalance_ms": (10, HOUR_MS),
    "api_timeout_ms": (1, 10 * 60_000),
}


def test_every_numeric_setting_has_a_range() -> None:
    numeric = [item.name for item in dataclasses.fields(ClientSettings) if item.type in ("int", "float")]
    assert sorted(numeric) == sorted(RANGES)


@pytest.mark.parametrize("name", RANGES)
def test_setting_outside_its_range_is_refused(name: str) -> None:
    least, most = RANGES[name]
    compression = {"compress_type": "zstd"} if name == "compress_level" else {}
    for inside in (least, most):
        assert getattr(Client(name_servers="h", **{name: inside, **compression}).settings, name) == inside
    step = 0.0001 if name == "timeout" else 1
    outside: tuple[Any, ...] = (least - step, most + step, str(most), None, True)
    for value in outside:
        with pytest.raises(ConfigError) as caught:
            Client(name_servers="h", **{name: value, **compression})
        assert caught.value.problems == [f"{name} is {value!r}, must be {least}..{most}"]


def test_intervals_have_the_defaults_of_apache() -> None:
    settings = ClientSettings(name_servers=("h:1",))
    assert settings.rebalance_ms == 20_000
    assert (settings.compress_level, settings.smart_send, settings.tls_verify) == (5, True, True)
    assert (settings.signature, settings.access_channel, settings.trace) == ("v1", "local", False)
    assert settings.offsets_dir == "~/.rocketmq_offsets"


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("yes", True), ("ON", True), ("false", False), ("0", False), ("no", False), (" off ", False)],
)  # fmt: skip
def test_switches_of_a_url_are_words_or_digits(text: str, value: bool) -> None:
    client = Client.from_url(f"rmq://h?tls={text}&trace={text}")
    assert (client.settings.tls, client.settings.trace) == (value, value)
    with pytest.raises(ConfigError, match=r"^tls: 'maybe' is not true or false$"):
        Client.from_url("rmq://h?tls=maybe")
    assert Client.from_url("rmq://h?trace=my-traces").settings.trace == "my-traces"


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [
        ("timeout=500ms", "timeout", 0.5),
        ("timeout=2", "timeout", 2.0),
        ("avoid_ms_max=10s", "avoid_ms_max", 10_000),
        ("route_poll_ms=1m", "route_poll_ms", 60_000),
        ("heartbeat_ms=20s", "heartbeat_ms", 20_000),
        ("persist_offsets_ms=1500", "persist_offsets_ms", 1500),
        ("rebalance_ms=10s", "rebalance_ms", 10_000),
        ("api_timeout_ms=2s", "api_timeout_ms", 2000),
        ("body_bytes_max=1MiB", "body_bytes_max", 1 << 20),
        ("compress_from_bytes=8KiB", "compress_from_bytes", 8192),
        ("attempts=5", "attempts", 5),
    ],
)
def test_numbers_of_a_url_may_have_units(query: str, name: str, value: float) -> None:
    assert getattr(Client.from_url(f"rmq://h?{query}").settings, name) == value


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("timeout=soon", "timeout: 'soon' is not a number of seconds or a duration such as 500ms or 90s"),
        ("rebalance_ms=x", "rebalance_ms: 'x' is not a duration such as 90000, 500ms, 90s or 2h"),
        ("body_bytes_max=x", "body_bytes_max: 'x' is not a size such as 67108864, 64MiB or 1GiB"),
        ("attempts=2.5", "attempts: '2.5' is not a whole number"),
        ("attempts=" + "x" * 61, "attempts: '" + "x" * 60 + "' is not a whole number"),
    ],
)
def test_number_of_a_url_that_is_none_is_refused(query: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client.from_url(f"rmq://h?{query}")
    assert caught.value.problems == [problem]


@pytest.mark.parametrize("name", ["namespace", "instance", "unit"])
def test_names_have_1_to_127_allowed_characters(name: str) -> None:
    for value in ("a", "%|aZ09_.#-", "x" * 127):
        assert getattr(Client(name_servers="h", **{name: value}).settings, name) == value
    for value in ("", "x" * 128, "a b", "gr\u00fcn"):
        with pytest.raises(ConfigError, match=f"^{name} is .*, must be 1..127 characters of"):
            Client(name_servers="h", **{name: value})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name_servers": ()}, "name_servers is empty, must name at least one host:port"),
        ({"address_server": "ftp://h"}, "address_server is 'ftp://h', must be an http:// or https:// URL"),
        ({"access_key": "a"}, "access_key and secret_key belong together, one of them is missing"),
        ({"secret_key": "s"}, "access_key and secret_key belong together, one of them is missing"),
        ({"security_token": "t"}, "security_token is of no use without access_key and secret_key"),
        ({"tls_key": "k"}, "tls_key is of no use without tls_cert"),
        ({"access_channel": "moon"}, "access_channel is 'moon', must be 'local' or 'cloud'"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client(**{"name_servers": "h"} | options)
    assert caught.value.problems == [problem]
    Client(name_servers="h", access_key="a", secret_key="s", security_token="t", tls_cert="c", tls_key="k")
    Client(name_servers=(), address_server="https://h/list", access_channel="cloud")
