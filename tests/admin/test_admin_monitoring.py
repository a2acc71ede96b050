"""The monitoring service: its rounds, what it reports, and to whom."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from mailserver import mail_server
from saturnmq import Client
from saturnmq.admin import Admin
from saturnmq.admin.mail import Mailer
from saturnmq.admin.monitoring import (
    DeletedMessages,
    FailedMessages,
    LogListener,
    MailListener,
    Monitoring,
    MonitorListener,
    UndoneMessages,
    WebhookListener,
)
from saturnmq.errors import ConnectFailed
from saturnmq.protocol.bodies import Connection, ConsumerConnection, ConsumerRunningInfo, ConsumeStats
from saturnmq.protocol.codes import OFFSET_MOVED_EVENT
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import Host, Message
from saturnmq.testing import EmbeddedBroker


class Recorder(MonitorListener):
    """Remembers every report; `deleted` sets an event."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Any]] = []
        self.moved = asyncio.Event()

    async def begin_round(self) -> None:
        self.found.append(("begin", None))

    async def undone(self, report: UndoneMessages) -> None:
        self.found.append(("undone", report))

    async def deleted(self, report: DeletedMessages) -> None:
        self.found.append(("deleted", report))
        self.moved.set()

    async def running_info(self, group: str, infos: Mapping[str, ConsumerRunningInfo]) -> None:
        self.found.append(("running_info", (group, sorted(infos))))

    async def end_round(self) -> None:
        self.found.append(("end", None))


class Broken(MonitorListener):
    async def begin_round(self) -> None:
        raise RuntimeError("a listener's own fault")


def run(work: Callable[[EmbeddedBroker, Client, Admin], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        async with (
            asyncio.timeout(60),
            EmbeddedBroker() as server,
            Client.from_url(server.url) as client,
            Admin(server.name_servers) as admin,
        ):
            await work(server, client, admin)

    asyncio.run(bounded())


@pytest.mark.spec("RT-14")
def test_a_round_reports_lag_and_clients_of_every_group(caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: EmbeddedBroker, client: Client, admin: Admin) -> None:
        await client.create_topic("orders", queues=2)
        async with client.producer("p") as out, client.consumer("billing", start="first") as inbox:
            await inbox.subscribe("orders")
            queues = await out.queues("orders")
            for queue, count in zip(queues, (3, 1), strict=True):
                for _ in range(count):
                    await out.send("orders", b"x", queue=queue)
            for queue in queues:
                await client.puller().commit("billing", queue, 1)
            recorder = Recorder()
            await Monitoring(admin, Broken(), recorder).round()
        assert recorder.found[0][0] == "begin" and recorder.found[-1][0] == "end"
        (undone,) = [one for name, one in recorder.found if name == "undone" and one.topic == "orders"]
        assert (undone.group, undone.total, undone.single_queue) == ("billing", 2, 2) and undone.delay_ms >= 0
        assert ("running_info", ("billing", [client.client_id])) in recorder.found

    run(work)
    assert "listener failed method=begin_round listener=Broken" in caplog.text


@pytest.mark.spec("RT-14")
def test_events_of_moved_offsets_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: EmbeddedBroker, client: Client, admin: Admin) -> None:
        queue = {"brokerName": "broker-a", "queueId": 3, "topic": "orders"}
        event = {"consumerGroup": "billing", "messageQueue": queue, "offsetRequest": 5, "offsetNew": 90}
        recorder, waiting = Recorder(), asyncio.Event()

        async def sleep(seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(Monitoring(admin, recorder).run(sleep=sleep))
        await waiting.wait()
        host = Host("127.0.0.1", 10911)
        while not recorder.moved.is_set():  # until the new group has its queues, which begins at their ends
            for body in (b"no event", json.dumps(event).encode()):
                server.broker.store.put(Message(OFFSET_MOVED_EVENT, body, b"", 0, 0, 0, 1, host, host))
            await asyncio.wait([asyncio.create_task(recorder.moved.wait())], timeout=0.2)
        task.cancel()
        await asyncio.wait([task])
        (_, found), *_ = recorder.found
        assert (found.group, found.topic, found.broker_name, found.queue_id) == ("billing", "orders", "broker-a", 3)
        assert (found.offset_asked, found.offset_new) == (5, 90) and found.time_ms > 0

    run(work)


@pytest.mark.spec("RT-14")
async def test_clients_without_running_information_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    admin, recorder = Admin("127.0.0.1:1"), Recorder()

    async def consumers(group: str) -> ConsumerConnection:
        versions = {"old": 61, "new": 62}
        return ConsumerConnection([Connection(name, "", "JAVA", version) for name, version in versions.items()])

    async def running_info(group: str, client_id: str) -> ConsumerRunningInfo:
        return ConsumerRunningInfo()

    async def names() -> list[str]:
        return ["g"]

    async def progress(group: str) -> ConsumeStats:
        raise ConnectFailed("no broker")

    monkeypatch.setattr(admin.clients, "consumers", consumers)
    monkeypatch.setattr(admin.clients, "running_info", running_info)
    monkeypatch.setattr(admin.groups, "names", names)
    monkeypatch.setattr(admin.groups, "progress", progress)
    await Monitoring(admin, recorder).round()
    assert recorder.found == [("begin", None), ("running_info", ("g", ["new"])), ("end", None)]


@pytest.mark.spec("RT-14", "C-45")
def test_rounds_begin_after_20_s_and_every_60_s() -> None:
    async def work(server: EmbeddedBroker, client: Client, admin: Admin) -> None:
        recorder, slept = Recorder(), []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 3:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await Monitoring(admin, recorder).run(sleep=sleep)
        assert slept[0] == 20.0 and all(0 < seconds <= 60.0 for seconds in slept[1:])
        assert [name for name, _ in recorder.found].count("begin") == 2

    run(work)


DIFFERENT = {
    name: ConsumerRunningInfo({"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CONSUMER_START_TIMESTAMP": "1"})
    for name in ("c1", "c2")
}


@pytest.mark.spec("RT-14", "C-45")
def test_the_default_listener_logs(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        listener = LogListener()
        await listener.begin_round()
        await listener.undone(UndoneMessages("billing", "orders", 7, 4, 900))
        await listener.failed(FailedMessages("billing", "orders", 1))
        await listener.deleted(DeletedMessages("billing", "orders", "a", 0, 5, 90, 1))
        await listener.running_info("billing", DIFFERENT)
        await listener.end_round()

    with caplog.at_level(logging.INFO, "saturnmq.admin.monitoring"):
        asyncio.run(work())
    assert len(caplog.messages) == 6 and all(line.startswith("[MONITOR] ") for line in caplog.messages)
    assert "undone messages group=billing topic=orders total=7 single_queue=4 delay_ms=900" in caplog.text
    assert "[MONITOR] [NOTIFY] group=billing client= problem=different subscriptions" in caplog.text


@pytest.mark.spec("RT-14")
async def test_the_webhook_posts_what_needs_attention() -> None:
    posted: list[tuple[str, dict[str, Any]]] = []

    async def post(url: str, document: bytes) -> None:
        posted.append((url, json.loads(document)))

    listener = WebhookListener("https://example.org/alerts", post)
    await listener.undone(UndoneMessages("billing", "orders", 0, 0, 0))
    await listener.undone(UndoneMessages("billing", "orders", 7, 4, 900))
    await listener.deleted(DeletedMessages("billing", "orders", "a", 0, 5, 90, 1))
    await listener.running_info("billing", DIFFERENT)
    assert [document["event"] for _, document in posted] == ["undone", "deleted", "clients"]
    assert posted[0][1]["total"] == 7 and posted[2][1]["problems"][0]["problem"] == "different subscriptions"
    with pytest.raises(ValueError, match="http:// or https://"):
        WebhookListener("file:///etc/passwd")


@pytest.mark.realtime
@pytest.mark.spec("RT-14")
def test_letters_report_what_needs_attention() -> None:
    async def work(address: str) -> None:
        listener = MailListener(Mailer(address, "mq@example.org", "a@example.org,b@example.org"))
        await listener.undone(UndoneMessages("billing", "orders", 0, 0, 0))
        await listener.undone(UndoneMessages("bill\r\nBcc: x@y", "orders", 7, 4, 900))
        await listener.failed(FailedMessages("billing", "orders", 3))
        await listener.deleted(DeletedMessages("billing", "orders", "a", 0, 5, 90, 1))
        await listener.running_info("billing", DIFFERENT)

    with mail_server() as server:
        asyncio.run(work(server.address))
    letters = server.letters
    assert [letter["Subject"].partition(" of ")[0] for letter in letters[:2]] == [
        "[SaturnMQ] lag",
        "[SaturnMQ] failures",
    ]
    assert len(letters) == 4 and all(letter["To"] == "a@example.org, b@example.org" for letter in letters)
    assert not any(letter["Bcc"] for letter in letters) and "total: 7" in letters[0].get_content()
    assert "different subscriptions" in letters[3].get_content()
    with pytest.raises(ConfigError, match="host:port"):
        Mailer("nowhere", "a@b", "c@d")
