"""Columns of bodies whose schemas are in a schema registry: the types of each format, evolution, and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.errors import PySparkException
from registryserver import RegistryServer, registry_server

from saturnmq import ConfigError, RegistryError
from saturnmq.registry import SchemaRegistry, avro_codec, json_schema_codec, protobuf_codec
from saturnmq.registry.frame import HEADER
from saturnmq.spark import from_registry
from saturnmq.spark.registry_columns import _decode, _header, _type_of
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker


def record(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)})


ID = {"name": "id", "type": "long"}
KEY = {"name": "key", "type": {"type": "string", "logicalType": "uuid"}}
FIRST = record(ID)
SECOND = record(ID, {"name": "currency", "type": "string", "default": "EUR"})
DOCUMENT = json.dumps(
    {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "total": {"type": ["null", "number"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "at": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
)


def _order() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="spark_order.proto", package="sparkshop", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=1)
    entry = order.nested_type.add(name="NotesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="lines", number=2, type=11, label=3, type_name=".sparkshop.Order.Line")
    order.field.add(name="kind", number=3, type=14, label=1, type_name=".sparkshop.Kind")
    order.field.add(name="notes", number=4, type=11, label=3, type_name=".sparkshop.Order.NotesEntry")
    order.field.add(name="first", number=5, type=11, label=1, type_name=".sparkshop.Order.Line")
    order.field.add(name="big", number=6, type=4, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sparkshop.Order"))


Order = _order()


@pytest.fixture(scope="module")
def schemas() -> Iterator[RegistryServer]:
    with registry_server() as running:
        running.authorization = "Bearer secret"
        yield running


@pytest.fixture
def registry(schemas: RegistryServer) -> SchemaRegistry:
    return SchemaRegistry(schemas.url, token="secret", timeout=2.0, attempts=1)


def test_types_and_values_of_json_and_protobuf(registry: SchemaRegistry) -> None:
    kind, text = "JSON", DOCUMENT
    assert (
        _type_of(kind, text).ddl
        == "STRUCT<`id`: BIGINT, `total`: DOUBLE, `tags`: ARRAY<STRING>, `at`: STRUCT<`city`: STRING>>"
    )
    body = json_schema_codec(registry, "j", DOCUMENT).encode({"id": 1, "total": 2, "at": {"city": "B"}, "more": 1})
    value = _decode(registry, kind, text, False, body, None)
    assert value == {"id": 1, "total": 2.0, "tags": None, "at": {"city": "B"}} and isinstance(value["total"], float)

    codec = protobuf_codec(registry, "p", Order)
    body = codec.encode(Order(id=1, lines=[{"sku": "a"}], kind=1, notes={"n": 3}, big=2**64 - 1))
    from saturnmq.registry.formats import file_text

    kind, text = "PROTOBUF", file_text(Order.DESCRIPTOR)
    line = "STRUCT<`sku`: STRING>"
    assert _type_of(kind, text).ddl == (
        f"STRUCT<`id`: BIGINT, `lines`: ARRAY<{line}>, `kind`: STRING, `notes`: MAP<STRING, BIGINT>, `first`: {line}, "
        "`big`: DECIMAL(20, 0)>"
    )
    assert _decode(registry, kind, text, False, body, None) == {
        "id": 1, "lines": [{"sku": "a"}], "kind": "PAID", "notes": {"n": 3}, "first": None, "big": 2**64 - 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (
            "AVRO",
            record({"name": "t", "type": {"type": "int", "logicalType": "time-millis"}}),
            "time-millis is no type",
        ),
        ("JSON", '{"type": "object"}', "must be a string"),
        ("JSON", '{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}', "must be a string"),
    ],
)
def test_schema_that_columns_cannot_have_is_refused(kind: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        _type_of(kind, text)


def test_unknown_subject_and_registry_that_is_down_are_one_line(registry: SchemaRegistry) -> None:
    with pytest.raises(RegistryError, match=r"GET subjects/nothing/versions/latest: 404"):
        from_registry(registry, "nothing")
    body = avro_codec(registry, "o", FIRST).encode({"id": 1})
    down = SchemaRegistry("http://127.0.0.1:1", attempts=1)
    with pytest.raises(Exception, match=r"schema id .*refused"):  # null would lose the body
        _decode(down, "AVRO", FIRST, True, body, None)
    assert _decode(registry, "AVRO", FIRST, True, b"x", None) is None


def test_header_is_found_in_every_format_of_properties() -> None:
    for properties in ({HEADER: "01"}, json.dumps({"a": "b", HEADER: "01"}), f"a\x01b\x02{HEADER}\x0101\x02"):
        assert _header(properties) == "01"
    for properties in ({"a": "b"}, '{"a": "b"}', "a\x01b", "", None, {}):
        assert _header(properties) is None


@pytest.mark.spark
def test_bodies_of_old_and_new_schemas_are_rows_of_the_newest(
    spark: Any, server: SyncEmbeddedBroker, registry: SchemaRegistry, tmp_path: Path
) -> None:
    """Batch and stream, frames and headers; the token is in no plan."""
    old, new = avro_codec(registry, "e-value", FIRST), avro_codec(registry, "e-value", SECOND, header=True)
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("evolved", queues=1)
        with client.producer("old", codec=old) as out:
            out.send("evolved", {"id": 1})
        with client.producer("new", codec=new) as out:
            out.send("evolved", {"id": 2, "currency": "CHF"})
    options = {"nameServer": server.name_servers, "topic": "evolved", "startingOffsets": "earliest"}
    order = from_registry(registry, "e-value").alias("order")
    rows = spark.read.format("rocketmq").options(**options).load().select(order).select("order.*").orderBy("id")
    assert [tuple(row) for row in rows.collect()] == [(1, "EUR"), (2, "CHF")]
    assert "secret" not in rows._jdf.queryExecution().toString()

    stream = spark.readStream.format("rocketmq").options(**options).load().select(order).select("order.*")
    writing = stream.writeStream.format("memory").queryName("evolved").trigger(availableNow=True)
    writing.option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)
    assert sorted(tuple(row) for row in spark.table("evolved").collect()) == [(1, "EUR"), (2, "CHF")]


@pytest.mark.spark
def test_bad_body_fails_the_query_or_is_null(spark: Any, registry: SchemaRegistry) -> None:
    codec = json_schema_codec(registry, "bad-value", DOCUMENT)
    frame = codec.encode({"id": 1})
    _, properties = json_schema_codec(registry, "bad-value", '{"type": "object"}', header=True).encode_message({})
    json_schema_codec(registry, "bad-value", json.dumps({**json.loads(DOCUMENT), "title": "newest"})).encode({})
    rows = spark.createDataFrame(
        [(frame, {}), (frame, {HEADER: properties[HEADER]})], "body binary, properties map<string, string>"
    )
    with pytest.raises(PySparkException, match=r"frame of the body names schema id .*different schemas"):
        rows.select(from_registry(registry, "bad-value")).collect()
    values = rows.select(from_registry(registry, "bad-value", null_on_error=True).alias("v")).select("v.id").collect()
    assert [value.id for value in values] == [1, None]
