"""Errors of options and columns: Kafka's names are translated, and planners report a message instead of a traceback."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.util import handle_worker_exception

from saturnmq.protocol.errors import ConfigError, InvariantBroken, invariant
from saturnmq.spark.option_table import OPTIONS_OF_KAFKA
from saturnmq.spark.options import COLUMNS, OPTION_NAMES, parse_options
from saturnmq.spark.planner_errors import brief
from saturnmq.spark.sink_options import COLUMNS as SINK_COLUMNS
from saturnmq.spark.sink_options import OPTION_NAMES as SINK_OPTION_NAMES
from saturnmq.spark.sink_options import parse_sink_options
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.testing import SyncEmbeddedBroker

GIVEN = {"nameServer": "127.0.0.1:9876", "topic": "T"}


@pytest.mark.spec("SPK-10")
@pytest.mark.parametrize(
    ("kafkas", "ours"),
    [
        ("kafka.bootstrap.servers", "nameServer"),
        ("kafka.group.id", "group"),
        ("groupIdPrefix", "group"),
        ("includeHeaders", "columns"),
        ("kafkaConsumer.pollTimeoutMs", "pullTimeoutMs"),
        ("kafka.security.protocol", "tls"),
        ("kafka.sasl.jaas.config", "accessKey"),
    ],
)
def test_kafka_source_option_is_translated(kafkas: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{kafkas.lower()}', here it is '{ours}'"):
        parse_options(GIVEN | {kafkas: "x"})
    assert set(OPTIONS_OF_KAFKA.values()) <= {*OPTION_NAMES, *SINK_OPTION_NAMES}


@pytest.mark.spec("SPK-10")
def test_options_shared_with_kafka_have_the_same_names() -> None:
    shared = {"subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
              "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "failOnDataLoss",
              "minPartitions", "maxRecordsPerPartition",
              "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"}  # fmt: skip
    assert shared <= set(OPTION_NAMES)


@pytest.mark.spec("SPK-10", "SNK-02")
def test_sink_translates_kafka_columns_and_options() -> None:
    columns = {
        "value": "binary",
        "key": "string",
        "headers": "string",
        "partition": "int",
        "tagz": "string",
        "zzz": "int",
    }
    with pytest.raises(ConfigError) as caught:
        parse_sink_options(GIVEN | {"kafka.acks": "all", "includeHeaders": "true"}, columns)
    for words in (
        "unknown column 'value', here it is 'body'", "unknown column 'key', here it is 'keys'",
        "unknown column 'headers', here it is 'properties'", "unknown column 'partition', here it is 'queueId'",
        "unknown column 'tagz', did you mean 'tags'?", f"unknown column 'zzz'; allowed are {', '.join(SINK_COLUMNS)}",
        "unknown option 'kafka.acks', here it is 'ack'", "unknown option 'includeheaders'",
    ):  # fmt: skip
        assert words in caught.value.problems or any(p.startswith(words) for p in caught.value.problems), words


@pytest.mark.spec("SPK-10")
def test_source_translates_kafka_columns() -> None:
    with pytest.raises(
        ConfigError, match="unknown column 'value', here it is 'body'; unknown column 'offset', here it is"
    ):
        parse_options(GIVEN | {"columns": "topic,value,offset"})
    schema = StructType([StructField("headers", StringType(), True)])
    with pytest.raises(ConfigError, match="schema: unknown column 'headers', here it is 'propertiesMap'"):
        RocketMQDataSource(dict(GIVEN)).reader(schema)
    with pytest.raises(ConfigError, match=f"unknown column 'zzz'; allowed are {', '.join(COLUMNS)}"):
        parse_options(GIVEN | {"columns": "zzz"})


def written_by_planner(error: BaseException) -> str:
    """Return what PySpark's planner sends to the JVM for an error."""
    out = io.BytesIO()
    try:
        raise error
    except BaseException as caught:
        handle_worker_exception(caught, out)
    return out.getvalue()[8:].decode()  # after two numbers: the error marker and the length


@pytest.mark.spec("SPK-10")
def test_planner_error_has_message_without_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(ConfigError) as caught:
        RocketMQDataSource({"topic": "T"}).schema()
    assert not os.environ["SPARK_HIDE_TRACEBACK"], "a driver that plans by itself sees the frames"
    assert "Traceback" in written_by_planner(caught.value)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="pyspark.daemon"))
    with pytest.raises(InvariantBroken):
        brief(invariant)(False, "a defect")
    assert not os.environ["SPARK_HIDE_TRACEBACK"]
    with pytest.raises(ConfigError):
        RocketMQDataSource({"topic": "T"}).schema()
    assert written_by_planner(caught.value) == f"saturnmq.protocol.errors.ConfigError: {caught.value}\n"


@pytest.mark.spark
@pytest.mark.spec("SPK-10")
def test_wrong_options_and_columns_are_short_spark_errors(spark: Any, server: SyncEmbeddedBroker) -> None:
    given = {"kafka.bootstrap.servers": "h:9092", "topic": "T", "nameServer": server.name_servers}
    frame = spark.range(1).select(functions.lit("x").alias("value"))
    wanted = {"topic": "nowhere", "nameServer": server.name_servers}

    def stream() -> None:
        rows = spark.readStream.format("rocketmq").options(**wanted).load()
        query = rows.writeStream.format("noop").trigger(availableNow=True).start()
        query.awaitTermination(120)

    for words, wrong in (
        ("unknown option 'kafka.bootstrap.servers', here it is 'nameServer'",
         lambda: spark.read.format("rocketmq").options(**given).load()),
        ("option topic: 'nowhere' cannot be read", lambda: spark.read.format("rocketmq").options(**wanted).load().count()),
        ("unknown column 'value', here it is 'body'",
         lambda: frame.write.format("rocketmq").options(**wanted).mode("append").save()),
        ("option topic: 'nowhere' cannot be read", stream),
    ):  # fmt: skip
        with pytest.raises(PySparkException) as caught:
            wrong()
        text = str(caught.value)
        assert words in text and "Traceback" not in text and "\n  File" not in text, text
