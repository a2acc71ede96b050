"""Attacks on the DLedger ports of three broker processes, from a stranger's address, from a member's host without the secret, and
from an operator's address, while an honest producer sends.

Requirements: SEC-18, DL-X17.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from test_raft_access import ask_from
from test_raft_broker_processes import TOPIC, Processes, master_at

from saturnmq import Client, SendStatus
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Host, Message, encode_record
from saturnmq.raft.cluster_secret import FIELD
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import (
    AppendRequest,
    Code,
    HeartBeatRequest,
    PushKind,
    PushRequest,
    Request,
    TransferRequest,
    VoteRequest,
)
from saturnmq.raft.ledger.check import verify
from saturnmq.raft.settings import parse_peers
from saturnmq.raft.wire.codec import DLedgerCode, code_of, decode_response, encode
from saturnmq.raft.wire.push import encode_push

pytestmark = pytest.mark.realtime
STRANGER, ON_A_MEMBERS_HOST, OPERATOR = "127.0.0.5", "127.0.0.1", "127.0.0.9"
HOST = Host("10.1.2.3", 4567)


def record(topic: str, queue_offset: int) -> bytes:
    times = {"born_timestamp_ms": 1_700_000_000_000, "store_timestamp_ms": 1_700_000_000_000}
    return encode_record(Message(topic, b"forged", born_host=HOST, store_host=HOST, queue_offset=queue_offset, **times))


def attacks(victim: str, forged_leader: str) -> list[Request]:
    """Take a leader's place with a higher term, empty the victim's log, fill it with invalid records; end all elections."""
    found: list[Request] = []
    for term in (1, 2, 3, 50, 2**20, 2**63 - 1):
        sides: dict[str, Any] = {
            "group": "g", "remote_id": victim, "local_id": forged_leader, "leader_id": forged_leader, "term": term,
        }  # fmt: skip
        first = Entry(0, term, 0, record("../../x", 0))
        later = Entry(1, term, first.end_pos, record(TOPIC, 1000))
        found += [
            HeartBeatRequest(**sides),
            VoteRequest(ledger_end_index=10**9, ledger_end_term=term, **sides),
            PushRequest(kind=PushKind.COMPARE, entries=(first,), **sides),
            PushRequest(kind=PushKind.TRUNCATE, entries=(first,), **sides),
            PushRequest(kind=PushKind.APPEND, entries=(first, later), commit_index=1, batch=True, **sides),
            PushRequest(kind=PushKind.COMMIT, commit_index=1, **sides),
            TransferRequest(transfer_id=forged_leader, transferee_id=victim, **sides),
        ]
    return found


def command_of(request: Request) -> Command:
    plain = encode_push(request) if isinstance(request, PushRequest) else None
    return Command(code_of(request), body=plain or encode(request))


@pytest.mark.timeout(180)
@pytest.mark.spec("SEC-18")
async def test_attacks_on_dledger_ports_leave_honest_producer_and_group_unharmed(tmp_path: Path) -> None:
    group = Processes(
        tmp_path,
        **{
            "dledger.clusterSecret": "known to the three only",
            "dledger.requireClusterSecret": "true",
            "adminAddresses": OPERATOR,
        },
    )
    peers = parse_peers(group.peers)
    await group.start_namesrv()
    await asyncio.gather(*(group.start(name) for name in group.names))
    acked: list[bytes] = []
    failed: list[str] = []
    codes: list[int] = []
    electing = True
    try:
        async with (
            Client(name_servers=group.name_servers, route_poll_ms=300) as client,
            client.producer("p") as producer,
        ):

            async def send(count: int) -> None:
                """Send messages one after the other; a failed attempt fails the test unless the group is electing."""
                for _ in range(count):
                    body = b"honest %d" % len(acked)
                    async with asyncio.timeout(45):
                        while True:
                            try:
                                receipt = await producer.send(TOPIC, body, timeout=20)
                                break
                            except SaturnError as error:
                                if not electing:
                                    failed.append(f"honest send: {error}")
                                await asyncio.sleep(0.05)  # poll
                    assert receipt.status is SendStatus.SEND_OK
                    acked.append(body)

            async def attack(source: str) -> int:
                """How many of the attacks were answered; a permitted one fails the test."""
                count = 0
                for victim in group.names:
                    for request in attacks(victim, next(name for name in group.names if name != victim)):
                        command = command_of(request)
                        for forged in (None, "a.b.7." + "0" * 64):
                            if forged is not None:
                                command.ext[FIELD] = forged
                            reply = await ask_from(source, peers[victim], command)
                            if reply.code != 16:
                                failed.append(f"{source} {request}: {reply.code}")
                            count += 1
                return count

            await send(20)
            electing = False
            sending = asyncio.create_task(send(100))
            counts = await asyncio.gather(attack(STRANGER), attack(ON_A_MEMBERS_HOST))
            assert counts == [3 * 2 * len(attacks("n0", "n1"))] * 2
            await sending
            assert failed == []

            leader = group.name_at(await master_at(group.name_servers))
            results = []
            for body in (record(TOPIC, 1000), record("../../x", 0), record("NoSuchTopic", 0), b"no message"):
                request = AppendRequest(group="g", remote_id=leader, body=body)
                for source in (STRANGER, ON_A_MEMBERS_HOST):
                    assert (await ask_from(source, peers[leader], command_of(request))).code == 16
                reply = await ask_from(OPERATOR, peers[leader], command_of(request))
                results.append(
                    decode_response(DLedgerCode.APPEND, reply.body).code if reply.code == 200 else reply.code
                )
            assert results == [Code.SUCCESS, Code.UNEXPECTED_ARGUMENT, Code.UNEXPECTED_ARGUMENT, 1]
            await send(20)
            assert failed == []

            electing = True
            for name in group.names:  # the log that all members start with is intact
                assert await group.end(name, signal.SIGKILL) == -signal.SIGKILL
            await asyncio.gather(*(group.start(name) for name in group.names))
            await send(20)

            found: list[bytes] = []
            puller = client.puller()
            for queue in await puller.queues(TOPIC):
                at, end = await puller.min_offset(queue), await puller.max_offset(queue)
                assert end < 500
                while at < end:
                    result = await puller.pull(queue, at)
                    found += [message.value for message in result.messages()]
                    at = result.next_offset
        honest = [body for body in found if body != b"forged"]
        assert set(honest) == set(acked)
        assert found.count(b"forged") == 1
    finally:
        for names in (group.names, ["namesrv"]):
            running = [name for name in names if name in group.running]
            codes += await asyncio.gather(*(group.end(name, signal.SIGTERM) for name in running))
    assert codes == [0] * 4
    reports = [verify(tmp_path / name / f"dledger-{name}") for name in group.names]
    assert [report.problems for report in reports] == [[], [], []]
    assert max(report.term for report in reports) < 100
    lines = sum("reason=dledger" in (tmp_path / f"{name}.log").read_text() for name in group.names)
    assert lines == 3
