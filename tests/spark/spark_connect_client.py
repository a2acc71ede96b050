"""A Spark Connect client in a process of its own: one process cannot have a classic and a Connect session.

Arguments: URL of the Connect server, name servers, a folder, the example of docs/spark.md. Topic `connect-in` has 40 messages.
Prints one JSON line per step.
"""

from __future__ import annotations

import copy
import json
import runpy
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from saturnmq.spark import register, session
from saturnmq.spark.offset_tracker import track

TOPIC = "connect-in"


def say(step: str, value: Any) -> None:
    print(json.dumps({"step": step, "value": value}), flush=True)


def message(query: Callable[[], Any]) -> str:
    """Return the message of the error that a query ends with."""
    try:
        return f"no error but {query()}"
    except PySparkException as error:
        return str(error)


def main(url: str, name_servers: str, folder: str, example: str) -> None:
    spark: Any = SparkSession.builder.remote(url).getOrCreate()
    unregistered = spark.read.format("rocketmq").options(nameServer=name_servers, topic=TOPIC)
    say("unregistered", unregistered.load().count())
    register(spark, mappers=[copy.copy])

    def read(topic: str, **options: str) -> Any:
        made = spark.read.format("rocketmq").options(nameServer=name_servers, topic=topic, **options)
        return (made.schema("body binary") if "mapArrow" in options else made).load()

    def bodies(topic: str, **options: str) -> list[str]:
        return sorted(row["body"].decode() for row in read(topic, **options).select("body").collect())

    def streamed(to: str, **options: str) -> Any:
        rows = spark.readStream.format("saturnmq").options(
            nameServer=name_servers, topic=TOPIC, group="connect-group", startingOffsets="earliest"
        )
        sink = rows.load().select("body").writeStream.format("rocketmq").trigger(availableNow=True)
        query = sink.options(
            nameServer=name_servers, topic=to, checkpointLocation=f"{folder}/checkpoint-{to}", **options
        ).start()
        query.awaitTermination(200)
        return query

    say("batch", bodies(TOPIC))
    say("mapped", bodies(TOPIC, columns="body", mapArrow="copy:copy"))
    say("session", session("connect", mappers=[copy.copy], **{"spark.sql.shuffle.partitions": "3"}) is spark)
    say("settings", [spark.conf.get(f"spark.sql.{name}") for name in ("session.timeZone", "shuffle.partitions")])
    say("refused", message(lambda: bodies(TOPIC, columns="body", mapArrow="copy:deepcopy")))
    say("unknown topic", message(lambda: bodies("nowhere")))
    tracker = track(spark, name_servers)  # after failed queries: their accumulators are not yet sent to this client
    query = streamed("connect-out")
    say("tracked", tracker.wait(query) and [lag.rows for lag in tracker.lags.values()])
    streamed("connect-once", delivery="transactional", producerGroup="connect-once")
    spark.range(3).selectExpr("cast(id as string) as body").write.format("rocketmq").options(
        nameServer=name_servers, topic="connect-batch"
    ).mode("append").save()
    say("sinks", [bodies("connect-out"), bodies("connect-once"), bodies("connect-batch")])
    say("documented", runpy.run_path(example)["orders"].count())
    tracker.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
