"""The systemd units: accepted by systemd-analyze, and what they start reports itself as ready and feeds the watchdog."""

from __future__ import annotations

import asyncio
import configparser
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from serverprocess import Server

from boards import DEPLOY
from saturnmq.cli.systemd import notify, report_ready

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/opt/saturnmq/bin/saturnmq"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end: a datagram socket at tmp_path/notify."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(30)
        yield channel


def unit(path: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return parser["Service"]


@pytest.mark.spec("INT-15")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_unit_has_watchdog_limits_and_a_protected_system(path: Path) -> None:
    service = unit(path)
    assert (service["Type"], service["Restart"], service["ProtectSystem"]) == ("notify", "on-failure", "strict")
    assert service["LimitNOFILE"] == "655350" and int(service["WatchdogSec"]) > 0
    assert service["User"] == "saturnmq" and service["NoNewPrivileges"] == "yes"


@pytest.mark.spec("INT-15")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_unit_is_accepted_by_systemd_analyze(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt install systemd")
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("saturnmq"))))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.realtime
@pytest.mark.spec("INT-15")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_server_of_a_unit_reports_ready_and_feeds_the_watchdog(
    path: Path, tmp_path: Path, manager: socket.socket
) -> None:
    command = unit(path)["ExecStart"]
    assert f"/var/lib/{unit(path)['StateDirectory']}" in command
    for folder in ("/etc/saturnmq", "/var/lib/saturnmq"):
        (tmp_path / folder[1:]).mkdir(parents=True)
        command = command.replace(folder, str(tmp_path / folder[1:]))
    program, *arguments = shlex.split(command)
    assert program == PROGRAM
    role = path.stem.rpartition("-")[2]
    (tmp_path / "etc" / "saturnmq" / f"{role}.conf").write_text("listenPort=0\n")
    server = Server(*arguments, env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"})
    try:
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    finally:
        assert server.stop() == 0


async def test_watchdog_is_fed_twice_per_period(
    tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    report_ready()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(91):
            await asyncio.Future()
    manager.setblocking(False)
    assert [manager.recv(100) for _ in range(5)] == [b"READY=1"] + 4 * [b"WATCHDOG=1"]


@pytest.mark.parametrize(("variable", "value"), [("WATCHDOG_PID", "1"), ("WATCHDOG_USEC", "0"), ("WATCHDOG_USEC", "x")])
async def test_watchdog_of_another_process_or_without_period_is_not_fed(
    tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    for name, text in {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000", variable: value}.items():
        monkeypatch.setenv(name, text)
    report_ready()
    assert manager.recv(100) == b"READY=1"
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_notification_reaches_an_abstract_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = f"saturnmq-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("\0" + name)
        channel.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        notify("READY=1")
        assert channel.recv(100) == b"READY=1"


def test_missing_manager_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for address in (str(tmp_path / "none"), ""):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")
