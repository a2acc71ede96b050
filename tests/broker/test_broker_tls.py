"""TLS between nodes: a broker and its NameServers, and the members of a DLedger group, verify each other's certificates."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from brokergroup import DEADLINE_SECONDS, ledger_group

from certificates import write_certificate
from harness import virtualtime
from saturnmq import Client
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, RemotingClient, TlsSettings
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.store import StoreProfile, StoreSettings
from waiting import until


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(2 * DEADLINE_SECONDS):
            return await work()

    return virtualtime.run(bounded())


def node_tls(folder: Path, name: str, trusted: Path | None = None) -> TlsSettings:
    """TLS of a node that only talks TLS. trusted: the certificate that it trusts, by default its own."""
    certificate, key = write_certificate(folder, name)
    return TlsSettings(
        mode="enforcing",
        enable=True,
        server_cert_path=str(certificate),
        server_key_path=str(key),
        client_trust_path=str(trusted or certificate),
    )


@contextlib.asynccontextmanager
async def registered(
    folder: Path, namesrv: TlsSettings, broker: TlsSettings
) -> AsyncIterator[tuple[NameServer, Broker]]:
    names = NameServer(NameServerSettings(kv_config_path=str(folder / "kv.json")), NetSettings(), tls=namesrv)
    host, port = await names.start("127.0.0.1", 0)
    settings = BrokerSettings(namesrv_addr=f"{host}:{port}", listen_port=0, fast_port_enable=False)
    store = StoreSettings(profile=StoreProfile.SMALL, store_path_root_dir=str(folder / "store"))
    made = Broker(settings, store, NetSettings(), tls=broker)
    await made.start()
    try:
        yield names, made
    finally:
        await made.stop()
        await names.stop()


@pytest.mark.spec("SEC-15")
def test_broker_registers_only_at_a_name_server_that_it_trusts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = node_tls(tmp_path, "cluster")
    forged = node_tls(tmp_path, "forged")

    async def work() -> None:
        async with registered(tmp_path / "1", tls, tls) as (_, broker):
            assert broker.registrar.registered == 1
        caplog.clear()
        async with registered(tmp_path / "2", forged, tls) as (_, broker):
            assert broker.registrar.registered == 0
            assert "certificate" in caplog.text and "registered with no name server" in caplog.text
        unsure = dataclasses.replace(tls, client_auth_server=False)
        async with registered(tmp_path / "3", forged, unsure) as (_, broker):
            assert broker.registrar.registered == 1

    for name in ("1", "2", "3"):
        (tmp_path / name).mkdir()
    run(work)


@pytest.mark.spec("SEC-15")
async def test_ledger_group_replicates_over_tls_and_refuses_plain_peers(tmp_path: Path) -> None:
    tls = node_tls(tmp_path, "cluster")
    async with ledger_group(tmp_path, tls=tls) as group:
        for number in range(5):
            await group.send(b"%d" % number)
        await group.same("T", 0, [b"%d" % number for number in range(5)])
        plain = RemotingClient(settings=NetSettings())
        for address in group.addresses.values():
            with pytest.raises(SaturnError):
                await plain.invoke(address, Command(50_001, body=b"{}"), 3000)
        await plain.close()
        async with (
            Client(name_servers=group.name_servers, tls=True, tls_ca=tls.server_cert_path) as client,
            client.producer("p") as out,
        ):
            await out.send("T", b"a client verifies the same certificate")


@pytest.mark.spec("SEC-15")
async def test_member_with_a_foreign_certificate_gets_no_entries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader verifies the member that it connects to: one at a captured address learns nothing."""
    tls, foreign = node_tls(tmp_path, "cluster"), node_tls(tmp_path, "foreign")
    caplog.set_level(logging.DEBUG, "saturnmq.raft.peers")
    async with ledger_group(tmp_path, tls=tls, start=False) as group:
        for name in ("n0", "n1"):
            await group.start(name)
        await group.send(b"secret")
        group.tls = dataclasses.replace(foreign, client_auth_server=False)
        await group.start("n2")
        address = group.addresses["n2"]
        await until(lambda: "call failed peer=n2" in caplog.text and "certificate" in caplog.text, DEADLINE_SECONDS)
        await group.send(b"secret too")
        assert group.member("n2").files.end_index < 0, address


@pytest.mark.spec("SEC-15")
def test_broker_that_enforces_tls_without_certificate_does_not_start(tmp_path: Path) -> None:
    store = StoreSettings(profile=StoreProfile.SMALL, store_path_root_dir=str(tmp_path))
    with pytest.raises(SaturnError, match=r"tls\.server\.mode=enforcing needs a certificate"):
        Broker(BrokerSettings(listen_port=0), store, NetSettings(), tls=TlsSettings(mode="enforcing"))
