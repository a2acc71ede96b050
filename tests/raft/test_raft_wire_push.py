"""Binary push form between SaturnMQ members: its codec, its negotiation, and that Java members never receive it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.config.settings import load
from saturnmq.net.connection import Connection
from saturnmq.net.server import RemotingServer
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.errors import BodyError, ConfigError
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.access import PeerAccess
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import Code, PushKind, PushRequest, PushResponse, Request, Response
from saturnmq.raft.peers import Peers
from saturnmq.raft.settings import RaftSettings
from saturnmq.raft.wire.codec import DLedgerCode, encode
from saturnmq.raft.wire.push import OFFER, decode_answer, decode_push, encode_answer, encode_push, is_plain

LONG = st.integers(-(2**63), 2**63 - 1)
SIDES = {"group": "g", "leader_id": "n0", "local_id": "n0", "remote_id": "n1"}


def entry(index: int, body: bytes = b"body") -> Entry:
    return Entry(index, 3, 1000 + 52 * index, body)


@pytest.mark.spec("DL-X14")
@given(st.lists(st.tuples(LONG, LONG, LONG, st.binary(max_size=64)), max_size=5), LONG, LONG, st.text(max_size=20))
def test_binary_push_round_trip(
    made: list[tuple[int, int, int, bytes]], term: int, commit_index: int, name: str
) -> None:
    entries = tuple(Entry(*one) for one in made)
    names = {**SIDES, "leader_id": name}
    push = PushRequest(**names, term=term, commit_index=commit_index, entries=entries, batch=True)
    body = encode_push(push)
    assert body is not None
    assert is_plain(body)
    assert decode_push(body) == push
    with pytest.raises(BodyError):
        decode_push(body + b"\0")
    for cut in range(len(body)):
        with pytest.raises(BodyError):
            decode_push(body[:cut])


@pytest.mark.spec("DL-X14")
@given(st.integers(-(2**31), 2**31 - 1), LONG, st.none() | st.integers(0, 2**40), st.integers(0, 100), LONG, LONG)
def test_binary_push_response_round_trip(
    code: int, term: int, index: int | None, count: int, begin: int, end: int
) -> None:
    answer = PushResponse(code=code, term=term, index=index, count=count, begin_index=begin, end_index=end)
    body = encode_answer(answer)
    assert decode_answer(body) == answer
    for wrong in (body[:-1], body + b"\0", body[:1] + b"\x01" + body[2:]):
        with pytest.raises(BodyError):
            decode_answer(wrong)


@pytest.mark.spec("DL-X14", "FUZ-08")
@given(st.binary(max_size=300))
def test_binary_push_any_bytes_parse_or_raise_body_error(data: bytes) -> None:
    for read in (decode_push, decode_answer):
        try:
            found = read(b"\x02" + data)
        except BodyError:
            continue
        assert isinstance(found, PushRequest | PushResponse)


@pytest.mark.spec("DL-X14")
def test_largest_batch_fits_a_frame_of_16_mib() -> None:
    """A batch of the largest size that settings allow, short of one byte, and the largest entry behind it."""
    batch_bytes = 4_194_304
    for name in ("dledger.maxBatchPushSize", "dledger.autoBatchPushSize"):
        load(RaftSettings, ("test", {name: str(batch_bytes)}))
        with pytest.raises(ConfigError, match=name):
            load(RaftSettings, ("test", {name: str(batch_bytes + 1)}))
    entries = (entry(4, bytes(batch_bytes - 49)), entry(5, bytes(batch_bytes - 48)))
    assert [one.size for one in entries] == [batch_bytes - 1, batch_bytes]
    assert len(encode(PushRequest(**SIDES, term=2**62, commit_index=2**62, entries=entries, batch=True))) < 12 << 20


@pytest.mark.spec("DL-X14")
def test_push_that_binary_form_cannot_represent_uses_json() -> None:
    assert encode_push(PushRequest(**SIDES, kind=PushKind.COMPARE, entries=(entry(1),))) is None
    assert encode_push(PushRequest(**{**SIDES, "group": "g" * 256}, entries=(entry(1),))) is None
    for body in (None, b"", encode(PushRequest(**SIDES, entries=(entry(1),)))):
        assert not is_plain(body)


# ---- negotiation

LOOPBACK_ONLY = PeerAccess(["127.0.0.1"])


class Other:
    """A peer that records requests. plain: it responds like a SaturnMQ member, else like a Java one."""

    def __init__(self, *, plain: bool) -> None:
        self.bodies: list[bytes] = []
        self.ext: list[dict[str, str]] = []
        self._ours = Peers({}, NetSettings(), self._probed, access=LOOPBACK_ONLY)
        self._server = self._ours._server if plain else RemotingServer(self._handle, settings=NetSettings())
        if plain:
            handle = self._server.handler

            def seen(connection: Connection, command: Command) -> object:
                self.bodies.append(command.body or b"")
                self.ext.append(dict(command.ext))
                return handle(connection, command)

            self._server.handler = seen  # type: ignore[assignment]

    def _probed(self, request: Request, answer: Callable[[Response], None]) -> None:
        assert isinstance(request, PushRequest)
        index = request.entries[0].index if request.entries else None
        answer(PushResponse(code=Code.SUCCESS, index=index, count=max(len(request.entries), 1), end_index=7))

    def _handle(self, connection: Connection, command: Command) -> Command:
        self.bodies.append(command.body or b"")
        if is_plain(command.body):
            return command.reply(1, "JSONException: syntax error")
        return command.reply(200, body=encode(PushResponse(code=Code.SUCCESS, index=5, count=1, end_index=7)))

    async def start(self, port: int = 0) -> str:
        host, bound = await self._server.start("127.0.0.1", port)
        return f"{host}:{bound}"

    async def stop(self) -> None:
        await self._ours.stop()
        await self._server.stop()


async def asked(peers: Peers, kind: PushKind, *entries: Entry) -> Response | None:
    """The response of n1 to a push."""
    future: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
    peers.send("n1", PushRequest(**SIDES, kind=kind, entries=entries), 3000, future.set_result)
    async with asyncio.timeout(20):
        return await future


@pytest.mark.spec("DL-X14", "DL-M06")
async def test_binary_push_only_to_members_that_accepted_the_offer() -> None:
    ours, theirs = Other(plain=True), Other(plain=False)
    peers = Peers({"n1": await ours.start()}, NetSettings(), lambda request, answer: None, access=LOOPBACK_ONLY)
    try:
        assert await asked(peers, PushKind.APPEND, entry(4)) is not None
        assert not is_plain(ours.bodies[-1])  # support is not known yet
        assert await asked(peers, PushKind.COMPARE, entry(4)) is not None
        assert not is_plain(ours.bodies[-1])
        assert ours.ext[-1] == {OFFER: "2"}
        answer = await asked(peers, PushKind.APPEND, entry(5), entry(6))
        assert is_plain(ours.bodies[-1])
        assert isinstance(answer, PushResponse)
        assert (answer.code, answer.index, answer.count, answer.end_index) == (Code.SUCCESS, 5, 2, 7)

        peers.readdress("n1", await theirs.start())
        for kind in (PushKind.COMPARE, PushKind.APPEND, PushKind.COMMIT, PushKind.APPEND):
            assert await asked(peers, kind, entry(5)) is not None
        assert not any(map(is_plain, theirs.bodies))
    finally:
        await peers.stop()
        await ours.stop()
        await theirs.stop()


@pytest.mark.spec("DL-X14", "DL-M06")
async def test_member_replaced_by_java_one_costs_one_failed_push() -> None:
    ours, theirs = Other(plain=True), Other(plain=False)
    address = await ours.start()
    peers = Peers({"n1": address}, NetSettings(), lambda request, answer: None, access=LOOPBACK_ONLY)
    try:
        await asked(peers, PushKind.COMPARE, entry(4))
        peers._addresses[
            "n1"
        ] = await theirs.start()  # a real member keeps its port; here the bound port is not free at once
        assert await asked(peers, PushKind.APPEND, entry(5)) is None
        assert await asked(peers, PushKind.APPEND, entry(5)) is not None
        assert [is_plain(body) for body in theirs.bodies] == [True, False]
    finally:
        await peers.stop()
        await ours.stop()
        await theirs.stop()


@pytest.mark.spec("DL-M06", "DL-X14")
async def test_broken_binary_push_is_answered_with_body_error() -> None:
    ours = Other(plain=True)
    peers = Peers({"n1": await ours.start()}, NetSettings(), lambda request, answer: None, access=LOOPBACK_ONLY)
    try:
        command = Command(DLedgerCode.PUSH, body=b"\x02\x01 and no more")
        reply = await peers._client.invoke(peers._addresses["n1"], command, 3000)
        assert reply.code == 1
        assert "BodyError" in (reply.remark or "")
    finally:
        await peers.stop()
        await ours.stop()
