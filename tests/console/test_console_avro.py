"""Avro bodies: container files, bodies of topics with a schema, and bytes of strangers, which end in bounded time and space."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.avro import CONTAINER, Schema
from saturnmq.console.bodies import AVRO_BYTES_MAX, Schemas, body_of
from saturnmq.protocol.errors import ConfigError

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}, {"name": "weight", "type": ["null", "double"]}]}}},
        {"name": "notes", "type": {"type": "map", "values": "string"}},
        {"name": "first", "type": ["null", "Line"]},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {"name": "paid", "type": "boolean"},
    ],
}  # fmt: skip
ORDER: dict[str, Any] = {
    "id": -7,
    "at": 1_700_000_000_000,
    "day": 19_675,
    "price": b"\x04\xd2",  # 12.34
    "state": "PAID",
    "lines": [{"sku": "a", "weight": 1.5}, {"sku": "b", "weight": None}],
    "notes": {"x": "y"},
    "first": {"sku": "c", "weight": None},
    "mark": b"\x01\xff",
    "paid": True,
}
SHOWN = ORDER | {"at": "2023-11-14T22:13:20+00:00", "day": "2023-11-14", "price": "12.34", "mark": "0x01ff"}
RAW = ORDER | {"price": "0x04d2", "mark": "0x01ff"}  # without logical types


def without_logical(schema: Any) -> Any:
    """The schema as fastavro shall write it: values as they are encoded."""
    if isinstance(schema, dict):
        return {
            name: without_logical(one)
            for name, one in schema.items()
            if name not in ("logicalType", "precision", "scale")
        }
    return [without_logical(one) for one in schema] if isinstance(schema, list) else schema


def encoded() -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(without_logical(SCHEMA)), ORDER)
    return out.getvalue()


def file_of(records: list[dict[str, Any]], codec: str = "null") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(without_logical(SCHEMA)), records, codec=codec)
    return out.getvalue()


@pytest.mark.spec("CON-09")
def test_values_of_every_type_are_shown_as_another_library_wrote_them(tmp_path: Path) -> None:
    (tmp_path / "orders.avsc").write_text(json.dumps(SCHEMA))
    shown = body_of(encoded(), topic="orders", schemas=Schemas(tmp_path))
    assert shown.form == "avro" and json.loads(shown.text) == SHOWN
    for codec in ("null", "deflate"):
        shown = body_of(file_of([ORDER, ORDER], codec))
        assert shown.form == "avro" and json.loads(shown.text) == [RAW, RAW]


@pytest.mark.spec("CON-09")
def test_bodies_of_a_topic_use_its_schema_file_with_and_without_a_registry_header(tmp_path: Path) -> None:
    schemas, data = Schemas(tmp_path), encoded()
    assert body_of(data, topic="orders", schemas=schemas).form != "avro"
    (tmp_path / "orders.avsc").write_text(json.dumps(SCHEMA))
    for body in (data, b"\x00" + struct.pack(">I", 5) + data):
        shown = body_of(body, topic="orders", schemas=schemas)
        assert shown.form == "avro" and '"state": "PAID"' in shown.text, shown
    (tmp_path / "id-9.avsc").write_text('"string"')
    assert body_of(b"\x00\x00\x00\x00\x09\x04ok", topic="orders", schemas=schemas).text == '"ok"'
    assert body_of(b'{"a": 1}', topic="orders", schemas=schemas).form == "json"  # does not fit the schema
    assert body_of(data, topic="orders", schemas=schemas, chosen_form="hex").form == "hex"
    (tmp_path / "orders.avsc").write_text("{")
    assert body_of(data, topic="orders", schemas=schemas).form != "avro"
    for name in ("../orders", ".hidden", "a\0b"):
        with pytest.raises(ValueError, match="no schema"):
            schemas.decode(name, data)


def block(schema: Any, count: int, data: bytes, codec: bytes = b"null") -> bytes:
    """A container file with one block."""

    def whole(number: int) -> bytes:
        number, out = number << 1, b""
        while number > 0x7F:
            out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
        return out + bytes([number])

    def text(value: bytes) -> bytes:
        return whole(len(value)) + value

    head = whole(2) + text(b"avro.schema") + text(json.dumps(schema).encode()) + text(b"avro.codec") + text(codec)
    return CONTAINER + head + b"\0" + b"s" * 16 + whole(count) + text(data) + b"s" * 16


def repeated(data: bytes, count: int) -> bytes:
    """A container file with the block of another one, several times."""
    at = data.index(b"s" * 16) + 16
    return data[:at] + data[at:] * count


def records(fields: Any) -> bytes:
    """A container file with an array of two records without bytes."""
    return block({"type": "array", "items": {"type": "record", "name": "R", "fields": fields}}, 1, b"\x04\0")


@pytest.mark.parametrize(
    "data",
    [
        records([1] * 1000),  # each record would cost as much as its schema
        records([{"name": {"a": "b"}, "type": "null"}]),
        block({"type": "array", "items": {"type": "null", "name": "n" * 1025}}, 1, b"\x04\0"),
        repeated(block("null", 0, zlib.compress(b"0" * 1_000_000)[2:-4], b"deflate"), 2),
        block("null", 2**40, b""),
        block({"type": "array", "items": "null"}, 1, b"\xfe\xff\xff\xff\x0f"),
        block({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}, 1, b""),
        block({"type": "record", "name": "R", "fields": [{"name": "r", "type": {"type": "array", "items": "R"}}]}, 1, b"\x02" * 99),
        block("bytes", 1, b"\xfe\xff\xff\xff\x0f"),
        block("bytes", 1, zlib.compress(b"0" * 10_000_000)[2:-4], b"deflate"),
        block("string", 1, b"\x02\xff"),
        block("boolean", 1, b"\x02"),
        block(["null"], 1, b"\x04"),
        block({"type": "enum", "name": "E", "symbols": {"a": 1}}, 1, b"\x00"),
        block("long", 1, b"\x80" * 11),
        block("null", 1, b"", b"unknown"),
        CONTAINER,
    ],
)  # fmt: skip
def test_hostile_containers_are_shown_as_bytes_or_text(data: bytes) -> None:
    assert body_of(data).form in ("hex", "text")


@given(st.binary(max_size=200))
def test_random_bytes_end_in_a_value_or_an_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        Schema(json.dumps(SCHEMA)).decode(data)
    assert body_of(CONTAINER + data).form in ("avro", "hex", "text")


def nested(levels: int, inner: Any) -> Any:
    """Records that hold each other twice: 2**levels values."""
    schema = inner
    for level in range(levels):
        first = {"name": "a", "type": schema}
        fields = [first, {"name": "b", "type": f"R{level - 1}" if level else inner}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}, "holds itself"),
        ({"type": "array", "items": "null"}, "too few bytes"),
        ({"type": "map", "values": nested(6, "null")}, "too few bytes"),
        ({"type": "array", "items": nested(3, ["null", "int"])}, ""),
        (nested(3, "null"), ""),
        (nested(30, "null"), "100 values without bytes"),
        (nested(30, "int"), ""),
        (["int", "string"], ""),
        (nested(33, "int"), "nested"),
    ],
)
def test_schema_whose_bodies_nothing_bounds_is_refused(schema: Any, why: str) -> None:
    """A list of 10,000 links, which is 10 KB, overflowed the stack of the process in fastavro."""
    if not why:
        Schema(json.dumps(schema))
        return
    with pytest.raises(ConfigError, match=why):
        Schema(json.dumps(schema))


def test_values_of_a_page_are_bounded() -> None:
    schema = json.dumps({"type": "array", "items": "int"})
    assert len(Schema(schema).decode(b"\x80\x08" + b"\x02" * 512 + b"\0")) == 512
    with pytest.raises(ValueError, match="EOF"):
        Schema(schema).decode(b"\xfe\xff\xff\xff\x0f" + b"\x02" * 512)
    assert body_of(file_of([ORDER]) + bytes(AVRO_BYTES_MAX)).form == "hex"
