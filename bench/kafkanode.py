"""One Kafka broker for make bench-spark: jars from Maven, a single node in KRaft mode, loopback only."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path

import javatools
from processes import ServerProcess

from ports import free_port

PROJECT = Path(__file__).resolve().parent / "kafka"
HEAP_MB = 1024
QUEUES = 4
START_TIMEOUT_S = 60.0
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/log
num.partitions={queues}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
_LOGGING = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c %m%n
"""


def jars() -> tuple[list[Path], list[Path]]:
    """Return (the broker's jars, the Spark connector's), fetched once. Raises RuntimeError with Maven's output."""
    version = hashlib.sha256((PROJECT / "pom.xml").read_bytes()).hexdigest()[:16]
    target = PROJECT / "target"
    done = target / f"fetched-{version}"
    target.mkdir(exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            for name in ("server", "connector"):
                shutil.rmtree(target / name, ignore_errors=True)
            command = ["mvn", "-q", "-B", "-ntp", "package"]
            said = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=480, check=False)
            if said.returncode != 0:
                raise RuntimeError("mvn package failed:\n" + (said.stdout + said.stderr)[-4000:])
            done.touch()
    return sorted((target / "server").glob("*.jar")), sorted((target / "connector").glob("*.jar"))


def versions() -> str:
    """Return the versions of broker and connector, from the names of their jars."""
    server, connector = jars()
    names = [path.stem for path in (*server, *connector)]
    broker = next(name for name in names if name.startswith("kafka_2"))
    source = next(name for name in names if name.startswith("spark-sql-kafka"))
    return f"{broker.rpartition('-')[2]}, {source.replace('spark-sql-kafka-0-10_2.13', 'spark-sql-kafka')}"


class KafkaNode:
    """Broker and controller in one JVM; topics are created on first use with four partitions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.controller_port = free_port()
        self.server: ServerProcess | None = None

    @property
    def servers(self) -> str:
        """Value of option kafka.bootstrap.servers."""
        return f"127.0.0.1:{self.port}"

    @property
    def processes(self) -> list[ServerProcess]:
        return [self.server] if self.server is not None else []

    def _command(self, main: str, arguments: Sequence[str], heap_mb: int) -> list[str]:
        home = javatools.write_home(self.folder / "home")
        command = javatools.java_command(main, arguments, home=home, heap_mb=heap_mb, properties=self._logging())
        command[command.index("-cp") + 1] = os.pathsep.join(map(str, jars()[0]))
        return command

    def _logging(self) -> dict[str, str]:
        return {"log4j.configuration": (self.folder / "log4j.properties").as_uri()}

    def start(self) -> KafkaNode:
        """Format the folder, start, and wait until the broker serves.

        Returns itself; raises RuntimeError with the broker's output.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "server.properties"
        config.write_text(
            _PROPERTIES.format(
                port=self.port, controller=self.controller_port, folder=self.folder.absolute(), queues=QUEUES
            )
        )
        (self.folder / "log4j.properties").write_text(_LOGGING)
        env = javatools.java_environment(self.folder / "home")
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        words = ["format", "-t", cluster, "-c", str(config)]
        said = subprocess.run(
            self._command("kafka.tools.StorageTool", words, 256),
            env=env,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        if said.returncode != 0:
            raise RuntimeError("Kafka's storage could not be formatted:\n" + (said.stdout + said.stderr)[-4000:])
        self.server = ServerProcess(self._command("kafka.Kafka", [str(config)], HEAP_MB), name="Kafka", env=env)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait(self) -> None:
        assert self.server is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.server.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)  # poll
        raise RuntimeError(f"Kafka does not serve:\n{self.server.output[-4000:]}")

    def stop(self) -> int:
        """Stop the broker; return its exit code."""
        code = 0
        if self.server is not None:
            code = self.server.stop()
            self.server = None
        return code

    def __enter__(self) -> KafkaNode:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
