#!/bin/sh
# PySpark: in one query, options given to a table of a Python data source by WITH (...) apply to every use of that table.
#
# Version      pyspark 4.3.0 (4.2.1 behaves the same)
# Expectation  SELECT * FROM t WITH (only = '0') UNION ALL SELECT * FROM t WITH (only = '1') reads each part with its own options, as
#              two queries do.
# Behaviour    Spark resolves the table once per query and creates its Python source once, with the options of the first use; the
#              options of the others are ignored. No error. OPTIONS of CREATE TABLE never reach the source when it reads.
# Output seen  one query: {0: 20}; two queries: {0: 10} and {1: 10}
# Exit         0 while this is so, 1 when it has changed
set -eu
. "$(dirname "$0")/pyspark_environment.sh"
prepare_pyspark 4.3.0
cat > "$WORK/numbers_source.py" <<'SOURCE'
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


class Reader(DataSourceReader):
    def __init__(self, only):
        self.only = only

    def partitions(self):
        return [InputPartition(queue) for queue in range(4) if self.only in (None, str(queue))]

    def read(self, partition):
        return ((partition.value, number) for number in range(10))


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "q int, n int"

    def reader(self, schema):
        return Reader(self.options.get("only"))
SOURCE
cat > "$WORK/run.py" <<'RUN'
from collections import Counter

from local import session, stop
from numbers_source import Numbers

spark = session()
spark.dataSource.register(Numbers)
spark.sql("CREATE TABLE t (q int, n int) USING numbers")


def queues(text):
    return Counter(row["q"] for row in spark.sql(text).collect())


parts = [f"SELECT * FROM t WITH (only = '{queue}')" for queue in (0, 1)]
together, alone = queues(" UNION ALL ".join(parts)), [queues(part) for part in parts]
print(f"one query: {dict(together)}; two queries: {dict(alone[0])} and {dict(alone[1])}")
stop(spark)
unchanged = together == {0: 20} and alone == [{0: 10}, {1: 10}]
print("as described" if unchanged else "CHANGED")
raise SystemExit(0 if unchanged else 1)
RUN
cd "$WORK" && "$PYTHON_BIN" run.py
