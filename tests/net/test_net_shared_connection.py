"""Concurrent calls on a shared connection, and their outcome when it stalls, closes, or the server stops."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path
from typing import Any

import pytest
from netpair import pair

from saturnmq.net import (
    NO_RESPONSE,
    BaseConnectionListener,
    CallTimeout,
    ConnectFailed,
    Connection,
    Later,
    NetSettings,
    RemotingClient,
    TlsSettings,
)
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder

NEVER, QUICK = 1, 10  # request codes of `handler`


def handler(connection: Connection, request: Command) -> Command | bytes:
    return NO_RESPONSE if request.code == NEVER else request.reply()


@pytest.mark.spec("REM-16", "REM-17", "REM-19")
async def test_call_without_permit_keeps_shared_connection_open() -> None:
    async with pair(handler, NetSettings(client_async_permits=1)) as p:
        await p.call(Command(QUICK))
        first = asyncio.create_task(p.call(Command(NEVER), timeout_ms=60_000))
        while p.client.async_permits.free:
            await asyncio.sleep(0)
        with pytest.raises(CallTimeout, match="permit"):
            await p.call(Command(QUICK), timeout_ms=20)
        assert p.client.is_connected(p.address) and not first.done()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (await p.call(Command(QUICK))).code == 0


@pytest.mark.spec("REM-16")
async def test_timed_out_call_keeps_connection_while_peer_responds() -> None:
    async with pair(handler) as p:
        waiting = asyncio.create_task(p.call(Command(NEVER), timeout_ms=60_000))
        late = asyncio.create_task(p.call(Command(NEVER), timeout_ms=2000))
        while p.client.async_permits.free > NetSettings().client_async_permits - 2:
            await asyncio.sleep(0)
        assert (await p.call(Command(QUICK))).code == 0
        with pytest.raises(CallTimeout):
            await late
        assert p.client.is_connected(p.address) and not waiting.done()
        with pytest.raises(CallTimeout):
            await p.call(Command(NEVER), timeout_ms=20)
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], ConnectFailed)


@pytest.mark.spec("REM-18", "REM-19")
async def test_oneway_call_to_stalled_peer_times_out() -> None:
    accepted: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname())
    client = RemotingClient(settings=NetSettings(stop_timeout_ms=50))
    await client.invoke_oneway(address, Command(QUICK), 10_000)  # connected
    with pytest.raises(CallTimeout, match="not written within 100 ms"):
        for _ in range(8):
            await client.invoke_oneway(address, Command(QUICK, body=bytes(8_000_000)), 100)
    assert client.oneway_permits.free == NetSettings().client_oneway_permits
    writing = asyncio.create_task(client.invoke_oneway(address, Command(QUICK), 10_000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert client.oneway_permits.free == NetSettings().client_oneway_permits - 1, "held until the bytes are written"
    for peer in accepted:
        peer.transport.abort()
    await asyncio.gather(writing, return_exceptions=True)
    assert client.oneway_permits.free == NetSettings().client_oneway_permits
    await client.close()
    for writer in accepted:
        writer.transport.abort()
    server.close()


@pytest.mark.spec("REM-26")
async def test_failed_connect_without_callers_is_not_logged_as_unhandled() -> None:
    client = RemotingClient(settings=NetSettings())
    fail = asyncio.Event()

    async def late(address: str) -> Connection:
        await fail.wait()
        raise ConnectFailed("connection refused")

    client._open = late  # type: ignore[method-assign]
    caller = asyncio.create_task(client.invoke("127.0.0.1:9", Command(QUICK), 60_000))
    with pytest.raises(CallTimeout):
        await client.invoke("127.0.0.1:9", Command(QUICK), 10)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    fail.set()
    while client._connecting:
        await asyncio.sleep(0)
    gc.collect()
    await client.close()


@pytest.mark.spec("REM-16", "REM-26")
async def test_client_close_fails_callers_waiting_for_connect() -> None:
    """The caller gets ConnectFailed, not CancelledError: the caller itself was not cancelled."""
    client = RemotingClient(settings=NetSettings())

    async def never(address: str) -> Connection:
        await asyncio.Event().wait()
        raise AssertionError

    client._open = never  # type: ignore[method-assign]
    caller = asyncio.create_task(client.invoke("127.0.0.1:9", Command(QUICK), 60_000))
    while not client._connecting:
        await asyncio.sleep(0)
    await client.close()
    with pytest.raises(ConnectFailed, match="closed"):
        await caller


class Gone(BaseConnectionListener):
    """Records the reasons of closed connections."""

    def __init__(self) -> None:
        self.reasons: asyncio.Queue[str] = asyncio.Queue()

    def closed(self, connection: Connection, reason: str) -> None:
        self.reasons.put_nowait(reason)


@pytest.mark.spec("REM-23", "REM-24")
async def test_closed_connection_to_stalled_peer_is_aborted() -> None:
    def much(connection: Connection, request: Command) -> Command:
        return request.reply(body=bytes(8_000_000))

    listener = Gone()
    settings = NetSettings(server_idle_seconds=1, stop_timeout_ms=50)
    async with pair(much, settings, listener=listener) as p:
        _, writer = await p.socket()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(encode_frame(Command(QUICK)) * 3)
        assert await listener.reasons.get() == "idle for 1 s"
        assert not p.server.connections
        writer.transport.abort()


@pytest.mark.spec("REM-03", "REM-12")
async def test_frame_is_not_slow_while_reading_is_paused() -> None:
    go_on = asyncio.Event()

    async def slow(connection: Connection, request: Command) -> Command:
        await go_on.wait()
        return request.reply()

    async with pair(slow, NetSettings(in_flight_max=1, slow_frame_ms=20)) as p:
        reader, writer = await p.socket()
        frames = encode_frame(Command(QUICK, opaque=1)) + encode_frame(Command(QUICK, opaque=2))
        writer.write(frames[:-5])
        while not any(c.in_flight for c in p.server.connections):
            await asyncio.sleep(0)
        scans, enough = 0, asyncio.Event()
        scan = p.server._scan_connections

        def counted() -> None:
            nonlocal scans
            scans += 1
            if scans == 20:
                enough.set()
            scan()

        p.server._scan_connections = counted  # type: ignore[method-assign]
        await enough.wait()
        go_on.set()
        writer.write(frames[-5:])
        decoder, answers = FrameDecoder(), []
        while len(answers) < 2:
            data = await reader.read(4096)
            assert data
            answers += decoder.feed(data)
        assert [a.opaque for a in answers] == [1, 2]
        writer.close()


@pytest.mark.spec("REM-11", "REM-15")
@pytest.mark.parametrize("later", [False, True])
async def test_unencodable_response_becomes_error_and_keeps_connection(
    later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(connection: Connection, request: Command) -> Any:
        answer = request.reply(ext={"a": object()} if request.code == NEVER else None)  # type: ignore[dict-item]

        async def soon() -> Command:
            return answer

        return Later(soon()) if later else answer

    async with pair(bad) as p:
        answer = await p.call(Command(NEVER))
        assert answer.code == 1 and "cannot be written" in (answer.remark or "")
        assert (await p.call(Command(QUICK))).code == 0
        assert len(p.server.connections) == 1


@pytest.mark.spec("REM-15")
async def test_hook_failure_after_handler_becomes_error_response(caplog: pytest.LogCaptureFixture) -> None:
    class Hook:
        def before(self, remote_address: str, request: Command) -> None:
            pass

        def after(self, remote_address: str, request: Command, response: Command) -> None:
            raise RuntimeError("no")

    async with pair(handler) as p:
        p.server.add_hook(Hook())
        for _ in range(2):
            answer = await p.call(Command(QUICK))
            assert (answer.code, answer.remark) == (1, "RuntimeError: no")


@pytest.mark.spec("NS-06")
async def test_stopping_server_completes_requests_and_rejects_new_ones() -> None:
    go_on, begun = asyncio.Event(), []

    async def slow(connection: Connection, request: Command) -> Command:
        begun.append(request.code)
        await go_on.wait()
        return request.reply()

    async with pair(slow) as p:
        first = asyncio.create_task(p.call(Command(QUICK)))
        while not begun:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(p.server.stop())
        await asyncio.sleep(0)
        refused = await p.call(Command(11))
        assert (refused.code, begun) == (14, [QUICK])
        go_on.set()
        assert (await first).code == 0
        await stopping


@pytest.mark.spec("NS-06")
async def test_connection_accepted_during_stop_is_aborted() -> None:
    async with pair() as p:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        await p.server.stop()
        loop = asyncio.get_running_loop()
        _, connection = await loop.connect_accepted_socket(lambda: Connection(p.server), theirs)
        await connection.wait_closed()
        assert await loop.sock_recv(ours, 1) == b""
        assert not p.server.connections and p.server._scan is None
        ours.close()


@pytest.mark.spec("NS-06")
async def test_stop_timeout_applies_once_to_all_steps() -> None:
    async def never(connection: Connection, request: Command) -> Command:
        connection.send(request.reply(body=bytes(32_000_000)))
        await asyncio.Event().wait()
        raise AssertionError

    async with pair(never, NetSettings(stop_timeout_ms=1500)) as p:
        _, writer = await p.socket()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(encode_frame(Command(QUICK)))
        while not any(c.in_flight for c in p.server.connections):
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await p.server.stop()
        assert loop.time() - began < 2.9
        writer.transport.abort()


@pytest.mark.spec("REM-29", "REM-02")
async def test_broken_tls_stream_closes_only_its_connection(
    certificate: tuple[Path, Path],
) -> None:
    cert, key = (str(path) for path in certificate)
    tls = TlsSettings(server_cert_path=cert, server_key_path=key)
    async with pair(handler, tls=tls, client_tls=TlsSettings(enable=True, client_trust_path=cert)) as p:
        assert (await p.call(Command(QUICK))).code == 0
        (connection,) = p.server.connections
        connection.send(Command(QUICK))
        connection.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
        assert connection.closed and connection.close_reason.startswith("TLS failed")
        await connection.wait_closed()
        assert not p.server.connections
        assert (await p.call(Command(QUICK))).code == 0


@pytest.mark.spec("REM-02")
async def test_request_header_limit_is_below_response_header_limit() -> None:
    """The longest responses carry 4 MiB of message ids; what a client sends is kept until it is answered: a lower limit."""

    def ids(connection: Connection, request: Command) -> Command:
        return request.reply(ext={"msgId": "0" * 2_000_000})

    async with pair(ids) as p:
        assert len((await p.call(Command(QUICK, ext={"i": "x" * 200_000}))).ext["msgId"]) == 2_000_000
        with pytest.raises(ConnectFailed):
            await p.call(Command(QUICK, ext={"i": "x" * 300_000}))
    async with pair(ids, NetSettings(request_header_bytes_max=1_000_000)) as p:
        assert (await p.call(Command(QUICK, ext={"i": "x" * 300_000}))).code == 0
