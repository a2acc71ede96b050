"""Decoding records to Arrow: every column, on the fast and the slow path, and corrupt bytes."""

from __future__ import annotations

import contextlib
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.message import Host, Message, decode_record, encode_properties, encode_record
from saturnmq.spark import decode
from saturnmq.spark.decode import TYPES, Selection, arrow_schema, decode_block, rebatched, record_positions
from saturnmq.spark.options import COLUMNS, DEFAULT_COLUMNS

ALL = Selection()


def record(n: int, **more: Any) -> bytes:
    properties = b"KEYS\x01k%d\x02TAGS\x01%s\x02UNIQ_KEY\x01U%d" % (n, b"ab"[n % 2 : n % 2 + 1], n)
    fields: dict[str, Any] = {"topic": "T", "body": b"body%d" % n, "properties_raw": properties, "queue_id": 3, "flag": 9,
                              "born_timestamp_ms": 1000 + n, "born_host": Host("1.2.3.4", 5),
                              "store_host": Host("5.6.7.8", 9), "queue_offset": n, "physical_offset": n * 100,
                              "store_timestamp_ms": 2000 + n}  # fmt: skip
    return encode_record(Message(**(fields | more)))


@pytest.mark.spec("SRC-08", "SRC-09", "SPK-12")
def test_decode_block_returns_columns_in_requested_order() -> None:
    body = b"".join(record(n) for n in range(10))
    batch = decode_block(body, COLUMNS, "broker-x", Selection(1, 9))[0]
    assert batch.num_rows == 8
    assert batch.schema.equals(arrow_schema(COLUMNS)) and all(f.nullable for f in batch.schema)
    row = batch.to_pylist()[0]
    assert row["body"] == b"body1" and row["queueOffset"] == 1 and row["brokerName"] == "broker-x"
    assert (row["tags"], row["keys"], row["uniqKey"]) == ("b", "k1", "U1")
    assert row["storeTimestamp"].timestamp() == 2.001 and row["storeTimestamp"].tzinfo is not None
    assert (row["bornHost"], row["storeHost"], row["queueId"], row["flag"]) == ("1.2.3.4:5", "5.6.7.8:9", 3, 9)
    assert dict(row["propertiesMap"]) == {"KEYS": "k1", "TAGS": "b", "UNIQ_KEY": "U1"}
    assert row["storeSize"] == len(record(1)) and row["bodyCrc"] == zlib.crc32(b"body1") & 0x7FFFFFFF
    assert row["offsetMsgId"] == "05060708000000090000000000000064"
    assert set(TYPES) == {*COLUMNS, "properties:json", "properties:map"} and set(DEFAULT_COLUMNS) < set(COLUMNS)
    assert [b.num_rows for b in rebatched(iter([batch]), 3)] == [3, 3, 2]


@pytest.mark.spec("SRC-03", "SRC-12")
def test_selection_filters_by_tags_times_and_keys() -> None:
    body = b"".join(record(n) for n in range(10))

    def keys(**select: Any) -> list[str]:
        return decode_block(body, ("keys",), "b", Selection(**select))[0].column(0).to_pylist()

    assert keys(tags=frozenset("a"), start_ms=2004) == ["k4", "k6", "k8"]
    assert keys(start_ms=2002, end_ms=2004) == ["k2", "k3"]
    assert keys(keys=frozenset(["k7"])) == ["k7"] and keys(uniq_keys=frozenset(["U1", "none"])) == ["k1"]
    assert keys(topics=frozenset(["other"])) == []


@pytest.mark.spec("SRC-09")
def test_compressed_body_is_decompressed_or_kept() -> None:
    body = record(1) + record(2, body=zlib.compress(b"x" * 100), sys_flag=0x301)
    assert decode_block(body, ("body",), "b", ALL)[0].column(0).to_pylist() == [b"body1", b"x" * 100]
    left = decode_block(body, ("body",), "b", ALL, decompressed=False)[0].column(0).to_pylist()
    assert zlib.decompress(left[1]) == b"x" * 100


NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "TAG", "XTAGS", "AGS", "a"])
VALUES = st.text(st.characters(exclude_characters="\x02", codec="utf-8"), max_size=5)
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=5)
ROWS = st.lists(st.tuples(PAIRS, st.binary(max_size=30), st.booleans()), min_size=1, max_size=8)


@pytest.mark.spec("SRC-09")
@given(ROWS, st.integers(0, 3), st.sampled_from([frozenset(), frozenset(["x"]), frozenset(["", "0"])]))
def test_decode_fast_path_equals_slow_path(rows: Any, begin: int, tags: frozenset[str]) -> None:
    """The same bytes through numpy and record by record, including names that are parts of others and repeated names."""
    body = b""
    for n, (pairs, content, odd) in enumerate(rows):
        raw = b"\x02".join(f"{name}\x01{value}".encode() for name, value in pairs)
        body += record(n, properties_raw=raw + (b"\x02" if odd else b""), body=content)
    select = Selection(begin, 7, tags)
    at = record_positions(body)
    fast = decode._Fast.of(body, at)
    assert fast is not None
    fast.select(select)
    slow = decode._Slow([decode_record(body, int(p)) for p in at], at)
    slow.select(select)
    for name in COLUMNS:
        if name not in ("brokerName", "body"):
            assert fast.column(name).equals(slow.column(name)), name
    assert fast.bodies(True).equals(slow.bodies(True))


@pytest.mark.spec("SRC-09")
def test_decode_handles_ipv6_hosts_and_invalid_utf8() -> None:
    body = record(1, born_host=Host("::1", 7)) + record(2)
    batch = decode_block(body, ("bornHost", "keys"), "b", ALL)[0]
    assert batch.to_pylist() == [{"bornHost": "[::1]:7", "keys": "k1"}, {"bornHost": "1.2.3.4:5", "keys": "k2"}]
    strange = decode_block(record(1, properties_raw=b"KEYS\x01\xff\x02TAGS\x01t"), ("keys", "tags"), "b", ALL)[0]
    assert strange.to_pylist() == [{"keys": "�", "tags": "t"}]
    assert decode_block(b"", COLUMNS, "b", ALL)[0].num_rows == 0


@pytest.mark.spec("SRC-09")
@given(
    st.binary(max_size=200),
    st.integers(0, 300),
    st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255)), max_size=3),
)
def test_decode_arbitrary_bytes_raise_only_message_error(junk: bytes, cut: int, changes: list[tuple[int, int]]) -> None:
    body = bytearray((record(1) + record(2))[:cut] + junk)
    for at, value in changes:
        if at < len(body):
            body[at] = value
    with contextlib.suppress(MessageError):
        batch = decode_block(bytes(body), COLUMNS, "b", ALL)[0]
        batch.validate(full=True)
        assert batch.num_rows <= 4


@pytest.mark.spec("SRC-15")
def test_wrong_crc_is_reported_only_on_request() -> None:
    body = bytearray(record(1) + record(2))
    body[record(1).index(b"body1") + 4] ^= 1
    assert decode_block(bytes(body), ("keys",), "b", ALL)[0].num_rows == 2
    with pytest.raises(MessageError, match="record at 0: body CRC"):
        decode_block(bytes(body), ("keys",), "b", ALL, check_crc=True)
    assert decode_block(bytes(body), ("keys",), "b", ALL, positions=np.array([len(record(1))]))[0].num_rows == 1
    assert encode_properties({"a": "b"}) == b"a\x01b" and isinstance(arrow_schema(("body",)), pa.Schema)
