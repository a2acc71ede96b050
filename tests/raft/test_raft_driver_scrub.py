"""Background scrub: finds damage in entries that no client reads, and repairs it from the leader's copy."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raftgroup import Group, group

from saturnmq.protocol.message import Host, Message, encode_record
from saturnmq.raft.core.entry import Entry, entry_position
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message, stamp_message

HOST = Host("127.0.0.1", 10911)
MESSAGES: dict[str, Any] = {
    "stamp": stamp_message,
    "body_is_good": message_is_good,
    "noop": noop_message(("127.0.0.1", 10911), 1),
}


def record(number: int) -> bytes:
    return encode_record(Message("T", b"payload %d" % number, born_host=HOST, store_host=HOST))


def content(member: RaftMember) -> list[bytes]:
    return [file.map[:] for file in (*member.files.data.files, *member.files.index.files)]


def hurt_body(member: RaftMember, index: int) -> None:
    entry = member.files.entry(index)
    assert entry is not None
    at = entry.pos + 48 + entry.body.index(b"payload")
    member.files.data.files[0].map[at : at + 1] = b"P"


def hurt_header(member: RaftMember, index: int) -> None:
    entry = member.files.entry(index)
    assert entry is not None
    member.files.data.files[0].map[entry.pos : entry.pos + 48] = bytes(48)


def hurt_index(member: RaftMember, index: int) -> None:
    member.files.index.files[0].map[index * 32 : index * 32 + 32] = bytes(32)


@pytest.mark.spec("DUR-08", "DUR-10", "G06")
def test_scrub_finds_damage_and_repairs_it_from_leader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A leader transfers the leadership first, so that there is a leader to get a copy from."""

    async def repair(made: Group, member: RaftMember, hurt: Callable[[RaftMember, int], None]) -> None:
        good, done = content(member), member._scrub.repaired
        hurt(member, 3)
        assert content(member) != good
        member._scrub.next_ms = 0
        await made.until(lambda: member._scrub.repaired == done + 1, "not repaired")
        await made.until(lambda: member._scrub.passes == done + 1, "the pass does not end")
        assert member.status().failed is None

    async def run() -> None:
        async with group(tmp_path, **MESSAGES) as made:
            for number in range(6):
                await made.append(record(number))
            await made.equal()
            leader = await made.a_leader()
            follower = next(member for member in made.members.values() if member is not leader)
            for hurt in (hurt_body, hurt_header, hurt_index):
                await repair(made, follower, hurt)
            await made.until(lambda: len(set(leader.status().watermarks.values())) == 1, "watermarks lag")
            await repair(made, leader, hurt_body)
            assert (follower.damaged_entries, leader.damaged_entries) == (3, 1)
            await made.append(record(7))
            await made.equal()
            assert len({tuple(content(one)) for one in made.members.values()}) == 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    logged = [line.getMessage() for line in caplog.records if "index=3" in line.getMessage()]
    assert sum("repaired" in line for line in logged) == 4
    assert sum(" byte " in line for line in logged) == 4


@pytest.mark.spec("DUR-08")
async def test_scrub_pass_runs_in_steps_and_then_pauses(tmp_path: Path) -> None:
    made = Group(tmp_path, 1, **MESSAGES)
    member = await made.start("n0")
    for _ in range(3):
        await made.append(*(record(number) for number in range(50)))
    node, scrub, seen = member._node(), member._scrub, []
    read = member.files.entry

    def entry(index: int) -> Entry | None:
        seen.append(index)
        return read(index)

    member.files.entry = entry  # type: ignore[method-assign]
    now = scrub.next_ms
    scrub.step(now - 1, node)
    assert seen == []
    scrub.step(now, node)
    assert 10 < len(seen) < 149
    scrub.step(now + 1, node)
    assert seen == list(range(len(seen)))
    while scrub.passes == 0:
        scrub.step(scrub.next_ms, node)
    assert seen == list(range(member.status().committed_index + 1))
    assert scrub.next_ms > now + 3_600_000
    await made.stop("n0")


@pytest.mark.spec("DUR-10")
def test_repair_rejects_copy_that_does_not_fit(tmp_path: Path) -> None:
    files = LedgerFiles(tmp_path, file_bytes=1024, index_file_units=64, body_is_good=message_is_good)
    files.open()
    made = []
    for number in range(9):
        pos = entry_position(files.end_pos, 48 + len(record(number)), 1024)
        made.append(Entry(number, 2, pos, record(number)))
        files.append(made[-1:])
    before = [file.map[:] for file in (*files.data.files, *files.index.files)]
    for entry in made:
        assert not files.repair(dataclasses.replace(entry, pos=entry.pos + 1))
        assert not files.repair(dataclasses.replace(entry, body=record(1000), size=-1))
        assert not files.repair(dataclasses.replace(entry, body=entry.body[:-1] + b"\1\1", size=-1))
        assert not files.repair(dataclasses.replace(entry, index=entry.index + 1))
        assert not files.repair(dataclasses.replace(entry, index=entry.index + 9))
    assert [file.map[:] for file in (*files.data.files, *files.index.files)] == before
    for entry in made:
        file = files.data.files[entry.pos // 1024]
        file.map[entry.pos - file.start : entry.end_pos - file.start] = bytes(entry.size)
        assert files.repair(entry)
    assert [file.map[:] for file in (*files.data.files, *files.index.files)] == before
    files.close()
