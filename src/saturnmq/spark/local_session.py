"""Builds a Spark session for one machine: Java and Python chosen, loopback only, quiet, the data source registered.

Requirements: SPK-02, SPK-06, SPK-07, SPK-12.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.java_home import java_home
from saturnmq.spark.offset_tracker import track
from saturnmq.spark.registration import Mapper, register_formats

SUPPORTED: Final = ("4.2", "4.3")
LOCAL: Final = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # messages sent in batches have property WAIT twice
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # UTC instants to every reader (SPK-12)
    "spark.log.level": "ERROR",
}
# Of these settings a Connect session gets what decides about rows and errors; its server has the rest.
CONNECTED: Final = {
    **{name: LOCAL[name] for name in LOCAL if name.endswith(("timeZone", "mapKeyDedupPolicy", "outputTimestampType"))},
    "spark.sql.connect.serverStacktrace.enabled": "false",  # errors end with their message, as in a classic session
}
REMOTE_CONF: Final = "spark.remote"
REMOTE_ENVIRONMENT: Final = "SPARK_REMOTE"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # set for the script argument of spark-submit
NAME_SERVER_CONF: Final = "spark.saturnmq.nameServer"


def check_versions() -> None:
    """Raise ConfigError for an unsupported pyspark, or for workers of another Python minor version."""
    if ".".join(pyspark.__version__.split(".")[:2]) not in SUPPORTED:
        raise ConfigError(f"pyspark {pyspark.__version__} is installed; supported are {', '.join(SUPPORTED)}")
    chosen = os.environ.get("PYSPARK_PYTHON")
    named = re.search(r"python(\d+\.\d+)$", chosen or "")
    driver_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if named is not None and named[1] != driver_version:
        raise ConfigError(f"PYSPARK_PYTHON={chosen}: workers must run Python {driver_version}, as the driver does")
    if chosen and "/" in chosen and not Path(chosen).is_absolute() and not Path(chosen).exists():
        raise ConfigError(
            f"PYSPARK_PYTHON={chosen} is not in {Path.cwd()}: in client mode the driver plans with it too; "
            "`saturnmq spark pack --client OUT` writes ./env/bin/python"
        )


def prepare_environment() -> None:
    """Set Java and Python for the JVM that is about to start; the user's settings take precedence."""
    if SUBMITTED not in os.environ:
        os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def make_session(
    app: str,
    *,
    name_server: str | None = None,
    mappers: Iterable[Mapper] = (),
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Build or reuse a session; conf overrides the local defaults. Raises ConfigError for unsupported versions."""
    check_versions()
    connected = connect_session(app, name_server, dict(conf or {}))
    spark = connected if connected is not None else classic_session(app, name_server, dict(conf or {}))
    register_formats(spark, mappers)
    if name_server:
        track(spark, name_server)
    return spark


def connect_session(app: str, name_server: str | None, conf: dict[str, str]) -> SparkSession | None:
    """Return the active Connect session, or one of the server that `spark.remote` or SPARK_REMOTE names; None for a classic one."""
    url = conf.pop(REMOTE_CONF, None) or os.environ.get(REMOTE_ENVIRONMENT)
    spark = active_connect_session()
    if spark is None and url is None:
        return None
    settings = CONNECTED | conf
    if name_server:
        settings[NAME_SERVER_CONF] = name_server
    if spark is None:
        if url is not None and url.startswith("local"):
            prepare_environment()  # Spark starts the server in this process
        spark = SparkSession.builder.appName(app).config(REMOTE_CONF, url).getOrCreate()
    for name, value in settings.items():
        spark.conf.set(name, value)
    return spark


def active_connect_session() -> SparkSession | None:
    """Return the Connect session of this process, None where there is none."""
    client = sys.modules.get("pyspark.sql.connect.session")  # its import needs packages that classic sessions do not
    if client is None:
        return None
    try:
        active: SparkSession = client.SparkSession.active()
    except PySparkException:  # no session
        return None
    return active


def classic_session(app: str, name_server: str | None, conf: dict[str, str]) -> SparkSession:
    """Build or reuse a session whose JVM this process starts."""
    prepare_environment()
    # One per user: tables of views are folders in it, and one user's are not writable by others.
    warehouse = str(Path(tempfile.gettempdir()) / f"saturnmq-spark-warehouse-{os.getuid()}")
    local = {"spark.sql.warehouse.dir": warehouse} | LOCAL
    if SUBMITTED in os.environ:  # spark-submit has already chosen the master and started the JVM
        local = {name: value for name, value in local.items() if name.startswith("spark.sql.") and name in LOCAL}
    settings = local | conf
    if name_server:
        settings[NAME_SERVER_CONF] = name_server
    builder = SparkSession.builder.appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
