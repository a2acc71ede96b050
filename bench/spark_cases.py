"""The cases of make bench-spark: what Spark does with SaturnMQ and with Kafka, both running, measured alternately.

The same rows go to both sides by their sinks. One Spark session runs all cases.

Requirements: SPP-01..SPP-10.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from apache import ApacheCluster
from processes import ServerProcess
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from saturn import SaturnCluster

import spark_work
from kafkanode import QUEUES, KafkaNode
from measure import machine_busy_s
from saturnmq.sync import Client
from spark_report import KAFKA, OURS, SIDES, Results, Row, Sample

KEYED = ("body", "tags", "keys")
HITS_EVERY = 100  # one message in a hundred has tag hit
FILES = 4
SEND_TIMEOUT_MS = "30000"  # as long as Kafka's producer waits, so that a busy machine causes no duplicates
Run = Callable[[], object]


@dataclass(frozen=True)
class Plan:
    """How much is measured and how often."""

    rows: int
    sizes: tuple[int, ...]
    rounds: int
    quick: bool
    only: tuple[str, ...]

    def wants(self, name: str) -> bool:
        """Whether a case is selected: its name contains one of the words, or there are none."""
        return not self.only or any(word in name for word in self.only)

    @classmethod
    def of(cls, *, quick: bool, rounds: int | None, rows: int | None, only: str) -> Plan:
        """Return the full plan, or the quick one."""
        count = rows or (100_000 if quick else 1_000_000)
        words = tuple(word.strip() for word in only.split(",") if word.strip())
        return cls(count, (200,) if quick else (200, 1024), rounds or (1 if quick else 5), quick, words)


@dataclass
class Case:
    """A row with the run of each side. counts: the number of rows of the last run, called once per side after the warm-up."""

    row: Row
    runs: dict[str, Run]
    counts: dict[str, Callable[[], int]]
    rows: int


class SparkTree:
    """CPU seconds of this process and all its descendants except the servers."""

    def __init__(self, servers: list[ServerProcess]) -> None:
        self._servers = {server.pid for server in servers}
        self._me = psutil.Process()

    def cpu_s(self) -> float:
        """Return the CPU seconds so far; ended children are included in their parents' figures."""
        total = 0.0
        for process in [self._me, *self._me.children(recursive=True)]:
            if process.pid in self._servers:
                continue
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            # the reaped children of this process include the servers' helpers, but those ended before the first measurement
            total += times.user + times.system + times.children_user + times.children_system
        return total


def make_data(folder: Path, rows: int, body_bytes: int) -> Path:
    """Write a Parquet folder with columns body, tags, keys, name (tag and key, as Kafka's key), part."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(497)
    for number in range(FILES):
        ids = np.arange(number, rows, FILES)
        letters = chance.integers(ord("A"), ord("Z") + 1, size=len(ids) * body_bytes, dtype=np.uint8)
        edges = np.arange(len(ids) + 1, dtype=np.int32) * body_bytes
        body = pa.Array.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(edges), pa.py_buffer(letters)])
        tags = ["hit" if n % HITS_EVERY == 0 else f"t{n % 7}" for n in ids.tolist()]
        keys = [f"k{n}" for n in ids.tolist()]
        names = [f"{tag}/{key}" for tag, key in zip(tags, keys, strict=True)]
        part = pa.array((ids // FILES % QUEUES).astype(np.int32))
        table = pa.table({"body": body, "tags": tags, "keys": keys, "name": names, "part": part})
        pq.write_table(table, folder / f"part-{number}.parquet", compression="none", use_dictionary=False)
    return folder


class SparkBench:
    """Runs a plan. say: called with the current step."""

    def __init__(
        self,
        plan: Plan,
        spark: SparkSession,
        saturn: SaturnCluster,
        kafka: KafkaNode,
        folder: Path,
        say: Callable[[str], None],
        apache: ApacheCluster | None = None,
    ) -> None:
        self.plan = plan
        self.spark = spark
        self.saturn = saturn
        self.kafka = kafka
        self.apache = apache
        self.folder = folder
        self.say = say
        self.results = Results()
        self._tree = SparkTree([*saturn.processes, *kafka.processes, *(apache.processes if apache else [])])
        self._numbers = iter(range(1_000_000))
        self._progress: dict[str, int] = {}

    def run(self) -> Results:
        """Run all cases, row by row, round by round, side by side."""
        for size in self.plan.sizes:
            data = make_data(self.folder / f"data-{size}", self.plan.rows, size)
            self._fill(size, data)
            for case in self._cases(size, data):
                if self.plan.wants(f"{case.row.spec} {case.row.name}"):
                    self.say(case.row.name)
                    self._case(case)
        return self.results

    # reads and writes -----------------------------------------------------------------------------------------------

    def _fill(self, size: int, data: Path) -> None:
        for side in SIDES:
            self.say(f"filling {side}, {size} B")
            self._sink(side, f"Rows{size}", data)()

    def _create(self, servers: str, topic: str) -> None:
        with Client(name_servers=servers) as client:
            client.create_topic(topic, queues=QUEUES)

    def _ours(self, topic: str, **options: str) -> DataFrame:
        given = {"nameServer": self.saturn.name_servers, "topic": topic, **options}
        return self.spark.read.format("rocketmq").options(**given).load()

    def _kafkas(self, topic: str, **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": self.kafka.servers, "subscribe": topic, **options}
        return self.spark.read.format("kafka").options(**given).load()

    def _read(self, side: str, topic: str, **options: str) -> DataFrame:
        return self._ours(topic, **options) if side == OURS else self._kafkas(topic, **options)

    def _files(self, topic: str) -> DataFrame:
        return self._ours(topic, mode="files", path=str(self.saturn.store), brokerName="broker-a")

    def _sink(self, side: str, topic: str, data: Path, columns: Sequence[str] = KEYED, **options: str) -> Run:
        frame = self.spark.read.parquet(str(data))
        if side == OURS:
            self._create(self.saturn.name_servers, topic)
            out = frame.select(*columns).write.format("rocketmq")
            given = {
                "nameServer": self.saturn.name_servers,
                "topic": topic,
                "sendTimeoutMs": SEND_TIMEOUT_MS,
                **options,
            }
        else:
            key, value, part = (
                f.col("name").alias("key"),
                f.col("body").alias("value"),
                f.col("part").alias("partition"),
            )
            out = frame.select(key, value, part).write.format("kafka")
            given = {"kafka.bootstrap.servers": self.kafka.servers, "topic": topic, **options}
        return lambda: out.options(**given).mode("append").save()

    def _stream(self, side: str, topic: str, kind: str, per_batch: int = 0) -> Run:
        """Return a query from the beginning to the end of a topic; per_batch: rows of a micro-batch, 0 for no limit."""

        def run() -> None:
            place = self.folder / f"stream-{next(self._numbers)}"
            options = {"maxOffsetsPerTrigger": str(per_batch)} if per_batch else {}
            stream = self.spark.readStream.format("rocketmq" if side == OURS else "kafka").options(
                startingOffsets="earliest", **self._source(side, topic), **options
            )
            frame = stream.load()
            if kind == "window":
                time_column = "storeTimestamp" if side == OURS else "timestamp"
                windowed = frame.withWatermark(time_column, "10 minutes").groupBy(f.window(time_column, "1 minute"))
                frame = windowed.agg(f.count("*").alias("n"), f.sum(f.length("body" if side == OURS else "value")))
            out = frame.writeStream.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
            out = out.format("parquet").option("path", str(place / "out")) if kind == "parquet" else out.format("noop")
            query = out.outputMode("append").start()
            query.awaitTermination()
            self._progress[side] = sum(int(p["numInputRows"]) for p in query.recentProgress)
            shutil.rmtree(place)

        return run

    def _source(self, side: str, topic: str) -> dict[str, str]:
        if side == OURS:
            return {"nameServer": self.saturn.name_servers, "topic": topic}
        return {"kafka.bootstrap.servers": self.kafka.servers, "subscribe": topic}

    def _parquet(self, frame: DataFrame) -> Run:
        target = str(self.folder / "out")
        return lambda: frame.write.mode("overwrite").parquet(target)

    def _parquet_rows(self) -> int:
        return self.spark.read.parquet(str(self.folder / "out")).count()

    # cases ----------------------------------------------------------------------------------------------------------

    def _cases(self, size: int, data: Path) -> Iterator[Case]:
        topic, tail = f"Rows{size}", f"{size} B" if size != 1024 else "1 KiB"
        small = size == self.plan.sizes[0]
        whole = f"batch, default columns, {tail}"
        yield self._frames("SPP-02", whole, 1.0, {side: self._read(side, topic) for side in SIDES})
        yield self._body_only(topic, tail)
        yield self._arrow(topic, tail)
        in_arrow = {OURS: self._ours(topic).mapInArrow(spark_work.map_bodies, spark_work.SCHEMA)}
        through = self._frames("SPP-04", f"the same through mapInArrow, {tail}", None, in_arrow, count=False)
        through.row.against = f"to Python as Arrow, {tail}"
        yield through
        yield self._streamed("SPP-05", f"stream, one batch, {tail}", 0.9, topic, "noop")
        if small:
            yield self._streamed("SPP-06", "stream, 5 batches", None, topic, "noop", -(-self.plan.rows // 5))
            yield self._streamed("SPP-06", "stream to Parquet", None, topic, "parquet")
            yield self._streamed("SPP-06", "stream, windows of 1 minute", None, topic, "window")
        sink = f"sink, at_least_once, {tail}"
        yield self._sinks("SPP-07", sink, 0.7, f"Sink{size}", data)
        keyed = self._sink(OURS, f"Keyed{size}", data)
        yield Case(
            Row("SPP-07", f"the same with keys in the index, {tail}", against=sink), {OURS: keyed}, {}, self.plan.rows
        )
        if small:
            tagged = {OURS: self._ours(topic, subExpression="hit")}
            tagged[KAFKA] = self._kafkas(topic).where(f.col("key").cast("string").startswith("hit/"))
            yield self._frames("SPP-08", "1 % by tag", 10.0, tagged)
        files = self._frames("SPP-09", f"files, default columns, {tail}", 2.0, {OURS: self._files(topic)})
        files.row.against = whole
        yield files
        if small:
            yield self._by_time(topic)
            yield self._by_key(topic)
            yield from self._shown(topic, data)

    def _frames(
        self, spec: str, name: str, bar: float | None, frames: dict[str, DataFrame], *, count: bool = True
    ) -> Case:
        """Return a case that writes frames to the noop sink."""
        runs: dict[str, Run] = {
            side: frame.write.format("noop").mode("overwrite").save for side, frame in frames.items()
        }
        counts = {side: frame.count for side, frame in frames.items()} if count else {}
        return Case(Row(spec, name, bar), runs, counts, self.plan.rows)

    def _body_only(self, topic: str, tail: str) -> Case:
        frames = {OURS: self._ours(topic, columns="body"), KAFKA: self._kafkas(topic).select("value")}
        runs = {side: self._parquet(frame) for side, frame in frames.items()}
        row = Row("SPP-03", f"batch, body only, to Parquet, {tail}", 1.2)
        return Case(row, runs, dict.fromkeys(SIDES, self._parquet_rows), self.plan.rows)

    def _arrow(self, topic: str, tail: str) -> Case:
        given = {"nameServer": self.saturn.name_servers, "topic": topic, "mapArrow": "spark_work:bodies"}
        frames = {
            OURS: self.spark.read.format("rocketmq").schema(spark_work.SCHEMA).options(**given).load(),
            KAFKA: self._kafkas(topic).mapInArrow(spark_work.map_values, spark_work.SCHEMA),
        }
        case = self._frames("SPP-04", f"to Python as Arrow, {tail}", 1.5, frames)
        case.counts = {side: lambda found=frame: found.agg(f.sum("rows")).first()[0] for side, frame in frames.items()}
        return case

    def _streamed(self, spec: str, name: str, bar: float | None, topic: str, kind: str, per_batch: int = 0) -> Case:
        runs = {side: self._stream(side, topic, kind, per_batch) for side in SIDES}
        counts = {side: lambda name=side: self._progress[name] for side in SIDES}
        return Case(Row(spec, name, bar), runs, counts, self.plan.rows)

    def _sinks(self, spec: str, name: str, bar: float | None, topic: str, data: Path) -> Case:
        runs = {side: self._sink(side, topic, data, ("body", "tags")) for side in SIDES}
        names = {
            OURS: "uniqKey",
            KAFKA: "key",
        }  # unique per row, because at-least-once delivery may duplicate rows
        counts = {s: lambda name=s: self._read(name, topic).select(names[name]).distinct().count() for s in SIDES}
        return Case(Row(spec, name, bar), runs, counts, self.plan.rows)

    def _by_time(self, topic: str) -> Case:
        """Return a case that reads one hundredth of the time in which the topic was filled."""
        frames = {}
        for side, column, start, end in (
            (OURS, "storeTimestamp", "startingTimestamp", "endingTimestamp"),
            (KAFKA, "timestamp", "startingTimestamp", "endingTimestamp"),
        ):
            bounds = self._read(side, topic).agg(f.min(column), f.max(column)).first()
            first, last = (int(value.timestamp() * 1000) for value in bounds)
            begin = first + (last - first) // 2
            times = {start: str(begin), end: str(begin + max((last - first) // 100, 1))}
            if side == KAFKA:
                times["startingOffsetsByTimestampStrategy"] = "latest"
            frames[side] = self._read(side, topic, **times)
        return self._frames("SPP-10", "1 % by time", None, frames, count=False)

    def _by_key(self, topic: str) -> Case:
        key = f"k{self.plan.rows // 2 + 1}"
        frames = {
            OURS: self._ours(topic, keys=key),
            KAFKA: self._kafkas(topic).where(f.col("key").cast("string").endswith(f"/{key}")),
        }
        return self._frames("SPP-10", "one key", None, frames)

    def _shown(self, topic: str, data: Path) -> Iterator[Case]:
        """Yield cases without a counterpart in Kafka's connector."""
        part = self.folder / "data-transactions"
        rows = self.plan.rows // 20
        make_data(part, rows, self.plan.sizes[0])
        log = {"delivery": "transactional", "decisionLog": str(self.folder / "decisions"), "producerGroup": "bench"}
        run = self._sink(OURS, "Transactions", part, **log)
        yield Case(Row("SPP-10", "sink, transactional"), {OURS: run}, {}, rows)
        if self.apache is None:
            return
        servers = self.apache.name_servers
        self._create(servers, topic)
        out = self.spark.read.parquet(str(data)).select("body", "tags", "keys").write.format("rocketmq")
        out.options(nameServer=servers, topic=topic, sendTimeoutMs=SEND_TIMEOUT_MS).mode("append").save()
        for depth in ("1", "4", "16"):
            frame = self._ours(topic, nameServer=servers, pullDepth=depth)
            yield self._frames("SPP-10", f"Apache 4.9.7, batch, pullDepth {depth}", None, {OURS: frame})

    # measuring ------------------------------------------------------------------------------------------------------

    def _case(self, case: Case) -> None:
        self.results.rows.append(case.row)
        for side in list(case.runs):
            try:
                case.runs[side]()  # warm
                if side in case.counts:
                    case.row.results[side] = [int(case.counts[side]())]
            except Exception as error:  # a failed row is shown as such, and the others are measured
                case.row.failures[side] = str(error).strip().splitlines()[0][:300]
                del case.runs[side]
        for number in range(self.plan.rounds):
            for side in case.runs if number % 2 == 0 else list(reversed(case.runs)):
                case.row.samples.setdefault(side, []).append(self._sample(side, case))

    def _sample(self, side: str, case: Case) -> Sample:
        servers = self.saturn.processes if side == OURS else self.kafka.processes
        if self.apache is not None and case.row.name.startswith("Apache"):
            servers = self.apache.processes
        spark, broker, busy = self._tree.cpu_s(), sum(server.cpu_s() for server in servers), machine_busy_s()
        begin = time.perf_counter()
        case.runs[side]()
        seconds = time.perf_counter() - begin
        whole, served = machine_busy_s() - busy, sum(server.cpu_s() for server in servers) - broker
        used = self._tree.cpu_s() - spark
        others = max(0.0, whole - used - served)
        return Sample(case.rows, seconds, used, served, others)


def make_session(connector: list[Path], work: Path, **conf: str) -> Any:
    """Return the Spark session of both sides; its workers can import the modules beside this file."""
    from saturnmq.spark import session

    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    settings = {
        "spark.jars": ",".join(map(str, connector)),
        "spark.local.dir": str(work),
        "spark.sql.streaming.numRecentProgressUpdates": "100",
        **conf,
    }
    return session("saturnmq-bench", mappers=["spark_work:bodies"], **settings)
