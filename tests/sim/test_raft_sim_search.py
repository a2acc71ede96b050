"""Model checking: all runs of a small group within a scope keep Raft's invariants, and mutants are found (SIM-12).

`SATURNMQ_SIM_SEARCH=whole` uses a larger scope; tests/harness/raftsim/search.py describes what each scope leaves out.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import test_raft_sim_mutants as planted

from harness.raftsim.observer import Violation
from harness.raftsim.search import Scope, Search

WHOLE = os.environ.get("SATURNMQ_SIM_SEARCH") == "whole"
SCOPE = Scope(turns=2) if WHOLE else Scope(turns=1)

NEAR = (
    planted.vote_not_persisted,
    planted.reply_before_persist,
    planted.two_votes_in_a_term,
    planted.half_is_a_quorum,
    planted.one_more_than_a_quorum_holds,
    planted.follower_answers_before_the_sync,
)


@pytest.mark.timeout(3600)
@pytest.mark.spec("SIM-12", "SIM-08", "DL-X01", "DL-X03", "DL-X10")
def test_every_state_of_a_small_group_keeps_raft_invariants() -> None:
    """Three members, two terms, three entries, one crash each: the search completes and covers leaders, commits, truncations."""
    found = Search(SCOPE).run()
    print(found)
    assert found.done, f"more than {SCOPE.states_max} states"
    assert found.states > 50_000
    assert found.leaders == {0, 1}
    assert found.committed == 2
    assert found.cuts > 0


@pytest.mark.spec("SIM-12", "SIM-11")
@pytest.mark.parametrize("mutant", NEAR, ids=lambda mutant: mutant.__name__)
def test_search_finds_mutant(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(Violation, match="by these events:"):
        Search(SCOPE).run()


@pytest.mark.spec("SIM-12")
def test_search_is_deterministic() -> None:
    """The order of states, and so the first run found for a defect, depends only on the scope."""
    first, second = Search(Scope(turns=0)).run(), Search(Scope(turns=0)).run()
    assert first == second
    assert first.done
