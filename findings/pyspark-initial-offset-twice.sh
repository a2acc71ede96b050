#!/bin/sh
# PySpark: a new stream of a Python data source with admission control calls initialOffset() twice and starts from the second answer.
#
# Version      pyspark 4.3.0 (4.2.1 behaves the same)
# Expectation  initialOffset() is called once for a new query; the first batch begins where it said.
# Behaviour    Where latestOffset(start, limit) is implemented, Spark calls initialOffset() twice before the first batch: the first
#              answer is the start given to latestOffset(), the second one the start given to partitions(). Neither is written to the
#              checkpoint. A source whose initial offset is "the end now" moves between the calls, and its first batch skips messages
#              or begins behind its end. No error from Spark.
# Output seen  initialOffset calls 2: 0 and 1; latestOffset began at 0, partitions at 1
# Exit         0 while this is so, 1 when it has changed
set -eu
. "$(dirname "$0")/pyspark_environment.sh"
prepare_pyspark 4.3.0
cat > "$WORK/numbers_source.py" <<'SOURCE'
import os

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

LOG = os.environ["WORK"] + "/calls"


def note(text):
    with open(LOG, "a") as log:
        log.write(text + "\n")


class Reader(DataSourceStreamReader):
    calls = 0

    def initialOffset(self):
        self.calls += 1
        note(f"initial {self.calls - 1}")
        return {"n": self.calls - 1}

    def latestOffset(self, start, limit):
        note(f"latest {start['n']}")
        return {"n": 10}

    def partitions(self, start, end):
        note(f"partitions {start['n']}")
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition):
        return ((number,) for number in range(*partition.value))


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "n int"

    def streamReader(self, schema):
        return Reader()
SOURCE
cat > "$WORK/run.py" <<'RUN'
from local import WORK, session, stop
from numbers_source import LOG, Numbers

spark = session()
spark.dataSource.register(Numbers)
stream = spark.readStream.format("numbers").load()
query = stream.writeStream.format("noop").option("checkpointLocation", WORK + "/checkpoint").start()
query.processAllAvailable()
query.stop()
with open(LOG) as log:
    calls = [line.split() for line in log]
initial = [value for call, value in calls if call == "initial"]
latest = next(value for call, value in calls if call == "latest")
began = next(value for call, value in calls if call == "partitions")
print(f"initialOffset calls {len(initial)}: {' and '.join(initial)}; latestOffset began at {latest}, partitions at {began}")
stop(spark)
unchanged = (len(initial), latest, began) == (2, "0", "1")
print("as described" if unchanged else "CHANGED")
raise SystemExit(0 if unchanged else 1)
RUN
cd "$WORK" && "$PYTHON_BIN" run.py
