"""How a slave finds its master, what NameServers say to it, and what a master logs about its slaves."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest
from brokerpair import Pair, pair

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.net import NetSettings
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.replication.masterslave.settings import HaSettings
from saturnmq.store import StoreProfile, StoreSettings
from waiting import until


@pytest.mark.spec("HA-02")
async def test_a_slave_follows_the_address_that_its_master_registers(tmp_path: Path) -> None:
    async with pair(tmp_path, broker_ip2="localhost", slave_ha={"master_address": "a:1"}) as both:
        await both.send(both.master)
        await both.replicated()
        for _ in range(2):
            assert both.slave.registrar.ha_server_address == f"localhost:{both.master.ha_master.address[1]}"  # type: ignore[union-attr]
            await both.stop_one(both.master)
            await both.start_master()  # at another port, reported with the next registration
            await both.send(both.master)
            await both.replicated()


@pytest.mark.spec("HA-02")
async def test_a_configured_address_of_the_master_is_kept(tmp_path: Path) -> None:
    async with pair(tmp_path, broker_ip2="192.0.2.1") as both:
        await both.send(both.master)
        await both.stop_one(both.slave)
        both.slave_ha = {"master_address": f"127.0.0.1:{both.master.ha_master.address[1]}"}  # type: ignore[union-attr]
        await both.start_slave()
        await both.replicated()
        assert both.slave.registrar.ha_server_address.startswith("192.0.2.1:")


@pytest.mark.spec("HA-02")
@pytest.mark.parametrize(("configured", "used"), [("0:123", False), ("0:1234", True)])
async def test_an_address_of_the_master_has_at_least_6_characters(tmp_path: Path, configured: str, used: bool) -> None:
    async with pair(tmp_path, slave_ha={"master_address": configured}) as both:
        slave = both.slave.ha_slave
        assert slave is not None
        assert slave._master_address() == (configured if used else both.slave.registrar.ha_server_address) != ""


@pytest.mark.spec("HA-02")
async def test_a_slave_without_an_address_starts_and_does_not_replicate(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    await pair.send(pair.master)
    alone = await pair._broker("alone", HaSettings(), broker_role="SLAVE", broker_id=2, namesrv_addr="")
    caplog.clear()
    await asyncio.sleep(60)  # poll
    assert alone.store.log.end == 0
    assert alone.ha_slave is not None and not alone.ha_slave.client.connected
    assert "replication stopped" not in caplog.text


@pytest.mark.spec("HA-19")
async def test_a_master_logs_the_lag_after_10_s_and_then_every_60(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = asyncio.get_running_loop().time
    times: list[float] = []
    lags: list[int] = []
    async with pair(tmp_path) as both:
        began = clock()
        await both.stop_one(both.slave)
        await both.send(both.master)
        end = both.master.store.log.end
        while len(times) < 3:
            await asyncio.sleep(0.5)  # poll
            found = re.findall(r"slave falls behind master (\d+) bytes", caplog.text)
            if len(found) > len(times):
                times.append(clock() - began)
                lags.append(int(found[-1]))
            if len(times) == 2 and both.slave not in both.running:
                await both.start_slave()
        assert [round(at / 10) for at in times] == [1, 7, 13]
        assert lags == [end, end, 0]


@pytest.mark.spec("HA-19")
async def test_the_logged_lag_is_that_of_the_farthest_slave(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await pair.send(pair.master)
    await pair.replicated()
    master = pair.master.ha_master
    assert master is not None
    await until(lambda: master.acks.highest == pair.master.store.log.end)
    master.acks.set("a slave farther behind", PhysicalOffset(1))
    caplog.clear()
    master.log_lag()
    assert "slave falls behind master 0 bytes slaves=2" in caplog.text
    master.acks.remove("a slave farther behind")


@pytest.mark.spec("HA-20")
async def test_a_slave_needs_a_broker_id_above_0(tmp_path: Path) -> None:
    settings = BrokerSettings(listen_port=0, broker_role="SLAVE")
    store = StoreSettings(str(tmp_path), profile=StoreProfile.SMALL)
    with pytest.raises(ConfigError, match="brokerId must be above 0"):
        await Broker(settings, store, NetSettings()).start()


@pytest.mark.spec("HA-20")
async def test_half_messages_are_checked_by_the_master_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"transaction_timeout_ms": 1000, "transaction_interval_ms": 1000}
    async with pair(tmp_path, **settings) as both:
        answer = await both.call(
            both.master, RequestCode.SEND_MESSAGE_V2, b"half", a="p", b="T", c="TBW102", d=4, e=0, f=4, g=1, h=0,
            i="TRAN_MSG\x01true\x02PGROUP\x01p", j=0, k="false", m="false",
        )  # fmt: skip
        assert answer.code == 0
        await both.replicated()
        await until(lambda: "no live producer to check half messages" in caplog.text)
        await both.stop_one(both.master)
        caplog.clear()
        end = both.slave.store.log.end
        await asyncio.sleep(30)  # poll
        assert "half message" not in caplog.text
        assert both.slave.store.log.end == end


@pytest.mark.spec("HA-21")
async def test_topics_of_a_slave_are_not_registered_and_it_learns_of_its_master(pair: Pair) -> None:
    await pair.send(pair.master)
    await pair.replicated()
    pair.slave.topics.ensure("OnlyHere", 1)
    await pair.slave.registrar.register(force=True)
    assert (await pair.route("OnlyHere")).code == 17
    found = await pair.route("T")
    assert found.code == 0
    assert pair.slave.advertised_address.encode() in (found.body or b"")
    host, port = pair.master.ha_master.address  # type: ignore[union-attr]
    registrar = pair.slave.registrar
    assert (registrar.master_address, registrar.ha_server_address) == (
        pair.master.advertised_address,
        f"{host}:{port}",
    )
    assert pair.master.registrar.master_address == ""
