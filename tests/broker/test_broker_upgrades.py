"""Defects that Apache RocketMQ fixed in its broker, which must not come back here; each test names Apache's issue."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from brokergroup import ledger_group
from wire import Clock, Wire, wire

from saturnmq.broker.services import registrar as registrar_module
from saturnmq.broker.state import identity
from saturnmq.protocol.codes import HALF_TOPIC, NAME_LENGTH_MAX, RequestCode
from saturnmq.store.files import capacity
from waiting import until


@pytest.mark.spec("UPG-06")
async def test_periodic_work_of_the_broker_survives_exceptions(caplog: pytest.LogCaptureFixture) -> None:
    """ROCKETMQ-238."""
    rounds = 0

    def broken() -> None:
        nonlocal rounds
        rounds += 1
        raise ZeroDivisionError("broken on purpose")

    async with wire() as w:
        task = asyncio.ensure_future(w.broker._every(0.01, broken))
        await until(lambda: rounds >= 3)
        assert not task.done() and "periodic work failed" in caplog.text
        task.cancel()


@pytest.mark.spec("UPG-14")
async def test_broker_closes_its_connection_to_a_removed_name_server(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROCKETMQ-2042."""
    registrar = wire.broker.registrar
    known = wire.server.name_servers
    object.__setattr__(registrar._settings, "namesrv_addr", "")  # the list is that of the address server
    assert registrar._client.is_connected(known)
    answers = [[known], ["127.0.0.1:1"]]

    async def look_up(*_: object) -> list[str]:
        return answers.pop(0)

    monkeypatch.setattr(registrar_module, "look_up", look_up)
    await registrar.look_up()
    assert registrar._client.is_connected(known), "it is still in the list"
    await registrar.look_up()
    await until(lambda: not registrar._client.is_connected(known))


@pytest.mark.spec("UPG-08")
async def test_transactional_message_sent_back_is_delivered_not_half() -> None:
    """ROCKETMQ-1648 and 1722: the copy, and the delayed copy, still have the property of a half message."""
    clock = Clock()
    async with wire(clock_ms=clock) as w:
        sent = await w.send(body=b"order", properties={"TRAN_MSG": "true", "PGROUP": "producers"}, f=4)
        assert sent.code == 0
        (half,) = await w.messages(HALF_TOPIC)
        fields = {
            "producerGroup": "producers", "tranStateTableOffset": 0, "commitLogOffset": half.physical_offset,
            "commitOrRollback": 8, "fromTransactionCheck": False, "msgId": "", "transactionId": "",
        }  # fmt: skip
        assert (await w.call(RequestCode.END_TRANSACTION, **fields)).code == 0
        (message,) = await w.messages()
        back = {"group": "G", "delayLevel": 0, "originTopic": "T", "offset": message.physical_offset}
        assert (await w.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == 0
        copy = await w.send("%RETRY%G", b"copy", {"TRAN_MSG": "true", "DELAY": "3", "PGROUP": "producers"}, j=1)
        assert copy.code == 0
        assert await w.messages("%RETRY%G") == [], "both wait for their delay"
        clock.ms += 10_000
        w.broker.master.delay.deliver_due()
        found = [*await w.messages("%RETRY%G"), *await w.messages("%RETRY%G", 1)]
        assert sorted(one.body for one in found) == [b"copy", b"order"]
        assert [one.body for one in await w.messages(HALF_TOPIC)] == [b"order"], "no other half message"


@pytest.mark.spec("UPG-11")
async def test_longest_topic_is_accepted_by_the_broker(wire: Wire) -> None:
    """ROCKETMQ-1110 and 1699: client and broker had different limits. The client's is in test_client_rules."""
    longest = "t" * NAME_LENGTH_MAX
    assert NAME_LENGTH_MAX == 127 and (await wire.send(longest)).code == 0
    assert [message.topic for message in await wire.messages(longest)] == [longest]
    refused = await wire.send(longest + "t")
    assert refused.code != 0 and "longer than topic max length" in (refused.remark or "")


@pytest.mark.spec("UPG-11")
def test_name_with_both_families_is_advertised_with_its_ipv4_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCKETMQ-1639: the address of the store in message ids was an IPv6 address."""
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::7", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert identity.advertised("broker.example") == ("broker.example", "192.0.2.7")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both[:1])
    assert identity.advertised("broker.example") == ("broker.example", "2001:db8::7")


@pytest.mark.spec("UPG-13")
async def test_configuration_update_leaves_the_delay_levels_as_they_are(tmp_path: Path) -> None:
    """ROCKETMQ-1988: an update of any key cut the value of messageDelayLevel at its blanks."""
    levels = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    async with wire(data=tmp_path) as w:
        for text in ("autoCreateTopicEnable=false", "brokerPermission=4\nautoCreateTopicEnable=true"):
            assert (await w.call(RequestCode.UPDATE_BROKER_CONFIG, text.encode())).code == 0
            shown = ((await w.call(RequestCode.GET_BROKER_CONFIG)).body or b"").decode()
            assert f"messageDelayLevel={levels}\n" in shown
        refused = await w.call(RequestCode.UPDATE_BROKER_CONFIG, b"messageDelayLevel=1s")
        assert refused.code == 16 and "messageDelayLevel" in (refused.remark or "")
        assert w.broker.store.settings.message_delay_level == levels


@pytest.mark.spec("UPG-01")
async def test_disk_ratio_of_a_ledger_is_that_of_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCKETMQ-2280: it was -1, as the folder of a plain commit log does not exist."""
    disks = {"full": 80, "ledger": 30, "archive": 10}  # folders below tmp_path, and percent in use

    def file_system(folder: Path) -> SimpleNamespace:
        free = 100 - disks.get(folder.relative_to(tmp_path).parts[0], 60)
        return SimpleNamespace(f_blocks=100, f_bfree=free, f_bavail=free, f_frsize=1 << 30)

    monkeypatch.setattr(capacity, "_facts", file_system)
    folders = {name: tmp_path / name for name in disks}
    folders["archive"].mkdir()
    raft = {
        "data_folders_text": f"{folders['full']},{folders['ledger']}", "read_only_text": str(folders["archive"]),
    }  # fmt: skip
    async with ledger_group(tmp_path, 1, raft=raft) as group:
        master = await group.master()
        answer = await group.call(master, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = json.loads(answer.body or b"{}")["table"]
        ratios = {name: float(text) for name, text in table.items() if "DiskRatio" in name}
        assert ratios == {
            "commitLogDiskRatio": 0.3, "consumeQueueDiskRatio": 0.6,
            f"commitLogDiskRatio_{folders['full']}": 0.8, f"commitLogDiskRatio_{folders['ledger']}": 0.3,
        }  # fmt: skip
        assert table["commitLogDirCapacity"] == "Total : 100.0 GiB, Free : 20.0 GiB.", "of the first folder"
        scraped = b"".join(master.metrics.pieces()).decode()
        for name in ("rocketmq_brokeruntime_commitlogdir_capacity_free", "saturnmq_disk_free_bytes"):
            (line,) = [line for line in scraped.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
            assert float(line.rpartition(" ")[2]) == 20 << 30, name
        disks["ledger"] = 95
        await master.store._maintenance.clean()
        assert not master.store.refusal, "a folder with space is enough"
        disks["full"] = 96
        await master.store._maintenance.clean()
        assert master.store.refusal.startswith("the disk is full: CL: 95% CQ: 60%")


@pytest.mark.spec("UPG-09")
async def test_follower_that_joins_leaves_the_master_in_the_route(tmp_path: Path) -> None:
    """ROCKETMQ-1464."""
    async with ledger_group(tmp_path, 3) as group:
        master = await group.master()
        routes = group.namesrv.routes
        name = master.settings.broker_name
        await group.until(lambda: len(routes.brokers[name].broker_addrs) == 3, "not all are registered")
        follower = group.name_of(group.followers()[0])
        await group.stop(follower)
        await group.until(lambda: len(routes.brokers[name].broker_addrs) == 2, "it is still registered")
        await group.start(follower)
        await group.until(lambda: len(routes.brokers[name].broker_addrs) == 3, "it is not registered again")
        assert routes.brokers[name].broker_addrs[0] == master.advertised_address
