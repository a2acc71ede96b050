"""While the leadership of a group moves: no send gets an unknown outcome, and no read goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokergroup import LedgerGroup, ledger, ledger_group, part

from saturnmq.broker import Broker
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.messages import Code, Request, TransferRequest, TransferResponse


def send(group: LedgerGroup, broker: Broker, body: bytes = b"x") -> asyncio.Task[Command]:
    return asyncio.create_task(
        group.call(
            broker, 310, body, a="p", b="T", c="TBW102", d=4, e=0, f=0, g=1, h=0, i="", j=0, k=False, m=False
        )
    )  # fmt: skip


async def position(group: LedgerGroup, broker: Broker, code: RequestCode, **more: object) -> Command:
    return await group.call(broker, code, topic="T", queueId=0, **more)


async def first_master(group: LedgerGroup) -> tuple[Broker, str]:
    """The master after one message, and a follower that has it."""
    await group.send(b"first")
    await group.same("T", 0, [b"first"])
    master = await group.master()
    for follower in group.followers():
        await group.until(lambda follower=follower: part(follower).copy.count, "nothing copied")
    return master, next(name for name in group.names if group.brokers[name] is not master)


@pytest.mark.spec("DL-L02", "DL-X22")
async def test_sends_during_transfer_are_stored_once_by_next_leader(ledger_group: LedgerGroup) -> None:
    master, follower = await first_master(ledger_group)
    transfer = asyncio.create_task(ledger_group.member(ledger_group.name_of(master)).transfer(follower))
    sends = []
    while master is ledger_group.serving() or ledger_group.serving() is None:
        sends.append(send(ledger_group, master, b"%d" % len(sends)))
        await asyncio.sleep(0.002)  # poll
    assert (await transfer).code == Code.SUCCESS
    assert {(await one).code for one in sends} == {0}
    count = 1 + len(sends)
    await ledger_group.until(
        lambda: all(b.store.max_offset("T", 0) == count for b in ledger_group.brokers.values()), "behind"
    )


@pytest.mark.spec("DL-L02", "DL-B06")
async def test_sends_during_transfer_without_forwarding_are_surely_not_stored(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, forward_to_leader=False) as group:
        master, _ = await first_master(group)
        state = group.member(group.name_of(master)).node._state
        state.transferee = "n9"
        answers = [await one for one in [send(group, master) for _ in range(3)]]
        state.transferee = None
        assert {answer.code for answer in answers} == {14}
        assert "handed over" in (answers[0].remark or "")
        end = master.store.max_offset("T", 0)  # 1, or more if the first message was sent again
        assert (await send(group, master)).ext["queueOffset"] == str(end)


@pytest.mark.spec("DL-L06", "DL-X22")
async def test_sends_during_refused_transfer_are_stored_by_same_leader(ledger_group: LedgerGroup) -> None:
    master, follower = await first_master(ledger_group)
    member = ledger_group.member(ledger_group.name_of(master))
    refuse: list[Callable[[], None]] = []
    peers_send = member.peers.send

    def keep_transfer(peer: str, request: Request, timeout_ms: int, answered: Any) -> None:
        if isinstance(request, TransferRequest):
            refusal = TransferResponse(group="g", code=Code.TAKE_LEADERSHIP_FAILED)
            refuse.append(lambda: answered(refusal))
        else:
            peers_send(peer, request, timeout_ms, answered)

    member.peers.send = keep_transfer
    transfer = asyncio.create_task(member.transfer(follower))
    await ledger_group.until(lambda: refuse, "no request to take the leadership")
    assert not ledger(master).leads  # the transferee may be elected
    waiting = [send(ledger_group, master, b"%d" % number) for number in range(20)]
    waiting.append(asyncio.create_task(position(ledger_group, master, RequestCode.GET_MAX_OFFSET)))
    forwarding = part(master).forwarding
    await ledger_group.until(lambda: forwarding._requests.total == 21, "they do not wait")
    refuse[0]()
    assert (await transfer).code == Code.TAKE_LEADERSHIP_FAILED
    assert {(await one).code for one in waiting} == {0}
    assert ledger(master).settled and forwarding.forwarded == 0


@pytest.mark.spec("DL-C03", "DL-X08")
@pytest.mark.parametrize("readable", [False, True])
async def test_new_leader_answers_no_read_before_its_log_is_dispatched(
    readable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger_group(tmp_path, slave_read_enable=readable) as group:
        master, _ = await first_master(group)
        behind = {"yes": True}
        kind = type(ledger(master))
        caught_up = kind.caught_up.fget  # type: ignore[attr-defined]
        monkeypatch.setattr(kind, "caught_up", property(lambda store: not behind["yes"] and caught_up(store)))
        await group.stop(group.name_of(master))
        leads = await group.until(
            lambda: next((b for n, b in group.brokers.items() if group.member(n).leads), None), "no leader"
        )
        assert not ledger(leads).serving
        pulled = await position(
            group, leads, RequestCode.PULL_MESSAGE, consumerGroup="G", queueOffset=7, maxMsgNums=32, sysFlag=4,
            commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0, expressionType="TAG",
        )  # fmt: skip
        assert (pulled.code, pulled.ext["nextBeginOffset"]) == (20, "7")  # not 21: the client stays where it is
        assert (await position(group, leads, RequestCode.GET_MAX_OFFSET)).code == 14  # after forwardWaitMs
        asked = [
            asyncio.create_task(position(group, leads, code, timestamp=10**15))
            for code in (
                RequestCode.GET_MAX_OFFSET,
                RequestCode.GET_MIN_OFFSET,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                RequestCode.GET_TOPIC_STATS_INFO,
            )
        ]
        await group.until(lambda: part(leads).forwarding._requests.total == 4, "they do not wait")
        behind["yes"] = False
        assert [(await one).code for one in asked] == [0] * 4
        assert (await asked[0]).ext["offset"] == "1"


@pytest.mark.spec("DL-C09", "DL-X08")
@pytest.mark.parametrize(("readable", "code"), [(False, 14), (True, 0)])
async def test_follower_shows_ends_of_its_queues_only_with_slave_read_enable(
    readable: bool, code: int, tmp_path: Path
) -> None:
    async with ledger_group(tmp_path, slave_read_enable=readable, forward_to_leader=False) as group:
        master, name = await first_master(group)
        follower = group.brokers[name]
        await group.until(lambda: follower.topics.get("T"), "the topic is not copied")
        for asked in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.GET_TOPIC_STATS_INFO):
            assert (await position(group, follower, asked)).code == code
        end = str(master.store.max_offset("T", 0))
        assert (await position(group, master, RequestCode.GET_MAX_OFFSET)).ext["offset"] == end


@pytest.mark.spec("DL-L01", "DL-X22")
async def test_stopped_leader_answers_sends_while_its_successor_takes_over(ledger_group: LedgerGroup) -> None:
    master, _ = await first_master(ledger_group)
    stopping = asyncio.create_task(ledger_group.brokers.pop(ledger_group.name_of(master)).stop())
    sends = []
    while ledger_group.serving() is None:
        sends.append(send(ledger_group, master, b"%d" % len(sends)))
        await asyncio.sleep(0.005)  # poll
    assert {(await one).code for one in sends} == {0}
    await stopping
    assert (await send(ledger_group, await ledger_group.master())).ext["queueOffset"] == str(1 + len(sends))
