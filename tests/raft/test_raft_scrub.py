"""The scrub of a ledger decides what to read, whom to ask for a copy, and when; files, node and network are stubs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.core.actions import Role
from saturnmq.raft.core.entry import Entry
from saturnmq.raft.core.messages import Code, GetResponse, MetadataResponse
from saturnmq.raft.core.state import NEVER
from saturnmq.raft.ledger.scrub import LEADERLESS_MAX, TRY_AGAIN_MS, Scrub
from saturnmq.raft.settings import RaftSettings

BODY = b"x" * 1000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


class Files:
    """A ledger of equal entries, some of which are damaged. `repairable`: whether a copy fits."""

    def __init__(self, count: int) -> None:
        self.begin_index, self.end_index = 0, count - 1
        self.begin_pos, self.end_pos = 0, count * (48 + len(BODY))
        self.damaged: set[int] = set()
        self.read: list[int] = []
        self.copies: list[Entry] = []
        self.repairable = True

    def entry(self, index: int) -> Entry:
        assert self.begin_index <= index <= self.end_index
        self.read.append(index)
        if index in self.damaged:
            raise CorruptRecord(f"entry {index}")
        return entry_of(index)

    def repair(self, copy: Entry) -> bool:
        self.copies.append(copy)
        if self.repairable:
            self.damaged.discard(copy.index)
        return self.repairable


def entry_of(index: int) -> Entry:
    return Entry(index, 1, index * (48 + len(BODY)), BODY)


class Case:
    """A scrub of member n1, a follower of n0 in a group of three, at `now_ms`."""

    def __init__(self, count: int = 30, *, days: int = 7) -> None:
        self.files = Files(count)
        self.marks = {"n0": count - 1, "n1": count - 1, "n2": count - 1}
        self.node: Any = SimpleNamespace(
            committed=count - 1, peers=("n0", "n1", "n2"), role=Role.FOLLOWER, leader_id="n0", self_id="n1", term=3,
            settings=SimpleNamespace(election_timeout_ms=1000), watermarks=lambda: self.marks,
        )  # fmt: skip
        self.requests: list[tuple[str, Any, int, Any]] = []
        self.transfers: list[str] = []
        settings = RaftSettings(enabled=True, group="g", self_id="n1", scrub_days=days, rpc_timeout_ms=777)
        send = lambda *request: self.requests.append(request)  # noqa: E731
        self.scrub = Scrub(settings, self.files, send, self.transfers.append, now_ms=0)  # type: ignore[arg-type]
        self.now_ms = MINUTE_MS

    def step(self) -> list[int]:
        """Run one step; returns the indexes that it read."""
        self.files.read.clear()
        self.scrub.step(self.now_ms, self.node)
        return list(self.files.read)

    def due(self) -> None:
        self.now_ms = self.scrub.next_ms


def test_a_pass_begins_after_a_minute_and_the_next_one_after_an_hour() -> None:
    case = Case()
    case.now_ms = MINUTE_MS - 1
    assert case.step() == []
    case.now_ms += 1
    assert case.scrub.due_ms == MINUTE_MS
    assert case.step() == list(range(8)), "8 KiB at least"
    assert case.scrub.next_ms == MINUTE_MS + 100
    read = list(range(8))
    while case.scrub.passes == 0:
        case.due()
        read += case.step()
    assert read == list(range(30))
    assert case.scrub.next_ms == case.now_ms + HOUR_MS
    assert case.step() == [], "not due"
    case.due()
    assert case.step()[0] == 0, "from the begin again"


def test_only_committed_entries_that_are_kept_are_read() -> None:
    case = Case()
    case.node.committed = 5
    case.files.begin_index = 3
    assert case.step() == [3, 4, 5]
    assert case.scrub.passes == 1


@pytest.mark.parametrize("days", [0, 1])
def test_scrub_days_0_reads_nothing_but_what_a_start_reports(days: int) -> None:
    case = Case(days=days)
    assert case.scrub.due_ms == (MINUTE_MS if days else NEVER)
    assert bool(case.step()) is bool(days)
    case.scrub.repair_first(-1, -1)
    assert case.scrub.due_ms == (MINUTE_MS + 100 if days else NEVER)
    case.scrub.repair_first(-1, 4, 2)
    assert case.scrub.due_ms == 0
    assert case.step() == [4], "the last one, at once"
    assert case.scrub.next_ms == case.now_ms + MINUTE_MS
    assert case.scrub.due_ms == (case.scrub.next_ms if days else NEVER)


def test_the_first_entry_of_a_ledger_can_be_repaired_first() -> None:
    case = Case(days=0)
    case.scrub.repair_first(0, -1)
    assert case.scrub.due_ms == 0
    assert case.step() == [0]
    assert case.scrub.due_ms == NEVER


def test_an_entry_that_is_to_be_repaired_first_is_awaited_until_it_is_committed() -> None:
    case = Case()
    case.scrub.repair_first(20)
    case.node.committed = 19
    assert case.step() == []
    case.due()
    case.node.committed = 20
    assert case.step() == [20]
    later = Case()
    later.scrub.repair_first(20)
    later.files.begin_index = 21
    assert later.step()[0] == 21, "it was deleted in the meantime"


@pytest.mark.spec("DUR-08", "DUR-10")
def test_a_follower_repairs_an_entry_with_the_leaders_copy(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    case.files.damaged = {2}
    assert case.step() == [0, 1, 2]
    assert case.scrub.next_ms == case.now_ms + TRY_AGAIN_MS
    [(peer, request, timeout, answered)] = case.requests
    assert (peer, timeout) == ("n0", 777)
    assert (request.group, request.remote_id, request.leader_id) == ("g", "n0", "n0")
    assert (request.term, request.begin_index) == (3, 2)
    case.due()
    assert case.step() == [], "an answer is awaited"
    answered(GetResponse(code=Code.SUCCESS, entries=(entry_of(1), entry_of(2), entry_of(3))))
    assert case.files.copies == [entry_of(2)]
    assert (case.scrub.damaged, case.scrub.repaired) == (1, 1)
    assert case.scrub.next_ms == 0, "it is checked at once"
    assert not case.scrub.postpones_election(case.now_ms, case.node), "it may lead again"
    assert case.step()[0] == 2
    assert "damaged entry found member=n1 index=2 error=entry 2" in caplog.text
    assert "damaged entry repaired member=n1 index=2" in caplog.text


@pytest.mark.parametrize(
    "response",
    [
        None,
        MetadataResponse(),
        GetResponse(code=Code.NOT_LEADER, entries=(entry_of(2),)),
        GetResponse(code=Code.SUCCESS),
    ],
)
def test_an_answer_without_the_entry_is_asked_for_again(response: Any) -> None:
    case = Case()
    case.files.damaged = {2}
    case.step()
    case.requests.pop()[3](response)
    assert case.files.copies == []
    case.due()
    assert case.step() == [2]
    assert len(case.requests) == 1
    assert case.scrub.damaged == 1, "counted once"


@pytest.mark.spec("DUR-10")
def test_an_entry_that_the_copy_does_not_fit_is_skipped_until_the_next_pass() -> None:
    case = Case()
    case.files.damaged, case.files.repairable = {2}, False
    case.step()
    case.requests.pop()[3](GetResponse(code=Code.SUCCESS, entries=(entry_of(2),)))
    assert (case.scrub.damaged, case.scrub.repaired) == (1, 0)
    case.due()
    assert case.step()[0] == 3
    while case.scrub.passes == 0:
        case.due()
        case.step()
    case.due()
    assert case.step() == [0, 1, 2]
    assert case.scrub.damaged == 2, "reported again"


def test_a_member_alone_skips_what_it_cannot_repair() -> None:
    case = Case()
    case.node.peers, case.node.role, case.node.leader_id = ("n1",), Role.LEADER, "n1"
    case.files.damaged = {2}
    case.step()
    assert (case.requests, case.transfers) == ([], [])
    assert case.scrub.next_ms == case.now_ms + TRY_AGAIN_MS
    case.due()
    assert case.step()[0] == 3


@pytest.mark.spec("DUR-10")
def test_a_leader_hands_over_to_members_that_have_all_committed_entries() -> None:
    """One after another, as the first may refuse."""
    case = Case()
    case.node.role, case.node.leader_id = Role.LEADER, "n1"
    case.files.damaged = {2}
    case.marks["n0"] = case.node.committed - 1
    for _ in range(2):
        case.step()
        case.due()
    assert case.transfers == ["n2", "n2"], "not to itself, nor to a member that lags"
    case.marks["n0"] = case.node.committed
    for _ in range(2):
        case.step()
        case.due()
    assert sorted(case.transfers[2:]) == ["n0", "n2"]
    case.marks = {"n1": 29, "n0": 0, "n2": 0}
    case.step()
    assert len(case.transfers) == 4
    assert case.requests == [] and case.scrub.damaged == 1


@pytest.mark.parametrize(("role", "leader"), [(Role.FOLLOWER, None), (Role.CANDIDATE, None)])
def test_without_a_leader_no_member_is_asked(role: Role, leader: str | None) -> None:
    case = Case()
    case.node.role, case.node.leader_id = role, leader
    case.files.damaged = {2}
    case.step()
    assert (case.requests, case.transfers) == ([], [])
    case.due()
    case.node.role, case.node.leader_id = Role.FOLLOWER, "n2"
    case.step()
    assert [peer for peer, *_ in case.requests] == ["n2"]


@pytest.mark.spec("DUR-10")
@pytest.mark.parametrize("first", [True, False])
def test_a_damaged_member_stands_for_election_only_if_no_other_leads_for_long(first: bool) -> None:
    """As leader it would read the entry and fail; if most members are damaged, one of them must lead."""
    case = Case()
    assert not case.scrub.postpones_election(0, case.node), "not damaged"
    if first:
        case.scrub.repair_first(0)
    else:
        case.files.damaged = {0}
        case.step()
    case.node.leader_id = None
    limit_ms = LEADERLESS_MAX * 1000
    begin = 500_000
    assert case.scrub.postpones_election(begin, case.node)
    assert case.scrub.postpones_election(begin + limit_ms - 1, case.node)
    assert not case.scrub.postpones_election(begin + limit_ms, case.node)
    case.node.leader_id = "n0"
    assert case.scrub.postpones_election(begin + 2 * limit_ms, case.node)
    case.node.leader_id = None
    assert case.scrub.postpones_election(begin + 3 * limit_ms - 1, case.node), "since a leader was known last"
    case.node.peers = ("n1",)
    assert not case.scrub.postpones_election(begin, case.node), "no other can lead"
