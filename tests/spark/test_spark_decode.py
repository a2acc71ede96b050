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
from saturnmq.spark.decode import (
    TYPES,
    Selection,
    arrow_schema,
    decode_block,
    readable_parts,
    rebatched,
    record_positions,
)
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
    assert batch.schema.field("storeTimestamp").type == pa.timestamp("us", tz="UTC")
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


SELECTIONS = [
    ({"begin": 2, "end": 4}, [2, 3]),
    ({"start_ms": 2002, "end_ms": 2004}, [2, 3]),
    ({"queue_ids": frozenset([4])}, [1, 5]),
    ({"queue_ids": frozenset()}, []),
    ({"topics": frozenset(["T"])}, [0, 1, 2, 3, 4]),
    ({"topics": frozenset(["RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"])}, [5, 6]),
    ({"tags": frozenset(["b"])}, [1, 3, 5]),
    ({"keys": frozenset(["k2", "none"])}, [2]),
    ({"keys": frozenset(["second"])}, [4]),
    ({"uniq_keys": frozenset(["U3"])}, [3]),
    ({"consumer_view": True}, [0, 2, 4]),
    ({"consumer_view": True, "tags": frozenset(["a"]), "begin": 1, "end": 4}, [2]),
]


def test_positions_of_records_that_do_not_fill_their_block_are_refused() -> None:
    raw = record(1)
    assert list(record_positions(raw + record(2))) == [0, len(raw)] and list(record_positions(b"")) == []
    for block, problem in (
        (raw + b"x", f"a block of records ends inside a record at {len(raw)}"),
        (raw + raw[:-1], f"record at {len(raw)} claims {len(raw)} bytes, {len(raw) - 1} are there"),
        (raw + bytes(len(raw)), f"record at {len(raw)} claims 0 bytes"),
    ):
        with pytest.raises(MessageError, match=f"^{problem}$"):
            record_positions(block)


@pytest.mark.parametrize("slow", [False, True], ids=["fast path", "slow path"])
@pytest.mark.parametrize(("select", "offsets"), SELECTIONS)
def test_selected_records_are_the_same_on_both_paths(select: dict[str, Any], offsets: list[int], slow: bool) -> None:
    """Transaction states of sysFlag: 4 prepared, 8 committed, 12 rolled back."""
    body = b"".join(
        [
            record(0),
            record(1, sys_flag=4, queue_id=4),
            record(2, sys_flag=8),
            record(3, sys_flag=12),
            record(4, properties_raw=b"KEYS\x01first second\x02TAGS\x01a"),
            record(5, topic="RMQ_SYS_TRANS_HALF_TOPIC", queue_id=4),
            record(6, topic="SCHEDULE_TOPIC_XXXX"),
            record(9, born_host=Host("::1", 7), topic="V6", queue_id=9, store_timestamp_ms=0) if slow else b"",
        ]
    )
    select = {"end": 9} | select
    assert decode_block(body, ("queueOffset",), "b", Selection(**select))[0].column(0).to_pylist() == offsets


@pytest.mark.parametrize("slow", [False, True], ids=["fast path", "slow path"])
def test_batch_ends_when_decompressed_bodies_reach_their_limit(monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    assert decode.DECOMPRESSED_BYTES == 8 << 20
    monkeypatch.setattr(decode, "DECOMPRESSED_BYTES", 200)
    hosts = {"born_host": Host("::1", 7)} if slow else {}
    body = b"".join(record(n, body=zlib.compress(b"x" * 100), sys_flag=0x301, **hosts) for n in range(5))
    batch, covered = decode_block(body, ("queueOffset", "body", "keys"), "b", Selection(begin=1))
    assert [row["queueOffset"] for row in batch.to_pylist()] == [1, 2] and batch.column(2).to_pylist() == ["k1", "k2"]
    assert covered == 3, "also the one that was not selected"
    assert decode_block(body, ("queueOffset",), "b", Selection(begin=1))[1] == 5, "no body is decompressed"
    batch, covered = decode_block(body, ("body",), "b", ALL, decompressed=False)
    assert (batch.num_rows, covered) == (5, 5)


@pytest.mark.parametrize("missing", range(-4, 4))
def test_body_that_reaches_into_the_end_of_its_record_is_refused(missing: int) -> None:
    body = bytearray(record(1, body=b"body", properties_raw=b""))
    at = body.index(b"\0\0\0\4body")
    body[at : at + 4] = (len(body) - at - 4 - missing).to_bytes(4, "big")
    with pytest.raises(MessageError):
        decode_block(bytes(body), ("body",), "b", ALL)


def test_readable_records_around_bad_ones_are_decoded() -> None:
    rows = [record(n) for n in range(7)]
    at = np.cumsum([0, *(len(row) for row in rows[:-1])])
    body = bytearray(b"".join(rows))
    for bad in (2, 3):
        body[at[bad] + 4] ^= 1  # the magic number
    parts = list(readable_parts(at, lambda part: decode_block(bytes(body), ("queueOffset",), "b", ALL, positions=part)))
    decoded = [offset for batch, _ in parts if not isinstance(batch, str) for offset in batch.column(0).to_pylist()]
    assert decoded == [0, 1, 4, 5, 6]
    assert [(type(batch), list(part)) for batch, part in parts if isinstance(batch, str)] == [
        (str, [at[2]]),
        (str, [at[3]]),
    ]
    assert [position for _, part in parts for position in part] == list(at), "each record is in one part, in order"


def test_batches_are_cut_at_their_bytes_but_for_a_single_row(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = decode_block(b"".join(record(n, body=b"x" * 100) for n in range(4)), ("body",), "b", ALL)[0]
    empty = batch.slice(0, 0)
    for most, rows in ((batch.nbytes, [4]), (batch.nbytes - 1, [2, 2]), (1, [1, 1, 1, 1])):
        monkeypatch.setattr(decode, "BATCH_BYTES_MAX", most)
        assert [part.num_rows for part in rebatched(iter([empty, batch]), 10)] == rows, most


@pytest.mark.parametrize("column", ["propertiesMap", "properties:json"])
def test_properties_converted_in_steps_are_those_of_one_step(monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    body = b"".join(record(n) for n in range(7))
    whole = decode_block(body, (column,), "b", ALL)[0]
    assert whole.num_rows == 7
    monkeypatch.setattr(decode, "_STEP_BYTES", 60)
    assert decode_block(body, (column,), "b", ALL)[0].equals(whole)
