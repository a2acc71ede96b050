"""The checks of `saturnmq doctor`: what counts as a problem, and what is advised."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import certificates
from saturnmq.cli.everyday.checks import cluster, host
from saturnmq.cli.everyday.checks.certificates import certificate_end, not_after
from saturnmq.cli.everyday.checks.finding import Finding, Result
from saturnmq.errors import CallTimeout, ConnectFailed
from saturnmq.protocol.bodies import BrokerData, ClusterInfo
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import response_error

NOW_MS = 1_790_000_000_000


def results(found: list[Finding]) -> list[str]:
    return [each.result.value for each in found]


@pytest.mark.spec("OPS-09")
def test_kernel_settings_are_compared_with_those_of_os_sh(tmp_path: Path) -> None:
    folder = tmp_path / "sys" / "vm"
    folder.mkdir(parents=True)
    (tmp_path / "meminfo").write_text("MemTotal:       64000000 kB\n")
    for setting in host.KERNEL:
        (folder / setting.name).write_text(f"{setting.value}\n")
    assert results(list(host.kernel(tmp_path))) == ["ok"] * 9
    (folder / "swappiness").write_text("1\n")  # os.sh of 4.9.7
    (folder / "max_map_count").write_text("1048576\n")
    assert results(list(host.kernel(tmp_path))) == ["ok"] * 9
    (folder / "swappiness").write_text("60\n")
    (folder / "max_map_count").write_text("65530\n")
    (folder / "min_free_kbytes").write_text("67584\n")
    advised = {each.subject: each.advice for each in host.kernel(tmp_path) if each.result is Result.NOTE}
    assert advised == {
        f"vm.{name}": f"sysctl -w vm.{name}={value}, and the same line in /etc/sysctl.d/"
        for name, value in (("min_free_kbytes", 5_000_000), ("max_map_count", 655_360), ("swappiness", 10))
    }


@pytest.mark.spec("OPS-09")
def test_kernel_setting_for_large_memory_is_not_advised_on_a_small_machine(tmp_path: Path) -> None:
    (tmp_path / "sys" / "vm").mkdir(parents=True)
    (tmp_path / "meminfo").write_text("MemTotal:        8000000 kB\n")
    (tmp_path / "sys" / "vm" / "min_free_kbytes").write_text("67584\n")
    found = {each.subject: each for each in host.kernel(tmp_path)}
    assert found["vm.min_free_kbytes"].result is Result.OK
    assert found["vm.swappiness"].text == "cannot be read"


@pytest.mark.spec("OPS-09")
def test_few_descriptors_are_a_problem() -> None:
    (few,) = host.descriptors((1024, 4096))
    assert few.result is Result.PROBLEM and "LimitNOFILE=655350" in few.advice
    assert (
        results([*host.descriptors((1024, 655_350)), *host.descriptors((1024, -1)), *host.descriptors(None)])
        == ["ok"] * 3
    )


@pytest.mark.spec("OPS-09")
@pytest.mark.parametrize(("text", "result"), [("none [mq-deadline] kyber", "ok"), ("none mq-deadline [bfq]", "note")])
def test_io_scheduler_of_the_disk_is_compared(tmp_path: Path, text: str, result: str) -> None:
    device = tmp_path.stat().st_dev
    queue = tmp_path / f"{os.major(device)}:{os.minor(device)}" / "queue"
    queue.mkdir(parents=True)
    (queue / "scheduler").write_text(text + "\n")
    assert results(list(host.scheduler(tmp_path / "not" / "yet", tmp_path))) == [result]


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(
    ("percent", "result"), [(74, "ok"), (75, "note"), (84, "note"), (85, "problem"), (90, "problem")]
)
def test_disk_use_is_judged_by_the_brokers_limits(percent: int, result: str) -> None:
    assert host.disk_finding("store", percent, f"{percent} %").result.value == result


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(
    ("address", "local", "fails", "result"),
    [
        ("10.0.0.5:10911", False, False, "ok"),
        ("10.0.0.5:10911", False, True, "problem"),
        ("127.0.0.1:10911", True, False, "ok"),
        ("127.0.0.1:10911", False, False, "problem"),
        ("localhost:10911", False, False, "problem"),
        ("172.17.0.2:10911", False, False, "note"),
        ("172.17.0.2:10911", False, True, "problem"),
        ("broker.docker.internal:10911", False, False, "note"),
    ],
)
def test_advertised_address_must_be_usable_by_others(address: str, local: bool, fails: bool, result: str) -> None:
    error = ConnectFailed("connection refused") if fails else None
    found = cluster.address_finding("broker-a", address, error, local=local)
    assert found.result.value == result
    assert ("brokerIP1" in found.advice) is (result != "ok")


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(("boot", "skew"), [(0, 0), (-3_000, -1_700), (9_000, 8_700), (-900, 0), (200, 0)])
def test_clock_skew_is_read_from_boot_and_running_time(boot: int, skew: int) -> None:
    values = {"bootTimestamp": str(NOW_MS + boot - 93_784_000), "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"}
    assert cluster.clock_skew_ms(cluster.Runtime(values, NOW_MS - 300, NOW_MS + 300)) == skew
    assert cluster.clock_skew_ms(cluster.Runtime(values | {"runtime": "soon"}, NOW_MS, NOW_MS)) is None


@pytest.mark.spec("CLI-06")
def test_broker_that_refuses_or_hangs_is_not_blamed_on_its_address() -> None:
    refusal = response_error(ResponseCode.SYSTEM_ERROR, "No accessKey is configured")
    found = cluster.address_finding("broker-a", "10.0.0.5:10911", refusal, local=False)
    assert found.result.value == "note" and "tools.yml" in found.advice and "brokerIP1" not in found.advice
    found = cluster.address_finding("broker-a", "10.0.0.5:10911", CallTimeout("no response"), local=False)
    assert found.result.value == "problem" and "hangs" in found.advice


def listing(*addresses: str) -> ClusterInfo:
    data = BrokerData(cluster="c", broker_name="broker-a", broker_addrs=dict(enumerate(addresses)))
    return ClusterInfo(broker_addr_table={"broker-a": data}, cluster_addr_table={"c": ["broker-a"]})


@pytest.mark.spec("CLI-06")
def test_name_servers_must_list_the_same_brokers() -> None:
    same = {"ns-a:9876": listing("b:1", "b:2"), "ns-b:9876": listing("b:1", "b:2")}
    assert results(list(cluster.name_servers(same))) == ["ok", "ok"]
    found = list(cluster.name_servers(same | {"ns-c:9876": listing("b:1")}))
    assert results(found) == ["ok", "ok", "ok", "problem"]
    assert "ns-a:9876: 2, ns-b:9876: 2, ns-c:9876: 1" in found[-1].text
    assert cluster.routed({"ns": listing("b:1", "no port", "b:123456789")}) == {"b:1": "broker-a/0"}


@pytest.mark.spec("CLI-06")
def test_differing_versions_are_noted() -> None:
    states = {name: cluster.Runtime({"brokerVersionDesc": name[0]}, 0, 0) for name in ("V1", "V2", "W1")}
    assert results(list(cluster.equal_versions(states))) == ["note"]
    del states["W1"]
    assert results(list(cluster.equal_versions(states))) == ["ok"]


@pytest.mark.spec("CLI-06")
def test_end_of_a_certificate_is_read_from_its_bytes(tmp_path: Path) -> None:
    path, _ = certificates.write_certificate(tmp_path, "broker")
    der = ssl.PEM_cert_to_DER_cert(path.read_text())
    end, now = not_after(der), datetime.now(UTC)
    assert timedelta(hours=23) < end - now < timedelta(hours=25)
    assert certificate_end("c", der, end).result is Result.PROBLEM
    assert certificate_end("c", der, end - timedelta(days=29)).result is Result.NOTE
    assert certificate_end("c", der, end - timedelta(days=31)).result is Result.OK


@pytest.mark.spec("CLI-06")
def test_bytes_that_are_no_certificate_are_a_problem(tmp_path: Path) -> None:
    path, _ = certificates.write_certificate(tmp_path, "broker")
    der = ssl.PEM_cert_to_DER_cert(path.read_text())
    for length in range(0, len(der), 7):
        found = certificate_end("c", der[:length], datetime.now(UTC))
        assert found.result is Result.PROBLEM and "is none" in found.text
