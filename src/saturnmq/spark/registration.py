"""Registers the data source classes with a Spark session, classic or Spark Connect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from pyspark.sql import SparkSession

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.installed_python import planners_use_installed
from saturnmq.spark.options import MAPPERS_ENVIRONMENT, mapper_names
from saturnmq.spark.session_kind import is_connect
from saturnmq.spark.shipped import planners_see_shipped
from saturnmq.spark.source import RocketMQDataSource, SaturnMQDataSource

Mapper = str | Callable[..., Any]


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
