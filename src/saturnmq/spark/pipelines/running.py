"""Common parts of all pipelines: options, session, progress, the result line and the exit codes.

Requirements: PIP-01, PIP-05, PIP-06, SPK-14.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from saturnmq.config.settings import without_credentials
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.spark import session
from saturnmq.spark.fetch import DataLossError
from saturnmq.spark.local_paths import local_path, path_or_url
from saturnmq.spark.offset_tracker import stop_all
from saturnmq.spark.option_table import duration_ms, flag
from saturnmq.spark.pipelines.ownership import LocalFiles
from saturnmq.spark.progress import ProgressReport
from saturnmq.spark.stream_advice import advice_of

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_DATA_LOSS: Final = 3
QUIET: Final = "FATAL"  # Spark would log every error with its stack; the run reports the cause in one line
LOSSES: Final = "_data_loss"  # folder of the lake with one JSON file per skipped loss
POLL_SECONDS: Final = 0.5
FOLLOW_MS: Final = 10_000
INTERVAL_MS_MIN: Final = 1000  # a micro-batch takes about that long, whatever it holds (STR-18)
BORDER_SECONDS: Final = 25.0
_CAUSE: Final = re.compile(
    r"^(?:[\w.]*\.)?(\w+(?:Error|Exception|Failed|Refused|Record|Loss|Full)): (.+)$", re.MULTILINE
)
_OWN_CAUSE: Final = re.compile(
    r"\bsaturnmq(?:\.\w+)+\.(\w+): (.+)$", re.MULTILINE
)  # also behind text of Spark in its line
C = TypeVar("C", bound="Conf")
STOP: Final = threading.Event()  # set by SIGTERM and SIGINT: stop between two batches (SPK-14)


class BadRowsError(SaturnError):
    """More rows are bad than --max-bad allows: the run failed, its options are valid (PIP-05)."""


@dataclass(frozen=True)
class Conf:
    """Configuration of every pipeline. lake: folder of its tables. interval_ms: None for a single run.

    fail_on_data_loss: whether a stream ends when brokers no longer have messages that it has not read.
    """

    name_servers: str = ""
    lake: str = ""
    interval_ms: int | None = None
    max_bad: int | None = None
    fail_on_data_loss: bool = field(default=True, kw_only=True)

    def table(self, name: str) -> str:
        """Return the path of a table of the lake."""
        return f"{self.lake.rstrip('/')}/{name}"

    @property
    def loss_options(self) -> dict[str, str]:
        """Options of a stream source: fail at data loss, or skip it; a lake on a local disk keeps a file per loss."""
        if self.fail_on_data_loss:
            return {}
        return {"failOnDataLoss": "false"} | (
            {"dataLossLog": self.table(LOSSES)} if local_path(self.lake) is not None else {}
        )

    def check_bad(self, bad_rows: int, table: str) -> None:
        """Raise BadRowsError when this number of bad rows, which are in the named table, exceeds the limit."""
        if self.max_bad is not None and bad_rows > self.max_bad:
            raise BadRowsError(
                f"{bad_rows} rows are bad, option --max-bad={self.max_bad} allows fewer: see {self.table(table)}"
            )


@dataclass
class PipelineOutcome:
    """Result of one run. lag: unread messages of its input, None where that does not apply."""

    rows_in: int = 0
    rows_out: int = 0
    bad_rows: int = 0
    lag: int | None = None
    message: str = ""
    report: str | None = None
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pipeline(Generic[C]):
    """Definition of a pipeline: its texts, options and functions.

    inputs, outputs: name of a table or topic -> columns or meaning.
    """

    name: str
    summary: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    guarantee: str
    options: Callable[[argparse.ArgumentParser], None]
    conf: Callable[[argparse.Namespace], C]
    build: Callable[[SparkSession, C], DataFrame | StreamingQuery]
    run: Callable[[SparkSession, C, Callable[[str], Any]], PipelineOutcome]
    needs_lake: bool = True
    # the outcome if nothing is new, without a session
    caught_up: Callable[[C], PipelineOutcome | None] = lambda _conf: None


def overview(pipelines: Sequence[Pipeline[Any]]) -> str:
    """Return the list of pipelines."""
    lines = [
        "usage: saturnmq spark PIPELINE ..., saturnmq spark archive URL, saturnmq spark pack OUT, saturnmq spark --check",
        "",
    ]
    lines += [f"  {p.name:8} {p.summary}" for p in pipelines]
    return "\n".join([*lines, "", "saturnmq spark PIPELINE --help shows inputs, outputs and guarantees"])


def parser_of(pipeline: Pipeline[Any]) -> argparse.ArgumentParser:
    """Return a parser of the common options and the pipeline's own (PIP-01)."""
    tables = [f"  {kind}  {name}: {meaning}" for kind, named in (("in ", pipeline.inputs), ("out", pipeline.outputs))
              for name, meaning in named.items()]  # fmt: skip
    p = argparse.ArgumentParser(
        prog=f"saturnmq spark {pipeline.name}",
        description=f"{pipeline.summary[0].upper()}{pipeline.summary[1:]}.",
        epilog="\n".join(["inputs and outputs:", *tables, "", f"guarantee: {pipeline.guarantee}"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--lake", "--out", required=pipeline.needs_lake, default="", metavar="DIR",
                   help="folder of the tables, a path or URI")  # fmt: skip
    pipeline.options(p)
    p.add_argument("--max-bad", type=int, metavar="N", help="stop when more than N rows are bad (default: never)")
    p.add_argument("--master", help="where Spark runs (default local[2])")
    p.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    p.add_argument("--json", action="store_true", help="the result as one JSON document")
    p.add_argument("--quiet", action="store_true", help="no progress")
    return p


def broker_options(p: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the options that locate the brokers."""
    p.add_argument("--name-servers", "--nameserver", required=required, default="", metavar="HOST:PORT;...",
                   help="name servers of the cluster")  # fmt: skip


def catalog_options(p: argparse.ArgumentParser) -> None:
    """Add the options that locate an Iceberg table."""
    p.add_argument("--catalog", metavar="URI|NAME", help="Iceberg: the catalog, such as postgresql+psycopg2://..., or its "
                   "name in pyiceberg's configuration (default an SQLite file, LAKE/catalog.db)")  # fmt: skip
    p.add_argument("--namespace", metavar="NAME", help="Iceberg: namespace of the table (default saturnmq)")


def trigger_option(p: argparse.ArgumentParser) -> None:
    """Add the options that choose a single run or a repeated one."""
    p.add_argument(
        "--trigger", default="once", metavar="once|30s", help="end when caught up, or go on at this interval"
    )
    p.add_argument("--follow", action="store_true", help="the same as --trigger 10s")


def loss_option(p: argparse.ArgumentParser) -> None:
    """Add the option about messages that brokers no longer have."""
    p.add_argument(
        "--fail-on-data-loss", default="true", metavar="true|false",
        help=f"end with exit code 3 when messages were deleted before they were read or a topic was created again; false: go on "
        f"behind the loss and record it in LAKE/{LOSSES} (default true)",
    )  # fmt: skip


def interval_ms_of(args: argparse.Namespace) -> int | None:
    """Return the interval between two runs, None for a single run. Raises ConfigError."""
    if args.trigger.strip().lower() == "once":
        return FOLLOW_MS if args.follow else None
    try:
        return int(duration_ms(INTERVAL_MS_MIN)(args.trigger))
    except ValueError:
        raise ConfigError(
            f"option --trigger={args.trigger}: must be once (availableNow), or a time of at least 1s, such as 30s or 5min "
            "(processingTime); there are no continuous and no real-time triggers"
        ) from None


def parsed(option: str, text: str, parse: Callable[[str], Any]) -> Any:
    """Return the value of an option of the command line. Raises ConfigError."""
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"option {option}={without_credentials(text)}: {error}") from None


def common(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of Conf from the command line."""
    return {
        "name_servers": getattr(args, "name_servers", ""),
        "lake": parsed("--lake", args.lake, path_or_url),
        "interval_ms": interval_ms_of(args) if hasattr(args, "trigger") else None,
        "max_bad": args.max_bad,
        "fail_on_data_loss": parsed("--fail-on-data-loss", getattr(args, "fail_on_data_loss", "true"), flag),
    }


def _settings(args: argparse.Namespace) -> dict[str, str]:
    settings = {"spark.log.level": QUIET}
    if args.master:
        settings["spark.master"] = args.master
    for text in args.conf:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"option --conf={text}: must be KEY=VALUE")
        settings[name] = value
    return settings


def run(pipeline: Pipeline[Any], argv: Sequence[str]) -> int:
    """Run a pipeline from the command line; return 0 done, 1 failed, 3 data loss. ConfigError (usage, 2) is left to the caller."""
    args = parser_of(pipeline).parse_args(argv)
    conf = pipeline.conf(args)
    settings = _settings(args)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # py4j logs every call between Python and Java
    began = time.monotonic()
    try:
        outcome = pipeline.caught_up(conf) or _in_session(pipeline, conf, settings, args)
    except (PySparkException, Py4JError, DataLossError, BadRowsError) as error:
        kind, cause = cause_of(error)
        if kind == ConfigError.__name__:
            raise ConfigError(cause) from error
        if kind == DataLossError.__name__ and hasattr(args, "fail_on_data_loss"):
            record = f", which records it in {conf.table(LOSSES)}" if local_path(conf.lake) is not None else ""
            cause += f"; to go on behind the loss run the same command with --fail-on-data-loss false{record}"
        print(f"saturnmq spark {pipeline.name}: {cause}", file=sys.stderr, flush=True)
        return EXIT_DATA_LOSS if kind == DataLossError.__name__ else EXIT_FAILED
    say(pipeline.name, outcome, time.monotonic() - began, as_json=args.json)
    return EXIT_DONE


def _in_session(
    pipeline: Pipeline[C], conf: C, settings: Mapping[str, str], args: argparse.Namespace
) -> PipelineOutcome:
    """Run the pipeline in a session of its own."""
    spark = session(f"saturnmq-{pipeline.name}", name_server=conf.name_servers or None, **settings)
    try:
        with stoppable(hasattr(args, "trigger")), watched(spark, pipeline.name, quiet=args.quiet or args.json) as step:
            before = _losses(conf)
            outcome = pipeline.run(spark, conf, step)
            if count := len(_losses(conf) - before):
                outcome.more["data_losses"] = count
                outcome.message += f"\n{count} losses were skipped: see {conf.table(LOSSES)}"
            return outcome
    finally:
        with suppress(Py4JError, OSError):  # the JVM may already have exited
            spark.stop()
        stop_all()


def _losses(conf: Conf) -> set[str]:
    """Return the names of the recorded losses of a lake on a local disk."""
    return set(LocalFiles().names(conf.table(LOSSES))) if conf.lake and local_path(conf.lake) is not None else set()


def say(name: str, outcome: PipelineOutcome, seconds: float, *, as_json: bool) -> None:
    """Print the result: a sentence and one JSON line, or one JSON document (PIP-06)."""
    row = {
        "pipeline": name, "run": uuid.uuid4().hex[:12], "rows_in": outcome.rows_in, "rows_out": outcome.rows_out,
        "bad": outcome.bad_rows, "lag": outcome.lag, "seconds": round(seconds, 1), **outcome.more,
    }  # fmt: skip
    if outcome.report:
        row["report"] = outcome.report
    if as_json:
        print(json.dumps({"schema": 1, "command": f"spark {name}", "rows": [row]}), flush=True)
        return
    if outcome.message:
        print(outcome.message, flush=True)
    if outcome.report:
        print(f"report: {outcome.report}", flush=True)
    print(json.dumps(row), flush=True)


def cause_of(error: BaseException) -> tuple[str, str]:
    """Return (class name, message) of the root cause, extracted from the text that Spark wraps it in."""
    if isinstance(error, DataLossError | ConfigError | BadRowsError):
        return type(error).__name__, str(error)
    advice = advice_of(str(error))
    if advice is not None:
        return type(error).__name__, advice
    causes: list[tuple[str, str]] = _OWN_CAUSE.findall(str(error))
    if causes:
        return causes[-1]
    all_causes: list[tuple[str, str]] = _CAUSE.findall(str(error))
    causes = [
        (kind, text) for kind, text in all_causes if not kind.startswith(("PySpark", "Spark", "Py4J", "Streaming"))
    ]
    if causes:
        return causes[-1]
    return type(error).__name__, str(error).strip().split("\n", 1)[0]


@contextmanager
def watched(spark: SparkSession, title: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show Spark's finished tasks until the block ends; yield a function that sets the current step."""
    stopped = threading.Event()
    state = {"title": "starting"}

    def poll() -> None:
        tracker = spark.sparkContext.statusTracker()
        counted: dict[int, int] = {}
        with ProgressReport(title, quiet=quiet, unit="tasks") as report:
            while not stopped.wait(POLL_SECONDS):
                try:
                    for stage in tracker.getActiveStageIds():
                        info = tracker.getStageInfo(stage)
                        if info is not None:
                            counted[stage] = info.numCompletedTasks
                except (Py4JError, OSError):
                    return
                report.rename(f"{title}: {state['title']}")
                report.at(sum(counted.values()))

    thread = threading.Thread(target=poll, name="saturnmq-progress", daemon=True)
    if not quiet:
        thread.start()
    try:
        yield lambda step_title: state.update(title=step_title)
    finally:
        stopped.set()
        if not quiet:
            thread.join(5.0)


def watch(query: StreamingQuery, step: Callable[[str], Any]) -> int:
    """Wait for a streaming query and show how many rows it has read; return that number. Raises the error that failed it."""
    rows_by_batch: dict[int, int] = {}
    while True:
        ended = query.awaitTermination(1)
        if STOP.is_set() and not ended:
            stop_at_border(query)
            ended = True
        for progress in query.recentProgress:
            rows_by_batch[int(progress["batchId"])] = int(progress["numInputRows"])
        step(f"{sum(rows_by_batch.values()):,} rows")
        if ended:
            return sum(rows_by_batch.values())


def repeated(conf: Conf, once: Callable[[], PipelineOutcome], step: Callable[[str], Any]) -> PipelineOutcome:
    """Return the outcome of one run; with an interval, repeat until SIGTERM or Ctrl-C and return the last outcome (SPK-14)."""
    outcome = once()
    if conf.interval_ms is None:
        return outcome
    seconds = conf.interval_ms / 1000
    step(f"waiting {seconds:g} s")
    while not STOP.wait(seconds):
        outcome = once()
        step(f"waiting {seconds:g} s")
    return outcome


@contextmanager
def stoppable(yes: bool) -> Iterator[None]:
    """Make SIGTERM and Ctrl-C set STOP instead of ending the process, for pipelines that can stop between batches."""
    if not yes:
        yield
        return
    STOP.clear()
    before = {number: signal.signal(number, lambda *_: STOP.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        STOP.clear()


def stop_at_border(query: StreamingQuery, seconds: float = BORDER_SECONDS) -> None:
    """Stop a query when its running batch has ended, or after `seconds`: the next run repeats a batch that was cut off."""
    until = time.monotonic() + seconds
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
        time.sleep(0.05)
    query.stop()
