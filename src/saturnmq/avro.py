"""Decodes Avro's binary encoding with fastavro, by schemas that are made strict first, because bodies are from strangers.

fastavro trusts what it reads: a record that holds itself lets a body of 10 KB overflow the stack of the process, an array of nulls
lets five bytes make a thousand million values, and a branch or a symbol may have a negative number. `Schema` refuses schemas whose
bodies nothing bounds, and passes a stricter one of the others to fastavro, with types of its own names. Only a varint longer than
64 bits is still decoded as fastavro does. Reference: Avro 1.12 specification, binary encoding and object container files.

Requirements: PIP-08, CON-09.
"""

from __future__ import annotations

import decimal
import functools
import io
import json
import sys
import zlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final, NamedTuple

from saturnmq.protocol.errors import ConfigError

CONTAINER: Final = b"Obj\x01"
DEPTH_MAX: Final = 32
SCHEMA_BYTES_MAX: Final = 256 * 1024
DIGITS_MAX: Final = 38  # of a decimal, as in Spark
VALUES_PER_BYTE: Final = 4  # of a body, with nested records counted: more are from schemas that are made for it
VALUES_SPARE: Final = 100  # of a datum beyond that: nulls, empty records
DATUMS_MAX: Final = 20_000  # of a container file
TYPE_NAMES: Final = "null boolean int long float double bytes string record enum array map union fixed"
_NO_BRANCHES: Final = ("no branch",) * 64
_BYTES_MIN: Final = {"null": 0, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1, "boolean": 1}
INT: Final = {"type": "int", "logicalType": "saturnmq-int"}
BOOLEAN: Final = "saturnmq-boolean"
DECIMAL: Final = "saturnmq-decimal"


class _Kind(NamedTuple):
    """A type: the schema that fastavro reads it by, and the values of a datum beyond VALUES_PER_BYTE for each byte, at most."""

    schema: Any
    excess: int


def _kind(schema: Any, bytes_min: int) -> _Kind:
    return _Kind(schema, 1 - VALUES_PER_BYTE * bytes_min)


class _Stricter:
    """Rewrites a schema. Raises ConfigError for one that is wrong or bounds nothing; unknown logical types are ignored.

    What bounds a datum: every value costs a byte, except nulls, empty records and fixed types of size 0. A union costs the byte of
    its branch, an array or a map that of its end. So an item with a positive excess would be free, and is refused.
    """

    def __init__(self) -> None:
        self._named: dict[str, _Kind | None] = {}  # None: being defined
        self._names = 0

    def kind(self, schema: Any, space: str = "", depth: int = 0) -> _Kind:
        if depth > DEPTH_MAX:
            raise ConfigError(f"Avro schema: it is nested more than {DEPTH_MAX} times")
        if isinstance(schema, list):
            branches = [self.kind(branch, space, depth + 1) for branch in schema]
            return _Kind([branch.schema for branch in branches], max(b.excess for b in branches) - VALUES_PER_BYTE)
        if isinstance(schema, str):
            return self._by_name(schema, space)
        name = schema.get("type") if isinstance(schema, dict) else None
        try:
            if name in ("array", "map"):
                return self._collection(name, schema, space, depth)
            if name in ("record", "error", "enum", "fixed"):
                return self._definition(name, schema, space, depth)
        except KeyError as error:
            raise ConfigError(f"Avro schema: {name} has no {error}") from None
        if not isinstance(name, str | dict | list):
            raise ConfigError(f"Avro schema: {schema!r:.80} is no type; there are {TYPE_NAMES}")
        return _logical(self.kind(name, space, depth + 1), schema)

    def _by_name(self, name: str, space: str) -> _Kind:
        if name == "int":
            return _kind(INT, 1)
        if name == "boolean":
            return _kind({"type": "fixed", "size": 1, "name": self._next_name(), "logicalType": BOOLEAN}, 1)
        if name in _BYTES_MIN:
            return _kind(name, _BYTES_MIN[name])
        full = f"{space}.{name}"
        kind = self._named.get(full if full in self._named else name, name)
        if isinstance(kind, _Kind):
            return kind
        why = "holds itself, which nothing bounds" if kind is None else f"is unknown; there are {TYPE_NAMES}"
        raise ConfigError(f"Avro schema: type {name!r:.80} {why}")

    def _next_name(self) -> str:
        self._names += 1
        return f"T{self._names}"

    def _collection(self, name: str, schema: dict[str, Any], space: str, depth: int) -> _Kind:
        part = "items" if name == "array" else "values"
        item = self.kind(schema[part], space, depth + 1)
        if item.excess > (0 if name == "array" else VALUES_PER_BYTE):  # a key of a map has a byte
            raise ConfigError(
                f"Avro schema: {part} {json.dumps(schema[part]):.80} of {name} have too few bytes, nothing bounds their number"
            )
        return _kind({"type": name, part: item.schema}, 1)

    def _definition(self, name: str, schema: dict[str, Any], space: str, depth: int) -> _Kind:
        declared = str(schema["name"])
        outer, dot, short = declared.rpartition(".")
        space = outer if dot else str(schema.get("namespace") or space)
        full = f"{space}.{short}" if space else short
        names = [full, *({declared, short} - self._named.keys())]
        self._named |= dict.fromkeys(names)
        called = self._next_name()
        if name == "enum":
            if not isinstance(schema["symbols"], list):
                raise ConfigError("Avro schema: the symbols of an enum are no list")
            kind = _kind({"type": name, "name": called, "symbols": schema["symbols"]}, 1)
        elif name == "fixed":
            kind = _fixed(schema, called)
        else:
            fields = [(str(field["name"]), self.kind(field["type"], space, depth + 1)) for field in schema["fields"]]
            parts = [{"name": field, "type": kind.schema} for field, kind in fields]
            kind = _Kind(
                {"type": "record", "name": called, "fields": parts}, 1 + sum(kind.excess for _, kind in fields)
            )
        self._named |= dict.fromkeys(names, kind._replace(schema=called))
        return kind


def _fixed(schema: dict[str, Any], called: str) -> _Kind:
    size = schema["size"]
    if type(size) is not int or size < 0:
        raise ConfigError(f"Avro schema: size {size!r} of a fixed is no number of bytes")
    return _logical(_kind({"type": "fixed", "name": called, "size": size}, size), schema)


def _logical(underlying: _Kind, schema: Mapping[str, Any]) -> _Kind:
    """The logical type of a schema, else the underlying type."""
    name, base = schema.get("logicalType"), underlying.schema
    if name == "date" and base is INT:
        return underlying._replace(schema={"type": "int", "logicalType": name})
    if name in ("timestamp-millis", "timestamp-micros") and base == "long":
        return underlying._replace(schema={"type": "long", "logicalType": name})
    is_fixed = isinstance(base, dict) and base["type"] == "fixed" and "logicalType" not in base
    if name == "decimal" and (base == "bytes" or is_fixed):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if (
            type(precision) is not int
            or type(scale) is not int
            or not 0 <= scale <= precision <= DIGITS_MAX
            or not precision
        ):
            raise ConfigError(f"Avro schema: decimal({precision}, {scale}) is none of 1 to {DIGITS_MAX} digits")
        inner = base if is_fixed else {"type": "bytes"}
        return underlying._replace(schema={**inner, "logicalType": DECIMAL, "precision": precision, "scale": scale})
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
    f"fixed-{BOOLEAN}": _read_boolean,
    "int-saturnmq-int": _read_int,
    f"bytes-{DECIMAL}": _read_decimal,
    f"fixed-{DECIMAL}": _read_decimal,
}


def _closed(schema: Any) -> Any:
    """Change a parsed schema in place so that negative branch and symbol numbers are rejected.

    In place, because named types refer to its parts. Symbols become a dict; branches must stay a list, so it is padded with entries
    that have no reader, which -1 to -64 hit.
    """
    if isinstance(schema, list):
        return [*map(_closed, schema), *_NO_BRANCHES]
    if isinstance(schema, dict):
        for part in {"items", "values"} & schema.keys():
            schema[part] = _closed(schema[part])
        for field in schema.get("fields", ()):
            field["type"] = _closed(field["type"])
        if "symbols" in schema:
            schema["symbols"] = dict(enumerate(schema["symbols"]))
    return schema


def _fastavro() -> ModuleType:
    """Import fastavro with our logical types registered. Raises ConfigError where it is not installed."""
    try:
        import fastavro
        import fastavro.read
    except ImportError as error:
        raise ConfigError(f"Avro needs fastavro: {sys.executable} -m pip install fastavro") from error
    fastavro.read.LOGICAL_READERS.update(_READERS)
    return fastavro


class Schema:
    """A schema in JSON. strict: as fastavro reads it. Raises ConfigError.

    Example:
        Schema('{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}').decode(b"\\x02")
    """

    def __init__(self, text: str | bytes) -> None:
        library = _fastavro()
        if len(text) > SCHEMA_BYTES_MAX:
            raise ConfigError(f"Avro schema: it has more than {SCHEMA_BYTES_MAX} bytes")
        try:
            self.strict, excess = _Stricter().kind(json.loads(text))
            if excess > VALUES_SPARE:
                raise ConfigError(f"Avro schema: a datum has more than {VALUES_SPARE} values without bytes")
            # An enclosing record has the same encoding, and makes a union at the top an ordinary field.
            outer = {"type": "record", "name": "Top", "fields": [{"name": "top", "type": self.strict}]}
            self._parsed = _closed(library.parse_schema(outer))
        except ConfigError:
            raise
        except json.JSONDecodeError as error:
            raise ConfigError(f"Avro schema: it is no JSON: {error}") from None
        except Exception as error:  # fastavro's SchemaParseException is no subclass of anything else
            raise ConfigError(f"Avro schema: {type(error).__name__}: {error}") from error
        self._read = library.schemaless_reader

    def read(self, stream: io.BytesIO) -> Any:
        """The next datum. Raises ValueError for bytes that do not match the schema."""
        try:
            return self._read(stream, self._parsed, None)["top"]
        except Exception as error:  # fastavro raises EOFError, IndexError, OverflowError and others for bad data
            raise ValueError(f"no datum of the schema: {error!r}") from error

    def decode(self, data: bytes) -> Any:
        """One datum. Raises ValueError, also for bytes that remain."""
        stream = io.BytesIO(data)
        datum = self.read(stream)
        trailing_bytes = len(data) - stream.tell()
        if trailing_bytes:
            raise ValueError(f"{trailing_bytes} bytes are behind the datum")
        return datum


# ---- object container files
#   header  magic "Obj" 1, map of string to bytes (avro.schema, avro.codec), mark of 16 bytes
#   block   number of datums, bytes as the codec leaves them, the mark of the header


@functools.cache
def _part(*fields: tuple[str, str | int]) -> Schema:
    """A record of a container file: names, and types or sizes of fixed ones."""
    types = [
        {
            "name": name,
            "type": {"type": "fixed", "name": name, "size": kind} if isinstance(kind, int) else json.loads(kind),
        }
        for name, kind in fields
    ]
    return Schema(json.dumps({"type": "record", "name": "Part", "fields": types}))


def read_container(data: bytes, *, inflated_max: int) -> list[Any]:
    """The data of an object container file. inflated_max: bytes of all blocks. Raises ValueError, ConfigError for its schema."""
    stream = io.BytesIO(data)
    head = _part(("magic", 4), ("meta", '{"type": "map", "values": "bytes"}'), ("mark", 16)).read(stream)
    schema, codec = Schema(head["meta"].get("avro.schema", b"")), head["meta"].get("avro.codec", b"null")
    datums: list[Any] = []
    while stream.tell() < len(data):
        block = _part(("count", '"long"'), ("body", '"bytes"'), ("mark", 16)).read(stream)
        if block["mark"] != head["mark"]:
            raise ValueError("a block has another mark than the file")
        if len(datums) + block["count"] > DATUMS_MAX:
            raise ValueError(f"the file has more than {DATUMS_MAX} datums")
        body = _inflated(block["body"], codec, inflated_max)
        inflated_max -= len(body)
        part = io.BytesIO(body)
        datums += [schema.read(part) for _ in range(block["count"])]
    return datums


def _inflated(block: bytes, codec: bytes, bytes_max: int) -> bytes:
    if codec == b"null":
        return block
    if codec != b"deflate":
        raise ValueError(f"the codec {codec[:40]!r} is not known here")
    inflating = zlib.decompressobj(-15)
    try:
        inflated = inflating.decompress(block, bytes_max + 1)
    except zlib.error as error:
        raise ValueError(f"a block does not decompress: {error}") from None
    if inflating.unconsumed_tail or len(inflated) > bytes_max:
        raise ValueError(f"the blocks have more than {bytes_max} bytes")
    return inflated
