"""Avro bodies: every type against the encoding of Avro's specification, and every kind of invalid body."""

from __future__ import annotations

import datetime
import decimal
import json
import struct
import sys
import tomllib
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import avro, packing

DAY = datetime.date(1970, 1, 1)
NOON = datetime.datetime(2026, 3, 1, 12, 0, 0, 5000, tzinfo=datetime.UTC)
EMPTY = {"type": "record", "name": "Empty", "fields": []}
NOON_MS = int(NOON.timestamp() * 1000)


def number(value: int) -> bytes:
    """Encode a zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def record(*types: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(types)]}
    )


def one(type_: Any, data: bytes) -> Any:
    return avro.decode(record(type_), data)["f0"]


CASES: list[tuple[Any, str, bytes, Any]] = [
    ("boolean", "BOOLEAN", b"\x01", True),
    ("int", "INT", b"\x01", -1),
    ("int", "INT", b"\xff\xff\xff\xff\x0f", -(2**31)),
    ("long", "BIGINT", b"\x80\x01", 64),
    ("long", "BIGINT", number(-(2**63)), -(2**63)),
    ("float", "FLOAT", struct.pack("<f", 1.5), 1.5),
    ("double", "DOUBLE", struct.pack("<d", -2.25), -2.25),
    ("bytes", "BINARY", b"\x04\x00\xff", b"\x00\xff"),
    ("string", "STRING", text("größe"), "größe"),
    (["null", "string"], "STRING", b"\x00", None),
    (["string", "null"], "STRING", b"\x00" + text("a"), "a"),
    ({"type": ["null", "int"]}, "INT", b"\x02\x02", 1),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "STRING", b"\x02", "B"),
    ({"type": "fixed", "name": "F", "size": 3}, "BINARY", b"abc", b"abc"),
    ({"type": "array", "items": "int"}, "ARRAY<INT>", b"\x04\x02\x04\x03\x04\x06\x06\x00", [1, 2, 3, 3]),
    ({"type": "map", "values": "long"}, "MAP<STRING, BIGINT>", b"\x02" + text("k") + b"\x08\x00", {"k": 4}),
    (
        {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]},
        "STRUCT<`x`: INT>",
        b"\x06",
        {"x": 3},
    ),
    ({"type": "int", "logicalType": "date"}, "DATE", number(-1), DAY - datetime.timedelta(days=1)),
    ({"type": "long", "logicalType": "timestamp-millis"}, "TIMESTAMP", number(NOON_MS), NOON),
    ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP", number(NOON_MS * 1000), NOON),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        "DECIMAL(5, 2)",
        b"\x04\xfb\x2e",
        decimal.Decimal("-12.34"),
    ),
    (
        {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5, "scale": 2},
        "DECIMAL(5, 2)",
        b"\xfb\x2e",
        decimal.Decimal("-12.34"),
    ),
    ({"type": "string", "logicalType": "uuid"}, "STRING", text("u"), "u"),
    ({"type": "int", "logicalType": "time-millis"}, "INT", number(5), 5),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, "BIGINT", number(5), 5),
    (
        {"type": "map", "values": ["null", "boolean"]},
        "MAP<STRING, BOOLEAN>",
        b"\x02" + text("k") + b"\x02\x01\x00",
        {"k": True},
    ),
]


@pytest.mark.spec("PIP-08")
@pytest.mark.parametrize(("type_", "ddl", "data", "value"), CASES)
def test_avro_datum_of_each_type_decodes(type_: Any, ddl: str, data: bytes, value: Any) -> None:
    assert avro.ddl(record(type_, "int")) == f"STRUCT<`f0`: {ddl}, `f1`: INT>"
    assert one(type_, data) == value
    for cut in range(len(data)):
        with pytest.raises(ValueError):
            one(type_, data[:cut])
    with pytest.raises(ValueError, match="1 bytes are behind"):
        one(type_, data + b"\x00")


@pytest.mark.spec("PIP-08")
@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("boolean", b"\x02"),
        ("int", number(2**31)),
        ("long", b"\x80" * 10),
        ("string", b"\x02\xff"),
        ("bytes", number(-1)),
        ("bytes", number(2**40)),
        (["null", "int"], b"\x04\x02"),
        (["null", "int"], b"\x01\x02"),
        (["null", "int"], b"\x03"),
        (["int"], b"\x01\x02"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01"),
        ({"type": "array", "items": "int"}, number(2**60)),
        ({"type": "array", "items": "int"}, number(-(2**60)) + b"\x02\x02"),
        ({"type": "map", "values": EMPTY}, number(2**60) + text("k")),
        ({"type": "fixed", "name": "F", "size": 2**50}, b"abc"),
        ({"type": "int", "logicalType": "date"}, number(2**31 - 1)),
        ({"type": "long", "logicalType": "timestamp-millis"}, number(2**62)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x04\x7f\xff"),
    ],
)
def test_avro_invalid_body_raises_value_error(type_: Any, data: bytes) -> None:
    with pytest.raises(ValueError):
        one(type_, data)
    assert avro._or_none(record(type_), data) is None


@pytest.mark.spec("PIP-08")
@given(st.binary(max_size=60))
def test_avro_arbitrary_body_decodes_or_is_none(data: bytes) -> None:
    schema = record("long", {"type": "array", "items": ["null", "string"]}, {"type": "map", "values": "double"})
    made = avro._or_none(schema, data)
    assert made is None or set(made) == {"f0", "f1", "f2"}
    assert avro._or_none(schema, None) is None


@pytest.mark.spec("PIP-08")
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "it is no JSON"),
        ('"int"', "must be a record with fields"),
        (record(["int", "string"]), "must be a type, or null and a type"),
        (record("nothing"), "'nothing' is unknown"),
        (record({"type": "array"}), "array has no 'items'"),
        (record({"type": "null"}), "'null' is no type of a column"),
        (record(["null", "R"]), "'R' holds itself"),
        (record({"type": "array", "items": "R"}), "'R' holds itself"),
        (record({"type": "array", "items": EMPTY}), "Empty.* of array have too few bytes"),
        (record({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), '"F".* have too few bytes'),
        (record({"type": "array", "items": "null"}), 'items "null" of array have too few bytes'),
        (record({"type": "fixed", "name": "F", "size": "3"}), "size '3' of a fixed"),
        (record({"type": "enum", "name": "E", "symbols": ["A", "A"]}), "must be unique"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 40}), r"decimal\(40, 0\) is none"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}), r"decimal\(2, 3\) is none"),
        ('{"type": "record", "name": "R", "fields": [1]}', "Avro schema: TypeError"),
        ('{"type": ' * 3000 + '"int"' + "}" * 3000, "Avro schema: (RecursionError|it is nested)"),
    ],
)
def test_avro_schema_without_columns_is_refused(schema: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        avro.ddl(schema)


@pytest.mark.spec("PIP-08")
def test_avro_named_type_may_be_referenced_again() -> None:
    colour = {"type": "enum", "name": "Colour", "namespace": "n", "symbols": ["RED", "BLUE"]}
    schema = record(colour, "n.Colour", "Colour")
    assert avro.ddl(schema) == "STRUCT<`f0`: STRING, `f1`: STRING, `f2`: STRING>"
    assert avro.decode(schema, b"\x00\x02\x00") == {"f0": "RED", "f1": "BLUE", "f2": "RED"}


@pytest.mark.spec("PIP-08")
@pytest.mark.parametrize(
    "type_", ["bytes", "string", {"type": "array", "items": ["null", "long"]}, {"type": "map", "values": EMPTY}]
)
@pytest.mark.parametrize("length", [2**40, 2**62, -(2**63)])
def test_avro_claimed_length_allocates_no_memory(type_: Any, length: int) -> None:
    schema, data = record(type_), number(length) + bytes(10_000)
    assert avro.ddl(schema)
    tracemalloc.start()
    try:
        assert avro._or_none(schema, data) is None
        _now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2_000_000


@pytest.mark.spec("PIP-08")
def test_avro_without_fastavro_raises_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    avro._top.cache_clear()
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"-m pip install fastavro"):
        avro.ddl(record("int"))
    with pytest.raises(ConfigError, match="pip install fastavro"):
        avro._or_none(record("int"), b"\x02")


@pytest.mark.spec("SCL-01", "PIP-08")
def test_packed_environment_contains_fastavro() -> None:
    assert {"fastavro", "pyarrow"} <= packing.needed(packing.installed() | {"saturnmq": _Own()})


class _Own:
    """This package with the requirements in pyproject.toml, independent of the metadata of an editable install."""

    @property
    def requires(self) -> list[str]:
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
        return [f'{line.partition(";")[0]}; extra == "spark"' for line in project["optional-dependencies"]["spark"]]
