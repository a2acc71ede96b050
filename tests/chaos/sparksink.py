"""The driver of the chaos test of transactional sinks: a stream from one topic to another, each row exactly once.

Arguments: name servers, source topic, target topic, folder of checkpoint and decisions, producer group, master, `once`
or `go-on`. With `once` it ends after it has caught up and the brokers have received the outcome of every half message.
"""

from __future__ import annotations

import sys
import time

from saturnmq.spark import session
from saturnmq.spark.decision_log import QUIET_MS
from saturnmq.spark.pipelines.lake import startable
from saturnmq.spark.transactional import answering

CHECK_AFTER = "3s"


def main(name_servers: str, read: str, write: str, folder: str, group: str, master: str, how: str) -> None:
    """Run until killed, or until caught up."""
    settings = {"spark.master": master, "spark.driver.memory": "700m"}
    with answering(name_servers, f"{folder}/decisions", group):
        spark = session("chaos-sink", **settings)
        rows = (
            spark.readStream.format("rocketmq")
            .options(nameServer=name_servers, topic=read, startingOffsets="earliest", columns="body,keys")
            .option("maxOffsetsPerTrigger", "5000" if how == "once" else "60")
            .load()
        )
        writer = rows.writeStream.format("rocketmq").options(
            nameServer=name_servers, topic=write, delivery="transactional", producerGroup=group,
            transactionCheckAfter=CHECK_AFTER, decisionLog=f"{folder}/decisions",
            checkpointLocation=startable(f"{folder}/checkpoint"),
        )  # fmt: skip
        writer = writer.trigger(availableNow=True) if how == "once" else writer.trigger(processingTime="1 second")
        query = writer.start()
        while not query.awaitTermination(1):  # without a timeout the driver was seen waiting forever for a killed JVM
            pass
        spark.stop()
        if how == "once":
            time.sleep(QUIET_MS / 1000 + 10)  # brokers poll the driver about half messages with unknown outcome


if __name__ == "__main__":
    main(*sys.argv[1:])
