"""Lake export: topics to Parquet files, a Delta or an Iceberg table, exactly once, by the checkpoint of Spark's stream.

Parquet is written by Spark's own file sink. The other tables take files and the number of the micro-batch in one commit.

In: topics. Out: table `messages`, and `_offsets`, the positions of each micro-batch. A repeated run adds only new messages; killed
and run again, no row is missing or duplicated.

Requirements: PIP-03, PIP-08.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.spark import avro, planning
from saturnmq.spark.connect import close_all, linked
from saturnmq.spark.lake_sink import FORMATS, PARQUET, Target, append, check_format, prepare, target_of
from saturnmq.spark.local_paths import local_path
from saturnmq.spark.offset_tracker import OffsetCommitter
from saturnmq.spark.options import parse_options
from saturnmq.spark.pipelines import SUMMARIES, lake, ownership, running
from saturnmq.spark.pipelines.running import Conf, Pipeline, PipelineOutcome
from saturnmq.spark.ranges import Key, begins_of, from_offset, is_same_position, key_of, preceding_of, to_offset

OFFSETS: Final = (
    "query string, batch bigint, topic string, broker_name string, queue_id int, "
    "from_offset bigint, to_offset bigint, rows bigint"
)

_CORRUPT: Final = "_not_decoded"

# Micro-batches between two writes of `_offsets`; a checkpoint keeps the last 100 (spark.sql.streaming.minBatchesToRetain).
NOTED_BATCHES: Final = 50


@dataclass(frozen=True)
class ExportConf(Conf):
    """Selection and form of a table. max_offsets, max_bytes: limits of a micro-batch. schema: type of bodies, DDL or Avro JSON.

    catalog, namespace: of Iceberg tables.
    """

    topics: str = ""
    partition_by: tuple[str, ...] = lake.PARTITIONS
    max_offsets: int = 0
    max_bytes: str | None = None
    group: str | None = None
    expression: str = "*"
    checkpoint_path: str | None = None
    schema: str | None = None
    decode: str = "json"
    format: str = PARQUET
    catalog: str | None = None
    namespace: str | None = None

    @property
    def checkpoint(self) -> str:
        return self.checkpoint_path or self.table("_checkpoint")

    @property
    def messages(self) -> str:
        return self.table("messages")

    @property
    def bad_messages(self) -> str:
        return self.table("messages_bad")


def targets_of(conf: ExportConf) -> Mapping[str, Target]:
    """Return the tables with a log of commits by path, none for Parquet. Raises ConfigError."""
    partition_by = {conf.messages: conf.partition_by} | ({conf.bad_messages: ()} if conf.schema else {})
    named = {
        path: target_of(conf.format, path, columns, catalog=conf.catalog, namespace=conf.namespace)
        for path, columns in partition_by.items()
    }
    return {path: target for path, target in named.items() if target is not None}


def source_options(conf: ExportConf) -> dict[str, str]:
    """Return the options of the stream source."""
    options = {
        "nameServer": conf.name_servers, "topic": conf.topics, "startingOffsets": "earliest", "columns": lake.SOURCE_COLUMNS,
        "subExpression": conf.expression, **conf.loss_options,
    }  # fmt: skip
    if conf.max_offsets:
        options["maxOffsetsPerTrigger"] = str(conf.max_offsets)
    if conf.max_bytes:
        options["maxBytesPerTrigger"] = conf.max_bytes
    if conf.group:
        options["group"] = conf.group
    return options


def reader(spark: SparkSession, conf: ExportConf) -> DataFrame:
    """Return the topics as a stream of lake rows."""
    return lake.messages_of(spark.readStream.format("rocketmq").options(**source_options(conf)).load())


def build(spark: SparkSession, conf: ExportConf) -> StreamingQuery:
    """Start the export; without interval the query ends when it has caught up."""
    targets, stream = targets_of(conf), stream_of(conf)
    ownership.check(stream, spark)
    rows = reader(spark, conf)
    if conf.schema and conf.decode == "avro":
        rows = rows.withColumn("value", avro.column(conf.schema, f.col("body")))
    elif conf.schema:
        noted = {"columnNameOfCorruptRecord": _CORRUPT}
        value = f.from_json(f.col("body").cast("string"), f"{conf.schema}, {_CORRUPT} STRING", noted)
        rows = rows.withColumn("value", value)
    for path, frame in parts_of(conf, rows).items():
        if path in targets:
            prepare(targets[path], frame)
    query = ownership.claim(stream, spark)
    writer = rows.writeStream.option("checkpointLocation", lake.startable(conf.checkpoint)).outputMode("append")
    writer = (
        writer.trigger(processingTime=f"{conf.interval_ms} milliseconds")
        if conf.interval_ms
        else writer.trigger(availableNow=True)
    )
    if not conf.schema and not targets:
        return writer.format(PARQUET).option("path", conf.messages).partitionBy(*conf.partition_by).start()

    def write_parts(batch: DataFrame, number: int) -> None:
        if conf.schema:
            batch = batch.persist()
        for path, frame in parts_of(conf, batch).items():
            if path in targets:
                append(targets[path], frame, query, number)
            else:
                lake.write_part(frame, path, number)
        if conf.schema:
            batch.unpersist()

    return writer.foreachBatch(write_parts).start()


def parts_of(conf: ExportConf, rows: DataFrame) -> Mapping[str, DataFrame]:
    """Return what goes to each table: with a schema valid rows and bad ones."""
    if not conf.schema:
        return {conf.messages: rows}
    if conf.decode == "avro":
        is_valid, value, error = f.col("value").isNotNull(), f.col("value"), "no Avro of the schema"
    else:
        is_valid = f.col("value").isNotNull() & f.col(f"value.{_CORRUPT}").isNull()
        value, error = f.col("value").dropFields(_CORRUPT), "no JSON of the schema"
    valid = rows.where(is_valid).withColumn("value", value)
    invalid = rows.where(~is_valid).select(*lake.POSITION_COLUMNS, f.lit(error).alias("error"), "body")
    return {conf.messages: valid, conf.bad_messages: invalid}


def run(spark: SparkSession, conf: ExportConf, step: Callable[[str], Any]) -> PipelineOutcome:
    """Run the pipeline. Raises ConfigError when the table belongs to another checkpoint, or another process writes to it."""
    with lake.writing(conf.messages):
        return _run(spark, conf, step)


def stream_of(conf: ExportConf) -> ownership.Stream:
    """Return the export as a writer of its tables."""
    parquet_form = ownership.BATCH_FOLDERS if conf.schema else ownership.SINK_LOG
    form = ownership.COMMIT_LOGS.get(conf.format, parquet_form)
    bad_tables = (conf.bad_messages,) if conf.schema else ()
    options = "name the table's checkpoint by --checkpoint, or another folder by --lake"
    return ownership.Stream("export", form, conf.checkpoint, (conf.messages,), bad_tables, options, targets_of(conf))


def caught_up(conf: ExportConf) -> PipelineOutcome | None:
    """Return the outcome of a run that would find nothing new, None when a session is needed.

    Nothing is new when the last micro-batch of the checkpoint is committed and ends at the current end of every queue. When a
    broker does not answer, the decision is left to the run. Raises ConfigError for invalid options.
    """
    options = parse_options(source_options(conf), streaming=True)
    if conf.interval_ms or not _is_local(conf):
        return None
    with lake.writing(conf.messages):
        ownership.check(stream_of(conf))
        position = last_offset(Path(conf.checkpoint))
        if position is None:
            return None
        try:
            with linked(options) as link:
                bounds_by_queue = link.run(planning.bounds(link, options))
                preceding = preceding_of(position)
                offsets = {key: end - 1 for key, end in from_offset(position).items() if key in preceding}
                records = link.run(planning.records_at(link, offsets))
        except SaturnError:
            return None
        finally:
            close_all()  # Spark's JVM is forked from this process: leave no thread and no socket open
        ends = {key_of(queue): bounds.high for queue, bounds in bounds_by_queue.items()}
        if (
            not is_same_position(position, to_offset(ends, options.group))
            or position.get("s", "") != options.filter_text
        ):
            return None
        if any(record != preceding[key] for key, record in records.items()):
            return None  # a topic was created again
        if options.group:
            committer = OffsetCommitter(options.connection)
            committer.reached(options.group, ends)
            committer.flush(0.0, all_of_it=True)
            close_all()
        return _finished(None, conf, 0, 0)


def _is_local(conf: ExportConf) -> bool:
    return all(local_path(path) == Path(path) for path in (conf.checkpoint, conf.lake))


def _run(spark: SparkSession, conf: ExportConf, step: Callable[[str], Any]) -> PipelineOutcome:
    query = build(spark, conf)
    commits, noted = Path(conf.checkpoint) / "commits", -1

    def stepped(text: str) -> None:
        nonlocal noted
        step(text)
        if _is_local(conf) and (last := max(_numbered(commits), default=-1)) >= noted + NOTED_BATCHES:
            note_offsets(conf)
            noted = last

    rows = running.watch(query, stepped)
    return _finished(spark, conf, rows, lag_of(query))


def _finished(spark: SparkSession | None, conf: ExportConf, rows: int, lag: int | None) -> PipelineOutcome:
    """Update `_offsets` from the checkpoint and count bad rows. spark: not needed for a lake on a local disk."""
    if _is_local(conf):
        note_offsets(conf)
    bad_rows = 0
    if conf.schema:
        bad_table = targets_of(conf).get(conf.bad_messages)
        bad_rows = bad_table.count() if bad_table is not None else lake.count(spark, conf.bad_messages)
        conf.check_bad(bad_rows, "messages_bad")
    message = f"{rows} rows of topic {conf.topics} are in {conf.messages}"
    if foreign := ownership.foreign_files(conf.messages, spark):
        message += f"\n{foreign}"
    return PipelineOutcome(rows, rows - bad_rows, bad_rows, lag, message, more={"table": conf.messages})


def note_offsets(conf: ExportConf) -> None:
    """Add the checkpoint's batches to `_offsets`, keeping rows of batches that Spark has deleted from the checkpoint."""
    checkpoint_rows = batches(Path(conf.checkpoint))
    if not checkpoint_rows:
        return
    query, oldest = checkpoint_rows[0][:2]
    before = [row for row in lake.rows_of(conf.table("_offsets")) if row[0] == query and row[1] <= oldest]
    positions = {row[1:5] for row in before}  # the checkpoint no longer contains the start of its oldest batch
    rows = before + [row for row in checkpoint_rows if row[1:5] not in positions]
    lake.replace_rows(rows, OFFSETS, conf.table("_offsets"))


def lag_of(query: StreamingQuery) -> int | None:
    """Return the unread messages after the last batch, None when unknown."""
    progress = query.lastProgress
    if not progress:
        return 0
    source = progress["sources"][0]
    end, latest = source.get("endOffset"), source.get("latestOffset")
    if not end or not latest:
        return None
    ends = from_offset(json.loads(end) if isinstance(end, str) else end)
    latests = from_offset(json.loads(latest) if isinstance(latest, str) else latest)
    return sum(max(high - ends.get(key, 0), 0) for key, high in latests.items())


def _numbered(folder: Path) -> dict[int, Path]:
    """Return the files of a checkpoint's log by micro-batch, in order."""
    return dict(sorted((int(p.name), p) for p in folder.glob("*") if re.fullmatch(r"\d+", p.name)))


def last_offset(checkpoint: Path) -> dict[str, Any] | None:
    """Return the end offset of the last micro-batch; None if there is none or it is not committed."""
    offsets, commits = _numbered(checkpoint / "offsets"), _numbered(checkpoint / "commits")
    if not offsets or max(offsets) not in commits:
        return None
    return _offset_in(offsets[max(offsets)])


def _offset_in(path: Path) -> dict[str, Any]:
    offset: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
    return offset


def batches(checkpoint: Path) -> list[tuple[Any, ...]]:
    """Return rows of `_offsets`: what each finished batch of the checkpoint covered. The start of the oldest one is unknown."""
    rows: list[tuple[Any, ...]] = []
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    finished = _numbered(checkpoint / "commits")
    before: dict[Key, int] | None = None
    for number, path in _numbered(checkpoint / "offsets").items():
        try:
            offset = _offset_in(path)
        except FileNotFoundError:
            continue  # Spark deletes the oldest entries while the query runs
        ends, begins = from_offset(offset), begins_of(offset)
        if number in finished:
            for key, end in ends.items():
                first = begins.get(key, None if before is None else before.get(key, 0))
                if end != (first or 0):
                    rows.append((query, number, *key, first, end, None if first is None else end - first))
        before = ends
    return rows


def options(p: argparse.ArgumentParser) -> None:
    """Add the pipeline's own options."""
    running.broker_options(p)
    p.add_argument("--topic", required=True, metavar="TOPIC,...", help="topics to export")
    p.add_argument("--partition-by", default=",".join(lake.PARTITIONS), metavar="COLUMN,...",
                   help="folders to split into (default %(default)s)")  # fmt: skip
    p.add_argument("--max-offsets", type=int, default=0, metavar="N", help="messages per micro-batch (default all)")
    p.add_argument("--max-bytes", metavar="SIZE", help="estimated bytes per micro-batch, such as 64m")
    p.add_argument("--group", help="consumer group to commit progress to, for the broker's own tools")
    p.add_argument("--tags", default="*", metavar="EXPRESSION", help="tags to take, such as 'paid || refunded'")
    p.add_argument("--checkpoint", metavar="DIR", help="where progress is kept (default LAKE/_checkpoint)")
    p.add_argument(
        "--decode",
        choices=["json", "avro"],
        help="decode bodies to column value; bodies that are none go to messages_bad",
    )
    p.add_argument("--schema", metavar="FILE", help="with --decode json: columns, as DDL such as: id BIGINT, name STRING; "
                   "with --decode avro: the schema of a record in JSON, bodies without a header")  # fmt: skip
    p.add_argument("--format", choices=FORMATS, default=PARQUET, help="of table messages (default %(default)s)")
    running.catalog_options(p)
    running.loss_option(p)
    running.trigger_option(p)


def conf_of(args: argparse.Namespace) -> ExportConf:
    """Build the configuration from the command line. Raises ConfigError."""
    if (args.decode is None) != (args.schema is None):
        raise ConfigError("options --decode and --schema belong together, one of them is missing")
    conf = ExportConf(
        **running.common(args),
        topics=args.topic,
        partition_by=tuple(part.strip() for part in args.partition_by.split(",") if part.strip()),
        max_offsets=args.max_offsets,
        max_bytes=args.max_bytes,
        group=args.group,
        expression=args.tags,
        checkpoint_path=args.checkpoint,
        format=check_format("option --format", args.format),
        catalog=args.catalog,
        namespace=args.namespace,
        **_decoding(args),
    )
    targets_of(conf)  # raises ConfigError before a session is started
    return conf


def _decoding(args: argparse.Namespace) -> dict[str, Any]:
    """Validate the schema before a session is started; return its fields. Raises ConfigError."""
    schema = Path(args.schema).read_text() if args.schema else None
    if schema and args.decode == "avro":
        avro.ddl(schema)
    return {"schema": schema, "decode": args.decode or "json"}


PIPELINE: Final = Pipeline(
    "export",
    SUMMARIES["export"],
    {"TOPIC": "messages of a broker"},
    {"messages": lake.MESSAGES, "messages_bad": "position, error, body (with --decode)", "_offsets": OFFSETS},
    "exactly once: a killed run that is repeated leaves no message missing or duplicate",
    options,
    conf_of,
    build,
    run,
    caught_up=caught_up,
)

if __name__ == "__main__":
    from saturnmq.spark.pipelines import main

    sys.exit(main(["export", *sys.argv[1:]]))
