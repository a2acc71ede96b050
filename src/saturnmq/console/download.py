"""Messages as files that a browser saves: JSON lines, or a table that a spreadsheet opens.

Requirements: CON-09, CON-11.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from saturnmq.client.message import Message
from saturnmq.console.conditions import readable

CELL_MAX: Final = 32_767  # characters that a spreadsheet takes
COLUMNS: Final = ("topic", "broker", "queue", "offset", "id", "tag", "keys", "born_ms", "stored_ms", "attempt",
                  "properties", "body", "encoding")  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def fields_of(message: Message[bytes]) -> dict[str, Any]:
    """A message by COLUMNS. encoding: of the body, utf-8 or base64; empty, without a body, if it does not decompress."""
    record, body = message.record, readable(message)
    try:
        text, encoding = ("", "") if body is None else (body.decode(), "utf-8")
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body or b"").decode(), "base64"
    values = (
        record.topic,
        message.queue.broker_name,
        message.queue.queue_id,
        message.offset,
        message.message_id,
        message.tag or "",
        " ".join(message.keys),
        record.born_timestamp_ms,
        record.store_timestamp_ms,
        message.attempt,
        dict(message.properties),
        text,
        encoding,
    )
    return dict(zip(COLUMNS, values, strict=True))


def json_line(fields: Mapping[str, Any]) -> bytes:
    """One line of JSON."""
    return json.dumps(fields).encode() + b"\n"


def csv_line(values: Sequence[Any]) -> bytes:
    """One line of a table, in UTF-8. Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC).writerow([_cell(value) for value in values])
    return out.getvalue().encode(errors="replace")


def harmless(text: str) -> str:
    """Text for a spreadsheet, with an apostrophe before what it would run as a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def _cell(value: Any) -> Any:
    if isinstance(value, int):
        return value
    text = json.dumps(value) if isinstance(value, dict) else str(value).replace("\0", "")
    return harmless(text)[:CELL_MAX]
