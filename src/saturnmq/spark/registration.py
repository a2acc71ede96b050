"""Registers the data source classes with a Spark session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.options import MAPPERS_ENVIRONMENT
from saturnmq.spark.shipped import planners_see_shipped
from saturnmq.spark.source import RocketMQDataSource, SaturnMQDataSource

Mapper = str | Callable[..., Any]


def register_formats(spark: SparkSession, mappers: Iterable[Mapper] = ()) -> None:
    """Register the formats `rocketmq` and `saturnmq`. mappers: what option mapArrow may name. Raises ConfigError."""
    names = [mapper_name(mapper) for mapper in mappers]
    with planners_see_shipped(spark.sparkContext), planners_permit(spark.sparkContext, names):
        spark.dataSource.register(RocketMQDataSource)
        spark.dataSource.register(SaturnMQDataSource)


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


@contextmanager
def planners_permit(context: Any, names: list[str]) -> Iterator[None]:
    """Data sources registered inside this block accept these values of option mapArrow, besides those of the environment."""
    environment: dict[str, str] = context.environment
    before = environment.get(MAPPERS_ENVIRONMENT)
    given = [name for name in (before, os.environ.get(MAPPERS_ENVIRONMENT)) if name]
    environment[MAPPERS_ENVIRONMENT] = ",".join([*given, *names])
    try:
        yield
    finally:
        environment.pop(MAPPERS_ENVIRONMENT)
        if before is not None:
            environment[MAPPERS_ENVIRONMENT] = before
