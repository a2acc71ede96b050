"""The commit log of a broker in a DLedger group, as the store reads it: the old log of before, and behind it the ledger.

Offsets below `divided` lie in the old files, the others in the bodies of the ledger's entries; only what the group has committed
may be read. Source: spec 04 DL-B04, DL-B09..12, DL-U01, DL-U02.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from saturnmq.protocol.errors import CorruptRecord, FlushFailed
from saturnmq.protocol.message import BLANK_MAGIC
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, ENTRY_MAGIC
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import BLANK_MAGIC as LEDGER_BLANK_MAGIC
from saturnmq.raft.ledger.layout import HEADER, Header, read_header
from saturnmq.store.files.disk import Disk
from saturnmq.store.files.mapped_file import MappedFile, MappedFiles
from saturnmq.store.log.commit_log import END_BLANK_BYTES, CommitLog
from saturnmq.store.log.flush import Flusher

_NOWHERE: Final = 1 << 62
_BLANK: Final = struct.Struct(">ii")
_RESIDENT_BYTES: Final = 32 << 20


class Body(NamedTuple):
    """A message in the ledger: where it lies, the entry behind it, its bytes (valid until the file is deleted)."""

    physical_offset: int
    next_pos: int
    record: memoryview


class JoinedFiles(MappedFiles):
    """The old log's files, and from `divided` on those of the ledger."""

    def __init__(self, folders: Sequence[Path], size_bytes: int, disk: Disk) -> None:
        super().__init__(folders, size_bytes, disk)
        self.divided = _NOWHERE
        self.behind: MappedFiles | None = None

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds the offset."""
        if offset >= self.divided and self.behind is not None:
            return self.behind.find(offset)
        return super().find(offset)


class LedgerLog(CommitLog):
    """A plain commit log until `attach`, which gives it the ledger; from then on nothing is appended through it.

    end: what is appended ends here, committed or not. committed_pos: everything in the ledger before it is committed.
    """

    def __init__(self, folders: Sequence[Path], file_bytes: int, disk: Disk) -> None:
        super().__init__(folders, file_bytes, disk)
        self._joined = self._files = JoinedFiles(folders, file_bytes, disk)
        self.ledger: LedgerFiles | None = None
        self.divided = 0
        self.committed_pos = 0
        self.begins_at = -1  # once the ledger is closed

    def attach(self, ledger: LedgerFiles, divided: int, committed_pos: int) -> None:
        """Read the ledger from divided on."""
        self.ledger, self.divided, self.committed_pos = ledger, divided, committed_pos
        self._joined.behind, self._joined.divided = ledger.data, divided
        self.end = ledger.end_pos

    def seal(self) -> int:
        """Fill the last file of the old log: nothing is appended to it any more. Returns its end (DL-U01, DL-X20)."""
        last = self.files[-1]
        left = last.end - self.end
        if left >= END_BLANK_BYTES:
            at = self.end - last.start
            last.map[at : at + END_BLANK_BYTES] = _BLANK.pack(left, BLANK_MAGIC)
        last.flush()
        self.end = self.committed = last.end
        return last.end

    @property
    def readable(self) -> int:
        return self.committed_pos if self.ledger is not None else self.end

    @property
    def start(self) -> int:
        """Offset of the first byte kept: of the old log as long as it has files (DL-B09)."""
        if self.begins_at >= 0:
            return self.begins_at
        if self.files or self.ledger is None:
            return super().start
        return self.ledger.begin_pos

    def body_at(self, pos: int) -> Body | None:
        """The committed entry that stands at pos, or behind the blank record there; None where the committed part ends.

        Raises CorruptRecord where neither stands.
        """
        ledger = self.ledger
        while ledger is not None and pos < self.committed_pos:
            file = ledger.data.find(pos)
            if file is None or pos >= ledger.end_pos:
                return None
            view, at = file.view, pos - file.start
            if file.size_bytes - at < ENTRY_HEADER_BYTES:
                magic, size, its_pos, body_len = LEDGER_BLANK_MAGIC, 0, pos, 0
            else:
                magic, size, _, _, its_pos, _, _, _, body_len = HEADER.unpack_from(view, at)
            if magic == LEDGER_BLANK_MAGIC:
                pos += self.file_bytes - pos % self.file_bytes
                continue
            if magic != ENTRY_MAGIC or its_pos != pos or not ENTRY_HEADER_BYTES < size == ENTRY_HEADER_BYTES + body_len:
                raise CorruptRecord(f"no entry at {pos} of the ledger: magic {magic}, size {size}")
            end = pos + size
            if end > self.committed_pos:
                return None
            return Body(pos + ENTRY_HEADER_BYTES, end, view[at + ENTRY_HEADER_BYTES : at + size])
        return None

    def bodies(self, pos: int) -> Iterator[Body]:
        """Every committed message from pos on, the start of an entry or of a blank record. Raises CorruptRecord."""
        while (found := self.body_at(pos)) is not None:
            yield found
            pos = found.next_pos

    def entry_pos(self, offset: int) -> int:
        """Where the entry stands whose body begins at this physical offset; any other offset is given back as it is."""
        pos = offset - ENTRY_HEADER_BYTES
        view = self.ledger.view(pos) if self.ledger is not None and pos >= self.ledger.begin_pos else None
        if view is None or len(view) < HEADER.size or not _is_entry(read_header(view, 0), pos):
            return offset
        return pos

    def forget_pages(self, flushed: int) -> None:
        super().forget_pages(flushed)
        if self.ledger is not None:
            for file in self.ledger.data.files:
                if file.start < flushed:
                    file.forget_pages(min(flushed - _RESIDENT_BYTES, file.end))

    @property
    def wants_spare(self) -> bool:
        """The ledger makes its own files."""
        return False


def _is_entry(header: Header, pos: int) -> bool:
    return header.magic == ENTRY_MAGIC and header.pos == pos and header.size == ENTRY_HEADER_BYTES + header.body_len > 0


class LedgerFlusher(Flusher):
    """What the store asks of a flusher, answered by the group: `flushed` is what is committed.

    may_grow: whether this member leads; where it does not, nobody waits for what only a leader could bring.
    """

    def __init__(self, log: LedgerLog, on_failure: Callable[[FlushFailed], None], may_grow: Callable[[], bool]) -> None:
        super().__init__(log, lambda end: None, on_failure)
        self._may_grow = may_grow
        self._held: deque[tuple[int, asyncio.Future[bool]]] = deque()

    def dirty_pages(self) -> int:
        return 0

    def start(self) -> None:
        """The ledger's member syncs."""

    async def wait(self, end: int, timeout_ms: int) -> bool:
        """True when everything before end is committed; False when that takes too long, or the leadership is lost."""
        if self.flushed >= end or not self._may_grow():
            return self.flushed >= end
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._held.append((end, future))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            return False

    def advance(self, end: int) -> None:
        """The group has committed everything before end."""
        self.flushed = max(self.flushed, end)
        while self._held and self._held[0][0] <= end:
            _settle(self._held.popleft()[1], done=True)

    def give_up(self) -> None:
        """This member does not lead any more: what others wait for may never come."""
        while self._held:
            _settle(self._held.popleft()[1], done=False)

    async def stop(self) -> None:
        self.give_up()


def _settle(future: asyncio.Future[bool], *, done: bool) -> None:
    if not future.done():
        future.set_result(done)
