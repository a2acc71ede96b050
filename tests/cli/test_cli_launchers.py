"""The command lines of Apache RocketMQ's launchers, with `saturnmq broker` and `saturnmq namesrv` in place of their names."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from saturnmq.cli.settings import IMPORTANT

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.spec("ADM-29")
def test_broker_prints_all_or_the_important_keys_and_exits(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\nbrokerClusterName=c\n")
    everything = cli("broker", "-c", str(file), "-n", "127.0.0.1:9876;127.0.0.2:9876", "-p")
    important = cli("broker", "-c", str(file), "-n", "127.0.0.1:9876", "-m")
    assert (everything.returncode, important.returncode) == (0, 0)
    assert "namesrvAddr=127.0.0.1:9876;127.0.0.2:9876  # option" in everything.stdout.splitlines()
    assert {line.partition("=")[0] for line in important.stdout.splitlines()} == IMPORTANT
    assert "brokerName=b" in important.stdout and len(everything.stdout.splitlines()) > 250


@pytest.mark.spec("ADM-29")
def test_name_server_prints_its_keys_and_exits(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("orderMessageEnable=true\n")
    printed = cli("namesrv", "-c", str(file), "-p")
    assert printed.returncode == 0 and f"orderMessageEnable=true  # {file}" in printed.stdout.splitlines()


@pytest.mark.spec("ADM-29")
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("namesrvAddr=http://127.0.0.1:9876", "namesrvAddr must be host:port;host:port"),
        ("brokerRole=SLAVE", "brokerRole=SLAVE: brokerId must be above 0"),
    ],
)
def test_bad_addresses_and_slave_ids_do_not_start(cli: Cli, tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"{line}\nlistenPort=0\nstorePathRootDir={tmp_path / 'store'}\n")
    started = cli("broker", "-c", str(file))
    assert started.returncode == 2 and problem in started.stderr
