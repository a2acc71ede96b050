"""One member as a process: arguments folder, peers, own id. Prints `ready` and runs until it is signalled to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from saturnmq.net.settings import NetSettings
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.settings import RaftProfile, RaftSettings


async def main(folder: Path, peers: str, self_id: str) -> None:
    settings = RaftSettings(
        enabled=True, group="g", peers_text=peers, self_id=self_id, profile=RaftProfile.FAST, index_file_units=65536
    )
    member = RaftMember(settings, settings.folder(folder), NetSettings(), file_bytes=1_048_576, sync_before_ack=True)
    await member.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await member.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
