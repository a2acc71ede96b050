"""Commands of mqadmin that print, send and consume messages: options, columns, texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from admincli import AdminCli

import saturnmq.sync
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.testing.embedded import SyncEmbeddedBroker

TOPIC = "printed"
SENT = "%-32s  %-4s  %-20s    %s"


@pytest.fixture(scope="module")
def queue(embedded: SyncEmbeddedBroker) -> Iterator[MessageQueue]:
    """The only queue of a topic with three messages: two with the tag A, one with B."""
    with saturnmq.sync.Client.from_url(embedded.url) as client, client.producer("p") as out:
        client.create_topic(TOPIC, queues=1)
        for number, tag in enumerate("AAB"):
            queue = out.send(TOPIC, f"body {number}\n".encode(), tag=tag).queue
        yield queue


def queue_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


@pytest.mark.spec("C-28")
def test_print_msg_prints_every_queue(admin_cli: AdminCli, queue: MessageQueue) -> None:
    head, *rows, end = admin_cli.text("printMsg", "-t", TOPIC).splitlines()
    assert head == f"minOffset=0, maxOffset=3, {queue_text(queue)}" and end == "-" * 56 and len(rows) == 3
    pattern = (
        rf"MSGID: [0-9A-F]+ MessageExt \[brokerName={queue.broker_name}, queueId=0, storeSize=\d+, queueOffset=0, sysFlag=0, "
        r"bornTimestamp=\d+, bornHost=/127\.0\.0\.1:\d+, storeTimestamp=\d+, storeHost=/\{broker\}, msgId="
    )
    assert re.match(pattern, rows[0])
    assert "body=[98, 111, 100, 121, 32, 48, 10], transactionId='null'}] BODY: body 0\\x0a" in rows[0]


@pytest.mark.spec("C-28")
def test_print_msg_options(admin_cli: AdminCli, queue: MessageQueue) -> None:
    tagged = admin_cli.text("printMsg", "-t", TOPIC, "-s", "B", "-d", "false", "-c", "GBK")
    assert tagged.count("MSGID") == 1 and tagged.count("BODY: NOT PRINT BODY\n") == 1
    early = admin_cli.text("printMsg", "-t", TOPIC, "-b", "2020-01-01#00:00:00:000", "-e", "1577836800000")
    assert early.startswith("minOffset=0, maxOffset=0, ")
    code, _, err = admin_cli.run("printMsg", "-t", TOPIC, "-c", "klingon")
    assert code == 1 and "klingon" in err


@pytest.mark.spec("C-29")
def test_print_msg_by_queue(admin_cli: AdminCli, queue: MessageQueue) -> None:
    words = ("printMsgByQueue", "-t", TOPIC, "-a", queue.broker_name, "-i", "0")
    assert not admin_cli.text(*words)
    assert admin_cli.text(*words, "-p", "true").count("BODY: NOT PRINT BODY\n") == 3
    text = admin_cli.text(*words, "-p", "true", "-d", "true", "-f", "true", "-s", "A || B", "-b", "0", "-c", "UTF-8")
    assert "BODY: body 2\\x0a\n" in text
    assert text.endswith(f"Tag: {'A':<30} Count: 2\nTag: {'B':<30} Count: 1\n")
    assert not admin_cli.text(*words, "-p", "true", "-e", "1577836800000")


@pytest.mark.spec("C-30")
def test_send_message(admin_cli: AdminCli, queue: MessageQueue) -> None:
    words = ("sendMessage", "-t", "sent", "-p", "hello", "-k", "key", "-c", "tag", "-m", "false")
    head, row = admin_cli.text(*words).splitlines()
    assert head == SENT % ("#Broker Name", "#QID", "#Send Result", "#MsgId")
    assert re.fullmatch(
        re.escape(SENT % (queue.broker_name, 9, "SEND_OK", "")).replace("9", r"\d") + "[0-9A-F]{32}", row
    )
    (found,) = admin_cli.json("queryMsgByKey", "-t", "sent", "-k", "key")["rows"]
    assert (found["tags"], found["keys"]) == ("tag", "key")
    _, row = admin_cli.text("sendMessage", "-t", "sent", "-p", "x", "-b", queue.broker_name, "-i", "2").splitlines()
    assert row.split()[1] == "2"


@pytest.mark.spec("C-30")
def test_send_message_to_a_queue_needs_its_broker(admin_cli: AdminCli) -> None:
    code, out, _ = admin_cli.run("sendMessage", "-t", "sent", "-p", "hello", "-i", "2")
    assert (code, out) == (1, "Broker name must be set if the queue is chosen!")


def test_dry_run_sends_nothing(admin_cli: AdminCli, queue: MessageQueue) -> None:
    code, out, err = admin_cli.run("sendMessage", "-t", "unsent", "-p", "hello", "--dry-run")
    assert code == 0 and not out and "SEND_MESSAGE topic=unsent bytes=5" in err
    code, out, err = admin_cli.run("checkMsgSendRT", "-t", "unsent", "--dry-run")
    assert code == 0 and "times=100" in err
    assert "unsent" not in admin_cli.text("topicList")


@pytest.mark.spec("C-31")
def test_consume_message_of_a_topic_and_a_queue(admin_cli: AdminCli, queue: MessageQueue) -> None:
    text = admin_cli.text("consumeMessage", "-t", TOPIC)
    assert text.startswith("Consume ok\nMSGID: ") and text.count("MSGID") == 3
    end = f"{queue_text(queue)} print msg finished. status=NO_NEW_MSG, offset=3\n"
    assert text.endswith(end)
    at = ("-b", queue.broker_name, "-i", "0")
    older = admin_cli.text("consumeMessage", "-t", TOPIC, "-c", "1")
    assert older.startswith("The older 1 message of the 0 queue will be provided\nConsume ok\n")
    older = admin_cli.text("consumeMessage", "-t", TOPIC, *at, "-c", "2", "-g", "by-queue")
    assert older.startswith("The oldler 2 message will be provided\n") and older.count("MSGID") == 2
    assert admin_cli.text("consumeMessage", "-t", TOPIC, *at, "-o", "2").count("MSGID") == 1
    missed = admin_cli.text("consumeMessage", "-t", TOPIC, *at, "-o", "9")
    assert missed == f"{queue_text(queue)} no matched msg, offset=9\n"


@pytest.mark.spec("C-31")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-c 0", "Please input a positive messageNumber!"),
        ("-i 1", "Please set the brokerName before queueId!"),
        ("-o 1", "Please set queueId before offset!"),
        ("-s 9999999999999", "Please set the beginTimestamp before now!"),
        ("-e 9999999999999", "Please set the endTimestamp before now!"),
        ("-s 2 -e 1", "Please make sure that the beginTimestamp is less than or equal to the endTimestamp"),
    ],
)
def test_consume_message_refuses(admin_cli: AdminCli, words: str, text: str) -> None:
    assert admin_cli.run("consumeMessage", "-t", TOPIC, *words.split())[:2] == (1, text)


@pytest.mark.spec("C-32")
def test_check_msg_send_rt(admin_cli: AdminCli, queue: MessageQueue) -> None:
    head, *rows, average = admin_cli.text("checkMsgSendRT", "-t", "sent", "-a", "5", "-s", "10").splitlines()
    assert head == SENT % ("#Broker Name", "#QID", "#Send Result", "#RT")
    cells = [row.split() for row in rows]
    assert [cell[1] for cell in cells] == ["0", "1", "2", "3", "0"] and {cell[2] for cell in cells} == {"true"}
    times = [int(cell[3]) for cell in cells]
    assert float(average.removeprefix("Avg RT: ")) == round(sum(times[1:]) / 4 + 1e-9, 2)
    assert len(admin_cli.text("checkMsgSendRT", "-t", "sent").splitlines()) == 102
    sends = [request for request in admin_cli.server.inner.tap.requests if request.name == "SEND_MESSAGE_V2"]
    assert {len(request.body) for request in sends[-100:]} == {128}
