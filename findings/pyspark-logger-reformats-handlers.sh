#!/bin/sh
# PySpark 4.3.0, pyspark.logger: adding a handler to a PySparkLogger changes how that handler formats the records of every other logger.
#
# Expected: logging.Logger.addHandler leaves a handler as it is; a handler that several loggers share (one log file of a process, the
# capturing handler of a test) keeps the formatter that its owner has set.
# Seen: PySparkLogger.addHandler first calls handler.setFormatter(JSONFormatter()). From then on the records of all other loggers that use
# the handler are JSON documents, too; the formatter of the owner is lost, and removing the handler from PySpark's logger does not bring it
# back. Output:
#
#     before: plain app message 1
#     after: {"ts": ..., "level": "INFO", "logger": "app", "msg": "message 2", "context": {}}
#     after removeHandler: {"ts": ..., "level": "INFO", "logger": "app", "msg": "message 3", "context": {}}
#
# Where it is met without a handler of one's own: pytest 9.2.0 adds the handler of `caplog` to each logger that does not propagate, and
# PySpark makes such loggers (DataFrameQueryContextLogger, SQLQueryContextLogger) when it reports the first error of a query. In every
# later test of the process caplog.text is JSON. The second part shows it with a logger as PySpark makes them.
#
# Needs python3 (3.11 or newer) and installs PySpark into a temporary folder; starts no Java. Exit 0: behaves as above.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "pyspark==${PYSPARK:-4.3.0}" pytest==9.2.0
cat > "$folder/handlers.py" <<'END'
import io
import json
import logging

from pyspark.logger import PySparkLogger

stream = io.StringIO()
shared = logging.StreamHandler(stream)
shared.setFormatter(logging.Formatter("plain %(name)s %(message)s"))
app = logging.getLogger("app")
app.setLevel(logging.INFO)
app.addHandler(shared)


def logged(text):
    """Return what the shared handler writes for a record of the application's logger."""
    stream.seek(0)
    stream.truncate()
    app.info(text)
    return stream.getvalue().rstrip("\n")


before = logged("message 1")
spark_logger = PySparkLogger.getLogger("job")
spark_logger.addHandler(shared)
after = logged("message 2")
spark_logger.removeHandler(shared)
removed = logged("message 3")
print("before:", before)
print("after:", after)
print("after removeHandler:", removed)
assert before == "plain app message 1", before
for line, text in ((after, "message 2"), (removed, "message 3")):
    record = json.loads(line)
    assert (record["logger"], record["msg"]) == ("app", text), line
END
cat > "$folder/test_caplog.py" <<'END'
import logging

from pyspark.logger import PySparkLogger


def test_before(caplog):
    logging.getLogger("app").warning("message 4")
    assert caplog.text.endswith("message 4\n")
    PySparkLogger.getLogger("DataFrameQueryContextLogger").propagate = False


def test_after(caplog):
    logging.getLogger("app").warning("message 5")
    assert caplog.text.startswith('{"ts": ') and caplog.messages == ["message 5"]
END
if "$folder/venv/bin/python" "$folder/handlers.py" &&
    (cd "$folder" && venv/bin/python -m pytest -q -p no:randomly -p no:cacheprovider test_caplog.py); then
    echo "behaves as described"
else
    echo "the behaviour has changed" >&2
    exit 1
fi
