"""Makes files of `--py-files` importable in the processes that plan streams.

Requirements: SCL-02, SPK-09.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

PATH = "PYTHONPATH"


@contextmanager
def planners_see_shipped(context: SparkContext) -> Iterator[None]:
    """Register data sources inside this block with the driver's copies of shipped zips and folders in PYTHONPATH.

    Spark adds such files to tasks and to planners of batches, but the planner of a stream does not import from them. On
    executors these paths do not exist, which is harmless.
    """
    from pyspark import SparkFiles

    inner: Any = context
    environment: dict[str, str] = inner.environment
    before = environment.get(PATH)
    shipped = [path for name in inner._python_includes if Path(path := SparkFiles.get(name)).exists()]
    if shipped:
        folder = [SparkFiles.getRootDirectory()]  # single modules
        environment[PATH] = os.pathsep.join([*shipped, *folder, *([before] if before else [])])
    try:
        yield
    finally:
        environment.pop(PATH, None)
        if before is not None:
            environment[PATH] = before
