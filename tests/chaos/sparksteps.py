"""A Spark driver with a transactional sink that is killed at one step of a batch, with its JVM and all Python processes.

Arguments: name servers, folder, and the name of one or more queries, each with its topics <name>-from and <name>-to, its producer
group and its folder of checkpoint and decisions. Environment: CHAOS_STEP, one of STEPS, or nothing: then it runs the first batch
of each query, one after the other, and ends when its standard input is closed. Spark's planners and workers import this module
too, by PYTHONPATH, for the data source `steps`: it is the product's, whose functions report every step that they reach.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import psutil
from pyspark.sql.types import StructType

from saturnmq.spark import decision_log, session, transactional
from saturnmq.spark.decision_log import DecisionLog
from saturnmq.spark.pipelines.lake import startable
from saturnmq.spark.sink import StreamWriter, make_writer
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.spark.transactional import answering

# "open:" the commit fails before it decides, "decided:" after it; Spark then aborts the batch.
STEPS: Final = (
    "source after initialOffset", "source after latestOffset", "source before partitions", "task before write",
    "task after write", "commit before decide", "commit before link json", "commit after link json",
    "commit before link journal", "commit after link journal", "commit after end 1", "commit after end 9",
    "commit before acknowledge", "commit after acknowledge", "commit before finish", "commit after finish",
    "open: abort before abort", "open: abort before link json", "open: abort after link json", "open: abort after end 1",
    "open: abort after end 9", "open: abort after write", "decided: abort before abort", "decided: abort after write",
)  # fmt: skip
QUIET_MS: Final = 5000  # all processes are killed together, so no request is in flight for longer
_STEP: Final = os.environ.get("CHAOS_STEP", "")
_phase = ""


def reached(point: str) -> None:
    """Kill the driver, its JVM and every Python process, this one last, if this is the step; or only the broker CHAOS_BROKER."""
    if _STEP.rpartition(": ")[2] == f"{_phase} {point}":
        if broker := os.environ.get("CHAOS_BROKER"):
            os.kill(int(broker), signal.SIGKILL)
            return
        driver = psutil.Process(int(os.environ["CHAOS_DRIVER"]))
        for process in (driver, *driver.children(recursive=True)):
            if process.pid != os.getpid():
                process.kill()
        os.kill(os.getpid(), signal.SIGKILL)


def step(owner: Any, name: str, label: Callable[..., str] = lambda *_: "") -> None:
    """Report the points before and after a function of the product, in this process."""
    inner = getattr(owner, name)
    if hasattr(inner, "is_stepped"):
        return

    def stepped(*arguments: Any, **more: Any) -> Any:
        point = f"{name} {label(*arguments)}".rstrip()
        reached(f"before {point}")
        result = inner(*arguments, **more)
        reached(f"after {point}")
        return result

    stepped.is_stepped = True  # type: ignore[attr-defined]
    setattr(owner, name, stepped)


def step_ends() -> None:
    """Report the points after the first, second, ... response to an end, when those sent with it have theirs, too."""
    inner, count = transactional._end_window, 0

    async def stepped(*arguments: Any) -> Any:
        nonlocal count
        outcomes = await inner(*arguments)
        for _ in outcomes:
            count += 1
            reached(f"after end {count}")
        return outcomes

    transactional._end_window = stepped


def begin(phase: str) -> None:
    """Enter a phase of a batch in this process."""
    global _phase
    _phase = phase
    if "CHAOS_BROKER" in os.environ:
        transactional.REACH_SECONDS = 2.0  # type: ignore[misc]
    step(os, "link", lambda source, target: target.suffix[1:])
    for name in ("decide", "abort", "claim", "acknowledge", "finish"):
        step(DecisionLog, name)
    step_ends()


class Writer(StreamWriter):
    """The product's writer, with steps, and with failures before and after the decision."""

    def write(self, iterator: Any) -> Any:
        global _phase
        _phase = "task"
        reached("before write")
        message = super().write(iterator)
        reached("after write")
        return message

    def commit(self, messages: Any, batchId: int) -> None:
        if _STEP.startswith("open: "):
            raise OSError("the commit fails before its decision")
        if _STEP.startswith("decided: "):

            def claim(*_: Any) -> None:
                raise OSError("the commit fails after its decision")

            DecisionLog.claim = claim  # type: ignore[assignment,method-assign]
        begin("commit")
        super().commit(messages, batchId)

    def abort(self, messages: Any, batchId: int) -> None:
        begin("abort")
        super().abort(messages, batchId)
        reached("after write")


class Source(RocketMQDataSource):
    """The product's data source, with steps."""

    @classmethod
    def name(cls) -> str:
        return "steps"

    def streamReader(self, schema: StructType) -> Any:
        global _phase
        _phase, reader = "source", super().streamReader(schema)
        for name in ("initialOffset", "latestOffset", "partitions"):
            step(type(reader), name)
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return make_writer(Writer, dict(self._raw_options), schema, overwrite)


def run(spark: Any, name_servers: str, folder: str, name: str) -> None:
    """Run the first batch of a query, or the one that was killed."""
    rows = (
        spark.readStream.format("steps")
        .options(nameServer=name_servers, topic=f"{name}-from", startingOffsets="earliest", columns="body,keys")
        .load()
    )
    writer = rows.writeStream.format("steps").options(
        nameServer=name_servers, topic=f"{name}-to", delivery="transactional", producerGroup=name,
        transactionCheckAfter="1s", decisionLog=f"{folder}/{name}/decisions",
        checkpointLocation=startable(f"{folder}/{name}/checkpoint"),
    )  # fmt: skip
    query = writer.trigger(availableNow=True).start()
    while not query.awaitTermination(1):
        pass


def main(name_servers: str, folder: str, *names: str) -> None:
    """Run the queries in one driver, which also answers the check-backs of each."""
    os.environ["CHAOS_DRIVER"] = str(os.getpid())
    decision_log.QUIET_MS = QUIET_MS  # type: ignore[misc]
    settings = {"spark.master": "local[2,4]", "spark.driver.memory": "700m"}
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(answering(name_servers, f"{folder}/{name}/decisions", name))
        spark = session("chaos-steps", **settings)
        from sparksteps import Source as Registered  # by its module's name, not by value as a part of __main__

        spark.dataSource.register(Registered)
        for name in names:
            run(spark, name_servers, folder, name)
        print("caught up", flush=True)
        sys.stdin.read()
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
