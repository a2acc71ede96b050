"""Bodies with a schema in a registry as Spark columns: `saturnmq.registry` decodes, the mapping to Spark's types is here.

The columns are those of the subject's latest version when the query is planned; each body is decoded by the schema that it names.
Workers have one registry, with one cache, per process.

Requirements: PIP-08.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from saturnmq.errors import DecodeError, RegistryError
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import decode_properties
from saturnmq.registry.client import SchemaRegistry, SchemaRequest
from saturnmq.registry.codecs import SchemaReader, parsed_schema
from saturnmq.registry.formats import parsed
from saturnmq.registry.frame import HEADER, PROTOBUF
from saturnmq.spark import avro

if TYPE_CHECKING:
    from pyspark.sql import Column

_DEPTH_MAX: Final = 32
_SCALARS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "string": ("STRING", str), "integer": ("BIGINT", int), "number": ("DOUBLE", float), "boolean": ("BOOLEAN", bool),
}  # fmt: skip
# Numbers of descriptor.proto; uint64 and fixed64 are above a BIGINT.
_FIELDS: Final = {
    1: "DOUBLE",
    2: "FLOAT",
    4: "DECIMAL(20, 0)",
    6: "DECIMAL(20, 0)",
    8: "BOOLEAN",
    9: "STRING",
    12: "BINARY",
}
_MESSAGE: Final = (10, 11)
_ENUM: Final = 14
_UNMAPPED: Final = re.compile(r'"logicalType": ?"((?:time|local-timestamp)-\w+|timestamp-nanos|duration)"')


class _Type(NamedTuple):
    ddl: str
    convert: Callable[[Any], Any]


def _optional(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _struct(fields: dict[str, _Type], read_field: Callable[[Any, str], Any]) -> _Type:
    if not fields:
        raise ConfigError("schema: an object or message has no fields, columns need at least one")
    ddl = ", ".join(f"`{name}`: {field.ddl}" for name, field in fields.items())
    convert = {name: functools.partial(_optional, field.convert) for name, field in fields.items()}
    return _Type(f"STRUCT<{ddl}>", lambda value: {name: of(read_field(value, name)) for name, of in convert.items()})


def _json_type(schema: Any, depth: int = 0) -> _Type:
    """Raises ConfigError for what columns cannot represent."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, list):
        kind = next(iter(set(kind) - {"null"}), None) if len(set(kind) - {"null"}) == 1 else None
    if kind in _SCALARS:
        return _Type(*_SCALARS[kind])
    if depth < _DEPTH_MAX and kind == "array" and "items" in schema:
        item = _json_type(schema["items"], depth + 1)
        of_item = functools.partial(_optional, item.convert)
        return _Type(f"ARRAY<{item.ddl}>", lambda value: [of_item(part) for part in value])
    if depth < _DEPTH_MAX and kind == "object" and schema.get("properties"):
        fields = {name: _json_type(part, depth + 1) for name, part in schema["properties"].items()}
        return _struct(fields, dict.get)
    raise ConfigError(
        f"JSON schema: {json.dumps(schema):.100} must be a string, integer, number, boolean, array or object with fields"
    )


def _message_type(descriptor: Any, depth: int = 0) -> _Type:
    if depth > _DEPTH_MAX:
        raise ConfigError(
            f"Protobuf schema: {descriptor.full_name} holds itself or is nested more than {_DEPTH_MAX} times"
        )
    return _struct({field.name: _field_type(field, depth) for field in descriptor.fields}, _field_value)


def _field_type(field: Any, depth: int) -> _Type:
    if field.type in _MESSAGE and field.message_type.GetOptions().map_entry:
        key, value = (_field_type(part, depth + 1) for part in field.message_type.fields)
        return _Type(f"MAP<{key.ddl}, {value.ddl}>", lambda entries: {k: value.convert(entries[k]) for k in entries})
    if field.type in _MESSAGE:
        type_ = _message_type(field.message_type, depth + 1)
    elif field.type == _ENUM:
        names = {number: item.name for number, item in field.enum_type.values_by_number.items()}
        type_ = _Type("STRING", lambda number: names.get(number, str(number)))
    elif field.type in (4, 6):
        from decimal import Decimal

        type_ = _Type(_FIELDS[field.type], Decimal)
    else:
        type_ = _Type(_FIELDS.get(field.type, "BIGINT"), _same)
    if not field.is_repeated:
        return type_
    return _Type(f"ARRAY<{type_.ddl}>", lambda values: [type_.convert(value) for value in values])


def _field_value(message: Any, name: str) -> Any:
    """The value of a field, None for one that has presence and is not set."""
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None or (field.has_presence and not message.HasField(name)):
        return None
    return getattr(message, name)


def _same(value: Any) -> Any:
    return value


def _avro_value(value: Any) -> Any:
    """A value of fastavro, with UUIDs as text."""
    if isinstance(value, dict):
        return {name: _avro_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_avro_value(item) for item in value]
    return str(value) if isinstance(value, UUID) else value


@functools.lru_cache(maxsize=64)
def _type_of(kind: str, text: str) -> _Type:
    """The type of the columns of a schema. Raises ConfigError."""
    if kind == "AVRO":
        if unmapped := _UNMAPPED.search(text):
            raise ConfigError(f"Avro schema: logical type {unmapped[1]} is no type of a column")
        return _Type(avro.ddl(text), _avro_value)
    if kind == PROTOBUF:
        return _message_type(parsed(kind, text).message((0,)))
    return _json_type(json.loads(text))


def _header(properties: Any) -> str | None:
    """The header among properties in any of the formats of option propertiesFormat."""
    if isinstance(properties, str):
        if HEADER not in properties:  # of most messages: no parsing
            return None
        properties = json.loads(properties) if properties.startswith("{") else decode_properties(properties)
    return properties.get(HEADER) if properties else None


def _decode(
    registry: SchemaRegistry, kind: str, text: str, null_on_error: bool, body: bytes | None, properties: Any
) -> Any:
    """Decode a body in a worker. A registry that does not answer is an error in any case: bodies would be lost."""
    if body is None:
        return None
    reader = parsed(kind, text) if kind == "AVRO" else None
    try:
        value = SchemaReader(registry, kind, reader).decode(bytes(body), _header(properties))
        return _type_of(kind, text).convert(value)
    except (DecodeError, TypeError, ValueError) as error:
        if null_on_error and not isinstance(error.__cause__, RegistryError):
            return None
        raise


def from_registry(
    registry: SchemaRegistry,
    subject: str,
    body: Column | str = "body",
    properties: Column | str | None = "properties",
    *,
    null_on_error: bool = False,
) -> Column:
    """See `saturnmq.spark.from_registry`."""
    from pyspark.sql import functions as f

    schema = registry.fetch(SchemaRequest.latest(subject, serialized=False), refresh=True)
    if schema.kind == PROTOBUF:
        schema = registry.fetch(SchemaRequest.latest(subject, serialized=True), refresh=True)
    try:
        parsed_schema(schema)
        ddl = _type_of(schema.kind, schema.text).ddl
    except ConfigError as error:
        raise ConfigError(f"subject {subject} of {registry!r}: {error}") from None
    decode = functools.partial(_decode, registry, schema.kind, schema.text, null_on_error)
    return f.udf(decode, ddl, useArrow=False)(_column(body), f.lit(None) if properties is None else _column(properties))


def _column(column: Column | str) -> Column:
    from pyspark.sql import functions as f

    return f.col(column) if isinstance(column, str) else column
