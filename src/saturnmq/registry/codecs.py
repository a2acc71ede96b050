"""Codecs whose schemas are in a registry: the codec finds or registers the schema, and each message refers to it.

The reference is the frame before the value, or the header (a property). A reader takes both; where both are present they must
name the same schema.

Requirements: API-08.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from saturnmq.client.codecs import BodyAndProperties, PropertyCodec, json_codec, python_converters
from saturnmq.errors import DecodeError, EncodeError, RegistryError
from saturnmq.protocol.errors import ConfigError, MessageError
from saturnmq.registry.client import RegisteredSchema, SchemaRegistry, SchemaRequest
from saturnmq.registry.formats import Format, file_text, message_path, parsed
from saturnmq.registry.frame import HEADER, PROTOBUF, SchemaReference, read_header, read_reference

T = TypeVar("T")
_MAGIC: Final = (b"\x00", b"\x01")


class SchemaReader:
    """Decodes messages by the schemas that they refer to. reader: see `Format`. Used by codecs and by Spark."""

    def __init__(self, registry: SchemaRegistry, kind: str, reader: Any = None) -> None:
        self.registry = registry
        self.kind = kind
        self._reader = reader

    def request(self, reference: SchemaReference) -> SchemaRequest:
        return SchemaRequest.by_key(reference.key, serialized=self.kind == PROTOBUF)

    def references(self, body: bytes, header: str | None) -> SchemaReference:
        """The reference that a message is decoded by: its header, else its frame. Raises DecodeError."""
        if header is not None:
            return read_header(header, self.kind)
        return read_reference(body, self.kind)[0]

    def decode(self, body: bytes, header: str | None) -> Any:
        """Decode a body. Raises DecodeError, which names the schema and the registry."""
        if header is None:
            reference, payload = read_reference(body, self.kind)
            return self._decode(reference, payload)
        reference = read_header(header, self.kind)
        try:
            return self._decode(reference, body)
        except DecodeError:
            if body[:1] not in _MAGIC:
                raise
            return self._decode_both(reference, body)

    def _decode_both(self, header: SchemaReference, body: bytes) -> Any:
        """Decode a body that is no value of the header's schema, but may be one behind a frame."""
        frame, payload = read_reference(body, self.kind)
        if frame != header and not self.schema(header).is_same(self.schema(frame)):
            raise DecodeError(
                f"the frame of the body names schema {frame}, property {HEADER} names schema {header}, of {self.registry!r}: they "
                "are different schemas",
                hint="Remove one of them where the message is written.",
            )
        return self._decode(header, payload)

    def schema(self, reference: SchemaReference) -> RegisteredSchema:
        try:
            schema = self.registry.schema(self.request(reference))
        except RegistryError as error:
            raise DecodeError(f"schema {reference}: {error}") from error
        if schema.kind != self.kind:
            raise DecodeError(
                f"schema {reference} of {self.registry!r} is of type {schema.kind}, this reader takes {self.kind}"
            )
        return schema

    def _decode(self, reference: SchemaReference, payload: bytes) -> Any:
        schema = self.schema(reference)
        try:
            return parsed_schema(schema).decode(payload, reference.path, self._reader)
        except (ValueError, ConfigError) as error:
            raise DecodeError(f"schema {reference} of {self.registry!r}: {len(payload)} bytes: {error}") from error


def parsed_schema(schema: RegisteredSchema) -> Format:
    """Raises ConfigError."""
    if schema.has_references:
        raise ConfigError(
            "a schema with references to other schemas is not supported: register it with their text in it"
        )
    format_: Format = parsed(schema.kind, schema.text)
    return format_


class RegistryCodec(PropertyCodec[T], Generic[T]):
    """The codec of one subject. Created by `avro_codec`, `json_schema_codec` and `protobuf_codec`."""

    def __init__(
        self,
        reader: SchemaReader,
        subject: str,
        text: str | None,
        *,
        register: bool,
        header: bool,
        converters: tuple[Callable[[Any], Any], Callable[[Any], T]],
        path: tuple[int, ...] = (),
    ) -> None:
        if not subject:
            raise ConfigError("the subject is empty, must be a name such as orders-value: the topic and -value")
        kind = reader.kind
        self._read, self._registry, self._subject = reader, reader.registry, subject
        if text is None:
            self._request = SchemaRequest.latest(subject, serialized=kind == PROTOBUF)
        else:
            self._request = SchemaRequest.of_text(subject, kind, text, register=register)
        self._header, self._path = header, path
        self._to_plain, self._from_plain = converters
        self._writer: RegisteredSchema | None = None

    async def prepare_encoding(self) -> None:
        """Find or register the schema; then sends need no registry. Raises RegistryError."""
        if self._writer is None:
            self._writer = await asyncio.to_thread(self._registry.fetch, self._request, refresh=True)

    async def prepare_decoding(self, messages: Iterable[BodyAndProperties]) -> None:
        requests = set()
        for message in messages:
            try:
                reference = self._read.references(message.body, message.properties.get(HEADER))
            except (DecodeError, MessageError):
                continue
            requests.add(self._read.request(reference))
        with contextlib.suppress(RegistryError):  # decode_message reports it
            await self._registry.prepare(sorted(requests))

    def encode_message(self, value: T) -> tuple[bytes, Mapping[str, str]]:
        schema = self._schema()
        key = schema.guid if self._header else schema.id
        if key is None:
            missing = (
                "GUID: create the codec with header=False" if self._header else "id: create the codec with header=True"
            )
            raise EncodeError(f"{self._registry!r} answered for subject {self._subject} without {missing}")
        reference = SchemaReference(key, self._path)
        try:
            payload = parsed_schema(schema).encode(self._to_plain(value), self._path)
        except (ValueError, TypeError, ConfigError) as error:
            raise EncodeError(
                f"the value is not one of subject {self._subject}, schema {reference}, {self._registry!r}: {error}"
            ) from error
        if self._header:
            return payload, {HEADER: reference.to_bytes().hex()}
        return reference.to_bytes() + payload, {}

    def _schema(self) -> RegisteredSchema:
        if self._writer is None:
            try:
                self._writer = self._registry.schema(self._request)
            except RegistryError as error:
                raise EncodeError(f"subject {self._subject}: {error}") from error
        return self._writer

    def encode(self, value: T) -> bytes:
        if self._header:
            raise EncodeError(f"a codec with header=True writes property {HEADER}, too: call encode_message")
        return super().encode(value)

    def decode_message(self, body: bytes, properties: Mapping[str, str]) -> T:
        try:
            return self._from_plain(self._read.decode(body, properties.get(HEADER)))
        except DecodeError as error:
            raise DecodeError(f"subject {self._subject}: {error}") from error
        except (ValueError, TypeError) as error:
            raise DecodeError(f"subject {self._subject}: the value does not fit the codec's type: {error}") from error


def avro_codec(
    registry: SchemaRegistry,
    subject: str,
    schema: str | None = None,
    *,
    kind: type[Any] | None = None,
    register: bool = True,
    header: bool = False,
) -> PropertyCodec[Any]:
    """A codec for Avro. Values are what fastavro takes and gives, or of `kind`: a dataclass, msgspec Struct or pydantic model.

    schema: in JSON. Values are written by it, and read as it says: a field that the writer did not know has its default.
    Without one, values are written by the latest version of the subject, and read by the schema that they were written by.
    register: add the schema to the subject when the producer starts, otherwise it must be there. header: refer to it by the
    property `__value_schema_id` with its GUID, not by a frame before the value; messages of both forms are read.
    Needs the extra `registry`. Raises ConfigError for an unusable schema.

    Example:
        codec = avro_codec(SchemaRegistry("http://localhost:8081"), "orders-value", schema=ORDER)
        async with client.producer("orders-p", codec=codec) as out:
            await out.send("orders", {"id": 1, "total": 9.5})
    """
    reader = None if schema is None else parsed("AVRO", schema)
    converters = (_same, _same) if kind is None else python_converters(kind)
    reads = SchemaReader(registry, "AVRO", reader)
    return RegistryCodec(reads, subject, schema, register=register, header=header, converters=converters)


def json_schema_codec(
    registry: SchemaRegistry,
    subject: str,
    schema: str | None = None,
    *,
    kind: type[Any] | None = None,
    register: bool = True,
    header: bool = False,
) -> PropertyCodec[Any]:
    """A codec for JSON that a JSON Schema allows: checked when written, and by the writer's schema when read.

    The parameters are those of `avro_codec`; values are JSON's, or of `kind`, as in `json_codec(kind)`.

    Example:
        codec = json_schema_codec(SchemaRegistry("http://localhost:8081"), "orders-value", schema='{"type": "object"}')
    """
    if schema is not None:
        parsed("JSON", schema)
    converters: tuple[Any, Any] = (_same, _same)
    if kind is not None:
        typed, untyped = json_codec(kind), json_codec()
        converters = (
            lambda value: untyped.decode(typed.encode(value)),
            lambda value: typed.decode(untyped.encode(value)),
        )
    reads = SchemaReader(registry, "JSON")
    return RegistryCodec(reads, subject, schema, register=register, header=header, converters=converters)


def protobuf_codec(
    registry: SchemaRegistry, subject: str, message: type[T], *, register: bool = True, header: bool = False
) -> PropertyCodec[T]:
    """A codec for messages of a class that protoc generated; its file is the schema. See `avro_codec` for the other parameters.

    The file may import Google's own types, no other files.

    Example:
        codec = protobuf_codec(SchemaRegistry("http://localhost:8081"), "orders-value", orders_pb2.Order)
    """
    descriptor: Any = getattr(message, "DESCRIPTOR", None)
    if descriptor is None:
        raise ConfigError(f"{message!r:.80} is no message class of Protobuf")
    text = file_text(descriptor)
    parsed(PROTOBUF, text)
    return RegistryCodec(
        SchemaReader(registry, PROTOBUF, message),
        subject,
        text,
        register=register,
        header=header,
        converters=(functools.partial(_instance, message), _same),
        path=message_path(descriptor),
    )


def _same(value: Any) -> Any:
    return value


def _instance(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"it is {type(value).__name__}, must be {kind.__name__}")
    return value
