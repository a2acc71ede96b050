"""Configuration from environment variables, and its reload on SIGHUP."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saturnmq.broker import BrokerSettings
from saturnmq.cli.commands import build_parser
from saturnmq.cli.reload import Reload
from saturnmq.cli.settings import broker_classes, configure, print_config
from saturnmq.config.runtime import RuntimeSettings
from saturnmq.protocol.errors import ConfigError
from saturnmq.server_admin import ServerConfiguration
from waiting import until

CLASSES = broker_classes()


def arguments(file: Path, *more: str) -> argparse.Namespace:
    return build_parser().parse_args(["broker", "-c", str(file), *more])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=of-file\nbrokerClusterName=of-file\nlistenPort=1\n")
    return path


@pytest.mark.spec("CLI-10")
def test_environment_overrides_the_file_and_options_override_both(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SATURNMQ_BROKER_NAME", "of-environment")
    monkeypatch.setenv("SATURNMQ_LISTEN_PORT", "2")
    monkeypatch.setenv("SATURNMQ_HA_CLUSTER_SECRET", "0123456789abcdef")
    configured = configure(CLASSES, arguments(file, "--set", "listenPort=3"), {})
    print_config(configured, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "brokerName=of-environment  # environment SATURNMQ_BROKER_NAME" in lines
    assert f"brokerClusterName=of-file  # {file}" in lines
    assert "listenPort=3  # --set" in lines
    assert "haClusterSecret=******  # environment SATURNMQ_HA_CLUSTER_SECRET" in lines
    print_config(configured, as_json=False, important=True)
    important = capsys.readouterr().out.splitlines()
    assert "brokerName=of-environment  # environment SATURNMQ_BROKER_NAME" in important
    assert len(important) == 35 and not any(line.startswith("listenPort") for line in important)


@pytest.mark.spec("CLI-10")
def test_unknown_variables_and_bad_values_are_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SATURNMQ_BROKER_NAM", "x")
    configure(CLASSES, arguments(file), {})
    hint = "unknown environment variable 'SATURNMQ_BROKER_NAM', did you mean 'SATURNMQ_BROKER_NAME'?"
    assert f"warning: {hint}; it is ignored" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="SATURNMQ_BROKER_NAM"):
        configure(CLASSES, arguments(file, "--strict-config"), {})
    monkeypatch.setenv("SATURNMQ_LISTEN_PORT", "70000")
    with pytest.raises(
        ConfigError, match=r"listenPort='70000' \(environment SATURNMQ_LISTEN_PORT\): must be in 0..65535"
    ):
        configure(CLASSES, arguments(file), {})


def reload_of(file: Path) -> tuple[Reload, ServerConfiguration, BrokerSettings]:
    args = arguments(file)
    configured = configure(CLASSES, args, {})
    live: BrokerSettings = configured.part("broker")
    live = BrokerSettings(broker_name=live.broker_name, cluster_name=live.cluster_name, listen_port=live.listen_port)
    configuration = ServerConfiguration(RuntimeSettings(live), file, effects={}, shown=dict)
    return Reload(CLASSES, args, {}, configured), configuration, live


@pytest.mark.spec("SEC-07")
def test_reload_applies_what_can_change_and_reports_the_rest(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reload, configuration, live = reload_of(file)
    file.write_text(
        "brokerName=other\nlistenPort=1\nbrokerPermission=4\nwaitTimeMillsInSendQueue=3s\nmaxMsgsNumBatch=9\n"
    )
    asyncio.run(reload.once(configuration))
    assert (live.broker_permission, live.send_wait_ms, live.broker_name) == (4, 3000, "of-file")
    texts = [record.getMessage() for record in caplog.records]
    assert "configuration changed key=brokerPermission from=6 to=4 by=reload" in texts
    assert "restart needed keys=brokerClusterName,brokerName,maxMsgsNumBatch" in texts
    caplog.clear()
    asyncio.run(reload.once(configuration))
    assert not any("configuration changed" in record.getMessage() for record in caplog.records)
    file.write_text("brokerName=of-file\nbrokerClusterName=of-file\nlistenPort=1\n")
    asyncio.run(reload.once(configuration))
    assert live.broker_permission == 6, "a key that is not set any more has its default"


@pytest.mark.spec("SEC-07")
@pytest.mark.parametrize("line", ["brokerPermission=77", "listenPort=x", "storeProfile=huge"])
def test_bad_file_changes_nothing(file: Path, line: str, caplog: pytest.LogCaptureFixture) -> None:
    reload, configuration, live = reload_of(file)
    file.write_text(f"brokerName=of-file\nwaitTimeMillsInSendQueue=3s\n{line}\n")
    asyncio.run(reload.once(configuration))
    assert (live.broker_permission, live.send_wait_ms) == (6, 200)
    assert any(line.partition("=")[0] in r.getMessage() and r.levelname == "ERROR" for r in caplog.records)
    file.unlink()
    asyncio.run(reload.once(configuration))
    assert live.send_wait_ms == 200 and "not reloaded" in caplog.records[-1].getMessage()


@pytest.mark.realtime
@pytest.mark.spec("SEC-07")
@pytest.mark.parametrize("verb", ["broker", "namesrv"])
def test_sighup_reloads_the_file_of_a_running_server(serve: Callable[..., Any], tmp_path: Path, verb: str) -> None:
    path = tmp_path / "x.conf"
    path.write_text("listenPort=0\n")
    data = ("--data", str(tmp_path / "data")) if verb == "broker" else ()
    server = serve(verb, "-c", str(path), *data)
    path.write_text("listenPort=0\nlogLevel=INFO\nbindAddress=127.0.0.2\n")
    server.process.send_signal(signal.SIGHUP)
    asyncio.run(until(lambda: any("restart needed keys=bindAddress" in line for line in server.err)))
    assert any("configuration changed key=logLevel" in line for line in server.err)
    path.write_text("listenPort=99999\n")
    server.process.send_signal(signal.SIGHUP)
    asyncio.run(until(lambda: any("configuration not reloaded" in line and "99999" in line for line in server.err)))
    assert server.stop() == 0
