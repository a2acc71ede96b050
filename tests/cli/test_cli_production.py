"""`--profile production` refuses to start without what it needs, and the ready line names ports without authentication."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from saturnmq.broker import BrokerSettings
from saturnmq.cli.production import ITEMS, WAIVE, require_production
from saturnmq.cli.settings import Configured, broker_classes, configure
from saturnmq.namesrv import NameServerSettings
from saturnmq.net import NetSettings, TlsSettings
from saturnmq.protocol.errors import ConfigError

NAMESRV = {"namesrv": NameServerSettings, "net": NetSettings, "tls": TlsSettings}


def configured(tmp_path: Path, *lines: str, classes: dict[str, type] | None = None, mode: int = 0o600) -> Configured:
    path = tmp_path / "server.conf"
    path.write_text("\n".join(lines))
    path.chmod(mode)
    args = argparse.Namespace(config=path, set=[], strict_config=False)
    return configure(classes or broker_classes(), args, {})


def secured(tmp_path: Path) -> list[str]:
    store = tmp_path / "store"
    (store / "conf").mkdir(mode=0o750, parents=True, exist_ok=True)
    store.chmod(0o750)
    for name in ("key.pem", "store/conf/plain_acl.yml"):
        (tmp_path / name).touch(0o600)
    return [
        f"storePathRootDir={store}", "aclEnable=true", "autoCreateTopicEnable=false", "autoCreateSubscriptionGroup=false",
        "flushDiskType=SYNC_FLUSH", "tls.server.mode=enforcing", f"tls.server.certPath={tmp_path / 'cert.pem'}",
        f"tls.server.keyPath={tmp_path / 'key.pem'}",
    ]  # fmt: skip


def problems(settings: Configured, tmp_path: Path) -> list[str]:
    try:
        require_production(settings, tmp_path / "server.conf")
    except ConfigError as error:
        return error.problems
    return []


@pytest.mark.spec("SEC-21")
def test_production_lists_all_that_is_missing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o755)
    lines = (f"storePathRootDir={store}", "tls.server.need.client.auth=require", "haAllowedAddresses=10.0.0.2")
    found = problems(configured(tmp_path, *lines, mode=0o644), tmp_path)
    wanted = ["acl", "autoCreate", "syncFlush", "haSecret", "tls", "clientCertificates", "fileModes"]
    assert [text.rpartition("=")[2] for text in found] == wanted
    assert {text.rpartition("=")[2] for text in found} == set(ITEMS)
    for text, wanted in zip(
        found,
        ("aclEnable=true", "autoCreateTopicEnable=false", "flushDiskType=SYNC_FLUSH", "haClusterSecret",
         "tls.server.mode=enforcing",
         "exempts plain connections", "server.conf (mode 0644), " + str(store) + " (mode 0755)"),
        strict=True,
    ):  # fmt: skip
        assert wanted in text
    assert problems(configured(tmp_path, *secured(tmp_path)), tmp_path) == []


@pytest.mark.spec("SEC-21")
@pytest.mark.parametrize("item", ITEMS)
def test_each_item_is_waived_by_its_name(item: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = secured(tmp_path)
    undo = {
        "acl": "aclEnable=false", "autoCreate": "autoCreateTopicEnable=true", "syncFlush": "flushDiskType=ASYNC_FLUSH",
        "tls": "tls.server.mode=permissive", "fileModes": "",
        "haSecret": "brokerRole=SYNC_MASTER",
        "clientCertificates": "tls.server.mode=permissive\ntls.server.need.client.auth=require\nproduction.waive=tls",
    }  # fmt: skip
    if item == "fileModes":
        (tmp_path / "key.pem").chmod(0o644)
    (problem,) = problems(configured(tmp_path, *lines, undo[item]), tmp_path)
    assert problem.endswith(f"production.waive={item}")
    waived = configured(tmp_path, *lines, undo[item], f"production.waive=tls,{item}")
    assert problems(waived, tmp_path) == []
    assert f"({WAIVE}={item})" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        (["brokerRole=SLAVE", "brokerId=1"], True),
        (["brokerRole=SLAVE", "brokerId=1", "haClusterSecret=0123456789abcdef"], False),
        (["haAllowedAddresses=10.0.0.2", "haClusterSecret=0123456789abcdef"], True),
        (["haAllowedAddresses=10.0.0.2", "haClusterSecret=0123456789abcdef", "haRequireClusterSecret=true"], False),
        (["brokerRole=SYNC_MASTER", "haClusterSecret=0123456789abcdef"], False),
    ],
)
def test_a_pair_needs_its_secret(lines: list[str], missing: bool, tmp_path: Path) -> None:
    found = problems(configured(tmp_path, *secured(tmp_path), *lines), tmp_path)
    assert [text.rpartition("=")[2] for text in found] == ["haSecret"] * missing


@pytest.mark.parametrize("server", ["broker", "namesrv"])
def test_modes_of_all_account_files_are_checked(server: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "conf/acl/team").mkdir(parents=True)
    open_files = [home / "conf/plain_acl.yml", home / "conf/acl/team/more.yml", home / "conf/acl/last.yaml"]
    for path in (*open_files, home / "conf/acl/none.txt"):
        path.touch()
        path.chmod(0o644)
    lines = [f"rocketmqHome={home}", f"kvConfigPath={tmp_path / 'kv.json'}", "namesrvAccess=signed"]
    if server == "broker":
        lines = [*secured(tmp_path), f"rocketmqHome={home}"]
    settings = configured(tmp_path, *lines, classes=NAMESRV if server == "namesrv" else None)
    text = next(text for text in problems(settings, tmp_path) if "other users can read" in text)
    assert all(f"{path} (mode 0644)" in text for path in open_files) and "none.txt" not in text


def test_name_server_and_unknown_waivers(tmp_path: Path) -> None:
    settings = configured(
        tmp_path, "production.waive=speed", f"kvConfigPath={tmp_path / 'kv' / 'kv.json'}", classes=NAMESRV
    )
    found = problems(settings, tmp_path)
    assert found[0] == f"production.waive=speed: must be one of {', '.join(ITEMS)}"
    assert any("tls.server.mode=enforcing" in text for text in found[1:])


@pytest.mark.spec("SEC-21")
@pytest.mark.parametrize(
    ("command", "items"), [("broker", ["acl", "autoCreate", "syncFlush", "tls"]), ("namesrv", ["acl", "tls"])]
)
def test_command_refuses_to_start(  # type: ignore[no-untyped-def]
    command: str, items: list[str], cli, tmp_path: Path
) -> None:
    data = ("--data", str(tmp_path)) if command == "broker" else ()
    refused = cli(command, "--profile", "production", "--port", "0", *data)
    assert refused.returncode == 2 and "--profile production: connections may be plain text" in refused.stderr
    assert re.findall(r"production\.waive=(\w+)", refused.stderr) == items, "all at once"
    assert "ready" not in refused.stdout


@pytest.mark.spec("SEC-16")
def test_ports_bind_loopback_by_default() -> None:
    assert BrokerSettings().bind_address == NameServerSettings().bind_address == "127.0.0.1"
