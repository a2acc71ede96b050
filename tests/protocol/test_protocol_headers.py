"""Request and response headers (docs/spec/00 section 5, REM-08, REM-09), and the headers of recorded frames."""

# No `from __future__ import annotations`: `header` evaluates the annotations when it creates a class.

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headertables import REQUEST_HEADERS, RESPONSE_HEADERS, UNUSED_CODES, SendMessageV2
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import HeaderError, MissingField, RemoteProtocolError
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.headers import fields as header_fields
from saturnmq.protocol.headers import messaging as headers
from saturnmq.protocol.headers.fields import camel_case
from saturnmq.protocol.headers.messaging import decode_header

ALL_HEADERS = sorted({*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda cls: cls.__name__)
# Fields that clients add to requests of any code: account, signature, and the request type of a lite pull consumer.
EXTRA_FIELDS = {"AccessKey", "Signature", "ReqT"}

SEND_EXT = {
    "producerGroup": "pg", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "-1",
    "sysFlag": "0", "bornTimestamp": "1795224952230", "flag": "77", "properties": "TAGS\x01a", "reconsumeTimes": "0",
    "unitMode": "false", "maxReconsumeTimes": "16", "batch": "true", "bname": "broker-a",
}  # fmt: skip
LETTERS = dict(zip("abcdefghijklmn", [
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "bname",
], strict=True))  # fmt: skip


def sample(cls: type[headers.Header]) -> dict[str, str]:
    """extFields with a value for every field of cls."""
    texts = {"str": "some text", "i32": "-2147483648", "i64": "9223372036854775807", "bool": "true"}
    return {spec.wire: texts[spec.kind] for spec in cls.FIELDS}


@pytest.mark.spec("REM-08")
def test_every_request_code_has_header_or_documented_reason() -> None:
    assert set(REQUEST_HEADERS) | set(UNUSED_CODES) == set(RequestCode)
    assert not set(REQUEST_HEADERS) & set(UNUSED_CODES)
    assert all(UNUSED_CODES.values())


@pytest.mark.spec("REM-09")
@pytest.mark.parametrize("cls", ALL_HEADERS, ids=lambda cls: cls.__name__)
def test_full_header_round_trips(cls: type[headers.Header]) -> None:
    ext = sample(cls)
    decoded = decode_header(cls, ext)
    assert decoded.to_ext() == ext
    assert decode_header(cls, decoded.to_ext()) == decoded
    assert type(decoded) is cls


@pytest.mark.spec("REM-08")
@pytest.mark.parametrize("cls", ALL_HEADERS, ids=lambda cls: cls.__name__)
def test_missing_required_field_is_named_and_optional_have_defaults(cls: type[headers.Header]) -> None:
    required = {spec.wire: sample(cls)[spec.wire] for spec in cls.FIELDS if spec.required}
    decoded = decode_header(cls, required)
    for spec in cls.FIELDS:
        if not spec.required:
            assert getattr(decoded, spec.attribute) == spec.default
            assert spec.default == {"str": None, "i32": 0, "i64": 0, "bool": False}[spec.kind] or spec.default is None
    for wire in required:
        without = {name: text for name, text in required.items() if name != wire}
        with pytest.raises(MissingField) as caught:
            decode_header(cls, without)
        assert str(caught.value) == f"the custom field <{wire}> is null"


@pytest.mark.spec("REM-08")
@pytest.mark.parametrize("cls", ALL_HEADERS, ids=lambda cls: cls.__name__)
def test_unknown_header_fields_are_ignored(cls: type[headers.Header]) -> None:
    ext = sample(cls)
    assert decode_header(cls, {**ext, "fromTheFuture": "1", "Signature": "x"}) == decode_header(cls, ext)


@pytest.mark.spec("REM-09")
@pytest.mark.parametrize("cls", ALL_HEADERS, ids=lambda cls: cls.__name__)
def test_invalid_number_error_names_field_value_and_range(cls: type[headers.Header]) -> None:
    bad = ["x", "1.5", "1_0", " 1", "0x10", "²", "--1", "+", "9" * 30, "9" * 10_000]
    limits = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)}
    for spec in cls.FIELDS:
        if spec.kind not in limits:
            continue
        low, high = limits[spec.kind]
        for text in (*bad, str(low - 1), str(high + 1)):
            with pytest.raises(HeaderError) as caught:
                decode_header(cls, {**sample(cls), spec.wire: text})
            assert spec.wire in str(caught.value)
            assert text[:8] in str(caught.value)
            assert f"{low}..{high}" in str(caught.value)
            assert len(str(caught.value)) < 200
        for number in (low, -1, 0, 7, high):
            ext = {**sample(cls), spec.wire: str(number)}
            assert getattr(decode_header(cls, ext), spec.attribute) == number


@pytest.mark.spec("REM-09")
def test_json_numbers_and_booleans_are_accepted_as_fields() -> None:
    ext: dict[str, Any] = {**SEND_EXT, "queueId": 3, "bornTimestamp": 1795224952230, "batch": True, "topic": 77}
    header = decode_header(headers.SendMessage, ext)
    assert (header.queue_id, header.born_timestamp, header.batch, header.topic) == (3, 1795224952230, True, "77")
    for field, value in (("queueId", 1.5), ("queueId", True), ("topic", {}), ("topic", None)):
        with pytest.raises(HeaderError):
            decode_header(headers.SendMessage, {**SEND_EXT, field: value})


@pytest.mark.spec("REM-09")
@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("True", True), ("false", False), ("1", False), ("", False)]
)
def test_booleans_parse_like_apache(text: str, value: bool) -> None:
    assert decode_header(headers.SendMessage, {**SEND_EXT, "batch": text}).batch is value
    assert decode_header(headers.GetBrokerConsumeStats, {"isOrder": "true"}).to_ext() == {"isOrder": "true"}


@pytest.mark.spec("REM-08")
def test_empty_number_counts_as_absent() -> None:
    assert decode_header(headers.SendMessage, {**SEND_EXT, "maxReconsumeTimes": ""}).max_reconsume_times is None
    with pytest.raises(MissingField, match="the custom field <queueId> is null"):
        decode_header(headers.SendMessage, {**SEND_EXT, "queueId": ""})


@pytest.mark.spec("REM-09")
def test_one_letter_fields_decode_to_same_send_header() -> None:
    long_form = decode_header(headers.SendMessage, SEND_EXT)
    letters = {letter: SEND_EXT[name] for letter, name in LETTERS.items()}
    by_code = decode_header(REQUEST_HEADERS[RequestCode.SEND_MESSAGE_V2], letters)
    assert isinstance(by_code, headers.SendMessage)
    names = [field.name for field in dataclasses.fields(headers.SendMessage)]
    assert [getattr(by_code, name) for name in names] == [getattr(long_form, name) for name in names]
    assert by_code.to_ext() == letters
    assert list(by_code.to_ext()) == sorted(letters)  # the order in which Java writes them
    with pytest.raises(MissingField, match="<e> is null"):
        decode_header(SendMessageV2, {name: text for name, text in letters.items() if name != "e"})


@pytest.mark.spec("REM-09")
def test_golden_request_headers_round_trip(whole_frames: list[Any]) -> None:
    seen = set()
    for frame in whole_frames:
        if frame.is_response or frame.request_code not in list(RequestCode):
            continue
        (command,) = FrameDecoder().feed(frame.raw)
        cls = REQUEST_HEADERS[RequestCode(frame.request_code)]
        fields = {name: text for name, text in command.ext.items() if name not in EXTRA_FIELDS and text != ""}
        known = {spec.wire for spec in cls.FIELDS}
        assert fields.keys() <= known, frame.where
        assert decode_header(cls, command.ext).to_ext() == {**defaults(cls, fields), **fields}, frame.where
        seen.add(frame.request_code)
    assert len(seen) >= 60


@pytest.mark.spec("REM-09")
def test_golden_response_headers_round_trip(whole_frames: list[Any]) -> None:
    seen = set()
    for frame in whole_frames:
        code = frame.request_code
        if not frame.is_response or frame.facts["code"] != 0 or code not in list(RequestCode):
            continue
        (command,) = FrameDecoder().feed(frame.raw)
        cls = RESPONSE_HEADERS.get(RequestCode(code), headers.NoFields)
        fields = {name: text for name, text in command.ext.items() if text != ""}
        assert decode_header(cls, command.ext).to_ext() == fields, frame.where
        seen.add(code)
    assert len(seen) >= 50


def defaults(cls: type[headers.Header], present: dict[str, str]) -> dict[str, str]:
    """The optional fields that cls writes even if the sender omitted them: Java primitives, with their default values."""
    texts = {True: "true", False: "false"}
    return {
        spec.wire: texts[spec.default] if spec.kind == "bool" else str(spec.default)
        for spec in cls.FIELDS
        if not spec.required and spec.default is not None and spec.wire not in present
    }


def test_wire_names_are_camel_case_except_apache_special_cases() -> None:
    assert camel_case("suspend_timeout_millis") == "suspendTimeoutMillis"
    special = {spec.wire for cls in ALL_HEADERS for spec in cls.FIELDS if spec.wire != camel_case(spec.attribute)}
    assert special - set("abcdefghijklmn") == {"bname", "clientID", "MSG_REGION", "TRACE_ON", "_UNIQUE_KEY_QUERY"}


def test_codec_functions_are_compiled_once_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    for name in ("compile_decoder", "compile_encoder"):
        original = getattr(header_fields, name)
        monkeypatch.setattr(
            header_fields, name, lambda specs, make=original, name=name: compiled.append(name) or make(specs)
        )

    @header_fields.header()
    class Fresh(headers.Header):
        topic: str

    assert compiled == []
    first_decode, first_to_ext = Fresh.decode, Fresh.to_ext
    for _ in range(3):
        made = first_decode({"topic": "t"})
        assert made == Fresh.decode({"topic": "t"}) == Fresh(topic="t")
        assert first_to_ext(made) == made.to_ext() == {"topic": "t"}
    assert compiled == ["compile_decoder", "compile_encoder"]


def test_header_repr_hides_secret_key() -> None:
    text = repr(headers.UpdateAndCreateAclConfig(access_key="ak", secret_key="hunter22"))
    assert "hunter22" not in text
    assert "access_key='ak'" in text


@pytest.mark.spec("REM-08", "REM-09")
@given(
    st.sampled_from(ALL_HEADERS),
    st.data(),
)
def test_any_ext_fields_decode_or_raise_protocol_error(cls: type[headers.Header], data: st.DataObject) -> None:
    values = st.text(max_size=12) | st.integers().map(str) | st.sampled_from(["", "true", "-1", "2147483648"])
    ext = data.draw(st.fixed_dictionaries({}, optional={spec.wire: values for spec in cls.FIELDS}))
    try:
        decoded = decode_header(cls, ext)
    except RemoteProtocolError:
        return
    assert decode_header(cls, decoded.to_ext()) == decoded
