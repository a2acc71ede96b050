"""Requests between brokers of a group over the DLedger port: who is named, what is answered, and what an answer means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from saturnmq.errors import ConnectFailed
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import BodyError, RemoteProtocolError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.access import PeerAccess
from saturnmq.raft.cluster_secret import ClusterSecret
from saturnmq.raft.peers import Peers
from saturnmq.raft.wire.codec import RESPONSE_HEADER_CODE, DLedgerCode

SECRET = "sixteen bytes or more"
ADDRESSES = {"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"}
HERE: Any = SimpleNamespace(remote_address="127.0.0.1:5000")


def peers_of(secret: str = "") -> Peers:
    return Peers(
        ADDRESSES, NetSettings(), lambda request, answer: None,
        access=PeerAccess(["127.0.0.1"]), secret=ClusterSecret.of(secret, required=bool(secret)),
    )  # fmt: skip


class Invoked:
    """Replaces a client's `invoke`; `calls` are what it was given."""

    def __init__(self, *replies: Command) -> None:
        self.replies = list(replies)
        self.calls: list[tuple[str, Command, int]] = []

    async def __call__(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.calls.append((address, command, timeout_ms))
        return self.replies.pop(0)


async def test_state_of_a_peer_is_the_body_of_its_answer() -> None:
    peers = peers_of()
    invoked = Invoked(
        Command(RESPONSE_HEADER_CODE, body=b"state"),
        Command(RESPONSE_HEADER_CODE),
        Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        Command(ResponseCode.SYSTEM_ERROR, remark="not now"),
    )
    peers._client.invoke = invoked  # type: ignore[method-assign, assignment]
    assert await peers.ask_state("n1", 700, "n0") == b"state"
    assert await peers.ask_state("n1", 700, "n0") == b""
    assert await peers.ask_state("n1", 700, "n0") is None, "a Java member"
    with pytest.raises(
        RemoteProtocolError, match=r"member n1 at 127\.0\.0\.1:2 refused to report its state: 1 not now"
    ):
        await peers.ask_state("n1", 700, "n0")
    with pytest.raises(ConnectFailed, match="n7 is no longer a member"):
        await peers.ask_state("n7", 700, "n0")
    assert [(address, timeout) for address, _, timeout in invoked.calls] == [("127.0.0.1:2", 700)] * 4
    assert {(command.code, command.body) for _, command, _ in invoked.calls} == {(DLedgerCode.STATE, b"n0")}
    await peers.stop()


async def test_forwarded_requests_have_a_connection_of_their_own() -> None:
    peers = peers_of()
    invoked = Invoked(Command(RESPONSE_HEADER_CODE, body=b"done"))
    peers._forwards.invoke = invoked  # type: ignore[method-assign, assignment]
    reply = await peers.forward("n1", b"request", 900)
    assert reply.body == b"done"
    [(address, command, timeout)] = invoked.calls
    assert (address, command.code, command.body, timeout) == ("127.0.0.1:2", DLedgerCode.FORWARD, b"request", 900)
    await peers.stop()


async def test_signed_requests_are_sent_again_to_a_process_with_a_new_name() -> None:
    """The first request teaches the name of the receiver's process; an answer without signature is refused."""
    ours, theirs = peers_of(SECRET), peers_of(SECRET)
    codes: list[int] = []

    async def serve(member: str) -> bytes:
        return b"state of " + member.encode()

    async def invoke(address: str, command: Command, timeout_ms: int) -> Command:
        served = theirs._handle(HERE, command)
        if isinstance(served, Command):
            reply = served
        else:
            works: list[Any] = []
            served.bind(SimpleNamespace(answer_later=lambda later, work: works.append(work)), command, 0.0)  # type: ignore[arg-type]
            reply = await works[0]
        codes.append(reply.code)
        return reply

    theirs.serve_state = serve
    ours._client.invoke = invoke  # type: ignore[method-assign, assignment]
    for number in (1, 2):
        assert await ours.ask_state("n1", 700, "n0") == b"state of n0"
        assert codes[-1] == RESPONSE_HEADER_CODE
        assert len(codes) == number + 1, "once more than asked"
    ours._client.invoke = Invoked(Command(RESPONSE_HEADER_CODE, body=b"forged"))  # type: ignore[method-assign, assignment]
    with pytest.raises(RemoteProtocolError, match="is not signed with this"):
        await ours.ask_state("n1", 700, "n0")
    await ours.stop()
    await theirs.stop()


@pytest.mark.parametrize(
    ("body", "member"), [(b"n1", "n1"), (b"n7", ""), (b"\xff\xfe", ""), (None, ""), (b"n1" + b" " * 1000, "")]
)
async def test_a_request_names_a_member_or_none(body: bytes | None, member: str) -> None:
    peers = peers_of()
    assert peers._named(Command(DLedgerCode.STATE, body=body)) == member
    await peers.stop()


async def test_a_forwarded_request_that_cannot_be_read_is_answered() -> None:
    peers = peers_of()
    served: list[bytes] = []

    def serve(connection: Any, body: bytes, answer: Any) -> None:
        served.append(body)
        if body == b"bad":
            raise BodyError("no request")

    peers.serve_forwarded = serve
    reply = peers._handle(HERE, Command(DLedgerCode.FORWARD, body=b"bad"))
    assert isinstance(reply, Command)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "BodyError: no request")
    assert not isinstance(peers._handle(HERE, Command(DLedgerCode.FORWARD)), Command)
    assert served == [b"bad", b""]
    await peers.stop()
