"""Elections: vote rules, vote rounds, terms and roles (docs/spec/04-dledger.md sections 3.1 to 3.3).

Requirements: DL-E01..DL-E22, DL-X05, DL-X15, DUR-10.
"""

from __future__ import annotations

import itertools

import pytest
from raftbench import Bench, entries

from saturnmq.protocol.errors import ConfigError, InvariantBroken
from saturnmq.raft.core.actions import PersistTerm, RaiseAlarm, Reply, Role, RoleChanged, Send
from saturnmq.raft.core.messages import Code, PushKind, VoteRequest, VoteResponse, VoteResult
from saturnmq.raft.core.settings import CoreSettings
from saturnmq.raft.core.voting import Parsed, Tally, Voter, judge, quorum, quorum_index

V = VoteResult


def voter(**changes: object) -> Voter:
    known = {
        "self_id": "n0",
        "peers": ("n0", "n1", "n2"),
        "term": 5,
        "voted_for": None,
        "leader_id": None,
        "ledger_end_index": 10,
        "ledger_end_term": 3,
        "taking_leadership": False,
        "local": False,
    }
    return Voter(**{**known, **changes})  # type: ignore[arg-type]


def request(**changes: object) -> VoteRequest:
    known = {"leader_id": "n1", "term": 5, "ledger_end_index": 10, "ledger_end_term": 3}
    return VoteRequest(**{**known, **changes})  # type: ignore[arg-type]


@pytest.mark.spec("DL-E16", "DL-E17", "DL-L08")
@pytest.mark.parametrize(
    ("known", "asked", "expected"),
    [
        ({}, {}, V.ACCEPT),
        ({}, {"leader_id": "n9"}, V.REJECT_UNKNOWN_LEADER),
        ({}, {"leader_id": None}, V.REJECT_UNKNOWN_LEADER),
        ({}, {"leader_id": "n0"}, V.REJECT_UNEXPECTED_LEADER),
        ({"local": True}, {"leader_id": "n0"}, V.ACCEPT),
        ({}, {"ledger_end_term": 2, "ledger_end_index": 99}, V.REJECT_EXPIRED_LEDGER_TERM),
        ({}, {"ledger_end_index": 9}, V.REJECT_SMALL_LEDGER_END_INDEX),
        ({}, {"ledger_end_term": 4, "ledger_end_index": 9}, V.ACCEPT),
        ({}, {"term": 4}, V.REJECT_EXPIRED_VOTE_TERM),
        ({"voted_for": "n2", "leader_id": "n2"}, {}, V.REJECT_ALREADY_HAS_LEADER),
        ({"voted_for": "n2"}, {}, V.REJECT_ALREADY_VOTED),
        ({"voted_for": "n1"}, {}, V.ACCEPT),
        ({"voted_for": "n1", "leader_id": "n1"}, {}, V.ACCEPT),
        ({"voted_for": "n2", "leader_id": "n2"}, {"term": 6}, V.REJECT_TERM_NOT_READY),
        ({"term": 5, "ledger_end_term": 6}, {"ledger_end_term": 6}, V.REJECT_TERM_SMALL_THAN_LEDGER),
        ({"taking_leadership": True}, {}, V.REJECT_TAKING_LEADERSHIP),
        ({"taking_leadership": True}, {"ledger_end_index": 11}, V.ACCEPT),
        ({"taking_leadership": True, "local": True}, {"leader_id": "n0"}, V.ACCEPT),
        ({"leader_id": "n2", "leader_in_time": True}, {"transfer": False}, V.ACCEPT),  # its own term, no vote given
        ({"leader_id": "n2", "leader_in_time": True}, {"transfer": False, "term": 6}, V.REJECT_ALREADY_HAS_LEADER),
        # a row of the table hides those behind it
        ({}, {"leader_id": "n9", "ledger_end_term": 2}, V.REJECT_UNKNOWN_LEADER),
        ({}, {"leader_id": "n0", "ledger_end_term": 2}, V.REJECT_UNEXPECTED_LEADER),
        ({}, {"ledger_end_term": 2, "term": 4}, V.REJECT_EXPIRED_LEDGER_TERM),
        ({}, {"ledger_end_index": 9, "term": 4}, V.REJECT_SMALL_LEDGER_END_INDEX),
        ({}, {"ledger_end_index": 9, "term": 6}, V.REJECT_SMALL_LEDGER_END_INDEX),
        ({"voted_for": "n2", "leader_id": "n2"}, {"term": 4}, V.REJECT_EXPIRED_VOTE_TERM),
        ({"voted_for": "n2", "taking_leadership": True}, {}, V.REJECT_ALREADY_VOTED),
        ({"term": 4, "ledger_end_term": 6}, {"term": 5, "ledger_end_term": 6}, V.REJECT_TERM_NOT_READY),
        ({"ledger_end_term": 6, "taking_leadership": True}, {"ledger_end_term": 6}, V.REJECT_TERM_SMALL_THAN_LEDGER),
    ],
)
def test_vote_rules_first_match_decides(known: dict[str, object], asked: dict[str, object], expected: V) -> None:
    assert judge(voter(**known), request(**asked)) is expected


@pytest.mark.spec("DL-E19")
def test_vote_request_with_short_log_is_refused_and_term_not_adopted() -> None:
    bench = Bench(log=entries(1, 1), term=1).follow("n1")
    assert bench.vote("n2", 9, end_index=0, end_term=1).vote_result is V.REJECT_SMALL_LEDGER_END_INDEX
    assert bench.vote("n2", 9, end_index=5, end_term=0).vote_result is V.REJECT_EXPIRED_LEDGER_TERM
    bench.tick()
    assert (bench.state.term, bench.state.role) == (1, Role.FOLLOWER)


@pytest.mark.spec("DL-E18", "DL-E05", "DL-E06")
def test_higher_term_is_adopted_at_next_tick_then_vote_granted() -> None:
    bench = Bench(term=3).follow("n1")
    answer = bench.vote("n2", 7)
    assert (answer.vote_result, answer.term) == (V.REJECT_TERM_NOT_READY, 3)
    assert (bench.state.role, bench.state.term) == (Role.CANDIDATE, 3)
    bench.forget()
    bench.tick()
    assert bench.of(PersistTerm) == [PersistTerm(7, None)]
    assert bench.sends() == []  # it adopts the term, but requests no votes in the same tick
    assert bench.vote("n2", 7).vote_result is V.ACCEPT


@pytest.mark.spec("DL-E16", "DL-X01", "DUR-11")
def test_vote_is_persisted_before_response() -> None:
    bench = Bench(term=2)
    bench.forget()
    bench.vote("n1", 2)
    assert [type(action) for action in bench.actions] == [PersistTerm, Reply]
    assert bench.actions[0] == PersistTerm(2, "n1")


@pytest.mark.spec("DL-E01", "DL-E03", "DL-E08", "DL-E09")
def test_new_member_requests_votes_at_once_in_term_0() -> None:
    bench = Bench(log=[])
    assert (bench.state.role, bench.state.leader_id) == (Role.CANDIDATE, None)
    bench.tick()
    assert bench.actions[0] == PersistTerm(0, "n0")
    asked = [send.request for send in bench.sends(kind=VoteRequest)]
    assert asked == [
        VoteRequest(group="g", term=0, leader_id="n0", local_id="n0", remote_id=peer) for peer in ("n1", "n2")
    ]
    assert all(send.timeout_ms == 3000 for send in bench.sends())
    for send in bench.sends():
        bench.vote_answer(send, V.ACCEPT)
    assert (bench.state.role, bench.state.term) == (Role.LEADER, 0)


@pytest.mark.spec("DL-E08")
def test_vote_request_carries_ledger_end_and_term() -> None:
    bench = Bench(log=entries(1, 1, 3), term=4)
    bench.tick()
    about = {"group": "g", "term": 4, "leader_id": "n0", "local_id": "n0", "ledger_end_index": 2, "ledger_end_term": 3}
    asked = [send.request for send in bench.sends(kind=VoteRequest)]
    assert asked == [VoteRequest(remote_id=peer, **about) for peer in ("n1", "n2")]  # type: ignore[arg-type]


@pytest.mark.spec("DL-E08", "DL-E04")
def test_candidate_that_voted_for_another_revotes_in_same_term() -> None:
    bench = Bench(term=4, voted_for="n2")
    bench.tick()
    assert bench.of(PersistTerm) == []
    first, second = bench.sends()
    bench.vote_answer(first, V.ACCEPT)
    bench.vote_answer(second, None)
    assert bench.state.role is Role.CANDIDATE  # one vote of three
    assert bench.node._elector.last_result is Parsed.WAIT_TO_VOTE_NEXT
    assert bench.state.term == 4


@pytest.mark.spec("DL-E04")
def test_candidate_raises_its_term_once_after_a_lost_round() -> None:
    bench = Bench(term=4)
    bench.tick()
    assert [send.request.term for send in bench.sends(kind=VoteRequest)] == [4, 4], "the first round is in the old term"
    for send in bench.sends(kind=VoteRequest):
        bench.vote_answer(send, V.REJECT_ALREADY_VOTED)
    assert bench.node._elector.last_result is Parsed.WAIT_TO_VOTE_NEXT
    bench.forget()
    bench.tick(300)
    assert [send.request.term for send in bench.sends(kind=VoteRequest)] == [5, 5]
    assert bench.node._elector.last_result is Parsed.WAIT_TO_REVOTE
    for send in bench.sends(kind=VoteRequest):
        bench.vote_answer(send, None)
    bench.forget()
    bench.tick(300)
    assert [send.request.term for send in bench.sends(kind=VoteRequest)] == [5, 5], "no quorum answered"


@pytest.mark.spec("DL-E03", "DL-E04", "DL-E06")
def test_candidate_that_saw_a_higher_term_takes_it_and_one_that_leads_does_not_vote() -> None:
    bench = Bench(term=4)
    bench.tick()
    bench.forget()
    bench.vote("n2", 7)
    assert bench.node._elector.raise_now and bench.state.term == 4
    bench.node._elector.next_vote_ms = bench.now_ms + 9000
    bench.tick()
    assert bench.node._elector.next_vote_ms == bench.now_ms + 300
    assert (bench.state.term, bench.sends(kind=VoteRequest)) == (7, []), "taken, without a vote in this tick"
    assert bench.node._elector.last_result is Parsed.WAIT_TO_REVOTE and not bench.node._elector.raise_now
    leading = Bench(term=4).lead()
    leading.node._elector.last_result = Parsed.WAIT_TO_VOTE_NEXT
    leading.forget()
    leading.tick(1000)
    assert leading.sends(kind=VoteRequest) == [] and leading.state.term == 4, "no candidate"


@pytest.mark.spec("DL-E07", "DL-E03")
@pytest.mark.parametrize(("chance", "expected"), [(0, 300), (699, 999)])
def test_vote_interval_jitter(chance: int, expected: int) -> None:
    bench = Bench(chance=chance)
    bench.tick()
    for send in bench.sends():
        bench.vote_answer(send, V.REJECT_ALREADY_VOTED)
    assert bench.node._elector.next_vote_ms == bench.now_ms + expected
    bench.forget()
    bench.tick(expected - 1)
    assert bench.sends() == []
    bench.tick(1)
    assert len(bench.sends(kind=VoteRequest)) == 2
    assert bench.state.term == 1  # row 7 of table 3.3: no member has a leader or a longer log


@pytest.mark.spec("DL-L08", "DL-E07")
@pytest.mark.parametrize(("chance", "expected"), [(0, 30), (69, 99), (70, 30)])
def test_vote_interval_is_short_while_taking_leadership(chance: int, expected: int) -> None:
    bench = Bench(term=1, preferred_leaders=("n0",), chance=chance)
    bench.state.term_to_take = 1
    bench.tick()
    for send in bench.sends():
        bench.vote_answer(send, V.REJECT_ALREADY_VOTED)
    assert bench.node._elector.next_vote_ms == bench.now_ms + expected


@pytest.mark.spec("DL-E10", "DL-E11")
@pytest.mark.parametrize(("chance", "wait_ms"), [(0, 2000), (500, 2500), (999, 2999), (1000, 2000)])
def test_vote_round_ends_at_deadline_and_ignores_late_answers(chance: int, wait_ms: int) -> None:
    bench = Bench(chance=chance)
    bench.tick()
    sends = bench.sends()
    bench.answer(sends[0], None)
    bench.tick(wait_ms - 1)
    assert bench.node._elector.round is not None
    bench.tick(1)
    assert bench.node._elector.round is None
    bench.vote_answer(sends[1], V.ACCEPT)
    assert bench.state.role is Role.CANDIDATE


def tally(answers: dict[str, tuple[V | None, int]], members: int = 3, term: int = 5) -> Tally:
    counted = Tally(term, members, 0)
    for member, (result, answer_term) in answers.items():
        counted.add(member, None if result is None else VoteResponse(vote_result=result, term=answer_term))
    return counted


ACC, NOT_READY, VOTED = (V.ACCEPT, 5), (V.REJECT_TERM_NOT_READY, 4), (V.REJECT_ALREADY_VOTED, 5)
LEADER, FAILED = (V.REJECT_ALREADY_HAS_LEADER, 5), (None, 0)
BIG_TERM, BIG_INDEX = (V.REJECT_EXPIRED_LEDGER_TERM, 5), (V.REJECT_SMALL_LEDGER_END_INDEX, 5)


@pytest.mark.spec("DL-X05", "DL-E13")
def test_term_rises_only_if_quorum_has_no_leader_or_longer_log() -> None:
    """For all answers of five members in the candidate's own term: this round takes the place of a pre-vote."""
    kinds = (ACC, VOTED, NOT_READY, LEADER, BIG_INDEX, BIG_TERM, FAILED)
    risen = 0
    for answers in itertools.combinations_with_replacement(kinds, 5):
        result, _ = tally({f"n{number}": answer for number, answer in enumerate(answers)}, members=5).parse()
        if result is Parsed.WAIT_TO_VOTE_NEXT:
            risen += 1
            assert LEADER not in answers
            assert sum(answer in (ACC, VOTED, NOT_READY) for answer in answers) >= quorum(5)
    assert risen > 0


@pytest.mark.parametrize(
    ("answers", "split", "hopeless", "decided"),
    [
        ((), False, False, False),
        ((ACC, ACC), False, False, False),
        ((ACC, ACC, ACC), False, False, True),
        ((ACC, ACC, NOT_READY), False, False, True),
        ((ACC, NOT_READY, NOT_READY), False, False, True),  # members that are not ready yet will be
        ((ACC, NOT_READY, VOTED), True, False, False),  # one of the two outstanding votes decides
        ((ACC, VOTED, VOTED), True, False, False),
        ((ACC, VOTED, VOTED, FAILED), True, True, True),
        ((ACC, NOT_READY, VOTED, VOTED), True, False, False),
        ((VOTED, VOTED, VOTED), True, True, True),
        ((ACC, VOTED, BIG_TERM), False, False, False),  # a better log may still win in this term
        ((ACC, VOTED, BIG_INDEX, VOTED), True, True, True),
        ((ACC, VOTED, FAILED), False, False, False),  # a failed call is no answer
        ((LEADER,), False, False, True),
        ((ACC, ACC, FAILED, FAILED, FAILED), False, False, True),
    ],
)
def test_vote_round_of_five_ends_early_if_nothing_can_change_it(
    answers: tuple[tuple[V | None, int], ...], split: bool, hopeless: bool, decided: bool
) -> None:
    found = tally({f"n{number}": answer for number, answer in enumerate(answers)}, members=5)
    assert (found.split, found.hopeless, found.decided) == (split, hopeless, decided)


@pytest.mark.spec("DL-E11", "DL-E12", "DL-E13", "DL-E14")
@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((ACC, ACC, (V.REJECT_EXPIRED_VOTE_TERM, 9)), (Parsed.WAIT_TO_VOTE_NEXT, "jitter")),
        ((ACC, (V.REJECT_TERM_SMALL_THAN_LEDGER, 6), FAILED), (Parsed.WAIT_TO_VOTE_NEXT, "jitter")),
        ((ACC, LEADER, FAILED), (Parsed.WAIT_TO_REVOTE, "leader")),
        ((ACC, ACC, LEADER), (Parsed.WAIT_TO_REVOTE, "leader")),
        ((ACC, FAILED, FAILED), (Parsed.WAIT_TO_REVOTE, "jitter")),
        ((ACC, (V.UNKNOWN, 5), FAILED), (Parsed.WAIT_TO_REVOTE, "jitter")),
        ((ACC, BIG_TERM, FAILED), (Parsed.WAIT_TO_REVOTE, "behind")),
        ((ACC, BIG_TERM, BIG_INDEX), (Parsed.WAIT_TO_REVOTE, "behind")),
        ((ACC, ACC, FAILED), (Parsed.PASSED, "none")),
        ((ACC, ACC, BIG_INDEX), (Parsed.PASSED, "none")),
        ((ACC, NOT_READY, FAILED), (Parsed.REVOTE_IMMEDIATELY, "none")),
        ((VOTED, ACC, VOTED), (Parsed.WAIT_TO_VOTE_NEXT, "jitter")),
        ((ACC, VOTED, FAILED), (Parsed.WAIT_TO_VOTE_NEXT, "jitter")),
        # a row of the table hides those behind it
        ((LEADER, (V.REJECT_EXPIRED_VOTE_TERM, 9), FAILED), (Parsed.WAIT_TO_VOTE_NEXT, "jitter")),
        (((V.REJECT_EXPIRED_VOTE_TERM, 9), FAILED, FAILED), (Parsed.WAIT_TO_VOTE_NEXT, "jitter")),
        ((BIG_TERM, BIG_INDEX, (V.REJECT_EXPIRED_VOTE_TERM, 9)), (Parsed.WAIT_TO_VOTE_NEXT, "jitter")),
        ((LEADER, FAILED, FAILED), (Parsed.WAIT_TO_REVOTE, "leader")),
        ((BIG_TERM, BIG_INDEX, LEADER), (Parsed.WAIT_TO_REVOTE, "leader")),
        ((BIG_TERM, FAILED, FAILED), (Parsed.WAIT_TO_REVOTE, "jitter")),
        ((NOT_READY, BIG_TERM, BIG_INDEX), (Parsed.WAIT_TO_REVOTE, "behind")),
        ((ACC, ACC, NOT_READY), (Parsed.PASSED, "none")),
        # every answer but UNKNOWN counts to the quorum of valid ones
        (((V.REJECT_UNEXPECTED_LEADER, 5), ACC, FAILED), (Parsed.WAIT_TO_VOTE_NEXT, "jitter")),
        (((V.REJECT_TAKING_LEADERSHIP, 5), ACC, FAILED), (Parsed.WAIT_TO_VOTE_NEXT, "jitter")),
        (((V.REJECT_UNKNOWN_LEADER, 5), ACC, FAILED), (Parsed.WAIT_TO_REVOTE, "leader")),
    ],
)
def test_vote_round_parse_table(answers: tuple[tuple[V | None, int], ...], expected: tuple[Parsed, str]) -> None:
    counted = tally({f"n{number}": answer for number, answer in enumerate(answers)})
    assert counted.parse() == expected
    assert counted.decided


@pytest.mark.spec("DL-E10", "DL-E11")
def test_vote_round_counts_member_once_and_decides_early() -> None:
    counted = tally({"n0": ACC}, members=5)
    for result in (V.ACCEPT, V.REJECT_ALREADY_VOTED):
        counted.add("n0", VoteResponse(vote_result=result, term=5))
        assert (counted.accepted, counted.valid, counted.decided) == (1, 1, False)
    for early in ((LEADER,), (ACC, ACC), (NOT_READY, NOT_READY), (FAILED,) * 4):
        assert tally({f"n{n}": answer for n, answer in enumerate((ACC, *early))}, members=5).decided, early


@pytest.mark.spec("DL-E10", "DL-X05", "CHA-07")
def test_hopeless_vote_round_does_not_wait_for_silent_member() -> None:
    assert tally({"n0": VOTED, "n1": VOTED}).decided
    assert not tally({"n0": ACC, "n1": VOTED}).decided  # the third vote could still pass it
    assert not tally({"n0": VOTED, "n1": FAILED}).decided  # no quorum answered: the term must not be raised
    assert not tally({"n0": VOTED, "n1": BIG_INDEX}).decided  # the third answer decides: behind, or a higher term
    assert tally({"n0": VOTED, "n1": VOTED, "n2": VOTED}, members=5).decided
    assert not tally({"n0": VOTED, "n1": VOTED, "n2": ACC}, members=5).decided
    bench = Bench(term=2, voted_for="n2").follow("n2", 2)
    bench.tick(6001)  # n2 is frozen
    bench.tick()
    bench.vote_answer(bench.sends("n1", VoteRequest)[0], V.REJECT_ALREADY_VOTED)
    assert bench.node._elector.round is None
    bench.tick(1000)
    assert bench.state.term == 3


@pytest.mark.spec("DL-E10", "DL-E07", "CHA-07")
def test_split_vote_waits_no_longer_for_silent_member_than_between_rounds() -> None:
    for silent_votes in (False, True):
        bench = Bench(term=2, chance=100)
        bench.tick()
        sends = bench.sends(kind=VoteRequest)
        bench.vote_answer(sends[0], V.REJECT_ALREADY_VOTED)
        bench.tick(299)
        if silent_votes:
            bench.vote_answer(sends[1], V.ACCEPT)
            assert bench.state.role is Role.LEADER
            continue
        assert bench.node._elector.round is not None
        bench.tick(1)
        assert bench.node._elector.round is None  # instead of 2000 + 100
        assert bench.node._elector.next_vote_ms == bench.now_ms + 400
        bench.tick(400)
        assert bench.state.term == 3


@pytest.mark.spec("DL-E10", "DL-E13")
def test_of_two_candidates_with_split_votes_the_higher_id_goes_second() -> None:
    def waits_ms(own: str, other: str, voted_for: str | None = None) -> int:
        """The wait after a round in which the other member refused and the third was silent."""
        bench = Bench(term=2, voted_for=voted_for, self_id=own)
        bench.tick()
        bench.vote_answer(bench.sends(other, VoteRequest)[0], V.REJECT_ALREADY_VOTED)
        if bench.node._elector.round is not None:
            bench.tick(300)
        assert bench.node._elector.round is None
        return int(bench.node._elector.next_vote_ms - bench.now_ms)

    assert (waits_ms("n0", "n2"), waits_ms("n2", "n0")) == (300, 1300)
    assert waits_ms("n2", "n0", voted_for="n1") == 300, (
        "both had voted for the lost leader, neither is known as a rival"
    )


@pytest.mark.spec("DL-E12")
@pytest.mark.parametrize(("term", "extra_ms"), [(2, 6000), (1, 1000)])
def test_candidate_asks_soon_again_where_members_follow_a_leader_of_an_old_term(term: int, extra_ms: int) -> None:
    bench = Bench(term=2)
    bench.tick()
    bench.vote_answer(bench.sends()[0], V.REJECT_ALREADY_HAS_LEADER, term=term)
    assert bench.node._elector.next_vote_ms == bench.now_ms + 300 + extra_ms


@pytest.mark.spec("DL-X02")
def test_member_that_voted_for_another_leads_only_a_higher_term_after_a_restart() -> None:
    """It may have led the term by the votes of the others."""
    bench = Bench(term=2, voted_for="n1", self_id="n0")
    bench.tick()
    for send in bench.sends(kind=VoteRequest):
        bench.vote_answer(send, V.ACCEPT)
    assert bench.state.role is Role.CANDIDATE
    bench.tick()
    assert bench.state.term == 3


@pytest.mark.spec("DL-E12", "DL-E14")
@pytest.mark.parametrize(
    ("answer", "extra_ms"), [(V.REJECT_ALREADY_HAS_LEADER, 6000), (V.REJECT_SMALL_LEDGER_END_INDEX, 1000)]
)
def test_wait_before_next_vote_round_keeps_term(answer: V, extra_ms: int) -> None:
    bench = Bench(term=2)
    bench.tick()
    for send in bench.sends():
        bench.vote_answer(send, answer)
    assert bench.node._elector.next_vote_ms == bench.now_ms + 300 + extra_ms
    bench.tick(300 + extra_ms)
    assert bench.state.term == 2


@pytest.mark.spec("DL-E13")
def test_candidate_without_quorum_never_raises_term() -> None:
    bench = Bench(term=2)
    for _ in range(50):
        bench.tick(4000)
        for send in bench.sends():
            bench.answer(send, None)
        bench.forget()
    assert bench.state.term == 2


@pytest.mark.spec("DL-E04", "DL-E18")
def test_revote_after_not_ready_is_at_next_tick_in_same_term() -> None:
    bench = Bench(term=2)
    bench.tick()
    first, second = bench.sends()
    bench.vote_answer(first, V.REJECT_TERM_NOT_READY, term=1)
    bench.vote_answer(second, None)
    bench.forget()
    bench.tick()
    assert [send.request.term for send in bench.sends(kind=VoteRequest)] == [2, 2]


@pytest.mark.spec("DL-E12", "DL-E05")
def test_higher_term_in_vote_answer_is_used_in_next_round() -> None:
    bench = Bench(term=2)
    bench.tick()
    for send in bench.sends():
        bench.vote_answer(send, V.REJECT_EXPIRED_VOTE_TERM, term=8)
    assert bench.state.term == 2
    bench.tick(300)
    assert bench.state.term == 8
    assert bench.stored.voted_for == "n0"


@pytest.mark.spec("DL-E15")
def test_votes_after_higher_term_was_seen_elect_no_leader() -> None:
    bench = Bench(term=2)
    bench.tick()
    sends = bench.sends()
    bench.vote("n1", 3)
    bench.forget()
    bench.vote_answer(sends[1], V.ACCEPT)
    assert bench.state.role is Role.CANDIDATE
    (warning,) = bench.of(RaiseAlarm)
    assert "late votes ignored vote_term=2" in warning.text
    bench.tick()
    assert bench.state.term == 3


@pytest.mark.spec("DL-E20")
def test_become_candidate_ignores_older_term_and_notifies_again() -> None:
    bench = Bench(term=5)
    bench.state.become_candidate(4)
    assert bench.state.out == []
    bench.state.become_candidate(6)
    bench.state.become_candidate(6)
    assert [type(action) for action in bench.state.out] == [RoleChanged, RoleChanged]
    bench.state.become_candidate(5)
    assert (bench.state.known_max_term, bench.state.term) == (6, 5)


@pytest.mark.spec("DL-E20", "DL-E05")
def test_become_candidate_clears_leader_and_transferee() -> None:
    bench = Bench(term=5).lead()
    bench.state.transferee = "n1"
    with pytest.raises(InvariantBroken, match="only a candidate"):
        bench.state.next_term()
    bench.state.become_candidate(bench.state.term)
    state = bench.state
    assert (state.role, state.leader_id, state.transferee) == (Role.CANDIDATE, None, None)
    assert state.out[-1] == RoleChanged(Role.CANDIDATE, state.term, None)


@pytest.mark.spec("DL-E21", "DL-H01")
def test_new_leader_sends_heartbeats_at_next_tick() -> None:
    bench = Bench()
    bench.node._heartbeats.live = {"n1": True}
    bench.node._heartbeats.sent_ms = bench.now_ms
    bench.lead()
    assert bench.of(RoleChanged)[-1] == RoleChanged(Role.LEADER, bench.state.term, "n0")
    assert bench.state.leader_id == "n0"
    bench.forget()
    bench.tick(1)
    assert {send.peer for send in bench.sends()} == {"n1", "n2"}
    assert bench.node._heartbeats.live == {}


@pytest.mark.spec("DL-E22")
def test_become_follower_drops_pending_term_and_resets_timeout() -> None:
    bench = Bench(term=1)
    bench.tick()
    for send in bench.sends():
        bench.vote_answer(send, V.REJECT_ALREADY_VOTED)
    assert bench.node._elector.last_result is Parsed.WAIT_TO_VOTE_NEXT
    bench.node._heartbeats.patient_until_ms = (
        bench.now_ms + 60_000
    )  # as a former leader with longer intervals had announced
    bench.state.transferee = "n2"
    bench.vote("n2", 9)
    assert bench.node._elector.raise_now
    bench.follow("n1")
    assert bench.node._elector.last_result is Parsed.WAIT_TO_REVOTE and not bench.node._elector.raise_now
    assert bench.node._heartbeats.patient_until_ms == bench.now_ms + 6000
    assert bench.state.transferee is None
    assert bench.of(RoleChanged)[-1] == RoleChanged(Role.FOLLOWER, bench.state.term, "n1")


@pytest.mark.spec("DL-E02")
def test_disabled_elector_does_nothing() -> None:
    bench = Bench(elector_enabled=False)
    bench.tick(100_000)
    assert bench.actions == []


@pytest.mark.spec("DL-E02")
def test_heartbeats_follow_the_interval_of_the_settings() -> None:
    bench = Bench(heartbeat_interval_ms=100).lead()
    bench.tick(1)
    bench.forget()
    bench.tick(99)
    assert bench.sends() == []
    bench.tick(2)
    assert len(bench.sends()) == 2


@pytest.mark.spec("DL-E10", "DL-Q01")
def test_quorum_and_quorum_index_equal_counting() -> None:
    assert [quorum(n) for n in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]
    for members in (1, 2, 3, 4, 5):
        for marks in itertools.product(range(-1, 3), repeat=members):
            held = [i for i in range(-1, 3) if sum(mark >= i for mark in marks) >= quorum(members)]
            assert quorum_index(marks) == max(held), marks


@pytest.mark.spec("DL-M03")
def test_own_id_must_be_among_peers() -> None:
    from harness.raftsim.group import Ledger
    from saturnmq.raft.core.node import Node
    from saturnmq.raft.core.state import HardState

    with pytest.raises(ConfigError, match=r"n7.*n0, n1"):
        Node(
            group="g",
            self_id="n7",
            peers={"n0": "h:1", "n1": "h:2"},
            settings=CoreSettings(),
            reader=Ledger(),
            hard_state=HardState(),
            committed=-1,
            chance=lambda n: 0,
        )


@pytest.mark.spec("DL-X01")
def test_term_is_raised_to_last_entry_term_and_persisted_at_start() -> None:
    bench = Bench(log=entries(1, 4), term=2, voted_for="n1")
    actions = bench.tick()
    assert actions[0] == PersistTerm(4, None)


@pytest.mark.spec("DL-X01", "SIM-08")
def test_term_led_before_restart_is_not_led_again() -> None:
    """Entries pushed but not synced may be lost: the same term must not get different entries at their indexes."""
    bench = Bench(log=entries(3), term=3, voted_for="n0")
    bench.tick()
    for send in bench.sends():
        bench.vote_answer(send, V.ACCEPT)
    assert bench.state.role is Role.CANDIDATE
    bench.forget()
    bench.tick()
    for send in bench.sends():
        bench.vote_answer(send, V.ACCEPT)
    assert (bench.state.role, bench.state.term) == (Role.LEADER, 4)


@pytest.mark.spec("DL-X15")
def test_member_with_failed_disk_neither_votes_nor_stands() -> None:
    bench = Bench(term=2).follow("n1")
    bench.do(bench.node.disk_failed(bench.now_ms, "EIO"))
    assert bench.vote("n2", 2).code == Code.DISK_ERROR
    assert bench.vote("n2", 5).vote_result is V.UNKNOWN
    bench.forget()
    bench.tick(60_000)
    assert [action for action in bench.actions if isinstance(action, Send | PersistTerm)] == []


@pytest.mark.spec("DUR-10")
def test_damaged_log_neither_votes_nor_stands_until_refilled() -> None:
    log = entries(1, 1, 1, 1, 1, 1)
    for leader_log in (log, log[:5] + entries(2, first=5, pos=log[4].end_pos)):
        bench = Bench(log=log[:3], term=1, incomplete=True)
        bench.tick(60_000)
        assert bench.sends() == []
        assert bench.vote("n2", 1, end_index=2, end_term=1).code == Code.DISK_ERROR
        assert bench.vote("n2", 1, end_index=9, end_term=1).vote_result is V.UNKNOWN
        assert bench.vote("n2", 2, end_index=9, end_term=1).vote_result is V.REJECT_TERM_NOT_READY
        bench.tick()
        assert bench.state.term == 2  # it still follows a new leader
        bench.follow("n1")
        assert bench.push(PushKind.COMMIT).code == Code.INCONSISTENT_STATE  # so that the leader compares from its end
        assert bench.push(PushKind.COMPARE, leader_log[5]).code == Code.INCONSISTENT_STATE
        bench.verified(*log[:3])
        assert bench.push(PushKind.APPEND, *log[3:5], commit=4).code == Code.SUCCESS
        assert bench.state.recovering  # whether it had acknowledged the last one is not known
        assert bench.push(PushKind.APPEND, leader_log[5], commit=4).code == Code.SUCCESS
        assert not bench.state.recovering
        bench.forget()
        bench.tick(60_000)
        bench.tick(10)
        assert len(bench.sends(kind=VoteRequest)) >= 2


@pytest.mark.spec("DUR-10")
def test_recovery_waits_for_a_compare_at_the_leaders_end() -> None:
    """Regression: the rest of a search that began before a break was taken for one that begins at the end of the leader's log."""
    log = entries(1, 1, 1, 1, 1, 1)
    bench = Bench(log=log[:3], term=1, incomplete=True).follow("n1")
    assert bench.push(PushKind.COMPARE, log[5]).code == Code.INCONSISTENT_STATE
    bench.tick(60_000)  # heartbeats are late: it follows the same leader once more, which continues its search
    assert bench.roles[-1] == "CANDIDATE"
    bench.follow("n1").verified(log[2])
    for kind, pushed in ((PushKind.APPEND, log[3:4]), (PushKind.COMMIT, [])):
        assert bench.push(kind, *pushed, commit=2).code == Code.INCONSISTENT_STATE  # the leader compares from its end
        assert bench.state.recovering
    assert bench.push(PushKind.COMPARE, log[5]).code == Code.INCONSISTENT_STATE
    bench.verified(log[2])
    assert bench.push(PushKind.APPEND, *log[3:5], commit=2).code == Code.SUCCESS
    assert bench.state.recovering
    assert bench.push(PushKind.APPEND, log[5], commit=2).code == Code.SUCCESS
    assert not bench.state.recovering


@pytest.mark.spec("DUR-10")
def test_recovery_ends_when_the_entries_are_on_disk() -> None:
    """Regression: the checkpoint said that the log is complete before the entries were written, let alone synced."""
    log = entries(1, 1, 1, 1)
    for sync_before_ack in (True, False):
        bench = Bench(log=log[:2], term=1, incomplete=True, auto_sync=False, sync_before_ack=sync_before_ack)
        bench.follow("n1")
        bench.push(PushKind.COMMIT)
        bench.push(PushKind.COMPARE, log[3])
        bench.push(PushKind.TRUNCATE, log[3])  # the leader's log begins there
        assert bench.state.log.begin == bench.state.log.end == 3
        assert bench.state.recovering
        bench.do(bench.node.synced(bench.now_ms, bench.node.log_epoch, 3))
        assert not bench.state.recovering


@pytest.mark.spec("DUR-10")
def test_recovery_waits_for_a_compare_at_the_end_of_the_new_leader() -> None:
    """What was refused to the former leader says nothing about where the next one compares."""
    log = entries(1, 1, 1, 1)
    bench = Bench(log=log[:2], term=1, incomplete=True).follow("n1")
    assert bench.push(PushKind.COMMIT).code == Code.INCONSISTENT_STATE  # n1 would compare from its end
    bench.heartbeat("n2", 2)
    bench.tick()
    bench.follow("n2", 2)
    assert bench.push(PushKind.COMPARE, log[1], leader="n2").code == Code.SUCCESS  # of a search begun before a break
    assert bench.push(PushKind.COMMIT, commit=1, leader="n2").code == Code.INCONSISTENT_STATE
    assert bench.state.recovering
    assert bench.push(PushKind.COMPARE, log[1], leader="n2").code == Code.SUCCESS
    assert bench.push(PushKind.COMMIT, commit=1, leader="n2").code == Code.SUCCESS
    assert not bench.state.recovering
