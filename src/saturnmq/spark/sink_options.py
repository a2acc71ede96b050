"""Options and columns of the sink. Does not import pyspark.

Requirements: SNK-02, SNK-03, SNK-07, SNK-13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import BATCH_MESSAGES_MAX
from saturnmq.spark import option_table as table
from saturnmq.spark.connect import ConnectionOptions
from saturnmq.spark.decision_log import DecisionLog

BODY_BYTES_MAX: Final = 4 * 1024 * 1024

# column -> allowed Spark types (simpleString)
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string",),
    "properties": ("map<string,string>", "string"),
    "flag": ("int",),
    "shardingKey": ("string",),
    "brokerName": ("string",),
    "queueId": ("int",),
    "delayLevel": ("int",),
    "deliverAt": ("bigint", "timestamp"),
}


@dataclass(frozen=True)
class SinkOptions(ConnectionOptions):
    """The options of one write."""

    topic: str | None = None
    delivery: str = "at_least_once"
    ack: str = "stored"
    batch_bytes: int = 1024 * 1024
    batch_messages: int = 512
    in_flight: int = 16
    send_timeout_ms: int = 3000
    retries: int = 8
    compress: str = "none"
    compress_above: int = 4096
    bad_rows: str = "fail"
    dedupe: bool = False
    allow_timer: bool = False
    producer_group: str = "SPARK_SINK"
    per_second: int = 0
    own_group: str | None = None
    decision_log: str = ""
    transaction_messages: int = 200_000
    check_after_ms: int = 300_000


_TABLE: Final[table.OptionTable] = {
    **table.CONNECTION,
    "topic": ("topic", table.text),
    "delivery": ("delivery", table.one_of("at_least_once", "transactional")),
    "ack": ("ack", table.one_of("stored", "durable", "none")),
    "batchBytes": ("batch_bytes", table.size),
    "batchMessages": ("batch_messages", table.number(1)),
    "inFlight": ("in_flight", table.number(1, 1024)),
    "sendTimeoutMs": ("send_timeout_ms", table.duration_ms(1)),
    "retries": ("retries", table.number(0)),
    "compress": ("compress", table.one_of("none", "zlib", "lz4", "zstd")),
    "compressAbove": ("compress_above", table.size),
    "badRows": ("bad_rows", table.one_of("fail", "skip")),
    "dedupe": ("dedupe", table.flag),
    "allowTimer": ("allow_timer", table.flag),
    "producerGroup": ("producer_group", table.text),
    "maxPerSecond": ("per_second", table.number(1)),
    "decisionLog": ("decision_log", table.text),
    "transactionMaxMessages": ("transaction_messages", table.number(1)),
    "transactionCheckAfter": ("check_after_ms", table.duration_ms()),
}
OPTION_NAMES: Final = tuple(_TABLE)


def parse_sink_options(
    raw_options: Mapping[str, str], columns: Mapping[str, str], *, overwrite: bool = False
) -> SinkOptions:
    """Parse the options and check them against the columns of the frame (name -> Spark type).

    Raises ConfigError with every problem at once.
    """
    values, problems = table.read_options(_TABLE, raw_options, {})
    table.connection_values(values, problems)
    if not values.get("name_server"):
        problems.append("option nameServer is missing: host:port;host:port of the name servers, or set NAMESRV_ADDR")
    if overwrite:
        problems.append('messages cannot be overwritten: use .mode("append"), on a stream outputMode append or update')
    if values.get("batch_bytes", 1) > BODY_BYTES_MAX:
        problems.append(
            f"option batchBytes={values['batch_bytes']}: must be at most 4m, brokers reject larger requests"
        )
    if values.get("batch_messages", 1) > BATCH_MESSAGES_MAX:
        problems.append(
            f"option batchMessages={values['batch_messages']}: must be at most {BATCH_MESSAGES_MAX}, brokers reject larger batches"
        )
    if values.get("delivery") == "transactional":
        problems += _transactional(values, columns, {name.lower(): value for name, value in raw_options.items()})
    problems += column_problems(columns)
    if "topic" not in values and "topic" not in columns:
        problems.append("option topic is missing, and so is a column topic: one of them must say where to")
    if "deliverAt" in columns and not values.get("allow_timer"):
        problems.append(
            "column deliverAt: only SaturnMQ brokers hold such messages back, others deliver them at once; "
            "set allowTimer=true to send them all the same"
        )
    if problems:
        raise ConfigError(problems)
    return SinkOptions(**values)


def _transactional(values: dict[str, Any], columns: Mapping[str, str], raw_options: Mapping[str, str]) -> list[str]:
    """Return what conflicts with delivery=transactional; sets the default decision log below the checkpoint (SNK-07, SNK-13)."""
    problems = [f"column {name}: not with delivery=transactional, brokers do not delay such messages"
                for name in ("delayLevel", "deliverAt") if name in columns]  # fmt: skip
    if values.get("ack", "durable") != "durable":
        problems.append(f"option ack={values['ack']}: delivery=transactional always waits until messages are durable")
    if "per_second" in values:
        problems.append(
            f"option maxPerSecond={values['per_second']}: not with delivery=transactional, whose messages become visible at once"
        )
    values["ack"] = "durable"
    values["own_group"] = values.get("producer_group")
    if "decision_log" not in values and raw_options.get("checkpointlocation"):
        values["decision_log"] = raw_options["checkpointlocation"].rstrip("/") + "/_saturnmq_tx"
    if "decision_log" not in values:
        problems.append(
            "option decisionLog is missing: the folder where delivery=transactional notes what it has decided"
        )
    else:
        try:
            DecisionLog(values["decision_log"])
        except ConfigError as error:
            problems.append(str(error))
    return problems


def column_problems(columns: Mapping[str, str]) -> list[str]:
    """Return what is wrong with a frame's columns."""
    problems = []
    if "body" not in columns:
        problems.append("column body is missing: binary or string, the content of the message")
    for name, kind in columns.items():
        allowed = COLUMNS.get(name)
        if allowed is None:
            problems.append(table.unknown_name("column", name, COLUMNS, table.SINK_COLUMNS_OF_KAFKA))
        elif kind not in allowed:
            problems.append(f"column {name} is {kind}, must be {' or '.join(allowed)}")
    if ("brokerName" in columns) != ("queueId" in columns):
        problems.append("columns brokerName and queueId belong together, one of them is missing")
    return problems
