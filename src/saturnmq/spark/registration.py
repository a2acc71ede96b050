"""Registers the data source classes with a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from saturnmq.spark.shipped import planners_see_shipped
from saturnmq.spark.source import RocketMQDataSource, SaturnMQDataSource


def register_formats(spark: SparkSession) -> None:
    """Register the formats `rocketmq` and `saturnmq`."""
    with planners_see_shipped(spark.sparkContext):
        spark.dataSource.register(RocketMQDataSource)
        spark.dataSource.register(SaturnMQDataSource)
