"""Three member processes, the leader killed and frozen under load: no acknowledged entry is lost, fail-over is fast."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ports import free_ports
from saturnmq.net.client import RemotingClient
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.messages import AppendRequest, Code, MetadataRequest, Request
from saturnmq.raft.ledger.check import compare, verify
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.wire.codec import code_of, decode_response, encode

pytestmark = pytest.mark.realtime
SCRIPT = Path(__file__).parent / "raftprocess.py"
FAILOVER_S_MAX = 30.0  # about 3 s on an idle machine; the machine of a test run may be busy


class Processes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(3)
        self.addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
        self.peers = ";".join(f"{name}-{address}" for name, address in self.addresses.items())
        self.running: dict[str, asyncio.subprocess.Process] = {}
        self.client = RemotingClient(settings=NetSettings())
        self.acked: list[int] = []
        self.tried = 0
        self.guess = "n0"

    async def start(self, name: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(self.folder), self.peers, name, stdout=asyncio.subprocess.PIPE
        )
        self.running[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"ready\n"

    async def end(self, name: str, sign: signal.Signals) -> int:
        process = self.running.pop(name)
        process.send_signal(sign)
        code = await process.wait()
        transport: Any = process._transport  # type: ignore[attr-defined]
        transport.close()
        return code

    async def ask(self, name: str, request: Request, timeout_ms: int = 1000) -> Any:
        command = Command(code_of(request), body=encode(request))
        reply = await self.client.invoke(self.addresses[name], command, timeout_ms)
        return decode_response(code_of(request), reply.body)

    async def leader(self) -> str:
        async with asyncio.timeout(FAILOVER_S_MAX):
            while True:
                for name in list(self.running):
                    try:
                        said = await self.ask(name, MetadataRequest(group="g", remote_id=name))
                    except SaturnError:
                        continue
                    if said.leader_id == name:
                        return name
                await asyncio.sleep(0.02)  # poll

    async def append(self) -> None:
        """Append the next number and retry until it is acknowledged; the number may then be stored more than once."""
        number, self.tried = self.tried, self.tried + 1
        async with asyncio.timeout(2 * FAILOVER_S_MAX):
            while True:
                try:
                    request = AppendRequest(group="g", remote_id=self.guess, body=b"%d" % number)
                    if (await self.ask(self.guess, request, 3000)).code == Code.SUCCESS:
                        self.acked.append(number)
                        return
                except SaturnError:
                    pass  # killed or frozen: find the new leader
                self.guess = await self.leader()


@pytest.mark.spec("DL-M10", "DL-X02", "DL-X08", "DL-E10")
async def test_no_acknowledged_entry_is_lost_when_leaders_are_killed_or_frozen(tmp_path: Path) -> None:
    group = Processes(tmp_path)
    took: list[float] = []
    try:
        await asyncio.gather(*(group.start(name) for name in group.addresses))
        for fault in ("kill", "freeze", "kill"):
            for _ in range(40):
                await group.append()
            leader = await group.leader()
            began = time.monotonic()
            if fault == "kill":
                assert await group.end(leader, signal.SIGKILL) == -signal.SIGKILL
            else:
                group.running[leader].send_signal(signal.SIGSTOP)
                frozen = group.running.pop(leader)
            await group.append()
            took.append(time.monotonic() - began)
            for _ in range(10):
                await group.append()
            if fault == "kill":
                await group.start(leader)
            else:
                frozen.send_signal(signal.SIGCONT)
                group.running[leader] = frozen
        for _ in range(20):
            await group.append()
        assert max(took) < FAILOVER_S_MAX
    finally:
        await group.client.close()
        codes = [await group.end(name, signal.SIGTERM) for name in list(group.running)]
    assert codes == [0, 0, 0]
    folders = [tmp_path / f"dledger-{name}" for name in group.addresses]
    reports = [verify(folder) for folder in folders]
    assert [report.problems for report in reports] == [[], [], []]
    longest = max(reports, key=lambda report: report.end_index)
    files = LedgerFiles(longest.folder, file_bytes=1_048_576, index_file_units=65536)
    files.open()
    numbers = [int(entry.body) for index in range(files.end_index + 1) if (entry := files.entry(index)) is not None]
    files.close()
    assert sorted(set(numbers)) == group.acked
    firsts = [number for at, number in enumerate(numbers) if number not in numbers[:at]]
    assert firsts == group.acked  # in the order in which they were sent
    committed = min(report.committed_index for report in reports)
    difference = compare(folders)
    assert difference is None or difference.index > committed
