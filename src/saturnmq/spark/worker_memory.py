"""Leaves what a Spark worker or planner has imported out of its garbage collections.

PySpark keeps workers for further tasks and runs a full collection after each: 40 ms of processor time for the 90,000 objects of
pyspark, pandas, pyarrow and this package, which is as much as a task takes for 20,000 rows. Planners collect likewise, and while
they import.

Requirements: SPP-02, SPP-05.
"""

from __future__ import annotations

import functools
import gc
import sys


def in_spark_process() -> bool:
    """Whether Spark started this process: `python -m pyspark.daemon`, or another pyspark runner."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


@functools.cache
def freeze_imports(kind: str) -> None:
    """Exempt what exists now from garbage collection; tasks call it before they make objects.

    kind: of task; only the first task of each kind has an effect, as it has just imported what tasks of this kind need.
    """
    if in_spark_process():
        gc.freeze()
