"""How Spark starts the Python processes of the data source, and the advice to users when one does not start in time."""

from __future__ import annotations

import logging
import os
import site
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from saturnmq.spark import stream_advice
from saturnmq.spark.installed_python import (
    has_other_pyspark,
    installed_package,
    interpreter_script,
    planners_use_installed,
)
from saturnmq.spark.pipelines import running

# As PySpark 4.3.0 and 4.2.1 report it, without most of the frames.
NOT_STARTED = (
    "org.apache.spark.SparkException: Python worker failed to connect back.\n"
    "\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:328)\n"
    "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back\n"
)


@pytest.mark.spark
def test_planner_and_worker_import_installed_pyspark(spark: Any, tmp_path: Path) -> None:
    """The classes are local so that Spark gets them by value: workers cannot import this file."""

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"n": 0}

        def latestOffset(self) -> dict[str, int]:
            return {"n": 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            import pyspark

            return [InputPartition(pyspark.__file__)]

        def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
            import pyspark

            yield partition.value, pyspark.__file__

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "started_with"

        def schema(self) -> str:
            return "planner string, worker string"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Reader()

    before = spark.sparkContext.pythonExec
    with planners_use_installed(spark.sparkContext):
        assert spark.sparkContext.pythonExec != before
        spark.dataSource.register(Source)
    assert spark.sparkContext.pythonExec == before, "functions of the user run as before"
    rows = spark.readStream.format("started_with").load()
    query = rows.writeStream.format("memory").queryName("started_with").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination(200)
    file = str(installed_package() / "__init__.py")  # type: ignore[operator]
    assert [tuple(row) for row in spark.table("started_with").collect()] == [(file, file)]


def context(tmp_path: Path, **changes: Any) -> Any:
    """A classic SparkContext as far as `planners_use_installed` looks at it."""
    values = {
        "pythonExec": sys.executable, "master": "local[2]", "environment": {}, "_temp_dir": str(tmp_path), "inherited": None,
    } | changes  # fmt: skip
    system = SimpleNamespace(getenv=lambda _name: values["inherited"])
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    return SimpleNamespace(_jvm=jvm, **values)


def test_interpreter_changes_for_this_machine_and_package_only(tmp_path: Path) -> None:
    """Executors have no such script, and another interpreter or pyspark must not be replaced by the installed one."""
    other = tmp_path / "other"
    (other / "pyspark").mkdir(parents=True)
    mine = {"environment": {"PYTHONPATH": str(tmp_path)}}
    archive, jobs = tmp_path / "spark python.zip", tmp_path / "jobs.zip"
    for path, name in ((archive, "pyspark/__init__.py"), (jobs, "jobs.py")):
        with zipfile.ZipFile(path, "w") as out:
            out.writestr(name, "")
    for changes, is_replaced in (
        ({}, True), (mine, True), ({"master": "local-cluster[2,1,1024]"}, True), ({"master": "spark://h:7077"}, False),
        ({"master": "yarn"}, False), ({"pythonExec": "./env/bin/python"}, False), ({"pythonExec": "/bin/sh"}, False),
        ({"environment": {"PYTHONPATH": f"{tmp_path}:{other}"}}, False), ({"inherited": str(other)}, False),
        ({"inherited": str(archive)}, False), ({"inherited": str(jobs)}, True),
        ({"_temp_dir": "/proc/self"}, False),
    ):  # fmt: skip
        spark_context = context(tmp_path, **changes)
        before = spark_context.pythonExec
        with planners_use_installed(spark_context):
            assert (spark_context.pythonExec != before) is is_replaced, changes
        assert spark_context.pythonExec == before


def test_pyspark_is_installed_only_together_with_py4j(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common, own = tmp_path / "common", tmp_path / "own"
    monkeypatch.setattr(sysconfig, "get_path", {"purelib": str(common)}.get)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(own))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)

    def add(folder: Path, *names: str) -> None:
        for name in names:
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").touch()

    (common / "pyspark").mkdir(parents=True)  # left by an uninstallation
    add(common, "py4j")
    add(own, "pyspark")
    assert installed_package() is None
    add(own, "py4j")
    assert installed_package() is None, "packages of the user are not read"
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    assert installed_package() == own / "pyspark"
    (common / "pyspark" / "__init__.py").touch()
    assert installed_package() == common / "pyspark"
    (common / "py4j" / "__init__.py").unlink()
    assert installed_package() == own / "pyspark"


def test_script_drops_archives_of_its_package_only(tmp_path: Path) -> None:
    package = tmp_path / "site packages" / "pyspark"
    package.mkdir(parents=True)
    script = tmp_path / "python"
    script.write_text(interpreter_script(package))
    script.chmod(0o700)
    lib, elsewhere = f"{package}/python/lib", str(tmp_path / "elsewhere")
    for path, expected in (
        (f"{lib}/pyspark.zip:{lib}/py4j-src.zip:{package}/jars/core.jar:{elsewhere}", elsewhere),
        (f"{lib}/pyspark.zip", ""), (elsewhere, elsewhere), (f"{elsewhere}:{lib}/pyspark.zip", f"{elsewhere}:{lib}/pyspark.zip"),
        (f"/opt/spark/python/lib/pyspark.zip:{elsewhere}", f"/opt/spark/python/lib/pyspark.zip:{elsewhere}"),
    ):  # fmt: skip
        code = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:], sys.executable)"
        done = subprocess.run(
            [script, "-c", code, "a b"],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{expected} ['a b'] {sys.executable}\n", path
    assert has_other_pyspark(package, f"{lib}/pyspark.zip:{package.parent}")
    assert not has_other_pyspark(package, f"{lib}:{package / 'jars'}:{tmp_path}")


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        (NOT_STARTED, stream_advice.SLOW_START),
        ("[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST",
         stream_advice.SLOW_START),
        ("ConfigError: option topic: 'nowhere' cannot be read", None),
    ],
)  # fmt: skip
def test_planner_that_does_not_start_gets_advice_once(
    failure: str, advice: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    event: Any = SimpleNamespace(exception=failure, id="q", runId=f"run-{time.monotonic_ns()}")
    assert stream_advice.advice_of(failure) == advice
    with caplog.at_level(logging.ERROR):
        for _ in range(2):  # a session may have several trackers
            stream_advice.log_advice(event)
    assert caplog.messages == ([] if advice is None else [f"query failed query=q: {advice}"])


def test_pipeline_error_advises_when_planner_does_not_start() -> None:
    _kind, cause = running.cause_of(PySparkException(f"[STREAM_FAILED] Query terminated with exception: {NOT_STARTED}"))
    assert cause == stream_advice.SLOW_START and "\n" not in cause
