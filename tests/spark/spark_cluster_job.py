"""The driver of the cluster tests, in a process of its own: batch, stream and sink steps on the cluster that its arguments name.

Argument: JSON with name_servers, folder, conf, steps. The result of each step is written to FOLDER/STEP.done.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saturnmq.spark import session
from saturnmq.spark.options import DEFAULT_COLUMNS
from saturnmq.spark.source import struct_type

BROKER = "broker-a"
PROBES = [f"spark_cluster_probe:{name}" for name in ("read", "write", "twice", "halves")]


class Job:
    """One session; each step is a method."""

    def __init__(self, name_servers: str, folder: str, conf: dict[str, str]) -> None:
        self.name_servers = name_servers
        self.folder = Path(folder)
        self.spark: Any = session("saturnmq-cluster-tests", mappers=PROBES, **conf)

    def batch(self, probe: str, **options: str) -> Any:
        """Return a batch read in small batches through a function of the probe."""
        made = self.spark.read.format("rocketmq").options(nameServer=self.name_servers, batchRows="100", **options)
        return made.option("mapArrow", f"spark_cluster_probe:{probe}").schema(struct_type(DEFAULT_COLUMNS)).load()

    def _written(self, frame: Any, topic: str, **options: str) -> str:
        sink = frame.select("body").write.format("rocketmq").mode("append")
        sink.options(nameServer=self.name_servers, topic=topic, batchMessages="20", **options).save()
        return topic

    def read(self) -> list[list[int]]:
        rows = self.batch("read", topic="In").select("queueId", "queueOffset").collect()
        return sorted([row["queueId"], row["queueOffset"]] for row in rows)

    def write(self) -> str:
        one = json.dumps({"In": {BROKER: [0]}})
        return self._written(self.batch("write", assign=one), "Written", dedupe="true", maxPerSecond="100000")

    def halves(self) -> str:
        one = json.dumps({"Long": {BROKER: [0]}})  # many rows, so that the kill comes between two half messages
        log = str(self.folder / "log")
        return self._written(
            self.batch("halves", assign=one), "Halves", delivery="transactional", decisionLog=log, inFlight="1"
        )

    def speculation(self) -> str:
        """Write from a short and a long task; the long one is run a second time speculatively."""
        log = str(self.folder / "log")
        frame = self.batch("twice", topic="Long")
        return self._written(frame, "Once", delivery="transactional", decisionLog=log, inFlight="1")

    def stream(self) -> list[int]:
        source = self.spark.readStream.format("rocketmq").options(
            nameServer=self.name_servers, topic="In", startingOffsets="earliest", maxOffsetsPerTrigger="1200"
        )
        sink = source.load().select("body").writeStream.format("rocketmq")
        sink = sink.options(nameServer=self.name_servers, topic="Streamed")
        query = sink.option("checkpointLocation", str(self.folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        return [int(progress["numInputRows"]) for progress in query.recentProgress]


def main() -> None:
    given = json.loads(sys.argv[1])
    job = Job(given["name_servers"], given["folder"], given["conf"])
    for name in given["steps"]:
        step: Callable[[], Any] = getattr(job, name)
        result = json.dumps(step())
        temporary = job.folder / f"{name}.tmp"
        temporary.write_text(result)
        temporary.replace(job.folder / f"{name}.done")
    job.spark.stop()


if __name__ == "__main__":
    main()
