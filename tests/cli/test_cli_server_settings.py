"""Server commands: addresses, TLS keys and certificates from the configuration file, and a stop during registration."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from certificates import write_certificate
from ports import free_port
from saturnmq.net import ConnectFailed, NetSettings, RemotingClient, TlsSettings
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.server_admin.collector import GENERATIONS_MAX

Start = Callable[..., Any]
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.spec("CLI-10", "NS-04", "DG-11")
@pytest.mark.parametrize("verb", ["namesrv", "standalone"])
def test_file_address_and_port_apply_without_options(serve: Start, tmp_path: Path, verb: str) -> None:
    file = tmp_path / "x.conf"
    file.write_text("bindAddress=127.0.0.2\nlistenPort=0\n")
    more = ("--data", str(tmp_path / "data"), "--namesrv-port", "0") if verb == "standalone" else ()
    facts = serve(verb, "-c", str(file), *more).facts
    for name in {"namesrv"} if verb == "namesrv" else {"namesrv", "broker"}:
        host, port = facts[name].rsplit(":", 1)
        assert host == "127.0.0.2" and port not in ("9876", "10911")


@pytest.mark.spec("NS-02")
def test_unknown_keys_of_the_file_are_shown_by_the_name_server(serve: Start, tmp_path: Path) -> None:
    file = tmp_path / "x.conf"
    file.write_text("listenPort=0\nmyWord=mine\n")
    address = serve("namesrv", "-c", str(file)).facts["namesrv"]

    async def ask() -> Command:
        client = RemotingClient(settings=NetSettings())
        try:
            return await client.invoke(address, Command(RequestCode.GET_NAMESRV_CONFIG), 5000)
        finally:
            await client.close()

    shown = (asyncio.run(ask()).body or b"").decode().splitlines()
    assert {"myWord=mine", f"configStorePath={file}"} <= set(shown)


@pytest.mark.spec("REM-29", "NS-31")
def test_file_tls_keys_apply_to_all_servers_and_their_clients(standalone: Start, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "server")
    file = tmp_path / "x.conf"
    file.write_text(f"tls.server.mode=enforcing\ntls.server.certPath={certificate}\ntls.server.keyPath={key}\n")
    server = standalone("-c", str(file))

    async def ask(address: str, code: int, tls: bool) -> Command:
        client = RemotingClient(settings=NetSettings(), tls=TlsSettings(enable=tls, client_trust_path=str(certificate)))
        try:
            return await client.invoke(address, Command(code, ext={"topic": "BenchmarkTest"}), 5000)
        finally:
            await client.close()

    for address, code in (
        (server.facts["namesrv"], RequestCode.GET_ROUTEINFO_BY_TOPIC),
        (server.facts["broker"], RequestCode.GET_BROKER_CONFIG),
    ):
        with pytest.raises(ConnectFailed):
            asyncio.run(ask(address, code, False))
        assert asyncio.run(ask(address, code, True)).code == 0
    assert server.stop() == 0


@pytest.mark.spec("CLI-10", "REM-29")
def test_unreadable_certificate_prevents_start(cli: Cli, tmp_path: Path) -> None:
    keys = ("--set", f"tls.server.certPath={tmp_path}/none.pem", "--set", f"tls.server.keyPath={tmp_path}/none.key")
    done = cli("standalone", "--data", str(tmp_path / "data"), "--namesrv-port", "0", "--port", "0", *keys)
    assert done.returncode == 2 and "none.pem" in done.stderr
    shown = cli("namesrv", "--print-config", "--json", "--set", "tls.server.mode=enforcing")
    rows = {row["key"]: row for row in json.loads(shown.stdout)["rows"]}
    assert (rows["tls.server.mode"]["value"], rows["tls.server.mode"]["origin"]) == ("enforcing", "--set")


@pytest.mark.parametrize("verb", ["namesrv", "broker", "standalone"])
def test_servers_keep_what_they_loaded_from_the_garbage_collector(serve: Start, tmp_path: Path, verb: str) -> None:
    report = (
        "import atexit, gc\natexit.register(lambda: print('frozen', gc.get_freeze_count(), gc.get_threshold()[2]))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(report)
    ports = ("--namesrv-port", "0", "--port", "0") if verb == "standalone" else ("--port", "0")
    data = () if verb == "namesrv" else ("--data", str(tmp_path / "data"), "--set", "storeProfile=small")
    server = serve(verb, *ports, *data, env={"PYTHONPATH": str(tmp_path)})
    assert server.stop() == 0
    word, count, generations = server.out[-1].split()
    assert (word, int(generations)) == ("frozen", GENERATIONS_MAX) and int(count) > 10_000, server.out


@pytest.mark.spec("CLI-09")
def test_sigterm_during_registration_ends_broker(tmp_path: Path) -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        dead.listen()
        settings = (
            f"listenPort={free_port((0, 1))}",
            f"storePathRootDir={tmp_path}",
            "storeProfile=small",
            "fastPortEnable=false",
        )
        settings += ("registerBrokerTimeoutMills=60000",)
        options = [word for text in settings for word in ("--set", text)]
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "saturnmq.cli",
                "broker",
                "-n",
                f"127.0.0.1:{dead.getsockname()[1]}",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            dead.settimeout(60)
            with dead.accept()[0]:  # the broker listens and now waits for the response of this name server
                process.send_signal(signal.SIGTERM)
                assert process.wait(40) == 0
        finally:
            process.kill()
            process.communicate()
    assert not (tmp_path / "abort").exists()
