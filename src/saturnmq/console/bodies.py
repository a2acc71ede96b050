"""Decides how the body of a message is shown: Avro and JSON with indentation, text, or hexadecimal lines with their characters.

Requirements: CON-09.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from saturnmq.avro import CONTAINER, SCHEMA_BYTES_MAX, Schema, read_container
from saturnmq.escaping import escaped
from saturnmq.protocol.errors import ConfigError

TEXT_MAX: Final = 64 * 1024  # characters of a body that a page shows
INDENTED_MAX: Final = 4 * TEXT_MAX
# Of an Avro body, and of the blocks of a container file inflated: four values a byte are 100 MB at worst.
AVRO_BYTES_MAX: Final = 128 * 1024
_REGISTRY_BYTES: Final = 5  # before a datum: byte 0, and four bytes with the id of a schema in a registry
_HEX_BYTES: Final = 16


@dataclass(frozen=True)
class ShownBody:
    """A body as a page shows it. form: json, avro, text or hex. cut: whether it is longer."""

    form: str
    text: str
    size: int
    cut: bool


class Schemas:
    """Schemas of topics, in files of a folder: `TOPIC.avsc`, or `id-N.avsc` for bodies with the id N of a schema registry.

    Files are read again when they change. Methods block.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cached_schemas: dict[str, tuple[int, Schema | None]] = {}

    def decode(self, topic: str, data: bytes) -> Any:
        """The datum of a body. Raises ValueError if no schema is known or it does not fit, ConfigError for a wrong one."""
        if data[:1] == b"\x00" and len(data) > _REGISTRY_BYTES:
            (number,) = struct.unpack(">I", data[1:_REGISTRY_BYTES])
            for name in (f"id-{number}", topic):
                schema = self._schema(name)
                if schema is not None:
                    return schema.decode(data[_REGISTRY_BYTES:])
        schema = self._schema(topic)
        if schema is None:
            raise ValueError(f"no schema of {topic}")
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


def body_of(data: bytes, *, topic: str = "", schemas: Schemas | None = None, chosen_form: str = "") -> ShownBody:
    """Show a body. schemas: of topics whose bodies are Avro; chosen_form: `text` or `hex` instead of what the bytes look like."""
    if chosen_form == "hex":
        return _hex(data)
    if chosen_form != "text":
        avro_text = _avro(data, topic, schemas)
        if avro_text is not None:
            return ShownBody("avro", avro_text, len(data), False)
    part = data[:TEXT_MAX]
    cut = len(data) > TEXT_MAX
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        if chosen_form == "text":
            text = part.decode(errors="replace")
        elif not cut or error.start < len(part) - 4:
            return _hex(data)
        else:
            text = part[: error.start].decode()
    if chosen_form != "text" and not cut and text.lstrip()[:1] in ("{", "["):
        try:
            return ShownBody("json", _lines(_indented(json.loads(text))), len(data), cut)
        except (ValueError, RecursionError):
            pass
    return ShownBody("text", _lines(text), len(data), cut)


def _hex(data: bytes) -> ShownBody:
    part = data[: TEXT_MAX // 4]
    lines = []
    for at in range(0, len(part), _HEX_BYTES):
        row = part[at : at + _HEX_BYTES]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{3 * _HEX_BYTES}} {shown}")
    return ShownBody("hex", "\n".join(lines), len(data), len(data) > len(part))


def _avro(data: bytes, topic: str, schemas: Schemas | None) -> str | None:
    """The datum of an Avro body as JSON; None if it is none, or no schema is known."""
    if len(data) > AVRO_BYTES_MAX:
        return None
    try:
        if data.startswith(CONTAINER):
            datum: Any = read_container(data, inflated_max=AVRO_BYTES_MAX)
        elif schemas is not None and topic:
            datum = schemas.decode(topic, data)
        else:
            return None
        return _lines(_indented(datum))
    except (ConfigError, ValueError, TypeError, RecursionError):
        return None


def _indented(value: Any) -> str:
    """JSON with indentation. Raises ValueError if it is much longer so: deep nesting makes a page of many MB."""
    parts, size = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=_text).iterencode(value):
        size += len(part)
        if size > INDENTED_MAX:
            raise ValueError("too long")
        parts.append(part)
    return "".join(parts)


def _text(value: object) -> str:
    """A value that JSON does not have."""
    if isinstance(value, bytes):
        return f"0x{value[:TEXT_MAX].hex()}"
    if isinstance(value, date):  # or a time
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    raise TypeError(type(value).__name__)


def _lines(text: str) -> str:
    return "\n".join(escaped(line) for line in text.split("\n"))
