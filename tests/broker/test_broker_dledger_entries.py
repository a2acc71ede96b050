"""Entries that a DLedger group must survive: forged by a client, or committed by a member that checks less.

Requirements: SEC-18, DL-B13, DL-X17.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brokergroup import LedgerGroup, ledger

from saturnmq.broker import Broker
from saturnmq.protocol.codes import SCHEDULE_TOPIC, SysFlag
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import Host, Message, encode_properties, encode_record
from saturnmq.raft.core.messages import AppendRequest, AppendResponse, Code
from saturnmq.raft.wire.codec import DLedgerCode, decode_response, encode

HOST = Host("10.1.2.3", 4567)


def record(**changes: Any) -> bytes:
    values: dict[str, Any] = {"topic": "T", "body": b"forged", "born_host": HOST, "store_host": HOST}
    values |= {"born_timestamp_ms": 1_700_000_000_000, "store_timestamp_ms": 1_700_000_000_000, **changes}
    return encode_record(Message(**values))


BAD: dict[str, bytes] = {
    "queue offset with a gap": record(queue_offset=1000),
    "queue offset in use": record(queue_offset=1),
    "negative queue offset": record(queue_offset=-3),
    "huge queue offset": record(topic="Other", queue_offset=2**62),
    "topic out of the folder": record(topic="../../x"),
    "topic is a folder": record(topic=".."),
    "topic with control characters": record(topic="a\nb\x00"),
    "empty topic": record(topic=""),
    "negative queue": record(queue_id=-1),
    "huge queue": record(queue_id=2**31 - 1),
    "store time before 1970": record(store_timestamp_ms=-5, queue_offset=2),
    "store time in the far future": record(store_timestamp_ms=2**62, queue_offset=2),
    "level of many digits": record(topic=SCHEDULE_TOPIC, properties_raw=encode_properties({"DELAY": "9" * 5000})),
    "properties of a delayed message not UTF-8": record(topic=SCHEDULE_TOPIC, properties_raw=b"DELAY\x01\xff\xfe"),
}


async def append(group: LedgerGroup, broker: Broker, body: bytes) -> AppendResponse:
    """The response to an append at the broker's DLedger port."""
    name = group.name_of(broker)
    request = AppendRequest(group="g", remote_id=name, body=body)
    command = Command(DLedgerCode.APPEND, body=encode(request))
    reply = await group.client.invoke(group.addresses[name], command, 10_000)
    assert reply.code == 200, reply.remark
    answer = decode_response(DLedgerCode.APPEND, reply.body)
    assert isinstance(answer, AppendResponse)
    return answer


def quarantined(group: LedgerGroup) -> list[int]:
    return [ledger(broker).dispatch.quarantine.count for broker in group.brokers.values()]


@pytest.mark.spec("SEC-18", "DL-B13")
async def test_bad_committed_entries_are_quarantined_alike_on_all_members(
    ledger_group: LedgerGroup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [b"%d" % number for number in range(4)]
    for body in bodies[:2]:
        await ledger_group.send(body)
    await ledger_group.same("T", 0, bodies[:2])
    leader = await ledger_group.master()
    for bad in BAD.values():  # as a leader that checks nothing would
        answer = await ledger_group.member(ledger_group.name_of(leader)).append([bad])
        assert answer.code == Code.SUCCESS
    await ledger_group.until(
        lambda: quarantined(ledger_group) == [len(BAD)] * 3, f"{quarantined(ledger_group)} of {len(BAD)}"
    )
    await ledger_group.send(bodies[2])
    await ledger_group.same("T", 0, bodies[:3])
    figures = leader.dledger.figures() if leader.dledger is not None else {}
    assert figures["dledgerQuarantined"] == str(len(BAD))
    assert sum("entry quarantined" in text for text in caplog.messages) == 3 * len(BAD)

    for name in list(ledger_group.names):  # also when the entries are dispatched at a start
        await ledger_group.stop(name)
    for path in (tmp_path / "n0", tmp_path / "n1"):
        for part in ("checkpoint", "queues.json"):
            (path / part).unlink()
    for name in ledger_group.names:
        await ledger_group.start(name)
    await ledger_group.same("T", 0, bodies[:3])
    await ledger_group.send(bodies[3])
    await ledger_group.same("T", 0, bodies)
    assert {frozenset(broker.store.topic_queues()) for broker in ledger_group.brokers.values()} == {
        frozenset({("T", 0)})
    }


@pytest.mark.spec("SEC-18", "DL-X17")
async def test_appends_of_clients_get_offsets_from_the_leader(ledger_group: LedgerGroup) -> None:
    await ledger_group.send(b"0")
    leader = await ledger_group.master()
    for number in (1000, 0, 2**62, -1):
        answer = await append(ledger_group, leader, record(body=b"by a tool", queue_offset=number))
        assert (answer.code, answer.leader_id) == (Code.SUCCESS, ledger_group.name_of(leader))
    entry = ledger(leader).log.ledger
    assert entry is not None
    stored = entry.entry(answer.index)
    assert stored is not None and stored.pos == answer.pos
    await ledger_group.send(b"5")
    await ledger_group.same("T", 0, [b"0", *[b"by a tool"] * 4, b"5"])
    stamps = [message.store_timestamp_ms for message in ledger_group.stored(leader)]
    assert stamps == sorted(stamps) and stamps[0] > 1_700_000_000_000
    end = ledger_group.member(ledger_group.name_of(leader)).status().end_index
    for refused in (
        record(topic="../../x"),
        record(topic="unknown"),
        record(topic=SCHEDULE_TOPIC),
        record(queue_id=-1),
        record(queue_id=4),
        record(sys_flag=SysFlag.PREPARED),
        record(sys_flag=SysFlag.COMMIT),
    ):
        assert (await append(ledger_group, leader, refused)).code == Code.UNEXPECTED_ARGUMENT
    follower = ledger_group.followers()[0]
    assert (await append(ledger_group, follower, record())).code == Code.NOT_LEADER
    assert ledger_group.member(ledger_group.name_of(leader)).status().end_index == end
    assert quarantined(ledger_group) == [0, 0, 0]
