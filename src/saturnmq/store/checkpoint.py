"""The checkpoint: up to which store time each kind of file is on disk. Source: spec 02 section 15, RC-09, FLU-09."""

# checkpoint, 4096 bytes, big-endian. Source: spec 02 section 15.
#    0  i64  commit_log_ms     Unix ms of the last record known to be on disk
#    8  i64  consume_queue_ms
#   16  i64  index_ms

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from saturnmq.protocol.errors import StoreError

CHECKPOINT_BYTES: Final = 4096
_TIMES: Final = struct.Struct(">qqq")
SAFETY_MS: Final = 3000


class Checkpoint:
    """The three times in memory, and the file they are written to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commit_log_ms = 0
        self.consume_queue_ms = 0
        self.index_ms = 0

    def load(self) -> None:
        """Read the file if it is there. Raises StoreError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error
        if len(data) >= _TIMES.size:
            self.commit_log_ms, self.consume_queue_ms, self.index_ms = _TIMES.unpack_from(data)

    @property
    def safe_ms(self) -> int:
        """Everything stored up to here is on disk, with a margin (RC-09)."""
        return max(min(self.commit_log_ms, self.consume_queue_ms) - SAFETY_MS, 0)

    def write(self) -> None:
        """Put the times on disk. Raises StoreError; safe in a thread."""
        data = _TIMES.pack(self.commit_log_ms, self.consume_queue_ms, self.index_ms).ljust(CHECKPOINT_BYTES, b"\0")
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(fd, data, 0)
                os.fdatasync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from error
