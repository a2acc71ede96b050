"""Fuzz tests of the protocol parsers. Invariant: any bytes either parse or raise RemoteProtocolError, nothing else.

Random bytes alone do not reach deep code, so golden frames are mutated too: bytes changed, removed, duplicated, lengths replaced.

Requirements: FUZ-01, FUZ-09.
"""

from __future__ import annotations

import json
import random
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.fuzz.frames import mutate
from headertables import REQUEST_HEADERS
from saturnmq.protocol import bodies
from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.frames.command import Command, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.headers import messaging as headers
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.json_dialect import loads
from saturnmq.protocol.message import (
    BatchItem,
    Host,
    Message,
    decode_batch,
    decode_properties,
    decode_records,
    encode_batch,
    encode_record,
)
from tolerantjson import tolerant_loads

BODIES = sorted(
    (value for value in vars(bodies).values() if isinstance(value, type) and issubclass(value, bodies.Body)),
    key=lambda cls: cls.__name__,
)
BODIES.remove(bodies.Body)
PARSERS: dict[str, Callable[[bytes], Any]] = {
    "frames": lambda raw: FrameDecoder().feed(raw),
    "records": decode_records,
    "batch": decode_batch,
    "properties": decode_properties,
    "json": loads,
    "tolerant json": tolerant_loads,
    "registration": lambda raw: bodies.read_compressed_registration(raw, lambda *_: None),
    "inflated registration": lambda raw: bodies.read_compressed_registration(zlib.compress(raw), lambda *_: None),
    "offset id": lambda raw: parse_offset_message_id(raw.decode("latin-1")),
}


def parses_or_refuses(parse: Callable[[bytes], Any], raw: bytes) -> bool:
    """True if raw was parsed, False if it was rejected with RemoteProtocolError."""
    try:
        parse(raw)
    except RemoteProtocolError as error:
        assert len(str(error)) < 2000
        return False
    return True


@pytest.mark.spec("FUZ-01", "FUZ-09", "REM-02", "REM-33", "MSG-02", "MSG-03")
@pytest.mark.parametrize("name", PARSERS)
@given(raw=st.binary(max_size=300))
@example(raw=b"")
def test_random_bytes_parse_or_are_rejected(name: str, raw: bytes) -> None:
    assert parses_or_refuses(PARSERS[name], raw) in (True, False)


@pytest.mark.spec("FUZ-09")
@pytest.mark.parametrize("shape", [b"\x01", b"\x02", b"a\x01", b"a\x01b\x02", b"\x01\x02", b"a"])
def test_properties_of_any_length_take_linear_time(shape: bytes) -> None:
    def cpu_seconds(length: int) -> float:
        data = shape * (length // len(shape))
        best = 60.0
        for _ in range(3):
            started = time.thread_time()
            parses_or_refuses(decode_properties, data)
            best = min(best, time.thread_time() - started)
        return best

    assert cpu_seconds(800_000) < 16 * max(cpu_seconds(200_000), 0.001)


JSON_PIECES = ["{", "}", "[", "]", ":", ",", '"', "'", "\\", "0", "-1", "1e9", "null", "true", "a", "$ref", '"$ref"', '"$.a"',
               '{"$ref":"$"}', "\\u", "\\ud800", " ", "\n", "\x00", "é", "{{", "}:", "9" * 30]  # fmt: skip


@pytest.mark.spec("FUZ-09", "REM-33")
@given(st.lists(st.sampled_from(JSON_PIECES), max_size=40), st.sampled_from(BODIES))
def test_json_like_input_parses_or_is_rejected(pieces: list[str], cls: type[bodies.Body]) -> None:
    raw = "".join(pieces).encode("utf-8", "surrogatepass")
    parsed = parses_or_refuses(tolerant_loads, raw)
    assert parses_or_refuses(loads, raw) >= parsed
    assert parses_or_refuses(cls.decode, raw) in (True, False)


@pytest.mark.spec("FUZ-01", "REM-02")
@given(st.integers(0, 255), st.binary(max_size=200), st.binary(max_size=40))
def test_framed_random_bytes_parse_or_are_rejected(serialization: int, header: bytes, body: bytes) -> None:
    raw = struct.pack(">iI", 4 + len(header) + len(body), serialization << 24 | len(header)) + header + body
    parsed = parses_or_refuses(PARSERS["frames"], raw)
    assert not (parsed and serialization > 1)


def mutations(raw: bytes, count: int, seed: int) -> list[bytes]:
    """So many mutations of raw, the same for the same seed."""
    chance = random.Random(seed)
    return [mutate(raw, chance) for _ in range(count)]


def deep_parse(raw: bytes) -> None:
    """Parse everything that a server would parse of a frame, each part separately."""
    for command in FrameDecoder().feed(raw):
        assert isinstance(command, Command)
        cls = REQUEST_HEADERS.get(command.code)  # type: ignore[call-overload]
        if cls is not None:
            parses_or_refuses(lambda _raw, cls=cls, ext=command.ext: headers.decode_header(cls, ext), b"")
        if command.body:
            for parse in (decode_records, decode_batch, loads, tolerant_loads):
                parses_or_refuses(parse, command.body)
            for body in BODIES[:: 1 + len(command.body) % 7]:
                parses_or_refuses(body.decode, command.body)


@pytest.mark.spec("FUZ-01", "REM-02", "REM-08", "REM-33", "MSG-02")
def test_mutated_golden_frames_parse_or_are_rejected(vectors: Path) -> None:
    refused = total = 0
    for path in sorted((vectors / "frames").glob("*.json")):
        by_kind = {
            (facts["request_code"], facts["type"], facts["serialize"], facts["code"]): facts
            for facts in json.loads(path.read_text())["frames"]
            if len(facts["hex"]) < 4000
        }
        for number, facts in enumerate(by_kind.values()):
            for raw in mutations(bytes.fromhex(facts["hex"]), 4, seed=number):
                total += 1
                refused += not parses_or_refuses(deep_parse, raw)
    assert total > 1000
    assert 0 < refused < total


@pytest.mark.spec("MSG-02")
def test_mutated_golden_records_parse_or_are_rejected(vectors: Path) -> None:
    log = (vectors / "store" / "broker" / "commitlog" / "00000000000000000000").read_bytes()[:2000]
    size = struct.unpack_from(">i", log)[0]
    refused = 0
    for raw in mutations(log[:size], 1500, seed=1):
        refused += not parses_or_refuses(decode_records, raw)
    assert refused > 500


@pytest.mark.spec("REM-01", "REM-02")
@given(raw=st.binary(max_size=400))
def test_parsed_frames_round_trip(raw: bytes) -> None:
    try:
        commands = FrameDecoder().feed(raw)
    except RemoteProtocolError as error:
        commands = list(error.decoded)
    for command in commands:
        assert FrameDecoder().feed(encode_frame(command)) == [command]


@pytest.mark.spec("MSG-02", "MSG-03")
def test_parsed_mutated_messages_round_trip() -> None:
    record = encode_record(Message("topic", b"the body", b"a\x01b", born_host=Host("::1", 5)))
    batch = encode_batch([BatchItem(b"one", b"a\x01b", 1), BatchItem(b"two")])
    parsed = 0
    for number in range(1500):
        for message in parsed_or_none(decode_records, mutations(record, 1, number)[0]):
            again = decode_records(encode_record(message))[0]
            assert (again.topic, again.body, again.properties_raw) == (
                message.topic,
                message.body,
                message.properties_raw,
            )
            parsed += 1
        items = parsed_or_none(decode_batch, mutations(batch, 1, number)[0])
        assert decode_batch(encode_batch(items)) == items
        parsed += bool(items)
    assert parsed > 100


def parsed_or_none(parse: Callable[[bytes], list[Any]], raw: bytes) -> list[Any]:
    try:
        return parse(raw)
    except RemoteProtocolError:
        return []
