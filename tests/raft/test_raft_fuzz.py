"""Hostile DLedger requests against running members in each role: terms and committed indexes never fall, the group stays usable.

The requests come from a member's host without a cluster secret, in any order, valid, mutated or random. The fuzzer does not pretend
to be the current leader in the current term with valid entries: that is what the cluster secret is for.

Requirements: FUZ-08.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import pytest
from raftgroup import Group, group

from saturnmq.net.client import RemotingClient
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import (
    AppendRequest,
    GetRequest,
    HeartBeatRequest,
    MetadataRequest,
    PushKind,
    PushRequest,
    Request,
    TransferRequest,
    VoteRequest,
)
from saturnmq.raft.core.term_limit import TERM_STEP_MAX
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.wire.codec import code_of, encode
from saturnmq.raft.wire.push import encode_push

pytestmark = pytest.mark.realtime
REQUESTS = int(os.environ.get("FUZZ_LEDGER", "1500"))  # per role
BATCH = 50
# In all less than the limit: a member whose term exceeds the others' by more than that has to be replaced (docs/replication.md).
RAISE = TERM_STEP_MAX // (REQUESTS + 1)
CODES = (50000, 50001, 50002, 51001, 51002, 51003, 51004, 51005, 51900, 0, 310)


def number(rng: random.Random, near: int) -> int:
    return rng.choice((near, near + 1, near - 1, near + 7, -1, 0, 2**31, 2**63 - 1, -(2**63), rng.randrange(-5, 50)))


def request(rng: random.Random, target: RaftMember) -> Request:
    """A well-formed request with plausible and absurd fields."""
    status, name = target.status(), target.settings.self_id
    ids = ("n0", "n1", "n2", "n9", "", None)
    sides: dict[str, Any] = {
        "group": rng.choice(("g", "g", "g", "g", "h", None)),
        "remote_id": rng.choice((name, name, name, name, *ids)),
        "local_id": rng.choice(ids),
        "leader_id": rng.choice(ids),
        "term": number(rng, status.term) if rng.random() < 0.98 else status.term + RAISE,
    }
    end = status.end_index
    kind = rng.randrange(9)
    if kind == 0:
        return VoteRequest(
            ledger_end_index=number(rng, end), ledger_end_term=number(rng, status.term), **sides
        )  # fmt: skip
    if kind == 1:
        return HeartBeatRequest(**sides)
    if kind == 2:
        return TransferRequest(
            transfer_id=rng.choice(ids), transferee_id=rng.choice(ids),
            take_leadership_ledger_index=number(rng, end), **sides,
        )  # fmt: skip
    if kind == 3:
        return GetRequest(begin_index=number(rng, end), max_size=number(rng, 1000), **sides)
    if kind == 4:
        return MetadataRequest(**sides)
    if kind == 5:
        return AppendRequest(body=rng.randbytes(rng.randrange(40)) or None, **sides)
    push = rng.choice(list(PushKind))
    if push in (PushKind.APPEND, PushKind.TRUNCATE):
        sides["leader_id"] = "forged-leader"
    entries = [
        Entry(
            number(rng, end), number(rng, status.term), number(rng, 0), rng.randbytes(rng.randrange(30)),
            rng.choice((1, 1, 0, -1)), 0, rng.choice((-1, -1, 0, 48, 2**31 - 1)),
        )
        for _ in range(rng.randrange(4))
    ]  # fmt: skip
    return PushRequest(
        kind=push, entries=tuple(entries), commit_index=number(rng, end), batch=rng.random() < 0.5, **sides
    )  # fmt: skip


def command(rng: random.Random, target: RaftMember) -> Command:
    """A request as bytes: unchanged, with a few bytes changed, cut, or random."""
    made = request(rng, target)
    code = int(code_of(made))
    body = None
    if isinstance(made, PushRequest) and rng.random() < 0.5 and all(abs(e.size) < 2**31 for e in made.entries):
        body = encode_push(made)
    body = bytearray(body if body is not None else encode(made))
    form = rng.randrange(10)
    if form == 0:
        body = bytearray(rng.randbytes(rng.randrange(200)))
    elif form == 1:
        del body[rng.randrange(len(body) + 1) :]
    elif form in (2, 3):
        for _ in range(rng.randrange(1, 6)):
            body[rng.randrange(len(body))] = rng.randrange(256)
    if rng.random() < 0.1:
        code = rng.choice(CODES)
    return Command(code, body=bytes(body) or None)


class Marks:
    """The highest term and committed index seen of each member."""

    def __init__(self, made: Group) -> None:
        self._made = made
        self._seen = dict.fromkeys(made.members, (0, -1))

    def check(self) -> None:
        for name, member in self._made.members.items():
            status, (term, committed) = member.status(), self._seen[name]
            assert status.failed is None
            assert status.term >= term
            assert status.committed_index >= committed
            self._seen[name] = status.term, status.committed_index


@pytest.mark.timeout(180)
@pytest.mark.spec("FUZ-08")
@pytest.mark.parametrize("role", list(Role))
async def test_hostile_requests_leave_members_of_each_role_usable(role: Role, tmp_path: Path) -> None:
    rng = random.Random(f"{role.value} {os.environ.get('FUZZ_SEED', '1')}")

    async def target_of(made: Group) -> RaftMember:
        def found() -> RaftMember | None:
            return next((m for m in made.members.values() if m.status().role is role), None)

        member = found() if role is Role.CANDIDATE else await made.until(found, f"no {role.value}")
        return member or next(iter(made.members.values()))

    async with group(tmp_path) as made:
        for count in range(5):
            await made.append(b"honest %d" % count)
        if role is Role.CANDIDATE:  # without a quorum it stays one
            await made.equal()
            for name in made.names[1:]:
                await made.stop(name)
            await made.until(lambda: made.members["n0"].status().role is role, "n0 is no candidate")
        marks, client = Marks(made), RemotingClient(settings=NetSettings())
        answered = 0
        try:
            for _ in range(0, REQUESTS, BATCH):
                target = await target_of(made)
                address = target.settings.peers[target.settings.self_id]
                calls = [client.invoke(address, command(rng, target), 300) for _ in range(BATCH)]
                for result in await asyncio.gather(*calls, return_exceptions=True):
                    assert not isinstance(result, BaseException) or isinstance(result, SaturnError), result
                    answered += isinstance(result, Command)
                marks.check()
        finally:
            await client.close()
        assert answered > REQUESTS // 2
        for name in made.names:
            if name not in made.members:
                await made.start(name)
                marks._seen.setdefault(name, (0, -1))
        await made.append(b"still usable")
        await made.equal()
        marks.check()
        stored = [member.files.entry(index) for member in made.members.values() for index in range(5)]
        assert {entry.body for entry in stored if entry is not None} == {b"honest %d" % at for at in range(5)}
        assert max(member.status().term for member in made.members.values()) < TERM_STEP_MAX
