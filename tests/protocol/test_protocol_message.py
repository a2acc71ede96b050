"""Message records, properties, batches and hashes (docs/spec/00 section 4), and commit logs written by Apache RocketMQ."""

from __future__ import annotations

import ipaddress
import struct
import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from saturnmq.protocol import message as messages
from saturnmq.protocol.codes import SysFlag
from saturnmq.protocol.errors import LocalProtocolError, MessageError
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.message import (
    BatchItem,
    Host,
    Message,
    body_crc,
    compression_type,
    decode_batch,
    decode_properties,
    decode_record,
    decode_records,
    encode_batch,
    encode_properties,
    encode_record,
    java_hash,
)

PLAIN = Message(
    "TopicTest",
    b"Hello RocketMQ 0",
    encode_properties({"TAGS": "TagA", "UNIQ_KEY": "C0A80103"}),
    queue_id=3,
    flag=7,
    sys_flag=0,
    born_timestamp_ms=1600000000001,
    born_host=Host("192.168.1.3", 40000),
    store_host=Host("192.168.1.4", 10911),
    reconsume_times=2,
    prepared_transaction_offset=99,
    queue_offset=5,
    physical_offset=1024,
    store_timestamp_ms=1600000000002,
)


def same(left: Message, right: Message) -> bool:
    """Whether two messages are equal in all fields that encode_record does not compute."""
    names = (
        "topic", "body", "properties_raw", "queue_id", "flag", "born_timestamp_ms", "born_host", "store_host",
        "reconsume_times", "prepared_transaction_offset", "queue_offset", "physical_offset", "store_timestamp_ms",
    )  # fmt: skip
    return all(getattr(left, name) == getattr(right, name) for name in names)


@pytest.mark.spec("MSG-02")
def test_record_layout_matches_documented_offsets() -> None:
    raw = encode_record(PLAIN)
    assert len(raw) == 91 + 16 + 9 + len(PLAIN.properties_raw) == struct.unpack_from(">i", raw, 0)[0]
    assert raw[4:8] == bytes.fromhex("DAA320A7")
    assert struct.unpack_from(">iiiqqi", raw, 8) == (613185359, 3, 7, 5, 1024, 0)
    assert struct.unpack_from(">q", raw, 40) == (1600000000001,)
    assert raw[48:56] == bytes([192, 168, 1, 3]) + struct.pack(">i", 40000)
    assert struct.unpack_from(">q", raw, 56) == (1600000000002,)
    assert raw[64:72] == bytes([192, 168, 1, 4]) + struct.pack(">i", 10911)
    assert struct.unpack_from(">iqi", raw, 72) == (2, 99, 16)
    assert raw[88:104] == PLAIN.body
    assert raw[104:114] == b"\x09TopicTest"
    assert raw[114:] == struct.pack(">h", len(PLAIN.properties_raw)) + PLAIN.properties_raw


@pytest.mark.spec("MSG-02")
def test_position_constants_match_record_layout() -> None:
    raw = encode_record(PLAIN)
    read = struct.unpack_from
    assert read(">i", raw, messages.position_of("queue_id")) == (3,)
    assert read(">q", raw, messages.position_of("queue_offset")) == (5,)
    assert read(">q", raw, messages.position_of("physical_offset")) == (1024,)
    assert read(">i", raw, messages.position_of("sys_flag")) == (0,)
    assert read(">q", raw, messages.position_of("born_timestamp")) == (1600000000001,)
    assert read(">q", raw, messages.position_of("store_timestamp")) == (1600000000002,)
    assert messages.head_struct("magic", "queue_offset").unpack_from(raw) == (messages.MESSAGE_MAGIC, 5)
    assert messages.RECORD_V4.size == 88
    assert messages.RECORD_FIXED_BYTES == 91
    assert messages.BLANK_MAGIC & 0xFFFFFFFF == 0xCBD43194


@pytest.mark.spec("MSG-02")
@pytest.mark.parametrize("born", ["10.0.0.1", "2001:db8::1"])
@pytest.mark.parametrize("store", ["10.0.0.2", "fe80::2"])
def test_ipv6_hosts_set_sys_flag_bits_and_extend_record(born: str, store: str) -> None:
    sent = Message("T", b"body", born_host=Host(born, 65535), store_host=Host(store, 1), store_timestamp_ms=7)
    raw = encode_record(sent)
    assert len(raw) == 91 + 4 + 1 + 12 * (":" in born) + 12 * (":" in store)
    got = decode_record(raw)
    born_end = 48 + (20 if ":" in born else 8)
    assert raw[48:born_end] == ipaddress.ip_address(born).packed + struct.pack(">i", 65535)
    assert struct.unpack_from(">q", raw, born_end) == (7,)
    store_end = born_end + 8 + (20 if ":" in store else 8)
    assert raw[born_end + 8 : store_end] == ipaddress.ip_address(store).packed + struct.pack(">i", 1)
    assert struct.unpack_from(">q", raw, messages.position_of("store_timestamp", got.sys_flag)) == (7,)
    assert bool(got.sys_flag & SysFlag.BORN_HOST_V6) == (":" in born)
    assert bool(got.sys_flag & SysFlag.STORE_HOST_V6) == (":" in store)
    assert same(got, sent)


@pytest.mark.spec("MSG-02", "MSG-06")
def test_golden_records_decode_to_recorded_fields(golden_records: list[Any]) -> None:
    for where, log, facts in golden_records:
        if facts.get("blank"):
            assert struct.unpack_from(">ii", log, facts["at"]) == (facts["size"], messages.BLANK_MAGIC), where
            with pytest.raises(MessageError):
                decode_record(log, facts["at"])
            continue
        got = decode_record(log, facts["at"], check_crc=True)
        assert (got.store_bytes, got.body_crc, got.queue_id) == (facts["size"], facts["body_crc"], facts["queue_id"]), (
            where
        )
        assert (got.flag, got.sys_flag, got.queue_offset) == (facts["flag"], facts["sys_flag"], facts["queue_offset"])
        assert (got.physical_offset, got.topic) == (facts["physical_offset"], facts["topic"]), where
        assert (got.born_timestamp_ms, got.store_timestamp_ms) == (facts["born_ts"], facts["store_ts"]), where
        assert f"/{got.born_host.ip}:{got.born_host.port}" == facts["born_host"], where
        assert f"/{got.store_host.ip}:{got.store_host.port}" == facts["store_host"], where
        assert got.reconsume_times == facts["reconsume_times"], where
        assert got.prepared_transaction_offset == facts["prepared_tx_offset"], where
        assert len(got.body) == facts["body_len"], where
        assert bytes(got.body).hex().startswith(facts["body_head"]), where
        assert got.properties == facts["properties"], where


@pytest.mark.spec("MSG-01", "MSG-02")
def test_golden_records_reencode_to_identical_bytes(golden_records: list[Any]) -> None:
    for where, log, facts in golden_records:
        if facts.get("blank"):
            continue
        raw = log[facts["at"] : facts["at"] + facts["size"]]
        got = decode_record(log, facts["at"])
        assert encode_record(got) == raw, where
        assert decode_properties(encode_properties(got.properties)) == got.properties, where


@pytest.mark.spec("MSG-02")
def test_golden_pull_and_query_bodies_reencode_to_identical_bytes(whole_frames: list[Any]) -> None:
    bodies = 0
    for frame in whole_frames:
        is_records = frame.is_response and frame.request_code in (11, 12, 33) and frame.facts["code"] == 0
        if not (is_records or (not frame.is_response and frame.request_code in (39, 309))):
            continue
        (command,) = FrameDecoder().feed(frame.raw)
        if not command.body:
            continue
        got = decode_records(command.body, check_crc=True)
        assert b"".join(map(encode_record, got)) == command.body, frame.where
        bodies += 1
    assert bodies > 20


@pytest.mark.spec("MSG-06")
def test_body_crc_matches_documented_value() -> None:
    assert body_crc(b"Hello RocketMQ 0") == 613185359
    assert body_crc(b"") == 0
    high = next(bytes([n]) for n in range(256) if zlib.crc32(bytes([n])) >= 2**31)
    assert body_crc(high) == zlib.crc32(high) - 2**31


@pytest.mark.spec("MSG-06")
def test_body_crc_covers_stored_bytes_and_is_checked_on_request() -> None:
    packed = zlib.compress(b"x" * 100)
    raw = bytearray(encode_record(Message("T", packed, sys_flag=SysFlag.COMPRESSED)))
    assert decode_record(raw, check_crc=True).body_crc == zlib.crc32(packed) & 0x7FFFFFFF
    raw[90] ^= 1
    assert decode_record(raw).body != packed
    with pytest.raises(MessageError, match="CRC"):
        decode_record(raw, check_crc=True)


@pytest.mark.spec("MSG-02")
def test_truncated_record_is_rejected() -> None:
    raw = encode_record(PLAIN)
    for size in range(len(raw)):
        with pytest.raises(MessageError):
            decode_record(raw[:size])
        if size:
            with pytest.raises(MessageError):
                decode_records(raw + raw[:size])
    assert len(decode_records(raw + raw)) == 2
    assert decode_records(b"") == []


@pytest.mark.spec("MSG-02")
@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 0),
        (0, -1),
        (0, 90),
        (0, 2**31 - 1),
        (4, messages.BLANK_MAGIC),
        (84, -1),
        (84, 2**31 - 1),
        (84, 17),
        (84, 15),
    ],
)
def test_record_with_wrong_lengths_is_rejected(at: int, value: int) -> None:
    raw = bytearray(encode_record(PLAIN))
    struct.pack_into(">i", raw, at, value)
    with pytest.raises(MessageError):
        decode_record(raw)
    with pytest.raises(MessageError):
        decode_records(raw)


@pytest.mark.spec("MSG-02")
def test_record_with_topic_over_127_bytes_is_rejected() -> None:
    raw = bytearray(encode_record(Message("T", b"", bytes(200))))
    raw[88:93] = bytes([199]) + bytes(4)  # topic length, then the first bytes of the topic
    with pytest.raises(MessageError, match="topic of 199 bytes"):
        decode_record(raw)


@pytest.mark.spec("MSG-02")
def test_unencodable_record_raises_local_error() -> None:
    encode_record(Message("t" * 127, b"", bytes(32767)))
    for bad in (
        Message("t" * 128, b""),
        Message("é" * 64, b""),
        Message("T", b"", bytes(32768)),
        Message("T", b"", born_host=Host("not an address", 1)),
    ):
        with pytest.raises(LocalProtocolError):
            encode_record(bad)


hosts = st.builds(Host, st.ip_addresses().map(str), st.integers(0, 65535))
i64 = st.integers(-(2**63), 2**63 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
anything = st.builds(
    Message,
    st.text(max_size=30).filter(lambda text: len(text.encode()) <= 127),
    st.binary(max_size=200),
    st.binary(max_size=200),
    queue_id=i32,
    flag=i32,
    sys_flag=st.integers(0, 0x7FF),
    born_timestamp_ms=i64,
    born_host=hosts,
    store_host=hosts,
    reconsume_times=i32,
    prepared_transaction_offset=i64,
    queue_offset=i64,
    physical_offset=i64,
    store_timestamp_ms=i64,
)


@pytest.mark.spec("MSG-02")
@given(st.lists(anything, max_size=4))
def test_any_messages_round_trip(sent: list[Message]) -> None:
    got = decode_records(b"".join(map(encode_record, sent)), check_crc=True)
    assert len(got) == len(sent)
    for ours, theirs in zip(got, sent, strict=True):
        assert same(ours, theirs)
        host_bits = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
        assert ours.sys_flag & ~host_bits == theirs.sys_flag & ~host_bits
        assert bool(ours.sys_flag & SysFlag.BORN_HOST_V6) == (ipaddress.ip_address(theirs.born_host.ip).version == 6)


@pytest.mark.spec("MSG-01")
def test_properties_omit_trailing_separator_and_none_values() -> None:
    assert encode_properties({"a": "1", "b": None, "c": "x\x01y"}) == b"a\x011\x02c\x01x\x01y"
    assert encode_properties({}) == b""


@pytest.mark.spec("MSG-01")
@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"a\x011", {"a": "1"}),
        (b"a\x011\x02", {"a": "1"}),
        (b"a\x011\x02b\x012\x02", {"a": "1", "b": "2"}),
        (b"a\x01x\x01y", {"a": "x\x01y"}),
        (b"\x01v\x02a\x01\x02b\x02\x02c\x013", {"c": "3"}),
        (b"a\x011\x02a\x012", {"a": "2"}),
        ("名\x01值".encode(), {"名": "值"}),
    ],
)
def test_properties_parse_like_apache(raw: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(raw) == expected
    assert decode_properties(memoryview(raw)) == expected
    assert decode_properties(raw.decode()) == expected
    assert Message("T", b"", raw).properties == expected


@pytest.mark.spec("MSG-01")
def test_properties_are_limited_to_32767_bytes() -> None:
    assert decode_record(encode_record(Message("T", b"", b"a\x01" + b"x" * 32765))).properties["a"] == "x" * 32765
    with pytest.raises(LocalProtocolError, match="at most 32767"):
        encode_record(Message("T", b"", b"a\x01" + b"x" * 32766))


@pytest.mark.spec("MSG-01")
def test_properties_that_are_not_utf8_are_rejected() -> None:
    with pytest.raises(MessageError):
        decode_properties(b"a\x01\xff")


property_text = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)


@pytest.mark.spec("MSG-01")
@given(st.dictionaries(property_text, property_text, max_size=8))
@example({"a": " ", " ": "b"})
def test_any_properties_round_trip(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    assert decode_properties(raw + b"\x02") == properties


@pytest.mark.spec("MSG-03")
def test_batch_matches_documented_bytes() -> None:
    raw = bytes.fromhex(
        "0000001d 00000000 00000000 00000000 00000001 41 0006 544147530154"
        "00000018 00000000 00000000 00000000 00000002 4243 0000"
    )
    items = [BatchItem(b"A", b"TAGS\x01T"), BatchItem(b"BC")]
    assert encode_batch(items) == raw
    assert decode_batch(raw) == items


@pytest.mark.spec("MSG-03")
def test_batch_decoder_ignores_magic_and_crc() -> None:
    raw = bytearray(encode_batch([BatchItem(b"A", flag=-3)]))
    struct.pack_into(">ii", raw, 4, messages.MESSAGE_MAGIC, 77)
    assert decode_batch(bytes(raw)) == [BatchItem(b"A", flag=-3)]


@pytest.mark.spec("MSG-03")
def test_golden_batch_entries_reencode_to_identical_bytes(golden_frames: list[Any]) -> None:
    entries = 0
    for frame in golden_frames:  # the recorded batches are truncated, but their first entries are complete
        if frame.request_code != 320 or frame.is_response:
            continue
        body = frame.raw[8 + frame.facts["header_len"] :]
        end = 0
        while len(body) - end >= 4 and end + struct.unpack_from(">i", body, end)[0] <= len(body):
            end += struct.unpack_from(">i", body, end)[0]
        items = decode_batch(body[:end])
        assert encode_batch(items) == body[:end], frame.where
        assert all(decode_properties(item.properties_raw).get("UNIQ_KEY") for item in items), frame.where
        entries += len(items)
    assert entries > 3


@pytest.mark.spec("MSG-03")
def test_truncated_batch_or_wrong_length_is_rejected() -> None:
    raw = encode_batch([BatchItem(b"AB", b"k\x01v", 1)])
    for size in range(1, len(raw)):
        with pytest.raises(MessageError):
            decode_batch(raw[:size])
    for at, value in ((0, 0), (0, -1), (0, len(raw) + 1), (0, 22), (16, -1), (16, 3), (16, 2**31 - 1)):
        bad = bytearray(raw)
        struct.pack_into(">i", bad, at, value)
        with pytest.raises(MessageError):
            decode_batch(bytes(bad))
    bad = bytearray(raw)
    struct.pack_into(">h", bad, 22, -1)
    with pytest.raises(MessageError):
        decode_batch(bytes(bad))
    assert decode_batch(b"") == []
    with pytest.raises(LocalProtocolError):
        encode_batch([BatchItem(b"", bytes(32768))])


@pytest.mark.spec("MSG-03")
@given(st.lists(st.builds(BatchItem, st.binary(max_size=50), st.binary(max_size=50), i32), max_size=5))
def test_any_batch_round_trips(items: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(items)) == items


@pytest.mark.spec("MSG-07")
@pytest.mark.parametrize(
    ("sys_flag", "expected"),
    [
        (0x000, None),
        (0x300, None),
        (0x001, SysFlag.ZLIB),
        (0x301, SysFlag.ZLIB),
        (0x101, SysFlag.LZ4),
        (0x201, SysFlag.ZSTD),
        (0x00D, SysFlag.ZLIB),
        (0x0F3, SysFlag.ZLIB),
    ],
)
def test_compression_type_comes_from_bits_8_to_10(sys_flag: int, expected: SysFlag | None) -> None:
    assert compression_type(sys_flag) == expected


@pytest.mark.spec("MSG-07")
@pytest.mark.parametrize("sys_flag", [0x401, 0x501, 0x601, 0x701])
def test_unknown_compression_type_is_rejected(sys_flag: int) -> None:
    with pytest.raises(MessageError, match="unknown"):
        compression_type(sys_flag)


@pytest.mark.spec("MSG-07")
def test_compressed_golden_record_is_zlib(golden_records: list[Any]) -> None:
    compressed = 0
    for where, log, facts in golden_records:
        if not facts.get("blank") and facts["sys_flag"] & 1:
            got = decode_record(log, facts["at"])
            assert compression_type(got.sys_flag) == SysFlag.ZLIB, where
            assert len(zlib.decompress(got.body)) > len(got.body), where
            compressed += 1
    assert compressed


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("A", 65), ("TagA", 2598919), ("Aa", 2112), ("BB", 2112), ("\U0001f600", 1772899)],
)
def test_java_hash_matches_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@given(st.text(max_size=40))
def test_java_hash_equals_reference_implementation(text: str) -> None:
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        value = (31 * value + raw[at] * 256 + raw[at + 1]) % 2**32
    assert java_hash(text) == (value - 2**32 if value >= 2**31 else value)
