"""`saturnmq spark --check`: reports versions, Java and the decoder, and sends one row through a worker.

Requirements: SPK-13.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence

import pyarrow
import pyspark
from pyspark.sql import SparkSession

from saturnmq import __version__
from saturnmq.spark import session


def facts(spark: SparkSession) -> dict[str, str]:
    """Return the versions and the state of the worker. Raises Spark's error when a worker fails."""
    system = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    row = spark.sparkContext.parallelize([20], 1).map(lambda n: n + 22).collect()[0]
    return {
        "saturnmq": __version__,
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "java": str(system.getProperty("java.version")),
        "java_home": str(system.getProperty("java.home")),
        "decoder": "numpy and pyarrow",
        "worker": "works" if row == 42 else f"says {row} for 42",
    }


def main(argv: Sequence[str]) -> int:
    """Print the report; return 0 when everything works, else 1."""
    p = argparse.ArgumentParser(prog="saturnmq spark --check", description="Check what Spark needs.")
    p.add_argument("--json", action="store_true", help="one JSON document")
    p.add_argument("--quiet", action="store_true", help="no effect: nothing else is printed")
    args = p.parse_args(argv)
    spark = session("saturnmq-check")
    try:
        environment = facts(spark)
    finally:
        spark.stop()
    if args.json:
        print(json.dumps({"schema": 1, "command": "spark --check", "rows": [environment]}), flush=True)
    else:
        print("\n".join(f"{name:10} {value}" for name, value in environment.items()), flush=True)
    return 0 if environment["worker"] == "works" else 1
