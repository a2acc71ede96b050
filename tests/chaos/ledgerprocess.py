"""One member of a DLedger group as a process. Arguments: folder, peers, own id, heartbeat in ms.

On stdout: `ready`, then committed entries as one JSON list of [index, body] per line, then `stopped`. Files in
<folder>/faults named <id>.full, <id>.eio and <id>.slow make its disk full, failing or slow. Runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from saturnmq.net.settings import NetSettings
from saturnmq.protocol.errors import DiskFull
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.listener import Listener
from saturnmq.raft.settings import RaftProfile, RaftSettings
from saturnmq.store.files.disk import Disk

FILE_BYTES = 262_144
INDEX_FILE_UNITS = 16_384
SLOW_SECONDS = 0.3


class FaultyDisk(Disk):
    """A disk whose faults are switched from outside by files."""

    def __init__(self, switches: Path) -> None:
        super().__init__()
        self._full, self._eio, self._slow = (f"{switches}.{name}" for name in ("full", "eio", "slow"))

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        if os.path.exists(self._full):
            raise DiskFull(f"no space for {path} ({size_bytes} bytes)")
        return super().create(path, size_bytes, allocate=allocate)

    def sync(self, fd: int) -> None:
        if os.path.exists(self._eio):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if os.path.exists(self._slow):
            threading.Event().wait(SLOW_SECONDS)
        super().sync(fd)


class CommitReporter(Listener):
    """Reports committed entries on stdout, in log order."""

    def __init__(self) -> None:
        self.member: RaftMember | None = None
        self.reported = -1
        self.committed_to = -1

    def committed(self, index: int, end_pos: int) -> None:
        if self.committed_to == self.reported:
            asyncio.get_running_loop().call_soon(self.report)
        self.committed_to = index

    def report(self) -> None:
        assert self.member is not None
        found = []
        for index in range(self.reported + 1, self.committed_to + 1):
            entry = self.member.files.entry(index)
            if entry is not None:
                found.append([index, entry.body.decode()])
        self.reported = self.committed_to
        sys.stdout.write(json.dumps(found, separators=(",", ":")) + "\n")
        sys.stdout.flush()


async def main(folder: Path, peers: str, self_id: str, heartbeat_ms: int) -> None:
    settings = RaftSettings(
        enabled=True,
        group="g",
        peers_text=peers,
        self_id=self_id,
        profile=RaftProfile.FAST,
        heartbeat_interval_ms=heartbeat_ms,
        vote_interval_min_ms=max(30, heartbeat_ms * 3 // 10),
        vote_interval_max_ms=heartbeat_ms,
        batch_push=True,
        batch_push_bytes=65536,
        index_file_units=INDEX_FILE_UNITS,
        checkpoint_interval_ms=200,
    )
    reporter = CommitReporter()
    member = RaftMember(
        settings,
        settings.folder(folder),
        NetSettings(),
        file_bytes=FILE_BYTES,
        sync_before_ack=True,
        listener=reporter,
        disk=FaultyDisk(folder / "faults" / self_id),
    )
    reporter.member = member
    member.open()
    assert member.node is not None
    reporter.reported = reporter.committed_to = member.node.committed
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await member.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await ended.wait()
    await member.stop()
    if reporter.committed_to > reporter.reported:
        reporter.report()
    sys.stdout.write("stopped\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
