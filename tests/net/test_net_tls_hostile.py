"""Peers that misuse TLS, beside an honest client: renegotiation, handshakes that are never finished, output that is not read."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
from pathlib import Path

import pytest
from netpair import Pair as Connected
from netpair import echo, pair

from saturnmq.net import Connection, NetSettings, TlsSettings
from saturnmq.net.tls import TlsStream, client_context
from saturnmq.protocol.frames.command import Command, encode_frame
from waiting import until

CLIENT = TlsSettings(enable=True, client_auth_server=False)
OPENSSL = shutil.which("openssl")


def server_tls(certificate: tuple[Path, Path]) -> TlsSettings:
    return TlsSettings(mode="permissive", server_cert_path=str(certificate[0]), server_key_path=str(certificate[1]))


@pytest.mark.spec("SEC-05")
@pytest.mark.skipif(OPENSSL is None, reason="the renegotiation is asked for by `openssl s_client`")
async def test_renegotiation_ends_only_the_connection_that_asks_for_it(certificate: tuple[Path, Path]) -> None:
    async with pair(echo, tls=server_tls(certificate), client_tls=CLIENT) as p:
        assert OPENSSL is not None
        peer = await asyncio.create_subprocess_exec(
            OPENSSL, "s_client", "-tls1_2", "-connect", p.address,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert peer.stdin is not None and peer.stdout is not None
        while b"Verify return code" not in await peer.stdout.readline():
            pass
        peer.stdin.write(b"R\n")
        output = (await peer.communicate())[0]
        assert b"RENEGOTIATING" in output and b"no renegotiation" in output
        assert (await p.call(Command(10, body=b"honest"))).body == b"honest"
        await until(lambda: len(p.server.connections) == 1)


@pytest.mark.spec("LIM-06")
async def test_half_handshakes_leave_an_honest_client_alone_and_end(certificate: tuple[Path, Path]) -> None:
    """After the greeting of the server each peer owes its part of the handshake."""
    settings = NetSettings(slow_frame_ms=200)
    async with pair(echo, settings, tls=server_tls(certificate), client_tls=CLIENT) as p:
        await p.call(Command(10))  # its own handshake has 200 ms, too
        context = client_context(CLIENT)
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                stream = TlsStream(context, server_side=False)
                stream.start()
                peer = stack.enter_context(socket.create_connection((p.host, p.port)))
                peer.sendall(stream.outgoing())
            while p.server.rejections.counts != {"slow_frame": 60}:
                assert (await p.call(Command(10, body=b"honest"))).body == b"honest"
        await until(lambda: len(p.server.connections) == 1)


async def handshaken(p: Connected, stack: contextlib.ExitStack) -> tuple[TlsStream, socket.socket]:
    """A peer that has completed its handshake, and the state of its TLS."""
    stream = TlsStream(client_context(CLIENT), server_side=False)
    stream.start()
    peer = stack.enter_context(socket.create_connection((p.host, p.port)))
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    while True:
        await loop.sock_sendall(peer, stream.outgoing())
        if stream.ready:
            return stream, peer
        stream.feed(await loop.sock_recv(peer, 65_536))


@pytest.mark.spec("LIM-06")
async def test_half_tls_records_end_though_bytes_keep_arriving(certificate: tuple[Path, Path]) -> None:
    """One connection has sent a request before, one repeats single bytes of a record: neither is idle, no frame has begun."""
    settings = NetSettings(slow_frame_ms=200)
    async with pair(echo, settings, tls=server_tls(certificate), client_tls=CLIENT) as p:
        with contextlib.ExitStack() as stack:
            loop = asyncio.get_running_loop()
            peers = []
            for _ in range(20):
                stream, peer = await handshaken(p, stack)
                stream.write(encode_frame(Command(10, opaque=1)))
                await loop.sock_sendall(peer, stream.outgoing())
                stream.write(encode_frame(Command(10, body=b"x" * 2000)))
                record = stream.outgoing()
                await loop.sock_sendall(peer, record[:9])
                peers.append((peer, iter(record[9:-1])))
            while p.server.rejections.counts != {"slow_frame": 20}:
                assert (await p.call(Command(10, body=b"honest"))).body == b"honest"
                for peer, rest in peers:
                    with contextlib.suppress(OSError, StopIteration):
                        peer.send(bytes((next(rest),)))
        await until(lambda: len(p.server.connections) == 1)


async def silent_reader(p: Connected, requests: int) -> socket.socket:
    """A peer over TLS that has sent requests and reads none of the responses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.to_thread(raw.connect, (p.host, p.port))
    peer = await asyncio.to_thread(context.wrap_socket, raw)
    await asyncio.to_thread(peer.sendall, b"".join(encode_frame(Command(11, opaque=n)) for n in range(requests)))
    return peer


@pytest.mark.spec("LIM-11")
@pytest.mark.parametrize("limit", ["time", "bytes"])
async def test_peer_that_does_not_read_over_tls_is_closed(certificate: tuple[Path, Path], limit: str) -> None:
    body = b"x" * 1_000_000

    def handler(connection: Connection, request: Command) -> Command:
        return request.reply(body=body if request.code == 11 else b"honest")

    more = {"unread_ms": 100} if limit == "time" else {"unread_bytes_max": 900_000}
    settings = NetSettings(write_buffer_high_bytes=100_000, server_sndbuf_bytes=8192, **more)
    async with pair(handler, settings, tls=server_tls(certificate), client_tls=CLIENT) as p:
        assert (await p.call(Command(10))).body == b"honest"
        peer = await silent_reader(p, 20)
        try:
            most = 0
            while not p.server.rejections.counts:
                assert (await p.call(Command(10))).body == b"honest"
                most = max(most, *(connection.unread_bytes for connection in p.server.connections), 0)
            assert p.server.rejections.counts == {"slow_reader": 1}
            assert most < 2_500_000, "its requests are not handled while it does not read"
            await until(lambda: len(p.server.connections) == 1)
        finally:
            peer.close()
