"""Differential test: decoding through header templates yields the same commands and errors as decoding every header in full."""

from __future__ import annotations

import itertools
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.frames.command import Command, Serialization, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.frames.header_templates import (
    CHANGING,
    TEMPLATES_MAX,
    WORDS_MAX,
    HeaderTemplates,
    TemplateCommand,
)

BINARY = Serialization.ROCKETMQ
SEND = int(RequestCode.SEND_MESSAGE_V2)


def send_ext(**more: str) -> dict[str, str]:
    """The header fields of a Java producer, in its order."""
    ext = {
        "a": "producers", "b": "Topic", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795246686100", "h": "0",
        "i": "UNIQ_KEY\x01ABC\x02WAIT\x01true", "j": "0", "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip
    return ext | more


def frame(
    opaque: int = 0,
    *,
    code: int = SEND,
    flag: int = 0,
    body: bytes | None = b"body",
    serialization: Serialization = BINARY,
    **more: str,
) -> bytes:
    ext = send_ext(**more)
    return encode_frame(
        Command(code, ext=ext, body=body, opaque=opaque, flag=flag, serialization=serialization, language=0)
    )


def java_frame(opaque: int = 7, *, after: str = "", **more: str) -> bytes:
    """A frame with a JSON header as fastjson writes it, control characters escaped; after: additional members."""
    fields = {"code": SEND, "extFields": send_ext(**more), "flag": 0, "language": "JAVA", "opaque": opaque}
    text = json.dumps(fields | {"serializeTypeCurrentRPC": "JSON", "version": 407}, separators=(",", ":"))
    return json_frame(text[:-1].encode() + after.encode() + b"}")


def json_frame(header: bytes) -> bytes:
    return struct.pack(">ii", 8 + len(header), len(header)) + header + b"body"


def outcome(decoder: FrameDecoder, pieces: list[bytes]) -> tuple[list[Command], str, int]:
    """Decoded commands, class and text of the error, and the number of pending bytes."""
    commands: list[Command] = []
    try:
        for piece in pieces:
            commands += decoder.feed(piece)
    except RemoteProtocolError as error:
        return commands + list(error.decoded), f"{type(error).__name__}: {error}", 0
    return commands, "", decoder.pending_bytes


def check_same(pieces: list[bytes]) -> list[Command]:
    """Decode with and without templates, assert equal outcomes, and return the commands of the decoder with templates."""
    plain, templated = outcome(FrameDecoder(), pieces), outcome(FrameDecoder(templates=HeaderTemplates()), pieces)
    assert templated == plain
    for command, full in zip(templated[0], plain[0], strict=True):
        assert list(command.ext.items()) == list(full.ext.items())  # in the same order
        assert encode_frame(command) == encode_frame(full)
    return templated[0]


@pytest.mark.spec("REM-01", "FUZ-04")
def test_second_similar_header_is_decoded_by_template() -> None:
    commands = check_same(
        [frame(1), frame(2, e="3", g="1795246686999", i="UNIQ_KEY\x01XYZ\x02WAIT\x01true") + frame(3)]
    )
    assert [type(command) for command in commands] == [Command, TemplateCommand, TemplateCommand]
    second = commands[1]
    assert isinstance(second, TemplateCommand)
    assert second.template.names == ("e", "g") and second.template.text_name == "i"
    assert second.values == (b"3", b"1795246686999") and second.text == "UNIQ_KEY\x01XYZ\x02WAIT\x01true"
    assert not {"e", "i"} & set(second.template.shared) and second.template.shared["b"] == "Topic"
    second.ext["acl"] = "added"
    assert second.ext["acl"] == "added", "fields that a hook adds stay"


@pytest.mark.spec("REM-01", "FUZ-04")
@pytest.mark.parametrize(
    "other",
    [
        frame(2, b="Other"),  # a shared value of the same length
        frame(2, j="1"),
        frame(2, flag=2),
        frame(2, e="10", i="UNIQ_KEY\x01AB\x02WAIT\x01true"),  # the same length with values at other positions
        frame(2, i="UNIQ_KEY\x01\u00e9C\x02WAIT\x01true"[:-1]),  # not ASCII, the same length in bytes
        frame(2, body=None),
        frame(2, code=RequestCode.SEND_BATCH_MESSAGE),
        frame(2).replace(b"UNIQ", b"UN\xff\xfe"),  # not UTF-8
        frame(2).replace(b"\x00\x01e\x00\x00\x00\x010", b"\x00\x01e\x00\x00\x00\x020"),  # a wrong length
        frame(2).replace(b"\x00\x01f", b"\x00\x01e"),  # a repeated field
        frame(2)[:17] + b"\0\0\0\1" + frame(2)[21:],  # flag
        frame(2)[:21] + b"\0\0\0\1" + frame(2)[25:],  # remark
        struct.pack(">iI", 17_000_000, (1 << 24) | 100) + frame(2)[8:],
    ],
)
def test_binary_headers_of_equal_length_are_not_confused(other: bytes) -> None:
    check_same([frame(1) + frame(2) + other + other + frame(3)])


def changed(old: str, new: str, opaque: int = 8) -> bytes:
    """A Java frame with one text of its header replaced and the lengths corrected."""
    raw = java_frame(opaque)
    (header_bytes,) = struct.unpack_from(">i", raw, 4)
    header = raw[8 : 8 + header_bytes].decode()
    assert old in header
    return json_frame(header.replace(old, new, 1).encode())


@pytest.mark.spec("REM-04", "FUZ-04")
def test_json_header_is_decoded_by_template() -> None:
    others = java_frame(8, e="3") + java_frame(9, i="UNIQ_KEY\x01XYZ\x02WAIT\x01true") + java_frame(9, b="Other")
    commands = check_same([java_frame(7) + others])
    assert [type(command) for command in commands] == [Command, TemplateCommand, TemplateCommand, Command]
    assert [command.opaque for command in commands] == [7, 8, 9, 9]
    second = commands[2]
    assert isinstance(second, TemplateCommand)
    assert second.values == (b"0", b"1795246686100") and second.text == "UNIQ_KEY\x01XYZ\x02WAIT\x01true"


@pytest.mark.spec("REM-04", "FUZ-01", "FUZ-04")
@pytest.mark.parametrize(
    "other",
    [
        changed('"e":"0"', '"e":"\\""'[:-2] + '"'),  # a quote that does not end the string
        changed('"e":"0","f":"0"', '"e":"","f":"0" '),
        changed('"i":"UNIQ', '"i":"","x'),  # the value ends early, another field follows
        changed("UNIQ", "UN\x01Q"),  # an unescaped control character
        changed("UNIQ_KEY", 'UNIQ"KEY'),
        changed("UNIQ_KEY", "UNIQ\\u0O1"),
        changed("\\u0002WAIT", "\\ud800WAIT"),  # half a surrogate pair
        changed("\\u0002WAIT", "\u00e9\u00e9\u00e9WAIT"),  # not ASCII, the same length in bytes
        changed('"opaque":8', '"opaque":-'),
        changed('"opaque":88', '"opaque":08', 88),
        changed('"opaque":8888888888', '"opaque":8888888889', 8888888888),
        changed('"opaque":8', '"opaque":x'),
        changed('"e":"0"', '"e":0  '),
        changed('"flag":0', '"flag":2'),
        java_frame(8, after=',"opaque" :5'),
        java_frame(8, after=',"e":"5"'),
        java_frame(8, c="e", d="g"),
    ],
)
def test_json_headers_of_equal_length_are_not_confused(other: bytes) -> None:
    for number in (8, 88, 888):
        check_same([java_frame(number) + java_frame(number + 1) + other])
        check_same([other + java_frame(number) + java_frame(number + 1)])
    check_same([java_frame(8) + java_frame(9) + other[:30], other[30:] + java_frame(9)])
    check_same([java_frame(1_000_000_000) + other + other])


def go_frame(opaque: int, **more: str) -> bytes:
    """A frame with a JSON header in the order of the Go client: opaque before the fields, an empty remark."""
    fields = {"code": SEND, "language": "GO", "version": 317, "opaque": opaque, "flag": 0, "remark": ""}
    text = json.dumps(fields | {"extFields": send_ext(**more)}, separators=(",", ":"))
    return json_frame(text.encode())


LENGTHS = [0, 1, 2, 9, 10, 30, 255, 256, 4000]


@pytest.mark.spec("REM-01", "REM-04", "FUZ-04")
@pytest.mark.parametrize("form", ["binary", "java", "go"])
def test_template_matches_properties_of_any_length(form: str) -> None:
    make = {"binary": frame, "java": java_frame, "go": go_frame}[form]
    texts = [f"TAGS\x01{'t' * length}" for length in LENGTHS] + ["", "x", "\u4e2d\u6587\x01\u00e9", 'a"b\\c']
    frames = [make(10**digits - 1, i=text, e=str(digits)) for digits in range(1, 10) for text in texts]
    commands = check_same([make(0) + b"".join(frames)])
    assert {type(command) for command in commands[1:]} == {TemplateCommand}
    assert len({id(c.template) for c in commands if isinstance(c, TemplateCommand)}) == 1


@pytest.mark.spec("REM-01", "FUZ-04")
@pytest.mark.parametrize("order", ["bicdefghakjm", "mkjihgfedcba", "eagfbcdhjkmi", "iabcdefghjkm", "abcdefghjkm"])
@pytest.mark.parametrize("serialization", Serialization)
def test_template_accepts_any_field_order_and_absent_fields(order: str, serialization: Serialization) -> None:
    stream = b""
    for number in range(6):
        ext = send_ext(e=str(number), g=str(1795246686100 + number), i="TAGS\x01" + "t" * number)
        fields = {name: ext[name] for name in order}
        stream += encode_frame(
            Command(SEND, ext=fields, body=b"body", opaque=8 + number, serialization=serialization, language=0)
        )
    commands = check_same([stream])
    assert [type(command) for command in commands[1:]] == [TemplateCommand] * 5
    assert isinstance(commands[5], TemplateCommand)
    assert commands[5].text == ("TAGS\x01ttttt" if "i" in order else "")


@pytest.mark.spec("FUZ-01", "FUZ-04")
@pytest.mark.parametrize("form", ["java", "go"])
@pytest.mark.parametrize(
    "text",
    [
        '","x":"',
        "\\",
        '"opaque":5',
        ',"opaque":5,',
        '":',
        '":5',
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_properties_resembling_json_are_decoded_as_text(form: str, text: str) -> None:
    make = {"java": java_frame, "go": go_frame}[form]
    stream = b"".join(make(number, i=text * count) for number, count in ((1, 1), (22, 2), (333, 1), (4, 3)))
    commands = check_same([stream])
    assert [command.ext["i"] for command in commands] == [text, text * 2, text, text * 3]
    raw = make(5, i="MARK").replace(b"MARK", text.encode()[:4].ljust(4, b"x"))  # not escaped
    check_same([stream + raw + stream])


mutation = st.tuples(st.integers(0, 400), st.integers(0, 255))
texts = st.sampled_from(["0", "1", "12", "", "TRAN_MSG\x01true", "\u4e2d", '"', "\\", "x" * 9, "999999999", "-1"])
requests = st.builds(
    lambda opaque, code, flag, body, form, more, changes: (
        frame(opaque, code=code, flag=flag, body=body, serialization=form, **more),
        changes,
    ),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([SEND, SEND, SEND, *sorted(CHANGING), int(RequestCode.HEART_BEAT)]),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from([None, b"", b"x", b"body" * 20]),
    st.sampled_from(list(Serialization)),
    st.dictionaries(
        st.sampled_from(["b", "e", "g", "i", "j", "queueId", "queueOffset", "properties"]), texts, max_size=3
    ),
    st.lists(mutation, max_size=1),
)


@pytest.mark.spec("FUZ-01", "FUZ-04", "REM-03")
@given(st.lists(requests, min_size=1, max_size=8), st.lists(st.integers(0, 4000), max_size=6), st.booleans())
def test_templates_do_not_change_decoding_of_any_frames(
    frames: list[tuple[bytes, list[tuple[int, int]]]], cuts: list[int], twice: bool
) -> None:
    stream = b""
    for raw, changes in frames:
        changed = bytearray(raw)
        for at, value in changes:
            changed[at % len(changed)] = value
        stream += (raw if twice else b"") + bytes(changed)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    check_same([stream[start:end] for start, end in itertools.pairwise(places)])


@pytest.mark.spec("REM-03")
def test_templates_do_not_change_decoding_byte_by_byte() -> None:
    stream = b"".join(frame(n, e=str(n % 3)) for n in range(5))
    commands = check_same([stream[at : at + 1] for at in range(len(stream))])
    assert [command.opaque for command in commands] == [0, 1, 2, 3, 4]


@pytest.mark.spec("FUZ-04")
def test_templates_are_bounded_for_ever_changing_headers() -> None:
    templates = HeaderTemplates()
    decoder = FrameDecoder(templates=templates)
    for number in range(1000):
        decoder.feed(frame(number, b=f"topic{number}", i="x" * number))
        assert len(templates) <= TEMPLATES_MAX and len(templates.by_word) <= WORDS_MAX
    for number in range(70_000):
        (command,) = decoder.feed(frame(number))
        if isinstance(command, TemplateCommand):
            return
    raise AssertionError("it never learned again")
