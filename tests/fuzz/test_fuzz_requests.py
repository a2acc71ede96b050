"""Fuzz tests of the request handlers of a broker and a NameServer, over real connections.

Every request code of 4.9.7 gets each of its fields at its bounds, missing and doubled, in both header forms, and bodies that are
not what it expects; recorded frames are mutated. Each request gets one response, no handler fails unexpectedly, and an honest
client beside it is served.

`make fuzz` sends random combinations of such frames; here every field of every code is sure to have its turn.

Requirements: FUZ-02, FUZ-03.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from test_fuzz_protocol import mutations

from headertables import REQUEST_HEADERS
from saturnmq import Client
from saturnmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequest,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from saturnmq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from saturnmq.protocol.errors import LocalProtocolError
from saturnmq.protocol.frames.command import DEFAULT_LIMITS, Command, Serialization, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.headers.fields import FieldSpec
from saturnmq.protocol.message import BatchItem, encode_batch
from saturnmq.store import StoreProfile, StoreSettings
from saturnmq.testing import EmbeddedBroker

NUMBERS = ["", "-1", "0", "1", "65536", "65537", "2147483647", "2147483648", "-2147483648", "9223372036854775807",
           "9223372036854775808", "-9223372036854775808", "1e9", "NaN", "0x10", " 1", "+1", "٣", "9" * 4000]  # fmt: skip
TEXTS = ["", " ", "T", "x" * 300, "%RETRY%", "%RETRY%" + "x" * 250, "%DLQ%G", "../../x", "a/b", "\0", "a\nb\x1b[2J", "é\U0001f600",
         "{", "null", "-1", "\x01\x02", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "a" * 20_000]  # fmt: skip
WORDS = ["true", "false", "", "TRUE", "2", "\0"]
PLAIN = {"str": "T", "i32": "0", "i64": "0", "bool": "false"}
BOUNDS = {"str": TEXTS, "i32": NUMBERS, "i64": NUMBERS, "bool": WORDS}
CODES = [*REQUEST_HEADERS, *(code for code in (0, -1, 9, 9999, 2**31 - 1, -(2**31)))]
# Parked until its own time-out; an end that is neither commit nor rollback, as in 4.9.7.
UNANSWERED = {RequestCode.PULL_MESSAGE, RequestCode.END_TRANSACTION}
SEND_V2 = [FieldSpec(name, name, kind, True, None) for name, kind in zip("abcdefghijklm", (
    "str", "str", "str", "i32", "i32", "i32", "i64", "i32", "str", "i32", "bool", "i32", "bool"), strict=True)]  # fmt: skip
CHUNK = 40
DEADLINE_SECONDS = 30


def batch(*changes: tuple[int, int]) -> bytes:
    """A batch body with 32-bit numbers at these places replaced."""
    raw = bytearray(encode_batch([BatchItem(b"one", b"a\x01b", 1), BatchItem(b"two")]))
    for at, value in changes:
        struct.pack_into(">i", raw, at, value)
    return bytes(raw)


HEARTBEAT = HeartbeatData(
    "c", [ProducerData("P")], [ConsumerData("H", subscription_data_set=[SubscriptionData("T")])]
).encode()
BODIES = [
    b"", b"{}", b"[]", b"null", b"1", b'"x"', b"{", b"\xff\xfe", b"\0" * 100, b"[" * 5000, b'{"a":' * 100, b"{{}:1}",
    HEARTBEAT, HEARTBEAT[:-1], HEARTBEAT.replace(b'"c"', b"null"), HEARTBEAT.replace(b'"T"', b"[1]"),
    HEARTBEAT.replace(b'"H"', b'"' + b"x" * 300 + b'"'), HEARTBEAT.replace(b"[{", b"{").replace(b"}]", b"}"),
    HEARTBEAT.replace(b'"subVersion":0', b'"subVersion":9223372036854775808'),
    LockBatchRequest("G", "c", [MessageQueue("T", "b", -1), MessageQueue("T", "b", 2**31)]).encode(),
    b'{"consumerGroup":"G","clientId":"c","mqSet":[null,1,{}]}',
    b'{"groupName":"G","retryQueueNums":-1}', b'{"groupName":"G2","retryQueueNums":65537,"brokerId":"x"}',
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"topicName":"u","readQueueNums":2000000000}}}}',
    b"messageDelayLevel=1s\nx=y\n=\n", batch(), batch((0, 2**31 - 1)), batch((0, -1)), batch((0, 0)), batch((16, 2**31 - 1)),
    random.Random(1).randbytes(300),
]  # fmt: skip


def fields_of(code: int) -> list[FieldSpec]:
    if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2):
        return SEND_V2
    header = REQUEST_HEADERS.get(code)  # type: ignore[call-overload]
    return list(header.FIELDS) if header is not None else []


def commands(code: int) -> Iterator[Command]:
    """Requests of a code: valid but for one field or the body."""
    fields = fields_of(code)
    plain = {field.wire: PLAIN[field.kind] for field in fields}
    for body in (None, *BODIES):
        yield Command(code, ext=dict(plain), body=body)
    for field in fields:
        yield Command(code, ext={name: value for name, value in plain.items() if name != field.wire}, body=b"x")
        for bound in BOUNDS[field.kind]:
            yield Command(code, ext=plain | {field.wire: bound}, body=b"x")
    for bound in range(max(map(len, BOUNDS.values()))):  # all at their bounds at once
        ext = {field.wire: BOUNDS[field.kind][bound % len(BOUNDS[field.kind])] for field in fields}
        yield Command(code, ext=ext, body=BODIES[bound % len(BODIES)])


def with_doubled_fields(code: int, opaque: int) -> bytes:
    """A frame whose header names each field twice, and its own members too."""
    pairs = [
        f'"{field.wire}":{json.dumps(value)}' for field in fields_of(code) for value in (PLAIN[field.kind], "../../x")
    ]
    members = f'"code":{code},"flag":0,"language":"JAVA","opaque":1,"opaque":{opaque},"version":407,"version":-1'
    header = f'{{{members},"extFields":{{{",".join(pairs)}}}}}'.encode()
    return struct.pack(">ii", 4 + len(header) + 1, len(header)) + header + b"x"


class Peer:
    """A raw connection: what was asked, and the responses by opaque number."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder()
        self.answers: dict[int, list[Command]] = {}

    async def read(self) -> bool:
        """Read once; False at the end of the stream."""
        data = await self.reader.read(262_144)
        for command in self.decoder.feed(data):
            assert isinstance(command, Command)
            if command.flag & CommandFlag.RESPONSE:
                self.answers.setdefault(command.opaque, []).append(command)
        return bool(data)

    async def until_answered(self, opaques: set[int]) -> None:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not opaques <= self.answers.keys():
                    assert await self.read(), "the server closed the connection of well-formed frames"
        except TimeoutError:
            raise AssertionError(f"no response to {sorted(opaques - self.answers.keys())}") from None


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Peer]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def servers(caplog: pytest.LogCaptureFixture) -> AsyncIterator[EmbeddedBroker]:
    """A broker and a NameServer; afterwards, none of their tasks has failed, no handler either, and an honest client is served."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    caplog.set_level(logging.ERROR)
    async with EmbeddedBroker(store=StoreSettings(profile=StoreProfile.SMALL)) as server:
        yield server
        async with Client(name_servers=server.name_servers) as client, client.producer("honest") as producer:
            assert (await producer.send("Honest", b"after")).message_id
        assert server.broker.failure is None
    assert failures == []
    assert [record.getMessage()[:500] for record in caplog.records if record.levelno >= logging.ERROR] == []


def addresses(server: EmbeddedBroker) -> dict[str, str]:
    (fast,) = server.broker._fast.ports
    return {"broker": server.broker_address, "fast port": f"127.0.0.1:{fast}", "NameServer": server.name_servers}


async def ask_everything(address: str, form: Serialization) -> int:
    """Send all requests, pipelined and interleaved over four connections; returns how many. Each must get one response."""
    async with connected(address) as a, connected(address) as b, connected(address) as c, connected(address) as d:
        peers, opaque = [a, b, c, d], 0
        frames: list[tuple[int, int, bytes]] = []
        for code in CODES:
            for command in commands(code):
                opaque += 1
                command.opaque, command.serialization, command.version = opaque, form, 407
                try:
                    frames.append((opaque, code, encode_frame(command)))
                except LocalProtocolError:  # a code or a text that the binary form cannot express
                    continue
            opaque += 1
            if form is Serialization.JSON:
                frames.append((opaque, code, with_doubled_fields(code, opaque)))
        for at in range(0, len(frames), CHUNK * len(peers)):
            wanted = []
            for number, peer in enumerate(peers):
                part = frames[at + number * CHUNK : at + (number + 1) * CHUNK]
                peer.writer.write(b"".join(raw for _, _, raw in part))
                wanted.append({opaque for opaque, code, _ in part if code not in UNANSWERED})
            for peer, opaques in zip(peers, wanted, strict=True):
                await peer.until_answered(opaques)
        for peer in peers:
            assert all(len(answers) == 1 for answers in peer.answers.values())
            assert all(len(answers[0].remark or "") < 70_000 for answers in peer.answers.values())
        return len(frames)


@pytest.mark.spec("FUZ-02", "FUZ-03")
@pytest.mark.parametrize(
    ("port", "form"),
    [
        ("broker", Serialization.JSON),
        ("broker", Serialization.ROCKETMQ),
        ("NameServer", Serialization.JSON),
    ],
    ids=str,
)
@pytest.mark.loop(real=True)
async def test_every_code_with_fields_at_their_bounds_is_answered(
    port: str, form: Serialization, caplog: pytest.LogCaptureFixture
) -> None:
    async with servers(caplog) as server:
        assert await ask_everything(addresses(server)[port], form) > 5000


@pytest.mark.spec("FUZ-02", "FUZ-03", "REM-02")
@pytest.mark.parametrize("port", ["broker", "fast port", "NameServer"])
@pytest.mark.loop(real=True)
async def test_frames_with_lying_lengths_close_only_their_connection(
    port: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = encode_frame(Command(RequestCode.GET_ALL_TOPIC_CONFIG, ext={}, body=b"x", opaque=1))
    total = struct.unpack_from(">i", good)[0]
    longest = DEFAULT_LIMITS.frame_bytes_max - 4
    lies = [0, 1, 3, 4, -1, total - 1, total + 1, total + 100, 2**24, 2**24 + 1, 2**31 - 1, -(2**31)]

    async def closed(address: str, raw: bytes, *, waits: bool) -> dict[int, list[Command]]:
        """Responses until the server closes the connection; waits: it expects more, so the end of the stream is sent."""
        async with connected(address) as peer:
            try:
                peer.writer.write(raw)
                await peer.writer.drain()
                if waits:
                    peer.writer.write_eof()
                async with asyncio.timeout(20):
                    while await peer.read():
                        pass
            except ConnectionError:
                pass
            except TimeoutError:
                raise AssertionError(f"the connection is open after {raw[-len(good) :][:8].hex()}") from None
            return peer.answers

    async with servers(caplog) as server:
        address = addresses(server)[port]
        async with connected(address) as honest:
            for number, lie in enumerate(lies):
                length, binary = struct.pack(">i", lie), struct.pack(">i", 1 << 24 | (lie & 0xFFFFFF))
                waits = total - 1 <= lie <= longest  # what follows the frame, or the rest of it, may still come
                answers = await closed(address, length + good[4:], waits=waits)
                assert len(answers) == (lie == total - 1), "the frame is good without the last byte of its body"
                assert not await closed(address, good[:4] + length + good[8:], waits=False)
                assert not await closed(address, good[:4] + binary + good[8:], waits=False)
                answers = await closed(address, good + length + good[4:], waits=waits)
                assert answers.keys() == {1}, "the good frame before it is answered"
                honest.writer.write(encode_frame(Command(9999, ext={}, opaque=number)))
                await honest.until_answered({number})
                assert honest.answers[number][0].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            for opaque, size in enumerate(range(1, len(good)), 1000):  # byte by byte, in two parts
                part = encode_frame(Command(9999, ext={}, opaque=opaque))
                honest.writer.write(part[:size])
                await asyncio.sleep(0)
                honest.writer.write(part[size:])
                await honest.until_answered({opaque})


@pytest.mark.spec("FUZ-02", "FUZ-03")
@pytest.mark.parametrize("port", ["broker", "NameServer"])
def test_mutated_recorded_frames_never_fail_a_handler(
    port: str, vectors: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = []
    for path in sorted((vectors / "frames").glob("*.json"))[::2]:
        by_code = {
            f["code"]: f
            for f in json.loads(path.read_text())["frames"]
            if f["type"] == "request" and len(f["hex"]) < 4000
        }
        for number, facts in enumerate(by_code.values()):
            frames += mutations(bytes.fromhex(facts["hex"]), 2, seed=number)

    async def work() -> None:
        async with servers(caplog) as server:
            address = addresses(server)[port]
            for raw in frames:
                async with connected(address) as peer:
                    peer.writer.write(raw)
                    peer.writer.write_eof()
                    await asyncio.sleep(0)

    assert len(frames) > 200
    asyncio.run(work())
