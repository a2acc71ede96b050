"""Frames and commands: the format of docs/spec/00 section 3, and recorded frames of 4.9.7 decoded and re-encoded."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol.codes import VERSION, CommandFlag, Language, RequestCode
from saturnmq.protocol.errors import FrameError, HeaderError, LocalProtocolError, RemoteProtocolError
from saturnmq.protocol.frames.command import (
    FRAME_BYTES_MAX,
    Command,
    FrameLimits,
    Serialization,
    encode_frame,
    encode_head,
)
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.message import BatchItem, encode_batch

ROUTE_BINARY = bytes.fromhex(
    "0000002d 01000029 0069 00 0197 00000001 00000000 00000000 00000014 0005 746f706963 00000009 546f70696354657374"
)
ROUTE_JSON = (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":1,'
    b'"serializeTypeCurrentRPC":"JSON","version":407}'
)


def route_request(serialization: Serialization) -> Command:
    return Command(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        ext={"topic": "TopicTest"},
        opaque=1,
        language=Language.JAVA,
        version=407,
        serialization=serialization,
    )


def decode(raw: bytes) -> list[Command]:
    return FrameDecoder().feed(raw)


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


def binary_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def binary_header(*, remark: bytes = b"\0\0\0\0", ext: bytes = b"\0\0\0\0") -> bytes:
    return struct.pack(">hbhii", 105, 0, 407, 1, 0) + remark + ext


@pytest.mark.spec("REM-01")
def test_binary_route_request_matches_documented_bytes() -> None:
    assert encode_frame(route_request(Serialization.ROCKETMQ)) == ROUTE_BINARY
    assert decode(ROUTE_BINARY) == [route_request(Serialization.ROCKETMQ)]


@pytest.mark.spec("REM-01")
def test_json_route_request_matches_documented_lengths() -> None:
    frame = bytes.fromhex("0000008700000083") + ROUTE_JSON
    assert decode(frame) == [route_request(Serialization.JSON)]
    ours = encode_frame(route_request(Serialization.JSON))
    assert ours[:8] == frame[:8]
    assert json.loads(ours[8:]) == json.loads(ROUTE_JSON)


@pytest.mark.spec("REM-01")
def test_frame_starts_with_zero_byte_and_absent_body_is_none() -> None:
    for serialization in Serialization:
        frame = encode_frame(route_request(serialization))
        assert frame[0] == 0
        assert decode(frame)[0].body is None


@pytest.mark.spec("REM-01")
def test_head_and_body_encoded_separately_equal_frame() -> None:
    for serialization in Serialization:
        command = route_request(serialization)
        command.body = b"some body"
        assert encode_head(command, 9) + b"some body" == encode_frame(command)


@pytest.mark.spec("REM-01", "REM-04", "REM-31", "REM-32")
def test_golden_frames_decode_to_recorded_fields(whole_frames: list[Any]) -> None:
    for frame in whole_frames:
        (command,) = decode(frame.raw)
        facts = frame.facts
        assert (command.code, command.opaque, command.flag) == (facts["code"], facts["opaque"], facts["flag"]), (
            frame.where
        )
        assert command.serialization.name == facts["serialize"], frame.where
        assert len(command.body or b"") == facts["body_len"], frame.where
        assert (command.language, command.is_response) == (Language.JAVA, frame.is_response), frame.where
        if "header" in facts:
            assert command.ext == (facts["header"].get("extFields") or {}), frame.where
            assert command.remark == facts["header"].get("remark"), frame.where
            assert command.version == facts["header"]["version"], frame.where


@pytest.mark.spec("REM-01", "REM-04")
def test_golden_frames_reencode_equally(whole_frames: list[Any]) -> None:
    binary = 0
    for frame in whole_frames:
        (command,) = decode(frame.raw)
        again = encode_frame(command)
        if command.serialization is Serialization.ROCKETMQ:
            assert again == frame.raw, frame.where
            binary += 1
            continue
        header_bytes = len(again) - 8 - len(command.body or b"")
        theirs = json.loads(frame.raw[8 : len(frame.raw) - len(command.body or b"")])
        ours = json.loads(again[8 : 8 + header_bytes])
        ours.setdefault("extFields", {})
        theirs.setdefault("extFields", {})
        assert ours == theirs, frame.where
        assert decode(again) == [command], frame.where
    assert binary > 40


@pytest.mark.spec("REM-03")
def test_golden_frames_decode_byte_by_byte_and_with_trailing_bytes(whole_frames: list[Any]) -> None:
    for frame in whole_frames:
        (whole,) = decode(frame.raw)
        if len(frame.raw) < 1200:
            decoder = FrameDecoder()
            got = [command for at in range(len(frame.raw)) for command in decoder.feed(frame.raw[at : at + 1])]
            assert got == [whole], frame.where
            assert decoder.pending_bytes == 0
        decoder = FrameDecoder()
        assert decoder.feed(frame.raw + frame.raw[:7]) == [whole], frame.where
        assert decoder.pending_bytes == 7
        assert decoder.feed(frame.raw[7:]) == [whole], frame.where


@pytest.mark.spec("REM-03")
def test_truncated_golden_frames_wait_for_more_data(golden_frames: list[Any]) -> None:
    cut = [frame for frame in golden_frames if frame.cut]
    assert cut
    for frame in cut:
        decoder = FrameDecoder()
        assert decoder.feed(frame.raw) == []
        assert decoder.pending_bytes == len(frame.raw)
        if frame.facts["header_len"] + 8 <= len(frame.raw):  # only the body is truncated: any bytes complete it
            (command,) = decoder.feed(bytes(frame.facts["len"] - len(frame.raw)))
            assert (command.code, command.opaque) == (frame.facts["code"], frame.facts["opaque"])
            assert len(command.body or b"") == frame.facts["body_len"]


@pytest.mark.spec("REM-03")
def test_pipelined_frames_decode_in_order(whole_frames: list[Any]) -> None:
    frames = whole_frames[:300]
    stream = b"".join(frame.raw for frame in frames)
    expected = [frame.facts["opaque"] for frame in frames]
    for step in (1009, 4096, len(stream)):
        decoder = FrameDecoder()
        got = [c.opaque for at in range(0, len(stream), step) for c in decoder.feed(stream[at : at + step])]
        assert got == expected


@pytest.mark.parametrize("at_most", [1, 2, 7, 1000])
@pytest.mark.parametrize("step", [101, 4096, 1 << 20])
def test_frames_decode_in_steps_of_some_commands(whole_frames: list[Any], at_most: int, step: int) -> None:
    frames = whole_frames[:300]
    stream = b"".join(frame.raw for frame in frames)
    decoder, got = FrameDecoder(), []
    for at in range(0, len(stream), step):
        data = stream[at : at + step]
        while data:
            some = decoder.feed(data, at_most)
            assert len(some) <= at_most
            assert not decoder.undecoded or len(some) == at_most
            got += some
            data = decoder.undecoded
    assert got == [command for frame in frames for command in decode(frame.raw)]
    assert decoder.pending_bytes == 0


commands = st.builds(
    Command,
    st.integers(-(2**15), 2**15 - 1),
    ext=st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=8),
    body=st.none() | st.binary(min_size=1, max_size=300),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    remark=st.none() | st.text(min_size=1, max_size=50),
    language=st.sampled_from(sorted(Language)),
    version=st.integers(0, 2**15 - 1),
    serialization=st.sampled_from(Serialization),
)


@pytest.mark.spec("REM-01", "REM-03", "REM-04")
@given(st.lists(commands, max_size=5), st.lists(st.integers(1, 400), max_size=20))
def test_commands_round_trip_in_any_chunking(sent: list[Command], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(command) for command in sent)
    decoder, got, at = FrameDecoder(), [], 0
    for size in (*cuts, len(stream)):
        got += decoder.feed(stream[at : at + size])
        at += size
    assert got == sent
    assert decoder.pending_bytes == 0


@pytest.mark.spec("REM-04", "REM-05")
@pytest.mark.parametrize("serialization", Serialization)
def test_reply_keeps_opaque_and_serialization_and_sets_response_bit(serialization: Serialization) -> None:
    request = route_request(serialization)
    request.opaque = -77
    reply = request.reply(17, "no route", {"a": "b"}, b"{}")
    assert (reply.opaque, reply.flag, reply.code, reply.remark) == (-77, CommandFlag.RESPONSE, 17, "no route")
    assert reply.serialization is serialization
    (seen,) = decode(encode_frame(reply))
    assert seen.is_response
    assert not seen.is_oneway
    assert (seen.code, seen.remark, seen.ext, seen.body) == (17, "no route", {"a": "b"}, b"{}")


@pytest.mark.spec("REM-05")
@pytest.mark.parametrize("serialization", Serialization)
def test_absent_remark_is_not_encoded(serialization: Serialization) -> None:
    raw = encode_frame(route_request(serialization).reply())
    assert b"remark" not in raw
    assert decode(raw)[0].remark is None


@pytest.mark.spec("REM-06")
def test_flag_bits_distinguish_request_response_and_oneway() -> None:
    kinds = {flag: (Command(34, flag=flag).is_response, Command(34, flag=flag).is_oneway) for flag in range(4)}
    assert kinds == {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True)}


@pytest.mark.spec("REM-06")
def test_golden_frames_carry_expected_flags(whole_frames: list[Any]) -> None:
    kinds = {"request": (False, False), "response": (True, False), "oneway": (False, True)}
    seen = set()
    for frame in whole_frames:
        (command,) = decode(frame.raw)
        assert (command.is_response, command.is_oneway) == kinds[frame.facts["type"]], frame.where
        seen.add(frame.facts["type"])
    assert seen == set(kinds)


@pytest.mark.spec("REM-07")
@pytest.mark.parametrize("opaque", [0, 1, 2**31 - 1, -(2**31), -1])
@pytest.mark.parametrize("serialization", Serialization)
def test_opaque_is_signed_32_bit_and_echoed(opaque: int, serialization: Serialization) -> None:
    request = route_request(serialization)
    request.opaque = opaque
    (seen,) = decode(encode_frame(request))
    assert seen.opaque == opaque
    assert decode(encode_frame(seen.reply()))[0].opaque == opaque


@pytest.mark.spec("REM-31")
def test_own_commands_carry_version_of_4_9_7() -> None:
    request = Command(RequestCode.HEART_BEAT)
    assert request.version == request.reply().version == VERSION == 407
    assert VERSION >= 401, "from here on a NameServer answers in standard JSON (NS-22)"


@pytest.mark.spec("REM-32")
def test_own_commands_carry_language_python() -> None:
    assert b'"language":"PYTHON"' in encode_frame(Command(34))
    assert encode_frame(Command(34, serialization=Serialization.ROCKETMQ))[10] == Language.PYTHON == 3


@pytest.mark.spec("REM-32")
def test_language_numbers_match_apache() -> None:
    names = ["JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST"]
    assert [Language[name] for name in names] == list(range(13))
    for number, name in enumerate(names):
        assert decode(json_frame(b'{"code":34,"language":"%b"}' % name.encode()))[0].language == number


@pytest.mark.spec("REM-32")
def test_unknown_languages_are_tolerated() -> None:
    assert decode(json_frame(b'{"code":34,"language":"COBOL"}'))[0].language == Language.OTHER
    assert decode(json_frame(b'{"code":34,"language":77}'))[0].language == Language.OTHER
    assert decode(json_frame(b'{"code":34}'))[0].language == Language.OTHER
    header = struct.pack(">hbhii", 34, 99, 407, 1, 0) + bytes(8)
    (command,) = decode(binary_frame(header))
    assert command.language == 99
    assert decode(encode_frame(command)) == [command]


@pytest.mark.spec("REM-04", "REM-08")
def test_json_header_of_go_client_decodes() -> None:
    header = b'{"code":105,"language":"GO","version":317,"opaque":5,"flag":0,"remark":"","extFields":{}}'
    (command,) = decode(json_frame(header))
    assert (command.language, command.version, command.remark, command.ext) == (Language.GO, 317, "", {})


@pytest.mark.spec("REM-09")
def test_numeric_and_boolean_ext_fields_become_text() -> None:
    header = b'{"code":11,"extFields":{"a":5,"b":true,"c":false,"d":1.5,"e":null,"f":"x","g":-9223372036854775808}}'
    (command,) = decode(json_frame(header))
    assert command.ext == {"a": "5", "b": "true", "c": "false", "d": "1.5", "f": "x", "g": "-9223372036854775808"}


@pytest.mark.spec("REM-04")
def test_repeated_binary_key_keeps_last_value() -> None:
    entry = lambda k, v: struct.pack(">h", len(k)) + k + struct.pack(">i", len(v)) + v  # noqa: E731
    ext = entry(b"a", b"1") + entry(b"b", b"") + entry(b"a", b"2")
    (command,) = decode(binary_frame(binary_header(ext=struct.pack(">i", len(ext)) + ext)))
    assert command.ext == {"a": "2", "b": ""}


BAD_FRAMES = {
    "longer than the limit": struct.pack(">iI", FRAME_BYTES_MAX - 3, 0),
    "longest length there is": bytes.fromhex("7fffffff00000010"),
    "negative length": struct.pack(">iI", -5, 0),
    "length too small": struct.pack(">iI", 3, 0) + b"abc",
    "header longer than the frame": struct.pack(">iI", 20, 17) + bytes(16),
    "unknown serialization": struct.pack(">iI", 6, 2 << 24 | 2) + b"{}",
    "serialization 255": bytes.fromhex("00000014ff000010") + bytes(16),
    "no JSON": json_frame(b"{code:1"),
    "JSON that is no object": json_frame(b"[1]"),
    "empty JSON": json_frame(b""),
    "JSON not UTF-8": json_frame(b'{"code":1,"remark":"\xff"}'),
    "code is text": json_frame(b'{"code":"x"}'),
    "code is a boolean": json_frame(b'{"code":true}'),
    "opaque too big": json_frame(b'{"code":1,"opaque":2147483648}'),
    "extFields is a list": json_frame(b'{"code":1,"extFields":[1]}'),
    "extFields value is an object": json_frame(b'{"code":1,"extFields":{"a":{}}}'),
    "very deep JSON": json_frame(b"[" * 100_000),
    "binary header cut": binary_frame(b"\0" * 20),
    "negative remark length": binary_frame(binary_header(remark=b"\xff\xff\xff\xff")),
    "remark longer than header": binary_frame(binary_header(remark=b"\0\0\1\0")),
    "negative ext length": binary_frame(binary_header(ext=b"\xff\xff\xff\xff")),
    "ext longer than header": binary_frame(binary_header(ext=b"\0\0\0\2")),
    "negative key length": binary_frame(binary_header(ext=b"\0\0\0\6" + b"\xff\xff" + bytes(4))),
    "negative value length": binary_frame(binary_header(ext=b"\0\0\0\7" + b"\0\1k" + b"\xff\xff\xff\xff")),
    "value past the end": binary_frame(binary_header(ext=b"\0\0\0\7" + b"\0\1k" + b"\0\0\0\1")),
    "entry cut": binary_frame(binary_header(ext=b"\0\0\0\1\0")),
    "key not UTF-8": binary_frame(binary_header(ext=b"\0\0\0\7" + b"\0\1\xff" + bytes(4))),
}


@pytest.mark.spec("REM-02")
@pytest.mark.parametrize("raw", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_invalid_frame_raises_after_preceding_valid_frame(raw: bytes) -> None:
    assert FRAME_BYTES_MAX == 16_777_216
    with pytest.raises((FrameError, HeaderError)) as caught:
        decode(ROUTE_BINARY + raw)
    assert list(caught.value.decoded) == decode(ROUTE_BINARY)
    assert isinstance(caught.value, RemoteProtocolError)


@pytest.mark.spec("REM-02")
@pytest.mark.parametrize("raw", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_invalid_frame_fed_byte_by_byte_is_rejected_by_its_end(raw: bytes) -> None:
    step = 1 if len(raw) < 10_000 else 10_000
    chunks = [raw[at : at + step] for at in range(0, len(raw), step)]
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError):
        for chunk in chunks:
            assert decoder.feed(chunk) == []


@pytest.mark.spec("LIM-01", "REM-02")
@pytest.mark.parametrize("length", [3, -1, FRAME_BYTES_MAX - 3])
def test_wrong_length_is_rejected_at_its_last_byte(length: int) -> None:
    good = json_frame(b"{}", b"ab")
    raw = good + struct.pack(">i", length)
    for step in (1, 2, len(raw)):
        decoder, commands = FrameDecoder(), []
        with pytest.raises(FrameError, match=f"frame length {length} is outside") as caught:
            for at in range(0, len(raw), step):
                commands += decoder.feed(raw[at : at + step])
        assert at + step == len(raw), "not before"
        assert [command.body for command in (*commands, *caught.value.decoded)] == [b"ab"]


@pytest.mark.spec("REM-02")
def test_frame_of_exactly_the_limit_is_accepted() -> None:
    assert decode(struct.pack(">iI", FRAME_BYTES_MAX - 4, 2) + b"{}") == []
    limits = FrameLimits(frame_bytes_max=64, header_bytes_max=20, ext_fields_max=1)
    frame = json_frame(b"{}", bytes(54))
    assert len(frame) == 64
    assert len(FrameDecoder(limits).feed(frame)) == 1
    for bad in (json_frame(b"{}", bytes(55)), json_frame(b" " * 21), json_frame(b'{"extFields":{"a":"","b":""}}')):
        with pytest.raises(RemoteProtocolError):
            FrameDecoder(limits).feed(bad)


@pytest.mark.spec("REM-02")
@pytest.mark.parametrize("serialization", Serialization)
def test_response_to_largest_batch_fits_header_limit(serialization: Serialization) -> None:
    smallest = len(encode_batch([BatchItem(b"x", b"UNIQ_KEY\x01" + bytes(32))]))
    ids = ",".join([offset_message_id(("2001:db8::1", 10911), 2**40)] * (4 * 1024 * 1024 // smallest))
    answer = Command(0, ext={"msgId": ids, "queueOffset": "0"}, flag=1, serialization=serialization)
    assert decode(encode_frame(answer)) == [answer]


def test_unencodable_commands_raise_local_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(Command(70_000, serialization=Serialization.ROCKETMQ))
    with pytest.raises(LocalProtocolError):
        encode_frame(Command(1, ext={"k" * 40_000: ""}, serialization=Serialization.ROCKETMQ))
    with pytest.raises(LocalProtocolError):
        encode_frame(Command(1, ext={"lone surrogate": "\ud800"}))
    with pytest.raises(LocalProtocolError):
        encode_head(Command(1), 2**31)


def test_command_repr_hides_field_values_and_body() -> None:
    text = repr(Command(50, ext={"secretKey": "hunter22"}, body=b"hunter22"))
    assert "hunter22" not in text
    assert "secretKey" in text
