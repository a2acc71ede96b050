"""Message bodies in Avro's binary encoding, of one schema, as columns. No jar, no package; pyspark is needed by `column` only.

A body is one datum without a header; one that ends too early or too late is none. Every item of an array or map is taken to have at
least one byte, so that no body makes more items than it has bytes. Source: PIP-08; Avro 1.12 specification, binary encoding.
"""

# Binary encoding.
#   boolean  1 byte, 0 or 1                    string, bytes  long n, n bytes (string: UTF-8)
#   int      zigzag varint, 1..5 bytes         fixed          as many bytes as the schema says
#   long     zigzag varint, 1..10 bytes        enum           int, number of the symbol
#   float    f32 little-endian                 union          int, number of the branch, then its datum
#   double   f64 little-endian                 record         its fields, one after the other
#   array    blocks: long n, n items; ends with n = 0; n < 0: -n items, behind a long with their bytes
#   map      as an array of pairs: string, datum

from __future__ import annotations

import datetime
import decimal
import functools
import json
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from saturnmq.protocol.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DAY: Final = _EPOCH.date()
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_WORDS: Final = "null boolean int long float double bytes string record enum array map union fixed"
Read = Callable[["_Body"], Any]


class _Kind(NamedTuple):
    """How Spark calls a type, and what reads a datum of it."""

    ddl: str
    read: Read


class _Body:
    """Bytes that are read from front to back. Raises ValueError at the end of them."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise ValueError(f"{count} bytes at {self._at}, {self.left} are left")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, bits: int) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits + 3:
                raise ValueError(f"a number at {self._at} does not end")
        if value >> bits:
            raise ValueError(f"a number at {self._at} is too large")
        return (value >> 1) ^ -(value & 1)

    def blocks(self, item: Callable[[], None]) -> None:
        """Call item for each item of an array or map."""
        while count := self.number(64):
            if count < 0:
                count = -count
                self.number(64)  # its bytes, for those who skip it
            if count > self.left:
                raise ValueError(f"{count} items at {self._at}, {self.left} bytes are left")
            for _ in range(count):
                item()


def _flag(body: _Body) -> bool:
    (byte,) = body.take(1)
    if byte > 1:
        raise ValueError(f"{byte} is no boolean")
    return bool(byte)


def _bytes(body: _Body) -> bytes:
    return body.take(body.number(64))


_PLAIN: Final[Mapping[str, _Kind]] = {
    "boolean": _Kind("BOOLEAN", _flag),
    "int": _Kind("INT", lambda body: body.number(32)),
    "long": _Kind("BIGINT", lambda body: body.number(64)),
    "float": _Kind("FLOAT", lambda body: _FLOAT.unpack(body.take(4))[0]),
    "double": _Kind("DOUBLE", lambda body: _DOUBLE.unpack(body.take(8))[0]),
    "bytes": _Kind("BINARY", _bytes),
    "string": _Kind("STRING", lambda body: _bytes(body).decode()),
}


class _Reader:
    """A schema, taken apart. Raises ConfigError for what has no columns."""

    def __init__(self) -> None:
        self._named: dict[str, _Kind | None] = {}

    def kind(self, schema: Any) -> _Kind:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema]
            known = self._named.get(schema, schema)
            if isinstance(known, _Kind):
                return known
            why = "holds itself, columns cannot" if known is None else f"is unknown; there are {_WORDS}"
            raise ConfigError(f"Avro schema: type {schema!r} {why}")
        name = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(name, dict | list):
            return self.kind(name)
        try:
            if name in ("array", "map"):
                return self._many(name, schema)
            if name in ("record", "enum", "fixed"):
                return self._name(name, schema)
        except KeyError as error:
            raise ConfigError(f"Avro schema: {name} lacks {error}") from None
        if not isinstance(name, str) or name not in _PLAIN:
            raise ConfigError(f"Avro schema: {name!r} is no type of a column; there are {_WORDS}")
        return _logical(_PLAIN[name], schema)

    def _union(self, branches: list[Any]) -> _Kind:
        """A type or null; other unions have no column type."""
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1 or len(branches) > 2:
            raise ConfigError(f"Avro schema: union {json.dumps(branches)} must be a type, or null and a type")
        inner, where = self.kind(others[0]), branches.index(others[0])

        def read(body: _Body) -> Any:
            branch = body.number(32)
            if not 0 <= branch < len(branches):
                raise ValueError(f"a union has no branch {branch}")
            return inner.read(body) if branch == where else None

        return _Kind(inner.ddl, read)

    def _many(self, name: str, schema: dict[str, Any]) -> _Kind:
        if name == "array":
            inner = self.kind(schema["items"])

            def read_array(body: _Body) -> list[Any]:
                found: list[Any] = []
                body.blocks(lambda: found.append(inner.read(body)))
                return found

            return _Kind(f"ARRAY<{inner.ddl}>", read_array)
        value = self.kind(schema["values"])

        def read_map(body: _Body) -> dict[str, Any]:
            found: dict[str, Any] = {}

            def pair() -> None:
                key = _bytes(body).decode()
                found[key] = value.read(body)

            body.blocks(pair)
            return found

        return _Kind(f"MAP<STRING, {value.ddl}>", read_map)

    def _name(self, name: str, schema: dict[str, Any]) -> _Kind:
        own, space = str(schema["name"]), schema.get("namespace")
        names = {own, f"{space}.{own}" if space else own, own.rpartition(".")[2]}
        self._named |= dict.fromkeys(names)
        made = {"record": self._record, "enum": _enum, "fixed": _fixed}[name](schema)
        self._named |= dict.fromkeys(names, made)
        return made

    def _record(self, schema: dict[str, Any]) -> _Kind:
        fields = [(str(item["name"]), self.kind(item["type"])) for item in schema["fields"]]
        ddl = ", ".join(f"`{name}`: {kind.ddl}" for name, kind in fields)
        return _Kind(f"STRUCT<{ddl}>", lambda body: {name: kind.read(body) for name, kind in fields})


def _enum(schema: dict[str, Any]) -> _Kind:
    symbols = tuple(map(str, schema["symbols"]))

    def read(body: _Body) -> str:
        number = body.number(32)
        if not 0 <= number < len(symbols):
            raise ValueError(f"an enum has no symbol {number}")
        return symbols[number]

    return _Kind("STRING", read)


def _fixed(schema: dict[str, Any]) -> _Kind:
    size = int(schema["size"])
    return _logical(_Kind("BINARY", lambda body: body.take(size)), schema)


def _logical(plain: _Kind, schema: Mapping[str, Any]) -> _Kind:
    """The type that logicalType says, where Spark has one; else the plain one."""
    name, read = schema.get("logicalType"), plain.read
    if name == "date" and plain.ddl == "INT":
        return _Kind("DATE", lambda body: _DAY + datetime.timedelta(days=read(body)))
    if name in ("timestamp-millis", "timestamp-micros") and plain.ddl == "BIGINT":
        unit = 1000 if name == "timestamp-millis" else 1
        return _Kind("TIMESTAMP", lambda body: _EPOCH + datetime.timedelta(microseconds=read(body) * unit))
    if name == "decimal" and plain.ddl == "BINARY":
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        context = decimal.Context(prec=precision, traps=[decimal.InvalidOperation, decimal.Inexact])

        def number(body: _Body) -> decimal.Decimal:
            whole = decimal.Decimal(int.from_bytes(read(body), "big", signed=True))
            return context.scaleb(whole, -scale)

        return _Kind(f"DECIMAL({precision}, {scale})", number)
    return plain


@functools.lru_cache(maxsize=16)
def _top(text: str) -> _Kind:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"Avro schema: it is no JSON: {error}") from None
    made = _Reader().kind(schema)
    if not made.ddl.startswith("STRUCT<`"):
        raise ConfigError("Avro schema: it must be a record with fields")
    return made


def ddl(schema: str) -> str:
    """Spark's type of a schema in JSON. Raises ConfigError."""
    return _top(schema).ddl


def decode(schema: str, data: bytes) -> dict[str, Any]:
    """The datum. Raises ValueError for a body that is none of the schema."""
    body = _Body(data)
    try:
        made: dict[str, Any] = _top(schema).read(body)
    except (OverflowError, decimal.DecimalException, RecursionError) as error:
        raise ValueError(f"out of range: {error!r}") from error
    if body.left:
        raise ValueError(f"{body.left} bytes are behind the datum")
    return made


def _or_none(schema: str, data: bytes | None) -> dict[str, Any] | None:
    try:
        return None if data is None else decode(schema, bytes(data))
    except ValueError:
        return None


def column(schema: str, body: Column) -> Column:
    """The bodies as a struct, null where a body is none of the schema. Raises ConfigError."""
    from pyspark.sql import functions as f

    return f.udf(functools.partial(_or_none, schema), ddl(schema), useArrow=False)(body)
