"""Decodes message bodies in Avro's binary encoding, all of one schema, to Spark columns.

fastavro decodes; the mapping to Spark types is ours. A body is one datum without a header; a body that ends too early or too late
is invalid. Every item of an array must have at least one byte, or the schema is rejected, so that no body yields more items than it
has bytes. Where fastavro accepts more than Avro allows (a boolean 2, an int beyond 32 bits, branch -1, symbol -1, a decimal of too
many digits), the schema passed to it is made stricter; only a varint longer than 64 bits is still decoded as fastavro does.
Reference: Avro 1.12 specification, binary encoding.

Requirements: PIP-08.
"""

from __future__ import annotations

import decimal
import functools
import io
import json
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from saturnmq.protocol.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

_TYPE_NAMES: Final = "null boolean int long float double bytes string record enum array map union fixed"
_DIGITS: Final = 38  # of a decimal in Spark
_NO_BRANCHES: Final = ("no branch",) * 64
_INT: Final = {"type": "int", "logicalType": "saturnmq-int"}


class _Kind(NamedTuple):
    """Spark's DDL of a type, the minimum size of a datum in bytes, and the schema that fastavro reads it by."""

    ddl: str
    least: int
    schema: Any


_PRIMITIVES: Final[Mapping[str, _Kind]] = {
    "int": _Kind("INT", 1, _INT),
    "long": _Kind("BIGINT", 1, "long"),
    "float": _Kind("FLOAT", 4, "float"),
    "double": _Kind("DOUBLE", 8, "double"),
    "bytes": _Kind("BINARY", 1, "bytes"),
    "string": _Kind("STRING", 1, "string"),
}


class _Mapper:
    """Converts an Avro schema to Spark DDL and to a stricter schema for fastavro.

    Raises ConfigError for what columns cannot represent. Logical types that Spark does not have are ignored; named types are
    renamed.
    """

    def __init__(self) -> None:
        self._named: dict[str, _Kind | None] = {}
        self._names = 0

    def kind(self, schema: Any) -> _Kind:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            if schema == "boolean":
                flag = {"type": "fixed", "size": 1, "name": self._next_name(), "logicalType": "saturnmq-boolean"}
                return _Kind("BOOLEAN", 1, flag)
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            named_type = self._named.get(schema, schema)
            if isinstance(named_type, _Kind):
                return named_type
            why = "holds itself, columns cannot" if named_type is None else f"is unknown; there are {_TYPE_NAMES}"
            raise ConfigError(f"Avro schema: type {schema!r} {why}")
        name = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(name, dict | list):
            return self.kind(name)
        try:
            if name in ("array", "map"):
                return self._collection(name, schema)
            if name in ("record", "enum", "fixed"):
                return self._name(name, schema)
        except KeyError as error:
            raise ConfigError(f"Avro schema: {name} has no {error}") from None
        if name != "boolean" and name not in _PRIMITIVES:
            raise ConfigError(f"Avro schema: {name!r} is no type of a column; there are {_TYPE_NAMES}")
        return _logical(self.kind(name), schema)

    def _next_name(self) -> str:
        self._names += 1
        return f"T{self._names}"

    def _union(self, branches: list[Any]) -> _Kind:
        """Map a union of null and one type; other unions have no column type."""
        non_null = [branch for branch in branches if branch != "null"]
        if len(non_null) != 1 or len(branches) > 2:
            raise ConfigError(f"Avro schema: union {json.dumps(branches)} must be a type, or null and a type")
        inner = self.kind(non_null[0])
        return _Kind(inner.ddl, 1, [branch if branch == "null" else inner.schema for branch in branches])

    def _collection(self, name: str, schema: dict[str, Any]) -> _Kind:
        if name == "map":
            value = self.kind(schema["values"])
            return _Kind(f"MAP<STRING, {value.ddl}>", 1, {"type": "map", "values": value.schema})
        item = self.kind(schema["items"])
        if not item.least:
            raise ConfigError(
                f"Avro schema: items {json.dumps(schema['items'])} of an array have no bytes, nothing bounds their number"
            )
        return _Kind(f"ARRAY<{item.ddl}>", 1, {"type": "array", "items": item.schema})

    def _name(self, name: str, schema: dict[str, Any]) -> _Kind:
        declared_name, space = str(schema["name"]), schema.get("namespace")
        names = {
            declared_name,
            f"{space}.{declared_name}" if space else declared_name,
            declared_name.rpartition(".")[2],
        }
        self._named |= dict.fromkeys(names)
        called = self._next_name()
        kind = {"record": self._record, "enum": _enum, "fixed": _fixed}[name](schema, called)
        self._named |= dict.fromkeys(names, kind._replace(schema=called))
        return kind

    def _record(self, schema: dict[str, Any], called: str) -> _Kind:
        fields = [(str(item["name"]), self.kind(item["type"])) for item in schema["fields"]]
        ddl = ", ".join(f"`{name}`: {kind.ddl}" for name, kind in fields)
        inner = [{"name": name, "type": kind.schema} for name, kind in fields]
        least = sum(kind.least for _name, kind in fields)
        return _Kind(f"STRUCT<{ddl}>", least, {"type": "record", "name": called, "fields": inner})


def _enum(schema: dict[str, Any], called: str) -> _Kind:
    return _Kind("STRING", 1, {"type": "enum", "name": called, "symbols": schema["symbols"]})


def _fixed(schema: dict[str, Any], called: str) -> _Kind:
    size = schema["size"]
    if type(size) is not int or size < 0:
        raise ConfigError(f"Avro schema: size {size!r} of a fixed is no number of bytes")
    return _logical(_Kind("BINARY", size, {"type": "fixed", "name": called, "size": size}), schema)


def _logical(underlying: _Kind, schema: Mapping[str, Any]) -> _Kind:
    """Return the logical type where Spark has it, else the underlying type."""
    name = schema.get("logicalType")
    if name == "date" and underlying.ddl == "INT":
        return underlying._replace(ddl="DATE", schema={"type": "int", "logicalType": name})
    if name in ("timestamp-millis", "timestamp-micros") and underlying.ddl == "BIGINT":
        return underlying._replace(ddl="TIMESTAMP", schema={"type": "long", "logicalType": name})
    if name == "decimal" and underlying.ddl == "BINARY":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if (
            type(precision) is not int
            or type(scale) is not int
            or not 0 <= scale <= precision <= _DIGITS
            or not precision
        ):
            raise ConfigError(
                f"Avro schema: decimal({precision}, {scale}) is none of Spark's, of 1 to {_DIGITS} digits"
            )
        inner = {"type": "bytes"} if underlying.schema == "bytes" else underlying.schema
        inner = {**inner, "logicalType": "saturnmq-decimal", "precision": precision, "scale": scale}
        return underlying._replace(ddl=f"DECIMAL({precision}, {scale})", schema=inner)
    return underlying


def _read_boolean(data: bytes, _schema: Any = None, _reader: Any = None) -> bool:
    if data not in (b"\x00", b"\x01"):
        raise ValueError(f"{data!r} is no boolean")
    return data == b"\x01"


def _read_int(data: int, _schema: Any = None, _reader: Any = None) -> int:
    if not -(2**31) <= data < 2**31:
        raise ValueError(f"{data} is no int")
    return data


def _read_decimal(data: bytes, schema: Any = None, _reader: Any = None) -> decimal.Decimal:
    """Decode a decimal; fastavro's own reader rounds a value of too many digits."""
    context = decimal.Context(prec=schema["precision"], traps=[decimal.InvalidOperation, decimal.Inexact])
    return context.scaleb(decimal.Decimal(int.from_bytes(data, "big", signed=True)), -schema["scale"])


_READERS: Final[Mapping[str, Callable[..., Any]]] = {
    "fixed-saturnmq-boolean": _read_boolean,
    "int-saturnmq-int": _read_int,
    "bytes-saturnmq-decimal": _read_decimal,
    "fixed-saturnmq-decimal": _read_decimal,
}


def _strict(schema: Any) -> Any:
    """Change a parsed schema in place so that negative branch and symbol numbers are rejected.

    In place, because named types refer to its parts. Symbols become a dict; branches must stay a list, so it is padded with entries
    that have no reader, which -1 to -64 hit.
    """
    if isinstance(schema, list):
        return [*map(_strict, schema), *_NO_BRANCHES]
    if isinstance(schema, dict):
        for part in {"items", "values"} & schema.keys():
            schema[part] = _strict(schema[part])
        for field in schema.get("fields", ()):
            field["type"] = _strict(field["type"])
        if "symbols" in schema:
            schema["symbols"] = dict(enumerate(schema["symbols"]))
    return schema


def _fastavro() -> ModuleType:
    """Import fastavro with our logical types registered. Raises ConfigError where it is not installed."""
    try:
        import fastavro
        import fastavro.read
    except ImportError as error:
        raise ConfigError("Avro needs fastavro: pip install fastavro, or pip install 'saturnmq[spark]'") from error
    fastavro.read.LOGICAL_READERS.update(_READERS)
    return fastavro


class _Top(NamedTuple):
    ddl: str
    read: Callable[[io.BytesIO], dict[str, Any]]


@functools.lru_cache(maxsize=16)
def _top(text: str) -> _Top:
    """Return the Spark type and the reader of a schema. Raises ConfigError."""
    library = _fastavro()
    try:
        kind = _Mapper().kind(json.loads(text))
        if not kind.ddl.startswith("STRUCT<`"):
            raise ConfigError("Avro schema: it must be a record with fields")
        # An enclosing record has the same encoding, and makes a union at the top an ordinary field.
        outer = {"type": "record", "name": "Top", "fields": [{"name": "top", "type": kind.schema}]}
        parsed = _strict(library.parse_schema(outer))
    except ConfigError:
        raise
    except json.JSONDecodeError as error:
        raise ConfigError(f"Avro schema: it is no JSON: {error}") from None
    except Exception as error:  # fastavro's SchemaParseException is no subclass of anything else
        raise ConfigError(f"Avro schema: {type(error).__name__}: {error}") from error

    def read(stream: io.BytesIO) -> dict[str, Any]:
        datum: dict[str, Any] = library.schemaless_reader(stream, parsed, None)["top"]
        return datum

    return _Top(kind.ddl, read)


def ddl(schema: str) -> str:
    """Return Spark's type of a schema in JSON. Raises ConfigError."""
    return _top(schema).ddl


def decode(schema: str, data: bytes) -> dict[str, Any]:
    """Decode one datum. Raises ValueError for a body that does not match the schema, ConfigError for an invalid schema."""
    read, stream = _top(schema).read, io.BytesIO(data)
    try:
        datum = read(stream)
    except Exception as error:  # fastavro raises EOFError, IndexError, OverflowError and others for bad data
        raise ValueError(f"no datum of the schema: {error!r}") from error
    trailing_bytes = len(data) - stream.tell()
    if trailing_bytes:
        raise ValueError(f"{trailing_bytes} bytes are behind the datum")
    return datum


def _or_none(schema: str, data: bytes | None) -> dict[str, Any] | None:
    try:
        return None if data is None else decode(schema, bytes(data))
    except ValueError:
        return None


def column(schema: str, body: Column) -> Column:
    """Return the bodies as a struct column, null where a body does not match the schema. Raises ConfigError."""
    from pyspark.sql import functions as f

    return f.udf(functools.partial(_or_none, schema), ddl(schema), useArrow=False)(body)
