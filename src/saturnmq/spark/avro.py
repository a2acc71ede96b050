"""Avro bodies, all of one schema, as Spark columns. `saturnmq.avro` decodes; the mapping to Spark's types is here.

A body is one datum without a header; a body that ends too early or too late is invalid.

Requirements: PIP-08.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from saturnmq.avro import BOOLEAN, DECIMAL, INT, TYPE_NAMES, Schema
from saturnmq.protocol.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

_PRIMITIVES: Final = {"long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "bytes": "BINARY", "string": "STRING"}
_LOGICAL: Final = {
    INT["logicalType"]: "INT", BOOLEAN: "BOOLEAN", "date": "DATE", "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
}  # fmt: skip


def _type(schema: Any, named: dict[str, str]) -> str:
    """Return Spark's DDL of a strict schema. Raises ConfigError for what columns cannot represent. named: DDL by name."""
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1 or len(schema) > 2:
            raise ConfigError(f"Avro schema: union {json.dumps(schema):.200} must be a type, or null and a type")
        return _type(branches[0], named)
    if isinstance(schema, str):
        ddl = _PRIMITIVES.get(schema) or named.get(schema)
        if ddl is None:
            raise ConfigError(f"Avro schema: {schema!r} is no type of a column; there are {TYPE_NAMES}")
        return ddl
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == DECIMAL:
        ddl = f"DECIMAL({schema['precision']}, {schema['scale']})"
    elif kind == "array":
        ddl = f"ARRAY<{_type(schema['items'], named)}>"
    elif kind == "map":
        ddl = f"MAP<STRING, {_type(schema['values'], named)}>"
    elif kind == "record":
        fields = ", ".join(f"`{field['name']}`: {_type(field['type'], named)}" for field in schema["fields"])
        ddl = f"STRUCT<{fields}>"
    else:
        ddl = _LOGICAL.get(logical) or {"enum": "STRING", "fixed": "BINARY"}[kind]
    if "name" in schema:
        named[schema["name"]] = ddl
    return ddl


class _Top(NamedTuple):
    ddl: str
    schema: Schema


@functools.lru_cache(maxsize=16)
def _top(text: str) -> _Top:
    """Return the Spark type and the schema of a text. Raises ConfigError."""
    schema = Schema(text)
    ddl = _type(schema.strict, {})
    if not ddl.startswith("STRUCT<`"):
        raise ConfigError("Avro schema: it must be a record with fields")
    return _Top(ddl, schema)


def ddl(schema: str) -> str:
    """Return Spark's type of a schema in JSON. Raises ConfigError."""
    return _top(schema).ddl


def decode(schema: str, data: bytes) -> dict[str, Any]:
    """Decode one datum. Raises ValueError for a body that does not match the schema, ConfigError for an invalid schema."""
    datum: dict[str, Any] = _top(schema).schema.decode(data)
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
