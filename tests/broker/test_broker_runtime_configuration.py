"""UPDATE_BROKER_CONFIG: each key that may change takes effect in the running broker, and is kept in its file."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Final

import pytest
from wire import Wire, run, wire

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.config.settings import parse_properties
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, RemotingClient
from saturnmq.protocol.bodies import DataVersion
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.frames.command import Command
from saturnmq.store import StoreProfile, StoreSettings
from waiting import until

APACHE_KEYS: Final = Path(__file__).parent.parent / "config" / "apache_keys_4_9_7.tsv"
UPDATE = RequestCode.UPDATE_BROKER_CONFIG


async def change(w: Wire, text: str) -> None:
    answer = await w.call(UPDATE, text.encode())
    assert answer.code == 0, answer.remark
    name, _, value = text.partition("=")
    shown = (await w.call(RequestCode.GET_BROKER_CONFIG)).body or b""
    assert f"{name}={value}\n".encode() in shown


@pytest.mark.spec("OPS-02", "NS-35", "ADM-12")
async def test_broker_permission_reaches_the_route_and_the_next_pull(wire: Wire) -> None:
    await wire.send("T")
    await wire.broker.registrar.wait_registered()
    for permission in (4, 2, 6):
        await change(wire, f"brokerPermission={permission}")
        while wire.server.namesrv.routes.topics["T"]["broker-a"].perm != permission:
            await wire.call(RequestCode.GET_BROKER_CONFIG)
        assert (await wire.pull("T")).code == (16 if permission == 2 else 0)


async def test_auto_creation_of_topics_is_switched() -> None:
    async with wire(auto_create_topic=False) as w:
        assert (await w.send("A")).code == 17
        await change(w, "autoCreateTopicEnable=true")
        assert (await w.send("A")).code == 0
        await change(w, "autoCreateTopicEnable=false")
        assert (await w.send("B")).code == 17 and (await w.send("A")).code == 0


async def test_transactions_messages_and_sends_are_limited_at_once(wire: Wire) -> None:
    half = {"TRAN_MSG": "true", "PGROUP": "producers"}
    assert (await wire.send("T", properties=half)).code == 0
    await change(wire, "rejectTransactionMessage=true")
    assert (await wire.send("T", properties=half)).code == 16
    assert (await wire.send("T", b"x" * 2000)).code == 0
    await change(wire, "maxMessageSize=1000")
    assert (await wire.send("T", b"x" * 2000)).code == 13 and (await wire.send("T")).code == 0
    await change(wire, "startAcceptSendRequestTimeStamp=9999999999999")
    assert (await wire.send("T")).code != 0
    await change(wire, "startAcceptSendRequestTimeStamp=0")
    assert (await wire.send("T")).code == 0


def test_pulls_and_connections_follow_the_change() -> None:
    async def work() -> None:
        async with wire() as w:
            for _ in range(3):
                await w.send("T", queue=0)
            await w.heartbeat("G", "T")
            assert len(await w.messages("T")) == 3
            await change(w, "maxTransferCountOnMessageInMemory=1")
            assert len(await w.messages("T")) == 1
            await change(w, "longPollingEnable=false")
            answer = await w.pull("T", offset=3, suspend_ms=15_000, group="G")
            assert answer.code == 19, "answered after shortPollingTimeMills, not after 15 s"

    async def expiry() -> None:
        now = [1_700_000_000_000]
        async with wire(clock_ms=lambda: now[0]) as w:
            await w.heartbeat("G", "T")
            now[0] += 200_000
            await w.heartbeat("G", "T")
            now[0] += 100_000
            w.broker.expire_clients()
            assert w.broker.clients.consumers["G"].members
            assert (await w.call(UPDATE, b"channelExpiredTimeout=10s")).code == 0
            w.broker.expire_clients()
            assert "G" not in w.broker.clients.consumers or not w.broker.clients.consumers["G"].members

    run(work)
    run(expiry)


async def test_retention_follows_the_change(wire: Wire, tmp_path: Path) -> None:
    for name, value in (
        ("fileReservedTime", "5"), ("deleteWhen", "02;14"), ("diskMaxUsedSpaceRatio", "50"),
        ("cleanFileForciblyEnable", "false"),
    ):  # fmt: skip
        await change(wire, f"{name}={value}")
    policy = wire.broker.store._maintenance._policy
    assert (policy.reserved_ms, policy.delete_hours) == (5 * 3_600_000, {2, 14})
    assert (policy.used_percent_max, policy.forcible) == (50, False)


async def test_flush_becomes_synchronous_but_not_asynchronous(wire: Wire) -> None:
    assert (await wire.send("T")).code == 0
    assert (await wire.call(UPDATE, b"syncFlushTimeout=20s")).code == 0
    await change(wire, "flushDiskType=SYNC_FLUSH")
    assert (await wire.send("T")).code == 0
    assert wire.broker.store.flushed_offset == wire.broker.store.max_physical_offset
    assert len(await wire.messages("T")) == 2
    refused = await wire.call(UPDATE, b"flushDiskType=ASYNC_FLUSH")
    assert refused.code == 1 and "can only become SYNC_FLUSH" in (refused.remark or "")


async def test_log_level_follows_the_change(wire: Wire) -> None:
    try:
        await change(wire, "logLevel=ERROR")
        assert not logging.getLogger("saturnmq.broker").isEnabledFor(logging.WARNING)
        assert logging.getLogger("saturnmq.audit").isEnabledFor(logging.INFO), "the audit log goes on"
    finally:
        assert (await wire.call(UPDATE, b"logLevel=")).code == 0
    assert logging.getLogger("saturnmq").level == logging.NOTSET


@pytest.mark.spec("SEC-07", "SEC-03", "OPS-03", "ADM-12")
async def test_change_is_kept_in_the_configuration_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# mine\nbrokerName=broker-a\nbrokerPermission=6\n")

    store = StoreSettings(store_path_root_dir=str(tmp_path / "store"), profile=StoreProfile.SMALL)
    settings = BrokerSettings(listen_port=0)
    shared = dataclasses.replace(settings)
    broker = Broker(settings, store, NetSettings(), config_file=path)
    await broker.start()
    broker.configuration.overridden = {"brokerPermission": "environment SATURNMQ_BROKER_PERMISSION"}
    client = RemotingClient(settings=NetSettings())
    try:
        for text, code in (
            (b"brokerPermission=4", 0),
            (b"brokerPermission=2\nstorePathRootDir=/tmp/evil", 16),
            (b"filterServerNums=1;touch /tmp/evil", 16),
            (b"brokerPermission=77", 1),
        ):
            answer = await client.invoke(broker.address, Command(UPDATE, body=text), 5000)
            assert answer.code == code, answer.remark
        assert broker.settings.broker_permission == 4
        assert settings == shared, "the settings of the caller are its own"
    finally:
        await client.close()
        await broker.stop()
    assert path.read_text() == "# mine\nbrokerName=broker-a\nbrokerPermission=4\n"
    assert Path(f"{path}.bak").read_text() == "# mine\nbrokerName=broker-a\nbrokerPermission=6\n"
    warning = 'lasts until the next start key=brokerPermission overridden_by="environment SATURNMQ_BROKER_PERMISSION"'
    assert any(warning in record.getMessage() for record in caplog.records)
    results = [r.getMessage().split(" result=")[1] for r in caplog.records if r.name == "saturnmq.audit"]
    assert [result[:7] for result in results] == ["ok supp", '"code 1', '"code 1', '"code 1']


async def test_name_servers_follow_the_change_and_the_file_keeps_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "broker.conf"
    caplog.set_level("INFO")
    servers = [NameServer(NameServerSettings(kv_config_path=str(tmp_path / f"kv{n}")), NetSettings()) for n in (0, 1)]
    first, second = ["{}:{}".format(*await server.start("127.0.0.1", 0)) for server in servers]
    path.write_text(f"namesrvAddr={first}\n")
    store = StoreSettings(store_path_root_dir=str(tmp_path / "store"), profile=StoreProfile.SMALL)
    broker = Broker(BrokerSettings(namesrv_addr=first, listen_port=0), store, NetSettings(), config_file=path)
    await broker.start()
    client = RemotingClient(settings=NetSettings())
    try:
        for value, code in (("/tmp/evil", 1), ("", 1), (f"{second}/x", 1), (second, 0)):
            assert path.read_text() == f"namesrvAddr={first}\n", "nothing was changed by what was refused"
            answer = await client.invoke(broker.address, Command(UPDATE, body=f"namesrvAddr={value}".encode()), 5000)
            assert answer.code == code and (not code or "namesrvAddr" in (answer.remark or "")), answer.remark
        await until(lambda: broker.address in servers[1].routes.live and not servers[0].routes.live)
    finally:
        await client.close()
        await broker.stop()
        for server in servers:
            await server.stop()
    assert path.read_text() == f"namesrvAddr={second}\n"
    assert f"configuration changed key=namesrvAddr from={first} to={second} by=127.0.0.1" in caplog.text


def test_fixed_keys_of_one_broker_are_refused_with_the_reason(tmp_path: Path) -> None:
    store = StoreSettings(store_path_root_dir=str(tmp_path), profile=StoreProfile.SMALL)
    broker = Broker(BrokerSettings(), store, NetSettings(), fixed={"namesrvAddr": "it has its own"})
    with pytest.raises(ResponseError, match=r"namesrvAddr cannot change at run time \(it has its own\)"):
        asyncio.run(broker.configuration.update(b"namesrvAddr=h:1", "peer"))


@pytest.mark.spec("ADM-13")
async def test_refused_keys_are_answered_in_the_words_of_apache() -> None:
    async with wire(config_black_list="brokerPermission") as w:
        for name in ("brokerPermission", "rocketmqHome", "configBlackList", "brokerConfigPath", "listenPort"):
            answer = await w.call(UPDATE, f"{name}=1".encode())
            words = "Can not update config. " if name == "listenPort" else "Can not update config in black list. "
            assert answer.code == 16 and (answer.remark or "").startswith(words)
            assert "configuration file" in (answer.remark or "") and "restart this" in (answer.remark or "")
        assert w.broker.settings.broker_permission == 6


async def test_longest_message_can_change_at_run_time(wire: Wire) -> None:
    assert (await wire.call(UPDATE, b"maxMessageSize=100")).code == 0
    assert [(await wire.send(body=b"x" * size)).code for size in (100, 101)] == [0, 13]


@pytest.mark.spec("CFG-09", "ADM-28")
async def test_all_keys_of_apache_are_shown_with_the_values_in_use(wire: Wire) -> None:
    shown = parse_properties(((await wire.call(RequestCode.GET_BROKER_CONFIG)).body or b"").decode())
    names = [line.split("\t") for line in APACHE_KEYS.read_text().splitlines() if not line.startswith("#")]
    assert {name for cls, name, _ in names if cls != "NamesrvConfig"} <= set(shown)
    port = int(wire.broker.address.rpartition(":")[2])
    assert (shown["haListenPort"], shown["useTLS"]) == (str(port + 1), "false")
    assert int(shown["mappedFileSizeCommitLog"]) == wire.broker.store.settings.commit_log_bytes > 0
    assert (await wire.call(UPDATE, b"mappedFileSizeCommitLog=" + shown["mappedFileSizeCommitLog"].encode())).code == 0


@pytest.mark.spec("ADM-12", "ADM-28")
async def test_configuration_has_a_version_and_what_tools_read_unchecked(wire: Wire) -> None:

    async def asked() -> tuple[DataVersion, dict[str, str]]:
        answer = await wire.call(RequestCode.GET_BROKER_CONFIG)
        return DataVersion.decode(answer.ext["version"].encode()), parse_properties((answer.body or b"").decode())

    before, shown = await asked()
    copied = {
        "brokerClusterName": "DefaultCluster", "brokerId": "0", "brokerName": "broker-a", "brokerRole": "ASYNC_MASTER",
        "fileReservedTime": "72", "filterServerNums": "0", "flushDiskType": "ASYNC_FLUSH",
        "maxMessageSize": "4194304", "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC", "slaveReadEnable": "false",
        "traceOn": "true", "traceTopicEnable": "false", "useTLS": "false", "autoCreateTopicEnable": "true",
        "autoCreateSubscriptionGroup": "true",
    }  # fmt: skip
    assert copied.items() <= shown.items()
    assert shown["messageDelayLevel"].split()[:3] == ["1s", "5s", "10s"]
    assert int(shown["clientCallbackExecutorThreads"]) > 0
    await change(wire, "brokerPermission=4")
    await change(wire, "brokerPermission=4")  # no change
    assert (await wire.call(UPDATE, b"brokerPermission=x")).code == 1
    after, _ = await asked()
    assert after.counter == before.counter + 1 and after.timestamp > before.timestamp
