"""Requests that a follower passes on to the leader of its group: what is forwarded, at most once, bounded, from members only."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from brokergroup import LedgerGroup, ledger, ledger_group, part
from hypothesis import given
from hypothesis import strategies as st
from protected import ADMIN, USER, refused, v1, write_accounts

from saturnmq.broker import Broker, dledger
from saturnmq.broker.forwarded_request import ForwardedRequest, ForwardOutcome
from saturnmq.broker.requests.table import FORWARDED, LEADER_ONLY, READER_ONLY, SHOW_ENDS, TABLE
from saturnmq.net import Connection
from saturnmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    SubscriptionData,
)
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import BodyError
from saturnmq.protocol.frames.command import DEFAULT_LIMITS, Command, Serialization
from saturnmq.raft.wire.codec import DLedgerCode

SEND = {
    "a": "p",
    "b": "T",
    "c": "TBW102",
    "d": 4,
    "e": 0,
    "f": 0,
    "g": 1234,
    "h": 0,
    "i": "",
    "j": 0,
    "k": False,
    "m": False,
}


async def follower_of(group: LedgerGroup, body: bytes = b"first") -> tuple[Broker, Broker]:
    """The leader, which has stored one message, and a follower that knows the topic."""
    await group.send(body)
    leader = await group.master()
    follower = group.followers()[0]
    await group.until(lambda: follower.topics.get("T") is not None, "the topic is not copied")
    return leader, follower


async def pull(group: LedgerGroup, broker: Broker, offset: int, suspend_ms: int = 0) -> Command:
    return await group.call(
        broker, RequestCode.PULL_MESSAGE, consumerGroup="G", topic="T", queueId=0, queueOffset=offset, maxMsgNums=32,
        sysFlag=4 | (2 if suspend_ms else 0), commitOffset=0, suspendTimeoutMillis=suspend_ms, subscription="*",
        subVersion=0, expressionType="TAG",
    )  # fmt: skip


def frame_of(code: int = 310, **ext: object) -> bytes:
    texts = {name: str(value) for name, value in ext.items()}
    return ForwardedRequest("10.1.2.3:4000", None, 0, Command(code, ext=texts, body=b"x")).encode()


async def forward(group: LedgerGroup, to: Broker, body: bytes) -> Command:
    """Send a forwarded request to a member's DLedger port, as another member does, but without a signature."""
    command = Command(DLedgerCode.FORWARD, body=body)
    return await group.client.invoke(group.addresses[group.name_of(to)], command, 10_000)


def served(group: LedgerGroup) -> int:
    return sum(part(broker).forwarding.served for broker in group.brokers.values())


# ---- what is forwarded


def test_forwarded_codes_come_from_the_roles_of_the_request_table() -> None:
    assert READER_ONLY < FORWARDED
    assert {code for code in LEADER_ONLY if not TABLE[code].administrative} < FORWARDED
    assert not any(TABLE[code].administrative for code in FORWARDED)
    others = [10, 11, 14, 15, 36, 37, 38, 41, 42, 310, 320, 324, 325, 361]
    assert sorted(FORWARDED - SHOW_ENDS) == others and SHOW_ENDS < FORWARDED


@pytest.mark.parametrize("serialization", Serialization)
async def test_send_to_a_follower_is_stored_once_in_the_clients_name(
    ledger_group: LedgerGroup, serialization: Serialization
) -> None:
    leader, follower = await follower_of(ledger_group)
    ledger_group.client.serialization = serialization
    answer = await ledger_group.send_to(follower, b"second")
    assert (answer.code, answer.ext["queueOffset"]) == (0, "1")
    await ledger_group.same("T", 0, [b"first", b"second"])
    stored = ledger_group.stored(follower)[1]
    client = next(c for c in ledger_group.client.connections if c.remote_address == follower.address)
    assert f"{stored.born_host.ip}:{stored.born_host.port}" == client.local_address
    assert f"{stored.store_host.ip}:{stored.store_host.port}" == leader.address
    assert (part(follower).forwarding.forwarded, part(leader).forwarding.served) == (1, 1)


async def test_offsets_and_locks_of_a_follower_are_those_of_the_leader(ledger_group: LedgerGroup) -> None:
    leader, follower = await follower_of(ledger_group)
    queue = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    await pull(ledger_group, follower, 0)  # creates the group
    assert (await ledger_group.call(follower, RequestCode.UPDATE_CONSUMER_OFFSET, **queue, commitOffset=1)).code == 0
    assert leader.offsets.get("T", "G", 0) == 1
    await part(follower).copy.stop()
    leader.offsets.set("T", "G", 0, 0)
    assert (await ledger_group.call(follower, RequestCode.QUERY_CONSUMER_OFFSET, **queue)).ext["offset"] == "0"
    assert (await ledger_group.call(follower, RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)).ext["offset"] == "1"
    mine = LockBatchRequest("G", "client", [MessageQueue("T", "g", 0)]).encode()
    theirs = LockBatchRequest("G", "other", [MessageQueue("T", "g", 0)]).encode()
    granted = await ledger_group.call(follower, RequestCode.LOCK_BATCH_MQ, mine)
    denied = await ledger_group.call(leader, RequestCode.LOCK_BATCH_MQ, theirs)
    assert [len(LockBatchResponse.decode(a.body).lock_ok_mq_set) for a in (granted, denied)] == [1, 0]
    assert (await ledger_group.call(follower, RequestCode.UNLOCK_BATCH_MQ, mine)).code == 0
    granted = await ledger_group.call(leader, RequestCode.LOCK_BATCH_MQ, theirs)
    assert len(LockBatchResponse.decode(granted.body).lock_ok_mq_set) == 1


async def test_pull_at_a_follower_waits_at_the_leader_for_a_message(ledger_group: LedgerGroup) -> None:
    leader, follower = await follower_of(ledger_group)
    found = await pull(ledger_group, follower, 0)
    assert found.code == 0 and b"first" in (found.body or b"")
    waiting = asyncio.create_task(pull(ledger_group, follower, 1, suspend_ms=20_000))
    await ledger_group.until(lambda: leader.long_polling.count == 1, "the pull is not parked")
    assert follower.connections[0].in_flight == 0  # the connection is read, however many pulls wait
    await ledger_group.send_to(follower, b"second")
    found = await waiting
    assert found.code == 0 and b"second" in (found.body or b"")


async def test_consumers_see_the_leaders_members_at_every_broker(ledger_group: LedgerGroup) -> None:
    leader, follower = await follower_of(ledger_group)
    consumers = [
        ConsumerData("G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [SubscriptionData("T", "*")])
    ]
    for broker, client in ((leader, "a"), (follower, "b")):
        await ledger_group.call(broker, RequestCode.HEART_BEAT, HeartbeatData(client, [], consumers).encode())
    answers = [
        await ledger_group.call(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
        for broker in (leader, follower)
    ]
    assert [json.loads(answer.body or b"")["consumerIdList"] for answer in answers] == [["a"], ["a"]]
    for broker in [leader, *(b for b in ledger_group.followers() if b is not follower)]:
        await ledger_group.stop(ledger_group.name_of(broker))  # no leader can be elected any more
    await ledger_group.until(
        lambda: ledger_group.member(ledger_group.name_of(follower)).status().leader_id is None, "follows"
    )
    alone = await ledger_group.call(follower, RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
    assert alone.code == ResponseCode.SYSTEM_ERROR and "no leader" in (alone.remark or "")
    queue = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    assert (
        await ledger_group.call(follower, RequestCode.GET_MAX_OFFSET, **queue)
    ).code == 14  # a leader may have shown more
    assert (await ledger_group.send_to(follower, b"refused")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await pull(ledger_group, follower, 0)).code == ResponseCode.PULL_RETRY_IMMEDIATELY


async def test_at_a_java_leader_followers_answer_as_without_forwarding(
    ledger_group: LedgerGroup, caplog: pytest.LogCaptureFixture
) -> None:
    leader, follower = await follower_of(ledger_group)
    ledger_group.member(
        ledger_group.name_of(leader)
    ).peers.serve_forwarded = None  # then 51901 is unknown, as to a Java broker
    caplog.set_level(logging.INFO, "saturnmq.broker.forwarding")
    sends = [ledger_group.send_to(follower, b"second") for _ in range(3)]  # all are sent to the leader
    assert {answer.code for answer in await asyncio.gather(*sends)} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert (await ledger_group.send_to(follower, b"second")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert caplog.text.count("leader takes no forwarded requests") == 1
    assert not part(follower).forwarding.possible
    assert (await ledger_group.call(follower, RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)).code == 14
    await ledger_group.same("T", 0, [b"first"])


# ---- at most once


async def test_forwarded_request_is_never_forwarded_again(ledger_group: LedgerGroup) -> None:
    _, follower = await follower_of(ledger_group)
    answer = await forward(ledger_group, follower, frame_of(**SEND))
    assert answer.body == bytes((ForwardOutcome.NOT_SERVING,)) and served(ledger_group) == 0
    await ledger_group.same("T", 0, [b"first"])


@pytest.mark.parametrize("lost", ["connection", "answer"])
async def test_lost_answer_to_a_send_is_reported_and_not_repeated(ledger_group: LedgerGroup, lost: str) -> None:
    leader, follower = await follower_of(ledger_group)
    peers = ledger_group.member(ledger_group.name_of(leader)).peers
    serve = peers.serve_forwarded

    def silent(member: Connection, body: bytes, answer: Callable[[bytes], None]) -> None:
        def executed(_: bytes) -> None:
            if lost == "connection":
                member.close("a test")

        serve(member, body, executed)

    peers.serve_forwarded = silent
    answer = await ledger_group.send_to(follower, b"second")
    assert answer.code == ResponseCode.SYSTEM_ERROR and "is unknown" in (answer.remark or "")
    assert part(leader).forwarding.served == 1
    await ledger_group.same("T", 0, [b"first", b"second"])
    asked = asyncio.create_task(ledger_group.call(follower, RequestCode.GET_MAX_OFFSET, topic="T", queueId=0))
    await ledger_group.until(lambda: part(leader).forwarding.served == 2, "a read is not forwarded")
    peers.serve_forwarded = serve
    assert (await asked).ext["offset"] == "2"  # changes nothing, so it is asked again


@pytest.mark.spec("DL-L01")
async def test_sends_at_a_follower_go_on_when_the_leadership_has_moved(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, forward_wait_ms=10_000) as group:
        _, follower = await follower_of(group)
        target = next(broker for broker in group.followers() if broker is not follower)
        await group.until(lambda: part(target).copy.count, "it would refuse to lead")
        codes: list[int] = []

        async def send() -> None:
            for number in itertools.count():
                if ledger(target).serving and codes[-1:] == [0] and part(target).forwarding.served:
                    return
                codes.append((await group.send_to(follower, b"%d" % number)).code)

        sending = asyncio.create_task(send())
        await group.until(lambda: len(codes) > 10, "nothing is sent")
        while not ledger(target).serving:  # other elections may happen meanwhile
            await group.member(group.name_of(await group.master())).transfer(group.name_of(target))
            await asyncio.sleep(0.02)  # poll
        await sending
        bodies = group.bodies(target)
        assert len(set(bodies)) == len(bodies) and {b"%d" % n for n in range(len(codes)) if not codes[n]} <= set(bodies)


# ---- from members only, bounded


@pytest.mark.spec("SEC-18")
async def test_forwarded_requests_are_taken_from_members_only(tmp_path: Path) -> None:
    raft = {"cluster_secret": "a secret of the group", "require_secret": True}
    async with ledger_group(tmp_path, raft=raft) as group:
        leader, follower = await follower_of(group)
        assert (await forward(group, leader, frame_of(**SEND))).code == ResponseCode.NO_PERMISSION  # not signed
        marked = await group.call(leader, DLedgerCode.FORWARD, frame_of(**SEND))
        assert marked.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED  # on the port of clients
        assert served(group) == 0
        assert (await group.send_to(follower, b"second")).code == 0  # signed


class Signing:
    """Signs all requests of a client as one account."""

    def __init__(self, account: tuple[str, str]) -> None:
        self.account = account

    def before(self, _: str, request: Command) -> None:
        v1(self.account)(request)

    def after(self, _: str, request: Command, response: Command) -> None: ...


@pytest.mark.spec("ACL-01")
async def test_follower_checks_the_rights_of_what_it_forwards(tmp_path: Path) -> None:
    write_accounts(tmp_path)
    async with ledger_group(tmp_path, acl_enable=True, acl_home=str(tmp_path)) as group:
        client = Signing(ADMIN)
        group.client.hooks.append(client)
        for topic in ("Both", "Never"):
            await group.send(b"first", topic=topic)
        leader, follower = await group.master(), group.followers()[0]
        accounts: list[str | None] = []
        peers = group.member(group.name_of(leader)).peers
        serve = peers.serve_forwarded

        def noted(member: Connection, body: bytes, answer: Callable[[bytes], None]) -> None:
            accounts.append(ForwardedRequest.decode(body, DEFAULT_LIMITS).account)
            serve(member, body, answer)

        peers.serve_forwarded = noted
        client.account = USER
        assert (await group.send_to(follower, b"second", topic="Both")).code == 0
        assert refused(await group.send_to(follower, b"second", topic="Never"))
        client.account = USER[0], "wrong"
        assert refused(await group.send_to(follower, b"second", topic="Both"))
        assert accounts == [USER[0]]
        await group.same("Both", 0, [b"first", b"second"])


@pytest.mark.spec("SEC-18")
async def test_member_may_not_forward_other_requests(ledger_group: LedgerGroup) -> None:
    leader, _ = await follower_of(ledger_group)
    for code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.HEART_BEAT, 999):
        assert (await forward(ledger_group, leader, frame_of(code))).body == bytes((ForwardOutcome.NOT_FORWARDED,))
    for wrong in (
        b"\0\0\0\1x",
        frame_of(**SEND) + b"x",
        frame_of(**SEND).replace(b"10.1.2.3", b"a\\nb c d", 1),
    ):
        assert (await forward(ledger_group, leader, wrong)).code == ResponseCode.SYSTEM_ERROR
    failed = await forward(ledger_group, leader, frame_of(RequestCode.GET_MAX_OFFSET, topic="T", queueId="x"))
    assert failed.body is not None and failed.body[0] == ForwardOutcome.ANSWERED  # with the handler's error


@pytest.mark.spec("LIM-13")
async def test_requests_in_flight_are_bounded_on_both_sides(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, forward_requests_max=2) as group:
        leader, follower = await follower_of(group)
        waiting = [asyncio.create_task(pull(group, follower, 1, suspend_ms=20_000)) for _ in range(2)]
        await group.until(lambda: leader.long_polling.count == 2, "the pulls are not parked")
        shed = await group.send_to(follower, b"second")
        assert shed.code == ResponseCode.SYSTEM_BUSY and "[OVERLOAD]" in (shed.remark or "")
        behind = part(follower).forwarding
        behind._settings = replace(behind._settings, forward_requests_max=10)  # a follower with another limit
        assert (await group.send_to(follower, b"second")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await group.send(b"third")).code == 0
        assert [(await pulled).code for pulled in waiting] == [0, 0]
        assert (await group.send_to(follower, b"fourth")).code == 0
        assert part(follower).forwarding._requests.total == part(follower).forwarding._bytes.total == 0


async def test_stopping_follower_answers_waiting_pulls(ledger_group: LedgerGroup) -> None:
    leader, follower = await follower_of(ledger_group)
    waiting = asyncio.create_task(pull(ledger_group, follower, 1, suspend_ms=20_000))
    await ledger_group.until(lambda: leader.long_polling.count == 1, "the pull is not parked")
    async with asyncio.timeout(18):  # less than the pull may wait
        await ledger_group.stop(ledger_group.name_of(follower))
        # An election meanwhile would let the leader answer it.
        assert (await waiting).code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND)


async def test_stopping_follower_answers_pulls_without_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause before the answer, which the stop does not wait for, would lose it with the connection."""
    monkeypatch.setattr(dledger, "PULL_PAUSE_SECONDS", 15.0)
    async with ledger_group(tmp_path) as group:
        leader, follower = await follower_of(group)
        waiting = asyncio.create_task(pull(group, follower, 1, suspend_ms=20_000))
        await group.until(lambda: leader.long_polling.count == 1, "the pull is not parked")
        await group.stop(group.name_of(follower))
        assert (await waiting).code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND)


async def test_unled_follower_does_not_report_a_group_as_new(
    ledger_group: LedgerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy may not have the offset yet; with code 22 a consumer would begin at the end of the queue."""
    _, follower = await follower_of(ledger_group)
    await ledger_group.until(lambda: follower.store.max_offset("T", 0) == 1, "not dispatched")
    monkeypatch.setattr(follower.store, "on_disk", lambda offset: True)  # as the first message of an old queue
    queue = {"consumerGroup": "New", "topic": "T", "queueId": 0}
    assert (await ledger_group.call(follower, RequestCode.QUERY_CONSUMER_OFFSET, **queue)).code == 0  # the leader's
    for name in [name for name in ledger_group.names if ledger_group.brokers[name] is not follower]:
        await ledger_group.stop(name)
    await ledger_group.until(lambda: not part(follower).group.serving, "it leads")
    answer = await ledger_group.call(follower, RequestCode.QUERY_CONSUMER_OFFSET, **queue)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "no leader of the group" in (answer.remark or "")


@pytest.mark.spec("DL-L01")
async def test_stopping_leader_forwards_until_clients_have_new_routes(tmp_path: Path) -> None:
    async with ledger_group(tmp_path, forward_drain_ms=35_000) as group:
        leader, _ = await follower_of(group)
        await group.until(lambda: all(part(broker).copy.count for broker in group.followers()), "would not lead")
        clock = asyncio.get_running_loop().time
        begin, name = clock(), group.name_of(leader)
        stopping = asyncio.create_task(leader.stop())
        await group.until(lambda: part(leader).broker_id > 0 and group.serving(), "no other master")
        for second in (0, 15, 30):
            await group.until(lambda second=second: clock() >= begin + second or stopping.done(), "time passes")
            assert not stopping.done() and (await group.send_to(leader, b"late")).code == 0
        await stopping
        assert 35 <= clock() - begin < 45
        del group.brokers[name]
        begin = clock()
        for follower in group.followers():  # they did not lead
            await group.stop(group.name_of(follower))
        assert clock() - begin < 10


REQUESTS = st.builds(
    Command,
    st.integers(0, 400),
    ext=st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=20), max_size=4),
    body=st.one_of(st.none(), st.binary(min_size=1, max_size=64)),
    opaque=st.integers(-(2**31), 2**31 - 1),
    serialization=st.sampled_from(Serialization),
)


@given(
    st.text("0123456789abcdef:.%", max_size=40),
    st.one_of(st.none(), st.text(max_size=20)),
    st.integers(0, 60_000),
    REQUESTS,
)
def test_forwarded_request_decodes_to_what_was_encoded(
    client: str, account: str | None, wait: int, sent: Command
) -> None:
    found = ForwardedRequest.decode(ForwardedRequest(client, account, wait, sent).encode(), DEFAULT_LIMITS)
    assert (found.client, found.account, found.wait_ms, found.request) == (client, account, wait, sent)


@given(st.binary(max_size=200), st.integers(0, 300), st.binary(max_size=8))
def test_any_bytes_decode_or_raise_body_error(noise: bytes, at: int, patch: bytes) -> None:
    good = frame_of(**SEND)
    changed: Any = good[:at] + patch + good[at + len(patch) :]
    for body in (noise, changed, good[:at]):
        try:
            ForwardedRequest.decode(body, DEFAULT_LIMITS)
        except BodyError:
            continue
