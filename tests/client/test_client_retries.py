"""When a failed call is tried again: pauses, parts of the time, and the answers after which it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from saturnmq.client.connection import deadline
from saturnmq.client.connection.deadline import Deadline
from saturnmq.client.producer import retries as module
from saturnmq.client.producer.retries import Retries, backoff_ms
from saturnmq.errors import BrokerNotExist, CallTimeout, ConnectFailed, NoNameServer, RouteNotFound
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import SaturnError, response_error


class Time:
    """Seconds; a pause of Retries advances it."""

    def __init__(self) -> None:
        self.now = 1024.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: time.now))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=time.sleep))
    monkeypatch.setattr(module.random, "random", lambda: 1.0)
    return time


def refused(code: int) -> SaturnError:
    return response_error(code, "no", broker="a")


@pytest.mark.spec("API-28")
@pytest.mark.parametrize(
    ("attempt", "chance", "expected"),
    [
        (1, 0.0, 10), (1, 1.0, 10), (2, 0.0, 20), (2, 0.5, 30), (2, 1.0, 40), (3, 1.0, 160), (4, 1.0, 640), (5, 1.0, 1000),
        (5, 0.0, 500), (50, 1.0, 1000), (5000, 1.0, 1000),
    ],
)  # fmt: skip
def test_pause_grows_fourfold_from_10_ms_to_a_second(attempt: int, chance: float, expected: float) -> None:
    assert backoff_ms(attempt, chance) == pytest.approx(expected)


@pytest.mark.spec("API-28")
def test_deadline_is_shared_out_equally(clock: Time) -> None:
    left = Deadline(1000)
    assert (left.remaining_ms, left.elapsed_ms, left.share_ms(4), left.share_ms(0), left.share_ms(1000)) == (
        1000,
        0,
        250,
        1000,
        10,
    )
    clock.now += 0.25
    assert (left.remaining_ms, left.elapsed_ms, left.share_ms(2), left.share_ms(1000, 100)) == (750, 250, 375, 100)
    clock.now += 0.75
    assert (left.remaining_ms, left.share_ms(1), left.share_ms(4, 100)) == (0, 0, 0)
    clock.now += 1
    assert (left.remaining_ms, left.elapsed_ms, left.share_ms(1)) == (-1000, 2000, 0)
    late = Deadline(500)
    assert late.differs(left, 1.4) and left.differs(late, 1.4) and not late.differs(left, 1.5)


@pytest.mark.spec("API-28")
def test_only_timeouts_use_up_the_shares(clock: Time) -> None:
    retries = Retries(3, Deadline(900))
    assert retries.share_ms == 300
    retries.failed(ConnectFailed("refused"))
    assert retries.share_ms == 300
    shares = []
    for _ in range(4):
        retries.failed(CallTimeout("late"))
        shares.append(retries.share_ms)
    assert shares == [450, 900, 900, 900]
    assert Retries(3, Deadline(900), fixed=True).share_ms == 900, "there is no other broker"


def test_text_of_the_failures_has_broker_address_and_time(clock: Time) -> None:
    retries = Retries(3, Deadline(900))
    retries.address = "h:1"
    clock.now += 0.25
    retries.failed(CallTimeout("late"), "a")
    retries.failed(NoNameServer("none"))
    first, second = retries.failures
    assert (first.broker, first.address, first.after_ms) == ("a", "h:1", 250)
    assert (second.broker, second.address) == ("", ""), "the address is that of one request"
    assert "a@h:1: timed out" in retries.text and "none" in retries.text


async def attempts_with(retries: Retries, *failures: SaturnError, **options: Any) -> int:
    """How many attempts follow until one is the last; the last of failures repeats."""
    for number in range(100):
        retries.failed(failures[min(number, len(failures) - 1)], **options)
        if not await retries.again():
            return number + 1
    return 100


@pytest.mark.parametrize("error", [
    ConnectFailed("refused"), BrokerNotExist("none"), NoNameServer("none"), refused(ResponseCode.SERVICE_NOT_AVAILABLE),
    refused(ResponseCode.SYSTEM_BUSY), refused(ResponseCode.FLOW_CONTROL), RouteNotFound("none", broker="a"), CallTimeout("late"),
])  # fmt: skip
async def test_what_passes_is_retried_until_the_deadline(clock: Time, error: SaturnError) -> None:
    count = await attempts_with(Retries(3, Deadline(10_000)), error)
    assert count > 10 and 10_000 - (clock.now - 1024) * 1000 < 20
    assert clock.pauses[:5] == pytest.approx([0.01, 0.04, 0.16, 0.64, 1.0])
    assert clock.pauses[-1] < 0.05, "pauses shrink near the end"
    assert await attempts_with(Retries(1, Deadline(10_000)), error) == 1, "one attempt is the only one"


async def test_other_answers_are_retried_as_often_as_attempts_say(clock: Time) -> None:
    error = refused(ResponseCode.SYSTEM_ERROR)
    assert await attempts_with(Retries(3, Deadline(10_000)), error) == 3
    busy = refused(ResponseCode.SYSTEM_BUSY)
    assert await attempts_with(Retries(3, Deadline(10_000)), error, busy, busy, error, busy, error) == 6
    retries = Retries(3, Deadline(10_000))
    retries.answered()
    assert await attempts_with(retries, error) == 2


@pytest.mark.parametrize("error", [RouteNotFound("none"), refused(ResponseCode.TOPIC_NOT_EXIST)])
async def test_missing_topic_is_asked_for_for_a_second(clock: Time, error: SaturnError) -> None:
    retries = Retries(3, Deadline(10_000))
    retries.failed(error)
    clock.now += 0.75
    retries.failed(error)
    assert await retries.again()
    clock.now += 0.25
    retries.failed(error)
    assert not await retries.again()
    again = Retries(3, Deadline(10_000))
    again.failed(error)
    again.failed(ConnectFailed("refused"))
    clock.now += 2
    again.failed(error)
    assert await again.again(), "another failure between begins a new second"


async def test_denied_send_ends_once_all_brokers_have_denied_it(clock: Time) -> None:
    error, both = refused(ResponseCode.NO_PERMISSION), frozenset(("a", "b"))
    retries = Retries(3, Deadline(10_000))
    for broker, is_tried in (("a", True), ("a", True), ("b", False)):
        retries.failed(error, broker, both)
        assert await retries.again() is is_tried


async def test_no_attempt_begins_within_20_ms_of_the_deadline(clock: Time) -> None:
    for remaining_ms, is_tried in ((20, True), (19, False)):
        retries = Retries(3, Deadline(remaining_ms + 0.5))
        retries.failed(ConnectFailed("refused"))
        assert await retries.again() is is_tried
    assert clock.pauses == pytest.approx([0.01])
