"""A damaged entry on one member is neither replicated, nor stored, nor acknowledged by others."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from raftgroup import Group, group

from saturnmq.net.client import RemotingClient
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Host, Message, encode_record
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import Code, PushKind, PushRequest, PushResponse
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message, stamp_message
from saturnmq.raft.wire.codec import code_of, decode_response, encode
from saturnmq.raft.wire.push import decode_answer, encode_push

HOST = Host("127.0.0.1", 10911)
MESSAGES: dict[str, Any] = {
    "stamp": stamp_message,
    "body_is_good": message_is_good,
    "noop": noop_message(("127.0.0.1", 10911), 1),
}


def record(number: int) -> bytes:
    return encode_record(Message("T", b"payload %d" % number, born_host=HOST, store_host=HOST))


def damaged(body: bytes) -> bytes:
    at = body.index(b"payload")
    return body[:at] + b"P" + body[at + 1 :]


def bodies(made: Group, name: str) -> list[bytes]:
    """The bodies as stored in the files, without checking them."""
    files = made.members[name].files
    found = []
    for index in range(max(files.begin_index, 0), files.end_index + 1):
        unit = files._unit(index)
        assert unit is not None
        view = files.view(unit.pos)
        assert view is not None
        found.append(bytes(view[48 : unit.size]))
    return found


@pytest.mark.spec("DUR-08", "DUR-10", "DL-X15", "DL-X16")
@pytest.mark.parametrize("hurt", ["body", "index unit"])
async def test_leader_with_damaged_entry_steps_down_without_pushing_it(tmp_path: Path, hurt: str) -> None:
    made = Group(tmp_path, 3, **MESSAGES)
    try:
        for name in ("n0", "n1"):
            await made.start(name)
        for number in range(8):
            await made.append(record(number))
        await made.equal()
        leader = await made.a_leader()
        assert leader.node is not None
        entry = leader.files.entry(leader.files.end_index - 3)
        assert entry is not None
        if hurt == "body":
            file, place = leader.files.data.files[0], entry.pos + 48 + entry.body.index(b"payload")
            file.map[place : place + 1] = b"P"
            found = f"{file.path}, byte {entry.pos + 48}: the body of entry {entry.index}"
        else:
            file, place = leader.files.index.files[0], entry.index * 32
            file.map[place : place + 1] = b"\1"
            found = f"{file.path}, byte {place}: entry {entry.index} is missing from the index"
        leader.node._state.log._cache.clear()  # as after a restart, or after 4096 more entries
        await made.start("n2")  # its log is empty
        await made.until(lambda: leader.status().failed, "the damage is not seen")
        assert found in str(leader.status().failed)
        assert not leader.leads
        await made.until(lambda: made.leader not in (None, leader), "no other leader")
        await made.append(record(99))
        others = [name for name in made.names if name != leader.settings.self_id]
        end = max(made.members[name].files.end_index for name in others)
        await made.until(lambda: all(made.members[n].files.end_index >= end for n in others), "not refilled")
        for name in others:
            assert all(message_is_good(memoryview(body)) for body in bodies(made, name))
            assert bodies(made, name)[entry.index] == entry.body
    finally:
        for name in list(made.members):
            await made.stop(name)


async def push(address: str, request: PushRequest, *, plain: bool) -> PushResponse:
    """Send one push, as a leader would."""
    client = RemotingClient(settings=NetSettings())
    try:
        body = encode_push(request) if plain else encode(request)
        reply = await client.invoke(address, Command(code_of(request), body=body), 5000)
        answer = decode_answer(reply.body or b"") if plain else decode_response(code_of(request), reply.body)
        assert isinstance(answer, PushResponse)
        return answer
    finally:
        await client.close()


@pytest.mark.spec("DUR-08", "DL-X16")
@pytest.mark.parametrize(
    ("kind", "plain"),
    [(PushKind.APPEND, True), (PushKind.APPEND, False), (PushKind.TRUNCATE, False), (PushKind.COMPARE, False)],
)
async def test_follower_refuses_push_with_damaged_body(tmp_path: Path, kind: PushKind, plain: bool) -> None:
    async with group(tmp_path, **MESSAGES) as made:
        await made.append(record(0))
        await made.equal()
        leader = await made.a_leader()
        follower = next(member for member in made.members.values() if member is not leader)
        name, end = follower.settings.self_id, follower.files.end_index
        pos, term = follower.files.end_pos, follower.status().term
        first = Entry(end + 1, term, pos, stamp_message(record(1), pos))
        second = Entry(end + 2, term, first.end_pos, damaged(stamp_message(record(2), first.end_pos)))
        entries = (first, second) if kind is PushKind.APPEND else (dataclasses.replace(second, index=end + 1, pos=pos),)
        request = PushRequest(
            group="g",
            remote_id=name,
            local_id=leader.settings.self_id,
            leader_id=leader.settings.self_id,
            term=term,
            kind=kind,
            entries=entries,
            commit_index=end,
            batch=kind is PushKind.APPEND,
        )
        answer = await push(follower.settings.peers[name], request, plain=plain)
        assert (answer.code, answer.index) == (Code.UNEXPECTED_ARGUMENT, end + 1)
        assert follower.files.end_index == end
        assert follower.status().failed is None


@pytest.mark.spec("DUR-08", "DL-P10")
async def test_push_damaged_in_transit_is_refused_and_resent(tmp_path: Path) -> None:
    async with group(tmp_path, **MESSAGES) as made:
        await made.append(record(0))
        await made.equal()
        hurt: list[int] = []
        for member in made.members.values():
            check = member.peers._body_is_good

            def once(body: bytes, check: Any = check) -> bool:
                if b"payload 7" in body and len(hurt) < 2:
                    hurt.append(len(body))
                    return bool(check(damaged(body)))
                return bool(check(body))

            member.peers._body_is_good = once
        for number in range(1, 10):
            await made.append(record(number))
        await made.equal()
        assert len(hurt) == 2
        logs = [bodies(made, name) for name in made.names]
        assert logs[0] == logs[1] == logs[2]
