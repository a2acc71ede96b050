"""What a member of a DLedger group answers in each role, whom it transfers leadership to, and its figures, without a group."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from saturnmq.broker import dledger as module
from saturnmq.broker.dledger import DLedger
from saturnmq.net import Later
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frames.command import Command
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.messages import Code

SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE
OFFSET = RequestCode.QUERY_CONSUMER_OFFSET
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
MAX_OFFSET = RequestCode.GET_MAX_OFFSET


class Member:
    """A member of a group of three whose state a test sets; `transfers` are the answers of the members asked to lead."""

    def __init__(self, **state: Any) -> None:
        self.leads = True
        self.asked: list[str] = []
        self.transfers: dict[str, Code] = {}
        configuration = SimpleNamespace(peers_text="n0-h0:1;n1-h1:1;n2-h2:1", learners=frozenset(("n2", "n1")))
        self.state = SimpleNamespace(
            role=Role.LEADER, term=7, leader_id="n0", begin_index=1, end_index=9, committed_index=8, failed=None, self_id="n0",
            heartbeat_interval_ms=500, configuration=configuration, votes=True, recovering=False,
            watermarks={"n2": 5, "n0": 9, "n1": 6},
        )  # fmt: skip
        self.node = None
        vars(self.state).update(state)

    def status(self) -> Any:
        return self.state

    async def transfer(self, name: str) -> Any:
        self.asked.append(name)
        return SimpleNamespace(code=self.transfers.get(name, Code.TAKE_LEADERSHIP_FAILED))


class Forwarding:
    possible, closed, forwarded, served = False, False, 3, 4

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def instead(self, connection: Any, request: Command, otherwise: Any) -> str:
        self.calls.append((request.code, otherwise))
        return "forwarded"


class Part:
    """A DLedger object with the state that a test gives; serves: requests handled as on any broker."""

    def __init__(
        self, *, leads: bool = True, serving: bool = True, reads: bool = False, can_forward: bool = False
    ) -> None:
        self.member, self.forwarding, self.served = Member(), Forwarding(), cast(list[int], [])
        self.forwarding.possible = can_forward
        quarantine = SimpleNamespace(count=1, last=2)
        self.group = SimpleNamespace(
            member=self.member, serving=serving, leads=leads, transferring=False, elected=leads,
            raft=SimpleNamespace(group="G"), dispatch=SimpleNamespace(quarantine=quarantine),
        )  # fmt: skip
        self.reply: Any = None
        part = self.part = cast(Any, DLedger.__new__(DLedger))
        part.group, part.forwarding, part.copy = self.group, self.forwarding, SimpleNamespace(count=5)
        part._runtime = SimpleNamespace(settings=SimpleNamespace(slave_read_enable=reads, forward_drain_ms=0))
        part._serve = self._serve
        part._successor, part._task, part._led_until, part.broker_id = "", object(), None, 0
        part._successor_copied, part._successor_serves = asyncio.Event(), asyncio.Event()

    def _serve(self, connection: Any, request: Command) -> Any:
        self.served.append(request.code)
        return self.reply or request.reply()

    def answer(self, code: int, **ext: str) -> Any:
        return self.part.instead(None, Command(code, ext=ext))


@pytest.mark.spec("DL-Q06")
def test_runtime_information_has_the_state_of_the_group() -> None:
    part = Part()
    assert part.part.figures() == {
        "dledgerRole": "LEADER", "dledgerServing": "true", "dledgerTerm": "7", "dledgerLeaderId": "n0", "dledgerBeginIndex": "1",
        "dledgerEndIndex": "9", "dledgerCommittedIndex": "8", "dledgerFailed": "", "dledgerHeartBeatMs": "500",
        "dledgerPeers": "n0-h0:1;n1-h1:1;n2-h2:1", "dledgerLearners": "n1,n2", "dledgerVotes": "true",
        "dledgerRecovering": "false", "dledgerCopies": "5", "dledgerForwarded": "3", "dledgerServedForwarded": "4",
        "dledgerQuarantined": "1", "dledgerLastQuarantinedOffset": "2", "dledgerWatermark_n0": "9", "dledgerWatermark_n1": "6",
        "dledgerWatermark_n2": "5",
    }  # fmt: skip
    part.member.state.failed, part.member.state.leader_id = "disk full", None
    rows = part.part.figures()
    assert (rows["dledgerFailed"], rows["dledgerLeaderId"]) == ("disk full", "")
    part.group.member = None
    assert part.part.figures() == {}


def test_leader_serves_everything_itself() -> None:
    part = Part(can_forward=True)
    assert [part.answer(code) for code in (SEND, PULL, OFFSET, MAX_OFFSET)] == [None] * 4
    assert part.part.takes_all and part.part.serves_pulls
    part.group.transferring = True
    assert part.answer(SEND) == "forwarded" and part.answer(PULL) is None, (
        "what only a leader may do waits for the next one"
    )
    assert not part.part.takes_all and part.part.serves_pulls
    without = Part()
    without.group.transferring = True
    assert without.answer(SEND) is None, "no member can be asked"


@pytest.mark.spec("DL-X08")
@pytest.mark.parametrize(("leads", "serving"), [(False, True), (True, False), (False, False)])
async def test_member_that_does_not_serve_as_leader_refuses_writes(leads: bool, serving: bool) -> None:
    part = Part(leads=leads, serving=serving)
    refused = part.answer(SEND)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "does not lead its group G, the leader is n0" in refused.remark
    assert part.answer(RequestCode.END_TRANSACTION).code == ResponseCode.SLAVE_NOT_AVAILABLE
    part.member.state.leader_id = None
    assert "the leader is not known" in part.answer(SEND).remark
    part.group.member = None
    assert "the leader is not known" in part.answer(SEND).remark
    assert part.answer(MAX_OFFSET).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert part.answer(OFFSET) is None and not part.served, "a follower has the offsets"
    later = part.answer(PULL, queueOffset="12")
    assert isinstance(later, Later)
    assert (await cast(Any, later._reply)).code == ResponseCode.PULL_RETRY_IMMEDIATELY


@pytest.mark.spec("DL-C09", "BP-06")
async def test_pull_is_directed_to_the_master_after_a_pause() -> None:
    part = Part(leads=False)
    for is_closed, pauses in ((False, 1), (True, 0)):
        part.forwarding.closed = is_closed
        loop = asyncio.get_running_loop()
        begin = loop.time()
        reply = await part.part._pull_later(Command(PULL, ext={"queueOffset": "12"}))
        assert (loop.time() - begin >= module.PULL_PAUSE_SECONDS) is bool(pauses)
        assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (reply.ext["suggestWhichBrokerId"], reply.ext["nextBeginOffset"]) == ("0", "12")


def test_follower_that_serves_reads_serves_them_unless_it_was_just_elected() -> None:
    part = Part(leads=False, reads=True, can_forward=True)
    assert part.answer(PULL) is None and part.answer(MAX_OFFSET) is None and part.part.serves_pulls
    assert part.answer(SEND) == "forwarded"
    part.group.elected, part.group.serving = True, False
    assert part.answer(PULL) == "forwarded" and not part.part.serves_pulls


def test_unlock_is_made_here_too_before_it_is_forwarded() -> None:
    part = Part(leads=False, can_forward=True)
    assert part.answer(RequestCode.UNLOCK_BATCH_MQ) == "forwarded" and part.served == [RequestCode.UNLOCK_BATCH_MQ]
    assert part.answer(SEND) == "forwarded" and part.served == [RequestCode.UNLOCK_BATCH_MQ]


def test_request_without_a_leader_is_answered_without_harm_to_consumers() -> None:
    part = Part(leads=False, can_forward=True)

    def unled(code: int) -> Any:
        return part.part._unled(None, Command(code))

    kept = unled(MEMBERS)
    assert kept.code == ResponseCode.SYSTEM_ERROR and "group G is known, keep the present assignment" in kept.remark
    assert unled(SEND).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert unled(OFFSET).code == 0 and part.served == [OFFSET]
    part.reply = Command(ResponseCode.QUERY_NOT_FOUND)
    missing = unled(OFFSET)
    assert missing.code == ResponseCode.SYSTEM_ERROR and "no offset here: ask again" in missing.remark
    for alone in (Part(leads=False), Part(leads=False, reads=True, can_forward=True)):
        alone.reply = Command(ResponseCode.QUERY_NOT_FOUND)
        part = alone
        assert unled(OFFSET) is alone.reply and unled(MEMBERS) is alone.reply, "as on any broker"


@pytest.mark.spec("DL-X18")
async def test_leadership_goes_to_the_follower_that_has_most() -> None:
    part = Part()
    await part.part._transfer_leadership()
    assert part.member.asked == ["n1", "n2"], "each refused"
    part.member.asked.clear()
    part.member.transfers = {"n2": Code.SUCCESS}
    transfer = asyncio.ensure_future(part.part._transfer_leadership())
    await asyncio.sleep(0)
    assert part.part._successor == "n2" and not transfer.done()
    part.part._copied_by("n1")
    part.part._copied_by("")
    assert not part.part._successor_copied.is_set()
    part.part._copied_by("n2")
    part.part._successor_serves.set()
    await transfer
    assert part.member.asked == ["n1", "n2"]


async def test_transfer_ends_without_a_successor_that_serves(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    part = Part()
    part.member.transfers = {"n1": Code.SUCCESS}
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await part.part._transfer_leadership()
    assert "leadership transfer timed out" in caplog.text and loop.time() - begin >= module.TRANSFER_SECONDS
    assert part.member.asked == ["n1"]
    for change in ({"leads": False}, {"task": None}, {"member": None}):
        other = Part()
        other.member.leads = change.get("leads", True)
        other.part._task = change.get("task", other.part._task)
        other.group.member = change.get("member", other.member)
        await other.part._transfer_leadership()
        assert not other.member.asked


@pytest.mark.parametrize(
    ("drain_ms", "led_seconds_ago", "is_master", "waits"),
    [(0, 0, False, 0), (3000, None, False, 0), (3000, 1, False, 2), (3000, 9, False, 0), (3000, 9, True, 3)],
)
async def test_member_that_led_forwards_for_a_while_before_it_stops(
    drain_ms: int, led_seconds_ago: int | None, is_master: bool, waits: int
) -> None:
    part = Part(leads=False, can_forward=True)
    part.member.leads = False
    loop = asyncio.get_running_loop()
    part.part._runtime.settings.forward_drain_ms = drain_ms
    part.part._led_until = None if led_seconds_ago is None else loop.time() - led_seconds_ago
    part.part.broker_id = 0 if is_master else 1
    begin = loop.time()
    await part.part._forward_a_while()
    assert round(loop.time() - begin) == waits
