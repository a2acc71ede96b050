"""A Spark cluster as users have it: a master, two workers, executors with only what the job brings.

Both nodes are on this machine under two of its names: Spark runs a speculative task only on another host.
"""

from __future__ import annotations

import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from processes import ServerProcess
from spark_cluster_case import (
    HERE,
    LONG,
    Driver,
    bodies,
    environment,
    fill,
    halves_stored,
    said_by_executors,
    spark_home,
)

from ports import free_port
from saturnmq.spark import packing
from saturnmq.testing import SyncEmbeddedBroker

HOSTS = ("127.0.0.1", "localhost")


@pytest.fixture
def server() -> Iterator[SyncEmbeddedBroker]:
    from saturnmq.spark.connect import close_all

    with SyncEmbeddedBroker() as running:
        yield running
        close_all()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This environment without Spark, packed once."""
    out = tmp_path_factory.mktemp("packed") / "env.tar.gz"
    packing.main([str(out), "--needed"])
    return out


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The master's address."""
    home = spark_home(tmp_path)
    env = environment(home, SPARK_WORKER_DIR=str(tmp_path / "work"), SPARK_DAEMON_MEMORY="256m")
    env |= {"SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    started: list[ServerProcess] = []

    def start(name: str, kind: str, *arguments: str) -> ServerProcess:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        started.append(ServerProcess(command, name=name, env=env, cwd=tmp_path))
        return started[-1]

    try:
        port = str(free_port())
        master = start("Spark master", "master.Master", "--host", HOSTS[0], "--port", port, "--webui-port", "0")
        address = master.wait_ready(r"Starting Spark master at (spark://\S+)", 120)[1]
        for host in HOSTS:
            start(f"Spark worker {host}", "worker.Worker", address, "--host", host, "--cores", "1", "--memory", "1g",
                  "--webui-port", "0").wait_ready("Successfully registered with master", 120)  # fmt: skip
        yield address
    finally:
        below = [p for server in started if server.process.poll() is None
                 for p in psutil.Process(server.pid).children(recursive=True)]  # fmt: skip
        for server in reversed(started):
            server.stop()
        _gone, left = psutil.wait_procs(below, 10)
        for process in left:
            process.kill()


def driver_python(folder: Path) -> str:
    """Write ./env/bin/python for a driver in client mode."""
    launcher = folder / "env" / "bin" / "python"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(packing.launcher_script())
    launcher.chmod(0o755)
    return "./env/bin/python"


@pytest.mark.interop_full
@pytest.mark.timeout(540)
@pytest.mark.spec("SCL-01", "SCL-03", "SCL-07", "SPK-05")
def test_packed_environment_serves_a_cluster_whose_executors_die(
    server: SyncEmbeddedBroker, archive: Path, cluster: str, tmp_path: Path
) -> None:
    """Batch, sink and stream; executors are killed meanwhile; then a task runs twice, and its messages appear once."""
    with tarfile.open(archive) as packed:
        assert f"{packing.SITE}/pyarrow/__init__.py" in packed.getnames()
    fill(server.name_servers)
    conf = {
        "spark.master": cluster,
        "spark.archives": f"{archive}#env",
        "spark.submit.pyFiles": str(HERE / "spark_cluster_probe.py"),
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
    }
    env = environment(tmp_path / "spark", PYSPARK_PYTHON=driver_python(tmp_path), PYSPARK_DRIVER_PYTHON=sys.executable)
    with Driver(server, tmp_path, ["read", "write", "halves", "stream", "speculation"], conf, env) as driver:
        driver.kill_while_reading()
        driver.kill_while_writing()
        driver.kill_while_halves_are_written()
        workers = [facts for step in ("read", "write", "halves") for facts in driver.workers(step)]
        before = halves_stored(server.name_servers)
        driver.check_stream()
        found = bodies(server.name_servers, driver.result("speculation"))
        assert found == Counter([f"0 {n}" for n in range(LONG)] + [f"1 {n}" for n in range(10)])
        assert halves_stored(server.name_servers) - before > LONG + 10
        assert len(list(tmp_path.glob("queue-0-attempt-*"))) == 2
        assert driver.ended() == 0
    assert all(f"/env/{packing.SITE}/saturnmq/" in facts["from"] for facts in workers)
    assert len({facts["from"] for facts in workers}) > 1
    assert not any("no compiled parts" in text for text in said_by_executors(tmp_path))


@pytest.mark.interop_full
@pytest.mark.timeout(540)
@pytest.mark.spec("SCL-03")
def test_packed_environment_runs_on_a_local_cluster(server: SyncEmbeddedBroker, archive: Path, tmp_path: Path) -> None:
    """With local-cluster, as the zip in tests/spark."""
    conf = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.archives": f"{archive}#env",
        "spark.submit.pyFiles": str(HERE / "spark_cluster_probe.py"),
    }
    fill(server.name_servers)
    env = environment(
        spark_home(tmp_path), PYSPARK_PYTHON=driver_python(tmp_path), PYSPARK_DRIVER_PYTHON=sys.executable
    )
    with Driver(server, tmp_path, ["read"], conf, env) as driver:
        driver.kill_while_reading()
        assert driver.ended() == 0
        assert all(f"/env/{packing.SITE}/saturnmq/" in facts["from"] for facts in driver.workers("read"))
