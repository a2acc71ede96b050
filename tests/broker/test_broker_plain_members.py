"""Which members of a group, and which of a master and its slave, take plain pulls and commits before they are decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brokergroup import ledger_group
from brokerpair import pair

from saturnmq.broker.requests import offsets, pull
from saturnmq.hot import is_compiled
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import decode_records
from waiting import until

pytestmark = pytest.mark.skipif(not is_compiled(), reason="all requests are decoded")

FETCH: dict[str, Any] = {
    "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 5, "commitOffset": 1,
    "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
}  # fmt: skip
COMMIT: dict[str, Any] = {name: FETCH[name] for name in ("consumerGroup", "topic", "queueId", "commitOffset")}


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pulls and commits that the reference implementation handles."""
    calls: list[str] = []

    def note(module: Any, name: str) -> None:
        original = getattr(module, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return original(*arguments, **named)

        monkeypatch.setattr(module, name, noted)

    note(pull, "_pull")
    note(offsets, "check_commit")
    return calls


@pytest.mark.parametrize("reads", [False, True])
async def test_leaders_take_pulls_and_followers_only_with_slave_reads(
    reads: bool, tmp_path: Path, decoded: list[str]
) -> None:
    async with ledger_group(tmp_path, slave_read_enable=reads) as group:
        await group.send(b"one")
        await group.same("T", 0, [b"one"])
        leader = await group.master()
        assert (await group.call(leader, RequestCode.PULL_MESSAGE, **FETCH)).code == 0  # creates the group
        follower = group.followers()[0]
        await until(lambda: "G" in follower.groups.table and "T" in follower.topics.table)
        for broker in (leader, follower):
            for code, fields in ((RequestCode.PULL_MESSAGE, FETCH), (RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT)):
                decoded.clear()
                answer = await group.call(broker, code, **fields)
                assert answer.code == 0
                is_pull = code == RequestCode.PULL_MESSAGE
                if is_pull:
                    assert [bytes(message.body) for message in decode_records(answer.body or b"")] == [b"one"]
                # What a follower does not serve is decoded, forwarded to the leader, and served there.
                assert bool(decoded) == (broker is follower and not (is_pull and reads)), (code, decoded)


async def test_a_slave_takes_pulls_and_commits_but_no_sends(tmp_path: Path, decoded: list[str]) -> None:
    async with pair(tmp_path) as both:
        await both.send(both.master, b"one")
        await both.replicated()
        slave = both.slave
        assert (await both.pull(slave)).code == 0  # creates the group
        assert (await both.call(slave, RequestCode.UPDATE_CONSUMER_OFFSET, **COMMIT)).code == 0  # the first offset
        decoded.clear()
        answer = await both.pull(slave, sysFlag=5, commitOffset=7)
        assert [bytes(message.body) for message in decode_records(answer.body or b"")] == [b"one"]
        assert slave.offsets.get("T", "G", 0) == 1  # slaves keep no offset of a pull
        assert (await both.call(slave, RequestCode.UPDATE_CONSUMER_OFFSET, **(COMMIT | {"commitOffset": 9}))).code == 0
        assert slave.offsets.get("T", "G", 0) == 9 and not decoded
        assert (await both.send(slave)).code == 14
