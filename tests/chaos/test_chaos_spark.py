"""Spark programs killed at every step and at random points: a lake has each message once, a transactional topic each row once.

`make chaos-spark` kills a first batch at each of `sparksteps.STEPS` and the broker during a commit, then the exports to Parquet,
Delta and Iceberg and the sink 20 times each at random: CHAOS_SPARK_KILLS sets the number, SEED chooses the points. Drivers, their
JVM, Python workers (executors, with CHAOS_SPARK_MASTER=local-cluster[2,1,700]) and the broker are killed with SIGKILL; drivers and
the broker are restarted at once, as a supervisor would.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sparksteps
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from sparkprocess import Broker, Load, Program, points, torture, wait_for
from sparksteps import STEPS

from recorded import SHORT_JAVA
from saturnmq import Outgoing
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import HALF_TOPIC, OP_HALF_TOPIC
from saturnmq.spark.connect import ConnectionOptions, Link, close_all, linked
from saturnmq.spark.pipelines.sink_log import read_log
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client

KILLS = int(os.environ.get("CHAOS_SPARK_KILLS", "0"))
SEED = int(os.environ.get("SEED", "1"))
LAST_RUN_SECONDS = 300
STEP_ROWS = 40
STEPS_AT_ONCE = (
    6  # then one driver runs their batches again: until it does, the broker checks their half messages every second
)
STEPS_ENVIRONMENT = {**os.environ, **SHORT_JAVA, "PYTHONPATH": str(Path(sparksteps.__file__).parent)}
DRIVERS_AT_ONCE = 2
STARTS_MAX = 5
SECONDS_PER_QUERY = 30
WORKER_LATE = "Python worker failed to connect back"
MASTER = os.environ.get("CHAOS_SPARK_MASTER", "local[2,4]")
VICTIMS = ["driver", "executor" if "cluster" in MASTER else "worker", "broker", "driver", "jvm"]
LAKE_FORMATS = os.environ.get("CHAOS_SPARK_FORMATS", "parquet delta iceberg").split()
LOGS = {"parquet": "_spark_metadata", "delta": "_delta_log", "iceberg": "metadata"}
Place = tuple[str, int, int]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not KILLS, reason="takes minutes: make chaos-spark"),
    pytest.mark.timeout(600 + 90 * KILLS),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("broker"))
    made.start()
    try:
        yield made
    finally:
        close_all()
        made.end()


def say(words: str) -> None:
    print(f"SEED={SEED} {words}", flush=True)


def messages(broker: Broker, topic: str) -> dict[Place, bytes]:
    """All stored messages by position; fails if an offset is missing."""
    source = RocketMQDataSource({"nameServer": broker.name_servers, "topic": topic})
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    found = {(row["brokerName"], row["queueId"], row["queueOffset"]): row["body"] for row in rows}
    assert len(found) == len(rows)
    for queue in {place[1] for place in found}:
        offsets = sorted(place[2] for place in found if place[1] == queue)
        assert offsets == list(range(len(offsets)))
    return found


def create(broker: Broker, *topics: str) -> None:
    with Client(name_servers=broker.name_servers) as client:
        for topic in topics:
            client.create_topic(topic, queues=3)


def undecided(broker: Broker) -> int:
    """Number of half messages that were neither committed nor rolled back: each that was has an operation."""

    async def stored(link: Link, topic: str) -> int:
        return int(await link.puller.max_offset(MessageQueue(topic, "broker-a", 0)))

    with linked(ConnectionOptions(broker.name_servers)) as link:
        return link.run(stored(link, HALF_TOPIC)) - link.run(stored(link, OP_HALF_TOPIC))


def steps_driver(broker: Broker, folder: Path, *names: str) -> list[str]:
    return [sys.executable, sparksteps.__file__, broker.name_servers, str(folder), *names]


def kill_at(broker: Broker, folder: Path, name: str, step: str) -> None:
    """Run the first batch of a query until it is killed at this step.

    As by a supervisor, a driver that Spark ends for another reason is started again: on a busy machine a Python process needs
    longer than the 10 s in which Spark wants it to connect.
    """
    began, environment = time.monotonic(), STEPS_ENVIRONMENT | {"CHAOS_STEP": step}
    for start in range(1, STARTS_MAX + 1):
        driver = subprocess.run(steps_driver(broker, folder, name), env=environment, stdin=subprocess.DEVNULL,
                                capture_output=True, text=True, timeout=LAST_RUN_SECONDS)  # fmt: skip
        if driver.returncode == -signal.SIGKILL:
            return say(f"{step}: killed after {time.monotonic() - began:.0f} s, start {start}")
        assert WORKER_LATE in driver.stderr, f"{step!r} was not reached:\n{driver.stderr[-4000:]}"
    raise AssertionError(f"{step!r} was not reached in {STARTS_MAX} starts: {WORKER_LATE}")


def load(broker: Broker, *names: str) -> Counter[bytes]:
    """Create the topics of queries, and store the rows of their first batch; return the rows of each."""
    create(broker, *(f"{name}-{end}" for name in names for end in ("from", "to")))
    with Client(name_servers=broker.name_servers) as client, client.producer("chaos-steps-load") as out:
        for name in names:
            out.send_many(f"{name}-from", [Outgoing(value=b"%d" % n, keys=[str(n)]) for n in range(STEP_ROWS)])
    return Counter(b"%d" % n for n in range(STEP_ROWS))


def run_again(broker: Broker, folder: Path, *names: str) -> dict[str, Counter[bytes]]:
    """Run the first batches of queries in one driver, started again if Spark ends it; return their rows when none is undecided."""
    log = folder / "second.log"

    def settled(driver: subprocess.Popen[bytes]) -> bool:
        return driver.poll() is not None or (b"caught up" in log.read_bytes() and not undecided(broker))

    for _ in range(STARTS_MAX):
        with log.open("wb") as output:
            driver = subprocess.Popen(
                steps_driver(broker, folder, *names),
                env=STEPS_ENVIRONMENT, stdin=subprocess.PIPE, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            wait_for("all rows", partial(settled, driver), LAST_RUN_SECONDS + SECONDS_PER_QUERY * len(names))
            rows = {name: Counter(messages(broker, f"{name}-to").values()) for name in names}
            unsettled = undecided(broker)
        finally:
            driver.communicate(timeout=LAST_RUN_SECONDS)
        if driver.returncode == 0 or WORKER_LATE not in log.read_text():
            break
    assert unsettled == 0 and driver.returncode == 0, log.read_text()[-4000:]
    return rows


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, len(STEPS), STEPS_AT_ONCE))
def test_first_batch_killed_at_each_step_has_every_row_once(broker: Broker, tmp_path: Path, first: int) -> None:
    steps = {f"steps-{number}": STEPS[number] for number in range(first, first + STEPS_AT_ONCE)}
    expected = load(broker, *steps)
    with ThreadPoolExecutor(DRIVERS_AT_ONCE) as threads:
        list(threads.map(lambda name: kill_at(broker, tmp_path, name, steps[name]), steps))
    began, rows = time.monotonic(), run_again(broker, tmp_path, *steps)
    wrong = {
        step: (rows[name] - expected, expected - rows[name]) for name, step in steps.items() if rows[name] != expected
    }
    say(f"{len(steps)} steps, {sum(c.total() for c in rows.values())} rows, {sum(t.total() for t, _ in wrong.values())} twice, "
        f"{sum(m.total() for _, m in wrong.values())} lost, second driver {time.monotonic() - began:.0f} s")  # fmt: skip
    assert not wrong


@pytest.mark.timeout(1200)
def test_broker_killed_during_commit_has_every_row_once(broker: Broker, tmp_path: Path) -> None:
    """The query ends with an error that names the broker; when the broker is back, a restart completes the decided batch."""
    name = "steps-away"
    expected = load(broker, name)
    environment = STEPS_ENVIRONMENT | {"CHAOS_STEP": "commit after link json", "CHAOS_BROKER": str(broker.pid)}
    first = subprocess.run(steps_driver(broker, tmp_path, name), env=environment, stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=LAST_RUN_SECONDS)  # fmt: skip
    broker.end()
    broker.start()
    assert first.returncode == 1 and "broker broker-a is unreachable" in first.stderr, first.stderr[-4000:]
    assert run_again(broker, tmp_path, name)[name] == expected


def exported_rows(table: Path, name: str) -> list[dict[str, Any]]:
    """Rows of the table by its log; of Delta and Iceberg as their own libraries read them."""
    columns = ["broker_name", "queue_id", "queue_offset", "body"]
    if name == "delta":
        return list(DeltaTable(str(table)).to_pyarrow_table(columns=columns).to_pylist())
    if name == "iceberg":
        catalog = load_catalog("saturnmq", uri=f"sqlite:///{table.parent}/catalog.db")
        try:
            return list(
                catalog.load_table("saturnmq.messages").scan(selected_fields=tuple(columns)).to_arrow().to_pylist()
            )
        finally:
            catalog.close()
    log = read_log(table)
    assert log is not None
    return [row for path in log.files for row in pq.ParquetFile(table / path).read(columns=columns).to_pylist()]


@pytest.mark.spec("PIP-08", "STR-16", "SRC-22", "PIP-04")
@pytest.mark.parametrize("name", LAKE_FORMATS)
def test_export_killed_repeatedly_has_every_message_once(broker: Broker, tmp_path: Path, name: str) -> None:
    rng, lake, topic = random.Random(f"{SEED} export {name}"), tmp_path / "lake", f"chaos-{name}"
    create(broker, topic)
    words = ["-m", "saturnmq.cli", "spark", "export", "--name-servers", broker.name_servers, "--topic", topic,
             "--lake", str(lake), "--format", name, "--quiet", "--master", MASTER,
             "--conf", "spark.driver.memory=700m"]  # fmt: skip
    program = Program([*words, "--trigger", "1s", "--max-offsets", "60"], tmp_path / "export.log")
    watched = ["", "_checkpoint/offsets", "_checkpoint/commits", f"messages/{LOGS[name]}", "messages"]
    try:
        with Load(broker.name_servers, topic, 0.03) as load:
            done = torture(broker, program, lake, points(rng, VICTIMS, watched), KILLS, rng, say)
        leftovers = program.leftovers()
    finally:
        program.end()
    assert done == KILLS and load.sent > 10 * KILLS
    assert not leftovers, "a JVM or worker outlived its driver"
    last = subprocess.run([sys.executable, *words, "--json"], capture_output=True, text=True, timeout=LAST_RUN_SECONDS)
    assert last.returncode == 0, f"{last.stderr[-3000:]}\n{program.log.read_text()[-3000:]}"
    assert json.loads(last.stdout.splitlines()[-1])["rows"][0]["lag"] == 0
    rows = exported_rows(lake / "messages", name)
    exported = Counter((row["broker_name"], row["queue_id"], row["queue_offset"]) for row in rows)
    stored = messages(broker, topic)
    say(f"{len(stored)} messages, {program.starts} starts, exit codes {program.codes}")
    assert not {place: count for place, count in exported.items() if count > 1}, "there twice"
    assert not stored.keys() - exported.keys(), "missing in the lake"
    assert {(row["broker_name"], row["queue_id"], row["queue_offset"]): row["body"] for row in rows} == stored


@pytest.mark.spec("SNK-10", "SNK-11", "SNK-14", "SNK-15", "SNK-16", "SCL-07")
def test_transactional_sink_killed_repeatedly_has_every_row_once(broker: Broker, tmp_path: Path) -> None:
    rng, folder = random.Random(f"{SEED} sink"), tmp_path / "sink"
    create(broker, "from", "to")
    script = str(Path(__file__).with_name("sparksink.py"))
    words = [script, broker.name_servers, "from", "to", str(folder), "chaos-sink", MASTER]
    program = Program([*words, "go-on"], tmp_path / "sink.log")
    watched = ["", "checkpoint/offsets", "checkpoint/commits", "decisions", "decisions"]
    try:
        with Load(broker.name_servers, "from", 0.03) as load:
            done = torture(broker, program, folder, points(rng, VICTIMS, watched), KILLS, rng, say)
        leftovers = program.leftovers()
    finally:
        program.end()
    assert done == KILLS and load.sent > 10 * KILLS
    assert not leftovers, "a JVM or worker outlived its driver"
    last = subprocess.run(
        [sys.executable, *words, "once"],
        capture_output=True,
        text=True,
        timeout=LAST_RUN_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    assert last.returncode == 0, f"{last.stderr[-3000:]}\n{program.log.read_text()[-3000:]}"
    wanted, found = Counter(messages(broker, "from").values()), Counter(messages(broker, "to").values())
    say(f"{sum(wanted.values())} rows, {program.starts} starts, exit codes {program.codes}")
    assert not found - wanted, "there twice"
    assert not wanted - found, "missing in the topic"
