#!/bin/sh
# PySpark: a filter that a Python data source evaluates for one query narrows every other query of that DataFrame.
#
# Version      pyspark 4.3.0 (4.2.1 behaves the same), spark.sql.python.filterPushdown.enabled=true
# Expectation  A filter pushed by `pushFilters` belongs to the query that has it: df.count() after df.filter("q = 0").count() counts
#              all rows, and a union of two filters of one DataFrame has the rows of both.
# Behaviour    The table object of a load() has one field for the read plan; each push replaces it, and a scan without filters takes it
#              as it is, without a call into Python: the source can neither see nor prevent it. No error.
# Output seen  filter 10 of 40, then count 10 instead of 40; union of q = 0 and q = 1: {1: 20} instead of {0: 10, 1: 10}
# Exit         0 while this is so, 1 when it has changed
set -eu
. "$(dirname "$0")/pyspark_environment.sh"
prepare_pyspark 4.3.0
cat > "$WORK/numbers_source.py" <<'SOURCE'
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition


class Reader(DataSourceReader):
    queue = None

    def pushFilters(self, filters):
        for item in filters:
            if isinstance(item, EqualTo) and item.attribute == ("q",):
                self.queue = item.value
            else:
                yield item

    def partitions(self):
        return [InputPartition(queue) for queue in range(4) if self.queue in (None, queue)]

    def read(self, partition):
        return ((partition.value, number) for number in range(10))


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "q int, n int"

    def reader(self, schema):
        return Reader()
SOURCE
cat > "$WORK/run.py" <<'RUN'
from collections import Counter

from local import session, stop
from numbers_source import Numbers

spark = session(**{"sql.python.filterPushdown.enabled": "true"})
spark.dataSource.register(Numbers)
frame = spark.read.format("numbers").load()
filtered, whole = frame.filter("q = 0").count(), frame.count()
other = spark.read.format("numbers").load()
union = Counter(row["q"] for row in other.filter("q = 0").union(other.filter("q = 1")).collect())
print(f"filter {filtered} of 40, then count {whole}; union of q = 0 and q = 1: {dict(union)}")
stop(spark)
unchanged = (filtered, whole) == (10, 10) and union != {0: 10, 1: 10}
print("as described" if unchanged else "CHANGED: the pushed filter no longer leaks")
raise SystemExit(0 if unchanged else 1)
RUN
cd "$WORK" && "$PYTHON_BIN" run.py
