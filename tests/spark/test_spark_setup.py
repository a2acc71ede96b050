"""Versions, Java and Python of a session; stopping between batches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql.pandas.types import to_arrow_schema

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import check, local_session
from saturnmq.spark.decode import TYPES, arrow_schema
from saturnmq.spark.partition import RangePartition
from saturnmq.spark.pipelines import pipeline, running
from saturnmq.spark.source import RocketMQDataSource, SaturnMQDataSource, struct_type

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.spec("SPK-02")
def test_unsupported_pyspark_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    local_session.check_versions()
    for version, fits in (("4.2.1", True), ("4.3.0", True), ("4.1.9", False), ("4.4.0", False), ("3.5.1", False)):
        monkeypatch.setattr(pyspark, "__version__", version)
        if fits:
            local_session.check_versions()
        else:
            with pytest.raises(ConfigError, match=f"pyspark {version} is installed; supported are 4.2, 4.3"):
                local_session.check_versions()


@pytest.mark.spec("SPK-06")
def test_workers_run_current_python_unless_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))
    monkeypatch.setattr(local_session, "java_home", lambda: Path("/a/jdk"))
    monkeypatch.setenv("PYSPARK_PYTHON", "x")  # so that monkeypatch restores it
    monkeypatch.delenv("PYSPARK_PYTHON")
    local_session.prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable and os.environ["JAVA_HOME"] == "/a/jdk"
    monkeypatch.setenv("PYSPARK_PYTHON", "/env/bin/python3")
    local_session.prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == "/env/bin/python3"
    monkeypatch.setenv("PYSPARK_PYTHON", "/env/bin/python3.9")
    with pytest.raises(ConfigError, match=r"PYSPARK_PYTHON=/env/bin/python3.9: workers must run Python 3\."):
        local_session.check_versions()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # under spark-submit its Java is kept
    monkeypatch.setenv("JAVA_HOME", "/submit")
    local_session.prepare_environment()
    assert os.environ["JAVA_HOME"] == "/submit"


@pytest.mark.spec("SPK-09")
def test_what_goes_to_workers_goes_by_name() -> None:
    """Classes must be pickled by name and imported in workers; by value they would carry this process's state along."""
    for kind in (RocketMQDataSource, SaturnMQDataSource, RangePartition):
        data = cloudpickle.dumps(kind)
        assert len(data) < 120 and kind.__module__.encode() in data


@pytest.mark.spark
@pytest.mark.spec("SPK-13", "SPK-05", "SPK-06")
def test_the_check_says_what_runs(spark: Any) -> None:
    found = check.facts(spark)
    assert found["pyspark"] == pyspark.__version__ and int(found["java"].split(".")[0]) >= 17
    assert found["worker"] == "works" and found["decoder"]


@pytest.mark.spec("SPK-13")
@pytest.mark.parametrize(("damage", "state"), [(0, "works"), (-1, "says 41 for 42")])
def test_the_check_sends_one_row_through_a_worker(damage: int, state: str) -> None:
    partitions: list[int] = []

    class Rows:
        def __init__(self, rows: list[int]) -> None:
            self.rows = rows

        def map(self, function: Callable[[int], int]) -> Rows:
            """What a worker does."""
            return Rows([function(row) + damage for row in self.rows])

        def collect(self) -> list[int]:
            return self.rows

    def parallelize(rows: list[int], count: int) -> Rows:
        partitions.append(count)
        return Rows(rows)

    jvm = SimpleNamespace(
        java=SimpleNamespace(lang=SimpleNamespace(System=SimpleNamespace(getProperty="{} of Java".format)))
    )
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=jvm, parallelize=parallelize))
    facts = check.facts(spark)
    for package in ("saturnmq", "pyspark", "pyarrow"):
        assert facts[package] == metadata.version(package)
    assert facts["python"] == sys.version.split()[0] and facts["decoder"] == "numpy and pyarrow"
    assert (facts["java"], facts["java_home"]) == ("java.version of Java", "java.home of Java")
    assert (facts["worker"], partitions) == (state, [1])


@pytest.mark.spec("SPK-14")
def test_sigterm_stops_query_between_batches() -> None:
    """SIGTERM during a batch: the batch ends, the query is stopped, and the handlers are restored."""
    events: list[str] = []
    batch_ended = threading.Event()

    class Query:
        recentProgress: tuple[Any, ...] = ()
        isActive = True

        def awaitTermination(self, _seconds: int) -> bool:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Timer(0.2, lambda: (events.append("batch ended"), batch_ended.set())).start()
            return False

        @property
        def status(self) -> dict[str, bool]:
            return {"isTriggerActive": not batch_ended.is_set()}

        def stop(self) -> None:
            events.append("stopped")

    before = signal.getsignal(signal.SIGTERM)
    with running.stoppable(True):
        assert running.watch(Query(), lambda _words: None) == 0  # type: ignore[arg-type]
        outcome = running.repeated(running.Conf(interval_ms=3_600_000), running.PipelineOutcome, lambda _words: None)
    assert events == ["batch ended", "stopped"] and outcome.rows_in == 0
    assert signal.getsignal(signal.SIGTERM) is before
    with running.stoppable(False):
        assert signal.getsignal(signal.SIGTERM) is before
    assert running.BORDER_SECONDS < 30


@pytest.mark.spec("SPK-14", "STR-12")
def test_run_stops_session_then_commits_last_offsets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark reports the end of a query when the session stops; those offsets are committed before the process ends."""
    events: list[str] = []
    session = SimpleNamespace(stop=lambda: events.append("session stopped"))
    monkeypatch.setattr(running, "session", lambda *_given, **_settings: session)
    monkeypatch.setattr(running, "stop_all", lambda: events.append("offsets committed"))
    made = replace(pipeline("stats"), run=lambda *_given: running.PipelineOutcome())
    assert running.run(made, ["--name-servers", "h:1", "--lake", str(tmp_path), "--quiet"]) == 0
    assert events == ["session stopped", "offsets committed"]


@pytest.mark.spec("STR-18", "SNK-09", "SNK-19")
def test_cost_of_micro_batches_and_limits_of_sinks_are_documented() -> None:
    words = " ".join((REPOSITORY / "docs" / "spark.md").read_text().split())
    assert "0.4 to 0.8 s" in words
    assert "drop repetitions while the query's plan is deterministic" in words
    assert "discard a half message after about 15 checks, a minute apart" in words


@pytest.mark.spec("SRC-21")
def test_option_checks_import_no_client() -> None:
    """Two of the processes that Spark starts for a query only import the source and check options."""
    script = (
        "import sys; from saturnmq.spark.source import RocketMQDataSource as Source\n"
        "Source({'nameServer': 'h:1', 'topic': 'T', 'columns': 'body,properties'}).schema()\n"
        "print([name for name in sys.modules if name in ('numpy', 'pyarrow') or name.startswith('saturnmq.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    for module in ("client.client", "client.puller", "net", "spark.planning", "spark.offset_tracker", "spark.decode"):
        assert f"'saturnmq.{module}'" not in done.stdout, module
    assert "numpy" not in done.stdout and "pyarrow" not in done.stdout, "0.2 s of CPU"


@pytest.mark.spec("SRC-08")
def test_spark_and_arrow_types_of_columns_agree() -> None:
    columns = tuple(TYPES)
    assert to_arrow_schema(struct_type(columns), timezone="UTC") == arrow_schema(columns)
