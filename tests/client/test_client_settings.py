"""Client settings from a URL, the environment and arguments."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from saturnmq import Client, ConfigError
from saturnmq.broker import BrokerSettings
from saturnmq.client.connection.access import ClusterAccess
from saturnmq.client.connection.url import ClientSettings, from_environment, parse_addresses, parse_url
from saturnmq.config.settings import load, without_credentials
from saturnmq.net import TlsSettings
from saturnmq.net.client import split_address


def test_access_settings_are_those_that_differ_from_their_defaults() -> None:
    settings = ClientSettings(name_servers=("h:1",), access_key="key", secret_key="secret", timeout=1.5)
    assert settings.access_settings == {"access_key": "key", "secret_key": "secret"}


@pytest.mark.spec("API-02")
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rmq://host", {"name_servers": ("host:9876",)}),
        ("rmq://a:1,b:2", {"name_servers": ("a:1", "b:2")}),
        ("rocketmq://a:1;b:2/", {"name_servers": ("a:1", "b:2")}),
        ("rmq://[::1]:99", {"name_servers": ("[::1]:99",)}),
        ("rmqs://h", {"name_servers": ("h:9876",), "tls": True}),
        ("RMQS://h", {"name_servers": ("h:9876",), "tls": True}),
        (
            "rmq://ak:s%40k@h:1?namespace=shop&timeout=1.5&attempts=2&vip_channel=true",
            {
                "name_servers": ("h:1",),
                "access_key": "ak",
                "secret_key": "s@k",
                "namespace": "shop",
                "timeout": 1.5,
                "attempts": 2,
                "vip_channel": True,
            },
        ),
    ],
)
def test_url_is_parsed_into_settings(url: str, expected: dict[str, object]) -> None:
    assert parse_url(url) == expected


@pytest.mark.spec("API-02")
def test_unknown_url_key_error_suggests_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'namespace'"):
        Client.from_url("rmq://h?namespaces=x")


@pytest.mark.spec("API-02")
@pytest.mark.parametrize(
    "url",
    [
        "rmq://ak:topsecret@h:99999",
        "rmq://ak:topsecret@h?tls=maybe",
        "http://ak:topsecret@h",
        "rmq://:topsecret@h",
        "rmq://ak:topsecret/x@h",
        "rmq://ak:topsecret?x@h",
        "rmq://ak:x?topsecret@h=1",
        "rmq://ak:topsecret#x@h",
        "rmq://h?address_server=ftp://u:topsecret@h",
    ],
)
def test_secret_does_not_appear_in_errors(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client.from_url(url)
    assert "topsecret" not in str(caught.value) and "topsecret" not in repr(caught.value)


@pytest.mark.spec("API-02")
@pytest.mark.parametrize(
    "text",
    [
        "rmq://key:topsecret@h",
        "rmq://key:x;topsecret@h:9876",
        "rmq://key:x,topsecret@h",
        "key:topsecret@h",
        "h:1;topsecret@h",
        "rmqs://key:topsecret@",
    ],
)
def test_url_as_name_server_list_is_refused_without_its_secret(text: str, caplog: pytest.LogCaptureFixture) -> None:
    for make in (
        lambda: Client.from_env({"NAMESRV_ADDR": text}),
        lambda: Client(name_servers=text),
        lambda: Client(name_servers=[text]),
        lambda: load(BrokerSettings, ("file", {"namesrvAddr": text})),
        lambda: split_address(text),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert "topsecret" not in str(caught.value) and "host:port" in str(caught.value)
    assert "topsecret" not in caplog.text


def test_address_is_shown_without_credentials() -> None:
    assert without_credentials("rmq://a:b@c@h:1;i:2") == "rmq://******@h:1;i:2"
    assert without_credentials("a:b@h") == "******@h"
    assert without_credentials("h:1") == "h:1"


@pytest.mark.spec("SEC-10")
def test_signature_is_v1_or_v2() -> None:
    assert Client(name_servers="h").settings.signature == "v1"
    assert Client.from_url("rmq://a:b@h?signature=v2").settings.signature == "v2"
    assert Client.from_env({"NAMESRV_ADDR": "h", "SATURNMQ_SIGNATURE": "v2"}).settings.signature == "v2"
    with pytest.raises(ConfigError, match="signature is 'v3', must be v1 or v2"):
        Client(name_servers="h", signature="v3")


@pytest.mark.spec("API-02")
def test_secret_does_not_appear_in_reprs() -> None:
    client = Client.from_url("rmq://ak:topsecret@h")
    assert "topsecret" not in repr(client) + repr(client.settings) + str(client.settings)


@pytest.mark.spec("API-02")
def test_secret_does_not_appear_in_logs(
    run: Callable[[Callable[[], Any]], Any], cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster() as c:
            url = f"rmq://ak:topsecret@{c.name_servers}"
            async with Client.from_url(url, attempts=1) as client, client.producer("p") as out:
                c.broker.script[310] = [lambda command: command.reply(1, "no")]
                with pytest.raises(Exception, match="no"):
                    await out.send("T", b"x")
                assert "topsecret" not in repr(c.broker.of(310)[0].ext)

    with caplog.at_level(logging.DEBUG):
        run(work)
    assert "topsecret" not in caplog.text


@pytest.mark.spec("API-01", "PR-03")
def test_all_invalid_values_are_reported_at_once_with_their_ranges() -> None:
    with pytest.raises(ConfigError) as caught:
        Client(name_servers="h", timeout=-1, attempts=0, body_bytes_max=0, access_key="x")
    problems = caught.value.problems
    assert len(problems) == 4
    assert any("timeout" in text and "0.001..3600" in text for text in problems)
    assert any("attempts" in text and "1..100" in text for text in problems)
    assert any("secret_key" in text for text in problems)


@pytest.mark.spec("API-01")
def test_unknown_names_and_invalid_values_are_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Client(name_servers="h:99999", timout=1, attempts=101)
    assert sorted(caught.value.problems) == [
        "NameServer address 'h:99999' must be host:port, port 1..65535",
        "attempts is 101, must be 1..100",
        "unknown setting 'timout', did you mean 'timeout'?",
    ]


@pytest.mark.spec("API-01")
def test_constructors_need_no_loop_and_are_keyword_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a constructor does no I/O")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    threads = set(threading.enumerate())
    client = Client(name_servers="nowhere.invalid")
    client.producer("g")
    client.consumer("g2")
    client.puller()
    client.listener("T", group="g3")(lambda message: None)
    assert set(threading.enumerate()) <= threads
    with pytest.raises(TypeError):
        Client("h")  # type: ignore[misc]
    for make, positional in (
        (Client, []),
        (client.producer, ["group"]),
        (client.consumer, ["group"]),
        (client.puller, ["group"]),
        (client.listener, ["topic"]),
    ):
        parameters = inspect.signature(make).parameters.values()
        assert [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD] == positional
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


@pytest.mark.spec("API-01")
@pytest.mark.parametrize(
    ("options", "problems"),
    [
        (
            {"prefetch": 0, "start": "middle"},
            ["prefetch is 0, must be 1..65535", "start is 'middle', must be 'last', 'first' or an aware datetime"],
        ),
        (
            {"ack_timeout": 0, "pull_batch": 5000, "max_times": -1},
            [
                "pull_batch is 5000, must be 1..1024",
                "ack_timeout is 0, must be 0.01..86400.0",
                "max_times is -1, must be 0..2147483647 or None",
            ],
        ),
    ],
)
def test_invalid_consumer_options_are_reported_at_once(options: dict[str, object], problems: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Client(name_servers="h").consumer("g", **options)  # type: ignore[call-overload]
    assert caught.value.problems == problems


@pytest.mark.spec("PR-03", "BAT-02")
def test_client_defaults_equal_those_of_apache() -> None:
    settings = ClientSettings(name_servers=("h:1",))
    assert settings.create_topic_key == "TBW102"
    assert settings.default_queues == 4
    assert settings.timeout == 3.0
    assert settings.compress_from_bytes == 4096
    assert settings.attempts == 1 + 2  # retryTimesWhenSendFailed
    assert settings.retry_not_stored is False
    assert settings.body_bytes_max == 4_194_304
    assert settings.route_poll_ms == settings.heartbeat_ms == 30_000
    assert settings.persist_offsets_ms == 5_000
    assert settings.vip_channel is False
    assert settings.api_timeout_ms == 3_000


@pytest.mark.spec("PR-24")
@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("compress_type=snappy", "compress_type is 'snappy', must be zlib or lz4 or zstd"),
        ("compress_level=10", r"compress_level is 10, must be 0\.\.9 with compress_type zlib"),
        ("compress_type=zstd&compress_level=23", r"compress_level is 23, must be 0\.\.22"),
    ],
)
def test_compression_settings_out_of_range_are_named(query: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Client.from_url(f"rmq://h:1?{query}")
    assert Client.from_url("rmq://h:1").settings.compress_type == "zlib", "as rocketmq.message.compressType"
    assert Client.from_url("rmq://h:1?compress_type=zstd&compress_level=22").settings.compress_level == 22


@pytest.mark.spec("API-03", "PR-08")
def test_argument_overrides_url_overrides_environment() -> None:
    environment = {"SATURNMQ_URL": "rmq://u:1?timeout=2", "SATURNMQ_TIMEOUT": "9", "SATURNMQ_NAMESPACE": "ns"}
    assert from_environment(environment) == {"name_servers": ("u:1",), "timeout": 2.0, "namespace": "ns"}
    assert Client.from_env(environment, timeout=5.0).settings.timeout == 5.0
    assert Client.from_env(environment, name_servers="a:2").settings.name_servers == ("a:2",)


@pytest.mark.spec("API-03", "SPR-01")
def test_settings_are_read_from_environment_and_toml() -> None:
    environment = {"NAMESRV_ADDR": "a:1", "SATURNMQ_ACCESS_KEY": "ak", "SATURNMQ_SECRET_KEY": "sk",
                   "SATURNMQ_NAMESPACE": "shop", "SATURNMQ_TIMEOUT": "1.5"}  # fmt: skip
    table = tomllib.loads(
        """
        [saturnmq]
        name_servers = ["a:1"]
        access_key = "ak"
        secret_key = "sk"
        namespace = "shop"
        timeout = 1.5
        """
    )
    wanted = ClientSettings(name_servers=("a:1",), access_key="ak", secret_key="sk", namespace="shop", timeout=1.5)
    assert Client.from_env(environment).settings == wanted
    assert Client(**table["saturnmq"]).settings == wanted
    assert Client.from_url("rmq://a:1?address_server=http://x/y").settings.address_server == "http://x/y"
    assert Client.from_env(environment).settings.address_server is None, "asked only where it is named"


@pytest.mark.spec("API-03", "PR-08")
def test_name_server_list_is_read_from_the_environment() -> None:
    assert Client.from_env({"NAMESRV_ADDR": "a:1;b"}).settings.name_servers == ("a:1", "b:9876")
    assert parse_addresses("a:1; b:2;;a:1") == ("a:1", "b:2")


@pytest.mark.spec("API-03")
def test_empty_environment_error_names_the_variables() -> None:
    with pytest.raises(ConfigError, match=r"SATURNMQ_URL.*NAMESRV_ADDR"):
        Client.from_env({})


@pytest.mark.spec("PKG-04")
def test_import_is_lazy() -> None:
    code = (
        "import sys; before=set(sys.modules); import saturnmq; new=set(sys.modules)-before; "
        "assert not [m for m in new if m.split('.')[0] in ('rich','yaml','pyspark','pyarrow','uvloop','asyncio')], new; "
        "saturnmq.Client; assert 'rich' not in sys.modules and 'pyspark' not in sys.modules; "
        "assert set(saturnmq.__all__) <= set(dir(saturnmq)); [getattr(saturnmq, n) for n in saturnmq.__all__]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_unknown_name_is_an_attribute_error() -> None:
    import saturnmq

    with pytest.raises(AttributeError, match="Klient"):
        saturnmq.Klient  # noqa: B018


def test_certificates_of_a_client_are_those_of_its_connections() -> None:
    """A file under another name would be left out, and the system's certificates trusted instead."""
    access = ClusterAccess(
        tls=True,
        tls_verify=False,
        tls_check_host=False,
        tls_ca="ca.pem",
        tls_cert="c.pem",
        tls_key="k.pem",
        tls_key_password="p",
    )
    assert access.tls_settings == TlsSettings(
        enable=True, client_auth_server=False, client_check_host=False, client_trust_path="ca.pem",
        client_cert_path="c.pem", client_key_path="k.pem", client_key_password="p",
    )  # fmt: skip
    assert ClusterAccess().tls_settings == TlsSettings(enable=False, client_auth_server=True, client_check_host=True)
