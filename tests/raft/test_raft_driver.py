"""Running Raft members: real files, and real sockets on loopback."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from raftgroup import FAST, Group, group

from saturnmq.errors import CallTimeout, StartError
from saturnmq.net.client import RemotingClient
from saturnmq.net.settings import NetSettings
from saturnmq.protocol.errors import ConfigError, CorruptRecord, DiskFull
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_record
from saturnmq.raft.core.actions import Role, SyncLog
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    Code,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    MetadataRequest,
    MetadataResponse,
    Request,
    Response,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from saturnmq.raft.core.state import HardState
from saturnmq.raft.driver import RaftMember
from saturnmq.raft.ledger.layout import LedgerCheckpoint
from saturnmq.raft.ledger.message_entries import message_is_good, noop_message, stamp_message
from saturnmq.raft.ledger.term_file import CheckpointFile, TermFile
from saturnmq.raft.settings import RaftProfile, RaftSettings, broker_id, parse_peers
from saturnmq.raft.wire.codec import DLedgerCode, code_of, decode_response, encode
from saturnmq.store.files.disk import Disk


def entries_of(made: Group, name: str) -> list[Entry]:
    files = made.members[name].files
    found = [files.entry(index) for index in range(files.begin_index, files.end_index + 1)]
    return [entry for entry in found if entry is not None]


async def call(address: str, request: Request, **changes: Any) -> Any:
    """Send one request, as a tool would."""
    client = RemotingClient(settings=NetSettings())
    try:
        reply = await client.invoke(address, Command(code_of(request), body=encode(request)), 5000)
        assert reply.code == 200
        return decode_response(code_of(request), reply.body)
    finally:
        await client.close()


@pytest.mark.spec("DL-A04", "DL-M10", "DL-S03", "DL-M06", "DL-B03", "DL-X04")
async def test_group_survives_leader_restart_with_equal_files(tmp_path: Path) -> None:
    noop = noop_message(("127.0.0.1", 10911), 1)
    async with group(tmp_path, noop=noop, stamp=stamp_message, body_is_good=message_is_good) as made:
        body = noop_message(("127.0.0.1", 10911), 2)
        for _ in range(20):
            await made.append(body)
        first = await made.a_leader()
        name = first.settings.self_id
        await made.stop(name)
        response = await made.append(body, body)
        assert len(response.positions) == 2
        await made.start(name)
        await made.append(body)
        await made.equal()
        logs = [entries_of(made, member) for member in made.names]
        assert logs[0] == logs[1] == logs[2]
        assert len(logs[0]) >= 23
        for entry in logs[0]:
            assert decode_record(entry.body, check_crc=True).physical_offset == entry.pos + 48
        maps = [b"".join(file.map[:] for file in made.members[member].files.data.files) for member in made.names]
        assert maps[0] == maps[1] == maps[2]


@pytest.mark.spec("DL-A08", "DL-Q07", "DL-M01", "DL-M10")
async def test_single_member_restart_keeps_all_entries(tmp_path: Path) -> None:
    made = Group(tmp_path, 1)
    member = await made.start("n0")
    for number in range(50):
        assert (await made.append(b"body%d" % number)).index == number
    term = member.status().term
    await made.stop("n0")
    again = await made.start("n0")
    assert again.status().end_index == 49
    assert again.status().committed_index == 49  # known from the checkpoint
    await made.a_leader()
    assert again.status().term >= term
    assert (await made.append(b"more")).index == 50
    await made.stop("n0")


@pytest.mark.spec("DL-A04")
async def test_listener_receives_index_and_end_of_each_commit(tmp_path: Path) -> None:
    made = Group(tmp_path, 1)
    member = await made.start("n0")
    for number in range(5):
        await made.append(b"body%d" % number)
    commits = made.recorders["n0"].commits
    assert [index for index, _ in commits] == sorted({index for index, _ in commits}) and commits[-1][0] == 4
    for index, end_pos in commits:
        entry = member.files.entry(index)
        assert entry is not None and entry.end_pos == end_pos
    await made.stop("n0")


@pytest.mark.spec("DL-S04")
async def test_work_is_due_while_entries_wait_for_an_asynchronous_flush(tmp_path: Path) -> None:
    made = Group(tmp_path, 1, sync_before_ack=False, checkpoint_interval_ms=3_600_000)
    member = await made.start("n0")
    await made.append(b"first")
    await made.until(lambda: not member.files.dirty, "never flushed")
    far = member._clock_ms() + 3_600_000
    assert member._work_in_ms(far) < 3_000_000, "retention is next"
    await made.append(b"second")
    if member.files.dirty:
        assert member._work_in_ms(far) == 0
    await made.until(lambda: not member.files.dirty, "not flushed soon")
    member._disk_failed("broken")
    assert member._work_in_ms(far) > 3_000_000, "a failed member has only its checkpoint to write"
    await made.stop("n0")


@pytest.mark.parametrize("by_broker", [True, False])
async def test_append_of_a_client_is_left_to_the_broker_if_there_is_one(tmp_path: Path, by_broker: bool) -> None:
    made = Group(tmp_path, 1, body_is_good=lambda body: bytes(body) != b"bad")
    member = await made.start("n0")
    await made.append(b"first")
    bodies: list[bytes] = []

    def append_for_client(body: bytes, answer: Any) -> None:
        bodies.append(body)
        answer(AppendResponse(code=Code.SUCCESS, index=77))

    if by_broker:
        member.append_for_client = append_for_client
    address = member.settings.peers["n0"]
    response = await call(address, AppendRequest(group="g", remote_id="n0", body=b"x"))
    assert (response.code, response.index, bodies) == (200, 77 if by_broker else 1, [b"x"] if by_broker else [])
    metadata = await call(address, MetadataRequest(group="g", remote_id="n0"))
    assert isinstance(metadata, MetadataResponse) and metadata.leader_id == "n0"
    for other, name, code in (("other", "n0", Code.UNKNOWN_GROUP), ("g", "n9", Code.UNKNOWN_MEMBER)):
        refused = await call(address, AppendRequest(group=other, remote_id=name, body=b"y"))
        assert refused.code == code and b"y" not in bodies, "of another group or member"
    client = RemotingClient(settings=NetSettings())
    bad = Command(DLedgerCode.APPEND, body=encode(AppendRequest(group="g", remote_id="n0", body=b"bad")))
    answer = await client.invoke(address, bad, 5000)
    assert answer.code == 1 and "is not a message" in (answer.remark or "") and b"bad" not in bodies
    await client.close()
    await made.stop("n0")


@pytest.mark.spec("DL-X15")
async def test_offer_to_failing_core_is_answered_only_by_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Group(tmp_path, 1)
    member = await made.start("n0")
    await made.append(b"first")
    assert member.node is not None

    def fails(now_ms: int, token: int, bodies: object) -> None:
        raise CorruptRecord("damaged")

    monkeypatch.setattr(member.node, "offer", fails)
    answers: list[Response] = []
    assert member.offer([b"x"], answers.append).code == Code.DISK_ERROR
    assert member.status().failed is not None
    await made.stop("n0")
    assert answers == []


async def test_failed_housekeeping_is_reported_as_storage_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Group(tmp_path, 1)
    member = await made.start("n0")

    def fails() -> None:
        raise KeyError("space")

    monkeypatch.setattr(member, "_check_space", fails)
    await made.until(lambda: member.status().failed is not None, "the failure is not reported")
    assert "housekeeping failed: KeyError('space')" in str(member.status().failed)
    await made.stop("n0")


@pytest.mark.spec("DL-Q07")
@pytest.mark.parametrize(("more", "seconds"), [({}, 3), ({"checkpoint_interval_ms": 1000}, 1)])
async def test_checkpoint_is_written_periodically(tmp_path: Path, more: dict[str, int], seconds: int) -> None:
    clock = asyncio.get_running_loop().time
    interval_ms = RaftSettings(**more).checkpoint_interval_ms  # type: ignore[arg-type]
    async with group(tmp_path, 1, checkpoint_interval_ms=interval_ms) as made:
        began = clock()
        file = CheckpointFile(tmp_path / "dledger-n0")
        for end in range(2):
            await made.append(b"a")
            await made.until(lambda end=end: file.read() == LedgerCheckpoint(end, end), "the checkpoint is not written")
            assert seconds * end < clock() - began < seconds * (end + 1) + 1


@pytest.mark.spec("DL-M09", "DL-A10", "DL-M07", "DL-M06")
async def test_client_requests_over_member_port(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        leader = await made.a_leader()
        name = leader.settings.self_id
        address = leader.settings.peers[name]
        known = {"group": "g", "remote_id": name}
        got = await call(address, AppendRequest(**known, body=b"hello"))
        assert isinstance(got, AppendResponse)
        assert (got.code, got.index, got.pos) == (Code.SUCCESS, 0, 0)
        found = await call(address, GetRequest(**known, begin_index=0))
        assert isinstance(found, GetResponse)
        assert found.entries[0].body == b"hello"
        meta = await call(address, MetadataRequest(**known))
        assert isinstance(meta, MetadataResponse)
        assert (meta.leader_id, meta.peers) == (name, leader.settings.peers)
        for known_by in made.names:
            asked = MetadataRequest(group="g", remote_id=known_by)
            meta = await call(leader.settings.peers[known_by], asked)
            assert (meta.code, meta.peers) == (Code.SUCCESS, leader.settings.peers)
        assert (await call(address, MetadataRequest(group="g", remote_id="n9"))).code == Code.UNKNOWN_MEMBER
        assert (await call(address, MetadataRequest(group="h", remote_id=name))).code == Code.UNKNOWN_GROUP
        assert (await call(address, GetRequest(**known, begin_index=5))).code == Code.INDEX_OUT_OF_RANGE
        other = next(n for n in made.names if n != name)
        answer = await call(leader.settings.peers[other], AppendRequest(group="g", remote_id=other, body=b"x"))
        assert answer.code == Code.NOT_LEADER


@pytest.mark.spec("DL-M06", "DL-X17")
async def test_invalid_requests_and_strangers_are_refused_without_effect(tmp_path: Path) -> None:
    async with group(tmp_path, body_is_good=message_is_good) as made:
        leader = await made.a_leader()
        name, address = leader.settings.self_id, leader.settings.peers[leader.settings.self_id]
        client = RemotingClient(settings=NetSettings())
        try:
            for code, body, expected in (
                (DLedgerCode.PULL, b"{}", 3),
                (10, b"{}", 3),
                (DLedgerCode.PUSH, b"junk", 1),
                (DLedgerCode.VOTE, None, 1),
                (DLedgerCode.APPEND, encode(AppendRequest(group="g", remote_id=name, body=b"no message")), 1),
            ):
                assert (await client.invoke(address, Command(code, body=body), 5000)).code == expected
        finally:
            await client.close()
        stranger = VoteRequest(group="g", remote_id=name, local_id="n7", leader_id="n7", term=99, ledger_end_term=99)
        answer = await call(address, stranger)
        assert isinstance(answer, VoteResponse)
        assert answer.vote_result is VoteResult.REJECT_UNKNOWN_LEADER
        beat = HeartBeatRequest(group="g", remote_id=name, local_id="n7", leader_id="n7", term=99)
        assert (await call(address, beat)).code == Code.UNKNOWN_MEMBER
        assert leader.status().role is Role.LEADER


@pytest.mark.spec("DL-L03", "DL-L05", "DL-L01")
async def test_transfer_succeeds_and_wrong_term_is_refused(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        await made.append(b"a")
        old = await made.a_leader()
        await made.equal()
        name, term = old.settings.self_id, old.status().term
        to = next(n for n in made.names if n != name)
        request = TransferRequest(group="g", remote_id=name, transfer_id=name, transferee_id=to, term=term + 1)
        assert (await call(old.settings.peers[name], request)).code == Code.INCONSISTENT_TERM
        for _ in range(5):  # on a slow machine the election may fail
            answer = await (await made.a_leader()).transfer(to)
            if answer.code == Code.SUCCESS:
                break
            assert answer.code == Code.TAKE_LEADERSHIP_FAILED
        assert made.members[to].status().role is Role.LEADER
        assert made.members[to].status().term > term
        await made.append(b"b")


@pytest.mark.spec("DL-L09")
async def test_preferred_member_regains_leadership(tmp_path: Path) -> None:
    async with group(tmp_path, preferred_leader_id="n2") as made:
        await made.append(b"a")
        await made.until(lambda: made.leader is made.members["n2"], "n2 does not lead")
        await made.stop("n2")
        await made.append(b"b")
        await made.start("n2")
        await made.until(lambda: made.leader is made.members["n2"], "n2 does not lead again")
        assert made.members["n2"].status().role is Role.LEADER


@pytest.mark.spec("DL-P15", "DL-F11")
async def test_batch_push_replicates_equal_logs(tmp_path: Path) -> None:
    async with group(tmp_path, batch_push=True, batch_push_bytes=300) as made:
        answers = await asyncio.gather(*(made.append(b"x%d" % n) for n in range(200)))
        assert (
            sorted(answer.index for answer in answers)
            == list(range(answers and max(a.index for a in answers) + 1))[-200:]
        )
        await made.equal()
        logs = [entries_of(made, member) for member in made.names]
        assert logs[0] == logs[1] == logs[2]


@pytest.mark.spec("DL-P05", "DL-X13", "DL-F08")
async def test_member_restarted_empty_is_refilled(tmp_path: Path) -> None:
    async with group(tmp_path, file_bytes=4096) as made:
        for number in range(60):
            await made.append(b"%d" % number * 50)
        leader = await made.a_leader()
        lost = next(n for n in made.names if n != leader.settings.self_id)
        await made.stop(lost)
        for file in sorted((tmp_path / f"dledger-{lost}").rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        await made.start(lost)
        await made.equal()
        assert entries_of(made, lost) == entries_of(made, leader.settings.self_id)
        assert made.members[lost].files.end_index == 59


class BadDisk(Disk):
    """A disk whose sync and write can be made to fail. full: no space for the file `checkpoint`; refused: how often."""

    def __init__(self) -> None:
        self.fail_sync = False
        self.fail_write = False
        self.full = False
        self.refused = 0

    def sync(self, fd: int) -> None:
        if self.fail_sync:
            raise OSError(5, "I/O error")
        super().sync(fd)

    def write_file(self, path: Path, data: bytes) -> None:
        if self.fail_write:
            raise OSError(5, "I/O error")
        if self.full and path.name.startswith("checkpoint"):
            self.refused += 1
            raise OSError(errno.EDQUOT if self.refused % 2 else errno.ENOSPC, "no space")
        super().write_file(path, data)


@pytest.mark.spec("DL-X15", "DL-X02", "DUR-12")
async def test_leader_with_failed_sync_acknowledges_nothing_and_is_replaced(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        await made.append(b"a")
        old = await made.a_leader()
        await made.equal()
        away = next(name for name in made.names if made.members[name] is not old)
        await made.stop(away)  # else two followers could commit it before the leader's sync fails
        bad = BadDisk()
        bad.fail_sync = True
        for file in (*old.files.data.files, *old.files.index.files):
            file._disk = bad
        answer = await old.append([b"b"])
        assert answer.code != Code.SUCCESS
        await made.start(away)
        await made.until(lambda: made.leader not in (None, old), "no other leader")
        assert "I/O error" in (old.status().failed or "")
        assert (await made.append(b"c")).code == Code.SUCCESS
        assert old.status().role is not Role.LEADER


@pytest.mark.spec("DUR-06", "DL-X15", "DL-Q07")
async def test_checkpoint_that_cannot_be_written_is_final(tmp_path: Path) -> None:
    bad = BadDisk()
    made = Group(tmp_path, 1, disk=bad)
    member = await made.start("n0")
    await made.append(b"a")
    bad.fail_write = True
    await member.append([b"b"])  # the checkpoint must change
    await made.until(lambda: member.status().failed, "the failure is not seen")
    assert "checkpoint not written" in (member.status().failed or "")
    bad.fail_write = False
    assert (await member.append([b"c"])).code == Code.NOT_LEADER
    await made.stop("n0")


@pytest.mark.spec("DUR-15", "DL-Q07")
def test_checkpoint_without_space_is_retried_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        full = BadDisk()
        made = Group(tmp_path, 1, disk=full)
        member = await made.start("n0")
        for number in (1, 2):
            full.full, full.refused = True, 0
            await made.append(b"a")
            await made.until(lambda: full.refused >= 4, "not retried")
            assert member.status().failed is None
            full.full = False  # nothing is appended any more: the same checkpoint is written again
            await made.until(lambda seen=2 * number: len(events()) == seen, "not written")
        assert events() == ["no space for the checkpoint, write retried", "checkpoint written again"] * 2
        written = CheckpointFile(member.files.folder).read()
        await made.stop("n0")
        assert written.end_index == member.status().end_index

    def events() -> list[str]:
        return [one.message.split(" member")[0] for one in caplog.records if "checkpoint" in one.message]

    caplog.set_level(logging.INFO, "saturnmq.raft.ledger.opened")
    asyncio.run(run())


@pytest.mark.spec("DL-X15", "DUR-11", "DL-X01")
async def test_vote_that_cannot_be_persisted_is_not_granted(tmp_path: Path) -> None:
    bad = BadDisk()
    made = Group(tmp_path, 3, disk=bad)
    member = await made.start(
        "n0", heartbeat_interval_ms=60_000, vote_interval_min_ms=50_000, vote_interval_max_ms=60_000
    )
    await made.until(lambda: (tmp_path / "dledger-n0" / "currterm").is_file(), "no first vote")
    bad.fail_write = True
    address = member.settings.peers["n0"]
    ask = VoteRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=5)
    await call(address, ask)  # answered TERM_NOT_READY; adopting the term fails to persist
    await made.until(lambda: member.status().failed, "the failure is not seen")
    answer = await call(address, ask)
    assert (answer.code, answer.vote_result) == (Code.DISK_ERROR, VoteResult.UNKNOWN)
    await made.stop("n0")
    assert (tmp_path / "dledger-n0" / "currterm").read_text() == "voteLeader=n0\ncurrTerm=0\n"


@pytest.mark.spec("DL-X01", "DL-M01")
async def test_ledger_without_term_file_starts_only_when_forced(tmp_path: Path) -> None:
    made = Group(tmp_path, 1)
    await made.start("n0")
    await made.append(b"a")
    await made.stop("n0")
    for name in ("currterm", "currterm.bak"):
        (tmp_path / "dledger-n0" / name).unlink(missing_ok=True)
    with pytest.raises(CorruptRecord, match="vote twice"):
        await made.start("n0")
    await made.stop("n0")
    forced = Group(tmp_path, 1, force_without_term=True)
    await forced.start("n0")
    assert (await forced.append(b"b")).index == 1
    await forced.stop("n0")


@pytest.mark.spec("DL-X17")
def test_listen_address_from_peers_or_bind_address() -> None:
    known = {"enabled": True, "group": "g", "peers_text": "n0-host:40911;n1-other:40912", "self_id": "n0"}
    assert RaftSettings(**known).listen_address == ("host", 40911)  # type: ignore[arg-type]
    assert RaftSettings(**known, bind_address="127.0.0.2").listen_address == ("127.0.0.2", 40911)  # type: ignore[arg-type]


@pytest.mark.spec("DL-X17")
async def test_member_listens_at_its_bind_address_only(tmp_path: Path) -> None:
    made = Group(tmp_path, 1)
    member = await made.start("n0", bind_address="127.0.0.2")
    host, port = member.settings.listen_address
    assert host == "127.0.0.2"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    await made.stop("n0")


@pytest.mark.spec("DL-M01")
async def test_start_reads_term_and_vote(tmp_path: Path) -> None:
    peers = "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3"
    settings = RaftSettings(enabled=True, group="g", peers_text=peers, self_id="n0")
    folder = settings.folder(tmp_path)
    for state in (HardState(), HardState(7, "n1")):
        if state != HardState():
            TermFile(folder).write(state)
        member = RaftMember(settings, folder, NetSettings(), file_bytes=65536, sync_before_ack=True)
        member.open()
        assert (member.status().term, member.node._state.voted_for) == (state.term, state.voted_for)
        await member.stop()


@pytest.mark.spec("DL-A05", "DL-S04")
async def test_async_flush_acknowledges_before_sync(tmp_path: Path) -> None:
    async with group(tmp_path, sync_before_ack=False) as made:
        await made.append(b"a")
        await made.equal()
        await made.until(lambda: not any(m.files.dirty for m in made.members.values()), "not flushed")
        assert all(m.status().durable_index == 0 for m in made.members.values())


@pytest.mark.spec("DL-S04")
async def test_async_flush_pause_follows_sync_duration_within_bounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with group(tmp_path, size=1, sync_before_ack=False) as made:
        await made.append(b"a")
        member = await made.a_leader()
        await made.until(lambda: not member.files.dirty and member._sync is None, "not flushed")
        for took_ms, rest_ms in ((0, 50), (20, 80), (500, 500), (60_000, 500)):
            now = [1_000_000]
            member._clock_ms = lambda now=now: now[0]  # type: ignore[misc]

            def job(now: list[int] = now, took_ms: int = took_ms) -> None:
                now[0] += took_ms

            end = member.status().end_index
            await member._run_sync(SyncLog(0, end), job)
            assert member._sync_pause.until_ms - now[0] == rest_ms
        assert [text for text in caplog.messages if "slow sync" in text] == ["slow sync member=n0 elapsed_ms=60000"]


@pytest.mark.spec("DL-X09", "DL-M10")
async def test_pending_appends_fail_when_member_stops(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        await made.append(b"a")
        leader = await made.a_leader()
        for name in made.names:
            if name != leader.settings.self_id:
                await made.stop(name)
        waiting = asyncio.ensure_future(leader.append([b"never"]))
        await asyncio.sleep(0)
        await made.stop(leader.settings.self_id)
        assert (await waiting).code in (Code.TERM_CHANGED, Code.WAIT_QUORUM_ACK_TIMEOUT, Code.NOT_LEADER)


@pytest.mark.spec("DL-M04")
async def test_start_errors_for_used_port_and_wrong_file_size(tmp_path: Path) -> None:
    made = Group(tmp_path, 1)
    await made.start("n0")
    await made.append(b"a")
    second = Group(tmp_path / "b", 1)
    second.peers = made.peers
    with pytest.raises(StartError, match="in use"):
        await second.start("n0")
    await second.stop("n0")
    await made.stop("n0")
    other = Group(tmp_path, 1, file_bytes=131072)
    with pytest.raises(CorruptRecord, match="must be 131072"):
        await other.start("n0")
    await other.stop("n0")


@pytest.mark.spec("DL-M02", "DL-M03", "DL-C04")
def test_parse_peers_accepts_and_rejects() -> None:
    assert parse_peers("n0-my-host.de:40911; n1-10.0.0.1:40912;") == {"n0": "my-host.de:40911", "n1": "10.0.0.1:40912"}
    for wrong in (
        "",
        "n0",
        "n0-host",
        "n0-host:",
        "n0-:1",
        "-host:1",
        "n0-h:0",
        "n0-h:65536",
        "n0-h:1;n0-h:2",
        "n0-h:1;n1-h:1",
        "n0-::1:1",
        "n0-[::1]:1",
    ):
        with pytest.raises(ValueError, match=r"\w"):
            parse_peers(wrong)
    assert [broker_id(name) for name in ("n0", "n2", "m17")] == [1, 3, 18]


@pytest.mark.spec("DL-M03", "DL-M04", "DL-X14", "DL-Q07", "DL-S04", "DL-M08")
def test_raft_settings_validation_and_dledger_defaults() -> None:
    bad = RaftSettings(enabled=True, peers_text="n0-h:1;x-h:2", self_id="n7", preferred_leader_id="n0;n9")
    problems = bad.validate()
    assert len(problems) == 3
    assert "n7" in problems[1]
    assert "n9" in problems[2]
    assert "letter and digits" in RaftSettings(enabled=True, group="g", peers_text="x-h:2", self_id="x").validate()[0]
    assert RaftSettings().validate() == []
    core = RaftSettings(enabled=True, group="g", peers_text="n0-h:1", self_id="n0").core(1024, sync_before_ack=False)
    assert core.batch_push_auto and core.batch_push_auto_bytes == 131_072
    assert (RaftSettings().checkpoint_interval_ms, RaftSettings().flush_interval_ms, core.rpc_timeout_ms) == (
        3000,
        10,
        3000,
    )
    assert (core.heartbeat_interval_ms, core.election_timeout_ms, core.lease_timeout_ms) == (2000, 6000, 5000)
    assert (core.vote_interval_min_ms, core.vote_interval_max_ms, core.pending_requests_max) == (300, 1000, 10_000)
    assert (core.append_wait_ms, core.push_throttle_bytes, core.push_quota_bytes) == (2500, 314_572_800, 20_971_520)
    fast = RaftSettings(profile=RaftProfile.FAST, peers_text="n0-h:1", self_id="n0").core(1024, sync_before_ack=True)
    assert (fast.heartbeat_interval_ms, fast.vote_interval_max_ms) == (500, 500)
    assert fast.validate() == []
    assert RaftSettings(batch_push_java=True).core(1024, sync_before_ack=True).batch_push


@pytest.mark.spec("DL-M03")
async def test_member_with_unknown_own_id_does_not_open(tmp_path: Path) -> None:
    from saturnmq.raft.driver import RaftMember

    settings = RaftSettings(enabled=True, group="g", peers_text="n0-127.0.0.1:1", self_id="n1", **FAST)
    member = RaftMember(settings, tmp_path, NetSettings(), file_bytes=4096, sync_before_ack=True)
    with pytest.raises(ConfigError, match="n1"):
        member.open()
    await member.stop()


class SmallDisk(Disk):
    """A disk with space for a limited number of data files."""

    def __init__(self, files: int) -> None:
        self.files = files

    def create(self, path: Path, size_bytes: int, *, allocate: bool) -> int:
        if "data" in path.parts[-2] and self.files <= 0:
            raise DiskFull(f"no space for {path}")
        self.files -= "data" in path.parts[-2]
        return super().create(path, size_bytes, allocate=allocate)


@pytest.mark.spec("DL-S10", "DL-A04", "DUR-15")
async def test_full_disk_refuses_appends_with_415_until_there_is_space(tmp_path: Path) -> None:
    disk = SmallDisk(1)
    made = Group(tmp_path, 1, disk=disk, file_bytes=4096)
    member = await made.start("n0")
    for _ in range(3):
        await made.append(b"x" * 800)
    await made.until(lambda: member.node and member.node.is_disk_full, "the full disk is not seen")
    assert (await member.append([b"y"])).code == Code.DISK_FULL
    assert member.status().failed is None
    disk.files = 10
    await made.append(b"z" * 800)
    for _ in range(8):
        await made.append(b"z" * 800)
    assert len(member.files.data.files) >= 3
    await made.stop("n0")
    again = await made.start("n0")
    assert again.status().end_index == 11
    await made.stop("n0")


@pytest.mark.spec("DL-A04", "DL-X15")
@pytest.mark.parametrize(("sync", "code"), [(True, Code.TERM_CHANGED), (False, Code.DISK_ERROR)])
async def test_append_write_error_ends_leadership(sync: bool, code: Code, tmp_path: Path) -> None:
    """414 if the response was already due; an append waiting for a quorum fails with the code of a lost leadership."""
    made = Group(tmp_path, 1, sync_before_ack=sync)
    member = await made.start("n0")
    await made.append(b"a")

    def fail(entries: object) -> None:
        raise OSError(5, "I/O error")

    member.files.append = fail  # type: ignore[method-assign, assignment]
    assert (await member.append([b"b"])).code == code
    assert "I/O error" in (member.status().failed or "")
    assert (await member.append([b"c"])).code == Code.NOT_LEADER
    await made.stop("n0")
    again = await made.start("n0")
    assert again.status().end_index == 0
    await made.append(b"d")
    await made.stop("n0")


@pytest.mark.spec("DL-S09", "DL-S12", "DL-P13", "DL-F08")
async def test_lagging_member_restarts_at_leader_begin_after_retention(tmp_path: Path) -> None:
    """docs/spec/04-dledger.md section 7, row 17."""
    async with group(tmp_path, file_bytes=4096) as made:
        await made.append(b"first")
        await made.equal()
        leader = await made.a_leader()
        late = next(n for n in made.names if n != leader.settings.self_id)
        await made.stop(late)
        for _ in range(40):
            await made.append(b"x" * 700)
        leader = await made.a_leader()
        files = len(leader.files.data.files)
        assert files > 5
        year_s = 366 * 86400
        deleted = 0
        while leader.files.begin_index < 10:
            deleted += leader.clean(0.1, time.time() + year_s, 4)
            await asyncio.sleep(0)
        assert 0 < deleted < files
        assert leader.status().begin_index == leader.files.begin_index
        await made.start(late)
        await made.append(b"last")
        await made.equal()
        assert made.members[late].files.begin_index == leader.files.begin_index
        assert entries_of(made, late) == entries_of(made, leader.settings.self_id)


@pytest.mark.spec("DL-M08")
async def test_call_without_response_counts_as_network_error(tmp_path: Path) -> None:
    """The core sets the timeout of each call; after it the network side reports None (VOTE: UNKNOWN, transfer: 302)."""
    async with group(tmp_path, rpc_timeout_ms=300) as made:
        await made.append(b"a")
        await made.equal()
        leader = await made.a_leader()
        other = next(n for n in made.names if n != leader.settings.self_id)
        writers: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
        host, port = silent.sockets[0].getsockname()[:2]
        leader.readdress(other, f"{host}:{port}")
        clock = asyncio.get_running_loop().time
        began = clock()
        answer = await leader.transfer(other)
        assert answer.code == Code.NETWORK_ERROR
        assert 0.3 <= clock() - began < 1
        silent.close()
        for writer in writers:
            writer.close()
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])


async def test_transfer_ends_when_the_leader_stops(tmp_path: Path) -> None:
    async with group(tmp_path, rpc_timeout_ms=60_000) as made:
        await made.append(b"a")
        await made.equal()
        leader = await made.a_leader()
        other = next(n for n in made.names if n != leader.settings.self_id)
        asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        silent = await asyncio.start_server(lambda reader, writer: asked.put_nowait(writer), "127.0.0.1", 0)
        host, port = silent.sockets[0].getsockname()[:2]
        leader.readdress(other, f"{host}:{port}")
        transfer = asyncio.ensure_future(leader.transfer(other))
        async with asyncio.timeout(30):
            writer = await asked.get()
            await made.stop(leader.settings.self_id)
            answer = await transfer
        assert isinstance(answer, TransferResponse) and answer.code == Code.TERM_CHANGED
        silent.close()
        writer.close()
        await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])


@pytest.mark.spec("DL-Q06", "DL-M05")
async def test_status_has_role_term_bounds_and_watermarks(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        await made.append(b"a")
        await made.equal()
        leader = await made.a_leader()
        await made.until(lambda: set(leader.status().watermarks.values()) == {0}, "watermarks lag")
        status = leader.status()
        assert (status.role, status.begin_index, status.end_index, status.committed_index) == (Role.LEADER, 0, 0, 0)
        assert set(status.watermarks) == set(made.names)  # exactly the members of dLegerPeers: membership is static
        follower = next(m for m in made.members.values() if m is not leader)
        assert (follower.status().leader_id, follower.status().watermarks) == (leader.settings.self_id, {})


@pytest.mark.spec("DL-X15", "DUR-10")
async def test_leader_that_reads_damage_steps_down_without_serving_it(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        for number in range(5):
            await made.append(b"body%d" % number)
        await made.equal()
        leader = await made.a_leader()
        assert leader.leads
        assert leader.node is not None
        leader.node._state.log._cache.clear()
        leader.files.index.files[0].map[2 * 32 + 4 : 2 * 32 + 12] = (1).to_bytes(8, "big")
        name = leader.settings.self_id
        client = RemotingClient(settings=NetSettings())
        try:
            request = GetRequest(group="g", remote_id=name, begin_index=2)
            with pytest.raises(CallTimeout):
                await client.invoke(leader.settings.peers[name], Command(code_of(request), body=encode(request)), 300)
        finally:
            await client.close()
        assert leader.status().failed
        assert not leader.leads
        await made.until(lambda: made.leader not in (None, leader), "no other leader")


@pytest.mark.spec("DUR-10")
async def test_member_with_damaged_log_does_not_vote_until_refilled(tmp_path: Path) -> None:
    async with group(tmp_path) as made:
        for number in range(8):
            await made.append(b"body%d" % number)
        await made.equal()
        leader = await made.a_leader()
        hurt = next(n for n in made.names if n != leader.settings.self_id)
        await made.stop(hurt)
        data = next((tmp_path / f"dledger-{hurt}" / "data").iterdir())
        content = bytearray(data.read_bytes())
        content[5 * 53 : 5 * 53 + 4] = bytes(4)  # entries have 53 bytes: destroy the sixth
        data.write_bytes(content)
        for name in list(made.members):
            await made.stop(name)
        back = await made.start(hurt)
        assert back.status().end_index == 4
        address = back.settings.peers[hurt]
        other = next(n for n in made.names if n != hurt)
        ask = VoteRequest(
            group="g",
            remote_id=hurt,
            local_id=other,
            leader_id=other,
            term=back.status().term + 1,
            ledger_end_index=4,
            ledger_end_term=9,
        )
        assert (await call(address, ask)).vote_result is VoteResult.REJECT_TERM_NOT_READY
        await made.until(lambda: back.status().term == ask.term, "the term is not taken")
        answer = await call(address, ask)
        assert (answer.code, answer.vote_result) == (Code.DISK_ERROR, VoteResult.UNKNOWN)
        for name in made.names:
            if name != hurt:
                await made.start(name)
        await made.append(b"after")
        await made.equal()
        assert back.node is not None
        await made.until(lambda: back.node and not back.node.recovering, "still recovering")
        assert [entry.body for entry in entries_of(made, hurt)][:8] == [b"body%d" % number for number in range(8)]
