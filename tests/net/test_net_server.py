"""Server connections: framing, limits, ordering, errors. Uses real sockets on loopback."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from typing import Any

import pytest
from netpair import echo, pair, run

from saturnmq.net import NO_RESPONSE, BaseConnectionListener, Connection, Later, NetSettings, RemotingServer, StartError
from saturnmq.protocol.errors import ConfigError, MissingField, response_error
from saturnmq.protocol.frames.command import SERIALIZE_TYPE_ENV, Command, Serialization, encode_frame, own_serialization
from saturnmq.protocol.frames.decoder import FrameDecoder


async def read_commands(reader: asyncio.StreamReader, count: int) -> list[Command]:
    decoder, commands = FrameDecoder(), []
    while len(commands) < count:
        data = await reader.read(65536)
        assert data, f"closed after {len(commands)} of {count} answers"
        commands += decoder.feed(data)
    return commands


@pytest.mark.spec("REM-03", "REM-05")
async def test_frame_sent_byte_by_byte_is_answered_with_its_opaque() -> None:
    async with pair() as p:
        reader, writer = await p.socket()
        for byte in encode_frame(Command(10, opaque=-7, ext={"a": "b"}, body=b"x" * 50)):
            writer.write(bytes([byte]))
            await writer.drain()
        (answer,) = await read_commands(reader, 1)
        assert (answer.opaque, answer.is_response, answer.ext, answer.body) == (-7, True, {"a": "b"}, b"x" * 50)
        writer.close()


@pytest.mark.spec("REM-03", "REM-04")
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with pair() as p:
        reader, writer = await p.socket()
        kinds = [Serialization.JSON, Serialization.ROCKETMQ]
        frames = [encode_frame(Command(10, opaque=i, serialization=kinds[i % 2])) for i in range(500)]
        writer.write(b"".join(frames))
        answers = await read_commands(reader, 500)
        assert [a.opaque for a in answers] == list(range(500))
        assert [a.serialization for a in answers] == [kinds[i % 2] for i in range(500)]
        writer.close()


BAD_FRAMES = [
    struct.pack(">iI", 0x7FFFFFFF, 10),
    struct.pack(">iI", 20, 0x00FFFFFF),
    struct.pack(">iI", 3, 0),
    struct.pack(">iI", -5, 0),
    struct.pack(">iI", 14, (9 << 24) | 10) + b"x" * 10,
    struct.pack(">iI", 14, 10) + b"not json!!",
]


@pytest.mark.spec("FUZ-01", "REM-02")
@pytest.mark.parametrize("bad", BAD_FRAMES)
async def test_invalid_frame_closes_only_its_connection(bad: bytes) -> None:
    async with pair() as p:
        good_reader, good_writer = await p.socket()
        reader, writer = await p.socket()
        writer.write(encode_frame(Command(1, opaque=5)) + bad)
        answers = await read_commands(reader, 1)
        assert answers[0].opaque == 5
        assert await reader.read() == b""
        good_writer.write(encode_frame(Command(10, opaque=1)))
        assert (await read_commands(good_reader, 1))[0].opaque == 1
        writer.close()
        good_writer.close()


@pytest.mark.spec("REM-02")
async def test_oversized_frame_is_rejected_before_its_body_arrives() -> None:
    async with pair(settings=NetSettings(frame_bytes_max=2048)) as p:
        reader, writer = await p.socket()
        writer.write(encode_frame(Command(10, body=b"x" * 4096))[:16])
        assert await reader.read() == b""
        writer.close()


@pytest.mark.spec("REM-11", "REM-08")
@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (ValueError("queue 9"), 1, "ValueError: queue 9"),
        (MissingField("topic"), 1, "the custom field <topic> is null"),
        (response_error(17, "no such topic"), 17, "no such topic"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
async def test_failing_handler_sends_error_and_keeps_connection(
    error: Exception, code: int, remark: str, later: bool
) -> None:
    def now(connection: Connection, request: Command) -> Command:
        raise error

    async def soon(connection: Connection, request: Command) -> Command:
        raise error

    async with pair(soon if later else now) as p:
        for _ in range(2):
            answer = await p.call(Command(10))
            assert (answer.code, answer.remark) == (code, remark)
        assert len(p.server.connections) == 1


@pytest.mark.spec("REM-06", "REM-18")
async def test_oneway_request_is_not_answered_even_on_error() -> None:
    def handler(connection: Connection, request: Command) -> Command:
        if request.code == 666:
            raise RuntimeError("bad")
        return request.reply()

    async with pair(handler) as p:
        reader, writer = await p.socket()
        writer.write(encode_frame(Command(666, flag=2, opaque=1)))
        writer.write(encode_frame(Command(10, flag=2, opaque=2)))
        writer.write(encode_frame(Command(10, opaque=3)))
        assert [c.opaque for c in await read_commands(reader, 1)] == [3]
        writer.close()


@pytest.mark.spec("REM-15")
async def test_hooks_run_in_order_and_may_reject() -> None:
    seen: list[tuple[str, str, int]] = []

    class Hook:
        def __init__(self, name: str) -> None:
            self.name = name

        def before(self, remote: str, request: Command) -> None:
            assert remote.startswith("127.0.0.1:")
            seen.append((self.name, "before", request.code))
            if request.code == 13:
                raise PermissionError("no")

        def after(self, remote: str, request: Command, response: Command) -> None:
            seen.append((self.name, "after", response.code))

    async with pair() as p:
        p.server.add_hook(Hook("a"))
        p.server.add_hook(Hook("b"))
        assert (await p.call(Command(10))).code == 0
        refused = await p.call(Command(13))
        assert (refused.code, refused.remark) == (1, "PermissionError: no")
    assert seen[:4] == [("a", "before", 10), ("b", "before", 10), ("a", "after", 0), ("b", "after", 0)]
    assert ("b", "before", 13) not in seen


@pytest.mark.spec("REM-23", "REM-24")
async def test_idle_connection_is_closed_and_active_one_kept() -> None:
    closed: list[str] = []
    gone = asyncio.Event()

    class Watch(BaseConnectionListener):
        def closed(self, connection: Connection, reason: str) -> None:
            closed.append(reason)
            gone.set()

    async with pair(settings=NetSettings(server_idle_seconds=1), listener=Watch()) as p:
        _, idle = await p.socket()
        reader, busy = await p.socket()
        while not gone.is_set():
            busy.write(encode_frame(Command(10)))
            await read_commands(reader, 1)
            await asyncio.sleep(0)
        assert closed == ["idle for 1 s"] and NetSettings().server_idle_seconds == 120
        busy.write(encode_frame(Command(10)))
        await read_commands(reader, 1)
        idle.close()
        busy.close()


@pytest.mark.spec("REM-03", "REM-02")
async def test_incomplete_frame_closes_connection_after_timeout() -> None:
    async with pair(settings=NetSettings(slow_frame_ms=200)) as p:
        reader, writer = await p.socket()
        writer.write(encode_frame(Command(10, body=b"x" * 100))[:-1])
        assert await reader.read() == b""
        writer.close()


@pytest.mark.spec("REM-24")
async def test_connection_events_arrive_in_order() -> None:
    events: list[tuple[str, str]] = []
    done = asyncio.Event()

    class Watch(BaseConnectionListener):
        def connected(self, connection: Connection) -> None:
            events.append(("connected", connection.remote_address))

        def closed(self, connection: Connection, reason: str) -> None:
            events.append(("closed", connection.remote_address))
            done.set()

    async with pair(listener=Watch()) as p:
        _, writer = await p.socket()
        name = "{}:{}".format(*writer.get_extra_info("sockname"))
        writer.close()
        await done.wait()
        assert events == [("connected", name), ("closed", name)]


@pytest.mark.spec("REM-12")
async def test_reading_pauses_for_peer_that_does_not_read_responses() -> None:
    body = b"x" * 100_000
    handled = 0

    def handler(connection: Connection, request: Command) -> Command:
        nonlocal handled
        handled += 1
        return request.reply(body=body)

    async with pair(handler, NetSettings(write_buffer_high_bytes=400_000)) as p:
        reader, writer = await p.socket()
        writer.write(b"".join(encode_frame(Command(10, opaque=i)) for i in range(1000)))
        other = await p.call(Command(10))
        assert other.body == body
        assert handled < 500
        answers = await read_commands(reader, 1000)
        assert [a.opaque for a in answers] == list(range(1000))
        writer.close()


@pytest.mark.spec("REM-12")
async def test_requests_over_in_flight_limit_are_delayed() -> None:
    running = most = 0
    release = asyncio.Event()

    async def handler(connection: Connection, request: Command) -> Command:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return request.reply()

    async with pair(handler, NetSettings(in_flight_max=10)) as p:
        reader, writer = await p.socket()
        writer.write(b"".join(encode_frame(Command(10, opaque=i)) for i in range(100)))
        asyncio.get_running_loop().call_later(0.05, release.set)
        answers = await read_commands(reader, 100)
        assert sorted(a.opaque for a in answers) == list(range(100))
        assert most == 10
        writer.close()


@pytest.mark.spec("REM-02")
async def test_connections_over_the_limit_are_closed_at_once() -> None:
    async with pair(settings=NetSettings(connections_max=1)) as p:
        assert (await p.call(Command(10))).code == 0
        reader, writer = await p.socket()
        assert await reader.read() == b""
        assert (await p.call(Command(10))).code == 0
        writer.close()


@pytest.mark.spec("REM-25")
async def test_accepted_socket_has_nodelay_and_no_keepalive() -> None:
    options: dict[str, int] = {}

    def handler(connection: Connection, request: Command) -> Command:
        assert connection.transport is not None
        sock: Any = connection.transport.get_extra_info("socket")
        options["nodelay"] = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        options["keepalive"] = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return request.reply()

    async with pair(handler) as p:
        await p.call(Command(10))
    assert options["nodelay"] != 0
    assert options["keepalive"] == 0


@pytest.mark.spec("UX-09")
async def test_port_in_use_error_names_port_and_remedy() -> None:
    async with pair() as p:
        second = RemotingServer(echo, settings=NetSettings())
        with pytest.raises(StartError) as caught:
            await second.start(p.host, p.port)
        assert str(p.port) in str(caught.value) and "listenPort" in str(caught.value)
        await second.stop()


@pytest.mark.spec("NS-06")
async def test_stop_completes_requests_in_flight() -> None:
    async def slow(connection: Connection, request: Command) -> Command:
        await started_stop.wait()
        return request.reply(body=b"late")

    started_stop = asyncio.Event()
    async with pair(slow) as p:
        call = asyncio.create_task(p.call(Command(10)))
        while not p.server.connections:
            await asyncio.sleep(0)
        while not any(c.in_flight for c in p.server.connections):
            await asyncio.sleep(0)
        stop = asyncio.create_task(p.server.stop())
        await asyncio.sleep(0)
        started_stop.set()
        assert (await call).body == b"late"
        await stop


@pytest.mark.spec("REM-25")
async def test_socket_buffer_sizes_follow_settings_or_system_default() -> None:
    def sizes(connection: Connection) -> tuple[int, int]:
        assert connection.transport is not None
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return tuple(sock.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF))

    def allowed(size: int) -> set[int]:
        return {size, 2 * size}  # Linux doubles the value to account for bookkeeping

    defaults = NetSettings()
    assert defaults.backlog == 1024
    sized = NetSettings(
        server_sndbuf_bytes=20_000,
        server_rcvbuf_bytes=22_000,
        client_sndbuf_bytes=24_000,
        client_rcvbuf_bytes=26_000,
    )
    found = []
    for settings in (sized, defaults):
        async with pair(settings=settings) as p:
            await p.call(Command(10))
            (server_side,), (client_side,) = p.server.connections, p.client.connections
            found.append(sizes(server_side) + sizes(client_side))
    for size, configured, default in zip((20_000, 22_000, 24_000, 26_000), *found, strict=True):
        assert configured in allowed(size) and default not in allowed(size)


@pytest.mark.spec("REM-23")
async def test_connection_active_in_one_direction_is_not_idle() -> None:
    closed: list[str] = []

    def handler(connection: Connection, request: Command) -> bytes:
        return NO_RESPONSE

    class Watch(BaseConnectionListener):
        def closed(self, connection: Connection, reason: str) -> None:
            closed.append(connection.remote_address)

    async with pair(handler, NetSettings(server_idle_seconds=1), listener=Watch()) as p:
        (_, idle), (reader, listening), (_, talking) = [await p.socket() for _ in range(3)]
        names = ["{}:{}".format(*writer.get_extra_info("sockname")) for writer in (idle, listening, talking)]
        while len(p.server.connections) < 3:
            await asyncio.sleep(0)
        (connection,) = [c for c in p.server.connections if c.remote_address == names[1]]
        while not closed:
            connection.invoke_oneway(Command(40))
            talking.write(encode_frame(Command(10)))
            assert (await read_commands(reader, 1))[0].code == 40
        assert closed == names[:1]
        for writer in (idle, listening, talking):
            writer.close()


@pytest.mark.spec("REM-24")
async def test_connection_error_is_reported_as_close_reason() -> None:
    reasons: asyncio.Queue[str] = asyncio.Queue()

    class Watch(BaseConnectionListener):
        def closed(self, connection: Connection, reason: str) -> None:
            reasons.put_nowait(reason)

    async with pair(listener=Watch()) as p:
        for linger, reason in ((1, "connection error: "), (0, "closed by the peer")):
            peer = socket.create_connection((p.host, p.port))
            while not p.server.connections:
                await asyncio.sleep(0)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", linger, 0))
            peer.close()
            assert (await reasons.get()).startswith(reason)


@pytest.mark.spec("REM-25")
async def test_listener_sets_backlog_and_reuses_address(monkeypatch: pytest.MonkeyPatch) -> None:
    listen, backlogs = socket.socket.listen, list[int]()

    def noted(sock: socket.socket, backlog: int) -> None:
        backlogs.append(backlog)
        listen(sock, backlog)

    monkeypatch.setattr(socket.socket, "listen", noted)
    async with pair() as p:
        assert backlogs[-1] == 1024
        assert p.server._server is not None
        (listening,) = p.server._server.sockets
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


@pytest.mark.spec("REM-04")
@pytest.mark.parametrize("name", [None, "", "JSON", "ROCKETMQ"])
async def test_own_requests_use_serialization_of_process(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERIALIZE_TYPE_ENV, raising=False)
    if name is not None:
        monkeypatch.setenv(SERIALIZE_TYPE_ENV, name)
    own = Serialization[name or "JSON"]
    pushed: asyncio.Queue[Command] = asyncio.Queue()
    seen: list[Command] = []

    def handler(connection: Connection, request: Command) -> Command:
        seen.append(request)
        connection.invoke_oneway(Command(40))
        return request.reply()

    def client_handler(connection: Connection, request: Command) -> bytes:
        pushed.put_nowait(request)
        return NO_RESPONSE

    async with pair(handler, client_handler=client_handler) as p:
        await p.call(Command(34))
        await p.client.invoke_oneway(p.address, Command(15), 5000)
        assert [(await pushed.get()).serialization for _ in range(2)] == [own, own]
        assert [request.serialization for request in seen] == [own, own]
        for other in Serialization:
            reader, writer = await p.socket()
            writer.write(encode_frame(Command(10, opaque=7, serialization=other)))
            push, answer = await read_commands(reader, 2)
            assert (push.serialization, answer.serialization) == (own, other)
            writer.close()


@pytest.mark.spec("REM-04")
def test_unknown_process_serialization_is_rejected() -> None:
    for name in ("json", "PROTOBUF"):
        with pytest.raises(ConfigError, match=f"{SERIALIZE_TYPE_ENV}='{name}' must be JSON or ROCKETMQ"):
            own_serialization({SERIALIZE_TYPE_ENV: name})


def test_lost_connection_is_freed_without_the_garbage_collector() -> None:
    """It is in no cycle of references: a server freezes objects, and frozen ones in a cycle stay in memory for good."""
    later, freed = Later(), asyncio.Event()

    def handle(connection: Connection, command: Command) -> Later:
        weakref.finalize(connection, freed.set)
        return later

    async def work() -> None:
        async with pair(handle) as p:
            _, writer = await p.socket()
            writer.write(encode_frame(Command(10)))
            while not p.server.later_count:
                await asyncio.sleep(0)
            writer.close()
            await freed.wait()
            later.answer(Command(10).reply())
            assert not p.server.later_count, "the answer is dropped"

    gc.disable()
    try:
        run(work)
    finally:
        gc.enable()
