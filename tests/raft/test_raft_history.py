"""History checker: reports each violation with the right type, and none for valid histories."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.history import checker
from harness.history.check import check
from harness.history.operations import History, HistoryError, read_history, result_of
from recorded import with_harness

Q, R = "T/a/0", "T/a/1"
Bad = Callable[["SequentialHistory"], None]


class SequentialHistory(History):
    """A history of sequential operations of 10 ms each, unless `at` gives the times."""

    now = 0.0

    def _times(self, at: tuple[float, float] | None) -> tuple[float, float]:
        if at is not None:
            return at
        self.now += 10
        return self.now - 10, self.now - 1

    def send(self, *values: str, offset: int | None = None, by: str = "p", queue: str | None = Q, **more: Any) -> None:
        times, result, attempt = self._times(more.pop("at", None)), more.pop("result", "ok"), more.pop("attempt", 1)
        offsets = more.pop("offsets", None) or [None if offset is None else offset + at for at in range(len(values))]
        messages = [[value, at] for value, at in zip(values, offsets, strict=True)]
        self.add("send", by, *times, result=result, attempt=attempt, messages=messages, queue=queue, **more)

    def read(self, *found: tuple[int, str] | tuple[int, str, int], by: str = "c", queue: str = Q, **more: Any) -> None:
        times, mode = self._times(more.pop("at", None)), more.pop("mode", "assigned")
        messages = [[one[0], one[1], one[2] if len(one) == 3 else 1] for one in found]
        group = more.pop("group", "g")
        self.add("poll", by, *times, group=group, queue=queue, mode=mode, messages=messages, **more)

    def end(self, *found: tuple[int, str] | tuple[int, str, int], queue: str = Q) -> None:
        self.read(*found, by="final", queue=queue, mode="final", group="final")

    def other(self, op: str, process: str = "x", at: tuple[float, float] | None = None, **more: Any) -> None:
        self.add(op, process, *self._times(at), **more)

    def three(self, **more: Any) -> None:
        """Send a, b, c, stored at offsets 0, 1, 2."""
        for offset, value in enumerate("abc"):
            self.send(value, offset=offset, **more)

    def all_three(self) -> None:
        self.end((0, "a"), (1, "b"), (2, "c"))


BAD: list[tuple[str, str, Bad]] = []


def bad(*kinds: str) -> Callable[[Bad], Bad]:
    def keep(make: Bad) -> Bad:
        BAD.append((make.__name__, " ".join(kinds), make))
        return make

    return keep


@bad("lost-write")
def acknowledged_between_two_that_are_read(h: SequentialHistory) -> None:
    h.three()
    h.end((0, "a"), (2, "c"))


@bad("lost-write")
def acknowledged_first_and_never_read(h: SequentialHistory) -> None:
    h.three()
    h.end((1, "b"), (2, "c"))


@bad("lost-write")
def lost_though_a_retry_of_it_is_there(h: SequentialHistory) -> None:
    h.three()
    h.send("b", offset=3, attempt=2)
    h.end((0, "a"), (2, "c"), (3, "b", 2))


@bad("lost-write", "inconsistent-offsets")
def overwritten_by_another_master(h: SequentialHistory) -> None:
    h.three()
    h.send("d", offset=2, by="p2")
    h.end((0, "a"), (1, "b"), (2, "d"))


@bad("unseen")
def the_last_one_is_cut_off(h: SequentialHistory) -> None:
    h.three()
    h.end((0, "a"), (1, "b"))


@bad("unseen")
def a_whole_queue_is_gone(h: SequentialHistory) -> None:
    h.three()
    h.send("r", offset=0, queue=R)
    h.all_three()


@bad("unseen")
def read_once_and_gone_in_the_end(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (1, "b"), (2, "c"))
    h.end((0, "a"), (1, "b"))


@bad("unseen")
def committed_transaction_is_nowhere(h: SequentialHistory) -> None:
    h.three()
    h.send("t", half=True, queue=None)
    h.other("end", value="t", attempt=1, outcome="commit", result="ok")
    h.all_three()


@bad("not-closed")
def no_final_polls(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (1, "b"), (2, "c"))


@bad("duplicate")
def one_attempt_is_stored_twice(h: SequentialHistory) -> None:
    h.three()
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "b"))


@bad("duplicate")
def one_attempt_is_in_two_queues(h: SequentialHistory) -> None:
    h.three()
    h.all_three()
    h.end((0, "b"), queue=R)


@bad("duplicate")
def an_unknown_one_is_stored_twice(h: SequentialHistory) -> None:
    h.three()
    h.send("d", result="unknown")
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "d"))


@bad("duplicate")
def acknowledged_at_another_offset_than_read(h: SequentialHistory) -> None:
    h.three()
    h.send("d", offset=4)
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "d"))


@bad("duplicate")
def a_delayed_message_comes_twice_though_no_master_changed(h: SequentialHistory) -> None:
    h.three()
    h.send("d", queue=None, deliver_at=0)
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "d"))


@bad("inconsistent-offsets")
def two_readers_see_different_values(h: SequentialHistory) -> None:
    h.three()
    h.send("d", result="unknown")
    h.read((3, "d"))
    h.send("e", result="unknown")
    h.read((3, "e"), by="c2")
    h.all_three()


@bad("inconsistent-offsets", "lost-write")
def one_offset_is_given_out_twice(h: SequentialHistory) -> None:
    h.send("a", offset=0)
    h.send("b", offset=0, by="p2")
    h.end((0, "a"))


@bad("inconsistent-offsets")
def a_tail_is_used_again(h: SequentialHistory) -> None:
    h.three()
    h.send("lost", result="unknown")
    h.read((3, "lost"))
    h.send("new", offset=3)
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "new"))


@bad("G1a")
def a_refused_send_is_delivered(h: SequentialHistory) -> None:
    h.three()
    h.send("d", result="fail")
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "d"))


@bad("G1a")
def a_rolled_back_transaction_is_delivered(h: SequentialHistory) -> None:
    h.three()
    h.send("t", half=True, queue=None)
    h.other("end", value="t", attempt=1, outcome="rollback", result="ok")
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "t"))


@bad("precommitted-read")
def half_message_is_seen_before_its_commit(h: SequentialHistory) -> None:
    h.three()
    h.send("t", half=True, queue=None)
    h.read((3, "t"))
    h.other("end", value="t", attempt=1, outcome="commit", result="ok")
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "t"))


@bad("precommitted-read")
def half_message_without_an_outcome_is_seen(h: SequentialHistory) -> None:
    h.three()
    h.send("t", half=True, queue=None)
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "t"))


@bad("poll-skip")
def the_next_answer_jumps(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"))
    h.read((2, "c"))
    h.all_three()


@bad("poll-skip")
def a_subscriber_jumps_without_a_rebalance(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), mode="subscribed")
    h.read((2, "c"), mode="subscribed")
    h.all_three()


@bad("nonmonotonic-poll")
def an_assigned_reader_is_sent_back(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (1, "b"))
    h.read((1, "b"), (2, "c"))
    h.all_three()


@bad("nonmonotonic-poll")
def a_subscriber_is_sent_back_without_a_reason(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (1, "b"), mode="subscribed")
    h.read((0, "a"), mode="subscribed")
    h.all_three()


@bad("nonmonotonic-poll")
def more_than_a_second_comes_again_after_a_switch(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (1, "b"), mode="subscribed")
    h.other("switch", at=(2000, 2100))
    h.read((0, "a"), mode="subscribed", at=(2200, 2201))
    h.all_three()


@bad("nonmonotonic-poll")
def a_subscriber_is_sent_back_before_the_switch(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (1, "b"), mode="subscribed")
    h.read((0, "a"), mode="subscribed")
    h.other("switch")
    h.all_three()


@bad("int-poll-skip")
def an_answer_has_a_hole(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (2, "c"))
    h.all_three()


@bad("int-nonmonotonic-poll")
def an_answer_is_in_disorder(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (2, "c"), (1, "b"))
    h.all_three()


@bad("int-nonmonotonic-poll")
def an_answer_holds_one_twice(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (0, "a"), (1, "b"))
    h.all_three()


@bad("nonmonotonic-send")
def a_later_send_lies_before_an_earlier_one(h: SequentialHistory) -> None:
    h.send("a", offset=1)
    h.send("b", offset=0)
    h.end((0, "b"), (1, "a"))


@bad("nonmonotonic-send")
def a_send_falls_behind_the_second_before_it(h: SequentialHistory) -> None:
    h.send("a", offset=2, at=(0, 5))
    h.send("b", offset=0, at=(1, 20))
    h.send("c", offset=1, at=(6, 9))
    h.end((0, "b"), (1, "c"), (2, "a"))


@bad("int-nonmonotonic-send")
def a_batch_is_turned_round(h: SequentialHistory) -> None:
    h.send("a", "b", offset=None, result="unknown")
    h.end((0, "b"), (1, "a"))


@bad("int-nonmonotonic-send")
def an_acknowledged_batch_is_in_disorder(h: SequentialHistory) -> None:
    h.send("a", "b", "c", offsets=[0, 2, 1])
    h.end((0, "a"), (1, "c"), (2, "b"))


@bad("int-send-skip")
def another_message_is_inside_a_batch(h: SequentialHistory) -> None:
    h.send("a", "b", offsets=[0, 2])
    h.send("x", offset=1, by="p2")
    h.end((0, "a"), (1, "x"), (2, "b"))


@bad("int-send-skip")
def a_batch_lies_in_two_queues(h: SequentialHistory) -> None:
    h.send("a", "b", result="unknown")
    h.end((0, "a"))
    h.end((0, "b"), queue=R)


@bad("invented")
def no_client_sent_what_is_read(h: SequentialHistory) -> None:
    h.three()
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "ghost"))


@bad("invented")
def an_attempt_that_was_never_made_is_read(h: SequentialHistory) -> None:
    h.three()
    h.end((0, "a"), (1, "b"), (2, "c"), (3, "a", 2))


@bad("key-order")
def one_key_of_two_producers_is_in_disorder(h: SequentialHistory) -> None:
    h.send("a", offset=1, key="k")
    h.send("b", offset=0, key="k", by="p2")
    h.end((0, "b"), (1, "a"))


@bad("key-order")
def an_ordered_group_gets_a_key_in_disorder(h: SequentialHistory) -> None:
    h.three(key="k")
    h.read((0, "a"), mode="subscribed", ordered=True)
    h.read((2, "c"), mode="subscribed", ordered=True, by="c2")
    h.read((1, "b"), mode="subscribed", ordered=True, by="c3")
    h.all_three()


@bad("key-order")
def a_redelivery_is_followed_by_a_jump(h: SequentialHistory) -> None:
    h.three(key="k")
    h.read((0, "a"), (1, "b"), mode="subscribed", ordered=True)
    h.read((0, "a"), mode="subscribed", ordered=True, by="c2")
    h.read((2, "c"), mode="subscribed", ordered=True, by="c3")
    h.all_three()


@bad("early-delivery")
def a_delayed_message_comes_too_soon(h: SequentialHistory) -> None:
    h.send("d", queue=None, deliver_at=5000)
    h.read((0, "d"), at=(4000, 4001))
    h.end((0, "d"))


@bad("offset-fell")
def a_committed_offset_falls(h: SequentialHistory) -> None:
    h.other("offset", group="g", queue=Q, offset=5)
    h.other("offset", group="g", queue=Q, offset=3)


@bad("offset-fell")
def a_committed_offset_falls_again_after_a_reset(h: SequentialHistory) -> None:
    for offset in (5, None, 2, 4, 3):
        if offset is None:
            h.other("reset", group="g", queue=Q)
        else:
            h.other("offset", group="g", queue=Q, offset=offset)


@bad("position-fell")
def a_new_leader_shows_an_earlier_end(h: SequentialHistory) -> None:
    for kind, offset in (("max", 7), ("min", 0), ("next", 9), ("min", 3), ("next", 10), ("max", 5)):
        h.other("position", queue=Q, kind=kind, offset=offset)


@bad("missing-dead-letter")
def past_its_retries_and_nowhere(h: SequentialHistory) -> None:
    h.three()
    h.other("dead", group="g", value="b", attempt=1)
    h.all_three()
    h.end((0, "c"), queue="%DLQ%g/0")


LOSSES = {"lost-write", "unseen", "duplicate", "inconsistent-offsets"}
UNCOMMITTED = {"G1a", "precommitted-read"}
POLLS = {"poll-skip", "nonmonotonic-poll", "int-poll-skip", "int-nonmonotonic-poll"}
SENDS = {"nonmonotonic-send", "int-nonmonotonic-send", "int-send-skip"}
OTHERS = {
    "key-order",
    "early-delivery",
    "offset-fell",
    "position-fell",
    "missing-dead-letter",
    "not-closed",
    "invented",
}


def each_of(family: set[str]) -> pytest.MarkDecorator:
    """The bad histories with violations of this family, as parameters."""
    found = [(name, kinds, make) for name, kinds, make in BAD if set(kinds.split()) <= family]
    assert family == {kind for _, kinds, _ in found for kind in kinds.split()}
    return pytest.mark.parametrize(("kinds", "make"), [one[1:] for one in found], ids=[one[0] for one in found])


def check_kinds(kinds: str, make: Bad) -> None:
    """Assert that the checker reports exactly these types."""
    history = SequentialHistory()
    make(history)
    report = check(history)
    assert sorted(report.found) == sorted(kinds.split())
    assert sorted({problem.kind for problem in report.problems}) == sorted(kinds.split())


@pytest.mark.spec("CHK-01", "CHK-02", "CHK-03", "CHK-04", "CHK-15")
@each_of(LOSSES)
def test_lost_duplicated_and_diverged_messages_are_found(kinds: str, make: Bad) -> None:
    check_kinds(kinds, make)


@pytest.mark.spec("CHK-05", "CHK-06", "CHK-15")
@each_of(UNCOMMITTED)
def test_reads_of_aborted_or_uncommitted_messages_are_found(kinds: str, make: Bad) -> None:
    check_kinds(kinds, make)


@pytest.mark.spec("CHK-07", "CHK-08", "CHK-09", "CHK-10", "CHK-15")
@each_of(POLLS)
def test_gaps_and_reordering_of_polls_are_found(kinds: str, make: Bad) -> None:
    check_kinds(kinds, make)


@pytest.mark.spec("CHK-11", "CHK-12", "CHK-13", "CHK-15")
@each_of(SENDS)
def test_reordering_of_sends_and_batches_is_found(kinds: str, make: Bad) -> None:
    check_kinds(kinds, make)


@pytest.mark.spec("CHK-14", "CHK-15")
@each_of(OTHERS)
def test_other_violations_are_found(kinds: str, make: Bad) -> None:
    check_kinds(kinds, make)


@pytest.mark.spec("CHK-15")
def test_every_violation_type_has_a_bad_history() -> None:
    assert len(BAD) >= 30
    assert len(LOSSES | UNCOMMITTED | POLLS | SENDS | OTHERS) == 20
    families = (LOSSES, UNCOMMITTED, POLLS, SENDS, OTHERS)
    assert [name for name, kinds, _ in BAD if not any(set(kinds.split()) <= family for family in families)] == []


def rebalance(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (1, "b"), mode="subscribed")
    h.other("assign", "c")
    h.read((0, "a"), mode="subscribed")
    h.other("assign", "c")
    h.read((2, "c"), mode="subscribed")


def switch(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (1, "b"), mode="subscribed")
    h.other("switch", at=(900, 950))
    h.read((0, "a"), mode="subscribed", at=(960, 961))


def unknown_stored_or_not(h: SequentialHistory) -> None:
    h.three()
    h.send("d", result="unknown")
    h.send("e", result="unknown")
    h.end((3, "e"))


def numbered_retries(h: SequentialHistory) -> None:
    h.three()
    h.send("d", result="unknown")
    h.send("d", attempt=2, offset=4)
    h.end((3, "d"), (4, "d", 2))


def a_delayed_message_twice_over_a_switch(h: SequentialHistory) -> None:
    h.three()
    h.send("d", queue=None, deliver_at=0)
    h.other("switch")
    h.end((3, "d"), (4, "d"))


def a_batch_of_which_a_part_was_read(h: SequentialHistory) -> None:
    h.three()
    h.send("d", "e", "f", result="unknown")
    h.end((3, "d"))
    h.end((5, "f"))


def holes_where_nothing_is_known(h: SequentialHistory) -> None:
    h.three()
    h.read((0, "a"), (1, "b"), (2, "c"))
    h.send("d", offset=9)
    h.read((9, "d"))
    h.end((9, "d"))


def transactions(h: SequentialHistory) -> None:
    h.three()
    for value, outcome in (("t", "commit"), ("u", "rollback")):
        h.send(value, half=True, queue=None)
        h.other("end", value=value, attempt=1, outcome=outcome, result="unknown")
    h.end((3, "t"))


def copies_for_retries(h: SequentialHistory) -> None:
    h.three(key="k")
    h.read((0, "a"), (1, "b"), (2, "c"), mode="subscribed", ordered=True)
    h.read((0, "b"), queue="%RETRY%g/0", mode="subscribed")
    h.other("dead", group="g", value="b", attempt=1)
    h.end((0, "b"), queue="%DLQ%g/0")


def ordered_with_repetitions(h: SequentialHistory) -> None:
    for offset, value in enumerate("abc"):
        h.send(value, offset=offset, key="k" if value != "b" else "l")
    h.read((0, "a"), mode="subscribed", ordered=True)
    h.other("assign", "c")
    h.read((0, "a"), (1, "b"), (2, "c"), mode="subscribed", ordered=True)


def calls_at_the_same_time(h: SequentialHistory) -> None:
    h.three()
    h.send("d", offset=4, at=(100, 120), key="k")
    h.send("e", offset=3, at=(110, 130), key="k")
    h.other("offset", group="g", queue=Q, offset=5, at=(200, 220))
    h.other("offset", group="g", queue=Q, offset=4, at=(210, 230))
    h.end((3, "e"), (4, "d"))


def delayed(h: SequentialHistory) -> None:
    h.three()
    h.send("d", queue=None, deliver_at=5000)
    h.read((3, "d"), at=(4990, 5001))
    h.other("offset", group="g", queue=Q, offset=3)
    h.other("reset", group="g", queue=Q)
    h.other("offset", group="g", queue=Q, offset=0)
    h.now = 6000
    h.end((3, "d"))


GOOD = (
    rebalance, switch, unknown_stored_or_not, numbered_retries, a_batch_of_which_a_part_was_read,
    a_delayed_message_twice_over_a_switch,
    holes_where_nothing_is_known, transactions,
    copies_for_retries, ordered_with_repetitions, calls_at_the_same_time, delayed,
)  # fmt: skip


@pytest.mark.spec("CHK-03", "CHK-07", "CHK-08", "CHK-14", "CHK-15")
@pytest.mark.parametrize("make", GOOD, ids=lambda make: make.__name__)
def test_valid_histories_have_no_problems(make: Bad) -> None:
    history = SequentialHistory()
    make(history)
    history.all_three()
    report = check(history)
    assert [str(problem) for problem in report.problems] == []


@pytest.mark.spec("CHK-03", "CHA-05")
def test_stored_retries_and_unknown_sends_are_counted_separately() -> None:
    history = SequentialHistory()
    numbered_retries(history)
    history.all_three()
    counts = check(history).counts
    assert counts["stored again by a retry"] == 1
    assert counts["unknown but stored"] == 1
    assert counts["messages acknowledged"] == 4


# ---- random valid runs


class Run:
    """A correct broker and clients with faults: lost responses, retries, rebalances, fail-overs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.history = History()
        self.logs: dict[str, list[tuple[str, int]]] = {f"T/a/{number}": [] for number in range(3)}
        self.now = 0.0
        self.read_to: dict[tuple[str, str], int] = {}
        self.values = 0

    def step(self) -> float:
        self.now += self.rng.random() * 20
        return self.now

    def send(self) -> None:
        rng, begin = self.rng, self.step()
        count = rng.choice((1, 1, 1, 4))
        self.values += count
        values = [f"v{self.values - at}" for at in range(count)]
        queue = rng.choice(list(self.logs))
        for attempt in range(1, 4):
            result = rng.choices(("ok", "fail", "unknown"), (8, 1, 2))[0]
            stored = result == "ok" or (result == "unknown" and rng.random() < 0.5)
            first = len(self.logs[queue])
            if stored:
                self.logs[queue] += [(value, attempt) for value in values]
            history = [[value, first + at if result == "ok" else None] for at, value in enumerate(values)]
            key = f"k{values[0]}" if rng.random() < 0.1 else queue
            more = {"result": result, "attempt": attempt, "queue": queue, "messages": history, "key": key}
            self.history.add("send", f"p{rng.randrange(3)}", begin, self.step(), **more)
            begin = self.step()
            if result == "ok":
                break

    def transaction(self) -> None:
        rng = self.rng
        self.values += 1
        value, begin = f"t{self.values}", self.step()
        self.history.add("send", "p9", begin, self.step(), result="ok", attempt=1, messages=[[value, None]], half=True)
        outcome, begin = rng.choice(("commit", "rollback")), self.step()
        if outcome == "commit":
            self.logs[rng.choice(list(self.logs))].append((value, 1))
        result = rng.choice(("ok", "unknown"))
        ended = {"value": value, "attempt": 1, "outcome": outcome, "result": result}
        self.history.add("end", "p9", begin, self.step(), **ended)

    def poll(self, process: str, mode: str) -> None:
        rng, queue, begin = self.rng, self.rng.choice(list(self.logs)), self.step()
        key = process if mode == "assigned" else "group", queue
        if mode == "subscribed" and rng.random() < 0.05:  # the consumer dies; uncommitted messages are redelivered
            for one in self.logs:
                back = self.read_to.get(("group", one), 0)
                self.read_to["group", one] = max(0, back - rng.randrange(5))
            for name in ("s0", "s1"):
                self.history.add("assign", name, begin, begin)
        at = self.read_to.get(key, 0)
        found = [[at + n, *one] for n, one in enumerate(self.logs[queue][at : at + rng.randrange(1, 9)])]
        self.read_to[key] = at + len(found)
        more = {"queue": queue, "mode": mode, "messages": found, "ordered": mode == "subscribed"}
        self.history.add("poll", process, begin, self.step(), group=f"g-{mode}", **more)

    def whole(self, steps: int) -> History:
        for _ in range(steps):
            what = self.rng.random()
            if what < 0.5:
                self.send()
            elif what < 0.6:
                self.transaction()
            elif what < 0.8:
                self.poll("c0", "assigned")
            else:
                self.poll("s0", "subscribed")
        for queue, log in self.logs.items():
            for at in range(0, len(log), 32):
                found = [[at + n, *one] for n, one in enumerate(log[at : at + 32])]
                more = {"queue": queue, "mode": "final", "messages": found, "group": "final"}
                self.history.add("poll", "final", self.step(), self.step(), **more)
        return self.history


@pytest.mark.spec("CHK-15")
def test_random_valid_runs_give_no_false_positive() -> None:
    history = 0
    for seed in range(200):
        report = check(Run(seed).whole(120))
        assert report.problems == [], f"seed {seed}"
        history += report.counts["unknown but stored"]
    assert history > 100


@pytest.mark.spec("CHK-15")
def test_single_corruption_of_a_valid_run_is_found() -> None:
    for seed in range(60):
        run = Run(seed)
        history, rng = run.whole(80), random.Random(-seed)
        polls = [op for op in history if op["op"] == "poll" and op["mode"] == "final" and len(op["messages"]) > 1]
        at, inside = rng.choice(polls)["messages"], rng.random() < 0.5
        if inside:
            where = rng.randrange(len(at))
            at[where] = [at[where][0], "ghost", 1]
        else:
            at.append([at[-1][0] + 1, *at[0][1:]])
        found = check(history).found
        assert found["duplicate"] if not inside else found["invented"], f"seed {seed}: {found}"


# ---- files


@pytest.mark.spec("CHK-16")
def test_checker_command_reports_on_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, wrong = Run(1).whole(50), SequentialHistory()
    acknowledged_between_two_that_are_read(wrong)
    good.write(tmp_path / "good")
    wrong.write(tmp_path / "wrong")
    assert list(read_history(tmp_path / "good")) == good.operations
    assert checker.main([str(tmp_path / "good")]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True
    assert checker.main([str(tmp_path / "wrong")]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["found"] == {"lost-write": 1}
    assert "'b' (attempt 1), acknowledged at T/a/0 offset 1" in said["problems"][0]
    command = [sys.executable, "-m", "harness.history.checker", str(tmp_path / "wrong")]
    done = subprocess.run(command, env=with_harness(), capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (1, said)


@pytest.mark.spec("CHK-16")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "file:2"),
        ("[1]", "not an object"),
        ('{"op": "send", "process": "p"}', "messages"),
        ('{"op": "dance"}', "dance"),
        ('{"op": "poll", "mode": "final", "group": "g", "begin": 0, "end": 1, "messages": 5}', "TypeError"),
        (
            '{"op":"send","process":"p","begin":0,"end":1,"result":"ok","attempt":1,"messages":[["v",-2]],"queue":"q"}',
            "negative",
        ),
        ('{"op":"send","process":"p","begin":0,"end":1,"result":"so","attempt":1,"messages":[]}', "ok, fail, unknown"),
    ],
)
def test_checker_command_refuses_invalid_file(
    line: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("\n" + line + "\n")
    assert checker.main([str(tmp_path / "file")]) == 2
    assert why in capsys.readouterr().err
    assert checker.main([str(tmp_path / "nowhere")]) == 2


@pytest.mark.spec("CHK-15", "CHA-05")
def test_attempt_recorded_twice_is_refused() -> None:
    history = SequentialHistory()
    history.send("a", offset=0)
    history.send("a", offset=1)
    with pytest.raises(HistoryError, match="recorded twice"):
        check(history)


@pytest.mark.spec("CHA-06")
def test_send_result_of_response_code() -> None:
    assert result_of(0) == "ok"
    assert {result_of(code) for code in (2, 3, 13, 14, 16, 17)} == {"fail"}
    assert {result_of(code) for code in (1, 10, 11, 12, 4, 205, None)} == {"unknown"}
    assert result_of(None, refused=True) == "fail"


OPERATIONS = int(os.environ.get("HISTORY_OPERATIONS", "60000"))  # a million needs a tenth of G07's limits
WRITER = """
import json, sys
operations, path = int(sys.argv[1]), sys.argv[2]
sends = operations * 29 // 32
with open(path, "w") as file:
    for n in range(sends):
        op = {"op": "send", "process": f"p{n % 4}", "begin": n, "end": n + 0.5, "result": "ok", "attempt": 1,
              "messages": [[f"value-{n}", n // 8]], "queue": f"T/a/{n % 8}", "key": f"k{n % 64}"}
        file.write(json.dumps(op) + "\\n")
    for mode in ("assigned", "subscribed", "final"):
        for queue in range(8):
            count = len(range(queue, sends, 8))
            for at in range(0, count, 32):
                found = [[o, f"value-{o * 8 + queue}", 1] for o in range(at, min(at + 32, count))]
                op = {"op": "poll", "process": mode, "group": mode, "begin": sends, "end": sends + at, "mode": mode,
                      "messages": found, "queue": f"T/a/{queue}", "ordered": mode == "subscribed"}
                file.write(json.dumps(op) + "\\n")
"""


@pytest.mark.spec("CHK-16")
def test_checker_cpu_and_memory_limits(tmp_path: Path) -> None:
    """Scaled down by default; HISTORY_OPERATIONS=1000000 runs all of them."""
    file = tmp_path / "file"
    subprocess.run([sys.executable, "-c", WRITER, str(OPERATIONS), str(file)], env=with_harness(), check=True)
    code = (
        "import resource, sys\n"
        "from harness.history.checker import main\n"
        "code = main([sys.argv[1]])\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "status = open('/proc/self/status').read()\n"  # ru_maxrss includes the parent's memory before exec
        "print(code, used.ru_utime + used.ru_stime, status.split('VmHWM:')[1].split()[0])\n"
    )
    command = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, env=with_harness(), check=True, capture_output=True, text=True)
    said, _, numbers = done.stdout.strip().rpartition("\n")
    result, cpu_seconds, peak_kib = numbers.split()
    assert result == "0"
    counts = json.loads(said)["counts"]
    assert OPERATIONS * 0.9 < counts["operations"] < OPERATIONS * 1.1
    assert float(cpu_seconds) < 1 + 60 * OPERATIONS / 1e6, f"{cpu_seconds} s"
    assert int(peak_kib) < 40_000 + 1_000_000 * OPERATIONS / 1e6, f"{peak_kib} KiB"
