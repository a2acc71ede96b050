"""Distinguishes Spark Connect sessions, which have no SparkContext, from classic ones. Does not import pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of a Spark Connect server."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(spark).__mro__)
