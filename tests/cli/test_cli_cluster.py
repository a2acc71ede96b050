"""NameServers, credentials and TLS of the everyday commands, from options, files and the environment."""

from __future__ import annotations

import argparse
import asyncio
import ssl
from pathlib import Path

import pytest

import certificates
from saturnmq.cli.cluster import admin_of, client_of, settings_of
from saturnmq.cli.everyday.checks.cluster import _served_certificate
from saturnmq.protocol.errors import ConfigError

VARIABLES = ("SATURNMQ_URL", "NAMESRV_ADDR", "SATURNMQ_ACCESS_KEY", "SATURNMQ_SECRET_KEY", "ROCKETMQ_HOME")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"name_servers": None, "tools_yml": None, "config": None} | given)


@pytest.mark.spec("API-03")
def test_name_servers_come_from_option_url_variable_or_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(options())["name_servers"] == ("127.0.0.1:9876",)
    monkeypatch.setenv("NAMESRV_ADDR", "ns-a:9876;ns-b")
    assert settings_of(options())["name_servers"] == ("ns-a:9876", "ns-b:9876")
    monkeypatch.setenv("SATURNMQ_URL", "rmqs://ns-c")
    assert settings_of(options()) == {"name_servers": ("ns-c:9876",), "tls": True}
    assert settings_of(options(name_servers="ns-d"))["name_servers"] == ("ns-d:9876",)


@pytest.mark.spec("SEC-13")
def test_credentials_of_a_url_are_not_sent_to_other_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATURNMQ_URL", "rmq://access:secret@ns-c")
    assert settings_of(options())["access_key"] == "access"
    assert settings_of(options(name_servers="ns-d")) == {"name_servers": ("ns-d:9876",)}


@pytest.mark.spec("ACL-20")
def test_credentials_of_tools_yml_override_those_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, home = tmp_path / "tools.yml", tmp_path / "conf" / "tools.yml"
    home.parent.mkdir()
    named.write_text("accessKey: named\nsecretKey: one-secret-1\n")
    home.write_text("accessKey: at-home\nsecretKey: one-secret-2\n")
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert settings_of(options())["access_key"] == "at-home"
    monkeypatch.setenv("SATURNMQ_ACCESS_KEY", "environment")
    monkeypatch.setenv("SATURNMQ_SECRET_KEY", "one-secret-3")
    assert settings_of(options())["secret_key"] == "one-secret-3"
    assert settings_of(options(tools_yml=named))["access_key"] == "named"
    assert client_of(options(tools_yml=named)).settings.secret_key == "one-secret-1"
    with pytest.raises(ConfigError, match=r"none\.yml"):
        settings_of(options(tools_yml=tmp_path / "none.yml"))


@pytest.mark.spec("ACL-20")
def test_client_and_administration_have_the_same_access(tmp_path: Path) -> None:
    tools, node = tmp_path / "tools.yml", tmp_path / "broker.conf"
    tools.write_text("accessKey: named\nsecretKey: one-secret-1\n")
    node.write_text("tls.enable=true\ntls.client.trustCertPath=/ca.pem\ntls.client.authServer=true\n")
    args = options(tools_yml=tools, config=node, name_servers="ns-a;ns-b:1")
    settings, admin = client_of(args).settings, admin_of(args, timeout_ms=1000)
    assert (settings.tls, settings.tls_verify, settings.tls_ca) == (True, True, "/ca.pem")
    access = admin.connection.access
    assert access.access_settings == settings.access_settings and access.access_key == "named"
    assert (access.tls_settings.enable, access.tls_settings.client_trust_path) == (True, "/ca.pem")
    assert admin.connection.name_servers == settings.name_servers == ("ns-a:9876", "ns-b:1")


@pytest.mark.spec("CLI-06")
def test_doctor_reads_the_certificate_that_a_server_presents(tmp_path: Path) -> None:
    paths = certificates.write_certificate(tmp_path, "broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*paths)

    async def found(tls: ssl.SSLContext | None) -> tuple[str, str]:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        finding = await _served_certificate(f"127.0.0.1:{port}", 15.0)
        server.close()
        await server.wait_closed()
        return finding.result.value, finding.text

    result, text = asyncio.run(found(context))
    assert result == "note" and text.startswith("ends ")  # the certificate is valid for a day
    result, text = asyncio.run(found(None))
    assert result == "problem" and text.startswith("no TLS connection: ")
