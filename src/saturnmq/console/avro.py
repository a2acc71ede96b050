"""Decodes Avro for pages: object container files, which have their schema with them, and bodies of a topic whose schema is known.

Bodies and the schemas inside container files are from strangers: depth, number of values and size of the result are bounded, which
is why this is no general Avro library. Reference: Avro 1.12 specification, binary encoding and object container files.

Requirements: CON-09, UX-14.
"""

# A body of a topic with a schema is one datum, with or without the header of a schema registry: byte 0 and four bytes of an id.
from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

CONTAINER: Final = b"Obj\x01"
VALUES_MAX: Final = 20_000
DEPTH_MAX: Final = 32
SCHEMA_BYTES_MAX: Final = 256 * 1024
NAME_MAX: Final = 1024  # characters of a name; each value of a named type has a cost in proportion
INFLATED_MAX: Final = 1024 * 1024  # of all blocks of a file
_SYNC_BYTES: Final = 16
_REGISTRY_BYTES: Final = 5
_PRIMITIVE_TYPES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class AvroError(ValueError):
    """The bytes are no Avro of this schema, or more than a page shows."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.values = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise AvroError("it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def whole(self) -> int:
        zigzag = shift = 0
        while True:
            byte = self.take(1)[0]
            zigzag |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (zigzag >> 1) ^ -(zigzag & 1)
            shift += 7
            if shift > 63:
                raise AvroError("a number has more than 64 bits")

    def counted(self) -> bytes:
        return self.take(self.whole())


class Schema:
    """A schema. Raises AvroError for text that is none.

    Example:
        Schema('{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}').decode(b"\\x02")
    """

    def __init__(self, text: str | bytes) -> None:
        if len(text) > SCHEMA_BYTES_MAX:
            raise AvroError(f"the schema has more than {SCHEMA_BYTES_MAX} bytes")
        try:
            self._root = json.loads(text)
        except (ValueError, RecursionError):
            raise AvroError("the schema is no JSON") from None
        self._named: dict[str, Any] = {}
        self._declare(self._root, "", 0)

    def decode(self, data: bytes) -> Any:
        """One datum, as values that JSON has. Raises AvroError also for bytes that remain."""
        reader = _Reader(data)
        datum = self.read(reader)
        if reader.at != len(data):
            raise AvroError(f"{len(data) - reader.at} bytes remain")
        return datum

    def read(self, reader: _Reader) -> Any:
        """The next datum."""
        return self._value(self._root, "", reader, 0)

    def _declare(self, schema: Any, space: str, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise AvroError("the schema is nested too deeply")
        if isinstance(schema, list):
            for branch in schema:
                self._declare(branch, space, depth + 1)
        if not isinstance(schema, dict):
            return
        name = schema.get("name")
        if any(len(part) > NAME_MAX for part in (name, schema.get("namespace")) if isinstance(part, str)):
            raise AvroError(f"the schema has a name of more than {NAME_MAX} characters")
        if isinstance(name, str) and schema.get("type") in ("record", "error", "enum", "fixed"):
            full = _full(name, schema.get("namespace", space))
            self._named[full] = schema
            space = full.rpartition(".")[0]
        for part in ("items", "values", "type"):
            self._declare(schema.get(part), space, depth + 1)
        for field in _listed(schema, "fields"):
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise AvroError("a field of the schema has no name")
            self._declare(field.get("type"), space, depth + 1)

    def _value(self, schema: Any, space: str, reader: _Reader, depth: int) -> Any:
        reader.values += 1
        if reader.values > VALUES_MAX or depth > DEPTH_MAX:
            raise AvroError("it has more values than a page shows")
        if isinstance(schema, str):
            if schema in _PRIMITIVE_TYPES:
                return _primitive(schema, reader)
            named_schema = self._named.get(_full(schema, space)) or self._named.get(schema)
            if named_schema is None:
                raise AvroError(f"the schema has no type {schema!r:.80}")
            return self._value(named_schema, space, reader, depth + 1)
        if isinstance(schema, list):
            branch = reader.whole()
            if not 0 <= branch < len(schema):
                raise AvroError(f"a union has no branch {branch}")
            return self._value(schema[branch], space, reader, depth + 1)
        if not isinstance(schema, dict):
            raise AvroError("the schema has a type that is neither text, list nor object")
        return self._complex(schema, space, reader, depth)

    def _complex(self, schema: dict[str, Any], space: str, reader: _Reader, depth: int) -> Any:
        kind = schema.get("type")
        name = schema.get("name")
        if isinstance(name, str):
            space = _full(name, schema.get("namespace", space)).rpartition(".")[0]
        match kind:
            case "record" | "error":
                fields = _listed(schema, "fields")
                return {field["name"]: self._value(field.get("type"), space, reader, depth + 1) for field in fields}
            case "enum":
                symbols, number = _listed(schema, "symbols"), reader.whole()
                if not 0 <= number < len(symbols):
                    raise AvroError(f"an enum has no symbol {number}")
                return symbols[number]
            case "array":
                return _blocks(reader, lambda: self._value(schema.get("items"), space, reader, depth + 1))
            case "map":
                pairs = _blocks(
                    reader, lambda: (_text(reader), self._value(schema.get("values"), space, reader, depth + 1))
                )
                return dict(pairs)
            case "fixed":
                count = schema.get("size")
                return _logical(schema, reader.take(count if isinstance(count, int) else -1))
        return _logical(schema, self._value(kind, space, reader, depth + 1))


def container(data: bytes) -> list[Any]:
    """The data of an object container file. Raises AvroError."""
    reader = _Reader(data)
    if reader.take(len(CONTAINER)) != CONTAINER:
        raise AvroError("it is no container file")
    facts = dict(_blocks(reader, lambda: (_text(reader), reader.counted())))
    schema, codec = Schema(facts.get("avro.schema", b"")), facts.get("avro.codec", b"null")
    sync, datums, remaining_bytes = reader.take(_SYNC_BYTES), [], INFLATED_MAX
    while reader.at < len(data):
        count, block = reader.whole(), reader.counted()
        part = _Reader(_inflated(block, codec, remaining_bytes))
        remaining_bytes -= len(part.data) if codec != b"null" else 0
        part.values = reader.values
        for _ in range(count):
            datums.append(schema.read(part))
        reader.values = part.values
        if reader.take(_SYNC_BYTES) != sync:
            raise AvroError("a block has another mark than the file")
    return datums


class Schemas:
    """Schemas of topics, in files of a folder: `TOPIC.avsc`, or `id-N.avsc` for bodies with the id N of a schema registry.

    Files are read again when they change. Methods block.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cached_schemas: dict[str, tuple[int, Schema | None]] = {}

    def decode(self, topic: str, data: bytes) -> Any:
        """The datum of a body. Raises AvroError if no schema is known or it does not fit."""
        if data[:1] == b"\x00" and len(data) > _REGISTRY_BYTES:
            (number,) = struct.unpack(">I", data[1:_REGISTRY_BYTES])
            for name in (f"id-{number}", topic):
                schema = self._schema(name)
                if schema is not None:
                    return schema.decode(data[_REGISTRY_BYTES:])
        schema = self._schema(topic)
        if schema is None:
            raise AvroError(f"no schema of {topic}")
        return schema.decode(data)

    def _schema(self, name: str) -> Schema | None:
        if "/" in name or "\0" in name or name.startswith("."):
            return None
        path = self._folder / f"{name}.avsc"
        try:
            stamp = path.stat().st_mtime_ns
            cached = self._cached_schemas.get(name)
            if cached is None or cached[0] != stamp:
                with path.open("rb") as file:
                    cached = (stamp, Schema(file.read(SCHEMA_BYTES_MAX + 1)))
                self._cached_schemas[name] = cached
        except OSError:
            self._cached_schemas.pop(name, None)
            return None
        return cached[1]


# ---- values


def _primitive(kind: str, reader: _Reader) -> Any:
    match kind:
        case "null":
            return None
        case "boolean":
            byte = reader.take(1)
            if byte not in (b"\0", b"\1"):
                raise AvroError("a boolean is neither 0 nor 1")
            return byte == b"\1"
        case "int" | "long":
            return reader.whole()
        case "float" | "double":
            (number,) = struct.unpack("<f" if kind == "float" else "<d", reader.take(4 if kind == "float" else 8))
            return number if math.isfinite(number) else str(number)
        case "bytes":
            return reader.counted()
    return _text(reader)


def _text(reader: _Reader) -> str:
    try:
        return reader.counted().decode()
    except UnicodeDecodeError:
        raise AvroError("a string is no UTF-8") from None


def _blocks(reader: _Reader, read_item: Callable[[], Any]) -> list[Any]:
    items: list[Any] = []
    while count := reader.whole():
        if count < 0:
            count = -count
            reader.whole()  # bytes of the block
        if count > VALUES_MAX:
            raise AvroError("it has more values than a page shows")
        for _ in range(count):
            reader.values += 1
            if reader.values > VALUES_MAX:
                raise AvroError("it has more values than a page shows")
            items.append(read_item())
    return items


def _logical(schema: dict[str, Any], value: Any) -> Any:
    """A value with a logical type as text that people read."""
    kind = schema.get("logicalType")
    try:
        if kind == "decimal" and isinstance(value, bytes):
            scale = schema.get("scale", 0)
            return _decimal(int.from_bytes(value, "big", signed=True), scale if isinstance(scale, int) else 0)
        if isinstance(value, int) and not isinstance(value, bool):
            if kind == "date":
                return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
            if kind in ("timestamp-millis", "timestamp-micros"):
                return (_EPOCH + timedelta(microseconds=value * (1000 if kind.endswith("millis") else 1))).isoformat()
    except OverflowError:
        return value
    return value


def _decimal(number: int, scale: int) -> str:
    if not 0 <= scale <= 1000:
        return str(number)
    digits = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return sign + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


def _inflated(block: bytes, codec: bytes, bytes_max: int) -> bytes:
    if codec == b"null":
        return block
    if codec != b"deflate":
        raise AvroError(f"the codec {codec[:40]!r} is not known here")
    inflating = zlib.decompressobj(-15)
    try:
        inflated = inflating.decompress(block, bytes_max + 1)
    except zlib.error as error:
        raise AvroError(f"a block does not decompress: {error}") from None
    if inflating.unconsumed_tail or len(inflated) > bytes_max:
        raise AvroError("a block is larger than a page shows")
    return inflated


def _listed(schema: dict[str, Any], key: str) -> list[Any]:
    entries = schema.get(key)
    return entries if isinstance(entries, list) else []


def _full(name: str, space: Any) -> str:
    return name if "." in name or not isinstance(space, str) or not space else f"{space}.{name}"
