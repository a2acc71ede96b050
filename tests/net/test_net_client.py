"""Client connections: sharing, timeouts, permits, cancellation, and peers that close."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable

import pytest
from netpair import pair

from ports import free_port
from saturnmq.net import (
    NO_RESPONSE,
    CallTimeout,
    ConnectFailed,
    Connection,
    NetSettings,
    RemotingClient,
    TooManyRequests,
)
from saturnmq.net.calls import Permits, next_opaque, opaques
from saturnmq.protocol.frames.command import Command


def silent(connection: Connection, request: Command) -> bytes:
    return NO_RESPONSE


@pytest.mark.spec("REM-26")
async def test_concurrent_callers_share_one_connection_attempt() -> None:
    async with pair() as p:
        answers = await asyncio.gather(*(p.call(Command(10, ext={"n": str(n)})) for n in range(50)))
        assert [a.ext["n"] for a in answers] == [str(n) for n in range(50)]
        assert len(p.server.connections) == 1


@pytest.mark.spec("REM-26")
async def test_cancelled_caller_does_not_cancel_shared_connect() -> None:
    async with pair() as p:
        first = asyncio.create_task(p.call(Command(10)))
        second = asyncio.create_task(p.call(Command(10)))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).code == 0
        assert first.cancelled() or first.done()


@pytest.mark.spec("REM-16", "REM-21", "REM-17")
@pytest.mark.loop(real=False)
async def test_call_timeout_closes_connection() -> None:
    clock = asyncio.get_running_loop().time
    async with pair(first_only()) as p:
        await p.call(Command(10))
        began = clock()
        with pytest.raises(CallTimeout, match=r"did not answer within \d+ ms"):
            await p.call(Command(10), timeout_ms=2000)
        assert 1.9 < clock() - began < 2.5
        assert not p.client.is_connected(p.address)
        assert p.client.async_permits.free == NetSettings().client_async_permits


@pytest.mark.spec("REM-16")
async def test_call_timeout_keeps_connection_if_configured() -> None:
    async with pair(first_only(), NetSettings(close_on_timeout=False)) as p:
        await p.call(Command(10))
        with pytest.raises(CallTimeout):
            await p.call(Command(10), timeout_ms=50)
        assert p.client.is_connected(p.address)


@pytest.mark.spec("REM-16", "REM-22")
async def test_requests_written_together_have_their_own_outcomes() -> None:
    async with pair() as p:
        both = [Command(10, ext={"n": str(n)}) for n in range(50)]
        outcomes = await p.client.invoke_all(p.address, both, 5000)
        assert [outcome.ext["n"] for outcome in outcomes if isinstance(outcome, Command)] == [str(n) for n in range(50)]
    async with pair(first_only()) as p:  # those without a response end at their timeout, and with the connection
        first, *others = await p.client.invoke_all(p.address, [Command(10) for _ in range(3)], 50)
        assert isinstance(first, Command) and first.code == 0
        assert [type(outcome) for outcome in others] == [CallTimeout, CallTimeout]
    async with pair(first_only()) as p:
        await p.call(Command(10))
        calls = p.client.invoke_all(p.address, [Command(10) for _ in range(3)], 5000)
        outcomes, _ = await asyncio.gather(calls, p.server.stop())
        assert all(isinstance(outcome, ConnectFailed) and outcome.sent for outcome in outcomes)
        with pytest.raises(ConnectFailed) as caught:
            await p.client.invoke_all(p.address, [Command(10)], 5000)
        assert not caught.value.sent


@pytest.mark.spec("REM-16", "REM-22")
async def test_ask_completes_times_out_and_fails_like_invoke() -> None:
    async with pair() as p:
        assert p.client.ask(p.address, Command(10), 5000) is None  # not connected yet
        await p.call(Command(10))
        asked = [p.client.ask(p.address, Command(10, ext={"n": str(n)}), 5000) for n in range(5)]
        assert [(await one).ext["n"] for one in asked if one is not None] == list("01234")
    for settings, stays in ((NetSettings(close_on_timeout=False), True), (NetSettings(), False)):
        async with pair(first_only(), settings) as p:
            await p.call(Command(10))
            late = p.client.ask(p.address, Command(10), 30)
            assert late is not None
            with pytest.raises(CallTimeout):
                await late
            assert p.client.is_connected(p.address) is stays
    async with pair(first_only()) as p:
        await p.call(Command(10))
        cut = p.client.ask(p.address, Command(10), 5000)
        assert cut is not None
        await p.server.stop()
        with pytest.raises(ConnectFailed):
            await cut
        assert p.client.ask(p.address, Command(10), 5000) is None


@pytest.mark.spec("REM-22")
async def test_close_fails_pending_calls_before_output_drains() -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.append(writer)

    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname())
    client = RemotingClient(settings=NetSettings(stop_timeout_ms=10))
    call = asyncio.create_task(client.invoke(address, Command(10, body=bytes(32_000_000)), 60_000))
    while not (client.connections and next(iter(client.connections)).unread_bytes):
        await asyncio.sleep(0)
    (connection,) = client.connections
    connection.close("test")
    with pytest.raises(ConnectFailed, match="test"):
        await call
    assert connection.transport is not None, "its bytes are still under way"
    await client.close()
    for writer in accepted:
        writer.transport.abort()
    server.close()


def first_only() -> Callable[[Connection, Command], Command | bytes]:
    """A handler that answers only its first request."""
    left = [True]

    def handler(connection: Connection, request: Command) -> Command | bytes:
        return request.reply() if left and left.pop() else NO_RESPONSE

    return handler


@pytest.mark.spec("REM-16", "UX-05")
async def test_refused_connect_names_the_address() -> None:
    client = RemotingClient(settings=NetSettings())
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectFailed, match=address):
        await client.invoke(address, Command(10), 1000)
    await client.close()


@pytest.mark.spec("REM-22", "REM-17")
async def test_pending_calls_fail_at_once_when_peer_closes() -> None:
    async with pair(silent) as p:
        calls = [asyncio.create_task(p.call(Command(10), timeout_ms=60_000)) for _ in range(10)]
        while not p.server.connections:
            await asyncio.sleep(0)
        while sum(c.frame_pending for c in p.server.connections):
            await asyncio.sleep(0)
        for connection in list(p.server.connections):
            connection.close("test")
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(r, ConnectFailed) for r in results), results
        assert p.client.async_permits.free == NetSettings().client_async_permits


@pytest.mark.spec("REM-17")
async def test_cancelled_call_releases_permit_and_keeps_connection() -> None:
    def handler(connection: Connection, request: Command) -> Command | bytes:
        return NO_RESPONSE if request.code == 1 else request.reply()

    async with pair(handler) as p:
        await p.call(Command(10))
        call = asyncio.create_task(p.call(Command(1), timeout_ms=60_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (connection,) = p.client.connections
        assert len(connection.calls) == 0
        assert p.client.async_permits.free == NetSettings().client_async_permits
        assert (await p.call(Command(10))).code == 0


@pytest.mark.spec("REM-07")
async def test_response_matches_only_calls_of_its_own_connection() -> None:
    """A response with the opaque of another connection's call must not complete that call."""
    seen: asyncio.Queue[tuple[Connection, Command]] = asyncio.Queue()

    def keep(connection: Connection, request: Command) -> bytes:
        seen.put_nowait((connection, request))
        return NO_RESPONSE

    async with pair(keep) as honest, pair(keep) as liar:
        client = honest.client
        call = asyncio.create_task(client.invoke(honest.address, Command(10), 60_000))
        connection, request = await seen.get()
        other = asyncio.create_task(client.invoke(liar.address, Command(10), 60_000))
        liar_connection, lying = await seen.get()
        forged = Command(99, flag=1, opaque=request.opaque)
        liar_connection.send(forged)
        liar_connection.send(lying.reply())
        assert (await other).code == 0, "the forged answer has the opaque of no call on its connection"
        assert not call.done()
        connection.send(request.reply(body=b"true"))
        assert (await call).body == b"true"


@pytest.mark.spec("REM-07")
def test_opaque_starts_at_zero_in_each_process() -> None:
    script = "from saturnmq.net.calls import next_opaque; print([next_opaque() for _ in range(3)])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[0, 1, 2]\n"


@pytest.mark.spec("REM-07")
def test_opaque_is_unique_and_wraps_to_negative() -> None:
    first = next_opaque()
    assert next_opaque() == first + 1
    near_the_end = opaques(2**31 - 2)
    assert [next(near_the_end) for _ in range(4)] == [2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1]
    around_zero = opaques(-1)
    assert [next(around_zero) for _ in range(2)] == [-1, 0]


@pytest.mark.spec("REM-17", "REM-18", "REM-19", "REM-20")
async def test_permits_bound_calls_and_explain_rejection() -> None:
    permits = Permits(1, "async")
    await permits.acquire(10, "a:1")
    with pytest.raises(TooManyRequests, match="too fast"):
        await permits.acquire(0, "a:1")
    with pytest.raises(TooManyRequests, match="too fast"):
        await permits.acquire(-1, "a:1")
    with pytest.raises(CallTimeout, match="all 1 are taken, 0 callers wait, waited 20 ms"):
        await permits.acquire(20, "a:1")
    waiting = asyncio.create_task(permits.acquire(10_000, "a:1"))
    await asyncio.sleep(0)
    with pytest.raises(CallTimeout, match="all 1 are taken, 1 callers wait, waited 20 ms"):
        await permits.acquire(20, "a:1")
    permits.release()
    await waiting
    cancelled = asyncio.create_task(permits.acquire(10_000, "a:1"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    permits.release()
    assert permits.free == 1


@pytest.mark.spec("REM-16", "REM-17", "REM-19")
async def test_permit_wait_counts_against_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    ask = Connection.ask

    def noted(self: Connection, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        left.append(timeout_ms)
        return ask(self, command, timeout_ms)

    monkeypatch.setattr(Connection, "ask", noted)
    async with pair(settings=NetSettings(client_async_permits=1)) as p:
        await p.call(Command(1))
        permits = p.client.async_permits
        await permits.acquire(1, "a:1")
        asyncio.get_running_loop().call_later(0.1, permits.release)
        assert (await p.call(Command(1), 10_000)).is_response
        assert 0 < left[1] < 9_950
        assert permits.free == 1


@pytest.mark.spec("REM-16")
async def test_connect_time_is_deducted_from_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    ask = Connection.ask

    def noted(self: Connection, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        left.append(timeout_ms)
        return ask(self, command, timeout_ms)

    monkeypatch.setattr(Connection, "ask", noted)
    async with pair() as p:
        connect, connected = p.client._open, asyncio.Event()

        async def slow(address: str) -> Connection:
            await connected.wait()
            return await connect(address)

        p.client._open = slow  # type: ignore[method-assign]
        asyncio.get_running_loop().call_later(0.1, connected.set)
        await p.call(Command(10), 10_000)
        await p.call(Command(10), 10_000)
        assert 0 < left[0] < 9_950 and left[1] == 10_000


@pytest.mark.spec("REM-26")
@pytest.mark.loop(real=False)
async def test_connect_is_abandoned_after_connect_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NetSettings().connect_timeout_ms == 3000

    async def never(*args: object, **more: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    client = RemotingClient(settings=NetSettings(connect_timeout_ms=2000))
    began = asyncio.get_running_loop().time()
    with pytest.raises(ConnectFailed, match=r"cannot connect to 127\.0\.0\.1:9 within 2000 ms"):
        await client.invoke("127.0.0.1:9", Command(10), 60_000)
    assert 2 <= asyncio.get_running_loop().time() - began < 2.5
    assert not client._connecting
    await client.close()


@pytest.mark.spec("REM-20", "REM-17")
async def test_server_and_client_have_separate_permits() -> None:
    async with pair(settings=NetSettings(server_async_permits=3, client_async_permits=5)) as p:
        assert (p.server.async_permits.free, p.client.async_permits.free) == (3, 5)
        assert (p.server.oneway_permits.free, p.client.oneway_permits.free) == (256, 65535)
    async with pair() as p:
        assert (p.server.async_permits.free, p.client.async_permits.free) == (64, 65535)


@pytest.mark.spec("REM-18")
async def test_oneway_call_sets_flag_and_returns_permit() -> None:
    got: asyncio.Queue[Command] = asyncio.Queue()

    def keep(connection: Connection, request: Command) -> bytes:
        got.put_nowait(request)
        return NO_RESPONSE

    async with pair(keep) as p:
        await p.client.invoke_oneway(p.address, Command(10, ext={"a": "b"}), 1000)
        request = await got.get()
        assert request.is_oneway and request.ext == {"a": "b"}
        assert p.client.oneway_permits.free == 65535


@pytest.mark.spec("REM-18", "REM-19")
async def test_oneway_call_waits_for_permit_at_most_its_timeout() -> None:
    async with pair(settings=NetSettings(client_oneway_permits=1)) as p:
        await p.call(Command(10))
        await p.client.oneway_permits.acquire(1, "a:1")
        with pytest.raises(CallTimeout, match=r"no oneway permit .* all 1 are taken"):
            await p.client.invoke_oneway(p.address, Command(10), 30)
        p.client.oneway_permits.release()
        await p.client.invoke_oneway(p.address, Command(10), 5000)
        assert p.client.oneway_permits.free == 1


@pytest.mark.spec("REM-20")
async def test_server_calls_client_over_client_connection() -> None:
    reached: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    def server_handler(connection: Connection, request: Command) -> Command:
        if not reached.done():
            reached.set_result(connection)
        return request.reply()

    def client_handler(connection: Connection, request: Command) -> Command:
        return request.reply(body=b"from the client")

    async with pair(server_handler, client_handler=client_handler) as p:
        await p.call(Command(34))
        connection = await reached
        assert (await connection.invoke(Command(307), 1000)).body == b"from the client"


@pytest.mark.spec("REM-16")
async def test_call_times_out_while_connecting() -> None:
    client = RemotingClient(settings=NetSettings())

    async def never(address: str) -> Connection:
        await asyncio.Event().wait()
        raise AssertionError

    client._open = never  # type: ignore[method-assign]
    with pytest.raises(CallTimeout, match="within 30 ms"):
        await client.invoke("127.0.0.1:9", Command(10), 30)
    await client.close()
    gc.collect()
