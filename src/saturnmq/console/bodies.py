"""Decides how the body of a message is shown: Avro and JSON with indentation, text, or hexadecimal lines with their characters.

Requirements: CON-09.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from saturnmq.console.avro import CONTAINER, AvroError, Schemas, container
from saturnmq.escaping import escaped

TEXT_MAX: Final = 64 * 1024  # characters of a body that a page shows
INDENTED_MAX: Final = 4 * TEXT_MAX
AVRO_BYTES_MAX: Final = 1024 * 1024
FORMS: Final = ("json", "avro", "text", "hex")
_HEX_BYTES: Final = 16


@dataclass(frozen=True)
class ShownBody:
    """A body as a page shows it. form: one of FORMS. cut: whether it is longer."""

    form: str
    text: str
    size: int
    cut: bool


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
            datum: Any = container(data)
        elif schemas is not None and topic:
            datum = schemas.decode(topic, data)
        else:
            return None
        return _lines(_indented(datum))
    except (AvroError, ValueError, TypeError, RecursionError):
        return None


def _indented(value: Any) -> str:
    """JSON with indentation. Raises ValueError if it is much longer so: deep nesting makes a page of many MB."""
    parts, size = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=_binary).iterencode(value):
        size += len(part)
        if size > INDENTED_MAX:
            raise ValueError("too long")
        parts.append(part)
    return "".join(parts)


def _binary(value: object) -> str:
    if isinstance(value, bytes):
        return f"0x{value[:TEXT_MAX].hex()}"
    raise TypeError(type(value).__name__)


def _lines(text: str) -> str:
    return "\n".join(escaped(line) for line in text.split("\n"))
