"""DLedger groups of our members and Java members (DLedger 0.3.1.2).

A member of each kind leads, is killed, restarts with an empty disk, and is truncated.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import javatools
import pytest
from processes import ServerProcess

from ports import free_port
from saturnmq.net.client import RemotingClient
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.messages import (
    AppendRequest,
    Code,
    GetRequest,
    MetadataRequest,
    Request,
    TransferRequest,
)
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.settings import RaftSettings
from saturnmq.raft.wire.codec import code_of, decode_response, encode

pytestmark = pytest.mark.interop

SOURCE = Path(__file__).parent / "java" / "ledger" / "LedgerMember.java"
FILE_BYTES = 1_048_576
DEADLINE_S = 60.0
_STATUS = re.compile(r"^(LEADER|FOLLOWER|CANDIDATE) term=(-?\d+) end=(-?\d+) committed=(-?\d+)$")
_LOGBACK = """<configuration><appender name="file" class="ch.qos.logback.core.FileAppender"><file>{file}</file>
<encoder><pattern>%d %-5level %logger{{20}} - %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="file"/></root></configuration>"""

Status = tuple[str, int, int, int]  # role, term, end, committed


class JavaMember:
    def __init__(self, group: MixedGroup, name: str) -> None:
        home = group.folder / f"java-{name}"
        home.mkdir(exist_ok=True)
        logback = home / "logback.xml"
        logback.write_text(_LOGBACK.format(file=home / "dledger.log"))
        command = javatools.java_command(
            str(SOURCE),
            ["g", group.peers, name, str(group.folder), str(FILE_BYTES), str(group.batch_push).lower()],
            home=home,
            heap_mb=192,
            properties={"logback.configurationFile": str(logback)},
        )
        self.server = ServerProcess(command, name=f"DLedger {name}", stdin=True)

    async def started(self) -> None:
        await asyncio.to_thread(self.server.wait_for_line, "^ready", DEADLINE_S)

    async def status(self) -> Status:
        return await asyncio.to_thread(self._status)

    def _status(self) -> Status:
        after = self.server.say("")
        match = self.server.wait_for_line(_STATUS.pattern, 10.0, after=after)
        return match[1], int(match[2]), int(match[3]), int(match[4])

    async def kill(self) -> None:
        self.server.process.kill()
        await asyncio.to_thread(self.server.stop)

    async def stop(self) -> None:
        assert self.server.process.stdin is not None
        self.server.process.stdin.close()
        await asyncio.to_thread(self.server.wait_for_line, "^stopped", 30.0)
        await asyncio.to_thread(self.server.stop)


class OurMember:
    def __init__(self, group: MixedGroup, name: str) -> None:
        settings = RaftSettings(
            enabled=True, group="g", peers_text=group.peers, self_id=name, batch_push=group.batch_push
        )
        assert settings.validate() == []
        folder = settings.folder(group.folder)
        self.member = RaftMember(settings, folder, NetSettings(), file_bytes=FILE_BYTES, sync_before_ack=True)

    async def started(self) -> None:
        await self.member.start()

    async def status(self) -> Status:
        now = self.member.status()
        return now.role.value, now.term, now.end_index, now.committed_index

    async def kill(self) -> None:
        await self.member.stop()

    stop = kill


class MixedGroup:
    """kinds: "j" (Java) or "s" (SaturnMQ) for n0, n1, n2."""

    def __init__(self, folder: Path, kinds: str, *, batch_push: bool) -> None:
        self.folder = folder
        self.batch_push = batch_push
        self.kinds = {f"n{number}": kind for number, kind in enumerate(kinds)}
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in self.kinds}
        self.peers = ";".join(f"{name}-{address}" for name, address in self.addresses.items())
        self.members: dict[str, JavaMember | OurMember] = {}
        self.acked: list[bytes] = []

    async def start(self, *names: str) -> None:
        for name in names:
            self.members[name] = (JavaMember if self.kinds[name] == "j" else OurMember)(self, name)
        await asyncio.gather(*(self.members[name].started() for name in names))

    async def kill(self, name: str) -> None:
        await self.members.pop(name).kill()

    async def stop(self) -> None:
        members, self.members = self.members, {}
        await asyncio.gather(*(member.stop() for member in members.values()))

    async def call(self, name: str, request: Request) -> Any:
        client = RemotingClient(settings=NetSettings())
        try:
            command = Command(code_of(request), body=encode(request))
            return decode_response(code_of(request), (await client.invoke(self.addresses[name], command, 5000)).body)
        finally:
            await client.close()

    async def until(self, what: str, look: Callable[[], Any]) -> Any:
        """Poll until a coroutine function returns a truthy value, with a deadline."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    try:
                        found = await look()
                    except SaturnError:
                        found = None
                    if found:
                        return found
                    await asyncio.sleep(0.1)  # poll
        except TimeoutError:
            stands = {name: await member.status() for name, member in self.members.items()}
            raise AssertionError(f"{what}: {stands}") from None

    async def leader(self) -> str:
        """The member that all running members name as leader."""

        async def look() -> str | None:
            said = {
                (await self.call(name, MetadataRequest(group="g", remote_id=name))).leader_id for name in self.members
            }
            return said.pop() if len(said) == 1 else None

        found = await self.until("no leader", look)
        assert isinstance(found, str)
        return found

    async def append(self, count: int, mark: str) -> None:
        """Append bodies one after the other, each until it is acknowledged."""
        for number in range(count):
            body = f"{mark}-{number}-".encode() + bytes(number % 200)

            async def once(body: bytes = body) -> bool:
                for name in list(self.members):
                    if (await self.call(name, MetadataRequest(group="g", remote_id=name))).leader_id == name:
                        answer = await self.call(name, AppendRequest(group="g", remote_id=name, body=body))
                        return bool(answer.code == Code.SUCCESS)
                return False

            await self.until(f"{body[:20]!r} is not acknowledged", once)
            self.acked.append(body)

    async def level(self) -> int:
        """Wait until all running members end at the same committed index; returns it."""

        async def look() -> int | None:
            stands = {(await member.status())[2:] for member in self.members.values()}
            one = stands.pop() if len(stands) == 1 else None
            return one[0] + 1 if one is not None and one[0] == one[1] else None

        return int(await self.until("members differ", look)) - 1

    async def read_all(self, end: int) -> list[bytes]:
        """Every body, as the leader returns it."""
        leader = await self.leader()
        client = RemotingClient(settings=NetSettings())
        bodies = []
        try:
            for index in range(end + 1):
                request = GetRequest(group="g", remote_id=leader, begin_index=index)
                command = Command(code_of(request), body=encode(request))
                got: Any = decode_response(
                    code_of(request), (await client.invoke(self.addresses[leader], command, 5000)).body
                )
                assert got.code == Code.SUCCESS, (index, got)
                bodies.append(got.entries[0].body)
        finally:
            await client.close()
        return bodies

    async def transfer(self, to: str) -> None:
        async def once() -> bool:
            leader = await self.leader()
            if leader == to:
                return True
            term = (await self.members[leader].status())[1]
            request = TransferRequest(
                group="g", remote_id=leader, transfer_id=leader, transferee_id=to, leader_id=leader, term=term
            )
            await self.call(leader, request)
            return False

        await self.until(f"{to} does not take the leadership", once)


@pytest.mark.spec("DL-M06", "DL-S06", "DL-L03", "DL-L05", "DL-F08", "G14")
@pytest.mark.parametrize(
    ("kinds", "batch_push"), [("jjs", False), pytest.param("jss", False, marks=pytest.mark.interop_full), ("jss", True)]
)
async def test_mixed_group_survives_every_kind_of_change_with_equal_files(
    kinds: str, batch_push: bool, tmp_path: Path
) -> None:
    group = MixedGroup(tmp_path, kinds, batch_push=batch_push)
    names = list(group.kinds)
    try:
        await group.start(*names)
        await group.append(30, "first")
        for to in (kinds.index("j"), kinds.index("s")):  # a member of each kind leads
            await group.transfer(names[to])
            await group.append(20, f"led-by-{names[to]}")
            await group.level()
        for kind in "js":  # a member of each kind is killed as leader and restarts
            name = names[kinds.index(kind)]
            await group.transfer(name)
            await group.kill(name)
            await group.append(10, f"without-{name}")
            await group.start(name)
            await group.level()
        for kind in "js":  # a member of each kind restarts with an empty disk
            leader = await group.leader()
            name = next(n for n in reversed(names) if group.kinds[n] == kind)
            if name == leader:
                await group.transfer(next(n for n in names if n != name))
            await group.kill(name)
            shutil.rmtree(tmp_path / f"dledger-{name}")
            await group.start(name)
            await group.append(3, f"empty-{name}")
            await group.level()
        for kind in "js":  # a member of each kind is truncated
            name = names[kinds.index(kind)]
            await group.transfer(name)
            others = [other for other in names if other != name]
            for other in others:
                await group.kill(other)
            lost = [AppendRequest(group="g", remote_id=name, body=b"lost %d" % number) for number in range(3)]
            answers = await asyncio.gather(*(group.call(name, request) for request in lost), return_exceptions=True)
            # Without a quorum Java answers with another code or not at all (DL-X09).
            assert not any(getattr(answer, "code", None) == Code.SUCCESS for answer in answers)
            assert (await group.members[name].status())[2] > (await group.members[name].status())[3]
            await group.kill(name)
            await group.start(*others)
            await group.append(5, f"instead-of-{name}")
            await group.start(name)
            await group.level()
        end = await group.level()
        bodies = await group.read_all(end)
        # An append without an answer is sent again, and may then be there twice.
        assert list(dict.fromkeys(body for body in bodies if body in set(group.acked))) == group.acked
        assert not any(body.startswith(b"lost") for body in bodies)
    finally:
        await group.stop()
    for kind, size in (("data", FILE_BYTES), ("index", 32 * 5 * 1024 * 1024)):
        contents = []
        for name in names:
            files = sorted((tmp_path / f"dledger-{name}" / kind).iterdir())
            assert [file.stat().st_size for file in files] == [size] * len(files)
            contents.append(
                b"".join(file.read_bytes()[: (end + 1) * 32 if kind == "index" else None] for file in files)
            )
        assert contents[0] == contents[1] == contents[2], f"{kind} differs"
