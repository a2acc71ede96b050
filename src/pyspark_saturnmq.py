"""Makes `format("saturnmq")` known in every session: PySpark imports modules named `pyspark_*` and registers their DefaultSource.

It does so in a process of its own, once per JVM and also where no query names the format: nothing of saturnmq is imported here.

Requirements: SPK-08.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Creates the data source `saturnmq` for a query that names it."""

    @classmethod
    def name(cls) -> str:
        return "saturnmq"

    def __new__(cls, options: MutableMapping[str, str]) -> DataSource:  # type: ignore[misc]
        from saturnmq.spark.source import SaturnMQDataSource

        return SaturnMQDataSource(options)
