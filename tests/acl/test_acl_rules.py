"""The bounds of what outlives one decision: the signatures that were seen, and the quota of the trace topic."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.acl import rules
from saturnmq.acl.rules import SLOT_MS, Quota, ReplayCache, SeenSignatures
from saturnmq.protocol.signatures import WINDOW_MS

NOW = 1_700_000_000_000


@pytest.mark.spec("SEC-10")
def test_a_signature_is_accepted_once_within_the_window() -> None:
    seen = ReplayCache()
    assert seen.add("a", NOW, NOW) and seen.add("b", NOW, NOW) and seen.add("c", NOW + 1000, NOW)
    assert not seen.add("a", NOW, NOW) and not seen.add("b", NOW, NOW + WINDOW_MS)
    assert len(seen) == 3


@pytest.mark.spec("SEC-10")
def test_old_signatures_are_dropped() -> None:
    seen = ReplayCache()
    for second in range(1000):
        assert seen.add(f"{second}", NOW + 1000 * second, NOW + 1000 * second)
    assert len(seen) <= (WINDOW_MS + 2 * SLOT_MS) / 1000
    assert not seen.add("0", NOW, NOW), "a clock that is set back makes nothing new"


@pytest.mark.spec("SEC-10")
@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 9)), max_size=200), st.integers(1, 50))
def test_slots_accept_what_a_set_of_all_signatures_accepts(uses: list[tuple[int, int]], slot_entries: int) -> None:
    seen, known = ReplayCache(), set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "SLOT_ENTRIES", slot_entries)
        for time, text in uses:
            assert seen.add(f"{time} {text}", NOW + time, NOW) == ((time, text) not in known)
            known.add((time, text))


@pytest.mark.spec("SEC-10")
@pytest.mark.parametrize("step_ms", [0, -1])
def test_many_signatures_of_one_time_move_few_bytes_each(monkeypatch: pytest.MonkeyPatch, step_ms: int) -> None:
    """An account chooses the times that it signs: a slot of a million entries would cost milliseconds for each request."""
    monkeypatch.setattr(rules, "SLOT_ENTRIES", 100)
    seen = ReplayCache()
    for number in range(5000):
        assert seen.add(f"s{number}", NOW + step_ms * number, NOW)
    assert len(seen) == 5000 and seen.longest <= 100
    assert not any(seen.add(f"s{number}", NOW + step_ms * number, NOW) for number in range(0, 5000, 7))


@pytest.mark.spec("SEC-10")
def test_full_memory_forgets_the_oldest_and_accepts_none_of_their_time() -> None:
    seen = SeenSignatures(bytes_max=4000)
    accepted = [(f"s{n}", NOW + SLOT_MS * n) for n in range(30)]
    for signature, time_ms in accepted:
        assert seen.add("busy", signature, time_ms, NOW)
        assert seen.bytes <= 4000
    assert len(seen) < 20
    assert not any(seen.add("busy", signature, time_ms, NOW) for signature, time_ms in accepted)
    assert not seen.add("busy", "new, but as old as what was forgotten", NOW, NOW)
    assert seen.add("busy", "new", NOW + SLOT_MS * 31, NOW)


def test_memory_may_be_used_up_to_its_limit() -> None:
    accepted = [(f"s{n}", NOW + SLOT_MS * n) for n in range(3)]
    room = 3 * (rules._SLOT_BYTES + rules._ENTRY_BYTES)
    for bytes_max, kept in ((room, 3), (room - 1, 2)):
        seen = SeenSignatures(bytes_max=bytes_max)
        assert all(seen.add("a", signature, time_ms, NOW) for signature, time_ms in accepted)
        assert len(seen) == kept


def test_full_memory_frees_a_sixteenth_and_no_more() -> None:
    """Signatures of accounts of equal size: 16 fit, the 17th leaves 15."""
    one = rules._SLOT_BYTES + rules._ENTRY_BYTES
    seen = SeenSignatures(bytes_max=16 * one)
    for number in range(16):
        assert seen.add(f"account{number}", "s", NOW, NOW)
    assert (len(seen), seen.bytes) == (16, 16 * one)
    assert seen.add("account16", "s", NOW, NOW)
    assert (len(seen), seen.bytes) == (15, 15 * one)


def test_full_memory_forgets_expired_signatures_before_others() -> None:
    one = rules._SLOT_BYTES + rules._ENTRY_BYTES
    seen = SeenSignatures(bytes_max=4 * one)
    later = NOW + WINDOW_MS + 1
    assert seen.add("small", "expired", NOW, NOW)
    recent = [(f"s{number}", later + SLOT_MS * number) for number in range(4)]
    assert all(seen.add("large", signature, time_ms, later) for signature, time_ms in recent[:3])
    assert (len(seen), seen.bytes) == (4, 4 * one)
    seen._bytes_max = 5 * one - 1
    assert seen.add("large", *recent[3], later)
    assert seen.bytes == len(seen) * one, "what is counted is what is there"
    assert not any(seen.add("large", signature, time_ms, later) for signature, time_ms in recent), "none is forgotten"
    assert seen.add("large", "new", recent[0][1], later), "so their times are still accepted"


@pytest.mark.spec("SEC-10")
def test_a_busy_account_takes_no_memory_from_others() -> None:
    seen = SeenSignatures(bytes_max=10_000)
    assert all(seen.add("quiet", f"q{n}", NOW, NOW) for n in range(100))
    for n in range(1000):
        seen.add("busy", f"b{n}", NOW + WINDOW_MS + n * SLOT_MS, NOW)
        assert seen.bytes <= 10_000
    assert not any(seen.add("quiet", f"q{n}", NOW, NOW) for n in range(100)), "still remembered"
    assert seen.add("quiet", "new", NOW, NOW)


@pytest.mark.parametrize(("accounts", "step_ms"), [(1, 1), (1, 0), (40, 500), (400, 20_000)])
def test_memory_for_signatures_is_bounded_in_bytes(accounts: int, step_ms: int) -> None:
    most = 200_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        seen, keys = SeenSignatures(bytes_max=most), [f"account{n}" for n in range(accounts)]
        for n in range(30_000):
            seen.add(keys[n % accounts], f"{n}", NOW + n // accounts * step_ms % WINDOW_MS, NOW)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert (len(seen) > 0 or not step_ms) and used < 1.3 * most + 700 * accounts


def test_nothing_is_forgotten_by_a_cache_without_signatures() -> None:
    seen = ReplayCache()
    assert not seen.forget_oldest() and (len(seen), seen.bytes, seen.longest) == (0, 0, 0)
    assert seen.add("a", NOW, NOW) and seen.forget_oldest() and not seen.forget_oldest()
    assert (len(seen), seen.bytes) == (0, 0) and not seen.add("b", NOW, NOW) and seen.add("b", NOW + 1, NOW)


@pytest.mark.spec("SEC-14")
def test_a_quota_saves_ten_seconds() -> None:
    quota = Quota(100)
    assert quota.take("a", 1000, NOW) and not quota.take("a", 1, NOW) and quota.take("b", 1, NOW)
    assert not quota.take("a", 101, NOW + 1000) and quota.take("a", 100, NOW + 1000)
    assert not quota.take("a", 1001, NOW + 10**9) and quota.take("a", 1000, NOW + 10**9)
    assert not quota.take("a", 1, NOW), "a clock that is set back adds nothing"
    every_ms = Quota(1000)
    assert every_ms.take("a", 10_000, NOW) and not every_ms.take("a", 1, NOW) and every_ms.take("a", 1, NOW + 1)
    assert not Quota(0).take("a", 1, NOW) and Quota(0).take("a", 0, NOW)
