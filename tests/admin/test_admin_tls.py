"""The administration library over TLS: a NameServer and a broker with access control that accept nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from certificates import write_certificate
from harness.adminsmoke import check_operations
from saturnmq.admin import Admin, AdminAccess, read_access
from saturnmq.broker import Broker, BrokerSettings
from saturnmq.namesrv import NameServer, NameServerSettings
from saturnmq.net import NetSettings, TlsSettings
from saturnmq.protocol.errors import SaturnError
from saturnmq.store import StoreProfile, StoreSettings

ACCOUNT = ("smokeadmin", "12345678")
ACCOUNTS = f"accounts:\n- accessKey: {ACCOUNT[0]}\n  secretKey: {ACCOUNT[1]}\n  admin: true\n"


def private(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def tls(tmp_path: Path) -> TlsSettings:
    """Of both servers, which trust each other's certificate."""
    certificate, key = write_certificate(tmp_path, "cluster")
    return TlsSettings(
        mode="enforcing",
        enable=True,
        server_cert_path=str(certificate),
        server_key_path=str(key),
        client_trust_path=str(certificate),
    )


@contextlib.asynccontextmanager
async def protected_cluster(folder: Path, tls: TlsSettings) -> AsyncIterator[str]:
    """A NameServer and a broker that want TLS and signed requests; the address of the NameServer."""
    private(folder / "conf" / "plain_acl.yml", ACCOUNTS)
    names = NameServer(NameServerSettings(kv_config_path=str(folder / "kv.json")), NetSettings(), tls=tls)
    host, port = await names.start("127.0.0.1", 0)
    settings = BrokerSettings(
        namesrv_addr=f"{host}:{port}", listen_port=0, fast_port_enable=False, acl_enable=True, acl_home=str(folder)
    )
    store = StoreSettings(profile=StoreProfile.SMALL, store_path_root_dir=str(folder / "store"))
    broker = Broker(settings, store, NetSettings(), tls=tls)
    await broker.start()
    try:
        yield f"{host}:{port}"
    finally:
        await broker.stop()
        await names.stop()


def access(folder: Path, trusted: str, signature: str) -> AdminAccess:
    """As an operator gives it: the account in tools.yml, TLS in a configuration file."""
    tools = private(folder / "tools.yml", f"accessKey: {ACCOUNT[0]}\nsecretKey: {ACCOUNT[1]}\n")
    config = private(folder / "admin.conf", f"tls.enable=true\ntls.client.trustCertPath={trusted}\n")
    return read_access(tools=tools, config=config, signature=signature)


@pytest.mark.spec("SEC-15")
@pytest.mark.parametrize("signature", ["v1", "v2"])
@pytest.mark.loop(real=False)
async def test_everyday_operations_work_over_tls_with_a_signed_account(
    tmp_path: Path, tls: TlsSettings, signature: str
) -> None:
    async with (
        protected_cluster(tmp_path, tls) as name_servers,
        Admin(name_servers, access=access(tmp_path, tls.client_trust_path, signature)) as admin,
    ):
        await check_operations(admin)


@pytest.mark.loop(real=False)
async def test_servers_that_enforce_tls_refuse_plain_and_unsigned_requests(tmp_path: Path, tls: TlsSettings) -> None:
    allowed = access(tmp_path, tls.client_trust_path, "v1")
    async with protected_cluster(tmp_path, tls) as name_servers:
        async with Admin(name_servers, access=dataclasses.replace(allowed, tls=None)) as plain:
            with pytest.raises(SaturnError, match="closed by the peer"):
                await plain.connection.cluster()
        async with Admin(
            name_servers, access=dataclasses.replace(allowed, access_key=None, secret_key=None)
        ) as unsigned:
            (address,) = (await unsigned.connection.masters("DefaultCluster")).values()
            with pytest.raises(SaturnError, match="accessKey"):
                await unsigned.groups.all_on(address)


@pytest.mark.spec("SEC-15")
@pytest.mark.loop(real=False)
async def test_a_server_with_an_untrusted_certificate_is_refused(tmp_path: Path, tls: TlsSettings) -> None:
    foreign, _ = write_certificate(tmp_path, "foreign")
    async with (
        protected_cluster(tmp_path, tls) as name_servers,
        Admin(name_servers, access=access(tmp_path, str(foreign), "v1")) as admin,
    ):
        with pytest.raises(SaturnError, match="certificate"):
            await admin.connection.cluster()
