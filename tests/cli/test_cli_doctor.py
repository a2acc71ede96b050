"""`saturnmq doctor` against an embedded broker, and on files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cluster = Any
QUICK_SECONDS_MAX = 20  # 2 s are promised; a shared host may stop for a while


def findings(cluster: Cluster, *args: str, code: int | None = None) -> list[dict[str, Any]]:
    """The rows of a run; the exit code must fit to them, and be `code` if one is given."""
    done = cluster.cli("doctor", "--json", *args, env=cluster.environment)
    document = json.loads(done.stdout)
    rows: list[dict[str, Any]] = document["rows"]
    bad = [row for row in rows if row["result"] == "problem"]
    assert done.returncode == (3 if bad else 0) and document["well"] is not bool(bad)
    assert all(bool(row["advice"]) is (row["result"] != "ok") for row in rows)
    if code is not None:
        assert done.returncode == code
    return rows


def of(rows: list[dict[str, Any]], check: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["check"] == check]


@pytest.mark.spec("CLI-06")
def test_doctor_checks_machine_and_cluster(cluster: Cluster, tmp_path: Path) -> None:
    rows = findings(cluster, "--data", str(tmp_path))
    assert {row["check"] for row in rows} >= {
        "version", "hot path", "nofile", "kernel", "disk", "fdatasync", "NameServer", "advertised address", "clock", "ports",
    }  # fmt: skip
    for check in ("NameServer", "advertised address", "clock"):
        assert [row["result"] for row in of(rows, check)] == ["ok"], check
    (ports,) = of(rows, "ports")  # an embedded broker's fast port is any free one
    assert ports["result"] == "ok" or ports["text"] == "the fast port, 2 below the main port, is closed"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.realtime
@pytest.mark.spec("CLI-06")
def test_quick_doctor_does_not_wait_for_dead_servers(cluster: Cluster) -> None:
    began = time.monotonic()
    rows = findings(cluster, "--quick", "-n", "127.0.0.1:1;127.0.0.1:2", code=3)
    assert time.monotonic() - began < QUICK_SECONDS_MAX
    assert [row["result"] for row in of(rows, "NameServer")] == ["problem", "problem"]
    assert all("saturnmq namesrv" in row["advice"] for row in of(rows, "NameServer"))


@pytest.mark.spec("CLI-06")
def test_doctor_reports_an_unusable_configuration(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        f"namesrvAddr={cluster.server.name_servers}\nflushDiskTyp=x\nlistenPort=none\ntls.server.certPath={tmp_path}/none.pem\n"
        f"storePathRootDir={tmp_path}/missing\n"
    )
    rows = findings(cluster, "-c", str(file), code=3)
    texts = [row["text"] for row in of(rows, "configuration")]
    assert texts[0] == "unknown key 'flushDiskTyp', did you mean 'flushDiskType'?"
    assert "listenPort='none'" in texts[1] and str(file) in texts[1]
    (certificate,) = of(rows, "certificate")
    assert certificate["text"] == "cannot be read: No such file or directory"
    (flush,) = of(rows, "fdatasync")
    assert (flush["result"], flush["subject"]) == ("note", f"{tmp_path}/missing")
    assert [row["result"] for row in of(rows, "NameServer")] == ["ok"]
    assert not (tmp_path / "missing").exists()


@pytest.mark.spec("CLI-06")
def test_doctor_reports_who_holds_the_port(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    port = cluster.server.broker_address.rpartition(":")[2]
    file.write_text(f"namesrvAddr={cluster.server.name_servers}\nlistenPort={port}\nstorePathRootDir={tmp_path}\n")
    rows = findings(cluster, "-c", str(file))
    (held,) = [row for row in of(rows, "ports") if row["subject"] == f"listenPort {port}"]
    assert held["text"].startswith("held by ")
    (configuration,) = of(rows, "configuration")
    assert configuration["text"] == "3 keys, all known and valid"


@pytest.mark.spec("CLI-06")
def test_doctor_prints_each_result_with_what_to_do(cluster: Cluster) -> None:
    done = cluster.run("doctor", "--quick", "-n", "127.0.0.1:1", code=3)
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("problem NameServer: 127.0.0.1:1: "))
    assert lines[at + 1].startswith("        what to do: start it: saturnmq namesrv")
    assert " checks: " in lines[-1] and lines[-1].endswith("problem")


@pytest.mark.spec("CLI-10")
def test_doctor_reports_a_missing_file(cli: Callable[..., Any], tmp_path: Path) -> None:
    done = cli("doctor", "-c", str(tmp_path / "none.conf"))
    assert done.returncode == 2 and "none.conf: No such file or directory" in done.stderr


@pytest.mark.spec("SEC-16")
def test_doctor_names_each_port_without_authentication(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    common = f"namesrvAddr={cluster.server.name_servers}\nlistenPort=20911\nstorePathRootDir={tmp_path}\nbindAddress=0.0.0.0\n"
    group = "enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerSelfId=n0\ndLegerPeers=n0-10.0.0.1:40911\n"
    cases = {
        "": ["broker port 0.0.0.0:20911", "fast port 0.0.0.0:20909", "ha port 0.0.0.0:20912"],
        "aclEnable=true\n": [],
        "aclEnable=true\nmetricsPort=5557\nmetricsAddress=0.0.0.0\n": ["metrics port 0.0.0.0:5557"],
        "aclEnable=true\nhaAllowedAddresses=10.0.0.2\n": ["ha port 0.0.0.0:20912"],
        f"{group}aclEnable=true\n": ["dledger port 10.0.0.1:40911"],
        f"{group}aclEnable=true\ndledger.clusterSecret=0123456789abcdef\ndledger.requireClusterSecret=true\n": [],
    }
    for more, expected in cases.items():
        file.write_text(common + more)
        rows = [row for row in of(findings(cluster, "-c", str(file)), "authentication") if "port" in row["subject"]]
        assert [row["subject"] for row in rows] == expected, more
        assert all(row["result"] == "note" and row["advice"] for row in rows)
    running = of(findings(cluster), "authentication")
    assert [(row["subject"].split()[0], row["result"]) for row in running] == [
        ("NameServer", "ok"),
        ("broker-a/0", "ok"),
    ]
    assert {row["text"] for row in running} == {"open without authentication, for this machine only"}


@pytest.mark.spec("UX-04")
def test_deploy_check_tries_the_addresses_that_clients_are_given(cluster: Cluster) -> None:
    done = cluster.cli("deploy", "check", "--json", env=cluster.environment)
    document = json.loads(done.stdout)
    assert document["command"] == "deploy check" and done.returncode == 0
    assert [(row["check"], row["result"]) for row in document["rows"]] == [
        ("NameServer", "ok"), ("advertised address", "ok"),
    ]  # fmt: skip


@pytest.mark.spec("UX-04")
def test_deploy_check_names_the_key_of_an_address_without_server(
    standalone: Callable[..., Any], started_cli: Callable[..., Any]
) -> None:
    server = standalone("--set", "advertisedPort=1")
    done = started_cli("deploy", "check", "-n", server.facts["namesrv"])
    assert done.returncode == 3, done.stderr
    assert "problem advertised address: broker-a/0 at 127.0.0.1:1: not usable from here" in done.stdout
    assert "what to do: set brokerIP1 there to a name or address that all clients reach" in done.stdout


@pytest.mark.spec("UX-04")
def test_deploy_check_without_a_server_says_how_to_start_one(started_cli: Callable[..., Any]) -> None:
    done = started_cli("deploy", "check", "-n", "127.0.0.1:1")
    assert done.returncode == 3 and "saturnmq namesrv" in done.stdout
