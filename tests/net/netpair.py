"""Servers and raw sockets for the tests of connections."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from saturnmq.net import Connection, NetSettings, RemotingClient, RemotingServer
from saturnmq.protocol.command import Command

DEADLINE_SECONDS = 20


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function to its end, with a deadline; an exception that nobody took fails the test."""
    problems: list[dict[str, Any]] = []

    async def bounded() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await work()

    result = asyncio.run(bounded())
    assert not problems, problems
    return result


def echo(connection: Connection, request: Command) -> Command:
    return request.reply(0, None, dict(request.ext), request.body)


class Pair:
    """A server, its address, and a client."""

    def __init__(self, server: RemotingServer, client: RemotingClient, host: str, port: int) -> None:
        self.server, self.client, self.host, self.port = server, client, host, port
        self.address = f"{host}:{port}"

    async def socket(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)

    async def call(self, command: Command, timeout_ms: int = 5000) -> Command:
        return await self.client.invoke(self.address, command, timeout_ms)


@asynccontextmanager
async def pair(
    handler: Any = echo,
    settings: NetSettings | None = None,
    *,
    tls: Any = None,
    client_tls: Any = None,
    listener: Any = None,
    client_handler: Any = None,
) -> AsyncIterator[Pair]:
    settings = settings or NetSettings()
    server = RemotingServer(handler, settings=settings, tls=tls, listener=listener)
    host, port = await server.start("127.0.0.1", 0)
    client = RemotingClient(settings=settings, tls=client_tls, handler=client_handler)
    try:
        yield Pair(server, client, host, port)
    finally:
        await client.close()
        await server.stop()


def write_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = folder / f"{name}.pem", folder / f"{name}.key"
    cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_path, key_path
