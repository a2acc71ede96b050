"""Spark data source for SaturnMQ and Apache RocketMQ topics, batch and streaming, read and write.

    from saturnmq.spark import session

    spark = session("orders-report", name_server="localhost:9876")
    rows = spark.read.format("rocketmq").options(nameServer="localhost:9876", topic="orders").load()
    rows.groupBy("tags").count().show()

A DataFrame has one plan, made by its first action: later queries of it read the same messages. `topic` reloads with each
call, and makes the source read less:

    topic(spark, "orders").where("length(body) > 100", tags=["paid"], since="2026-03-01").count()

The formats are `rocketmq` and its alias `saturnmq`. Importing this package imports neither pyspark nor pyarrow; calling its
functions does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

# No other package of saturnmq imports pyspark; here it is imported inside functions only (SPK-03).
if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from saturnmq.registry import SchemaRegistry
    from saturnmq.spark.topic_reads import TopicReads


def session(
    app: str = "saturnmq",
    *,
    name_server: str | None = None,
    mappers: Iterable[str | Callable[..., Any]] = (),
    **conf: str,
) -> SparkSession:
    """Build or reuse a local Spark session with the data source registered.

        spark = session("orders-report", name_server="localhost:9876", **{"spark.master": "local[4]"})

    name_server: also commit consumer-group offsets and record the lag of the session's streams, against this cluster.
    mappers: functions that option mapArrow may name, as functions or as "module:function"; it can name no others.
    conf: Spark settings; they override the local defaults. Raises ConfigError for an unsupported pyspark or Java version.
    """
    from saturnmq.spark.local_session import make_session

    return make_session(app, name_server=name_server, mappers=mappers, conf=conf)


def register(spark: SparkSession, *, mappers: Iterable[str | Callable[..., Any]] = ()) -> None:
    """Register the formats `rocketmq` and `saturnmq` with an existing session.

        register(spark)
        spark.readStream.format("rocketmq").options(nameServer="localhost:9876", topic="orders").load()

    Sessions built by `session` have them already. mappers: functions that option mapArrow may name, as functions or as
    "module:function"; it can name no others.
    """
    from saturnmq.spark.registration import register_formats

    register_formats(spark, mappers)


def topic(spark: SparkSession, name: str, *, name_server: str | None = None, **options: str | int | bool) -> TopicReads:
    """Return the reads of a topic: `where`, `load`, `stream` and `view`, each of which reloads.

        orders = topic(spark, "orders", name_server="localhost:9876", failOnDataLoss=False)
        orders.where("length(body) > 100", tags=["paid"], since="2026-03-01").count()
        orders.view("orders")  # for SQL: a view that reloads for each query

    name_server: by default that of `session(name_server=...)`, else NAMESRV_ADDR of the environment. options: those of the
    source, for every read.
    """
    from saturnmq.spark.topic_reads import reads_of

    return reads_of(spark, name, name_server, options)


def to_lake(
    table_format: str,
    table: str,
    *,
    partition_by: Iterable[str] = (),
    catalog: str | None = None,
    namespace: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that adds each micro-batch of a stream to a Delta or Iceberg table exactly once.

        rows = topic(spark, "orders", name_server="localhost:9876").stream(since=0)
        query = rows.writeStream.option("checkpointLocation", "./checkpoint").foreachBatch(to_lake("delta", "./orders")).start()

    table_format: delta or iceberg. table: its folder; it is created with the columns of the stream. catalog, namespace: of
    Iceberg, by default an SQLite file beside the table, and saturnmq. Raises ConfigError for options that are not valid.
    """
    from saturnmq.spark.lake_sink import to_lake as writer_to

    return writer_to(table_format, table, tuple(partition_by), catalog, namespace)


def from_registry(
    registry: SchemaRegistry,
    subject: str,
    body: Column | str = "body",
    properties: Column | str | None = "properties",
    *,
    null_on_error: bool = False,
) -> Column:
    """Return bodies as a struct column with the fields of a subject of a schema registry: Avro, JSON Schema or Protobuf.

        registry = SchemaRegistry("https://registry.example.com", token=os.environ["REGISTRY_TOKEN"])
        orders = topic(spark, "orders").load()
        orders.select(from_registry(registry, "orders-value").alias("order")).select("order.*").show()

    The fields are those of the subject's latest version when this is called; each body is decoded by the schema that it refers to,
    by its frame or by the header in `properties`. A body that cannot be decoded fails the query, or is null with null_on_error;
    a registry that does not answer fails it always. Raises RegistryError, and ConfigError for a schema that columns cannot have.
    """
    from saturnmq.spark.registry_columns import from_registry as column_from

    return column_from(registry, subject, body, properties, null_on_error=null_on_error)


__all__ = ["from_registry", "register", "session", "to_lake", "topic"]
