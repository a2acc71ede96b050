"""Executors in processes of their own: they get what they need with the job, and survive kills."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest
from spark_cluster_case import HERE, Driver, environment, fill, said_by_executors, spark_home

from saturnmq.spark.packing import pack_zip
from saturnmq.testing import SyncEmbeddedBroker

WORKER_BYTES_MAX = 300 * 1024 * 1024


def bare_python(folder: Path) -> Path:
    """Return a Python with pyarrow and the other installed packages, but without this package if it is installed editable."""
    script = folder / "python"
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    site = sysconfig.get_path("purelib")
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec "{base}" "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.spec("SCL-02", "SCL-03", "SCL-06", "SCL-07", "SPK-05")
def test_cluster_job_shipped_as_zip_survives_executor_kills(server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    """local-cluster with two executors: batch, sink and stream; executors are killed during a read and during two writes."""
    fill(server.name_servers)
    zipped = tmp_path / "saturnmq.zip"
    assert pack_zip(zipped) > 100
    home = spark_home(tmp_path)
    conf = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.submit.pyFiles": f"{zipped},{HERE / 'spark_cluster_probe.py'}",
    }
    env = environment(home, PYSPARK_PYTHON=str(bare_python(tmp_path)), PYSPARK_DRIVER_PYTHON=sys.executable)
    assert "SPARK_HOME" not in os.environ or os.environ["SPARK_HOME"] != str(home)
    with Driver(server, tmp_path, ["read", "write", "halves", "stream"], conf, env) as driver:
        driver.kill_while_reading()
        driver.kill_while_writing()
        driver.kill_while_halves_are_written()
        driver.check_stream()
        assert driver.ended() == 0
        workers = [facts for step in ("read", "write", "halves") for facts in driver.workers(step)]
    assert all("saturnmq.zip" in facts["from"] for facts in workers)
    assert max(facts["rss_max_kib"] for facts in workers) * 1024 < WORKER_BYTES_MAX
    said = "".join(said_by_executors(home))
    assert "compiled decoder not loaded decoder=numpy path=saturnmq.zip" in said
