"""Spark with SaturnMQ and with Kafka: the same rows, the same machine, the same minutes.

    python bench/spark.py [--quick] [--write] [--rounds N] [--rows N] [--only WORDS]

A Kafka node and Spark's own connector for it come from Maven. Both brokers run side by side; every case is measured in alternating
rounds.

Requirements: SPP-01..SPP-11.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "tests" / "interop"), str(REPOSITORY / "tests"), str(REPOSITORY / "bench")]

import javatools  # noqa: E402 - needs the path set above
import pyspark  # noqa: E402
from apache import ApacheCluster  # noqa: E402
from rich.console import Console  # noqa: E402
from saturn import SaturnCluster  # noqa: E402

import kafkanode  # noqa: E402
import report  # noqa: E402
import spark_cases  # noqa: E402
import spark_pulls  # noqa: E402
import spark_report  # noqa: E402
from measure import APACHE_HEAP_MB  # noqa: E402

CORES = 2
STANDARD = {"storeProfile": "standard", "flushDiskType": "ASYNC_FLUSH"}
BAR_MB_PER_S = 300.0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100,000 rows, one round; says little")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-spark.md")
    parser.add_argument("--rounds", type=int, help="rounds per case (default 5)")
    parser.add_argument("--rows", type=int, help="rows of a topic (default 1,000,000)")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="only cases whose name contains one, e.g. SPP-02,sink"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single measurement")
    return parser.parse_args()


def facts(plan: spark_cases.Plan) -> list[str]:
    """Return the facts needed to interpret the figures."""
    return [
        *(fact for fact in report.machine() if not fact.startswith("Apache")),
        f"Spark: PySpark {pyspark.__version__}, local[{CORES}], 2 GB driver; Kafka: {kafkanode.versions()}, "
        f"{kafkanode.HEAP_MB} MB heap, {javatools.java_version_text()}",
        f"plan: {plan.rows:,} rows of {' and '.join(map(str, plan.sizes))} bytes, {kafkanode.QUEUES} queues or partitions, "
        f"a warm-up, then {plan.rounds} rounds, alternating; Spark and brokers share {CORES} processors",
    ]


def measure(plan: spark_cases.Plan, console: Console) -> spark_report.Results:
    """Run all cases; the servers are stopped at the end."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:CORES]))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="saturnmq-bench-spark-")))
        status = stack.enter_context(console.status("fetching Kafka and its connector (Maven)"))
        connector = kafkanode.jars()[1]
        javatools.classpath()
        status.update("starting the brokers")
        saturn = stack.enter_context(SaturnCluster(folder / "saturnmq", settings=STANDARD))
        kafka = stack.enter_context(kafkanode.KafkaNode(folder / "kafka"))
        apache = None
        if not plan.quick or "Apache" in plan.only:
            conf = {"flushDiskType": "ASYNC_FLUSH"}
            made = ApacheCluster(folder / "apache", settings=conf, heap_mb=APACHE_HEAP_MB, small_store=False)
            apache = stack.enter_context(made)
        status.update("starting Spark")
        spark = spark_cases.make_session(connector, folder / "local")
        stack.callback(spark.stop)
        bench = spark_cases.SparkBench(plan, spark, saturn, kafka, folder, status.update, apache)
        results = bench.run()
        if plan.wants("SPP-11 pulls"):
            status.update("pulls from our broker")
            for size in plan.sizes:
                rates = spark_pulls.rates(saturn, f"Rows{size}", rounds=max(plan.rounds, 3))
                results.figures.append(("SPP-11", f"pulls on loopback, {size} B", rates, "MB/s", BAR_MB_PER_S))
        results.facts = facts(plan)
        return results


def main() -> int:
    args = options()
    console = Console()
    reason = javatools.why_not()
    if reason:
        console.print(f"make bench-spark was {reason}")
        return 0
    plan = spark_cases.Plan.of(quick=args.quick, rounds=args.rounds, rows=args.rows, only=args.only)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stop the servers on the way out
    results = measure(plan, console)
    console.print(spark_report.table(results))
    for line in [*spark_report.figure_lines(results), *results.facts]:
        console.print(line, style="dim")
    console.print(f"other work: at most {results.others(os.cpu_count() or 1):.0%} of the processors", style="dim")
    if args.json:
        args.json.write_text(json.dumps(spark_report.as_dict(results), indent=1))
    if args.write:
        target = REPOSITORY / "docs" / "benchmarks-spark.md"
        target.write_text(spark_report.markdown(results, NOTES, os.cpu_count() or 1))
        console.print(f"written: {target.relative_to(REPOSITORY)}")
    wrong = results.unequal() + [f"{row.name}: {why}" for row in results.rows for why in row.failures.values()]
    for line in wrong:
        console.print(line, style="red")
    return 1 if wrong else 0


NOTES = (
    "One Spark session reads and writes both: SaturnMQ by this package (Python, Arrow), Kafka by Spark's own connector (JVM). "
    "Both topics were filled with the same rows from the same Parquet files by the sinks.",
    "A rate is rows of the topic by seconds of the whole query, planning included; filtered reads count the rows of the topic, "
    "not those that come out. The same numbers of rows came out on both sides, checked in the warm-up.",
    "**Spark CPU s/M**: processor seconds per million rows of driver, JVM and Python workers, user and system; **broker CPU s/M** "
    "of the broker's process. Spark and broker share the processors, so both slow the query.",
    "Default columns are 12 with SaturnMQ and 7 with Kafka. SaturnMQ's records also hold a message id, tag, keys and hosts.",
    "to Python as Arrow: each Arrow batch is handed to a Python function that adds up body lengths; with Kafka by mapInArrow, "
    "with SaturnMQ in the reader (option mapArrow), which saves the way through the JVM.",
    "1 % by tag: our broker filters; Kafka has no filter, so everything is read and Spark filters by the key, which begins with "
    "the tag. One key: likewise.",
    "sink: from Parquet, every message acknowledged (ack=stored; Kafka's producer with its defaults), with tags, without keys, "
    "which Kafka does not index and our broker does: the line below it shows them.",
    "files reads the broker's store without the broker and is compared with Kafka's batch of the first row.",
    "What Kafka does better: no hop through Python, so micro-batches cost less; real-time mode; continuous optimisation by the "
    "JVM; and column pruning by itself, where ours needs option `columns` or a schema.",
)


if __name__ == "__main__":
    sys.exit(main())
