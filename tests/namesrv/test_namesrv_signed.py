"""namesrvAccess=signed: brokers and administrators need an administrator's account, clients read without."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from served import Served

from saturnmq.broker import Broker, BrokerSettings
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.namesrv.access_control import RELOAD_MS
from saturnmq.net import NetSettings
from saturnmq.protocol.bodies import ClusterInfo
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.signatures import sign_v1, sign_v2
from saturnmq.store import StoreProfile, StoreSettings, wall_clock_ms

ACCOUNTS = """
accounts:
  - accessKey: brokers
    secretKey: of-the-brokers
    admin: true
  - accessKey: consumer
    secretKey: of-a-consumer
    defaultTopicPerm: SUB
"""
CHANGES = {100: {"namespace": "n", "key": "k", "value": "v"}, 102: {"namespace": "n", "key": "k"}, 205: {"brokerName": "b"},
           327: {"brokerName": "b"}, 216: {"topic": "T"}, 318: {}}  # fmt: skip
OF_BROKERS = {
    "brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": "", "brokerId": "0",
}  # fmt: skip


def settings(tmp_path: Path) -> NameServerSettings:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return NameServerSettings(
        kv_config_path=str(tmp_path / "kv.json"),
        config_store_path=str(tmp_path / "ns.properties"),
        namesrv_access="signed",
        rocketmq_home=str(tmp_path),
    )


@pytest.mark.spec("SEC-17")
async def test_requests_of_brokers_and_administrators_need_a_signature(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = NameServer(settings(tmp_path), NetSettings())
    host, port = await server.start("127.0.0.1", 0)
    s = Served(server, f"{host}:{port}")
    try:
        assert server.unauthenticated == {}

        async def ask(code: int, ext: dict[str, str], account: str = "", secret: str = "") -> Command:
            body = b"brokersMax=9" if code == 318 else None
            command = Command(code, ext=dict(ext), body=body)
            if account:
                sign_v2(command, account, secret.encode(), time_ms=wall_clock_ms(), nonce=f"{code}")
            return await s.client.invoke(s.address, command, 5000)

        requests = CHANGES | dict.fromkeys((103, 104, 322), OF_BROKERS)
        for code, ext in requests.items():
            for account, secret in (
                ("", ""),
                ("consumer", "of-a-consumer"),
                ("brokers", "wrong-secret"),
                ("x", "y"),
            ):
                refused = await ask(code, ext, account, secret)
                assert refused.code == 1 and "AclException" in (refused.remark or ""), (code, account)
        assert server.routes.live == {} and server.kv.table == {}
        for code in (103, 100, 205, 327, 322, 318, 102, 216, 104):
            assert (await ask(code, requests[code], "brokers", "of-the-brokers")).code == 0, code
        # Clients read without an account.
        assert (await s.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 17
        assert (await s.call(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
        # An old signature, as mqadmin makes it, from this machine; and a replay of a new one.
        command = Command(100, ext=dict(CHANGES[100]))
        sign_v1(command, "brokers", b"of-the-brokers")
        assert (await s.client.invoke(s.address, command, 5000)).code == 0
        command = Command(100, ext=dict(CHANGES[100]))
        sign_v2(command, "brokers", b"of-the-brokers", time_ms=wall_clock_ms(), nonce="once")
        answers = [await s.client.invoke(s.address, Command(100, ext=dict(command.ext)), 5000) for _ in range(2)]
        assert [answer.code for answer in answers] == [0, 1] and "used before" in (answers[1].remark or "")
    finally:
        await s.client.close()
        await server.stop()
    lines = [record.getMessage() for record in caplog.records if record.name == "saturnmq.audit"]
    assert sum("account=brokers" in line and "result=ok" in line for line in lines) == 8
    assert all("of-the-brokers" not in line for line in lines)


@pytest.mark.spec("SEC-17")
async def test_changed_account_file_is_read_while_the_server_runs(tmp_path: Path) -> None:
    server = NameServer(settings(tmp_path), NetSettings())
    host, port = await server.start("127.0.0.1", 0)
    s = Served(server, f"{host}:{port}")
    path = tmp_path / "conf" / "plain_acl.yml"
    path.write_text(ACCOUNTS.replace("of-the-brokers", "a-new-secret-of-them"))

    async def code_of(secret: bytes) -> int:
        command = Command(100, ext=dict(CHANGES[100]))
        sign_v1(command, "brokers", secret)
        return (await s.client.invoke(s.address, command, 5000)).code

    try:
        assert (await code_of(b"of-the-brokers"), await code_of(b"a-new-secret-of-them")) == (0, 1)
        async with asyncio.timeout(2 * RELOAD_MS / 1000):
            while await code_of(b"a-new-secret-of-them"):
                await asyncio.sleep(0.1)  # poll
        assert await code_of(b"of-the-brokers") == 1
    finally:
        await s.client.close()
        await server.stop()


@pytest.mark.spec("SEC-17")
async def test_old_signatures_of_administrators_can_be_refused_from_everywhere(tmp_path: Path) -> None:
    server = NameServer(dataclasses.replace(settings(tmp_path), acl_plain_admin_addresses=""), NetSettings())
    host, port = await server.start("127.0.0.1", 0)
    s = Served(server, f"{host}:{port}")
    try:
        command = Command(100, ext=dict(CHANGES[100]))
        sign_v1(command, "brokers", b"of-the-brokers")
        answer = await s.client.invoke(s.address, command, 5000)
        assert answer.code == 1 and "aclPlainAdminAddresses" in (answer.remark or "")
        command = Command(100, ext=dict(CHANGES[100]))
        sign_v2(command, "brokers", b"of-the-brokers", time_ms=wall_clock_ms(), nonce="n")
        assert (await s.client.invoke(s.address, command, 5000)).code == 0
    finally:
        await s.client.close()
        await server.stop()
    assert NameServerSettings(acl_plain_admin_addresses="x").validate()[0].startswith("aclPlainAdminAddresses=x: ")


@pytest.mark.spec("SEC-17")
async def test_broker_signs_its_registrations(tmp_path: Path) -> None:
    server = NameServer(settings(tmp_path), NetSettings())
    host, port = await server.start("127.0.0.1", 0)
    s = Served(server, f"{host}:{port}")
    base = BrokerSettings(listen_port=0, fast_port_enable=False, namesrv_addr=s.address)
    for name, keys in (
        ("unsigned", {}),
        ("signed", {"namesrv_access_key": "brokers", "namesrv_secret_key": "of-the-brokers"}),
    ):
        store = StoreSettings(store_path_root_dir=str(tmp_path / name), profile=StoreProfile.SMALL)
        broker = Broker(dataclasses.replace(base, broker_name=name, **keys), store, NetSettings())
        await broker.start()
        info = ClusterInfo.decode((await s.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        assert set(info.broker_addr_table) == ({name} if keys else set())
        assert "of-the-brokers" not in repr(broker.settings)
        await broker.stop()
        assert server.routes.live == {}, "it also signs its unregistration"
    await s.client.close()
    await server.stop()


async def test_name_server_with_unusable_accounts_does_not_start(tmp_path: Path) -> None:
    wanted = settings(tmp_path)
    (tmp_path / "conf" / "plain_acl.yml").chmod(0o644)
    server = NameServer(wanted, NetSettings())
    with pytest.raises(ConfigError, match="plain_acl"):
        await server.start("127.0.0.1", 0)
    await server.stop()


async def test_oversized_body_is_refused_before_its_signature_is_checked(tmp_path: Path) -> None:
    server = NameServer(settings(tmp_path), NetSettings())
    host, port = await server.start("127.0.0.1", 0)
    s = Served(server, f"{host}:{port}")
    forged = {"AccessKey": "brokers", "Signature": "forged"}
    try:
        for size, text in ((65_536, "Check signature failed"), (65_537, "a body of 65537 bytes is too long")):
            answer = await s.client.invoke(s.address, Command(318, ext=dict(forged), body=bytes(size)), 5000)
            assert answer.code == 1 and text in (answer.remark or "")
        registration = Command(103, ext=OF_BROKERS | forged, body=bytes(65_537))
        assert "Check signature failed" in ((await s.client.invoke(s.address, registration, 5000)).remark or "")
    finally:
        await s.client.close()
        await server.stop()
