"""Helpers for store tests: a store with small files, messages, reading a queue, waiting for background work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from saturnmq.protocol.message import Host, Message, decode_records
from saturnmq.store import GetStatus, MessageStore, StoreProfile, StoreSettings
from saturnmq.store.files.capacity import Usage
from saturnmq.store.files.disk import Disk

CL: Final = 4096  # bytes of a commit log file
CQ: Final = 200  # bytes of a consume queue file: ten units
BROKER: Final = Host("127.0.0.1", 10911)
CLIENT: Final = Host("10.0.0.9", 5)
NOW_MS: Final = 1_700_000_000_000
USAGE_FINE: Final = Usage(40, 40, 40)


def message(body: bytes = b"body", topic: str = "T", queue: int = 0, properties: bytes = b"", **more: Any) -> Message:
    return Message(topic, body, properties, queue, **({"born_host": CLIENT, "store_host": BROKER} | more))


def opened(path: Path, clock: Callable[[], int] | None = None, disk: Disk | None = None, **more: Any) -> MessageStore:
    values = {"commit_log_file_bytes": CL, "consume_queue_file_bytes": CQ, "profile": StoreProfile.SMALL} | more
    settings = StoreSettings(store_path_root_dir=str(path), **values)
    store = MessageStore(settings, **({"clock_ms": clock} if clock else {}), disk=disk)
    store.open()
    return store


def bodies(store: MessageStore, topic: str = "T", queue: int = 0, offset: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while True:
        result = store.get(topic, queue, offset, 32)
        if result.status is not GetStatus.FOUND:
            return found
        found += [bytes(m.body) for m in decode_records(b"".join(result.buffers))]
        offset = result.next_offset
