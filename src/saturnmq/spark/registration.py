"""Registers the data source classes with a Spark session, classic or Spark Connect.

Requirements: SCL-02, SPK-09.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.installed_python import planners_use_installed
from saturnmq.spark.options import MAPPERS_ENVIRONMENT, mapper_names
from saturnmq.spark.session_kind import is_connect
from saturnmq.spark.source import RocketMQDataSource, SaturnMQDataSource

if TYPE_CHECKING:
    from pyspark import SparkContext

Mapper = str | Callable[..., Any]
_PATH: Final = "PYTHONPATH"


def register_formats(spark: SparkSession, mappers: Iterable[Mapper] = ()) -> None:
    """Register the formats `rocketmq` and `saturnmq`. mappers: functions that option mapArrow may name. Raises ConfigError.

    A Connect session has no SparkContext whose planners could be prepared: its server runs them with the server's own Python.
    """
    permitted_mappers = [*mapper_names(os.environ.get(MAPPERS_ENVIRONMENT, "")), *map(mapper_name, mappers)]
    with ExitStack() as planner_environment:
        if not is_connect(spark):
            planner_environment.enter_context(planners_see_shipped(spark.sparkContext))
            planner_environment.enter_context(planners_use_installed(spark.sparkContext))
        for source_class in (RocketMQDataSource, SaturnMQDataSource):
            spark.dataSource.register(with_mappers(source_class, permitted_mappers))


def mapper_name(mapper: Mapper) -> str:
    """`module:function` of a function that workers can import. Raises ConfigError for a function that they cannot."""
    if isinstance(mapper, str):
        return mapper
    name = getattr(mapper, "__qualname__", "")
    if not name.isidentifier() or mapper.__module__ == "__main__":
        raise ConfigError(
            f"mappers: {mapper!r:.100} must be a function at the top level of a module that workers can import"
        )
    return f"{mapper.__module__}:{name}"


def with_mappers(source_class: type[RocketMQDataSource], permitted_mappers: Sequence[str]) -> type[RocketMQDataSource]:
    """Return a data source class whose option mapArrow permits these mappers; `source_class` itself if there are none.

    A subclass that no module contains is pickled by value, so that the names reach planners also where the driver cannot set
    their environment, as with Spark Connect. Its base is still imported by name.
    """
    return (
        type(source_class.__name__, (source_class,), {"mappers": tuple(permitted_mappers)})
        if permitted_mappers
        else source_class
    )


@contextmanager
def planners_see_shipped(context: SparkContext) -> Iterator[None]:
    """Register data sources inside this block with the driver's copies of shipped zips and folders in PYTHONPATH.

    Spark adds such files to tasks and to planners of batches, but the planner of a stream does not import from them. On
    executors these paths do not exist, which is harmless.
    """
    from pyspark import SparkFiles  # which a client of Spark Connect alone does not have

    inner: Any = context
    environment: dict[str, str] = inner.environment
    before = environment.get(_PATH)
    shipped = [path for name in inner._python_includes if Path(path := SparkFiles.get(name)).exists()]
    if shipped:
        folder = [SparkFiles.getRootDirectory()]  # single modules
        environment[_PATH] = os.pathsep.join([*shipped, *folder, *([before] if before else [])])
    try:
        yield
    finally:
        environment.pop(_PATH, None)
        if before is not None:
            environment[_PATH] = before
