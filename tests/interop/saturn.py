"""Runs SaturnMQ as a user does: the installed command in its own process, on free loopback ports."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from processes import ServerProcess

from ports import free_port

START_TIMEOUT_S = 30.0
BROKER_PORT_OFFSETS = (-2, 0, 1)


def _command(*arguments: str) -> list[str]:
    """The command line of `saturnmq`, run by the interpreter of the tests."""
    return [sys.executable, "-m", "saturnmq.cli", *arguments, "--quiet"]


def _sets(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def start_process(name: str, arguments: list[str]) -> ServerProcess:
    """Start a server command of ours; returns when it has printed its ready line."""
    env = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    server = ServerProcess(_command(*arguments), name=name, env=env)
    try:
        server.wait_ready(r"^saturnmq: ready ", START_TIMEOUT_S)
    except BaseException:
        server.stop(2)
        raise
    return server


def start_namesrv(port: int) -> ServerProcess:
    """Start our NameServer on a port; returns when it serves."""
    return start_process("SaturnMQ NameServer", ["namesrv", "--port", str(port)])


def start_broker(
    folder: Path,
    port: int,
    name_servers: str,
    *,
    name: str = "broker-a",
    cluster: str = "DefaultCluster",
    settings: Mapping[str, str] | None = None,
) -> ServerProcess:
    """Start our broker on a port; returns when it serves. Its store is folder/NAME/store; `settings` are Java property names."""
    given = {
        "brokerName": name,
        "brokerClusterName": cluster,
        "listenPort": str(port),
        "storePathRootDir": str(folder / name / "store"),
        "storeProfile": "small",
        **(settings or {}),
    }
    return start_process(f"SaturnMQ broker {name}", ["broker", "-n", name_servers, *_sets(given)])


class SaturnCluster:
    """`saturnmq standalone`: NameServer and broker in one process, with the interface of apache.ApacheCluster."""

    def __init__(self, folder: Path | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="saturnmq-"))
        self.settings = dict(settings or {})
        self.namesrv_port = free_port()
        self.broker_port = free_port(BROKER_PORT_OFFSETS)
        self.broker: ServerProcess | None = None

    @property
    def name_servers(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def broker_address(self) -> str:
        return f"127.0.0.1:{self.broker_port}"

    @property
    def store(self) -> Path:
        """The broker's store folder."""
        return self.folder / "store"

    @property
    def processes(self) -> list[ServerProcess]:
        return [self.broker] if self.broker is not None else []

    def start(self) -> SaturnCluster:
        """Start the process and wait until it serves; returns self."""
        ports = ["--namesrv-port", str(self.namesrv_port), "--port", str(self.broker_port)]
        arguments = ["standalone", "--data", str(self.store), *ports, *_sets(self.settings)]
        self.broker = start_process("SaturnMQ standalone", arguments)
        return self

    def stop(self) -> int:
        """Stop the process, remove the folder if it is temporary; returns the exit code."""
        code = 0
        if self.broker is not None:
            code = self.broker.stop()
            self.broker = None
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)
        return code

    def __enter__(self) -> SaturnCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
