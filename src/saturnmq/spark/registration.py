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
    """Register the formats `rocketmq` and `saturnmq`. mappers: what option mapArrow may name. Raises ConfigError.

    A Connect session has no SparkContext: its server runs planners and workers with the server's own Python.
    """
    names = [*mapper_names(os.environ.get(MAPPERS_ENVIRONMENT, "")), *map(mapper_name, mappers)]
    with ExitStack() as settings:
        if not is_connect(spark):
            settings.enter_context(planners_see_shipped(spark.sparkContext))
            settings.enter_context(planners_use_installed(spark.sparkContext))
        for kind in (RocketMQDataSource, SaturnMQDataSource):
            spark.dataSource.register(permitting(kind, names))


def mapper_name(mapper: Mapper) -> str:
    """`module:function` of a function that workers can import. Raises ConfigError for any other."""
    if isinstance(mapper, str):
        return mapper
    name = getattr(mapper, "__qualname__", "")
    if not name.isidentifier() or mapper.__module__ == "__main__":
        raise ConfigError(
            f"mappers: {mapper!r:.100} must be a function at the top level of a module that workers can import"
        )
    return f"{mapper.__module__}:{name}"


def permitting(kind: type[RocketMQDataSource], names: Sequence[str]) -> type[RocketMQDataSource]:
    """Return the data source class that accepts these values of option mapArrow.

    A subclass that no module contains is pickled by value, so that the names reach planners also where the driver cannot set
    their environment, as with Spark Connect. Its base is still imported by name.
    """
    return type(kind.__name__, (kind,), {"mappers": tuple(names)}) if names else kind
