"""Who may use the DLedger port: by address, and with the cluster secret by signature.

Requirements: SEC-18, DL-X17.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from raftgroup import Group, group

from saturnmq.net.settings import NetSettings
from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.frames.command import Command, FrameLimits, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.raft.access import LOOK_UP_PAUSE_SECONDS, Origin, PeerAccess, look_up
from saturnmq.raft.cluster_secret import FIELD, WINDOW, ClusterSecret, Verdict
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import (
    AppendRequest,
    ChangeKind,
    ChangeRequest,
    Code,
    GetRequest,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    PushKind,
    PushRequest,
    Request,
    Response,
    TransferRequest,
    VoteRequest,
)
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.peers import OPERATING_CODES, Peers
from saturnmq.raft.settings import RaftSettings
from saturnmq.raft.wire.codec import DLedgerCode, code_of, decode_response, encode
from saturnmq.raft.wire.push import encode_push

SECRET = "sixteen bytes at least"
STRANGER, ADMIN, ALLOWED = "127.0.0.5", "127.0.0.6", "127.0.0.7"


async def ask_from(source: str, address: str, command: Command) -> Command:
    """The response to a request that is sent from a source address."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    try:
        writer.write(encode_frame(command))
        limits = NetSettings().frame_limits
        decoder = FrameDecoder(FrameLimits(limits.frame_bytes_max, limits.header_bytes_max))
        async with asyncio.timeout(20):
            while True:
                found = list(decoder.feed(await reader.read(65536)))
                if found:
                    return found[0]
    finally:
        writer.close()
        await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])


def between_members() -> list[Command]:
    sides: dict[str, Any] = {"group": "g", "remote_id": "n0", "local_id": "n1", "leader_id": "n1", "term": 1}
    entry = Entry(0, 1, 0, b"forged")
    requests = [
        VoteRequest(**sides),
        HeartBeatRequest(**sides),
        *(PushRequest(kind=kind, entries=(entry,), **sides) for kind in PushKind),
    ]
    commands = [Command(code_of(request), body=encode(request)) for request in requests]
    push = encode_push(PushRequest(kind=PushKind.APPEND, entries=(entry,), **sides))
    assert push is not None
    return [
        *commands,
        Command(DLedgerCode.PUSH, body=push),
        Command(DLedgerCode.PULL),
        Command(DLedgerCode.STATE),
        Command(31),
    ]


def administrative() -> list[Command]:
    sides: dict[str, Any] = {"group": "g", "remote_id": "n0"}
    requests = [
        MetadataRequest(**sides),
        AppendRequest(body=b"from a tool", **sides),
        GetRequest(begin_index=0, **sides),
        ChangeRequest(kind=ChangeKind.REMOVE, member_id="n9", **sides),
        TransferRequest(transfer_id="n0", transferee_id="n9", term=0, **sides),
    ]
    return [Command(code_of(request), body=encode(request)) for request in requests]


def facts(member: RaftMember) -> tuple[object, ...]:
    status = member.status()
    return status.term, status.role, status.leader_id, status.begin_index, status.end_index, status.committed_index


@pytest.mark.spec("SEC-18", "DL-X17")
async def test_dledger_port_serves_only_hosts_of_members_and_operators(tmp_path: Path) -> None:
    made = Group(tmp_path, 1, admin_addresses=ADMIN, allowed_text=ALLOWED)
    member = await made.start("n0")
    try:
        await made.append(b"honest")
        address, before = member.settings.peers["n0"], facts(member)
        for command in between_members() + administrative():
            reply = await ask_from(STRANGER, address, command)
            assert (reply.code, reply.body) == (16, None), command.code
            assert STRANGER in (reply.remark or "")
        for command in between_members():
            assert (await ask_from(ADMIN, address, command)).code == 16
        assert facts(member) == before
        assert sum(member.peers._server.rejections.counts.values()) == 2 * len(between_members()) + len(
            administrative()
        )
        replies = [await ask_from(ADMIN, address, command) for command in administrative()]
        assert [reply.code for reply in replies] == [200] * len(administrative())
        appended = decode_response(DLedgerCode.APPEND, replies[1].body)
        assert appended.code == Code.SUCCESS
        for source in (ALLOWED, "127.0.0.1"):
            for command in administrative()[:1] + between_members()[:-3]:
                assert (await ask_from(source, address, command)).code == 200
        await made.append(b"honest still")
    finally:
        await made.stop("n0")


@pytest.mark.spec("SEC-18", "DL-X21")
async def test_hosts_of_changed_members_replace_those_of_the_file() -> None:
    by_default = PeerAccess(["10.0.0.1"])
    assert [by_default.origin(peer) for peer in ("127.0.0.1:1", "::1:1", "10.0.0.2:1")] == [
        Origin.ADMIN,
        Origin.ADMIN,
        Origin.STRANGER,
    ]
    names: list[str] = []

    def resolve(name: str) -> list[str]:
        names.append(name)
        return ["127.0.5.7"]

    access = PeerAccess(["127.0.5.1", "127.0.5.2"], admins="127.0.5.9", resolve=resolve)
    await access.start()
    try:
        assert [access.origin(f"127.0.5.{last}:1") for last in (1, 2, 3)] == [
            Origin.PEER,
            Origin.PEER,
            Origin.STRANGER,
        ]
        access.replace_hosts(["127.0.5.1", "127.0.5.3", "new.example"])
        async with asyncio.timeout(10):
            while access.origin("127.0.5.7:1") is not Origin.PEER:
                await asyncio.sleep(0.01)  # poll
        assert [access.origin(f"127.0.5.{last}:1") for last in (1, 2, 3)] == [
            Origin.PEER,
            Origin.STRANGER,
            Origin.PEER,
        ]
        access.replace_hosts(["127.0.5.1"])
        assert access.origin("127.0.5.7:1") is Origin.STRANGER
        assert names == ["new.example"]
    finally:
        await access.stop()


@pytest.mark.spec("SEC-18")
async def test_host_names_of_members_are_looked_up_again_within_bounds() -> None:
    now, found, asked = [100.0], {"peer.example": ["10.0.0.1"]}, []

    def resolve(name: str) -> Iterable[str]:
        asked.append(name)
        if name not in found:
            raise socket.gaierror(-2, "Name or service not known")
        return found[name]

    access = PeerAccess(
        ["peer.example", "10.0.0.9", "lost.example"], admins="10.9.9.*", resolve=resolve, clock=lambda: now[0]
    )
    await access.start()
    try:
        assert access.origin("10.0.0.1:5") is access.origin("::ffff:10.0.0.9:5") is Origin.PEER
        assert access.origin("10.9.9.77:5") is Origin.ADMIN
        found["peer.example"] = ["10.0.0.2", "fe80::1"]
        for number in range(1000):
            assert access.origin(f"10.1.0.{number % 250}:5") is Origin.STRANGER
        assert access.look_ups == 1
        assert access.origin("10.0.0.1:5") is Origin.PEER
        now[0] += LOOK_UP_PAUSE_SECONDS
        assert access.origin("10.0.0.2:5") is Origin.STRANGER
        assert access._looking is not None
        await access._looking
        assert (access.origin("10.0.0.2:5"), access.origin("10.0.0.1:5")) == (Origin.PEER, Origin.STRANGER)
        assert access.is_host("10.0.0.2", "peer.example")
        assert not access.is_host("10.0.0.2", "10.0.0.9")
        found.clear()  # the name server fails: the last addresses stay valid
        now[0] += LOOK_UP_PAUSE_SECONDS
        access.origin("10.0.0.3:5")
        assert access._looking is not None
        await access._looking
        assert access.origin("10.0.0.2:5") is Origin.PEER
        assert len(asked) == 6
    finally:
        await access.stop()


@pytest.mark.spec("SEC-18")
def test_a_name_is_looked_up_as_addresses_without_ports() -> None:
    """Numeric names, so that no name server is asked."""
    assert look_up("127.0.0.1") == {"127.0.0.1"}
    assert look_up("::1") == {"::1"}


def test_settings_of_access_are_validated() -> None:
    member = {"enabled": True, "group": "g", "peers_text": "n0-h:1", "self_id": "n0"}
    assert RaftSettings(**member, allowed_text="10.0.0.*,10.0.1.{1,2}", cluster_secret=SECRET).validate() == []
    problems = RaftSettings(**member, allowed_text="10.0.0.x", cluster_secret="short").validate()
    assert [problem.partition("=")[0].partition(" ")[0] for problem in problems] == [
        "dledger.allowedAddresses",
        "dledger.clusterSecret",
    ]
    assert "short" not in problems[1]
    assert "needs dledger.clusterSecret" in RaftSettings(**member, require_secret=True).validate()[0]


# ---- cluster secret


def pair(**changes: Any) -> tuple[ClusterSecret, ClusterSecret]:
    return ClusterSecret(SECRET, **changes), ClusterSecret(SECRET, **changes)


def met(sender: ClusterSecret, receiver: ClusterSecret) -> None:
    """The first exchange, in which the sender learns the receiver's name."""
    command = Command(51002, body=b"{}")
    sender.sign("a:1", command)
    assert receiver.check(command) is Verdict.STALE
    refusal = command.reply(16, "stale")
    receiver.sign_response(command, refusal)
    assert sender.check_response("a:1", command, refusal)
    assert sender.knows_another("a:1", command)


@pytest.mark.spec("SEC-18")
def test_signed_request_is_accepted_once_and_only_unchanged() -> None:
    sender, receiver = pair()
    met(sender, receiver)
    command = Command(51004, body=b"push")
    sender.sign("a:1", command)
    signature = command.ext[FIELD]
    for code, body, field in (
        (51004, b"pusH", signature),
        (51002, b"push", signature),
        (51004, None, signature),
        (51004, b"push", signature[:-1] + ("0" if signature[-1] != "0" else "1")),
        (51004, b"push", signature.replace(".1.", ".2.").replace(".2.", ".7.")),
        *((51004, b"push", text) for text in ("", ".", "...", "a.b.c", "a.b.1.\u00e4", "\x00" * 5000)),
    ):
        assert receiver.check(Command(code, body=body, ext={FIELD: field})) is Verdict.FORGED
    other = ClusterSecret("another secret, as long")
    assert other.check(command) is Verdict.FORGED
    assert receiver.check(Command(51004, body=b"push")) is Verdict.UNSIGNED
    assert receiver.check(command) is Verdict.AUTHENTIC
    assert receiver.check(command) is Verdict.STALE
    restarted = ClusterSecret(SECRET)
    assert restarted.check(command) is Verdict.STALE


@pytest.mark.spec("SEC-18")
def test_reordered_requests_are_accepted_once_within_a_window() -> None:
    sender, receiver = pair()
    met(sender, receiver)
    commands = [Command(51004, body=b"%d" % number) for number in range(WINDOW + 2)]
    for command in commands:
        sender.sign("a:1", command)
    late, on_time = commands[0], commands[2]
    assert receiver.check(commands[-1]) is Verdict.AUTHENTIC
    assert [receiver.check(on_time), receiver.check(on_time)] == [Verdict.AUTHENTIC, Verdict.STALE]
    assert receiver.check(late) is Verdict.STALE
    for number in range(200):  # memory: senders beyond the limit replace the oldest
        stranger = ClusterSecret(SECRET)
        met(stranger, receiver)
        command = Command(51002, body=b"%d" % number)
        stranger.sign("a:1", command)
        assert receiver.check(command) is Verdict.AUTHENTIC
    assert len(receiver._numbers_by_sender) == 64


@pytest.mark.spec("SEC-18")
def test_responses_are_authenticated_together_with_their_request() -> None:
    sender, receiver = pair(required=True)
    met(sender, receiver)
    commands = [Command(51004, body=b"%d" % number) for number in range(2)]
    replies = []
    for command in commands:
        sender.sign("a:1", command)
        replies.append(command.reply(200, body=b"ok"))
        receiver.sign_response(command, replies[-1])
    assert sender.check_response("a:1", commands[0], replies[0])
    assert not sender.check_response("a:1", commands[1], replies[0])
    assert not sender.check_response("a:1", commands[0], commands[0].reply(200, body=b"ok"))
    replies[1].body = b"no"
    assert not sender.check_response("a:1", commands[1], replies[1])
    assert ClusterSecret(SECRET).check_response("a:1", commands[0], commands[0].reply(200, body=b"ok"))


@pytest.mark.spec("SEC-18", "DL-X21")
@pytest.mark.parametrize("secret", ["", SECRET])
async def test_operators_do_not_add_readers_where_messages_need_an_account(tmp_path: Path, secret: str) -> None:
    """A learner gets the whole log, and its host is one of the members'."""
    changes: dict[str, Any] = {"cluster_secret": secret, "admin_addresses": ADMIN, "admin_codes": OPERATING_CODES}
    made = Group(tmp_path, 1, **changes)
    member = await made.start("n0")
    try:
        await made.append(b"honest")
        address = member.settings.peers["n0"]
        sides: dict[str, Any] = {"group": "g", "remote_id": "n0"}
        add = ChangeRequest(kind=ChangeKind.ADD_LEARNER, member_id="n9", address=f"{STRANGER}:1", **sides)
        command = Command(code_of(add), body=encode(add))
        reply = await ask_from(ADMIN, address, command)
        assert reply.code == 16 and "signature" in (reply.remark or "")
        for open_one in (administrative()[0], administrative()[-1]):
            assert (await ask_from(ADMIN, address, open_one)).code == 200
        assert (await ask_from("127.0.0.1", address, command)).code == 200, "from the host of a member"
        if secret:
            operator = ClusterSecret(SECRET)
            for code in (16, 200):  # the first answer contains the name of the process
                operator.sign(address, command)
                assert (reply := await ask_from(ADMIN, address, command)).code == code
                assert operator.check_response(address, command, reply)
    finally:
        await made.stop("n0")


@pytest.mark.spec("SEC-18")
async def test_group_with_required_secret_refuses_unsigned_and_replayed_requests(tmp_path: Path) -> None:
    async with group(tmp_path, cluster_secret=SECRET, require_secret=True, admin_addresses=ADMIN) as made:
        await made.append(b"signed")
        await made.equal()
        leader = await made.a_leader()
        victim = next(m for m in made.members.values() if m is not leader)
        name, address = victim.settings.self_id, victim.settings.peers[victim.settings.self_id]
        term, end = victim.status().term, victim.status().end_index
        beat = HeartBeatRequest(
            group="g", remote_id=name, local_id=leader.settings.self_id, leader_id=leader.settings.self_id,
            term=term,
        )  # fmt: skip
        for command in between_members() + administrative() + [Command(51002, body=encode(beat))]:
            assert (await ask_from("127.0.0.1", address, command)).code == 16
            command.ext[FIELD] = "a.b.1." + "0" * 64
            assert (await ask_from("127.0.0.1", address, command)).code == 16
        assert (await ask_from(ADMIN, address, administrative()[0])).code == 200
        transfer = administrative()[-1]
        assert transfer.code == DLedgerCode.LEADERSHIP_TRANSFER
        for signed_only in administrative()[-2:]:  # also the change of members
            assert "not signed" in ((await ask_from(ADMIN, address, signed_only)).remark or "")
        operator = ClusterSecret(SECRET)
        for code in (16, 200):  # the first answer contains the name of the process
            operator.sign(address, transfer)
            reply = await ask_from(ADMIN, address, transfer)
            assert operator.check_response(address, transfer, reply) and reply.code == code

        outsider = ClusterSecret(SECRET)  # records of a member that knows the secret
        command = Command(51002, body=encode(beat))
        outsider.sign(address, command)
        assert outsider.check_response(address, command, await ask_from("127.0.0.1", address, command))
        outsider.sign(address, command)
        assert (await ask_from("127.0.0.1", address, command)).code == 200
        for _ in range(20):
            assert (await ask_from("127.0.0.1", address, command)).code == 16
        assert (victim.status().term, victim.status().end_index) == (term, end)

        await made.stop(name)  # a restarted process has another name: one refused request, then as before
        await made.start(name)
        await made.append(b"after the restart")
        await made.equal()
        assert made.members[name].status().end_index > end


@pytest.mark.spec("SEC-18", "CHA-07")
async def test_unsigned_heartbeat_announces_no_interval_where_there_is_a_secret() -> None:
    """Else a process without the secret could make a follower a candidate, or have a group use other timers."""
    received: list[Request] = []

    def receive(request: Request, answer: Callable[[Response], None]) -> None:
        received.append(request)
        answer(HeartBeatResponse(interval_ms=500))

    peers = Peers({}, NetSettings(), receive, access=PeerAccess(["127.0.0.1"]), secret=ClusterSecret(SECRET))
    host, port = await peers.start("127.0.0.1", 0)
    address, member = f"{host}:{port}", ClusterSecret(SECRET)
    beat = HeartBeatRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=3, interval_ms=0)
    try:
        for code in (16, 200):  # the first answer contains the name of the process
            command = Command(DLedgerCode.HEART_BEAT, body=encode(beat))
            member.sign(address, command)
            reply = await ask_from("127.0.0.1", address, command)
            assert member.check_response(address, command, reply) and reply.code == code
        assert received == [beat]
        assert peers._trusted(reply, HeartBeatResponse(interval_ms=500)).interval_ms == 500
        reply = await ask_from("127.0.0.1", address, Command(DLedgerCode.HEART_BEAT, body=encode(beat)))
        assert received == [beat, dataclasses.replace(beat, interval_ms=None)]
        assert peers._trusted(reply, HeartBeatResponse(interval_ms=500)).interval_ms is None
    finally:
        await peers.stop()


@pytest.mark.spec("SEC-18")
async def test_member_without_the_secret_takes_part_only_where_it_is_not_required(tmp_path: Path) -> None:
    made = Group(tmp_path, 3)
    try:
        for name, more in (("n0", {"cluster_secret": SECRET}), ("n1", {"cluster_secret": SECRET}), ("n2", {})):
            await made.start(name, **more)
        await made.append(b"mixed")
        await made.equal()
        for name in ("n0", "n1"):
            await made.stop(name)
            await made.start(name, cluster_secret=SECRET, require_secret=True)
        await made.until(
            lambda: made.leader is not None and made.leader.settings.self_id != "n2" and made.leader.leads,
            "the two members with the secret have no leader",
        )
        await made.append(b"with the secret")
        assert made.members["n2"].status().end_index < max(m.status().end_index for m in made.members.values())
    finally:
        for name in list(made.members):
            await made.stop(name)


async def test_state_is_exchanged_between_members_only(tmp_path: Path) -> None:
    async with group(tmp_path, 2, cluster_secret=SECRET, require_secret=True) as made:
        n0, n1 = made.members["n0"].peers, made.members["n1"].peers
        assert await n0.ask_state("n1", 5000, "n0") is None  # no broker: as a Java member

        async def tables(member: str) -> bytes:
            return b"tables for " + member.encode()

        n1.serve_state = tables
        assert await n0.ask_state("n1", 5000, "n0") == b"tables for n0"
        assert await n0.ask_state("n1", 5000, "n7") == b"tables for ", "n7 is not a member"
        plain = Peers(
            made.members["n0"].settings.peers, NetSettings(), lambda request, answer: None, access=PeerAccess(())
        )
        with pytest.raises(RemoteProtocolError, match="not signed"):
            await plain.ask_state("n1", 5000, "n0")
        await plain.stop()
