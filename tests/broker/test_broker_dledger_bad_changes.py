"""Entries of the log that change topics, groups or members: clients cannot write them, bad ones stop no member.

Requirements: SEC-18, DL-B13, DL-X18, DL-X21.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from brokergroup import LedgerGroup
from test_broker_dledger_entries import append, record

from saturnmq.protocol.bodies import DataVersion
from saturnmq.protocol.codes import SysFlag
from saturnmq.raft.core.messages import Code
from saturnmq.raft.ledger.member_entries import MARK, MEMBERS_TOPIC
from saturnmq.replication.dledger.change_entries import CHANGES_TOPIC

VERSION = json.loads(DataVersion(1, 1).encode())
MEMBERS = json.dumps({"peers": {"n0": "h:1"}, "learners": [], "removed": []}).encode()
TOPIC = {"topicName": "Q", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}


def change(**fields: Any) -> bytes:
    values = {"kind": "group", "name": "G", "config": {"groupName": "G"}, "before": VERSION, "after": VERSION, **fields}
    return json.dumps(values).encode()


BAD_CHANGES: dict[str, bytes] = {
    "not JSON": b"\xff{",
    "list": b"[]",
    "deep": b'{"kind":' + b"[" * 200_000,
    "unknown kind": change(kind="offset"),
    "kind unhashable": change(kind={}),
    "group with half a surrogate pair": change(name="\ud800", config={"groupName": "\udfff"}),
    "group with NUL": change(name="\x00\n", config={"groupName": "../x"}),
    "empty group": change(name="", config={}),
    "group with absurd numbers": change(config={"groupName": "G", "retryQueueNums": 2**31, "retryMaxTimes": -(2**31)}),
    "group with numbers of many digits": change(config={"groupName": "G", "retryQueueNums": 10**4000}),
    "group with NaN": change(config={"groupName": "G", "retryQueueNums": float("nan")}),
    "version absurd": change(after={"timestamp": 2**63 - 1, "counter": 2**63 - 1}),
    "version overflows": change(after={"timestamp": 2**80, "counter": -(2**90)}),
    "version of another type": change(after=[1]),
    "topic out of the folder": change(kind="topic", name="../../x", config=TOPIC),
    "topic out of the folder deleted": change(kind="topic", name="../../x", config=None),
    "topic with half a surrogate pair": change(kind="topic", name="\ud800", config=TOPIC),
    "topic with half a pair in its settings": change(
        kind="topic", name="Q", config=TOPIC | {"topicFilterType": "\ud800"}
    ),
    "topic with many queues": change(kind="topic", name="Q", config=TOPIC | {"readQueueNums": 2_000_000_000}),
    "topic with negative queues": change(kind="topic", name="Q", config=TOPIC | {"writeQueueNums": -1}),
    "system topic deleted": change(kind="topic", name="SCHEDULE_TOPIC_XXXX", config=None),
    "group deleted": change(name="unknown", config=None),
    "perm absurd": change(kind="topic", name="Q", config=TOPIC | {"perm": 2**31 - 1, "topicSysFlag": -5}),
}


@pytest.mark.spec("SEC-18", "DL-B13", "DL-X18")
async def test_bad_committed_changes_of_tables_stop_no_member(
    ledger_group: LedgerGroup, caplog: pytest.LogCaptureFixture
) -> None:
    await ledger_group.send(b"0")
    leader = await ledger_group.master()
    for name, bad in BAD_CHANGES.items():  # as a leader that checks nothing would
        body = record(topic=CHANGES_TOPIC, body=bad, sys_flag=SysFlag.ROLLBACK)
        answer = await ledger_group.member(ledger_group.name_of(leader)).append([body])
        assert answer.code == Code.SUCCESS, name
    await ledger_group.send(b"1")
    await ledger_group.same("T", 0, [b"0", b"1"])
    for name in list(ledger_group.names):
        await ledger_group.stop(name)
    for name in ledger_group.names:  # also when the entries are read at a start
        await ledger_group.start(name)
    await ledger_group.send(b"2", topic="New")
    await ledger_group.same("New", 0, [b"2"])
    tables = {name: set(broker.topics.table) for name, broker in ledger_group.brokers.items()}
    assert all("New" in table and "SCHEDULE_TOPIC_XXXX" in table for table in tables.values())
    assert not any("../../x" in table or "\ud800" in table for table in tables.values())
    assert not any("not saved" in text or "refused to report" in text for text in caplog.messages)


@pytest.mark.spec("SEC-18", "DL-X18", "DL-X21")
async def test_clients_cannot_write_entries_that_change_members_or_tables(ledger_group: LedgerGroup) -> None:
    await ledger_group.send(b"0")
    leader = await ledger_group.master()
    await ledger_group.send(b"no configuration", topic=MEMBERS_TOPIC)
    before = ledger_group.member(ledger_group.name_of(leader)).status()
    rolled_back = int(SysFlag.ROLLBACK)
    for forged in (
        record(topic=MEMBERS_TOPIC, body=MEMBERS, prepared_transaction_offset=MARK),
        record(topic=MEMBERS_TOPIC, body=MEMBERS, prepared_transaction_offset=MARK, sys_flag=rolled_back),
        record(topic=CHANGES_TOPIC, body=change(), sys_flag=rolled_back),
        record(topic=CHANGES_TOPIC, body=change()),
    ):
        assert (await append(ledger_group, leader, forged)).code == Code.UNEXPECTED_ARGUMENT
    refused = await ledger_group.send_to(leader, change(), topic=CHANGES_TOPIC, f=rolled_back)
    assert "illegal characters" in (refused.remark or "")
    after = ledger_group.member(ledger_group.name_of(leader)).status()
    assert after.end_index == before.end_index and after.configuration.index == -1
