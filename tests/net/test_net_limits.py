"""Limits of a listener: requests over a limit are rejected, other clients are unaffected (docs/spec/07 section 6)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

import pytest
from netpair import Pair, pair

from saturnmq import descriptors
from saturnmq.config.settings import to_properties
from saturnmq.log_limit import LINES_MAX
from saturnmq.net import Connection, NetSettings
from saturnmq.net import server as server_module
from saturnmq.net.budget import descriptors_left
from saturnmq.net.limits import Limits, RequestMemory
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from waiting import until


def header_frame(header: bytes, serialization: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), serialization << 24 | len(header)) + header + body


def json_header(**more: object) -> bytes:
    return json.dumps({"code": 10, "opaque": 1, "flag": 0, "version": 407, "language": "JAVA"} | more).encode()


async def closed_after(p: Pair, *parts: bytes) -> None:
    """Assert that these bytes get their connection closed while another connection is still served."""
    reader, writer = await p.socket()
    for part in parts:
        writer.write(part)
    with contextlib.suppress(ConnectionResetError):  # data in transit was reset
        assert await reader.read() == b""
    writer.close()
    assert (await p.call(Command(10))).code == 0


async def answered(p: Pair, frame: bytes) -> Command:
    reader, writer = await p.socket()
    writer.write(frame)
    decoder = FrameDecoder()
    while True:
        commands = decoder.feed(await reader.read(65536))
        if commands:
            writer.close()
            return commands[0]


@pytest.mark.spec("LIM-01")
@pytest.mark.parametrize(("limit", "length"), [(16_777_216, 16_777_213), (4096, 4093), (16_777_216, 2**31 - 1)])
async def test_oversized_frame_is_rejected_by_its_length_field(limit: int, length: int) -> None:
    async with pair(settings=NetSettings(frame_bytes_max=limit)) as p:
        await closed_after(p, struct.pack(">i", length))  # rejected without waiting for more
        assert p.server.rejections.counts == {"bad_frame": 1}
        await closed_after(p, struct.pack(">iI", length, 100))
        assert p.server.rejections.counts == {"bad_frame": 2}


@pytest.mark.spec("LIM-01")
async def test_listener_accepts_frame_of_exactly_the_limit() -> None:
    async with pair(settings=NetSettings(frame_bytes_max=4096)) as p:
        header = json_header()
        body = b"x" * (4096 - 8 - len(header))
        assert (await answered(p, header_frame(header, body=body))).body == body


@pytest.mark.spec("FUZ-01", "LIM-02")
@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iI", -1, 0),
        struct.pack(">iI", 0, 0),
        struct.pack(">iI", 3, 0),
        struct.pack(">iI", 10, 100),  # a header longer than the frame
        struct.pack(">iI", 100, 2 << 24 | 50),  # unknown serialization
        struct.pack(">iI", 100, 0xFF << 24 | 50),
        header_frame(struct.pack(">hbhiii", 10, 0, 407, 1, 0, -5), 1),  # a remark of -5 bytes
        header_frame(struct.pack(">hbhiiii", 10, 0, 407, 1, 0, 0, 2**30), 1),
        header_frame(struct.pack(">hbhiiiih", 10, 0, 407, 1, 0, 0, 2, -1), 1),
        header_frame(b"[]"),
        header_frame(b"{"),
    ],
)
async def test_frame_with_wrong_lengths_closes_only_its_connection(pair: Pair, data: bytes) -> None:
    await closed_after(pair, data)
    assert pair.server.rejections.counts == {"bad_frame": 1}


@pytest.mark.spec("LIM-03")
@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize(
    ("ext", "allowed"),
    [
        ({f"k{i}": "v" for i in range(256)}, True),
        ({f"k{i}": "v" for i in range(257)}, False),
        ({"k" * 256: "v"}, True),
        ({"k" * 257: "v"}, False),
        ({"é" * 129: "v"}, False),
        ({"i": "v" * 200_000}, True),
        ({"i": "v" * 262_144}, False),
    ],
)
async def test_request_header_size_is_limited(
    pair: Pair, serialization: Serialization, ext: dict[str, str], allowed: bool
) -> None:
    frame = encode_frame(Command(10, ext=ext, serialization=serialization))
    if allowed:
        assert (await answered(pair, frame)).ext == ext
    else:
        await closed_after(pair, frame)
        assert pair.server.rejections.counts == {"bad_frame": 1}


@pytest.mark.spec("LIM-03")
@pytest.mark.parametrize("serialization", list(Serialization))
async def test_request_header_of_exactly_256_kib_is_accepted(pair: Pair, serialization: Serialization) -> None:
    def request(value_bytes: int) -> bytes:
        return encode_frame(Command(10, opaque=7, ext={"i": "v" * value_bytes}, serialization=serialization))

    def header_bytes(frame: bytes) -> int:
        return int.from_bytes(frame[5:8], "big")

    longest = 262_144 - header_bytes(request(0))
    assert header_bytes(request(longest)) == 262_144
    assert (await answered(pair, request(longest))).ext == {"i": "v" * longest}
    await closed_after(pair, request(longest + 1))
    assert pair.server.rejections.counts == {"bad_frame": 1}


DEFAULTS = {
    "com.rocketmq.remoting.frameMaxLength": 16 * 1024**2,
    "requestHeaderMaxLength": 256 * 1024,
    "requestHeaderFieldsMax": 256,
    "requestHeaderKeyMaxLength": 256,
    "unsignedBytesMax": 64 * 1024**2,
    "slowFrameTimeoutMillis": 10_000,
    "slowFrameBytesPerSecond": 256 * 1024,
    "serverChannelMaxIdleTimeSeconds": 120,
    "firstFrameTimeoutMillis": 5_000,
    "serverConnectionsMax": 10_000,
    "serverConnectionsMaxPerAddress": 500,
    "serverDescriptorsReserved": 256,
    "serverInFlightMaxPerConnection": 256,
    "serverInFlightBytesMaxPerConnection": 32 * 1024**2,
    "serverRequestBytesMax": 256 * 1024**2,
    "unreadBytesMaxPerConnection": 64 * 1024**2,
    "unreadBytesMax": 256 * 1024**2,
    "unreadTimeoutMillis": 30_000,
}


@pytest.mark.spec("LIM-01", "LIM-03", "LIM-04", "LIM-06", "LIM-07", "LIM-08", "LIM-09", "LIM-10", "LIM-11")
def test_limits_default_to_specified_values() -> None:
    properties = to_properties(NetSettings())
    assert {name: properties[name] for name in DEFAULTS} == {name: str(value) for name, value in DEFAULTS.items()}


@pytest.mark.spec("LIM-03")
async def test_header_nesting_is_limited_to_16_levels(pair: Pair) -> None:
    for depth, taken in ((16, True), (17, False)):  # the header object counts as one level
        inner = "[" * (depth - 1) + "]" * (depth - 1)
        frame = header_frame(f'{{"code":10,"opaque":1,"other":{inner}}}'.encode())
        if taken:
            assert (await answered(pair, frame)).opaque == 1
        else:
            await closed_after(pair, frame)


@pytest.mark.spec("LIM-03")
async def test_deeply_nested_header_is_rejected(pair: Pair) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        deep = f'{{"code":10,"opaque":1,"other":{opening * 17}1{closing * 17}}}'.encode()
        await closed_after(pair, header_frame(deep))
    flat = json_header(other=[[1]] * 40, extFields={"i": '{"[[[[[[[[[[[[[[[[[[\\"{{{{{{{{{{{{{{{{{{{{{'})
    assert (await answered(pair, header_frame(flat))).ext["i"].endswith("{{{")
    await closed_after(pair, header_frame(b'{"code":10,"other":' + b"[" * 200_000))


@pytest.mark.spec("LIM-04")
async def test_incomplete_frames_share_budget_and_oldest_is_closed() -> None:
    async with pair(settings=NetSettings(unsigned_bytes_max=100_000)) as p:
        frame = encode_frame(Command(10, body=b"x" * 60_000))
        slow_reader, slow = await p.socket()
        slow.write(frame[:40_000])
        await until(lambda: p.server.unsigned_frames.used == 40_000)
        fast_reader, fast = await p.socket()
        fast.write(frame[:50_000])
        await until(lambda: p.server.unsigned_frames.used == 90_000)
        late_reader, late = await p.socket()
        late.write(frame[:30_000])
        assert await slow_reader.read() == b""  # the frame started first is closed, not the largest
        assert p.server.rejections.counts == {"partial_frames": 1}
        assert p.server.unsigned_frames.used == 80_000
        for writer, sent in ((fast, 50_000), (late, 30_000)):
            writer.write(frame[sent:])
        for reader in (fast_reader, late_reader):
            assert FrameDecoder().feed(await reader.readexactly(len(frame) - 10))[0:0] == []
        await until(lambda: p.server.unsigned_frames.used == 0)
        for writer in (slow, fast, late):
            writer.close()
        await until(lambda: not [c for c in p.server.connections if c.frame_pending])


@pytest.mark.spec("LIM-04")
async def test_signed_connections_do_not_share_the_budget() -> None:
    """Code 11 stands for a request with a valid signature, as access control reports it."""

    def handler(connection: Connection, request: Command) -> Command:
        if request.code == 11:
            connection.mark_signed()
        return request.reply()

    async with pair(handler, NetSettings(unsigned_bytes_max=100_000)) as p:
        frame = encode_frame(Command(10, body=b"x" * 90_000))
        signed_reader, signed = await p.socket()
        signed.write(encode_frame(Command(11)) + frame[:60_000])
        half_reader, half = await p.socket()
        half.write(encode_frame(Command(10)) + frame[:50_000])
        await until(lambda: p.server.unsigned_frames.used == 50_000)  # only that of the unsigned one
        late_reader, late = await p.socket()
        late.write(encode_frame(Command(11))[:-1])
        await until(lambda: p.server.unsigned_frames.used > 50_000)
        late.write(encode_frame(Command(11))[-1:] + frame[:20_000])  # released, and further bytes are not counted
        await until(lambda: len([c for c in p.server.connections if c.signed]) == 2)
        late.write(frame[20_000:80_000])
        await until(lambda: sum(c.frame_pending for c in p.server.connections) == 3)
        assert p.server.unsigned_frames.used == 50_000 and not p.server.rejections.counts
        _, other = await p.socket()
        other.write(frame[:60_000])
        assert await half_reader.read(1000) and await half_reader.read() == b""  # an unsigned one is closed
        for reader, writer, sent in ((signed_reader, signed, 60_000), (late_reader, late, 80_000)):
            writer.write(frame[sent:])
            answers, decoder = 0, FrameDecoder()
            while answers < 2:
                answers += len(decoder.feed(await reader.read(1000)))
        for writer in (signed, half, late, other):
            writer.close()


@pytest.mark.spec("LIM-04")
async def test_closed_connection_releases_incomplete_frame_bytes(pair: Pair) -> None:
    _, writer = await pair.socket()
    writer.write(encode_frame(Command(10, body=b"x" * 1000))[:-1])
    await until(lambda: pair.server.unsigned_frames.used > 1000)
    writer.close()
    await until(lambda: not pair.server.connections)
    assert pair.server.unsigned_frames.used == 0 and not pair.server.unsigned_frames


@pytest.mark.spec("LIM-04")
async def test_incomplete_frames_of_signed_connections_are_limited_as_well() -> None:
    def handler(connection: Connection, request: Command) -> Command:
        connection.mark_signed()
        return request.reply()

    async with pair(handler, NetSettings(request_bytes_max=100_000)) as p:
        frame = encode_frame(Command(10, body=b"x" * 90_000))
        slow_reader, slow = await p.socket()
        slow.write(encode_frame(Command(11)) + frame[:60_000])
        await until(lambda: p.server.signed_frames.used == 60_000)
        _, other = await p.socket()
        other.write(encode_frame(Command(11)) + frame[:70_000])
        assert await slow_reader.read(1000) and await slow_reader.read() == b""
        assert p.server.rejections.counts == {"partial_frames": 1}
        await until(lambda: p.server.signed_frames.used == 70_000)
        for writer in (slow, other):
            writer.close()
        await until(lambda: not p.server.connections)
        assert p.server.signed_frames.used == 0 and not p.server.signed_frames


@pytest.mark.spec("LIM-04")
@pytest.mark.parametrize("closed_by", ["peer", "server"])
async def test_closed_connection_keeps_no_bytes_of_its_incomplete_frame(pair: Pair, closed_by: str) -> None:
    """A connection is part of a reference cycle: a peer that connects again and again would fill memory until it is collected."""
    reader, writer = await pair.socket()
    writer.write(encode_frame(Command(10, body=b"x" * 50_000))[:-1])
    await until(lambda: pair.server.unsigned_frames.used > 50_000)
    (connection,) = pair.server.connections
    if closed_by == "peer":
        writer.close()
    else:
        connection.refuse("test", "closed by the server")
        assert not connection.frame_pending
        assert await reader.read() == b""
        writer.close()
    await until(lambda: not pair.server.connections)
    assert not connection.frame_pending


@pytest.mark.spec("LIM-06")
async def test_frame_deadline_grows_with_frame_length() -> None:
    settings = NetSettings(slow_frame_ms=100, slow_frame_bytes_per_second=100_000, frame_bytes_max=200_000_000)
    async with pair(settings=settings) as p:
        loop = asyncio.get_running_loop()
        small = encode_frame(Command(10, body=b"x" * 1000))
        reader, writer = await p.socket()
        _, large = await p.socket()
        large.write(struct.pack(">iI", 100_000_000, 50) + b"x" * 100)  # 1000 s
        began = loop.time()
        for byte in small[:3]:
            writer.write(bytes((byte,)))
        assert await reader.read() == b""
        assert loop.time() - began >= 0.1
        assert p.server.rejections.counts == {"slow_frame": 1}
        assert any(c.frame_pending and not c.closed for c in p.server.connections)
        writer.close()
        large.close()


@pytest.mark.spec("LIM-06")
@pytest.mark.parametrize(("frame_bytes", "seconds"), [(1000, 10), (20 * 262_144, 30)])
@pytest.mark.loop(real=False)
async def test_frame_has_ten_seconds_and_one_for_each_256_kib(frame_bytes: int, seconds: int) -> None:
    async with pair() as p:
        began, (_, trickle) = asyncio.get_running_loop().time(), await p.socket()
        trickle.write(struct.pack(">iI", frame_bytes - 4, 50))
        while p.server.rejections.counts != {"slow_frame": 1}:
            trickle.write(b"x")
            await asyncio.sleep(0.25)  # poll: virtual time, a byte each
        assert seconds <= asyncio.get_running_loop().time() - began < seconds + 3
        trickle.close()


@pytest.mark.spec("LIM-07")
@pytest.mark.parametrize(("count", "seconds"), [(5, 120), (6, 5)])
@pytest.mark.loop(real=False)
async def test_silent_connections_have_five_seconds_where_more_than_half_are_open(count: int, seconds: int) -> None:
    loop = asyncio.get_running_loop()
    async with pair(settings=NetSettings(connections_max=10)) as p:
        began, sockets = loop.time(), [await p.socket() for _ in range(count)]
        reads = [asyncio.create_task(reader.read()) for reader, _ in sockets]
        await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        assert seconds <= loop.time() - began < seconds + 3
        assert await asyncio.gather(*reads) == [b""] * count and 120 <= loop.time() - began < 123
        for _, writer in sockets:
            writer.close()


@pytest.mark.spec("LIM-07")
async def test_silent_connections_are_closed_when_many_are_open() -> None:
    # one silent connection beside the client's is still more than half of three: it is closed whenever it came
    async with pair(settings=NetSettings(connections_max=3, first_frame_ms=50)) as p:
        assert (await p.call(Command(10))).code == 0  # has sent a complete frame
        readers = [await p.socket() for _ in range(2)]
        for reader, writer in readers:
            assert await reader.read() == b""
            writer.close()
        assert p.server.rejections.counts == {"silent": 2}
        assert (await p.call(Command(10))).code == 0
    async with pair(settings=NetSettings(connections_max=10, first_frame_ms=20, slow_frame_ms=80)) as p:
        quiet, quiet_writer = await p.socket()
        slow, slow_writer = await p.socket()
        slow_writer.write(b"\0")
        assert await slow.read() == b""  # after several scans
        assert p.server.rejections.counts == {"slow_frame": 1} and not quiet.at_eof()
        quiet_writer.close()
        slow_writer.close()


@pytest.mark.spec("LIM-07")
async def test_silent_connection_is_closed_after_idle_timeout() -> None:
    assert NetSettings().server_idle_seconds == 120
    async with pair(settings=NetSettings(server_idle_seconds=1)) as p:
        reader, writer = await p.socket()
        assert await reader.read() == b""
        writer.close()


@pytest.mark.spec("LIM-08")
async def test_connections_are_limited_in_total_and_per_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(settings=NetSettings(connections_max=3, connections_per_address=1)) as p:
        assert (await p.call(Command(10))).code == 0
        one, two = await p.socket(), await p.socket()  # loopback is exempt from the limit per address
        await until(lambda: len(p.server.connections) == 3)
        await closed_after(p)
        assert p.server.rejections.counts == {"connections": 1}
        one[1].close()
        two[1].close()
        await until(lambda: len(p.server.connections) == 1)
        monkeypatch.setattr(server_module, "is_local", lambda ip: False)
        other = await p.socket()
        await until(lambda: len(p.server.connections) == 2)
        await closed_after(p)
        assert p.server.rejections.counts == {"connections": 1, "address": 1}
        other[1].close()
        await until(lambda: len(p.server.connections) == 1)
        reader, writer = await p.socket()  # the closed connection no longer counts
        writer.write(encode_frame(Command(10)))
        assert await reader.readexactly(8)
        writer.close()


async def test_one_address_takes_at_most_a_quarter_of_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `ulimit -n` 512 one address could hold all 256 connections of a process by sending a request over each."""
    monkeypatch.setattr(server_module, "is_local", lambda ip: False)
    async with pair() as p:
        p.server.process_connections_max = 20
        assert (await p.call(Command(10))).code == 0
        many = [await p.socket() for _ in range(4)]
        await until(lambda: len(p.server.connections) == 5)
        await closed_after(p)
        assert p.server.rejections.counts == {"address": 1}
        for _, writer in many:
            writer.close()


@pytest.mark.spec("LIM-08")
async def test_connection_limit_reserves_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda which: (1024, 4096))
    assert descriptors_left(256) == 768
    assert descriptors_left(2000) == 512

    async with pair() as p:
        assert p.server.process_connections_max == 768
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda which: (descriptors.resource.RLIM_INFINITY, 0))
    assert descriptors_left(256) >= 10_000


def waiting_handler(release: asyncio.Event, seen: list[Command]) -> Callable[[Connection, Command], Awaitable[Command]]:
    async def handler(connection: Connection, request: Command) -> Command:
        seen.append(request)
        await release.wait()
        return request.reply()

    return handler


@pytest.mark.spec("LIM-09")
async def test_connection_at_in_flight_limit_is_not_read() -> None:
    assert (NetSettings().in_flight_max, NetSettings().in_flight_bytes_max) == (256, 32 * 1024 * 1024)
    for settings, most in (
        (NetSettings(in_flight_max=3), 3),
        (NetSettings(in_flight_bytes_max=5000), 3),  # 2000 bytes each
    ):
        release, seen = asyncio.Event(), list[Command]()
        async with pair(waiting_handler(release, seen), settings) as p:
            reader, writer = await p.socket()
            frames = [encode_frame(Command(10, opaque=i, body=b"x" * 2000)) for i in range(10)]
            writer.write(b"".join(frames))
            await until(lambda seen=seen, most=most: len(seen) >= most)  # type: ignore[misc]
            (connection,) = p.server.connections
            assert len(seen) == most and connection.read_paused
            release.set()
            decoder, answers = FrameDecoder(), list[Command]()
            while len(answers) < 10:
                answers += decoder.feed(await reader.read(65536))
            assert {a.code for a in answers} == {0}  # none was rejected
            assert (connection.in_flight, connection.limits.in_flight_bytes, p.server.request_memory.used) == (0, 0, 0)
            assert not connection.read_paused
            writer.close()


@pytest.mark.spec("LIM-10")
async def test_large_requests_are_rejected_at_memory_limit() -> None:
    release, seen = asyncio.Event(), list[Command]()
    async with pair(waiting_handler(release, seen), NetSettings(request_bytes_max=10_000)) as p:
        first = asyncio.ensure_future(p.call(Command(10, body=b"x" * 10_000)))
        await until(lambda: p.server.request_memory.used == 10_000)
        refused = await p.call(Command(10, body=b"x" * 5000))
        assert refused.code == 2 and (refused.remark or "").startswith("[OVERLOAD]system busy")
        assert p.server.rejections.counts == {"overload": 1} and len(seen) == 1
        small = asyncio.ensure_future(p.call(Command(34, body=b"heartbeat")))
        await until(lambda: len(seen) == 2)
        release.set()
        assert [(await first).code, (await small).code] == [0, 0]
        assert (await p.call(Command(10, body=b"x" * 5000))).code == 0


def long_headers() -> list[Command]:
    """Requests of both serializations with 40,000 characters in the header, one of which makes each take four bytes."""
    text = "\U0001f600" + "x" * 39_999
    return [Command(10, ext={"k": text, "n": "1"}, serialization=form) for form in Serialization]


@pytest.mark.spec("LIM-09")
async def test_header_fields_count_towards_bytes_in_flight_of_a_connection() -> None:
    release, seen = asyncio.Event(), list[Command]()
    async with pair(waiting_handler(release, seen), NetSettings(in_flight_bytes_max=600_000)) as p:
        reader, writer = await p.socket()
        writer.write(b"".join(encode_frame(command) for command in long_headers() * 3))
        await until(lambda: len(seen) == 4)  # 160,000 bytes each
        (connection,) = p.server.connections
        assert connection.read_paused and 640_000 <= connection.limits.in_flight_bytes < 650_000
        release.set()
        decoder, answers = FrameDecoder(), list[Command]()
        while len(answers) < 6:
            answers += decoder.feed(await reader.read(65536))
        assert (len(seen), connection.limits.in_flight_bytes, p.server.request_memory.used) == (6, 0, 0)
        writer.close()


@pytest.mark.spec("LIM-10")
async def test_long_headers_are_rejected_at_memory_limit() -> None:
    release, seen = asyncio.Event(), list[Command]()
    async with pair(waiting_handler(release, seen), NetSettings(request_bytes_max=300_000)) as p:
        calls = [asyncio.ensure_future(p.call(command)) for command in long_headers()]
        await until(lambda: len(seen) == 2)
        assert p.server.request_memory.used >= 320_000
        assert [(await p.call(command)).code for command in long_headers()] == [2, 2]
        assert p.server.rejections.counts == {"overload": 2}
        ordinary = asyncio.ensure_future(p.call(Command(34, ext={"a": "group", "b": "topic"}, body=b"heartbeat")))
        await until(lambda: len(seen) == 3)
        release.set()
        assert [(await call).code for call in (*calls, ordinary)] == [0, 0, 0]
        assert p.server.request_memory.used == 0


@pytest.mark.spec("LIM-09")
def test_request_is_released_as_counted_when_its_fields_change() -> None:
    memory = RequestMemory(1 << 20)
    limits = Limits(NetSettings(), memory)
    request = Command(10, ext={"k": "v" * 1000}, body=bytes(1000))
    limits.begin(request)
    request.ext, request.body = {"k": "v" * 100_000}, None
    assert limits.end(request) >= 2000
    assert (limits.in_flight_bytes, memory.used) == (0, 0)


def deaf_socket(p: Pair) -> socket.socket:
    """A peer with a small receive buffer that never reads."""
    peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect((p.host, p.port))
    return peer


@pytest.mark.spec("LIM-11")
@pytest.mark.loop(real=False)
async def test_peer_that_does_not_read_is_closed_after_thirty_seconds() -> None:
    settings = NetSettings(write_buffer_high_bytes=100_000, server_sndbuf_bytes=8192)
    body, loop = b"x" * 1_000_000, asyncio.get_running_loop()

    def handler(connection: Connection, request: Command) -> Command:
        return request.reply(body=body if request.code == 11 else b"honest")

    async with pair(handler, settings) as p:
        with deaf_socket(p) as peer:
            peer.sendall(b"".join(encode_frame(Command(11, opaque=i)) for i in range(20)))
            began = loop.time()
            await until(lambda: bool(p.server.rejections.counts), 40)
            assert p.server.rejections.counts == {"slow_reader": 1} and 29 < loop.time() - began < 33
            await until(lambda: not p.server.connections)
        assert (await p.call(Command(10))).body == b"honest"


@pytest.mark.spec("LIM-11")
async def test_peer_that_does_not_read_is_closed_at_byte_limit() -> None:
    settings = NetSettings(write_buffer_high_bytes=10_000, unread_bytes_max=3_000_000, server_sndbuf_bytes=8192)
    async with pair(settings=settings) as p:
        with deaf_socket(p):
            await until(lambda: len(p.server.connections) == 1)
            (connection,) = p.server.connections
            sent = 0
            while not connection.closed:
                connection.invoke_oneway(Command(326, body=b"x" * 200_000))
                sent += 200_000
                await asyncio.sleep(0)
            assert p.server.rejections.counts == {"slow_reader": 1}
            assert sent < 30_000_000
            await until(lambda: not p.server.connections)


@pytest.mark.spec("LIM-11")
async def test_unread_output_of_all_connections_is_limited() -> None:
    """500 connections of an address, each below its own limit, could hold gigabytes for 30 s."""
    settings = NetSettings(
        write_buffer_high_bytes=100_000, unread_total_max=2_500_000, first_frame_ms=100, server_sndbuf_bytes=8192
    )
    body = b"x" * 1_000_000

    def handler(connection: Connection, request: Command) -> Command:
        return request.reply(body=body)

    async with pair(handler, settings) as p:
        with contextlib.ExitStack() as stack:
            for count in (1, 2, 3):
                peer = stack.enter_context(deaf_socket(p))
                peer.sendall(encode_frame(Command(11)))
                if count < 3:
                    await until(
                        lambda n=count: (
                            sum(c.congested and c.watch.stalled_since > 0 for c in p.server.connections) == n
                        )
                    )  # type: ignore[misc]
            first = min(p.server.connections, key=lambda one: one.watch.opened_at)
            await until(lambda: bool(p.server.rejections.counts))
            assert p.server.rejections.counts == {"slow_reader": 1}
            assert first.closed, "the one that has read nothing longest"
            await until(lambda: len(p.server.connections) == 2)
            assert (await p.call(Command(11))).body == body


@pytest.mark.spec("LIM-14")
@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /x HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\xf8\x01",
    ],
)
async def test_http_and_tls_on_plain_port_are_rejected(
    pair: Pair, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "saturnmq.net.rejections"):
        await closed_after(pair, data)
    assert pair.server.rejections.counts == {"foreign_protocol": 1}
    (record,) = caplog.records
    assert "TLS" in record.getMessage() or "HTTP" in record.getMessage()


@pytest.mark.spec("LIM-14")
async def test_tls_client_fails_at_once_on_plain_port(pair: Pair) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with pytest.raises(OSError):
        await asyncio.open_connection(pair.host, pair.port, ssl=context)
    await until(lambda: pair.server.rejections.counts == {"foreign_protocol": 1})


@pytest.mark.spec("LIM-02", "LIM-08")
def test_rejections_are_all_counted_but_logged_once_per_second(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    rejections = Rejections(lambda: now)
    with caplog.at_level(logging.WARNING, "saturnmq.net.rejections"):
        for port in range(5):
            rejections.note("bad_frame", f"192.0.2.1:{port}", "nonsense")
        rejections.note("connections", "192.0.2.2:1", "too many")
        assert len(caplog.records) == 2
        now += 1
        rejections.note("bad_frame", "192.0.2.1:9", "nonsense")
    assert len(caplog.records) == 3
    assert rejections.counts == {"bad_frame": 6, "connections": 1}


def test_log_lines_of_many_rejected_addresses_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    """Each address had its line: a flood from thousands of them filled the disk."""
    rejections = Rejections(lambda: 100.0)
    with caplog.at_level(logging.WARNING, "saturnmq.net.rejections"):
        for number in range(1000):
            rejections.note("connections", f"192.0.{number // 250}.{number % 250}:1", "too many")
    assert len(caplog.records) == LINES_MAX
    assert rejections.counts == {"connections": 1000}
