"""Spark programs killed at every step and at random points: a lake has each message once, a transactional topic each row once.

`make chaos-spark` kills a first batch at each of `sparksteps.STEPS`, then the export and the sink 20 times at random:
CHAOS_SPARK_KILLS sets the number, SEED chooses the points. Drivers, their JVM, Python workers (executors, with
CHAOS_SPARK_MASTER=local-cluster[2,1,700]) and the broker are killed with SIGKILL; drivers and the broker are restarted at once,
as a supervisor would.
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
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sparksteps
from sparkprocess import Broker, Load, Program, points, torture, wait_for
from sparksteps import STEPS

from recorded import SHORT_JAVA
from saturnmq import Outgoing
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import HALF_TOPIC, OP_HALF_TOPIC
from saturnmq.spark.connect import Connection, Link, close_all, linked
from saturnmq.spark.pipelines.sink_log import read_log
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client

KILLS = int(os.environ.get("CHAOS_SPARK_KILLS", "0"))
SEED = int(os.environ.get("SEED", "1"))
LAST_RUN_SECONDS = 300
STEP_ROWS = 40
MASTER = os.environ.get("CHAOS_SPARK_MASTER", "local[2,4]")
VICTIMS = ["driver", "executor" if "cluster" in MASTER else "worker", "broker", "driver", "jvm"]
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

    with linked(Connection(broker.name_servers)) as link:
        return link.run(stored(link, HALF_TOPIC)) - link.run(stored(link, OP_HALF_TOPIC))


@pytest.mark.parametrize("number", range(len(STEPS)), ids=[step.replace(" ", "-") for step in STEPS])
def test_first_batch_killed_at_step_has_every_row_once(broker: Broker, tmp_path: Path, number: int) -> None:
    topics = f"steps-{number}-from", f"steps-{number}-to"
    create(broker, *topics)
    with Client(name_servers=broker.name_servers) as client, client.producer("chaos-steps-load") as out:
        out.send_many(topics[0], [Outgoing(value=b"%d" % n, keys=[str(n)]) for n in range(STEP_ROWS)])
    words = [sys.executable, sparksteps.__file__, broker.name_servers, *topics, str(tmp_path)]
    environment = {**os.environ, **SHORT_JAVA, "PYTHONPATH": str(Path(sparksteps.__file__).parent)}
    began = time.monotonic()
    first = subprocess.run(words, env=environment | {"CHAOS_STEP": STEPS[number]}, stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=LAST_RUN_SECONDS)  # fmt: skip
    assert first.returncode == -signal.SIGKILL, f"{STEPS[number]!r} was not reached:\n{first.stderr[-4000:]}"
    expected = Counter(b"%d" % n for n in range(STEP_ROWS))
    log = tmp_path / "second.log"
    with log.open("wb") as output:
        second = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output)

    def rows() -> Counter[bytes]:
        return Counter(messages(broker, topics[1]).values())

    def is_settled() -> bool:
        return second.poll() is not None or (
            b"caught up" in log.read_bytes() and rows().total() >= STEP_ROWS and not undecided(broker)
        )

    try:
        wait_for("all rows", is_settled, LAST_RUN_SECONDS)
        visible, unsettled = rows(), undecided(broker)
    finally:
        second.communicate(timeout=LAST_RUN_SECONDS)
    say(f"{STEPS[number]}: {visible.total()} rows in {time.monotonic() - began:.0f} s")
    assert visible == expected and unsettled == 0 and second.returncode == 0, log.read_text()[-4000:]


@pytest.mark.spec("PIP-08", "STR-16", "SRC-22", "PIP-04")
def test_export_killed_repeatedly_has_every_message_once(broker: Broker, tmp_path: Path) -> None:
    rng, lake = random.Random(f"{SEED} export"), tmp_path / "lake"
    create(broker, "chaos")
    words = ["-m", "saturnmq.cli", "spark", "export", "--name-servers", broker.name_servers, "--topic", "chaos",
             "--lake", str(lake), "--quiet", "--master", MASTER, "--conf", "spark.driver.memory=700m"]  # fmt: skip
    program = Program([*words, "--trigger", "1s", "--max-offsets", "60"], tmp_path / "export.log")
    watched = ["", "_checkpoint/offsets", "_checkpoint/commits", "messages/_spark_metadata", "messages"]
    try:
        with Load(broker.name_servers, "chaos", 0.03) as load:
            done = torture(broker, program, lake, points(rng, VICTIMS, watched), KILLS, rng, say)
        leftovers = program.leftovers()
    finally:
        program.end()
    assert done == KILLS and load.sent > 10 * KILLS
    assert not leftovers, "a JVM or worker outlived its driver"
    last = subprocess.run([sys.executable, *words, "--json"], capture_output=True, text=True, timeout=LAST_RUN_SECONDS)
    assert last.returncode == 0, f"{last.stderr[-3000:]}\n{program.log.read_text()[-3000:]}"
    assert json.loads(last.stdout.splitlines()[-1])["rows"][0]["lag"] == 0
    log = read_log(lake / "messages")
    assert log is not None
    rows = [
        row
        for path in log.files
        for row in pq.ParquetFile(lake / "messages" / path)
        .read(columns=["broker_name", "queue_id", "queue_offset", "body"])
        .to_pylist()
    ]
    exported = Counter((row["broker_name"], row["queue_id"], row["queue_offset"]) for row in rows)
    stored = messages(broker, "chaos")
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
