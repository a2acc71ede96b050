"""Runs Apache RocketMQ from its Maven jars, by default 4.9.7: a NameServer and a broker on free loopback ports.

By hand: `PYTHONPATH=tests python tests/interop/apache.py` starts both, prints the addresses and stays up until Ctrl-C.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import javatools
from processes import ServerProcess

from ports import free_port

START_TIMEOUT_S = 60.0
BROKER_PORT_OFFSETS = (-2, 0, 1)  # the fast port, the port, the HA replication port
# Small files keep the temporary folder small; the heap is small too, which is enough for Apache's G1 settings.
SMALL_STORE = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 20000),
    "maxIndexNum": "200000",
    "maxHashSlotNum": "50000",
}


def _write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def start_namesrv(
    folder: Path,
    port: int,
    *,
    settings: Mapping[str, str] | None = None,
    version: str = javatools.ROCKETMQ_VERSION,
) -> ServerProcess:
    """Start Apache's NameServer on a port; returns when it serves."""
    home = javatools.write_home(folder / "namesrv")
    properties = {"listenPort": str(port), "kvConfigPath": str(home / "kvConfig.json"), **(settings or {})}
    conf = _write_properties(home / "namesrv.conf", properties)
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    command = javatools.java_command(main, ["-c", str(conf)], home=home, heap_mb=256, version=version)
    server = ServerProcess(command, name="Apache NameServer", env=javatools.java_environment(home))
    _ready(server, "boot success")
    return server


def start_broker(
    folder: Path,
    port: int,
    name_servers: str,
    *,
    name: str = "broker-a",
    cluster: str = "DefaultCluster",
    settings: Mapping[str, str] | None = None,
    heap_mb: int = 768,
    small_store: bool = True,
    version: str = javatools.ROCKETMQ_VERSION,
) -> ServerProcess:
    """Start Apache's broker on a port; returns when it serves. Store in folder/NAME/store; `settings` are broker properties."""
    home = javatools.write_home(folder / name)
    store = home / "store"
    properties = {
        "brokerClusterName": cluster,
        "brokerName": name,
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(port),
        "haListenPort": str(port + 1),
        "namesrvAddr": name_servers,
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
        "autoCreateTopicEnable": "true",
        "diskMaxUsedSpaceRatio": "95",
        **(SMALL_STORE if small_store else {}),
        **(settings or {}),
    }
    conf = _write_properties(home / "broker.conf", properties)
    main = "org.apache.rocketmq.broker.BrokerStartup"
    command = javatools.java_command(main, ["-c", str(conf)], home=home, heap_mb=heap_mb, version=version)
    server = ServerProcess(command, name=f"Apache broker {name}", env=javatools.java_environment(home))
    _ready(server, "boot success")
    return server


def _ready(server: ServerProcess, pattern: str) -> None:
    try:
        server.wait_ready(pattern, START_TIMEOUT_S)
    except BaseException:
        server.stop(2)
        raise


class ApacheCluster:
    """One NameServer and one broker of Apache RocketMQ; a context manager.

    `settings` are broker properties. Without `folder` everything is in a temporary folder that stop() removes.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = 768,
        small_store: bool = True,
        namesrv_port: int | None = None,
        broker_port: int | None = None,
        version: str = javatools.ROCKETMQ_VERSION,
    ) -> None:
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="apache-rocketmq-"))
        self.settings = dict(settings or {})
        self.heap_mb = heap_mb
        self.small_store = small_store
        self.version = version
        self.namesrv_port = namesrv_port or free_port()
        self.broker_port = broker_port or free_port(BROKER_PORT_OFFSETS)
        self.namesrv: ServerProcess | None = None
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
        return self.folder / "broker-a" / "store"

    @property
    def processes(self) -> list[ServerProcess]:
        return [process for process in (self.namesrv, self.broker) if process is not None]

    def start(self) -> ApacheCluster:
        """Start both and wait until they serve, about 4 s; returns self."""
        try:
            self.namesrv = start_namesrv(self.folder, self.namesrv_port, version=self.version)
            self.start_broker()
        except BaseException:
            self.stop()
            raise
        return self

    def start_broker(self) -> None:
        """Start the broker, also again on its old store."""
        self.broker = start_broker(
            self.folder,
            self.broker_port,
            self.name_servers,
            settings=self.settings,
            heap_mb=self.heap_mb,
            small_store=self.small_store,
            version=self.version,
        )

    def stop_broker(self) -> None:
        """Stop the broker cleanly; its store is kept."""
        if self.broker is not None:
            self.broker.stop()
            self.broker = None

    def stop(self) -> None:
        """Stop both; remove the folder if it is temporary."""
        self.stop_broker()
        if self.namesrv is not None:
            self.namesrv.stop()
            self.namesrv = None
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> ApacheCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _main() -> None:
    reason = javatools.why_not()
    if reason:
        sys.exit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ApacheCluster() as cluster:
        print(
            f"apache: ready namesrv={cluster.name_servers} broker={cluster.broker_address} store={cluster.store}",
            flush=True,
        )
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("apache: stopping", flush=True)


if __name__ == "__main__":
    _main()
