"""Real members on loopback ports, with timers short enough for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ports import free_ports
from saturnmq.net.settings import NetSettings
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.messages import AppendResponse, Code
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.listener import Listener
from saturnmq.raft.settings import RaftSettings
from waiting import until

DEADLINE_SECONDS = 45.0
FAST: dict[str, Any] = {
    "heartbeat_interval_ms": 500,
    "vote_interval_min_ms": 30,
    "vote_interval_max_ms": 200,
    "commit_idle_ms": 20,
    "rpc_timeout_ms": 1000,
    "push_timeout_ms": 200,
    "checkpoint_interval_ms": 50,
}


class Recorder(Listener):
    def __init__(self) -> None:
        self.roles: list[Role] = []
        self.committed_to = -1
        self.commits: list[tuple[int, int]] = []  # index and position of the end

    def role_changed(self, role: Role, term: int, leader_id: str | None) -> None:
        self.roles.append(role)

    def committed(self, index: int, end_pos: int) -> None:
        self.committed_to = index
        self.commits.append((index, end_pos))


class Group:
    def __init__(self, folder: Path, size: int, **changes: Any) -> None:
        self.folder = folder
        ports = free_ports(size)
        self.peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        self.names = [f"n{number}" for number in range(size)]
        self.member_changes = {
            key: changes.pop(key)
            for key in (
                "stamp",
                "noop",
                "body_is_good",
                "codec",
                "disk",
                "sync_before_ack",
                "file_bytes",
                "admin_addresses",
                "admin_codes",
            )
            if key in changes
        }
        self.settings = {**FAST, **changes}
        self.members: dict[str, RaftMember] = {}
        self.recorders: dict[str, Recorder] = {}

    async def start(self, name: str, **changes: Any) -> RaftMember:
        settings = RaftSettings(
            enabled=True,
            group="g",
            peers_text=self.peers,
            self_id=name,
            index_file_units=4096,
            **{**self.settings, **changes},
        )
        assert settings.validate() == []
        more = {"file_bytes": 65536, "sync_before_ack": True, **self.member_changes}
        recorder = self.recorders[name] = Recorder()
        member = RaftMember(settings, settings.folder(self.folder), NetSettings(), listener=recorder, **more)
        self.members[name] = member
        await member.start()
        return member

    async def stop(self, name: str) -> None:
        await self.members.pop(name).stop()

    async def until(self, condition: Callable[[], Any], why: str) -> Any:
        """Wait for a condition; the error shows the state of each member."""

        def states() -> str:
            return f"{why}: {[member.status() for member in self.members.values()]}"

        return await until(condition, DEADLINE_SECONDS, why=states)

    @property
    def leader(self) -> RaftMember | None:
        leading = [m for m in self.members.values() if m.node is not None and m.status().role is Role.LEADER]
        return max(leading, key=lambda member: member.status().term, default=None)

    async def a_leader(self) -> RaftMember:
        found = await self.until(lambda: self.leader, "no leader")
        assert isinstance(found, RaftMember)
        return found

    async def append(self, *bodies: bytes) -> AppendResponse:
        """Append on the current leader, and retry until it is acknowledged."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                leader = await self.a_leader()
                response = await leader.append(bodies)
                if response.code == Code.SUCCESS:
                    return response
                await asyncio.sleep(0.01)  # poll

    async def equal(self) -> None:
        """Whether all members have the same entries, all of them committed."""
        await self.until(
            lambda: len({(m.files.end_index, m.node and m.node.committed) for m in self.members.values()}) == 1,
            "members differ",
        )


@asynccontextmanager
async def group(folder: Path, size: int = 3, **changes: Any) -> AsyncIterator[Group]:
    made = Group(folder, size, **changes)
    try:
        for name in made.names:
            await made.start(name)
        yield made
    finally:
        for name in list(made.members):
            await made.stop(name)
