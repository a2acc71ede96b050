"""Commands of mqadmin on clusters: the list of brokers, and times of test sends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from admincli import AdminCli, registered

from saturnmq.admin.brokers import BrokerState
from saturnmq.cli.mqadmin import brokers
from saturnmq.protocol.codes import ResponseCode

BASE_HEAD = (
    f"{'#Cluster Name':<16}  {'#Broker Name':<22}  {'#BID':<4}  {'#Addr':<22} {'#Version':<16} {'#InTPS(LOAD)':>19} "
    f"{'#OutTPS(LOAD)':>19} {'#PCWait(ms)':>10} {'#Hour':>5} {'#SPACE':>6}"
)
MORE_HEAD = (
    f"{'#Cluster Name':<16}  {'#Broker Name':<32} {'#InTotalYest':>14} {'#OutTotalYest':>14} "
    f"{'#InTotalToday':>14} {'#OutTotalToday':>14}"
)
RT_HEAD = f"{'#Cluster Name':<24}  {'#Broker Name':<24}  {'#RT':<4}  {'#successCount':<8}  {'#failCount':<8}"
HOUR_MS = 3_600_000


# ---- clusterList


@pytest.mark.spec("C-19")
def test_cluster_list_has_a_row_per_broker(admin_cli: AdminCli) -> None:
    code, out, _ = admin_cli.run("clusterList")
    head, line = out.splitlines()
    assert code == 0 and head == BASE_HEAD
    start = f"{'DefaultCluster':<16}  {'broker-a':<22}  {0:<4}  {admin_cli.server.broker_address:<22} {'V4_9_7':<16} "
    rates = r" +\d+\.\d\d\(\d+,\d+ms\) +\d+\.\d\d\(\d+,\d+ms\)"
    assert line.startswith(start) and re.fullmatch(rates + r" +\d+ +\d+\.\d\d 0\.\d{4}", line.removeprefix(start))
    (row,) = admin_cli.json("clusterList")["rows"]
    assert row["in"] == {"tps": 0.0, "queued": 0, "head_wait_ms": 0} and 0 < row["space"] < 1


@pytest.mark.spec("C-19")
def test_cluster_list_prints_rate_queue_age_and_disk() -> None:
    runtime = {
        "brokerVersionDesc": "V4_9_7",
        "putTps": "12.345 1 2",
        "getTransferedTps": "0.125 3 4",
        "sendThreadPoolQueueSize": "7",
        "sendThreadPoolQueueHeadWaitTimeMills": "8",
        "pullThreadPoolQueueSize": "9",
        "pullThreadPoolQueueHeadWaitTimeMills": "10",
        "pageCacheLockTimeMills": "11",
        "earliestMessageTimeStamp": "1000",
        "commitLogDiskRatio": "0.25",
    }
    row = brokers._base(BrokerState("C", "b", 1, "a:1", runtime), 1000 + 90 * 60_000)
    assert [str(cell) for cell in row] == [
        "C", "b", "1", "a:1", "V4_9_7", "    12.35(7,8ms)", "     0.13(9,10ms)", "11", "1.50", "0.2500",
    ]  # fmt: skip


@pytest.mark.spec("C-19")
def test_cluster_list_of_a_broker_that_does_not_answer(admin_cli: AdminCli) -> None:
    dead = BrokerState("C", "b", 1, "a:1", {}, "no response")
    texts = [str(cell) for cell in brokers._base(dead, HOUR_MS)]
    assert texts == ["C", "b", "1", "a:1", "", "     0.00(,ms)", "     0.00(,ms)", "", "0.00", "0.0000"]
    assert brokers._totals(dead) == ("C", "b", 0, 0, 0, 0)
    with registered(admin_cli.server, "broker-z", "127.0.0.1:1"):
        code, out, err = admin_cli.run("clusterList")
    lines = out.splitlines()
    assert code == 1 and len(lines) == 3 and "127.0.0.1:1" in err
    assert lines[2].split() == [
        "DefaultCluster",
        "broker-z",
        "0",
        "127.0.0.1:1",
        "0.00(,ms)",
        "0.00(,ms)",
        "0.00",
        "0.0000",
    ]


@pytest.mark.spec("C-19")
def test_cluster_list_with_totals_of_days(admin_cli: AdminCli) -> None:
    out = admin_cli.text("clusterList", "-m")
    assert out.splitlines()[0] == MORE_HEAD
    assert re.fullmatch(r"DefaultCluster    broker-a {24}( +\d+){4}", out.splitlines()[1])
    days = {"YesterdayMorning": 1, "TodayMorning": 10, "TodayNow": 100}
    runtime = {f"msgPutTotal{day}": str(count) for day, count in days.items()}
    runtime |= {f"msgGetTotal{day}": str(count * 2) for day, count in days.items()}
    assert brokers._totals(BrokerState("C", "b", 0, "a", runtime))[2:] == (9, 18, 90, 180)


@pytest.mark.spec("C-19")
def test_cluster_list_repeats(admin_cli: AdminCli, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(brokers, "sleep", sleep)
    out = admin_cli.text("clusterList", "-i", "7", "--rounds", "3")
    assert out.splitlines().count(BASE_HEAD) == 3 and slept == [7, 7]
    code, out, _ = admin_cli.run("clusterList", "-i", "0", "--rounds", "2", "--json")
    assert code == 0 and [json.loads(line)["command"] for line in out.splitlines()] == ["admin clusterList"] * 2


# ---- test sends


@pytest.mark.spec("C-14")
def test_send_msg_status_sends_a_short_message_first(admin_cli: AdminCli) -> None:
    tap = admin_cli.server.inner.tap
    before = len(tap.requests)
    lines = admin_cli.text("sendMsgStatus", "-b", "broker-a", "-s", "30", "-c", "2").splitlines()
    sent = [request.body for request in list(tap.requests)[before:] if request.name.startswith("SEND_MESSAGE")]
    assert sent == [b"hello jodie" * 2, b"hello jodie" * 3, b"hello jodie" * 3]
    form = (
        r"rt=\d+ms, SendResult=SendResult \[sendStatus=SEND_OK, msgId=[0-9A-F]+, offsetMsgId=[0-9A-F]{32}, "
        r"messageQueue=MessageQueue \[topic=broker-a, brokerName=broker-a, queueId=0\], queueOffset=\d+\]"
    )
    assert len(lines) == 2 and all(re.fullmatch(form, line) for line in lines)


@pytest.mark.spec("C-14")
def test_send_msg_status_has_the_defaults_of_mqadmin(admin_cli: AdminCli) -> None:
    tap = admin_cli.server.inner.tap
    before = len(tap.requests)
    assert len(admin_cli.json("sendMsgStatus", "-b", "broker-a")["rows"]) == 50
    sent = [request.body for request in list(tap.requests)[before:] if request.name.startswith("SEND_MESSAGE")]
    assert {len(body or b"") for body in sent[1:]} == {132}  # words of 11 bytes, 128 at least
    assert admin_cli.run("sendMsgStatus")[0] == 1
    code, out, err = admin_cli.run("sendMsgStatus", "-b", "broker-a", "--dry-run")
    assert (code, out) == (0, "") and "SEND_MESSAGE topic=broker-a times=51" in err


@pytest.mark.spec("C-20")
def test_cluster_rt_prints_a_row_per_broker_and_round(admin_cli: AdminCli) -> None:
    tap = admin_cli.server.inner.tap
    before = len(tap.requests)
    lines = admin_cli.text("clusterRT", "-a", "3", "-s", "20", "-i", "0", "--rounds", "2").splitlines()
    assert lines[0] == RT_HEAD and len(lines) == 3
    row = rf"{'DefaultCluster':<24}  {'broker-a':<24}  \d+\.\d\d +{3:<16}  {0:<16}"
    assert all(re.fullmatch(row, line) for line in lines[1:])
    sent = [request for request in list(tap.requests)[before:] if request.name.startswith("SEND_MESSAGE")]
    assert [(request.ext["b"], request.body) for request in sent] == [("broker-a", b"a" * 20)] * 6


@pytest.mark.spec("C-20")
def test_cluster_rt_sends_to_the_topic_of_each_broker(admin_cli: AdminCli) -> None:
    address = admin_cli.server.broker_address
    admin_cli.text("updateTopic", "-b", "{broker}", "-t", "broker-b")
    before = len(admin_cli.server.inner.tap.requests)
    with registered(
        admin_cli.server, "broker-b", f"localhost:{address.rpartition(':')[2]}", "broker-b", cluster="Second"
    ):
        rows = admin_cli.json("clusterRT", "-a", "2", "--rounds", "1")["rows"]
    assert sorted((row["cluster"], row["broker_name"], row["success_count"]) for row in rows) == [
        ("DefaultCluster", "broker-a", 2),
        ("Second", "broker-b", 2),
    ]
    requests = list(admin_cli.server.inner.tap.requests)[before:]
    topics = [request.ext["b"] for request in requests if request.name.startswith("SEND_MESSAGE")]
    assert sorted(topics) == ["broker-a"] * 2 + ["broker-b"] * 2


@pytest.mark.spec("C-20")
def test_cluster_rt_has_the_defaults_of_mqadmin(admin_cli: AdminCli, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(brokers, "sleep", sleep)
    tap = admin_cli.server.inner.tap
    before = len(tap.requests)
    code, out, _ = admin_cli.run("clusterRT", "--rounds", "2", "--json")
    (row,), (other,) = (json.loads(line)["rows"] for line in out.splitlines())
    assert (code, row["success_count"], row["fail_count"], other["success_count"]) == (0, 100, 0, 100)
    assert slept == [10]
    admin_cli.text("clusterRT", "-a", "1", "-i", "3", "--rounds", "2")
    assert slept == [10, 3]
    sent = [request for request in list(tap.requests)[before:] if request.name.startswith("SEND_MESSAGE")]
    assert {(request.ext["b"], request.body) for request in sent[:200]} == {("broker-a", b"a" * 128)}


@pytest.mark.spec("C-20")
def test_cluster_rt_as_lines_of_a_log(admin_cli: AdminCli) -> None:
    words = ("clusterRT", "-a", "2", "-p", "true", "-i", "0", "--rounds", "1", "-c", "DefaultCluster")
    (line,) = admin_cli.text(*words).splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\|noname\|DefaultCluster\|broker-a\|\d+", line)
    printed = datetime.strptime(f"{line[:19]} +0800", "%Y-%m-%d %H:%M:%S %z")
    assert abs(datetime.now(UTC) - printed) < timedelta(minutes=1), "GMT+8"
    with registered(admin_cli.server, "broker-z", "127.0.0.1:1", cluster="Elsewhere"):
        (line,) = admin_cli.text(*words, "-m", "east").splitlines()
    assert "|east|DefaultCluster|broker-a|" in line
    code, out, err = admin_cli.run("clusterRT", "-a", "1", "-c", "Nowhere")
    assert code == 1 and out.splitlines()[1] == "cluster [Nowhere] not exist" and "DefaultCluster" in err


@pytest.mark.spec("C-20")
def test_cluster_rt_counts_sends_that_fail(admin_cli: AdminCli) -> None:
    admin_cli.server.inner.tap.answer_next({310}, ResponseCode.MESSAGE_ILLEGAL, "refused", 1)
    code, out, err = admin_cli.run("clusterRT", "-a", "3", "--rounds", "1")
    assert code == 1 and "refused" in err
    assert out.splitlines()[1].split()[3:] == ["2", "1"]


@pytest.mark.spec("C-20")
def test_cluster_rt_excludes_the_first_send(monkeypatch: pytest.MonkeyPatch, admin_cli: AdminCli) -> None:
    ticks = iter([0, 900, 1000, 1001, 2000, 2004])  # ms: 900, 1, 4
    monkeypatch.setattr("saturnmq.admin.messages.time.monotonic_ns", lambda: next(ticks) * 1_000_000)
    (row,) = admin_cli.json("clusterRT", "-a", "3", "--rounds", "1")["rows"]
    assert row["rt_ms"] == 2.5


@pytest.mark.realtime
@pytest.mark.spec("C-19", "C-20")
@pytest.mark.parametrize("words", [["clusterList", "-i", "60"], ["clusterRT", "-i", "60", "-a", "2"]])
def test_an_endless_command_ends_with_130(admin_cli: AdminCli, words: list[str]) -> None:
    command = [sys.executable, "-m", "saturnmq.cli", "admin", *words, "-n", admin_cli.server.name_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)][1].startswith("DefaultCluster ")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
