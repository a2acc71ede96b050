"""How a broker combines the responses of several NameServers."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wire import run

from saturnmq.broker import BrokerSettings
from saturnmq.broker.services.registrar import LOOK_UP_SECONDS, UNREGISTER_TIMEOUT_MS, Registrar
from saturnmq.broker.state.topics import Topics
from saturnmq.config.runtime import RuntimeSettings
from saturnmq.net import Connection, Later, NetSettings, RemotingServer, Reply
from saturnmq.net.reconnection import RECONNECT_SECONDS_MAX
from saturnmq.protocol.bodies import KVTable, TopicConfig, TopicConfigTable
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.store import StateFile
from waiting import until


class Scripted:
    """A NameServer with scripted responses: ordered topics, master address, whether the version differs, failures."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.healthy = True
        self.changed = "true"
        self.asked: list[int] = []
        self.last = Command(0)
        self.silent = False
        self.address = ("", 0)
        self.server = RemotingServer(self._handle, settings=NetSettings())

    def _handle(self, connection: Connection, request: Command) -> Reply:
        self.asked.append(request.code)
        self.last = request
        if self.silent:
            return Later()
        if not self.healthy:
            return request.reply(1, "not today")
        if request.code == RequestCode.QUERY_DATA_VERSION:
            return request.reply(ext={"changed": self.changed})
        body = KVTable({f"ordered-by-{self.name}": "broker-a:4"}).encode()
        return request.reply(ext={"masterAddr": f"master-of-{self.name}:1", "haServerAddr": "h:2"}, body=body)


@asynccontextmanager
async def registrar(folder: Path, *servers: Scripted, **more: Any) -> AsyncIterator[tuple[Registrar, Topics]]:
    addresses = []
    for scripted in servers:
        scripted.address = host, port = await scripted.server.start("127.0.0.1", 0)
        addresses.append(f"{host}:{port}")
    settings = BrokerSettings(namesrv_addr=";".join(addresses), **more)
    topics = Topics(settings, StateFile(folder / "topics.json"), lambda: 1)
    made = Registrar(settings, NetSettings(), topics, address=lambda: "h:1", ha_address=lambda: "h:2")
    try:
        yield made, topics
    finally:
        await topics.writer.settle()
        await made.stop()
        for scripted in servers:
            await scripted.server.stop()


@pytest.mark.spec("NS-32")
async def test_first_healthy_name_server_decides_master_and_order_topics(tmp_path: Path) -> None:
    one, two, three = (Scripted(name) for name in ("one", "two", "three"))
    async with registrar(tmp_path, one, two, three) as (made, topics):
        for name in ("one", "two", "three"):
            topics.set(TopicConfig(f"ordered-by-{name}"))
        for broken, believed in ((None, "one"), (one, "two"), (two, "one")):
            for scripted in (one, two, three):
                scripted.healthy = scripted is not broken
            assert await made.register(force=True)
            assert made.master_address == f"master-of-{believed}:1"
            assert [name for name, config in topics.table.items() if config.order] == [f"ordered-by-{believed}"]
            assert two.asked == three.asked == one.asked


@pytest.mark.spec("NS-32")
def test_name_servers_are_asked_in_parallel(tmp_path: Path) -> None:
    class Patient(Scripted):
        """Answers once another NameServer has been asked."""

        def _handle(self, connection: Connection, request: Command) -> Later:
            async def later() -> Reply:
                while not two.asked:
                    await asyncio.sleep(0)
                return Scripted._handle(self, connection, request)

            return Later(later())

    async def work() -> None:
        async with registrar(tmp_path, one, two) as (made, _):
            assert await made.register(force=True)
            assert made.master_address == "master-of-one:1", "its answer was waited for"

    one, two = Patient("one"), Scripted("two")
    run(work)


@pytest.mark.spec("NS-33")
async def test_register_without_force_needs_failure_or_version_change(tmp_path: Path) -> None:
    one, two = Scripted("one"), Scripted("two")
    one.changed = two.changed = "false"
    async with registrar(tmp_path, one, two, force_register=False) as (made, _):
        assert await made.register()
        assert one.asked == two.asked == [RequestCode.QUERY_DATA_VERSION]
        for two.healthy, two.changed in ((False, "false"), (True, "true")):
            one.asked.clear()
            assert await made.register()
            assert one.asked == [RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_BROKER]


@pytest.mark.spec("NS-18", "NS-36")
def test_lookup_period_and_unregister_timeout_match_apache() -> None:
    assert (UNREGISTER_TIMEOUT_MS, LOOK_UP_SECONDS) == (3000, 120)


@pytest.mark.spec("NS-33")
@pytest.mark.parametrize(
    ("period", "seconds"), [({"register_period_ms": 1}, 10), ({}, 30), ({"register_period_ms": 10**6}, 60)]
)
async def test_registrations_repeat_after_10_to_60_seconds(
    tmp_path: Path, period: dict[str, int], seconds: int
) -> None:
    class Timed(Scripted):
        def _handle(self, connection: Connection, request: Command) -> Any:
            if request.code == RequestCode.REGISTER_BROKER:
                times.append(clock() - began)
            return Scripted._handle(self, connection, request)

    clock, times = asyncio.get_running_loop().time, list[float]()
    async with registrar(tmp_path, Timed("one"), **period) as (made, _):
        began = clock()
        await made.start()
        await asyncio.sleep(2.5 * seconds)  # poll: virtual time
    assert [round(at) for at in times] == [0, seconds, 2 * seconds]


@pytest.mark.spec("NS-32", "NS-33", "ACL-21")
async def test_broker_registers_with_force_by_default(tmp_path: Path) -> None:
    one = Scripted("one")
    one.changed = "false"
    async with registrar(tmp_path, one) as (made, _):
        assert await made.register()
        assert one.asked == [RequestCode.REGISTER_BROKER]
        expected = {"brokerName": "broker-a", "brokerAddr": "h:1", "clusterName": "DefaultCluster", "brokerId": "0"}
        assert expected.items() <= one.last.ext.items() and one.last.ext["haServerAddr"] == "h:2"
        assert one.last.ext["bodyCrc32"] == str(zlib.crc32(one.last.body or b"") & 0x7FFFFFFF)
        assert not {"AccessKey", "Signature"} & one.last.ext.keys()


@pytest.mark.parametrize(
    "code", [RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER]
)
async def test_silent_name_server_does_not_delay_the_others(tmp_path: Path, code: int) -> None:
    servers = one, two, three = [Scripted(name) for name in ("one", "two", "three")]
    async with registrar(tmp_path, *servers, force_register=code != RequestCode.QUERY_DATA_VERSION) as (made, _):
        if code == RequestCode.UNREGISTER_BROKER:
            await made.start()
        one.silent = True
        began = asyncio.get_running_loop().time()
        task = asyncio.create_task(made.stop() if code == RequestCode.UNREGISTER_BROKER else made.register())
        await until(lambda: code in two.asked and code in three.asked)
        assert asyncio.get_running_loop().time() - began < 1 and not task.done()
        await task


async def test_restarted_name_server_gets_a_registration_within_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The period of registrations is 30 s; meanwhile clients would find no route of a new topic."""
    one, two = Scripted("one"), Scripted("two")
    async with registrar(tmp_path, one, two) as (made, topics):
        topics.set(TopicConfig("orders"))
        await made.start()
        host, port = one.address
        await one.server.stop()
        await until(lambda: "name server failed" in caplog.text)
        before = list(two.asked)
        one.server = RemotingServer(one._handle, settings=NetSettings())
        one.asked.clear()
        await one.server.start(host, port)
        began = asyncio.get_running_loop().time()
        await until(lambda: one.asked)
        assert asyncio.get_running_loop().time() - began < RECONNECT_SECONDS_MAX + 1
        assert one.asked == [RequestCode.REGISTER_BROKER] and b"orders" in (one.last.body or b"")
        assert two.asked == before, "the NameServer that was not restarted needs no registration"


async def test_absent_name_server_costs_no_encoded_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With 100,000 topics the body of a full registration takes a second of processor time: only a server that accepts gets one."""
    caplog.set_level("DEBUG")
    one = Scripted("one")
    async with registrar(tmp_path, one) as (made, topics):
        await made.start()
        tables = 0
        table = topics.registered

        def counted(names: Iterable[str] | None = None) -> TopicConfigTable:
            nonlocal tables
            tables += 1
            return table(names)

        topics.registered = counted  # type: ignore[method-assign]
        await one.server.stop()
        await until(lambda: caplog.text.count("name server failed") == 4)
        assert tables == 0


async def test_name_server_that_starts_after_the_broker_gets_a_registration(tmp_path: Path) -> None:
    one = Scripted("one")
    async with registrar(tmp_path, one) as (made, _):
        host, port = one.address
        await one.server.stop()
        await made.start()
        one.server = RemotingServer(one._handle, settings=NetSettings())
        await one.server.start(host, port)
        began = asyncio.get_running_loop().time()
        await until(lambda: one.asked)
        assert asyncio.get_running_loop().time() - began < RECONNECT_SECONDS_MAX + 1


async def test_lost_name_server_is_logged_once_until_it_returns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    def failures() -> list[str]:
        return [record.levelname for record in caplog.records if record.getMessage().startswith("name server failed")]

    one, two = Scripted("one"), Scripted("two")
    async with registrar(tmp_path, one, two) as (made, _):
        await made.start()
        host, port = one.address
        await one.server.stop()
        await until(lambda: len(failures()) == 5)
        one.server = RemotingServer(one._handle, settings=NetSettings())
        await one.server.start(host, port)
        await until(lambda: one.asked[1:])
        await until(lambda: "name server answers again" in caplog.text)
        assert failures()[:5] == ["WARNING", *["DEBUG"] * 4]


def change_list(made: Registrar, servers: Iterable[Scripted], *, host: str = "127.0.0.1") -> None:
    """As an administrator's change of namesrvAddr."""
    text = ";".join(f"{host}:{scripted.address[1]}" for scripted in servers)
    settings = RuntimeSettings(made._settings)
    settings.apply(settings.parse({"namesrvAddr": text}, {}))
    made.addresses_changed()


REGISTER, UNREGISTER = RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_changed_list_registers_with_new_and_unregisters_from_old(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str
) -> None:
    caplog.set_level("INFO")
    one, two, three = servers = [Scripted(name) for name in ("one", "two", "three")]
    async with registrar(tmp_path, *servers) as (made, _):
        change_list(made, [one, two], host=host)
        await made.start()
        one.silent = True
        began = asyncio.get_running_loop().time()
        change_list(made, [two, three], host=host)
        await until(lambda: REGISTER in three.asked)
        assert asyncio.get_running_loop().time() - began < 1, "the silent one was not waited for"
        one.silent = False
        change_list(made, [three], host=host)
        await until(lambda: two.asked[-1] == UNREGISTER and not two.server.connections)
        await until(lambda: not one.server.connections)
        assert UNREGISTER in one.asked and one.asked[-1] == UNREGISTER
        assert made.name_servers == [f"{host}:{three.address[1]}"] and not made._leaving
        before = f"{host}:{one.address[1]},{host}:{two.address[1]}"
        after = f"{host}:{two.address[1]},{host}:{three.address[1]}"
        assert f"name servers changed addresses={after} before={before}" in caplog.text
    assert three.asked[-1] == UNREGISTER and two.asked.count(UNREGISTER) == 1


async def test_name_server_listed_again_while_it_is_left_is_registered_with(tmp_path: Path) -> None:
    one, two = Scripted("one"), Scripted("two")
    async with registrar(tmp_path, one, two) as (made, _):
        await made.start()
        change_list(made, [two])
        change_list(made, [one, two])
        await until(lambda: not made._leaving)
        await until(lambda: one.asked[-1] == REGISTER)
        assert UNREGISTER in one.asked


async def test_broker_without_name_servers_registers_when_it_gets_one(tmp_path: Path) -> None:
    one = Scripted("one")
    async with registrar(tmp_path) as (made, _):
        await made.start()
        one.address = await one.server.start("127.0.0.1", 0)
        change_list(made, [one])
        await until(lambda: one.asked)
    assert one.asked == [REGISTER, UNREGISTER]
    await one.server.stop()


async def test_stop_waits_for_name_servers_that_are_being_left(tmp_path: Path) -> None:
    one, two = Scripted("one"), Scripted("two")
    async with registrar(tmp_path, one, two) as (made, _):
        await made.start()
        change_list(made, [two])
    assert (one.asked[-1], two.asked[-1]) == (UNREGISTER, UNREGISTER)


async def test_member_without_id_leaves_without_unregistration(tmp_path: Path) -> None:
    """Below 0 a member of a group is not registered (DL-X19), so there is nothing to remove."""
    one, two = Scripted("one"), Scripted("two")
    async with registrar(tmp_path, one, two) as (made, _):
        made._broker_id = lambda: -1
        await made.start()
        change_list(made, [two])
        await until(lambda: not made._leaving)
        assert one.asked == two.asked == []
        made._broker_id = lambda: 1
