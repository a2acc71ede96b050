"""Throughput and lag by minute, hour and day, and alerts.

In: with --mode poll the brokers are queried; polling is what builds up a history. With --mode topic ticks are read from a
topic, as the JSON that `collect` writes, and with --mode history from the file of `saturnmq collect`, without a broker; give
each lake one mode. Out: stats_ticks and, with --mode poll, stats_brokers (their runtime information), both append-only;
stats_1m, stats_1h, stats_1d and alerts, rebuilt from all ticks: late or duplicate ticks change nothing. Ticks hold monotonic
counters, so a missed tick loses nothing either. An alert fires once when its value reaches one threshold, and clears once when
the value falls to the other.

Requirements: PIP-11, EXP-04, EXP-05.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from saturnmq.history.file import History
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.connect import ConnectionOptions
from saturnmq.spark.pipelines import SUMMARIES, collect, lake, ownership, report, running
from saturnmq.spark.pipelines.running import Conf, Pipeline, PipelineOutcome

TICKS: Final = (
    "ts timestamp, topic string, group string, broker_name string, total bigint, bytes bigint, lag bigint, "
    "lag_s double, fail bigint"
)
BROKERS: Final = "ts timestamp, broker_name string, broker_id bigint, address string, key string, value string"
MINUTES: Final = (
    "topic string, group string, broker_name string, window_start timestamp, msgs bigint, bytes bigint, tps_avg double, "
    "tps_max double, lag bigint, lag_s double, fail bigint"
)
ALERTS: Final = "ts timestamp, rule string, subject string, value double, threshold double, state string"
RULES: Final = "rule string, metric string, fire double, clear double"
METRICS: Final = ("behind_s", "msgs", "bytes", "tps_avg", "tps_max", "lag", "lag_s", "fail")
# behind_s, for all groups: the lag divided by the producers' rate of the last five minutes, in seconds (EXP-04).
DEFAULT_RULES: Final = (
    ("behind", "behind_s", 300.0, 60.0),
    ("stuck", "lag_s", 600.0, 60.0),
    ("dead letters", "fail", 1.0, 0.0),
)
ROWS_MAX: Final = 100_000
HISTORY_SECONDS: Final = 3600  # of a history file are read and stored at once
_SUBJECT_COLUMNS: Final = ("topic", "group", "broker_name")


@dataclass(frozen=True)
class StatsConf(Conf):
    """rules: (rule, metric, fire, clear). alert_topic: topic that alerts are sent to, None for none. history: a history file."""

    mode: str = "poll"
    topic: str = "SATURN_STATS"
    history: Path | None = None
    rules: tuple[tuple[str, str, float, float], ...] = DEFAULT_RULES
    alert_topic: str | None = None
    publish: bool = False


def stats_1m(ticks: DataFrame) -> DataFrame:
    """Return table `stats_1m`: growth between two ticks counts in the minute of the later one; the first tick is the baseline."""
    once = ticks.dropDuplicates(["ts", *_SUBJECT_COLUMNS])
    in_order = Window.partitionBy(*_SUBJECT_COLUMNS).orderBy("ts")

    def grown(name: str) -> Any:
        before = f.lag(name).over(in_order)
        return f.when(before.isNull(), 0).when(f.col(name) < before, f.col(name)).otherwise(f.col(name) - before)

    seconds = (f.unix_micros("ts") - f.lag(f.unix_micros("ts")).over(in_order)) / 1_000_000
    steps = once.select("*", grown("total").alias("more"), grown("fail").alias("failed"), seconds.alias("seconds"))
    return steps.groupBy(*_SUBJECT_COLUMNS, lake.utc_start("ts", 60).alias("window_start")).agg(
        f.sum("more").alias("msgs"), f.max("bytes").alias("bytes"), (f.sum("more") / 60).alias("tps_avg"),
        f.coalesce(f.max(f.col("more") / f.col("seconds")), f.lit(0.0)).alias("tps_max"), f.max_by("lag", "ts").alias("lag"),
        f.max_by("lag_s", "ts").alias("lag_s"), f.sum("failed").alias("fail"),
    )  # fmt: skip


def rolled(finer: DataFrame, unit: str) -> DataFrame:
    """Aggregate minutes to hours, or hours to days."""
    seconds = {"hour": 3600, "day": 86_400}[unit]
    return finer.groupBy(*_SUBJECT_COLUMNS, lake.utc_start("window_start", seconds).alias("start")).agg(
        f.sum("msgs").alias("msgs"), f.sum("bytes").alias("bytes"), (f.sum("msgs") / seconds).alias("tps_avg"),
        f.max("tps_max").alias("tps_max"), f.max_by("lag", "window_start").alias("lag"),
        f.max_by("lag_s", "window_start").alias("lag_s"), f.sum("fail").alias("fail"),
    ).withColumnRenamed("start", "window_start").select(*[c.strip().split(" ")[0] for c in MINUTES.split(",")])  # fmt: skip


def alerts(minutes: DataFrame, rules: DataFrame) -> DataFrame:
    """Return each firing and each clearing, once. subject: topic, group and broker; behind_s: see DEFAULT_RULES."""
    last5 = Window.partitionBy("topic", "broker_name").orderBy(f.unix_seconds("window_start")).rangeBetween(-240, 0)
    produced = minutes.where("group = ''").select(
        "topic", "broker_name", "window_start", (f.sum("msgs").over(last5) / 300).alias("rate"))  # fmt: skip
    rated = minutes.where("group != ''").join(produced, ["topic", "broker_name", "window_start"], "left")
    slowest = f.greatest(f.coalesce("rate", f.lit(0.0)), f.lit(1 / 300))
    with_lag = rated.withColumn("behind_s", f.col("lag") / slowest)
    value = f.coalesce(*[f.when(f.col("metric") == name, f.col(name).cast("double")) for name in METRICS])
    subject = f.concat_ws("/", *_SUBJECT_COLUMNS).alias("subject")
    measured = with_lag.crossJoin(f.broadcast(rules)).select(
        "window_start", "rule", "fire", "clear", subject, value.alias("value")
    )
    marked = measured.withColumn(
        "mark", f.when(f.col("value") >= f.col("fire"), "firing").when(f.col("value") <= f.col("clear"), "cleared"))  # fmt: skip
    in_order = Window.partitionBy("rule", "subject").orderBy("window_start")
    held = marked.withColumn(
        "state", f.last("mark", ignorenulls=True).over(in_order.rowsBetween(Window.unboundedPreceding, 0))
    )
    before = f.coalesce(f.lag("state").over(in_order), f.lit("cleared"))
    turned = held.withColumn("before", before).where("state is not null and state != before")
    threshold = f.when(f.col("state") == "firing", f.col("fire")).otherwise(f.col("clear")).alias("threshold")
    return turned.select(f.col("window_start").alias("ts"), "rule", "subject", "value", threshold, "state")


def ticks_of(spark: SparkSession, conf: StatsConf) -> DataFrame:
    """Return all ticks so far."""
    return lake.table(spark, conf.table("stats_ticks"), TICKS)


def build(spark: SparkSession, conf: StatsConf) -> DataFrame:
    """Return table `stats_1m`."""
    return stats_1m(ticks_of(spark, conf))


def poll(spark: SparkSession, conf: StatsConf) -> int:
    """Query the brokers and store the result; return the number of ticks."""
    now_ms = int(time.time() * 1000)
    ticks, brokers = collect.collect(conf.name_servers, now_ms)
    if conf.publish:
        bodies = [(collect.encode_tick(t), f"{t.topic}/{t.group}") for t in ticks]
        collect.publish(ConnectionOptions(conf.name_servers), conf.topic, bodies)
    if ticks:
        lake.write_part(frame_of(spark, ticks), conf.table("stats_ticks"), now_ms)
    if brokers:
        lake.write_part(frame_of(spark, brokers, BROKERS), conf.table("stats_brokers"), now_ms)
    return len(ticks)


def from_history(spark: SparkSession, conf: StatsConf) -> int:
    """Store the samples of the history file that are newer than all ticks; return the number of ticks. Raises ConfigError."""
    if conf.history is None or not conf.history.is_file():
        raise ConfigError(f"option --history={conf.history}: is no file; saturnmq collect writes one")
    last = ticks_of(spark, conf).agg(f.unix_seconds(f.max("ts"))).first()
    since, count = (last[0] + 1 if last and last[0] is not None else 0), 0
    with History(conf.history) as history:
        while (first := history.first_at(since)) is not None:
            since = first - first % HISTORY_SECONDS + HISTORY_SECONDS
            ticks = collect.ticks_of(history.samples(first, since))
            if ticks:
                lake.write_part(frame_of(spark, ticks), conf.table("stats_ticks"), first * 1000)
            count += len(ticks)
    return count


def frame_of(
    spark: SparkSession, entries: Sequence[collect.Tick | collect.RuntimeInfo], columns: str = TICKS
) -> DataFrame:
    """Return ticks, or runtime information, as rows."""
    frame = spark.createDataFrame(
        [tuple(vars(entry).values()) for entry in entries], columns.replace("ts timestamp", "ts bigint")
    )
    return frame.withColumn("ts", f.timestamp_millis("ts")).coalesce(1)


def ingest(spark: SparkSession, conf: StatsConf, step: Callable[[str], Any]) -> int:
    """Store the ticks that the topic received since the last run; return the number of messages.

    Invalid ones go to stats_ticks_bad.
    """
    rows = spark.readStream.format("rocketmq").options(
        nameServer=conf.name_servers, topic=conf.topic, startingOffsets="earliest",
        columns="topic,brokerName,queueId,queueOffset,body", **conf.loss_options).load()  # fmt: skip

    def write(batch: DataFrame, number: int) -> None:
        valid, invalid = [], []
        for row in batch.collect():  # a few hundred bytes per topic, group and minute
            try:
                valid.append(collect.decode_tick(bytes(row["body"])))
            except ValueError as error:
                invalid.append((*row[:4], str(error), bytes(row["body"])))
        lake.write_part(frame_of(spark, valid), conf.table("stats_ticks"), number)
        if invalid:
            columns = "topic string, broker_name string, queue_id int, queue_offset bigint, error string, body binary"
            lake.write_part(spark.createDataFrame(invalid, columns).coalesce(1), conf.table("stats_ticks_bad"), number)

    checkpoint, ticks = conf.table("_checkpoint_stats"), conf.table("stats_ticks")
    form, bad_ticks = ownership.BATCH_FOLDERS, conf.table("stats_ticks_bad")
    ownership.claim(ownership.Stream("stats", form, checkpoint, (ticks,), (bad_ticks,)), spark)
    writer = rows.writeStream.option("checkpointLocation", lake.startable(checkpoint)).foreachBatch(write)
    return running.watch(writer.trigger(availableNow=True).start(), step)


def tables(spark: SparkSession, conf: StatsConf, step: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Rebuild the tables from the ticks; return the new alerts."""
    minute, hour, day = (conf.table(name) for name in ("stats_1m", "stats_1h", "stats_1d"))
    step("stats_1m")
    lake.replace_table(build(spark, conf).coalesce(1), minute)
    step("stats_1h")
    lake.replace_table(rolled(lake.table(spark, minute, MINUTES), "hour").coalesce(1), hour)
    lake.replace_table(rolled(lake.table(spark, hour, MINUTES), "day").coalesce(1), day)
    step("alerts")
    before = {_identity(row) for row in lake.head(spark, conf.table("alerts"), ROWS_MAX)}
    minutes = lake.table(spark, conf.table("stats_1m"), MINUTES)
    lake.replace_table(
        alerts(minutes, spark.createDataFrame(list(conf.rules), RULES)).coalesce(1), conf.table("alerts")
    )
    now = sorted(lake.head(spark, conf.table("alerts"), ROWS_MAX), key=lambda row: str(row["ts"]))
    return [row for row in now if _identity(row) not in before]


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["ts"], row["rule"], row["subject"], row["state"]


def run(spark: SparkSession, conf: StatsConf, step: Callable[[str], Any]) -> PipelineOutcome:
    """Run the pipeline; with an interval, repeatedly."""
    return running.repeated(conf, lambda: once(spark, conf, step), step)


def once(spark: SparkSession, conf: StatsConf, step: Callable[[str], Any]) -> PipelineOutcome:
    """Store new ticks, then write the tables, the alerts and the report."""
    step("asking brokers" if conf.mode == "poll" else "reading ticks")
    if conf.mode == "poll":
        count = poll(spark, conf)
    else:
        count = from_history(spark, conf) if conf.mode == "history" else ingest(spark, conf, step)
    bad_ticks = lake.count(spark, conf.table("stats_ticks_bad"))
    conf.check_bad(bad_ticks, "stats_ticks_bad")
    new_alerts = tables(spark, conf, step)
    if conf.alert_topic and new_alerts:
        alerts = [(json.dumps(row | {"ts": row["ts"].isoformat()}).encode(), row["subject"]) for row in new_alerts]
        collect.publish(ConnectionOptions(conf.name_servers), conf.alert_topic, alerts)
    minutes = sorted(lake.head(spark, conf.table("stats_1m"), ROWS_MAX), key=lambda row: str(row["window_start"]))
    every = sorted(lake.head(spark, conf.table("alerts"), ROWS_MAX), key=lambda row: str(row["ts"]))
    last = {tuple(row[name] for name in _SUBJECT_COLUMNS): row for row in minutes}
    lag = sum(row["lag"] or 0 for row in last.values())
    facts = {"topics": len({subject[0] for subject in last}), "groups": len({subject[1] for subject in last} - {""}), "lag": lag,
             "alerts": len(every), "minutes": len({row["window_start"] for row in minutes})}  # fmt: skip
    page = report.write(conf.lake, "stats", "Throughput and lag", facts, figures(minutes),
                        {"alerts": every, "as of the last minute": list(last.values())})  # fmt: skip
    message = f"{count} new ticks; {lag} messages behind in all; {len(new_alerts)} new alerts"
    return PipelineOutcome(count, len(minutes), bad_ticks, lag, message, page, {"alerts": len(new_alerts)})


def figures(minutes: list[dict[str, Any]]) -> list[report.Figure]:
    """Return the charts of the report."""

    def series(column: str, *, of_groups: bool) -> dict[str, tuple[list[Any], list[Any]]]:
        lines: dict[str, tuple[list[Any], list[Any]]] = {}
        for row in minutes:
            if bool(row["group"]) == of_groups:
                name = " ".join(filter(None, (row["topic"], row["group"], row["broker_name"])))
                x, y = lines.setdefault(name, ([], []))
                x.append(row["window_start"])
                y.append(row[column])
        return lines

    return [report.lines("Messages produced per second", series("tps_avg", of_groups=False), "messages/s"),
            report.lines("Messages consumed per second", series("tps_avg", of_groups=True), "messages/s"),
            report.lines("Messages behind", series("lag", of_groups=True), "messages")]  # fmt: skip


def read_rules(path: str) -> tuple[tuple[str, str, float, float], ...]:
    """Read rules from a JSON file: [{"rule": ..., "metric": ..., "fire": ..., "clear": ...}].

    Raises ConfigError naming the rule.
    """
    try:
        entries = json.loads(Path(path).read_text())
        rules = tuple((str(r["rule"]), str(r["metric"]), float(r["fire"]), float(r["clear"])) for r in entries)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"option --rules={path}: must be a JSON list of rule, metric, fire, clear: {error!r}"
        ) from error
    for rule, metric, fire, clear in rules:
        if metric not in METRICS:
            raise ConfigError(
                f"option --rules={path}: rule {rule!r}: metric {metric!r}; allowed are {', '.join(METRICS)}"
            )
        if clear >= fire:
            raise ConfigError(f"option --rules={path}: rule {rule!r}: clear={clear} must be below fire={fire}")
    return rules


def options(p: argparse.ArgumentParser) -> None:
    """Add the pipeline's own options."""
    running.broker_options(p)
    p.add_argument(
        "--mode",
        choices=["poll", "topic", "history"],
        default="poll",
        help="ask brokers, or read ticks from a topic or a history file (default poll)",
    )
    p.add_argument("--history", metavar="FILE", type=Path, help="with --mode history: the collector's file")
    p.add_argument("--topic", default="SATURN_STATS", help="topic of ticks (default %(default)s)")
    p.add_argument("--publish", action="store_true", help="with --mode poll: also send the ticks to the topic")
    p.add_argument("--rules", metavar="FILE", help="alert rules, a JSON list of rule, metric, fire, clear")
    p.add_argument(
        "--alert-topic", default="SATURN_ALERT", metavar="TOPIC", help="where new alerts go (default %(default)s)"
    )
    p.add_argument(
        "--no-alert-topic", dest="alert_topic", action="store_const", const=None, help="alerts only into the table"
    )
    running.loss_option(p)
    running.trigger_option(p)


def conf_of(args: argparse.Namespace) -> StatsConf:
    """Build the configuration from the command line. Raises ConfigError."""
    rules = read_rules(args.rules) if args.rules else DEFAULT_RULES
    return StatsConf(**running.common(args), mode=args.mode, topic=args.topic, history=args.history, rules=rules,
                     alert_topic=args.alert_topic, publish=args.publish)  # fmt: skip


PIPELINE: Final = Pipeline(
    "stats",
    SUMMARIES["stats"],
    {
        "brokers": "with --mode poll: their counters and runtime information",
        "TOPIC": "with --mode topic: ticks",
        "FILE": "with --mode history: the samples of `saturnmq collect`; the column broker_name holds the cluster",
    },
    {
        "stats_ticks": TICKS,
        "stats_brokers": BROKERS,
        "stats_1m": MINUTES,
        "stats_1h": MINUTES,
        "stats_1d": MINUTES,
        "alerts": ALERTS,
    },
    "ticks that are late, doubled or missing change no sum; an alert fires once and clears once",
    options,
    conf_of,
    build,
    run,
)

if __name__ == "__main__":
    from saturnmq.spark.pipelines import main

    sys.exit(main(["stats", *sys.argv[1:]]))
