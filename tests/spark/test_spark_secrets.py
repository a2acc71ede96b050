"""Secrets given as options: in no plan, error, event log (which is what the UI shows) or log of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from saturnmq.testing import SyncEmbeddedBroker

SECRETS = {"secretKey": "hush-of-account", "securityToken": "hush-of-token", "tlsKeyPassword": "hush-of-key"}


@contextmanager
def driver_log(spark: Any) -> Iterator[Any]:
    """Log everything of the driver at INFO to a writer, too."""
    core = spark._jvm.org.apache.logging.log4j.core
    writer = spark._jvm.java.io.StringWriter()
    appender = core.appender.WriterAppender.newBuilder().setTarget(writer).setName("secrets").build()
    appender.start()
    root = spark._jvm.org.apache.logging.log4j.LogManager.getRootLogger()
    level = root.getLevel().toString()
    root.addAppender(appender)
    spark.sparkContext.setLogLevel("INFO")
    try:
        yield writer
    finally:
        spark.sparkContext.setLogLevel(level)
        root.removeAppender(appender)
        appender.stop()


def plans(frame: Any) -> str:
    """Every form of a frame's plan."""
    execution = frame._jdf.queryExecution()
    return str(execution.toString()) + str(execution.logical().toJSON()) + str(frame._jdf.toString())


@pytest.mark.spark
@pytest.mark.spec("SPK-11")
def test_secrets_are_in_no_plan_log_or_event(
    spark: Any, server: SyncEmbeddedBroker, send: Any, event_log: Path, tmp_path: Path
) -> None:
    send("guarded", 20)
    key = tmp_path / "key.pem"
    key.write_text("no key")
    options = {"nameServer": server.name_servers, "topic": "guarded", "accessKey": "account-of-test", **SECRETS}
    tls = {"tls": "true", "tlsCert": str(key), "tlsKey": str(key)}
    plain = {name: value for name, value in options.items() if name != "tlsKeyPassword"}
    shown, messages = "", []
    with driver_log(spark) as log:
        rows = spark.read.format("rocketmq").options(**plain).load()
        assert rows.select("body").count() == 20
        shown += plans(rows) + plans(rows.where("tags = 'a'").groupBy("topic").count())
        rows.createOrReplaceTempView("guarded")
        shown += str(spark.sql("EXPLAIN EXTENDED SELECT * FROM guarded").collect())
        rows.select("topic", "body").write.format("rocketmq").options(**plain).mode("append").save()
        stream = spark.readStream.format("rocketmq").options(**plain, startingOffsets="earliest").load()
        query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        shown += str(query.lastProgress) + str(query.explain(extended=True))
        for bad in ({"batchRows": "0"}, {"tls": "true"}, tls, {"topic": "nowhere"}):
            with pytest.raises((PySparkException, Py4JJavaError)) as caught:
                spark.read.format("rocketmq").options(**options | bad).load().count()
            messages.append(str(caught.value))
        text = str(log.toString())
    assert "Starting task" in text and "guarded" in text, "the log has what happens"
    events = "".join(path.read_text(encoding="utf-8") for path in event_log.iterdir())
    events += "".join(
        path.read_text(encoding="utf-8", errors="replace") for path in (tmp_path / "c").rglob("*") if path.is_file()
    )
    assert "SparkListenerSQLExecutionStart" in events and '"guarded' in events
    for name, secret in SECRETS.items():
        places = {"plan": shown, "log": text, "events and checkpoint": events, "errors": "".join(messages)}
        assert [place for place, content in places.items() if secret in content] == [], name
