"""Topics of SaturnMQ and Apache RocketMQ in Spark: `spark.read.format("rocketmq")` and `spark.readStream`.

The only room that imports pyspark, and that only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(app: str = "saturnmq", *, name_server: str | None = None, **conf: str) -> SparkSession:
    """A local Spark session with the data source registered; see `saturnmq.spark.session`."""
    from saturnmq.spark.local_session import make_session

    return make_session(app, name_server=name_server, conf=conf)


def register(spark: SparkSession) -> None:
    """Make the formats `rocketmq` and `saturnmq` known to a session."""
    from saturnmq.spark.shipped import planners_see_shipped
    from saturnmq.spark.source import RocketMQDataSource, SaturnMQDataSource

    with planners_see_shipped(spark.sparkContext):
        spark.dataSource.register(RocketMQDataSource)
        spark.dataSource.register(SaturnMQDataSource)


__all__ = ["register", "session"]
