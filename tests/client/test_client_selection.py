"""The order in which queues are chosen: the counter, hashes at the bounds of their types, and which broker is the least bad one."""

from __future__ import annotations

from typing import Any

import pytest

from saturnmq.client.selection import FaultTable, RoundRobin, key_hash
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import LocalProtocolError

LEAST_INT = -(2**31)
A = [MessageQueue("T", "a", n) for n in range(2)]
B = [MessageQueue("T", "b", n) for n in range(2)]
QUEUES = [A[0], B[0], A[1], B[1]]


def names(queues: list[MessageQueue]) -> str:
    return " ".join(f"{queue.broker_name}{queue.queue_id}" for queue in queues)


@pytest.mark.spec("PR-14")
def test_counter_goes_on_from_its_start() -> None:
    assert [RoundRobin().tick(), RoundRobin(5).tick()] == [1, 6]
    counter = RoundRobin(6)
    assert names([counter.pick(QUEUES) for _ in range(5)]) == "b1 a0 b0 a1 b1"
    assert names([counter.pick(QUEUES, "a") for _ in range(3)]) == "b0 b1 b0", "past the queues of the failed broker"
    assert counter.tick() == 18
    assert names([counter.pick(A, "a") for _ in range(2)]) == "a1 a0", "one pass finds no other broker"


@pytest.mark.spec("PRC-03")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (2**31 - 1, 2**31 - 1),
        (LEAST_INT, LEAST_INT),
        (2**31, LEAST_INT),  # Long.hashCode from here on
        (LEAST_INT - 1, LEAST_INT),
        (2**63 - 1, LEAST_INT),
        (-(2**63), LEAST_INT),
        (-(2**63) + 1, LEAST_INT + 1),
        (2**62, 2**30),
        (-(2**33), -2),
    ],
)
def test_hash_of_a_number_is_that_of_an_integer_or_a_long(key: int, value: int) -> None:
    assert key_hash(key) == value


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1, True, 1.0, None, b"x"])
def test_other_keys_are_refused_with_their_type(key: Any) -> None:
    with pytest.raises(LocalProtocolError, match=f"must be text or a 64-bit integer, not {type(key).__name__}"):
        key_hash(key)


@pytest.mark.spec("PR-30")
def test_broker_is_avoided_from_its_last_attempt_on() -> None:
    table = FaultTable()
    table.record("a", 549, 0, failed=False)
    assert len(table) == 0, "a fast success needs no entry"
    table.record("a", 550, 1000, failed=False)
    assert not table.available("a", 30_999) and table.available("a", 31_000)
    table.record("a", 1000, 50_000, failed=False)
    assert not table.available("a", 109_999) and table.available("a", 110_000)
    table.record("a", 0, 200_000, failed=True)
    assert not table.available("a", 799_999) and table.available("a", 800_000)
    table.forget("a")
    table.forget("a")
    assert len(table) == 0 and table.available("a", 200_000)


@pytest.mark.spec("PR-30")
def test_least_bad_brokers_are_the_better_half_in_turn() -> None:
    table = FaultTable()
    assert table.least_bad(0) is None
    table.record("slow", 3000, 0, failed=False)
    assert [table.least_bad(0) for _ in range(2)] == ["slow", "slow"], "of one"
    table.record("failed", 9, 0, failed=True)  # avoided longer, with a lower latency
    table.record("later", 3000, 5, failed=False)
    assert {table.least_bad(10) for _ in range(4)} == {"failed"}, "one of three"
    assert {table.least_bad(180_000) for _ in range(4)} == {"slow"}, "it is available again"
    assert {table.least_bad(180_005) for _ in range(4)} == {"slow"}, "with equal latencies the one that waited longest"
    table.record("fast", 2000, 0, failed=False)
    assert [table.least_bad(10) for _ in range(4)] == ["fast", "failed"] * 2, "two of four"
    table.record("fifth", 15_000, 0, failed=False)
    assert {table.least_bad(10) for _ in range(6)} == {"fast", "failed"}, "two of five"
    started = FaultTable(start=1)
    for name in ("x", "y", "z", "v"):
        started.record(name, ord(name), 0, failed=True)
    assert [started.least_bad(0) for _ in range(3)] == ["v", "x", "v"]
    assert FaultTable(start=0).pick(A, RoundRobin(0), 0) == A[1]


@pytest.mark.spec("PR-30")
def test_broker_of_the_last_attempt_is_taken_if_no_other_is_available() -> None:
    table, counter = FaultTable(), RoundRobin(0)
    table.record("b", 1, 0, failed=True)
    assert names([table.pick(QUEUES, counter, 1, "a") for _ in range(2)]) == "a1 a1", "the first one after the counter"
    assert names([table.pick(QUEUES, counter, 1) for _ in range(3)]) == "a1 a0 a1"
    assert names([table.pick(QUEUES, counter, 600_000, "a") for _ in range(2)]) == "b1 b0"
    assert names([FaultTable().pick(QUEUES, RoundRobin(0), 0, "b")]) == "a1", "without entries as without the table"


@pytest.mark.spec("PR-30")
def test_queues_of_the_least_bad_broker_are_taken_in_turn() -> None:
    table, counter = FaultTable(start=-1), RoundRobin(0)
    for name, latency_ms in (("elsewhere", 1), ("b", 2), ("a", 3)):
        table.record(name, latency_ms, 0, failed=True)
    assert table.pick(QUEUES, counter, 1, "b").broker_name in ("a", "b") and len(table) == 2, "elsewhere has no queue"
    assert [table.pick(QUEUES, counter, 1, "b").broker_name for _ in range(2)] == ["b", "b"]
    assert {table.pick(QUEUES, counter, 1).queue_id for _ in range(2)} == {0, 1}
