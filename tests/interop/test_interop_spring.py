"""An application of rocketmq-spring, unmodified from Maven, on our NameServer and broker (and, as the control, on Apache's).

tests/interop/spring is the application. It runs once: with access control, every kind of listener, template and transaction
listener, a second cluster in a namespace over TLS, and our Python client as its peer. The tests read what it reported.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apache
import javatools
import pytest
import saturn
from aclaccounts import ADMIN, write_accounts
from peers import Peer
from processes import ServerProcess

import saturnmq.sync
from certificates import write_certificate
from saturnmq import Client, Message, str_codec
from saturnmq.client.trace.records import Pub, SubAfter

pytestmark = pytest.mark.loop(seconds=90)

ACCOUNT: Final = ("springuser", "spring-secret-44")
ACCOUNTS: Final = f"""
accounts:
- accessKey: {ADMIN[0]}
  secretKey: {ADMIN[1]}
  admin: true
- accessKey: {ACCOUNT[0]}
  secretKey: {ACCOUNT[1]}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: PUB|SUB
  topicPerms:
  - SpringNever=DENY
"""
KINDS: Final = "Text Orders Steps Retries News Shared Prices Payments Pulled Slow Never Trace"
TOPICS: Final = [f"Spring{kind}" for kind in KINDS.split()] + ["PythonPrices"]
OTHER_TOPICS: Final = ["shop%SpringOther", "SpringOtherPulled", "SpringOtherTrace"]
CHECKS: Final = {"transactionCheckInterval": "1000", "transactionTimeOut": "1000", "enablePropertyFilter": "true"}
STARTER: Final = "2.2.2"
KEYS: Final = {"access_key": ADMIN[0], "secret_key": ADMIN[1]}


def client_of(peer: Peer) -> Client:
    return Client(name_servers=peer.name_servers, timeout=10.0, **KEYS)


@dataclass
class Application:
    """The application that ran, its two clusters, and what it reported."""

    peer: Peer
    other: Peer
    rows: list[dict[str, Any]]
    exit_code: int

    def about(self, key: str, value: object = None) -> list[dict[str, Any]]:
        """The reports that have this key, and this value of it if one is given."""
        return [row for row in self.rows if key in row and value in (None, row[key])]

    def payloads(self, listener: str) -> list[Any]:
        return [row["payload"] for row in self.about("received", listener)]

    def client(self) -> Client:
        return client_of(self.peer)

    def message(self, payload: str) -> dict[str, Any]:
        """What the listener that takes raw messages received."""
        (row,) = (row for row in self.about("received", "raw") if row["payload"] == payload)
        return row


def start_clusters(kind: str, folder: Path, stack: ExitStack) -> tuple[Peer, Peer]:
    """A cluster with accounts, and one without that speaks TLS."""
    write_accounts(folder / "acl" if kind == "saturn" else folder / "acl" / "broker-a", ACCOUNTS)
    settings = {"aclEnable": "true", **CHECKS}
    peers: tuple[Peer, Peer]
    if kind == "saturn":
        certificate, key = write_certificate(folder, "server")
        tls = {"tls.server.certPath": str(certificate), "tls.server.keyPath": str(key)}
        protected = saturn.SaturnCluster(folder / "acl", settings={**settings, "rocketmqHome": str(folder / "acl")})
        peers = protected, saturn.SaturnCluster(folder / "other", settings={**CHECKS, **tls})
    else:
        peers = apache.ApacheCluster(folder / "acl", settings=settings), apache.ApacheCluster(folder / "other")
    peer: Peer
    for peer, topics in zip(peers, (TOPICS, OTHER_TOPICS), strict=True):
        stack.enter_context(peer)
        with saturnmq.sync.Client(name_servers=peer.name_servers, timeout=10.0, **KEYS) as client:
            for topic in topics:
                client.create_topic(topic, queues=2)
            if peer is peers[1]:
                with client.producer("pulled") as out:
                    for tag in ("unwanted", "wanted"):
                        out.send("SpringOtherPulled", tag.encode(), tag=tag)
    return peers


def start_application(peer: Peer, other: Peer, home: Path, starter: str) -> ServerProcess:
    jars = (
        javatools.classpath(javatools.SPRING)
        if starter == STARTER
        else javatools.classpath_of(starter, javatools.SPRING, "rocketmq-spring")
    )
    properties = {
        "spring.main.banner-mode": "off",
        "logging.level.root": "WARN",
        "rocketmq.name-server": peer.name_servers,
        "rocketmq.producer.group": "spring-producers",
        "rocketmq.producer.access-key": ACCOUNT[0],
        "rocketmq.producer.secret-key": ACCOUNT[1],
        "rocketmq.producer.enable-msg-trace": "true",
        "rocketmq.producer.customized-trace-topic": "SpringTrace",
        "rocketmq.consumer.access-key": ACCOUNT[0],
        "rocketmq.consumer.secret-key": ACCOUNT[1],
        "rocketmq.consumer.listeners.spring-off.SpringText": "false",
        "other.name-server": other.name_servers,
        "other.tls": str(isinstance(other, saturn.SaturnCluster)).lower(),
    }
    reader = "rocketmq.consumer" if starter == STARTER else "rocketmq.pull-consumer"
    pulled = {"group": "spring-pullers", "topic": "SpringPulled", "selector-expression": "wanted"}
    keys = {"access-key": ACCOUNT[0], "secret-key": ACCOUNT[1]}
    properties |= {f"{reader}.{key}": value for key, value in {**pulled, **keys, "pull-batch-size": "10"}.items()}
    arguments = [f"--{key}={value}" for key, value in properties.items()]
    command = javatools.java_command("interop.spring.Application", arguments, home=home, heap_mb=512, jars=jars)
    return ServerProcess(command, name="Spring application", env=javatools.java_environment(home), cwd=home)


async def drive(process: ServerProcess, client: Client) -> None:
    """Be the peer of the application: reply to it, ask it, send to it; return while its listener is busy."""

    async def line(pattern: str) -> None:
        await asyncio.to_thread(process.wait_for_line, pattern, 120)

    @client.listener("PythonPrices", group="python-prices")
    async def price(message: Message[str]) -> str:
        return f"{message.value}: 9.50"

    async with client, client.producer("python", codec=str_codec()) as out:
        service = asyncio.create_task(client.run())
        await line('"ready"')
        reply = await out.request("SpringPrices", "fig", timeout=10)
        assert json.loads(reply.body) == {"id": "fig", "region": "EU", "total": 3}
        await out.send("SpringText", "Python", tag="paid", keys=["key-9"], properties={"region": "EU"}, flag=9)
        await line('"received":"raw","payload":"Python"')
        await out.send("SpringSlow", "slow")
        await line('"received":"slow"')
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)


@pytest.fixture(
    scope="module",
    params=[
        f"saturn {STARTER}",
        pytest.param("saturn 2.3.1", marks=pytest.mark.interop_full),
        pytest.param(f"apache {STARTER}", marks=pytest.mark.interop_full),
    ],
)
def application(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """The application after it ran all scenarios and ended on SIGTERM; its clusters are still up."""
    kind, starter = request.param.split()
    folder = tmp_path_factory.mktemp(f"spring-{kind}")
    home = javatools.write_home(folder / "home")
    with ExitStack() as stack:
        peer, other = start_clusters(kind, folder, stack)
        process = start_application(peer, other, home, starter)
        try:
            asyncio.run(drive(process, client_of(peer)))
        finally:
            code = process.stop()
        rows = [json.loads(line[7:]) for line in process.output.splitlines() if line.startswith("RESULT ")]
        yield Application(peer, other, rows, code)


PAID: Final = ["payload", "timeout", "headers", "many 0", "many 1", "many 2", "converted", "bytes", "Python"]
REFUNDED: Final = ["async", "one way", "delayed"]


def queues(rows: list[dict[str, Any]]) -> set[int]:
    return {row["queue"] for row in rows}


@pytest.mark.spec("SPR-03")
def test_spring_template_sends_in_every_way(application: Application) -> None:
    sent = application.about("sent")
    assert {row["status"] for row in sent} == {"SEND_OK"} and not application.about("failed")
    received = {row["payload"]: row["tags"] for row in application.about("received", "raw")}
    assert received == {**dict.fromkeys(PAID, "paid"), **dict.fromkeys(REFUNDED, "refunded"), "not selected": "created"}
    (batch,) = application.about("sent", "collection")
    assert len(set(batch["msgId"].split(","))) == 3
    assert len(queues([application.message(f"many {n}") for n in range(3)])) == 1
    delayed = application.message("delayed")["properties"]
    assert int(delayed["CONSUME_START_TIME"]) - int(delayed["timestamp"]) >= 1000 and delayed["DELAY"] == "1"
    assert application.payloads("orders") == [{"id": "1", "region": "EU", "total": 12}], "a record is sent as JSON"


@pytest.mark.spec("SPR-03")
def test_spring_hash_key_keeps_a_queue_and_its_order(application: Application) -> None:
    steps = application.about("sent", "step")
    assert len(queues(steps)) == 1 and [row["offset"] for row in steps] == [0, 1, 2, 3]
    assert application.payloads("steps") == [f"step {n}" for n in (0, 1, 1, 2, 3, 4, 5)], "step 1 was suspended once"


@pytest.mark.spec("SPR-02")
def test_spring_listeners_select_by_tags_and_sql(application: Application) -> None:
    assert sorted(application.payloads("text")) == sorted(PAID + REFUNDED)
    assert {row["type"] for row in application.about("received", "text")} == {"String"}
    (order,) = application.about("received", "orders")
    assert (order["type"], order["payload"]["region"], order["payload"]["total"]) == ("Order", "EU", 12)
    assert application.about("prepareStart") == [{"prepareStart": "spring-raw", "threads": 3}]


@pytest.mark.spec("SPR-02")
async def test_spring_listener_that_raises_is_retried(application: Application) -> None:
    deliveries = [(row["payload"], row["attempt"]) for row in application.about("received", "retries")]
    assert sorted(deliveries) == [("again", 0), ("again", 1), ("dead", 0), ("dead", 1)]
    for row in application.about("received", "retries"):
        if row["attempt"] == 1:
            assert row["properties"]["DELAY"] == "1"
    async with application.client() as client:
        puller = client.puller()
        (queue,) = await puller.queues("%DLQ%spring-retries")
        (dead,) = (await puller.pull(queue, 0)).messages()
        assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"dead", "SpringRetries")


@pytest.mark.spec("SPR-02")
def test_spring_groups_share_or_broadcast(application: Application) -> None:
    news = [f"news {n}" for n in range(4)]
    assert sorted(application.payloads("news 1")) == sorted(application.payloads("news 2")) == news
    halves = [
        [row for row in application.about("received", name) if row["payload"] != "no reply"]
        for name in ("shared 1", "shared 2")
    ]
    assert [len(half) for half in halves] == [2, 2] and not queues(halves[0]) & queues(halves[1])


@pytest.mark.spec("SPR-04")
def test_spring_requests_are_answered(application: Application) -> None:
    replies = {row["replied"]: row["payload"] for row in application.about("replied")}
    prices = {"sync": "apple", "by hash": "pear", "callback": "cherry"}
    expected = {how: {"id": name, "region": "EU", "total": len(name)} for how, name in prices.items()}
    assert replies == {**expected, "by Python": "melon: 9.50"}
    assert application.payloads("prices") == ["apple", "pear", "cherry", "fig"], "the last one is from Python"
    (refusal,) = application.about("refused", "reply")
    assert "RequestTimeoutException" in refusal["error"]


@pytest.mark.spec("SPR-05", "SPR-08")
def test_spring_transactions_end_as_their_listener_says(application: Application) -> None:
    main = [row["executed"] for row in application.about("executed") if row["listener"] == "Main"]
    assert main == ["COMMIT", "ROLLBACK", "UNKNOWN"]
    assert [row["listener"] for row in application.about("executed")][-1] == "ForOther"
    assert application.payloads("payments") == ["COMMIT", "UNKNOWN"], "rolled back: never seen"
    check = application.about("checked")[0]  # a slow answer is asked for again
    (half,) = application.about("sent", "transaction UNKNOWN")
    headers = check["headers"]
    assert check["checked"] == "UNKNOWN" and headers["region"] == "EU"
    assert headers["rocketmq_TRANSACTION_ID"] == half["msgId"]
    assert headers["rocketmq_MESSAGE_ID"] and headers["rocketmq_BORN_HOST"] == "127.0.0.1"
    assert int(headers["rocketmq_BORN_TIMESTAMP"]) > 0 and headers["rocketmq_SYS_FLAG"] == "0"
    names = ("KEYS", "TAGS", "TOPIC", "FLAG", "QUEUE_ID")
    assert [headers[f"rocketmq_{name}"] for name in names] == [
        "payment",
        "half",
        "SpringPayments",
        "3",
        str(half["queue"]),
    ]


@pytest.mark.spec("SPR-06", "SPR-07")
def test_spring_templates_receive(application: Application) -> None:
    pulled = {row["pulled"]: sorted(row["payloads"]) for row in application.about("pulled")}
    assert pulled == {"main": ["pulled 0", "pulled 2"], "other": ["wanted"]}


@pytest.mark.spec("SPR-07")
async def test_spring_templates_have_clusters_and_accounts(application: Application) -> None:
    others = application.about("received", "other")
    assert sorted(row["payload"] for row in others) == ["committed", "other"]
    assert {row["properties"]["INSTANCE_ID"] for row in others} == {"shop"}
    errors = {row["refused"]: row["error"] for row in application.about("refused")}
    assert "Send [3] times" in errors["topic"] and "Send [3] times" in errors["account"]
    async with Client(name_servers=application.other.name_servers, namespace="shop", timeout=10.0) as client:
        puller = client.puller()
        found = [await puller.pull(queue, 0) for queue in await puller.queues("SpringOther")]
        assert sorted(message.body for page in found for message in page.messages()) == [b"committed", b"other"]


@pytest.mark.spec("SPR-08")
def test_spring_headers_are_properties_but_reserved_names(application: Application) -> None:
    row = application.message("headers")
    assert (row["keys"], row["tags"], row["flag"]) == ("key-1 key-2", "paid", 7)
    assert row["properties"]["region"] == "EU" and "DELAY" not in row["properties"]
    python = application.message("Python")
    assert (python["keys"], python["tags"], python["flag"]) == ("key-9", "paid", 9)
    assert python["properties"]["region"] == "EU"


@pytest.mark.spec("SPR-01")
async def test_spring_settings_switch_traces_and_listeners(application: Application) -> None:
    assert not application.about("received", "off") and application.about("started") == [{"started": 13}]
    (sent,) = application.about("sent", "headers")
    async with application.client() as client:
        (record,) = await client.query_trace(sent["msgId"], topic="SpringTrace")
        assert isinstance(record, Pub) and (record.group, record.keys) == ("spring-producers", "key-1 key-2")
    (other,) = application.about("sent", "other")
    async with client_of(application.other) as client:
        records = await client.query_trace(other["msgId"], topic="SpringOtherTrace")
        assert [record.success for record in records if isinstance(record, SubAfter)] == [True]


@pytest.mark.spec("SPR-09", "SPR-10")
def test_spring_application_fails_at_its_start_or_stops_cleanly(application: Application) -> None:
    (failure,) = application.about("startFailed")
    assert "Failed to start RocketMQ push consumer" in failure["startFailed"]
    assert "CODE: 23" in failure["cause"]
    assert application.payloads("slow") == ["slow"]
    assert application.about("finished") == [{"finished": "slow"}], "the listener was awaited after SIGTERM"
    assert application.exit_code == 143
