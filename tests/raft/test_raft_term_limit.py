"""Terms that no working group reaches are refused, whatever message carries them, and change nothing.

Requirements: DL-E18, DL-X06, FUZ-08.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from raftbench import GROUP, Bench, entries

from saturnmq.protocol.errors import CorruptRecord
from saturnmq.raft.core.actions import PersistTerm, Role
from saturnmq.raft.core.ids import TERM_MAX
from saturnmq.raft.core.messages import (
    AppendRequest,
    Code,
    GetRequest,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    PushKind,
    PushRequest,
    Request,
    TransferRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from saturnmq.raft.core.term_limit import ALARM_INTERVAL_MS, TERM_STEP_MAX
from saturnmq.raft.ledger.term_file import TermFile

ABSURD = (TERM_STEP_MAX + 6, TERM_MAX, TERM_MAX + 1, 2**63 - 1)


def requests(term: int) -> list[Request]:
    sender: dict[str, Any] = {"leader_id": "n1", "local_id": "n1", "term": term}
    return [
        VoteRequest(**sender),
        VoteRequest(leader_id="n1", local_id="n1", term=5, ledger_end_term=term, ledger_end_index=9),
        HeartBeatRequest(**sender),
        *(PushRequest(kind=kind, entries=tuple(entries(5)), **sender) for kind in PushKind),
        TransferRequest(transfer_id="n1", transferee_id="n0", **sender),
        TransferRequest(transfer_id="n0", transferee_id="n1", **sender),
        AppendRequest(body=b"x", **sender),
        GetRequest(**sender),
        MetadataRequest(**sender),
    ]


@pytest.mark.parametrize("term", ABSURD)
@pytest.mark.parametrize("role", [Role.LEADER, Role.FOLLOWER, Role.CANDIDATE])
def test_absurd_term_in_any_request_changes_nothing(role: Role, term: int) -> None:
    bench = Bench(term=5)
    if role is Role.LEADER:
        bench.lead()
    elif role is Role.FOLLOWER:
        bench.follow("n1")
    stored, known = bench.stored, bench.state.known_max_term
    bench.forget()
    for request in requests(term):
        response = bench.ask(request)
        assert response.code == Code.UNEXPECTED_ARGUMENT, request
        if isinstance(response, VoteResponse):
            assert response.vote_result is VoteResult.UNKNOWN
    assert (bench.node.role, bench.node.term, bench.state.known_max_term) == (role, 5, known)
    assert (bench.stored, bench.of(PersistTerm)) == (stored, [])


def test_term_at_the_limit_is_still_accepted() -> None:
    bench = Bench(term=5).follow("n1")
    assert bench.heartbeat("n2", 5 + TERM_STEP_MAX).code == Code.TERM_NOT_READY
    bench.tick()
    assert bench.node.term == 5 + TERM_STEP_MAX
    near = Bench(term=TERM_MAX - 1).follow("n1")
    assert near.heartbeat("n2", TERM_MAX).code == Code.TERM_NOT_READY
    assert near.heartbeat("n2", TERM_MAX + 1).code == Code.UNEXPECTED_ARGUMENT


@pytest.mark.parametrize("term", ABSURD)
def test_absurd_term_in_a_response_does_not_unseat_a_leader(term: int) -> None:
    bench = Bench(term=5).lead()
    bench.tick(1)
    bench.answer(
        bench.sends("n1", HeartBeatRequest)[-1], HeartBeatResponse(group=GROUP, code=Code.EXPIRED_TERM, term=term)
    )
    assert bench.node.is_leader
    assert "sender='response'" in bench.alarms[0]
    voting = Bench(term=5)
    voting.tick()
    voting.vote_answer(voting.sends("n1", VoteRequest)[-1], VoteResult.REJECT_EXPIRED_VOTE_TERM, term)
    voting.tick(10_000)
    assert voting.node.term == 5


def test_refused_terms_are_logged_once_per_interval() -> None:
    bench = Bench(term=5).follow("n1")
    for _ in range(100):
        bench.heartbeat("n1", 2**63 - 1)
    assert len(bench.alarms) == 1
    assert (
        f"term refused sender='n1' seen_term={2**63 - 1} term=5 highest={5 + TERM_STEP_MAX} suppressed=0"
        in bench.alarms[0]
    )
    bench.now_ms += ALARM_INTERVAL_MS
    bench.heartbeat("n1", 2**63 - 1)
    assert len(bench.alarms) == 2
    assert "suppressed=99" in bench.alarms[1]


def test_term_file_with_absurd_term_is_refused(tmp_path: Path) -> None:
    """Written by a version that accepted such a term: the member is to be emptied and filled by the others."""
    for name in ("currterm", "currterm.bak"):
        (tmp_path / name).write_text(f"voteLeader=\ncurrTerm={2**63 - 1}\n")
    with pytest.raises(CorruptRecord, match="currterm"):
        TermFile(tmp_path).read(ledger_is_empty=False)
