"""What the log of a master has that its slave's has not, and what a checker may say about messages that are lost with it.

Requirements: CHA-10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from saturnmq.protocol.message import Message
from saturnmq.store import StoreSettings
from saturnmq.store.tools.scan import log_files

REPAIR = re.compile(r"run `(saturnmq store repair [^`]+)`")  # in the reason why a slave does not follow


def unpack(body: bytes) -> tuple[str, int]:
    """Value and attempt of a message from its body."""
    value, _, attempt = body.decode().partition("#")
    return value, int(attempt.rstrip("."))


def log_of(settings: StoreSettings) -> bytes:
    """The log of a store up to its last byte in use."""
    return b"".join(bytes(file.read(0, file.file_bytes)) for file in log_files(settings)).rstrip(b"\0")


def records_behind(settings: StoreSettings, offset: int) -> list[Message]:
    """The messages of clients in a log that end behind an offset: also one of which a slave has only the beginning.

    A transaction's end has a record, too, whose body is a number.
    """
    found = [message for file in log_files(settings) for message in file.records()]
    records = [message for message in found if isinstance(message, Message)]
    assert len(records) == len(found)
    behind = [message for message in records if message.physical_offset + message.store_bytes > offset]
    return [message for message in behind if b"#" in bytes(message.body)]


def appended(message: Message) -> tuple[str, int]:
    """Value and attempt of a message."""
    return unpack(bytes(message.body))


def excuses(lost: Iterable[Message], topic: str, broker: str) -> list[str]:
    """The beginnings of what the checker reports when exactly these messages are lost."""
    said = []
    for message in lost:
        value, attempt = appended(message)
        at = f"{topic}/{broker}/{message.queue_id} offset {message.queue_offset}"
        said += [f"{kind}: {value!r} (attempt {attempt})," for kind in ("lost-write", "unseen")]
        said.append(f"inconsistent-offsets: {at} holds {value!r} (attempt {attempt}),")
    return said
