"""The command lines of Apache RocketMQ's launchers: with `saturnmq broker` in place of their names, and the programs themselves."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serverprocess import Server

from saturnmq.cli.launchers import BAD_ADDRESS_OR_ID, NO_HOME, NOT_RUNNING
from saturnmq.cli.settings import IMPORTANT
from saturnmq.store.files.lock_file import LockFile

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.spec("ADM-29")
def test_broker_prints_all_or_the_important_keys_and_exits(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\nbrokerClusterName=c\n")
    everything = cli("broker", "-c", str(file), "-n", "127.0.0.1:9876;127.0.0.2:9876", "-p")
    important = cli("broker", "-c", str(file), "-n", "127.0.0.1:9876", "-m")
    assert (everything.returncode, important.returncode) == (0, 0)
    assert "namesrvAddr=127.0.0.1:9876;127.0.0.2:9876  # option" in everything.stdout.splitlines()
    assert {line.partition("=")[0] for line in important.stdout.splitlines()} == IMPORTANT
    assert "brokerName=b" in important.stdout and len(everything.stdout.splitlines()) > 250


@pytest.mark.spec("ADM-29")
def test_name_server_prints_its_keys_and_exits(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("orderMessageEnable=true\n")
    printed = cli("namesrv", "-c", str(file), "-p")
    assert printed.returncode == 0 and f"orderMessageEnable=true  # {file}" in printed.stdout.splitlines()


@pytest.mark.spec("ADM-29")
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("namesrvAddr=http://127.0.0.1:9876", "namesrvAddr must be host:port;host:port"),
        ("brokerRole=SLAVE", "brokerRole=SLAVE: brokerId must be above 0"),
    ],
)
def test_bad_addresses_and_slave_ids_do_not_start(cli: Cli, tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"{line}\nlistenPort=0\nstorePathRootDir={tmp_path / 'store'}\n")
    started = cli("broker", "-c", str(file))
    assert started.returncode == 2 and problem in started.stderr


class Programs:
    """The programs in a folder, and a home of their own."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.home, self.bin = folder / "home", folder / "bin"
        self.home.mkdir()
        written = cli("launchers", str(self.bin))
        assert written.returncode == 0, written.stderr
        assert written.stdout.split() == [str(self.bin / name) for name in ("mqbroker", "mqnamesrv", "mqshutdown")]
        self.servers: list[Server] = []

    def start(self, name: str, *words: str) -> Server:
        server = Server(*words, env={"HOME": str(self.home), "ROCKETMQ_HOME": ""}, program=self.bin / name)
        self.servers.append(server)
        return server

    def run(self, name: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"HOME": str(self.home), "ROCKETMQ_HOME": ""} | more
        return subprocess.run([str(self.bin / name), *words], capture_output=True, text=True, env=env, timeout=60)


@pytest.fixture
def programs(cli: Cli, tmp_path: Path) -> Iterator[Programs]:
    made = Programs(cli, tmp_path)
    yield made
    for server in made.servers:
        server.stop(signal.SIGKILL)


def broker_file(folder: Path, lines: str = "") -> str:
    file = folder / "broker.conf"
    file.write_text(f"listenPort=0\nfastPortEnable=false\nstorePathRootDir={folder / 'store'}\nhaPortEnable=false\n"
                    f"storeProfile=small\n{lines}")  # fmt: skip
    return str(file)


@pytest.mark.spec("ADM-29")
def test_programs_serve_and_mqshutdown_stops_each_kind(programs: Programs, tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text(f"listenPort=0\nkvConfigPath={tmp_path / 'kv.json'}\n")
    namesrv = programs.start("mqnamesrv", "-c", str(conf))
    address = namesrv.facts["namesrv"]
    broker = programs.start("mqbroker", "-c", broker_file(tmp_path), "-n", address)
    assert any(f"boot success. serializeType=JSON and name server is {address}" in line for line in broker.out)
    pid = broker.process.pid
    stopped = programs.run("mqshutdown", "broker")
    assert (stopped.returncode, stopped.stdout.splitlines()) == (
        0, [f"The mqbroker({pid}) is running...", f"Send shutdown request to mqbroker({pid}) OK"],
    )  # fmt: skip
    assert broker.process.wait(20) == 0 and namesrv.process.poll() is None
    again = programs.run("mqshutdown", "broker")
    assert (again.returncode, again.stdout) == (NOT_RUNNING, "No mqbroker running.\n")
    stopped = programs.run("mqshutdown", "namesrv")
    assert f"Send shutdown request to mqnamesrv({namesrv.process.pid}) OK" in stopped.stdout.splitlines()
    assert namesrv.process.wait(20) == 0
    assert not list((programs.home / ".saturnmq" / "run").iterdir()), "files are removed"


def test_mqshutdown_ends_no_other_process(programs: Programs, tmp_path: Path) -> None:
    """Not one that has the words in its command line, not one whose id was in a file of a broker that was killed, no other kind."""
    broker = programs.start("mqbroker", "-c", broker_file(tmp_path))
    run = programs.home / ".saturnmq" / "run"
    (lock,) = run.iterdir()
    broker.stop(signal.SIGKILL)
    words = ["sleep", "60", "org.apache.rocketmq.broker.BrokerStartup", "mqbroker", "saturnmq broker"]
    with subprocess.Popen(["/bin/sh", "-c", "read line", *words], stdin=subprocess.PIPE) as bystander:
        (run / f"broker-{bystander.pid}").write_bytes(b"lock")
        held = LockFile(run / "broker-1")  # its holder is another process than its name says
        held.acquire()
        stopped = programs.run("mqshutdown", "broker")
        held.release()
        assert (stopped.returncode, stopped.stdout) == (NOT_RUNNING, "No mqbroker running.\n")
        assert bystander.poll() is None
        assert not lock.exists() and [path.name for path in run.iterdir()] == ["broker-1"]
    assert programs.run("mqshutdown").returncode == 2
    assert programs.run("mqshutdown", "proxy").stdout == "Usage: mqshutdown broker | namesrv\n"


@pytest.mark.parametrize(
    ("lines", "words", "shown"),
    [
        ("", ["-n", "127.0.0.1"], "The Name Server Address["),
        ("namesrvAddr=k:topsecret@h:1\n", [], "The Name Server Address["),
        ("namesrvAddr=h:99999\n", ["-p"], "The Name Server Address["),
        ("brokerRole=SLAVE\n", [], "Slave's brokerId must be > 0"),
    ],
)
def test_bad_addresses_and_slave_ids_end_with_minus_three(
    programs: Programs, tmp_path: Path, lines: str, words: list[str], shown: str
) -> None:
    ended = programs.run("mqbroker", "-c", broker_file(tmp_path, lines), *words)
    assert ended.returncode == BAD_ADDRESS_OR_ID == -3 % 256 and ended.stdout.startswith(shown), ended
    assert "topsecret" not in ended.stdout + ended.stderr and not (tmp_path / "store").exists()


def test_home_that_is_no_folder_ends_with_minus_two(programs: Programs, tmp_path: Path) -> None:
    for name in ("mqbroker", "mqnamesrv"):
        ended = programs.run(name, "-p", ROCKETMQ_HOME=str(tmp_path / "none"))
        assert ended.returncode == NO_HOME == -2 % 256
        assert ended.stdout.startswith(
            "Please set the ROCKETMQ_HOME variable in your environment to match the location"
        )
    assert programs.run("mqbroker", "-p", ROCKETMQ_HOME=str(tmp_path)).returncode == 0


@pytest.mark.spec("ADM-29")
def test_programs_take_the_options_of_apache(programs: Programs, tmp_path: Path) -> None:
    file = broker_file(tmp_path, "brokerName=b\n")
    for words in (["-c", file, "-n", "h:1", "-p"], ["--configFile", file, "--namesrvAddr", "h:1", "--printConfigItem"]):
        printed = programs.run("mqbroker", *words).stdout.splitlines()
        assert "namesrvAddr=h:1  # option" in printed and f"brokerName=b  # {file}" in printed
    for word in ("-m", "--printImportantConfig"):
        printed = programs.run("mqbroker", "-c", file, word).stdout.splitlines()
        assert {line.partition("=")[0] for line in printed} == IMPORTANT
    assert "listenPort=9876  # default" in programs.run("mqnamesrv", "-p").stdout.splitlines()
    assert programs.run("mqbroker", "--set", "brokerName=x", "-p").stdout.count("brokerName=x  # --set") == 1
    assert "usage: mqbroker" in programs.run("mqbroker", "-h").stdout


def test_programs_of_another_installation_are_kept(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mqshutdown").write_text("#!/bin/sh\ncase $1 in\n")
    refused = cli("launchers", str(tmp_path))
    assert refused.returncode == 2 and "is no launcher of SaturnMQ: name another folder" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mqshutdown"], "none was written"
    (tmp_path / "mqshutdown").unlink()
    assert [cli("launchers", str(tmp_path)).returncode for _ in range(2)] == [0, 0], "our own are written again"
