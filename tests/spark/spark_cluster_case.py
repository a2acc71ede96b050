"""Harness of the cluster tests: a broker in this process, a driver in another, executors in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pyspark

from saturnmq import Outgoing
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import HALF_TOPIC
from saturnmq.spark.connect import linked
from saturnmq.spark.java_home import java_home
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

HERE = Path(__file__).resolve().parent
QUEUES = 4
ROWS = 600  # a queue
LONG = 3000
WAIT_S = 240.0
TOPICS = {"In": QUEUES, "Written": 2, "Halves": 2, "Streamed": 2, "Long": 2, "Once": 2}
CONF = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
}


def body(queue: int, n: int) -> bytes:
    """Return a body that names its position, of 1 KB: a batch then exceeds the 64 KB buffers between worker and JVM."""
    return b"%d %d " % (queue, n) + b"x" * 1000


def fill(name_servers: str) -> None:
    """Fill topic In with ROWS messages per queue, and topic Long with LONG messages in queue 0 and ten in queue 1."""
    with Client(name_servers=name_servers) as client, client.producer("cluster-tests") as out:
        for topic, queues in TOPICS.items():
            client.create_topic(topic, queues=queues)
        for topic, counts in (("In", [ROWS] * QUEUES), ("Long", [LONG, 10])):
            for queue in out.queues(topic):
                for first in range(0, counts[queue.queue_id], 200):
                    last = min(first + 200, counts[queue.queue_id])
                    batch = [Outgoing(value=body(queue.queue_id, n)) for n in range(first, last)]
                    out.send_many(topic, batch, queue=queue)


def bodies(name_servers: str, topic: str) -> Counter[str]:
    """Count the bodies of a topic's messages, without their padding."""
    source = RocketMQDataSource({"nameServer": name_servers, "topic": topic})
    reader = source.reader(source.schema())
    found: Counter[str] = Counter()
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found.update(value.decode().rstrip("x").strip() for value in batch["body"].to_pylist())
    return found


def stored(name_servers: str, topic: str, queues: int) -> int:
    """Return how many messages were ever stored in a topic."""
    with linked(SourceOptions(name_server=name_servers)) as link:
        return sum(link.run(link.puller.max_offset(MessageQueue(topic, "broker-a", n))) for n in range(queues))


def halves_stored(name_servers: str) -> int:
    """Return how many half messages were ever stored, including those that check-backs stored again."""
    try:
        return stored(name_servers, HALF_TOPIC, 1)
    except Exception:
        return 0  # the topic is created with the first half message


def spark_home(folder: Path) -> Path:
    """Return a Spark home with its own work folder: a cluster in the driver's JVM writes logs and files below its home."""
    home = folder / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of Spark's processes: Java, loopback, and none of this process's Python settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_", "PYTHON", "SATURNMQ_"))}
    return kept | {"SPARK_HOME": str(home), "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"} | more


class Driver:
    """The job in a process of its own."""

    def __init__(self, server: SyncEmbeddedBroker, folder: Path, steps: list[str], conf: dict[str, str],
                 env: dict[str, str]) -> None:  # fmt: skip
        self.name_servers = server.name_servers
        self.folder = folder
        given = {"name_servers": self.name_servers, "folder": str(folder), "steps": steps,
                 "conf": CONF | {"spark.executorEnv.SATURNMQ_TEST_FOLDER": str(folder)} | conf}  # fmt: skip
        self._said = (folder / "driver.log").open("wb")
        command = [sys.executable, str(HERE / "spark_cluster_job.py"), json.dumps(given)]
        self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=self._said, stderr=subprocess.STDOUT)

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        below = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)] \
            if self.process.poll() is None else []  # fmt: skip
        for process in reversed(below):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, 20)
        self.process.wait(20)
        self._said.close()

    def wait(self, what: str, done: Callable[[], Any]) -> Any:
        """Return the first true result of `done`. Fails with the driver's output when it ends, or after WAIT_S."""
        until = time.monotonic() + WAIT_S
        while not (found := done()):
            ended = self.process.poll()
            if (ended is not None and not done()) or time.monotonic() > until:
                said = (self.folder / "driver.log").read_text(errors="replace")[-6000:]
                raise AssertionError(f"no {what} (driver: {ended}); it said:\n{said}")
            time.sleep(0.01)  # poll
        return found

    def result(self, step: str) -> Any:
        """Return the result of a step."""
        path = self.folder / f"{step}.done"
        self.wait(f"result of {step}", path.exists)
        return json.loads(path.read_text())

    def ended(self) -> int:
        """Wait for the driver's end; return its exit code."""
        self.wait("end of the driver", lambda: self.process.poll() is not None or None)
        return self.process.wait(1)

    def workers(self, step: str, *, waiting: bool = False) -> list[dict[str, Any]]:
        """Return what workers reported in a step; waiting: only those that are paused."""
        found = [json.loads(path.read_text()) for path in self.folder.glob(f"{step}-*.json")]
        return [facts for facts in found if facts["waits"] or not waiting]

    def kill_executor(self, worker_pid: int) -> None:
        """Send SIGKILL to the executor's JVM that owns a worker."""
        above = psutil.Process(worker_pid).parents()
        executor = next(p for p in above if any("CoarseGrainedExecutorBackend" in word for word in p.cmdline()))
        executor.kill()

    def go(self, step: str) -> None:
        """Resume paused workers."""
        (self.folder / f"go-{step}").touch()

    # ---- faults injected into a running job

    def kill_while_reading(self) -> None:
        """Kill an executor whose worker is paused in the middle of a queue; the result must still hold every row."""
        self.kill_executor(self.wait("reading worker", lambda: self.workers("read", waiting=True))[0]["pid"])
        self.go("read")
        assert self.result("read") == [[queue, n] for queue in range(QUEUES) for n in range(ROWS)]

    def kill_while_writing(self) -> None:
        """Kill the executor when some rows are stored: the task is run again and sends all of them again."""
        worker = self.wait("writing worker", lambda: self.workers("write", waiting=True))[0]
        sent = self.wait("stored row", lambda: stored(self.name_servers, "Written", 2))
        assert sent < ROWS
        self.kill_executor(worker["pid"])
        self.go("write")
        found = bodies(self.name_servers, self.result("write"))
        assert set(found) == {f"0 {n}" for n in range(ROWS)}
        assert ROWS < found.total() < 2 * ROWS

    def kill_while_halves_are_written(self) -> None:
        """Kill the executor between its half messages: those of the successful attempt are committed, once."""
        before = halves_stored(self.name_servers)
        enough = before + 50
        worker = self.wait("worker", lambda: self.workers("halves"))[0]
        self.wait("half message", lambda: halves_stored(self.name_servers) >= enough)
        self.kill_executor(worker["pid"])
        found = bodies(self.name_servers, self.result("halves"))
        assert found == Counter(f"0 {n}" for n in range(LONG))
        assert halves_stored(self.name_servers) - before > LONG, "the executor was killed after its last half message"

    def check_stream(self) -> None:
        """Check that every row arrived once, in several batches."""
        batches = self.result("stream")
        assert sum(batches) == QUEUES * ROWS and len([n for n in batches if n]) > 1
        assert bodies(self.name_servers, "Streamed") == Counter(f"{q} {n}" for q in range(QUEUES) for n in range(ROWS))


def said_by_executors(folder: Path) -> list[str]:
    """Return what each executor wrote to stderr, including its workers."""
    return [path.read_text(errors="replace") for path in sorted(folder.glob("**/app-*/*/stderr"))]
