"""Registration of created, changed and deleted topics with NameServers, and when admin requests are answered."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from wire import wire

from ports import free_port
from saturnmq.broker import BrokerSettings
from saturnmq.broker.services import registrar as registrar_module
from saturnmq.broker.services.registrar import Registrar
from saturnmq.broker.state.topics import Topics
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import Connection, Later, NetSettings, RemotingServer, Reply
from saturnmq.protocol.bodies import RegisterBrokerBody, TopicConfig
from saturnmq.protocol.codes import COMPLETE_FIELD, RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.store import StateFile

CREATE = {
    "topic": "New", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long enough that a slow machine does not answer admin requests early."""
    monkeypatch.setattr(registrar_module, "CHANGES_WAIT_MS", 20_000)


@dataclass
class RecordingNameServer:
    """A NameServer that records registrations: full or incremental, and their topics.

    It answers only while `open` is set, full registrations only while `whole_open` is set, too.
    """

    folder: Path
    whole: list[set[str]] = field(default_factory=list)
    changes: list[set[str]] = field(default_factory=list)
    address: str = ""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.namesrv = NameServer(NameServerSettings(kv_config_path=str(self.folder / "kv.json")), NetSettings())
        self.open, self.whole_open = asyncio.Event(), asyncio.Event()
        self.open.set()
        self.whole_open.set()

    def handle(self, connection: Connection, request: Command) -> Reply:
        answer = self.namesrv._handle(connection, request)
        if request.code == RequestCode.REGISTER_BROKER:
            body = RegisterBrokerBody.decode(request.body)
            names = set(body.topic_config_serialize_wrapper.topic_config_table)
            (self.whole if COMPLETE_FIELD in request.ext else self.changes).append(names)
            self.news.set()
            if COMPLETE_FIELD in request.ext and not self.whole_open.is_set():
                return Later(self._later(answer, self.whole_open))
        return answer if self.open.is_set() else Later(self._later(answer, self.open))

    async def _later(self, answer: Reply, allowed: asyncio.Event) -> Reply:
        await allowed.wait()
        return answer

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()


@asynccontextmanager
async def name_server(folder: Path, port: int = 0) -> AsyncIterator[RecordingNameServer]:
    server = RecordingNameServer(folder)
    remoting = RemotingServer(server.handle, settings=NetSettings(), listener=server.namesrv)
    host, bound = await remoting.start("127.0.0.1", port)
    server.address = f"{host}:{bound}"
    try:
        yield server
    finally:
        server.open.set()
        await remoting.stop()


@asynccontextmanager
async def registrar(folder: Path, address: str, **more: Any) -> AsyncIterator[tuple[Registrar, Topics]]:
    settings = BrokerSettings(namesrv_addr=address, **more)
    topics = Topics(settings, StateFile(folder / "topics.json"), lambda: 1)
    made = Registrar(settings, NetSettings(), topics, address=lambda: "h:1", ha_address=lambda: "h:2")
    topics.changed.subscribe(made.topics_changed)
    await made.start()
    try:
        yield made, topics
    finally:
        await made.stop()
        await topics.writer.saved()


@pytest.mark.spec("NS-34")
async def test_create_topic_is_answered_once_name_server_has_it() -> None:
    async with wire(register_timeout_ms=20_000) as w:
        seen, may_answer = asyncio.Event(), asyncio.Event()
        handle = w.server.namesrv._server.handler

        async def held(connection: Connection, request: Command) -> Reply:
            if request.code == RequestCode.REGISTER_BROKER:
                seen.set()
                await may_answer.wait()
            return handle(connection, request)

        for connection in w.server.namesrv._server.connections:
            connection.requests.handler = lambda *request: Later(held(*request))
        created = asyncio.create_task(w.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **CREATE))
        await seen.wait()
        await w.broker.topics.writer.saved()
        assert (await w.call(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0
        assert not created.done(), "the NameServer has not answered yet"
        may_answer.set()
        assert (await created).code == 0
        queue = w.server.namesrv.routes.topics["New"]["broker-a"]
        assert (queue.read_queue_nums, queue.write_queue_nums) == (3, 2)


@pytest.mark.spec("NS-34", "NS-32")
async def test_silent_name_server_delays_create_topic_once(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server, registrar(tmp_path, server.address) as (made, topics):
        usual = made._settings
        made._settings = dataclasses.replace(usual, register_timeout_ms=100)
        server.open.clear()
        loop = asyncio.get_running_loop()
        before = loop.time()
        topics.set(TopicConfig("A"))
        await made.wait_registered()
        assert 0.05 <= loop.time() - before < 10
        while made._registering_event is not None:
            await asyncio.sleep(0)
        assert server.changes == [{"A"}] and made._current == set()
        topics.set(TopicConfig("B"))
        while made._changed or made._registering_event is not None:
            await asyncio.sleep(0)
        assert server.changes == [{"A"}], "the next registration is a full one, and no request waits for it"
        made._settings = usual
        server.open.set()
        await server.until(lambda: {"A", "B"} <= server.whole[-1])


@pytest.mark.spec("NS-34", "NS-32")
async def test_create_topic_is_answered_while_name_server_is_down(tmp_path: Path) -> None:
    async with wire() as w:
        up = w.broker.registrar.name_servers[0]
        w.broker.registrar._looked_up = [f"127.0.0.1:{free_port()}", up]
        assert (await w.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **CREATE)).code == 0
        assert "New" in w.server.namesrv.routes.topics, "the one that is up knows it"
        await w.server.namesrv.stop()
        assert (await w.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **(CREATE | {"topic": "Other"}))).code == 0


@pytest.mark.spec("NS-34")
async def test_new_topic_is_registered_incrementally(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server, registrar(tmp_path, server.address) as (made, topics):
        for n in range(100):
            topics.set(TopicConfig(f"T{n}"))
            await made.wait_registered()
            assert f"T{n}" in server.namesrv.routes.topics
        assert server.changes == [{f"T{n}"} for n in range(100)] and len(server.whole) == 1
        assert server.namesrv.routes.live["h:1"].version == topics.version
        topics.set(TopicConfig("One"))
        topics.set(TopicConfig("Two"))
        await made.wait_registered()
        assert server.changes[-1] == {"One", "Two"}, "one version is registered once"


@pytest.mark.spec("NS-34")
async def test_deleted_topic_causes_full_registration(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server, registrar(tmp_path, server.address) as (made, topics):
        topics.set(TopicConfig("Kept"))
        topics.set(TopicConfig("Gone"))
        await made.wait_registered()
        topics.delete("Gone")
        await server.until(lambda: len(server.whole) == 2)
        assert "Kept" in server.whole[1] and "Gone" not in server.namesrv.routes.topics


@pytest.mark.spec("NS-34")
@pytest.mark.parametrize("under_way", [False, True])
async def test_topic_deletion_is_registered_before_later_topic(tmp_path: Path, under_way: bool) -> None:
    """The incremental registration has the version of both changes; the NameServer would ignore a full one of that version."""
    async with name_server(tmp_path) as server, registrar(tmp_path, server.address) as (made, topics):
        topics.set(TopicConfig("Gone"))
        await made.wait_registered()
        if under_way:
            server.open.clear()
            made._full_event.set()
            await server.until(lambda: len(server.whole) == 2)
        topics.delete("Gone")
        topics.set(TopicConfig("New"))
        await asyncio.sleep(0)
        server.open.set()
        await server.until(lambda: "New" in server.namesrv.routes.topics)
        assert "Gone" not in server.namesrv.routes.topics
        topics.set(TopicConfig("Later"))
        while "Later" not in server.namesrv.routes.topics:
            await asyncio.sleep(0)
        assert (
            "Gone" not in server.namesrv.routes.topics and server.namesrv.routes.live["h:1"].version == topics.version
        )


@pytest.mark.spec("NS-34")
async def test_topic_set_after_a_deletion_is_waited_for(tmp_path: Path) -> None:
    """It is part of the full registration that conveys the deletion, which may pause after an earlier one."""
    async with name_server(tmp_path) as server, registrar(tmp_path, server.address) as (made, topics):
        for number in range(3):
            topics.set(TopicConfig("Gone"))
            await made.wait_registered()
            topics.delete("Gone")
            topics.set(TopicConfig(f"New{number}"))
            await made.wait_registered()
            assert f"New{number}" in server.namesrv.routes.topics and "Gone" not in server.namesrv.routes.topics


@pytest.mark.spec("NS-34", "NS-32")
async def test_restarted_empty_name_server_gets_all_topics(tmp_path: Path) -> None:
    port = free_port()
    async with name_server(tmp_path, port) as server:
        manager = registrar(tmp_path, server.address)
        made, topics = await manager.__aenter__()
        topics.set(TopicConfig("Old"))
        await made.wait_registered()
    async with name_server(tmp_path, port) as again:
        topics.set(TopicConfig("New"))
        await again.until(lambda: bool(again.whole))
        assert {"Old", "New"} <= again.whole[0] and again.changes == []
        await manager.__aexit__(None, None, None)


@pytest.mark.spec("NS-34", "NS-11")
async def test_new_order_topic_is_marked_before_next_period(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server, registrar(tmp_path, server.address) as (made, topics):
        await server.namesrv.kv.put("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:4")
        topics.set(TopicConfig("Ordered"))
        topics.set(TopicConfig("Other"))
        await made.wait_registered()
        assert [name for name, config in topics.table.items() if config.order] == ["Ordered"]
        assert server.changes == [{"Ordered", "Other"}] and len(server.whole) == 1


@pytest.mark.parametrize("later", ["incremental", "full"])
async def test_order_flag_is_taken_from_the_registration_sent_last(tmp_path: Path, later: str) -> None:
    """An answer from before the order configuration arrives after one that has it."""
    async with name_server(tmp_path) as server, registrar(tmp_path, server.address) as (made, topics):
        await server.namesrv.kv.put("ORDER_TOPIC_CONFIG", "Gone", "broker-a:4")
        topics.set(TopicConfig("Gone"))
        topics.set(TopicConfig("Ordered"))
        await made.wait_registered()
        server.whole_open.clear()
        early = asyncio.create_task(made.register(force=True))
        await server.until(lambda: len(server.whole) == 2)
        await server.namesrv.kv.put("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:4")
        await server.namesrv.kv.delete("ORDER_TOPIC_CONFIG", "Gone")
        held, server.whole_open = server.whole_open, asyncio.Event()
        server.whole_open.set()
        if later == "full":
            assert await made.register(force=True)
        else:
            topics.set(TopicConfig("Ordered"))
            topics.set(TopicConfig("Gone"))
            await made.wait_registered()
        assert [name for name, config in topics.table.items() if config.order] == ["Ordered"]
        held.set()
        assert await early
        assert [name for name, config in topics.table.items() if config.order] == ["Ordered"]
        await server.namesrv.kv.delete("ORDER_TOPIC_CONFIG", "Ordered")
        assert await made.register(force=True)
        assert not topics.table["Ordered"].order, "one sent later decides again"


async def test_changed_topic_keeps_its_order_flag_until_registered(tmp_path: Path) -> None:
    async with wire() as w:
        await w.server.namesrv.kv.put("ORDER_TOPIC_CONFIG", "New", "broker-a:4")
        flags = []
        w.broker.topics.changed.subscribe(lambda topics: flags.append(topics[0].order))
        for _ in range(2):
            assert (await w.call(RequestCode.UPDATE_AND_CREATE_TOPIC, **CREATE)).code == 0
        assert flags == [False, True] and w.broker.topics.table["New"].order


@pytest.mark.spec("DG-10")
async def test_registration_results_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dead = f"127.0.0.1:{free_port()}"
    with caplog.at_level(logging.INFO, "saturnmq.broker.services.registrar"):
        async with (
            name_server(tmp_path) as server,
            registrar(tmp_path, f"{server.address};{dead}") as (made, topics),
        ):
            topics.set(TopicConfig("T"))
            await made.wait_registered()
    lines = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    assert any(line.startswith(f"INFO registered address={server.address} ") for line in lines)
    assert any("topics=1 complete=False" in line for line in lines)
    assert any(line.startswith(f"WARNING name server failed address={dead}") for line in lines)


@pytest.mark.spec("DG-10")
async def test_dispatch_lag_is_logged_after_10_s_and_every_60(caplog: pytest.LogCaptureFixture) -> None:
    counts = []
    with caplog.at_level(logging.INFO, "saturnmq.broker.broker"):
        async with wire():
            for seconds in (9, 2, 58, 2):
                await asyncio.sleep(seconds)  # poll
                counts.append(caplog.messages.count("dispatch behind commit log 0 bytes"))
    assert counts == [0, 1, 1, 2]


@pytest.mark.spec("NS-34")
async def test_cancelling_registrar_task_ends_all_its_tasks(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server, registrar(tmp_path, server.address) as (made, _):
        await asyncio.sleep(0)
        before = asyncio.all_tasks()
        assert made._task is not None
        made._task.cancel()
        await asyncio.gather(made._task, return_exceptions=True)
        ended = {task.get_coro().__qualname__ for task in before - asyncio.all_tasks()}  # type: ignore[union-attr]
        assert {"Registrar._run", "Registrar._run_full", "Registrar._run_changes"} <= ended
