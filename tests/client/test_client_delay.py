"""Delayed delivery as requested by a producer or a retry: delay levels, exact delays, delivery times."""
# ruff: noqa: SIM117 - separate nested blocks for cluster, client and the objects created from it

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from saturnmq import Client, ConnectFailed, MessageRefused, SendFailed, SendStatus, Unsupported
from saturnmq.client.delays import LEVEL_SECONDS, Delay, delay_of
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_properties
from saturnmq.testing import BrokerFixture, ClockFixture, EmbeddedBroker

Run = Callable[[Callable[[], Any]], Any]


NOW = 1_700_000_000_000
DAY_MS = 86_400_000
LIMIT_MS = 40 * DAY_MS


@pytest.mark.spec("API-13", "DLY-01")
@pytest.mark.parametrize(
    ("delay", "level"),
    [(timedelta(seconds=1), 1), (10, 3), (10.0, 3), (timedelta(minutes=30), 16), (timedelta(hours=2), 18)],
)
def test_delay_equal_to_a_level_uses_that_level(delay: Any, level: int) -> None:
    assert delay_of(delay, None, 0, NOW) == Delay("DELAY", level)
    assert delay_of(None, None, 7, NOW) == Delay("DELAY", 7)
    assert len(LEVEL_SECONDS) == 18


@pytest.mark.spec("API-13")
@pytest.mark.parametrize(
    ("delay", "at_ms", "name", "value", "wait_ms"),
    [
        (7, None, "TIMER_DELAY_MS", 7000, 7000),
        (timedelta(microseconds=1), None, "TIMER_DELAY_MS", 1, 1),
        (0.0015, None, "TIMER_DELAY_MS", 2, 2),
        (0.29, None, "TIMER_DELAY_MS", 290, 290),
        (None, NOW + 5000, "TIMER_DELIVER_MS", NOW + 5000, 5000),
    ],
)
def test_other_delays_and_delivery_times_use_timer_properties(
    delay: Any, at_ms: int | None, name: str, value: int, wait_ms: int
) -> None:
    at = None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
    found = delay_of(delay, at, 0, NOW)
    assert found is not None and (found.name, found.value, found.timer_ms) == (name, value, wait_ms)


@pytest.mark.spec("API-13")
def test_zero_delay_and_past_delivery_time_mean_immediate_delivery() -> None:
    assert delay_of(None, None, 0, NOW) is delay_of(0, None, 0, NOW) is None
    assert delay_of(None, datetime.fromtimestamp(NOW / 1000, UTC), 0, NOW) is None


@pytest.mark.spec("API-13")
@pytest.mark.parametrize(
    ("delay", "at", "level", "words"),
    [
        (1, None, 2, "one of delay"),
        (1, datetime.now(UTC), 0, "one of delay"),
        (-1, None, 0, "10000000000"),
        (float("nan"), None, 0, "10000000000"),
        (float("inf"), None, 0, "10000000000"),
        (1e300, None, 0, "10000000000"),
        ("1s", None, 0, "timedelta or seconds"),
        (True, None, 0, "timedelta or seconds"),
        (None, None, -1, "delay_level is -1"),
        (None, None, True, "delay_level is True"),
        (None, datetime(2030, 1, 1), 0, "time zone"),
    ],
)
def test_invalid_delay_is_rejected(delay: Any, at: Any, level: Any, words: str) -> None:
    with pytest.raises(MessageRefused, match=words):
        delay_of(delay, at, level, NOW)


def timers(limit: str = str(LIMIT_MS)) -> Callable[[Command], Command]:
    """Heartbeat answers of a broker that supports exact delays."""
    return lambda command: command.reply(ext={"timerMaxDelayMs": limit})


def properties_of(broker: Any) -> list[dict[str, str]]:
    return [decode_properties(command.ext["i"]) for command in broker.of(310)]


@pytest.mark.spec("API-09", "API-13")
@pytest.mark.parametrize(
    ("delay", "words"),
    [(2, "the nearest are 1 s and 5 s"), (0.5, "the nearest are 1 s"), (timedelta(days=1), "the nearest are 7200 s")],
)
async def test_exact_delay_is_rejected_for_a_broker_with_levels_only(cluster: Any, delay: Any, words: str) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        with pytest.raises(Unsupported) as caught:
            await out.send("T", b"x", delay=delay)
        assert str(caught.value).endswith(words) and "on b0, which has only the delay levels 1s 5s" in str(caught.value)
        at = datetime.now(UTC) + timedelta(days=1)
        with pytest.raises(Unsupported, match=re.escape(at.isoformat())):
            await out.send_oneway("T", b"x", deliver_at=at)
        assert c.broker.of(310) == []
        await out.send("T", b"x", delay=timedelta(seconds=30), tag="t")
        await out.send_oneway("T", b"x", delay_level=2)
        await out.send("T", b"x")
        await c.broker.wait_for(310, 3)
        sent = [properties.get("DELAY") for properties in properties_of(c.broker)]
        assert sorted(sent, key=str) == ["2", "4", None]


@pytest.mark.spec("API-09", "API-13")
async def test_exact_delay_waits_for_the_broker_to_state_timer_support(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def late(command: Command) -> Command:
            await held
            return timers()(command)

        c.broker.script[34] = late
        sends = [asyncio.ensure_future(out.send("T", b"x", delay=7)) for _ in range(3)]
        await c.broker.wait_for(34)
        assert c.broker.of(310) == []
        held.set_result(None)
        await asyncio.gather(*sends)
        at = datetime.now(UTC) + timedelta(days=1)
        await out.send_oneway("T", b"x", deliver_at=at)
        await c.broker.wait_for(310, 4)
        *delays, last = properties_of(c.broker)
        assert [(p["TIMER_DELAY_MS"], p.get("DELAY")) for p in delays] == [("7000", None)] * 3
        assert abs(int(last["TIMER_DELIVER_MS"]) - at.timestamp() * 1000) <= 1
        with pytest.raises(Unsupported, match=f"too far ahead for b0: at most {LIMIT_MS} ms"):
            await out.send("T", b"x", delay=timedelta(days=41))
        assert len(c.broker.of(310)) == 4


@pytest.mark.spec("API-13")
async def test_exact_delay_goes_only_to_brokers_with_timer_support(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.brokers["b1"].script[34] = timers(str(DAY_MS))
        for _ in range(4):
            assert (await out.send("T", b"x", delay=7)).queue.broker_name == "b1"
        queues = {queue.broker_name: queue for queue in await out.queues("T")}
        assert (await out.send("T", b"x", delay=7, queue=queues["b1"])).queue == queues["b1"]
        with pytest.raises(Unsupported, match="on b0, which"):
            await out.send("T", b"x", delay=7, queue=queues["b0"])
        with pytest.raises(Unsupported, match="on b0, which"):
            await out.send_oneway("T", b"x", delay=7, queue=queues["b0"])
        with pytest.raises(Unsupported, match=f"for b0, b1: at most {DAY_MS} ms"):
            await out.send("T", b"x", delay=timedelta(days=2))
        assert c.brokers["b0"].of(310) == []
        assert {(await out.send("T", b"x", delay=5)).queue.broker_name for _ in range(8)} == {"b0", "b1"}


@pytest.mark.spec("API-13", "API-28")
async def test_unresponsive_broker_does_not_delay_sends_to_one_with_timers(cluster: Any) -> None:
    async with cluster(2) as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.brokers["b0"].script[34] = lambda command: None
        c.brokers["b1"].script[34] = timers()
        assert (await out.send("T", b"x", delay=7, timeout=60)).queue.broker_name == "b1"
        c.add("Silent", c.route("b0"))
        with pytest.raises(SendFailed, match="no heartbeat answer from b0") as caught:
            await out.send("Silent", b"x", delay=7, timeout=0.2)
        error = caught.value
        assert isinstance(error.__cause__, ConnectFailed) and not error.__cause__.sent
        assert (error.code, error.retryable, error.outcome_unknown) == (10001, True, False)
        assert (error.attempts, error.brokers) == (1, [])
        assert c.brokers["b0"].of(310) == []


async def test_heartbeat_failure_before_an_attempt_is_retried(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        await out.queues("T")
        c.broker.script[34] = timers()
        client._core._suspect(c.broker.address, unresponsive=False)
        await c.broker.stop()
        with pytest.raises(SendFailed, match="no heartbeat answer from b0") as caught:
            await out.send("T", b"x", delay=7)
        assert caught.value.attempts > 3 and caught.value.brokers == []
        assert not caught.value.outcome_unknown


@pytest.mark.parametrize("support", [None, "none"], ids=["no-heartbeat-answer", "levels-only"])
async def test_failed_retry_of_an_exact_delay_keeps_the_unknown_outcome(cluster: Any, support: str | None) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.broker.script[34] = timers()
        await out.send("T", b"x", delay=7)

        def stored_but_not_answered(command: Command) -> None:
            c.broker.on_310(command)
            c.broker.script[34] = timers(support) if support else lambda beat: None

        c.broker.script[310] = stored_but_not_answered
        with pytest.raises(SendFailed, match="The outcome is unknown") as caught:
            await out.send("T", b"y", delay=7, timeout=1.5)
        assert caught.value.outcome_unknown and caught.value.brokers == ["b0"] and caught.value.attempts >= 2
        assert isinstance(caught.value.__cause__, Unsupported if support else ConnectFailed)
        assert len(c.broker.of(310)) == 2


async def test_stored_message_is_reported_if_its_retry_finds_no_broker(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers, retry_not_stored=True) as client:
        async with client.producer("g") as out:
            c.broker.script[34] = timers()
            await out.send("T", b"x", delay=7)

            def flush_timed_out(command: Command) -> Command:
                client._core.timer_limits.learn(c.broker.address, {})
                answer = c.broker.on_310(command)
                answer.code = 10
                return answer

            c.broker.script[310] = flush_timed_out
            receipt = await out.send("T", b"y", delay=7)
            assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT and len(c.broker.of(310)) == 2


@pytest.mark.spec("API-13")
async def test_timer_support_is_checked_again_after_a_broker_restart(cluster: Any) -> None:
    async with cluster() as c, Client(name_servers=c.name_servers) as client, client.producer("g") as out:
        c.broker.script[34] = timers()
        await out.send("T", b"x", delay=7)
        c.broker.script[34] = timers("none")
        client._core._suspect(c.broker.address, unresponsive=False)
        sent = len(c.broker.of(310))
        with pytest.raises(Unsupported):
            await out.send("T", b"x", delay=7)
        assert len(c.broker.of(310)) == sent


@pytest.mark.spec("API-13", "API-21", "DLY-04")
async def test_delayed_message_arrives_after_its_delay_never_early() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("g") as out:
        async with client.consumer("readers", start="first") as inbox:
            await inbox.subscribe("Late")
            await out.send("Late", b"later", delay=1)
            await out.send("Late", b"now")
            first, second = await inbox.recv(30), await inbox.recv(30)
            assert (first.body, second.body) == (b"now", b"later")
            waited = second.stored_at - second.born_at
            assert timedelta(milliseconds=999) <= waited < timedelta(seconds=3)
            await first.ack()
            await second.retry(timedelta(seconds=1))
            again = await inbox.recv(30)
            assert (again.body, again.attempt) == (b"later", 2)
            await again.ack()


@pytest.mark.spec("API-13", "API-21")
def test_delivery_time_and_retry_delay_are_exact(
    saturn_broker: BrokerFixture, saturn_clock: ClockFixture, saturn_topic: str, saturn_group: str
) -> None:
    async def work() -> None:
        async with Client.from_url(saturn_broker.url) as client, client.producer("g") as out:
            async with client.consumer(saturn_group, start="first") as inbox:
                await inbox.subscribe(saturn_topic)
                await out.send(saturn_topic, b"delay", delay=7)
                await saturn_clock.advance(timedelta(milliseconds=6_000))
                assert saturn_broker.published(saturn_topic) == []
                await saturn_clock.advance(timedelta(milliseconds=1_000))
                message = await inbox.recv(30)
                waited = message.stored_at - message.born_at
                assert timedelta(seconds=7) <= waited < timedelta(seconds=9) and "DELAY" not in message.properties
                await message.retry(timedelta(seconds=7))
                await saturn_clock.advance(timedelta(milliseconds=5_500))
                with pytest.raises(TimeoutError):
                    await inbox.recv(0.2)
                await saturn_clock.advance(timedelta(milliseconds=1_500))
                again = await inbox.recv(30)
                assert (again.body, again.attempt, again.topic) == (b"delay", 2, saturn_topic)
                spent = again.stored_at - message.stored_at
                assert timedelta(seconds=7) <= spent < timedelta(seconds=9), "level 3 would be 10 s"
                await again.ack()
                at = again.stored_at + timedelta(hours=30)
                await out.send(saturn_topic, b"at", deliver_at=at)
                await saturn_clock.advance(timedelta(hours=31))
                message = await inbox.recv(30)
                assert message.body == b"at" and at <= message.stored_at + timedelta(milliseconds=1)
                await message.ack()

    asyncio.run(work())
    (request,) = [request for request in saturn_broker.requests if request.name == "CONSUMER_SEND_MSG_BACK"]
    assert (request.ext["delayMs"], request.ext["delayLevel"]) == ("7000", "3")
