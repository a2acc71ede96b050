"""Damage marker: after a restart the damaged entry is repaired first, and other members lead until then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from raftgroup import Group

from saturnmq.net.settings import NetSettings
from saturnmq.protocol.message import Host, Message, encode_record
from saturnmq.raft.core.actions import Reply, Role, Send
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.ids import LedgerIndex
from saturnmq.raft.core.messages import HeartBeatRequest, VoteRequest, VoteResponse, VoteResult
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message, stamp_message
from saturnmq.raft.settings import RaftSettings

HOST = Host("127.0.0.1", 10911)
FILE_BYTES = 1024
MESSAGES: dict[str, Any] = {
    "stamp": stamp_message,
    "body_is_good": message_is_good,
    "noop": noop_message(("127.0.0.1", 10911), 1),
    "file_bytes": FILE_BYTES,
}


def record(number: int) -> bytes:
    return encode_record(Message("T", b"payload %d" % number, born_host=HOST, store_host=HOST))


def hurt(member: RaftMember, index: int) -> Entry:
    """Damage an entry's body in the first file, which recovery does not scan."""
    entry = member.files.entry(index)
    assert entry is not None
    assert entry.pos < FILE_BYTES
    assert len(member.files.data.files) > 4
    at = entry.pos + 48 + entry.body.index(b"payload")
    member.files.data.files[0].map[at : at + 1] = b"P"
    return entry


@pytest.mark.spec("DUR-08", "DUR-10")
async def test_member_failed_by_damage_repairs_it_first_after_restart(tmp_path: Path) -> None:
    """The repair does not wait for the scrub interval, and the next start has nothing left to repair."""
    made = Group(tmp_path, 3, **MESSAGES)
    try:
        for name in ("n0", "n1"):
            await made.start(name)
        for number in range(40):
            await made.append(record(number))
        await made.equal()
        failed = await made.a_leader()
        assert failed.node is not None
        name, mark = failed.settings.self_id, failed.files.folder / "damaged"
        good = hurt(failed, 3)
        failed.node._state.log._cache.clear()
        await made.start("n2")  # its log is empty
        await made.until(lambda: failed.status().failed, "the damage is not seen")
        assert mark.read_bytes() == b"3"
        await made.until(lambda: made.leader not in (None, failed), "no other leader")
        await made.stop(name)
        again = await made.start(name, scrub_days=0)  # repairs even with the scrub off
        await made.until(lambda: again._scrub.repaired == 1, "not mended")
        assert Role.LEADER not in made.recorders[name].roles
        assert again.files.entry(3) == good
        await made.append(record(99))
        await made.equal()
        assert again.status().failed is None
        await made.stop(name)
        await made.start(name)
        assert not mark.exists()
    finally:
        for name in list(made.members):
            await made.stop(name)


def asks_for_votes(member: RaftMember, clock: list[int], until_ms: int) -> int:
    """The time at which the member requests votes, by its own clock; -1: not before until_ms."""
    while clock[0] < until_ms:
        clock[0] += 10
        if any(isinstance(action, Send) and isinstance(action.request, VoteRequest) for action in member._ticked()):
            return clock[0]
    return -1


async def damaged_ledger(folder: Path, index: int = 3) -> None:
    made = Group(folder, 1, **MESSAGES)
    member = await made.start("n0")
    for number in range(40):
        await made.append(record(number))
    hurt(member, index)
    await made.stop("n0")


@contextmanager
def opened(folder: Path, members: int, clock: list[int], mark: bytes | None) -> Iterator[RaftMember]:
    """A loaded member without timers and sockets."""
    peers = ";".join(f"n{number}-127.0.0.1:{number + 1}" for number in range(members))
    settings = RaftSettings(enabled=True, group="g", peers_text=peers, self_id="n0", index_file_units=4096)
    if mark is not None:
        (settings.folder(folder) / "damaged").write_bytes(mark)
    member = RaftMember(
        settings,
        settings.folder(folder),
        NetSettings(),
        file_bytes=FILE_BYTES,
        sync_before_ack=True,
        body_is_good=message_is_good,
        clock_ms=lambda: clock[0],
    )
    member.open()
    try:
        yield member
    finally:
        asyncio.run(member.stop())


@pytest.mark.spec("DUR-10")
def test_member_with_damaged_first_entry_starts(tmp_path: Path) -> None:
    asyncio.run(damaged_ledger(tmp_path, 0))
    with opened(tmp_path, 3, [0], None) as member:
        assert (member.status().begin_index, member.status().end_index) == (0, 39)


@pytest.mark.spec("DUR-10")
def test_damaged_member_stands_after_ten_leaderless_election_timeouts(tmp_path: Path) -> None:
    asyncio.run(damaged_ledger(tmp_path))
    for mark, stands_ms in ((None, 0), (b"4", 0), (b"x", 0), (b"99999", 0), (b"3", 60_000)):
        clock = [0]
        with opened(tmp_path, 3, clock, mark) as member:
            asked_ms = asks_for_votes(member, clock, 200_000)
            assert stands_ms <= asked_ms <= stands_ms + 30, mark
            assert (member.files.folder / "damaged").exists() == (mark == b"3")


@pytest.mark.spec("DUR-10")
def test_damaged_member_restarts_wait_when_a_leader_appears(tmp_path: Path) -> None:
    """It still votes for others in the meantime, so that they can be elected."""
    asyncio.run(damaged_ledger(tmp_path))
    clock = [0]
    with opened(tmp_path, 3, clock, b"3") as member:
        assert asks_for_votes(member, clock, 50_000) == -1
        node = member._node()
        term, log = node.term + 1, node._state.log
        about: dict[str, Any] = {"group": "g", "remote_id": "n0", "local_id": "n1", "leader_id": "n1", "term": term}
        vote = VoteRequest(**about, ledger_end_index=log.end, ledger_end_term=log.end_term)
        node.request(clock[0], 1, vote)  # the term is adopted at the next tick
        assert asks_for_votes(member, clock, 51_000) == -1
        granted = [one.response for one in node.request(clock[0], 2, vote) if isinstance(one, Reply)]
        assert [one.vote_result for one in granted if isinstance(one, VoteResponse)] == [VoteResult.ACCEPT]
        node.request(clock[0], 3, HeartBeatRequest(**about))
        assert node.leader_id == "n1"
        assert 117_000 <= asks_for_votes(member, clock, 200_000) <= 117_050  # election timeout of 6 s, then 60 s


@pytest.mark.spec("DUR-10")
def test_damaged_single_member_leads_at_once(tmp_path: Path) -> None:
    asyncio.run(damaged_ledger(tmp_path))
    clock = [0]
    with opened(tmp_path, 1, clock, b"3") as member:
        while member.status().role is not Role.LEADER:
            clock[0] += 10
            member._ticked()
            assert clock[0] < 5000


@pytest.mark.spec("DUR-10")
def test_damaged_entry_that_was_truncated_postpones_no_election(tmp_path: Path) -> None:
    """A group whose members all wait for such a repair would have no leader for a minute."""
    asyncio.run(damaged_ledger(tmp_path))
    clock = [0]
    with opened(tmp_path, 3, clock, b"3") as member:
        before = member.files.entry(LedgerIndex(2))
        assert before is not None
        assert asks_for_votes(member, clock, 1000) == -1
        member.files.cut(3, before.end_pos)
        member._scrub.step(clock[0], member._node())
        assert 0 <= asks_for_votes(member, clock, 200_000) <= 1100
