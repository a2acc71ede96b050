"""Protected clusters, Apache's and ours: the Python client, Spark and the Go client sign, and are refused with reasons."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache
import gotools
import pytest
import saturn
from aclaccounts import ACCOUNTS, ADMIN, TOPICS, USER, write_accounts
from peers import Peer

import saturnmq.sync
from harness.gate.peers import missing
from saturnmq import Client, Outgoing, ResponseError
from saturnmq.errors import SendFailed
from saturnmq.protocol.errors import SaturnError
from waiting import until

MODERN = ("modernuser", "modern-secret-333")  # its account refuses signatures of version 1
SECRETS = (ADMIN[1], USER[1], MODERN[1], "guessed-secret")
MODERN_ACCOUNT = f"""
- accessKey: {MODERN[0]}
  secretKey: {MODERN[1]}
  signatureVersion: 2
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
QUICK = {"route_poll_ms": 500, "rebalance_ms": 1000, "timeout": 10.0, "attempts": 1}
pytestmark = pytest.mark.loop(seconds=90)
_numbers = itertools.count()


def account(pair: tuple[str, str]) -> dict[str, str]:
    return {"access_key": pair[0], "secret_key": pair[1]}


def create_topics(peer: Peer) -> None:
    with saturnmq.sync.Client(name_servers=peer.name_servers, **account(ADMIN), **QUICK) as client:
        for topic in TOPICS:
            assert client.create_topic(topic, queues=2) == ["broker-a"]


@pytest.fixture(scope="module")
def saturn_protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp("saturn-acl")
    write_accounts(folder, ACCOUNTS + MODERN_ACCOUNT)
    with saturn.SaturnCluster(folder, settings={"aclEnable": "true", "rocketmqHome": str(folder)}) as cluster:
        create_topics(cluster)
        yield cluster


@pytest.fixture(scope="module")
def apache_protected(tmp_path_factory: pytest.TempPathFactory, java: None) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp("apache-acl")
    write_accounts(folder / "broker-a")
    with apache.ApacheCluster(folder, settings={"aclEnable": "true"}) as cluster:
        create_topics(cluster)
        yield cluster


@pytest.fixture(params=["apache", "saturn"])
def protected(request: pytest.FixtureRequest) -> Peer:
    peer: Peer = request.getfixturevalue(f"{request.param}_protected")
    return peer


def hides_secrets(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


# the Python client


@pytest.mark.spec("ACL-18", "ACL-19", "SPR-07")
@pytest.mark.parametrize("how", ["settings", "key file", "url"])
async def test_python_client_sends_and_consumes_with_its_rights(protected: Peer, how: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"AccessKey={USER[0]}\nSecretKey={USER[1]}\n")
    group, mark = f"open{next(_numbers)}", f"{how} {next(_numbers)}".encode()

    def make() -> Client:
        if how == "url":
            return Client.from_url(f"rmq://{USER[0]}:{USER[1]}@{protected.name_servers}", **QUICK)
        given: dict[str, Any] = account(USER) if how == "settings" else {"key_file": str(file)}
        return Client(name_servers=protected.name_servers, **given, **QUICK)

    async with make() as client, client.producer("producers") as out:
        async with client.consumer(group, start="first") as inbox:
            await inbox.subscribe("Both")
            for number in range(10):
                await out.send("Both", mark + b" %d" % number)
            await out.send_many("Both", [Outgoing(value=mark + b" 10"), Outgoing(value=mark + b" 11")])
            mine: set[bytes] = set()
            while len(mine) < 12:
                message = await inbox.recv(30)
                if message.body.startswith(mark):
                    mine.add(message.body)
                await message.ack()
        async with client.consumer(f"{group}ordered", start="last", ordered=True) as inbox:
            await inbox.subscribe("Both")
            assert len(await inbox.wait_assigned(30)) == 2, "locks are granted"


@pytest.mark.spec("ACL-08", "ACL-10", "API-02")
@pytest.mark.parametrize(
    ("pair", "topic", "reason"),
    [
        (None, "Both", "No accessKey is configured"),
        (("stranger", "guessed-secret"), "Both", "No acl config for stranger"),
        ((USER[0], "guessed-secret"), "Both", f"Check signature failed for accessKey={USER[0]}"),
        (USER, "Read", "AclException"),
        (USER, "Never", "topic:Never"),
    ],
)
async def test_python_client_is_refused_with_the_brokers_reason(
    protected: Peer, pair: tuple[str, str] | None, topic: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    given = account(pair) if pair else {}
    async with (
        Client(name_servers=protected.name_servers, **given, **QUICK) as client,
        client.producer("p") as out,
    ):
        with pytest.raises((SendFailed, ResponseError)) as caught:
            await out.send(topic, b"x")
        assert reason in str(caught.value)
        assert topic in str(caught.value) and hides_secrets(str(caught.value) + repr(caught.value))
    assert hides_secrets(caplog.text)


@pytest.mark.spec("ACL-10")
async def test_python_consumer_without_the_right_receives_nothing(
    protected: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Client(name_servers=protected.name_servers, **account(ADMIN), **QUICK) as admin,
        admin.producer("admins") as out,
    ):
        await out.send("Write", b"not for the user")
    async with (
        Client(name_servers=protected.name_servers, **account(USER), **QUICK) as client,
        client.consumer(f"open{next(_numbers)}", start="first") as inbox,
    ):
        await inbox.subscribe("Write")
        with pytest.raises(TimeoutError):
            await inbox.recv(3)
    assert "Write" in caplog.text and "AclException" in caplog.text


@pytest.mark.spec("SEC-10")
async def test_python_client_signs_version_2_for_our_broker_only(
    saturn_protected: Peer, apache_protected: Peer
) -> None:
    async def send(peer: Peer, pair: tuple[str, str], signature: str) -> str:
        async with (
            Client(name_servers=peer.name_servers, **account(pair), signature=signature, **QUICK) as client,
            client.producer("p") as out,
        ):
            try:
                await out.send("Both", b"x")
            except SaturnError as error:
                return str(error)
        return ""

    assert await send(saturn_protected, MODERN, "v2") == ""
    assert await send(saturn_protected, USER, "v2") == ""
    assert MODERN[0] in await send(saturn_protected, MODERN, "v1"), "the account refuses version 1"
    assert "Check signature failed" in await send(apache_protected, USER, "v2")


# the Spark connector


@pytest.fixture(scope="module")
def spark(java: None) -> Iterator[Any]:
    from saturnmq.spark import session
    from saturnmq.spark.connect import close_all

    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        before = dict(os.environ)
        made = session("saturnmq-interop-acl", **settings)
        for name in ("JAVA_HOME", "SATURNMQ_SPARK_PUSHDOWN"):  # the Java version of the tests is kept
            patch.setitem(os.environ, name, before[name]) if name in before else os.environ.pop(name, None)
        yield made
        made.stop()
        close_all()


def options(peer: Peer, topic: str, pair: tuple[str, str], **more: str) -> dict[str, str]:
    given = {"nameServer": peer.name_servers, "topic": topic, "accessKey": pair[0], "secretKey": pair[1]}
    return given | {"pullTimeoutMs": "10000"} | more


@pytest.mark.spec("SPK-11", "SRC-20")
def test_spark_reads_and_writes_a_protected_topic(
    spark: Any, protected: Peer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither the plans nor what the driver and the workers print hold the secret."""
    mark = f"spark {next(_numbers)} "
    rows = spark.range(20).selectExpr(f"encode(concat('{mark}', id), 'utf-8') body")
    written = options(protected, "Both", USER)
    del written["pullTimeoutMs"]
    rows.write.format("rocketmq").mode("append").options(**written).save()

    read = spark.read.format("rocketmq").options(columns="body", **options(protected, "Both", USER)).load()
    bodies = sorted(bytes(row["body"]).decode() for row in read.collect())
    assert [body for body in bodies if body.startswith(mark)] == sorted(f"{mark}{n}" for n in range(20))

    file = tmp_path / "key"
    file.write_text(f"AccessKey={USER[0]}\nSecretKey={USER[1]}\n")
    by_file = {"nameServer": protected.name_servers, "topic": "Both", "columns": "body", "keyFile": str(file)}
    assert spark.read.format("rocketmq").options(**by_file).load().count() == len(bodies)

    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        read.where("body is not null").explain(mode=mode)
    plans = str(read._jdf.queryExecution().toString()) + str(read._jdf.queryExecution().stringWithStats())
    printed = capfd.readouterr()
    assert "Scan" in printed.out or "Relation" in printed.out
    assert hides_secrets(plans + printed.out + printed.err)


@pytest.mark.spec("SPK-11")
@pytest.mark.parametrize(
    ("pair", "reason"),
    [((USER[0], "guessed-secret"), "Check signature failed"), (("stranger", "guessed-secret"), "No acl config")],
)
def test_spark_refusal_hides_the_secret(
    spark: Any, protected: Peer, pair: tuple[str, str], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    given = options(protected, "Both", pair, columns="body", readTimeoutMs="3000")
    with pytest.raises(Exception, match=reason) as caught:
        spark.read.format("rocketmq").options(**given).load().count()
    written = {name: text for name, text in options(protected, "Both", pair).items() if name != "pullTimeoutMs"}
    with pytest.raises(Exception, match=reason) as refused:
        rows = spark.range(1).selectExpr("encode('x', 'utf-8') body")
        rows.write.format("rocketmq").mode("append").options(**written).save()
    printed = capfd.readouterr()
    assert hides_secrets(str(caught.value) + repr(caught.value) + str(refused.value) + printed.out + printed.err)


@pytest.mark.spec("SPK-11", "SRC-20")
async def test_spark_stream_checkpoint_holds_no_secret(spark: Any, saturn_protected: Peer, tmp_path: Path) -> None:
    async with (
        Client(name_servers=saturn_protected.name_servers, **account(MODERN), signature="v2") as client,
        client.producer("p") as out,
    ):
        await out.send("Both", b"streamed")
    given = options(saturn_protected, "Both", MODERN, signature="v2", startingOffsets="earliest", columns="body")
    rows = spark.readStream.format("rocketmq").options(**given).load()
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "out"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
        assert hides_secrets(json.dumps(query.lastProgress, default=str))
    finally:
        query.stop()
    found = [bytes(row["body"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert b"streamed" in found
    files = [path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files and all(secret.encode() not in data for data in files for secret in SECRETS)


# the Go client


@pytest.fixture(scope="module")
def go() -> None:
    reason = gotools.why_not()
    if reason:
        missing(reason.removeprefix("skipped: "))


@pytest.mark.spec("ACL-19", "SEC-08")
def test_go_client_sends_and_consumes_with_its_rights(protected: Peer, go: None, tmp_path: Path) -> None:
    common: dict[str, Any] = {"home": tmp_path, "ns": protected.name_servers, "topic": "Both"}
    keys = {"accessKey": USER[0], "secretKey": USER[1]}
    sent = [row for row in gotools.run_go("send", count=6, **common, **keys).results if "sent" in row]
    assert [row["status"] for row in sent] == ["SEND_OK"] * 6
    got = gotools.run_go("consume", group=f"open{next(_numbers)}", count=6, **common, **keys).results
    assert len([row for row in got if "received" in row]) >= 6
    for refused in ({}, keys | {"secretKey": "guessed-secret"}):
        with pytest.raises(AssertionError, match=r"message 0.*(AclException|accessKey|signature)"):
            gotools.run_go("send", count=1, **common, **refused)


async def test_nothing_in_the_logs_of_our_broker_holds_a_secret(saturn_protected: Peer) -> None:
    """After the tests above: the console of the process, which they filled with refusals."""
    assert isinstance(saturn_protected, saturn.SaturnCluster) and saturn_protected.broker is not None
    broker = saturn_protected.broker
    await until(lambda: "saturnmq: ready" in broker.output)
    assert hides_secrets(broker.output)
