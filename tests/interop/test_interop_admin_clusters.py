"""`saturnmq admin` prints what `mqadmin` prints for two clusters, of which one has two masters and a slave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import saturn
from admin_compare import Comparison, JavaAdmin, Line, Printed, expected, masked, run_ours

from ports import free_port

MASTERS = (("broker-a", "DefaultCluster"), ("broker-b", "DefaultCluster"), ("broker-c", "OtherCluster"))
VALUES = ((r"(: ).*$", r"\1..."),)
RATES = ((r" +\d+\.\d\d +0\.\d{4}", " hour space"), (r"\d+\.\d\d\(", "tps("), (r"\) +\d+ hour", ") wait hour"))

LINES = (
    Line("topicRoute -t SELF_TEST_TOPIC"),
    Line("topicRoute -t SELF_TEST_TOPIC -l"),
    Line("topicStatus -t SELF_TEST_TOPIC"),
    Line("topicClusterList -t SELF_TEST_TOPIC"),
    Line("topicList"),
    Line("topicList -c"),
    Line("allocateMQ -t BenchmarkTest -i a,b,c,d,e,f,g"),
    Line("clusterList", masks=RATES),
    Line("clusterList -m"),
    Line("getBrokerConfig -c DefaultCluster", rows_sorted=True),
    Line("brokerStatus -c DefaultCluster", masks=VALUES),
    Line("updateTopic -c DefaultCluster -t {side}Many -o true -w 4", writes=True),
    Line("updateTopic -b {slave} -t {side}Slave", writes=True, code=1),
    Line("updateTopicPerm -c DefaultCluster -t {side}P -p 4", writes=True, before=("updateTopic -c DefaultCluster -t {side}P",)),
    Line("updateTopicPerm -b {slave} -t BenchmarkTest -p 4", writes=True, code=1),
    Line("deleteTopic -c DefaultCluster -t {side}D", writes=True, before=("updateTopic -c DefaultCluster -t {side}D",)),
    Line("updateBrokerConfig -c DefaultCluster -k fileReservedTime -v 70", writes=True),
    Line("cleanExpiredCQ", writes=True),
    Line("cleanUnusedTopic -c OtherCluster", writes=True),
    Line("updateNamesrvConfig -k topicsMax -v 100000", writes=True),
    Line("wipeWritePerm -b broker-c", writes=True, masks=((r"OK, \d+", "OK"),)),
)  # fmt: skip


def until_listed(address: str, servers: str) -> None:
    """Poll until the NameServer lists a broker."""
    deadline = time.monotonic() + 60
    while address not in run_ours(["clusterList", "-n", servers]).out:
        assert time.monotonic() < deadline, f"{address} did not register"
        time.sleep(0.2)  # poll


@pytest.fixture(scope="module")
def results(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Printed, Printed]]]:
    folder = tmp_path_factory.mktemp("clusters")
    with ExitStack() as stack:
        port = free_port()
        servers = f"127.0.0.1:{port}"
        stack.callback(saturn.start_namesrv(port).stop)
        for name, cluster in MASTERS:
            at = free_port(saturn.BROKER_PORT_OFFSETS)
            settings = {"haListenPort": str(at + 1)}
            stack.callback(saturn.start_broker(folder, at, servers, name=name, cluster=cluster, settings=settings).stop)
        at = free_port(saturn.BROKER_PORT_OFFSETS)
        settings = {"brokerRole": "SLAVE", "brokerId": "1", "storePathRootDir": str(folder / "slave")}
        settings["haListenPort"] = str(at + 1)
        stack.callback(saturn.start_broker(folder, at, servers, settings=settings).stop)
        slave = f"127.0.0.1:{at}"
        until_listed(slave, servers)
        java = stack.enter_context(JavaAdmin(home))
        words = {"ns": servers, "slave": slave}
        yield Comparison(java, words, folder / "files").run_all(LINES)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.id)
def test_command_prints_the_same_on_two_clusters(results: dict[str, tuple[Printed, Printed]], line: Line) -> None:
    theirs, ours = results[line.id]
    assert masked(ours.out, line) == expected(theirs, line), (theirs.err[-2000:], ours.err[-2000:])
    assert ours.code == line.code, ours.err
