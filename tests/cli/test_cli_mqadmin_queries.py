"""Commands of mqadmin that look up messages: options, columns, texts, bodies in files."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from admincli import AdminCli

import saturnmq.sync
from saturnmq.broker import BrokerSettings
from saturnmq.cli.mqadmin import files
from saturnmq.client.receipt import Receipt
from saturnmq.client.trace.records import SubBefore
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.codes import TRACE_TOPIC
from saturnmq.protocol.frames.command import Command
from saturnmq.testing.embedded import SyncEmbeddedBroker

TOPIC = "looked-up"
NAMES = [
    "OffsetID:", "Topic:", "Tags:", "Keys:", "Queue ID:", "Queue Offset:", "CommitLog Offset:", "Reconsume Times:",
    "Born Timestamp:", "Store Timestamp:", "Born Host:", "Store Host:", "System Flag:", "Properties:", "Message Body Path:",
]  # fmt: skip


@pytest.fixture(scope="module")
def embedded() -> Iterator[SyncEmbeddedBroker]:
    """A server with Apache's trace topic, instead of the one of the other modules."""
    with SyncEmbeddedBroker(settings=BrokerSettings(trace_topic_enable=True)) as server:
        yield server


@pytest.fixture(scope="module")
def sent(embedded: SyncEmbeddedBroker) -> Iterator[Receipt]:
    """A message in the only queue of a topic, traced, consumed by `tracer` and by the connected group `finder`."""
    with saturnmq.sync.Client.from_url(embedded.url) as client:
        client.create_topic(TOPIC, queues=1)
        with client.producer("finder-p", trace=True) as out:
            receipt = out.send(TOPIC, b"\x00binary\xff", tag="TagA", keys=["key-1", "key-2"])
        with client.consumer("tracer", start="first", trace=True) as inbox:
            inbox.subscribe(TOPIC, "*")
            inbox.recv(timeout=30).ack()
        with client.consumer("finder", start="first") as inbox:
            inbox.subscribe(TOPIC, "*")
            inbox.recv(timeout=30).ack()
            client.puller().commit("finder", receipt.queue, 1)
            handler = threading.Thread(target=lambda: [message.ack() for message in inbox])
            handler.start()  # what is consumed on demand
            deadline = time.monotonic() + 30
            while not traced(client, receipt.message_id):
                assert time.monotonic() < deadline, "not traced within 30 s"
            yield receipt
        handler.join(30)


def traced(client: saturnmq.sync.Client, message_id: str) -> bool:
    """Whether both the send and the consumption of a message can be found in the trace."""
    bodies = b"".join(message.body for message in client.query_messages("RMQ_SYS_TRACE_TOPIC", message_id))
    return b"Pub" in bodies and b"SubAfter" in bodies


@pytest.fixture
def bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of bodies, instead of Apache's below /tmp."""
    folder = tmp_path / "rocketmq" / "msgbodys"
    monkeypatch.setattr(files, "BODIES", folder)
    return folder


def printed(text: str, names: list[str], sent: Receipt, bodies: Path) -> dict[str, str]:
    """The columns of the sent message as C-23 wants them; its body is in a file, and the tracks of its groups follow."""
    lines = text.split("\n")
    values = {line[:20].rstrip(): line[21:] for line in lines[: len(names)]}
    assert list(values) == names
    assert values["Topic:"] == TOPIC and values["Tags:"] == "[TagA]" and values["Keys:"] == "[key-1 key-2]"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", values["Store Timestamp:"])
    assert values["Message Body Path:"] == str(bodies / sent.message_id)
    assert (bodies / sent.message_id).read_bytes() == b"\x00binary\xff"
    track = "MessageTrack [consumerGroup=finder, trackType=CONSUMED, exceptionDesc=null]"
    assert lines[len(names) : len(names) + 2] == ["", ""] and track in lines[len(names) + 2]
    return values


@pytest.mark.spec("C-23")
def test_query_by_id_prints_the_message_and_its_tracks(admin_cli: AdminCli, sent: Receipt, bodies: Path) -> None:
    text = admin_cli.text("queryMsgById", "-i", sent.offset_message_id)
    assert printed(text, NAMES, sent, bodies)["OffsetID:"] == sent.offset_message_id


@pytest.mark.spec("C-23")
def test_query_by_several_ids_goes_on_after_a_failure(admin_cli: AdminCli, sent: Receipt, bodies: Path) -> None:
    code, out, err = admin_cli.run("queryMsgById", "-i", sent.message_id)
    assert code == 1 and not out
    assert f"{sent.message_id} is the message id (unique key) of a producer" in err and "must be in 1..65535" in err
    assert "saturnmq admin queryMsgByUniqueKey -t TOPIC -i" in err
    code, out, err = admin_cli.run("queryMsgById", "-i", f"nonsense,{sent.offset_message_id}")
    assert code == 1 and f"OffsetID:            {sent.offset_message_id}" in out and "nonsense" in err


@pytest.mark.spec("C-23")
def test_message_without_a_group_says_so(admin_cli: AdminCli, sent: Receipt, bodies: Path) -> None:
    admin_cli.text("sendMessage", "-t", "lonely", "-p", "x", "-k", "alone")
    (row,) = admin_cli.json("queryMsgByKey", "-t", "lonely", "-k", "alone")["rows"]
    assert admin_cli.text("queryMsgById", "-i", row["offset_id"], "-u", "unit").endswith("\n\n\nWARN: No Consumer")


@pytest.mark.spec("C-23", "C-25")
def test_a_client_consumes_a_message_on_demand(admin_cli: AdminCli, sent: Receipt) -> None:
    client = admin_cli.text("consumerConnection", "-g", "finder").splitlines()[1].split()[0]
    result = "ConsumeMessageDirectlyResult [order=false, autoCommit=true, consumeResult=CR_SUCCESS, remark=null, spentTimeMills="
    by_id = admin_cli.text("queryMsgById", "-i", sent.offset_message_id, "-g", "finder", "-d", client)
    by_key = admin_cli.text("queryMsgByUniqueKey", "-i", sent.message_id, "-t", TOPIC, "-g", "finder", "-d", client)
    assert by_id.startswith(result) and by_key.startswith(result)


@pytest.mark.spec("C-23")
def test_a_message_is_sent_again(admin_cli: AdminCli, sent: Receipt) -> None:
    admin_cli.text("sendMessage", "-t", "again", "-p", "once", "-k", "k", "-c", "T")
    (row,) = admin_cli.json("queryMsgByKey", "-t", "again", "-k", "k")["rows"]
    text = admin_cli.text("queryMsgById", "-i", row["offset_id"], "-s", "true")
    assert text.startswith(
        f"prepare resend msg. originalMsgId={row['offset_id']}SendResult [sendStatus=SEND_OK, msgId="
    )
    assert not admin_cli.text("queryMsgById", "-i", row["offset_id"], "-s", "false")
    rows = admin_cli.json("queryMsgByKey", "-t", "again", "-k", "k")["rows"]
    assert [row["tags"] for row in rows] == ["T", "T"]


@pytest.mark.spec("C-24", "ADM-19")
def test_query_by_key_lists_ids_queues_and_offsets(admin_cli: AdminCli, sent: Receipt) -> None:
    layout = "%-50s %4s %40s"
    for key in ("key-1", "key-2"):
        head, row = admin_cli.text("queryMsgByKey", "-t", TOPIC, "-k", key).splitlines()
        assert head == layout % ("#Message ID", "#QID", "#Offset")
        assert row == layout % (sent.message_id, 0, 0)
    query = [request.ext for request in admin_cli.server.inner.tap.requests if request.name == "QUERY_MESSAGE"][-1]
    assert (query["maxNum"], query["beginTimestamp"]) == ("64", "0") and int(query["endTimestamp"]) > 2**62
    code, out, err = admin_cli.run("queryMsgByKey", "-t", TOPIC, "-k", "nothing")
    assert code == 1 and not out and "query message by key finished, but no message." in err


@pytest.mark.spec("C-25")
def test_query_by_unique_key_has_no_offset_id(admin_cli: AdminCli, sent: Receipt, bodies: Path) -> None:
    for flag in ((), ("-a",)):
        before = len(admin_cli.server.inner.tap.requests)
        text = admin_cli.text("queryMsgByUniqueKey", "-i", sent.message_id, "-t", TOPIC, *flag)
        printed(text, NAMES[1:], sent, bodies)
        (bodies / sent.message_id).unlink()
        requests = list(admin_cli.server.inner.tap.requests)[before:]
        queries = [request.ext for request in requests if request.name == "QUERY_MESSAGE"]
        assert {(query["_UNIQUE_KEY_QUERY"], query["maxNum"]) for query in queries} == {("true", "32")}


@pytest.mark.spec("C-25")
def test_query_by_unique_key_prints_the_oldest_copy_or_with_a_up_to_32(admin_cli: AdminCli) -> None:
    unique = "7F00000155AA18B4AAC25D5C0A0B0001"
    words = ("queryMsgByUniqueKey", "-i", unique, "-t", "copies")

    async def send(*bodies: bytes) -> None:
        client = RemotingClient(settings=NetSettings())
        fields = {"a": "p", "b": "copies", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0"}
        fields["i"] = f"UNIQ_KEY\x01{unique}"
        for body in bodies:
            answer = await client.invoke(admin_cli.server.broker_address, Command(310, ext=fields, body=body), 5000)
            assert answer.code == 0, answer.remark
        await client.close()

    asyncio.run(send(b"old", b"new"))
    assert [row["body"] for row in admin_cli.json(*words)["rows"]] == ["old"]
    assert [row["body"] for row in admin_cli.json(*words, "-a")["rows"]] == ["old", "new"]
    asyncio.run(send(*[b"newest"] * 31))
    assert len(admin_cli.json(*words)["rows"]) == 1 and len(admin_cli.json(*words, "-a")["rows"]) == 32


@pytest.mark.spec("C-26")
def test_query_by_offset(admin_cli: AdminCli, sent: Receipt, bodies: Path) -> None:
    words = ("queryMsgByOffset", "-t", TOPIC, "-b", sent.queue.broker_name, "-i", "0", "-o")
    before = len(admin_cli.server.inner.tap.requests)
    values = printed(admin_cli.text(*words, "0"), NAMES, sent, bodies)
    assert (values["OffsetID:"], values["Queue Offset:"]) == (sent.offset_message_id, "0")
    assert "MIN_OFFSET=0" in values["Properties:"]
    assert not admin_cli.text(*words, "99")
    asked = [
        request.ext
        for request in list(admin_cli.server.inner.tap.requests)[before:]
        if request.ext.get("consumerGroup") == "TOOLS_CONSUMER"
    ]
    assert [(ext["topic"], ext["queueId"], ext["queueOffset"]) for ext in asked] == [
        (TOPIC, "0", "0"),
        (TOPIC, "0", "99"),
    ]


@pytest.mark.spec("C-27", "TR-09")
def test_query_trace_by_id(admin_cli: AdminCli, sent: Receipt) -> None:
    before = len(admin_cli.server.inner.tap.requests)
    pub, sub = ("#Type", "#ProducerGroup", "#SendTime"), ("#Type", "#ConsumerGroup", "#ConsumerTime")
    for words in (("queryMsgTraceById",), ("QueryMsgTraceById", "-t", "RMQ_SYS_TRACE_TOPIC")):
        lines = admin_cli.text(*words, "-i", sent.message_id).splitlines()
        head = [line for line in lines if line.startswith("#Type")]
        assert [tuple(line.split()[n] for n in (0, 1, 3)) for line in head] == [pub, sub]
        assert head[0].split()[2:] == ["#ClientHost", "#SendTime", "#CostTimes", "#Status"]
        rows = [line.split() for line in lines if line.startswith(("Pub", "Sub"))]
        assert [(row[0], row[1], row[2], row[-1]) for row in rows] == [
            ("Pub", "finder-p", "127.0.0.1", "success"), ("Sub", "tracer", "127.0.0.1", "success")]  # fmt: skip
    asked = [one.ext for one in list(admin_cli.server.inner.tap.requests)[before:] if one.name == "QUERY_MESSAGE"]
    assert {(ext["topic"], ext["key"], ext["maxNum"]) for ext in asked} == {(TRACE_TOPIC, sent.message_id, "64")}


def test_query_trace_by_id_says_what_is_missing(
    admin_cli: AdminCli, embedded: SyncEmbeddedBroker, sent: Receipt
) -> None:
    assert "incomplete" not in admin_cli.run("queryMsgTraceById", "-i", sent.message_id)[2]
    before = SubBefore(1100, "r", "g", "R1", "LOST", 0, None)
    with saturnmq.sync.Client.from_url(embedded.url) as client, client.producer("p") as out:
        out.send(TRACE_TOPIC, before.encode().encode(), keys=["LOST"])
    code, _, error = admin_cli.run("queryMsgTraceById", "-i", "LOST")
    assert code == 0 and "incomplete trace: no record of the send" in error and "a delivery without an end" in error
