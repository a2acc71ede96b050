"""Messages as rows of JSON documents, as text and as hex; and back.

A row has the keys topic, broker, queue, offset, message_id, tag, keys, properties, body or body_base64, attempt, stored_ms,
stored, born_ms and born. `send --format json` reads what `tail --format json` writes.

Text on a terminal has the position, time, tag and keys of a message before its body; elsewhere it is the body alone. One message
is always one line: control characters are escaped.

Requirements: CLI-02, SEC-20.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from saturnmq.cli.output import write
from saturnmq.client.message import Message, Outgoing
from saturnmq.escaping import escaped
from saturnmq.protocol.codes import RESERVED_PROPERTIES
from saturnmq.protocol.errors import ConfigError

FORMATS: Final = ("text", "json", "hex")


def iso(ms: int) -> str | None:
    """ISO 8601 in UTC with milliseconds; None for a time that has no such form."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None


def row_of(message: Message[bytes]) -> dict[str, Any]:
    """The row of a message."""
    record, queue = message.record, message.queue
    row: dict[str, Any] = {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "offset": message.offset,
        "message_id": message.message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(record.properties),
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
    for name, ms in (("stored", record.store_timestamp_ms), ("born", record.born_timestamp_ms)):
        row |= {f"{name}_ms": ms, name: iso(ms)}
    return row | {"attempt": message.attempt}


def body_text(body: bytes) -> str:
    """A body as one line of text; bytes that are not UTF-8, and control characters except tabs, as escapes."""
    return "\t".join(escaped(part) for part in body.decode("utf-8", "backslashreplace").split("\t"))


class Printer:
    """Prints messages on stdout in one format and counts them."""

    def __init__(self, command: str, form: str, *, terminal: bool) -> None:
        self._command = command
        self._form = form
        self._terminal = terminal
        self.count = 0

    def show(self, messages: Iterable[Message[bytes]]) -> None:
        """Print messages. Raises BrokenPipeError when the reader of stdout has ended."""
        lines = [self._line(message) for message in messages]
        if lines:
            write("\n".join(lines))
            self.count += len(lines)

    def _line(self, message: Message[bytes]) -> str:
        if self._form == "json":
            return json.dumps({"schema": 1, "command": self._command, "rows": [row_of(message)]})
        body = message.body.hex() if self._form == "hex" else body_text(message.body)
        return f"{_prefix(message)} {body}" if self._terminal else body


def _prefix(message: Message[bytes]) -> str:
    queue = message.queue
    parts = [iso(message.record.store_timestamp_ms) or "-", f"{queue.broker_name}/{queue.queue_id}@{message.offset}"]
    parts += [f"[{message.tag}]"] if message.tag else []
    parts += [f"keys={','.join(message.keys)}"] if message.keys else []
    return escaped(" ".join(parts))


def parse_json(line: bytes) -> list[Outgoing[bytes]]:
    """The messages of a JSON line: a document with rows, or one row. Raises ConfigError."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"not a JSON object but {type(document).__name__}")
    rows = document.get("rows", [document])
    if not isinstance(rows, list):
        raise ConfigError("rows is not a list")
    return [_outgoing(row) for row in rows]


def _outgoing(row: Any) -> Outgoing[bytes]:
    if not isinstance(row, dict):
        raise ConfigError("a row is not a JSON object")
    body, encoded = row.get("body"), row.get("body_base64")
    tag, keys, properties = row.get("tag"), row.get("keys") or [], row.get("properties") or {}
    keys = [keys] if isinstance(keys, str) else keys
    if not isinstance(keys, list) or not isinstance(properties, dict) or not isinstance(tag, str | None):
        raise ConfigError("tag must be a text, keys a list of texts, properties an object")
    if not all(isinstance(text, str) for text in (*keys, *properties.values())):
        raise ConfigError("keys and the values of properties must be texts")
    try:
        value = base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else str.encode(body)  # type: ignore[arg-type]
    except (binascii.Error, TypeError, UnicodeEncodeError):
        raise ConfigError("a row has neither a text body nor a valid body_base64") from None
    user_properties = {name: text for name, text in properties.items() if name not in RESERVED_PROPERTIES}
    return Outgoing(value=value, tag=tag, keys=keys, properties=user_properties)
