"""Codecs of a schema registry, against the serializers of confluent-kafka and a registry on loopback."""

from __future__ import annotations

import asyncio
import json
import pickle
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from registryserver import RegistryServer, basic, registry_server

from certificates import write_certificate
from saturnmq import Client, ConfigError, DecodeError, EncodeError, PropertyCodec, RegistryError
from saturnmq.registry import SchemaRegistry, avro_codec, json_schema_codec, protobuf_codec
from saturnmq.registry.client import SchemaRequest
from saturnmq.registry.frame import HEADER, SchemaReference, read_header, read_reference
from saturnmq.testing import EmbeddedBroker


def record(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": list(fields)})


ID = {"name": "id", "type": "long"}
FIRST = record(ID, {"name": "total", "type": "double"})
SECOND = record(ID, {"name": "total", "type": "double"}, {"name": "currency", "type": "string", "default": "EUR"})
DOCUMENT = json.dumps(
    {"type": "object", "properties": {"id": {"type": "integer"}, "total": {"type": "number"}}, "required": ["id"]}
)
VALUE = {"id": 7, "total": 9.5}


def _messages() -> tuple[Any, Any]:
    """Classes of a file with two messages, the second one with a nested one that has a field of Google's."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=1)
    line.field.add(name="at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp")
    from google.protobuf import timestamp_pb2  # noqa: F401 - adds its file to the default pool

    pool = descriptor_pool.Default()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(name) for name in ("shop.Order", "shop.Order.Line"))
    order_class, line_class = map(message_factory.GetMessageClass, found)
    return order_class, line_class


Order, Line = _messages()


@pytest.fixture(scope="module")
def running() -> Iterator[RegistryServer]:
    with registry_server() as server:
        yield server


@pytest.fixture
def server(running: RegistryServer) -> RegistryServer:
    """The registry, empty."""
    running.schemas.clear()
    running.subjects.clear()
    running.requests.clear()
    running.failures.clear()
    running.authorization, running.has_guids = "", True
    return running


def registry_of(server: RegistryServer, **settings: Any) -> SchemaRegistry:
    return SchemaRegistry(server.url, **{"timeout": 2.0, **settings})


# the reference


@pytest.mark.parametrize(
    ("reference", "bytes_", "kind"),
    [
        (SchemaReference(7), "0000000007", "AVRO"),
        (SchemaReference(2**32 - 1), "00ffffffff", "JSON"),
        (SchemaReference(UUID(int=5)), "01" + "00" * 15 + "05", "AVRO"),
        (SchemaReference(7, (0,)), "000000000700", "PROTOBUF"),
        (SchemaReference(7, (1,)), "00000000070202", "PROTOBUF"),
        (SchemaReference(7, (1, 0, 64)), "000000000706020080" + "01", "PROTOBUF"),
    ],
)
def test_reference_has_the_bytes_of_the_wire_format(reference: SchemaReference, bytes_: str, kind: str) -> None:
    assert reference.to_bytes().hex() == bytes_
    assert read_reference(bytes.fromhex(bytes_) + b"rest", kind) == (reference, b"rest")
    assert read_header(bytes_, kind) == reference


@pytest.mark.parametrize("bytes_", ["", "00000000", "01" + "00" * 15, "0200000007", "7b7d"])
def test_bytes_without_a_reference_are_an_error(bytes_: str) -> None:
    with pytest.raises(DecodeError, match="must be 0x00 and an id of 4 bytes, or 0x01 and a GUID of 16 bytes"):
        read_reference(bytes.fromhex(bytes_), "AVRO")


@pytest.mark.parametrize("path", ["", "01", "82", "c801", "02" + "80" * 6])
def test_path_to_a_protobuf_message_is_bounded(path: str) -> None:
    with pytest.raises(DecodeError, match="path to the Protobuf message"):
        read_reference(bytes.fromhex("0000000007" + path), "PROTOBUF")


@pytest.mark.parametrize("text", ["", "xyz", "0000000007ff", "00"])
def test_header_that_is_no_reference_is_an_error(text: str) -> None:
    with pytest.raises(DecodeError, match=f"property {HEADER}="):
        read_header(text, "AVRO")


# the other implementation

SUBJECT_OF_TOPIC = {"subject.name.strategy": topic_subject_name_strategy}


@pytest.mark.parametrize("header", [False, True], ids=["frame", "header"])
@pytest.mark.parametrize("kind", ["avro", "json", "protobuf", "nested"])
def test_confluents_serializers_and_ours_read_each_other(server: RegistryServer, kind: str, header: bool) -> None:
    client, registry = SchemaRegistryClient({"url": server.url}), registry_of(server)
    settings: dict[str, Any] = dict(SUBJECT_OF_TOPIC)
    if header:
        settings["schema.id.serializer"] = header_schema_id_serializer
    value: Any = VALUE
    codec: PropertyCodec[Any]
    if kind == "avro":
        theirs, back = AvroSerializer(client, FIRST, conf=settings), AvroDeserializer(client, conf=SUBJECT_OF_TOPIC)
        codec = avro_codec(registry, "t-value", FIRST, header=header)
    elif kind == "json":
        theirs = JSONSerializer(DOCUMENT, client, conf=settings)
        back = JSONDeserializer(None, schema_registry_client=client, conf=SUBJECT_OF_TOPIC)
        codec = json_schema_codec(registry, "t-value", DOCUMENT, header=header)
    else:
        value = Order(id=7) if kind == "protobuf" else Line(sku="a", at={"seconds": 5})
        # Google's types are part of the registry itself; confluent-kafka asks for them by reference only by this option.
        settings["skip.known.types"] = True
        theirs = ProtobufSerializer(type(value), client, settings)
        back = ProtobufDeserializer(type(value), SUBJECT_OF_TOPIC, client)
        codec = protobuf_codec(registry, "t-value", type(value), header=header)
    context = SerializationContext("t", MessageField.VALUE, [])
    body = theirs(value, context)
    assert isinstance(context.headers, list) and bool(context.headers) == header
    assert codec.decode_message(body, {name: data.hex() for name, data in context.headers}) == value

    ours, properties = codec.encode_message(value)
    if kind != "json":  # blanks are free
        assert (ours, properties) == (body, {name: data.hex() for name, data in context.headers})
    headers = [(name, bytes.fromhex(text)) for name, text in properties.items()]
    assert back(ours, SerializationContext("t", MessageField.VALUE, headers)) == value


# values


@dataclass
class TypedOrder:
    id: int
    total: float
    currency: str = "USD"


def test_older_messages_are_read_with_defaults_and_newer_ones_without_their_fields(server: RegistryServer) -> None:
    registry = registry_of(server)
    old, new = avro_codec(registry, "o", FIRST), avro_codec(registry, "o", SECOND, kind=TypedOrder)
    assert new.decode(old.encode(VALUE)) == TypedOrder(7, 9.5, "EUR")
    assert old.decode(new.encode(TypedOrder(7, 9.5, "CHF"))) == VALUE
    assert avro_codec(registry, "o").decode(old.encode(VALUE)) == VALUE  # as it was written
    assert (
        avro_codec(registry, "o", kind=TypedOrder).encode(TypedOrder(1, 2.0))[:5] == b"\0\0\0\0\x02"
    )  # the latest version
    renamed = avro_codec(registry, "o", record(ID, {"name": "sum", "type": "double"}))
    with pytest.raises(DecodeError, match=r"schema id 1 of .*does not resolve to the reader's schema"):
        renamed.decode(old.encode(VALUE))


def test_values_that_do_not_fit_are_refused_without_their_text(server: RegistryServer) -> None:
    registry = registry_of(server)
    avro, document = avro_codec(registry, "o", FIRST), json_schema_codec(registry, "j", DOCUMENT)
    for codec, wrong in (
        (avro, {"id": "secret", "total": 1.0}),
        (avro, {"id": 1}),
        (document, {"id": "secret"}),
        (document, {}),
    ):
        with pytest.raises(
            EncodeError, match=r"not one of subject [oj], schema id \d, <schema registry http://127"
        ) as raised:
            codec.encode(wrong)
        assert "secret" not in str(raised.value) or codec is avro
    with pytest.raises(EncodeError, match=r"it is dict, must be Order"):
        protobuf_codec(registry, "p", Order).encode({})
    line = protobuf_codec(registry, "l", Line).encode(Line(sku="a"))
    with pytest.raises(
        DecodeError, match=r"subject p: schema id 3 .*it is a message shop\.Order\.Line, must be shop\.Order"
    ):
        protobuf_codec(registry, "p", Order).decode(line)


@pytest.mark.parametrize("body", [b"\0\0\0\0\x01\x02", b"\0\0\0\0\x01" + b"\xff" * 30, b"\0\0\0\0\x01"])
def test_body_that_is_no_value_of_its_schema_names_schema_and_registry(server: RegistryServer, body: bytes) -> None:
    codec = avro_codec(registry_of(server), "o", FIRST)
    codec.encode(VALUE)
    with pytest.raises(
        DecodeError, match=r"subject o: schema id 1 of <schema registry http://127.*>: \d+ bytes: no datum"
    ):
        codec.decode(body)


def test_schemas_that_nothing_bounds_or_that_lead_elsewhere_are_refused(server: RegistryServer) -> None:
    registry = registry_of(server)
    tree = record({"name": "children", "type": {"type": "array", "items": "Order"}})
    with pytest.raises(ConfigError, match="holds itself, which nothing bounds"):
        avro_codec(registry, "o", tree)
    remote = json_schema_codec(registry, "j", json.dumps({"$ref": f"{server.url}/elsewhere"}))
    with pytest.raises(EncodeError, match="cannot be applied"):
        remote.encode({})
    assert not [line for line in server.requests if "elsewhere" in line]


def test_type_of_schema_and_of_codec_must_agree(server: RegistryServer) -> None:
    registry = registry_of(server)
    body = avro_codec(registry, "o", FIRST).encode(VALUE)
    with pytest.raises(DecodeError, match=r"schema id 1 .* is of type AVRO, this reader takes JSON"):
        json_schema_codec(registry, "o").decode(body)


# frame and header


def test_frame_and_header_of_different_schemas_are_an_error(server: RegistryServer) -> None:
    registry = registry_of(server)
    framed = json_schema_codec(registry, "j", DOCUMENT).encode(VALUE)
    other = json_schema_codec(registry, "j", '{"type": "object"}', header=True)
    _, properties = other.encode_message({})
    guid = UUID(properties[HEADER][2:])
    with pytest.raises(
        DecodeError, match=f"frame of the body names schema id 1, property {HEADER} names schema GUID {guid}"
    ):
        other.decode_message(framed, properties)
    same = json_schema_codec(registry, "j", DOCUMENT, header=True)
    assert same.decode_message(framed, same.encode_message(VALUE)[1]) == VALUE


def test_value_behind_a_header_may_begin_like_a_frame(server: RegistryServer) -> None:
    numbers = record(*({"name": f"n{n}", "type": "long"} for n in range(6)))
    codec = avro_codec(registry_of(server), "n", numbers, header=True)
    value = {f"n{n}": -1 if n == 4 else 0 for n in range(6)}
    body, properties = codec.encode_message(value)
    assert body[:5] == b"\0\0\0\0\x01"  # as the frame of id 1, which exists
    assert codec.decode_message(body, properties) == value


def test_registry_without_guids_cannot_give_headers(server: RegistryServer) -> None:
    server.has_guids = False
    with pytest.raises(EncodeError, match="for subject o without GUID: create the codec with header=False"):
        avro_codec(registry_of(server), "o", FIRST, header=True).encode_message(VALUE)


# requests


def test_schema_is_requested_once_and_the_cache_is_bounded(server: RegistryServer) -> None:
    registry = registry_of(server, cache_size=2)
    codec = avro_codec(registry, "o", FIRST)
    for _ in range(3):
        codec.decode(codec.encode(VALUE))
    assert server.requests == ["POST /subjects/o/versions", "GET /schemas/ids/1"]
    found_only = avro_codec(registry, "o/ä", SECOND, register=False)
    with pytest.raises(
        EncodeError, match=r"404 Schema not found \(40403\)\. Register the schema first, or .*register=True"
    ):
        found_only.encode({**VALUE, "currency": "EUR"})
    assert server.requests[-1] == "POST /subjects/o%2F%C3%A4"
    codec.decode(codec.encode(VALUE))
    avro_codec(registry, "p", FIRST).encode(VALUE)
    avro_codec(registry, "q", FIRST).encode(VALUE)
    count = len(server.requests)
    codec.decode(codec.encode(VALUE))
    assert server.requests[count:] == ["GET /schemas/ids/1"]


def test_failures_that_pass_are_retried_and_others_are_remembered(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saturnmq.registry.client._BACK_OFF_S", 0.001)
    registry = registry_of(server, retry_after=60)
    server.failures = [503, 500]
    assert avro_codec(registry, "o", FIRST).encode(VALUE)
    server.failures = [503] * 3
    failing = avro_codec(registry, "p", FIRST)
    for _ in range(3):
        with pytest.raises(
            EncodeError, match=r"POST subjects/p/versions: 503 backend is down \(50001\)\. Look into"
        ) as raised:
            failing.encode(VALUE)
        assert isinstance(raised.value.__cause__, RegistryError) and raised.value.__cause__.retryable
    assert len(server.requests) == 6
    server.failures = [302]
    redirected = avro_codec(registry_of(server, retry_after=0), "r", FIRST)
    with pytest.raises(EncodeError, match="302"):
        redirected.encode(VALUE)
    assert redirected.encode(VALUE)


def test_incompatible_schema_says_how_to_make_it_compatible(server: RegistryServer) -> None:
    request = SchemaRequest.of_text("o", "AVRO", "incompatible", register=True)
    with pytest.raises(RegistryError, match=r"409 .*incompatible.* such as by a default for each new field"):
        registry_of(server).schema(request)


def test_credentials_are_sent_and_never_shown(server: RegistryServer) -> None:
    for settings, expected in (
        ({"username": "app", "password": "secret-1"}, basic("app", "secret-1")),
        ({"token": "secret-2"}, "Bearer secret-2"),
    ):
        server.authorization = expected
        registry = registry_of(server, **settings)
        assert avro_codec(registry, "o", FIRST).encode(VALUE)
        server.authorization = "other"
        with pytest.raises(EncodeError, match=r"401 Unauthorized .*Give SchemaRegistry") as raised:
            avro_codec(registry, "p", FIRST).encode(VALUE)
        assert "secret" not in f"{raised.value} {registry!r} {raised.value.__cause__!r}"
    server.authorization = basic("me", "p@ss")
    registry = SchemaRegistry(server.url.replace("//", "//me:p%40ss@"))
    assert avro_codec(registry, "o", FIRST).encode(VALUE) and "p%40ss" not in repr(registry)


@pytest.mark.parametrize(
    ("url", "settings", "problem"),
    [
        ("localhost:8081", {}, "must begin with http:// or https://"),
        ("ftp://me:secret@host", {}, r"must begin with http:// or https://"),
        ("", {}, "is empty"),
        ("http://h", {"username": "a"}, "username and password .* belong together"),
        ("http://h", {"username": "a", "password": "b", "token": "c"}, "not both"),
        ("http://h", {"attempts": 0}, "attempts of the schema registry is 0, must be at least 1"),
        ("https://h", {"tls_ca": "/no/file"}, "/no/file"),
    ],
)
def test_unusable_settings_name_their_problem(url: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        SchemaRegistry(url, **settings)
    assert "secret" not in str(raised.value)


def test_registry_over_tls_must_be_trusted(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "registry")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with registry_server(context) as server:
        assert avro_codec(registry_of(server, tls_ca=str(certificate)), "o", FIRST).encode(VALUE)
        with pytest.raises(EncodeError, match=r"CERTIFICATE_VERIFY_FAILED.*Check url, tls_ca"):
            avro_codec(registry_of(server, attempts=1), "o", FIRST).encode(VALUE)


def test_one_process_has_one_cache_for_equal_settings(server: RegistryServer) -> None:
    registry = registry_of(server, token="t")
    copies = [pickle.loads(pickle.dumps(registry)) for _ in range(2)]
    assert copies[0] is copies[1] and repr(copies[0]) == repr(registry)


# with a client


@pytest.mark.loop(real=True)
async def test_client_needs_the_registry_only_for_schemas_that_are_new(server: RegistryServer) -> None:
    registry = registry_of(server)
    async with EmbeddedBroker() as broker, Client.from_url(broker.url) as client:
        for header in (False, True):
            codec = avro_codec(registry, "t-value", FIRST, header=header)
            async with client.producer(f"p-{header}", codec=codec) as out:
                server.failures = [503] * 99  # sends need no registry
                await out.send("t", VALUE, properties={"a": "b"})
                await out.send_many("t", [VALUE])
            server.failures = []
        reads = avro_codec(registry_of(server), "t-value", SECOND, kind=TypedOrder)
        async with client.consumer("readers", codec=reads, start="first") as inbox:
            await inbox.subscribe("t")
            messages = [await inbox.recv(timeout=20) for _ in range(4)]
        assert [message.value for message in messages] == [TypedOrder(7, 9.5, "EUR")] * 4
        assert sum(HEADER in message.properties for message in messages) == 2
        assert {message.properties.get("a") for message in messages} == {"b", None}


@pytest.mark.loop(real=True)
async def test_producer_that_starts_later_takes_the_latest_version_of_then(server: RegistryServer) -> None:
    registry = registry_of(server)
    for number, schema in enumerate((FIRST, SECOND), 1):
        await avro_codec(registry, "o", schema).prepare_encoding()
        codec = avro_codec(registry, "o", kind=None)
        await codec.prepare_encoding()
        assert codec.encode(VALUE)[:5] == bytes([0, 0, 0, 0, number])


@pytest.mark.loop(real=True)
async def test_producer_of_an_unreachable_registry_does_not_start() -> None:
    registry = SchemaRegistry("http://127.0.0.1:1", attempts=1)
    async with EmbeddedBroker() as broker, Client.from_url(broker.url) as client:
        out = client.producer("p", codec=avro_codec(registry, "t-value", FIRST))
        with pytest.raises(
            RegistryError, match=r"<schema registry http://127.0.0.1:1>: POST subjects/t-value/versions: .*refused"
        ):
            await out.start()


@pytest.mark.loop(real=True)
async def test_event_loop_never_waits_for_a_registry(server: RegistryServer) -> None:
    registry = registry_of(server)
    codec = avro_codec(registry, "o", FIRST)
    with pytest.raises(EncodeError, match="is not in the cache yet, it is being requested"):
        codec.encode(VALUE)
    while registry._pending:
        await asyncio.sleep(0.001)  # polls
    assert codec.encode(VALUE)
