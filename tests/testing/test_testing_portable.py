"""Tests on the fixtures that also run on a real broker: `pytest --saturn-url=rmq://host:9876` with this file.

tests/interop runs them on Apache's broker and on ours.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from saturnmq import Client
from saturnmq.testing import BrokerFixture, ClockFixture


@pytest.mark.spec("TST-07", "TST-05")
async def test_sent_messages_are_published_and_consumed(
    saturn_broker: BrokerFixture, saturn_client: Client, saturn_topic: str, saturn_group: str
) -> None:
    async with saturn_client as client:
        async with client.producer("portable") as out:
            for number in range(4):
                await out.send(saturn_topic, b"%d" % number, tag="t", keys=[f"k{number}"])
        messages = await saturn_broker.expect(saturn_topic, 4, within=10)
        assert {message.body for message in messages} == {b"0", b"1", b"2", b"3"}
        assert saturn_broker.lag(saturn_group, saturn_topic) == 4
        async with client.consumer(saturn_group, start="first") as inbox:
            await inbox.subscribe(saturn_topic)
            for _ in range(4):
                await (await inbox.recv(timeout=30)).ack()
        async with asyncio.timeout(10):  # offsets are sent one-way: the broker may take a moment
            while saturn_broker.lag(saturn_group, saturn_topic):
                await asyncio.sleep(0.02)  # poll


@pytest.mark.spec("TST-07", "TST-05")
async def test_rejected_message_becomes_a_dead_letter(
    saturn_broker: BrokerFixture, saturn_client: Client, saturn_topic: str, saturn_group: str
) -> None:
    async with saturn_client as client, client.producer("portable") as out:
        await out.send(saturn_topic, b"bad")
        async with client.consumer(saturn_group, start="first") as inbox:
            await inbox.subscribe(saturn_topic)
            await (await inbox.recv(timeout=30)).reject("of no use")
        await saturn_broker.expect(f"%DLQ%{saturn_group}", 1, within=10)
    assert [message.body for message in saturn_broker.dead_letters(saturn_group)] == [b"bad"]


@pytest.mark.spec("TST-07", "TST-03")
async def test_clock_advances_or_the_test_is_skipped(
    saturn_broker: BrokerFixture, saturn_client: Client, saturn_topic: str, saturn_clock: ClockFixture
) -> None:
    async with saturn_client as client, client.producer("portable") as out:
        await out.send(saturn_topic, b"tomorrow", delay=timedelta(hours=2))
        await saturn_clock.advance(timedelta(hours=2))
        assert len(saturn_broker.published(saturn_topic)) == 1
