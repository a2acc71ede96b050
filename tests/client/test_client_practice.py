# ruff: noqa: SIM117 - separate nested blocks for server, client and the objects created from it
"""Common uses of a broker, as applications are built on it: batches, order by key, one change for many subsystems."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from saturnmq import Client, Message, Outgoing, TransactionState, str_codec
from saturnmq.broker import BrokerSettings
from saturnmq.testing import EmbeddedBroker

Run = Callable[[Callable[[], Any]], Any]
STEPS = ("created", "paid", "sent")


@pytest.mark.spec("PRC-04")
async def test_states_of_an_order_arrive_in_order_while_orders_are_handled_in_parallel() -> None:
    orders = [f"order-{number}" for number in range(12)]
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        await client.create_topic("Orders", queues=4)
        async with client.producer("p", codec=str_codec()) as out:
            for step in STEPS:
                await asyncio.gather(*(out.send("Orders", f"{order} {step}", shard_by=order) for order in orders))
        seen: dict[str, list[str]] = defaultdict(list)
        queues: dict[str, set[int]] = defaultdict(set)
        active, peak, done = 0, 0, asyncio.Event()

        async def handle(message: Message[str]) -> None:
            nonlocal active, peak
            active += 1
            peak = max(peak, active)
            order, step = message.value.split()
            await asyncio.sleep(0.03 / (1 + STEPS.index(step)))  # poll: virtual time; an earlier step takes longer
            seen[order].append(step)
            queues[order].add(message.queue.queue_id)
            active -= 1
            if sum(map(len, seen.values())) == len(orders) * len(STEPS):
                done.set()

        client.listener("Orders", group="g", codec=str_codec(), ordered=True, start="first")(handle)
        serving = asyncio.ensure_future(client.run())
        await done.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert dict(seen) == {order: list(STEPS) for order in orders}
        assert all(len(used) == 1 for used in queues.values())
        assert len(set.union(*queues.values())) > 1 and peak > 1


@pytest.mark.spec("PRC-13")
async def test_one_change_message_reaches_every_subsystem_and_is_retried_only_where_it_failed() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("base", codec=str_codec()) as out:
            await out.send("Changes", "customer 7 moved")
        got: dict[str, list[int]] = {}
        for group in ("billing", "search", "mail"):
            async with client.consumer(group, codec=str_codec(), start="first") as inbox:
                await inbox.subscribe("Changes")
                message = await inbox.recv(30)
                attempts = [message.attempt]
                if group == "mail":
                    await message.retry(after=timedelta(seconds=1))
                    message = await inbox.recv(30)
                    attempts.append(message.attempt)
                await message.ack()
                got[group] = attempts
        assert got == {"billing": [1], "search": [1], "mail": [1, 2]}


@pytest.mark.spec("PRC-02")
async def test_consumers_get_each_message_of_a_batch_with_its_own_properties() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client:
        async with client.producer("p", codec=str_codec()) as out:
            values = [
                Outgoing(value=str(number), tag=f"t{number}", properties={"n": str(number)}) for number in range(5)
            ]
            await out.send_many("Batch", values, keys=["common"])
        async with client.consumer("c", codec=str_codec(), start="first") as inbox:
            await inbox.subscribe("Batch")
            found = [await inbox.recv(30) for _ in range(5)]
            assert sorted((one.value, one.tag, one.properties["n"], one.keys) for one in found) == [
                (str(number), f"t{number}", str(number), ("common",)) for number in range(5)
            ]


@pytest.mark.spec("PRC-09")
async def test_undecided_transaction_is_checked_against_the_log_row_and_discarded_after_the_last_check() -> None:
    defaults = BrokerSettings()
    assert (defaults.transaction_check_max, defaults.transaction_timeout_ms, defaults.transaction_interval_ms) == (
        15, 6000, 60_000,
    )  # fmt: skip
    rows = {"known": TransactionState.COMMIT}  # the transaction-log rows that the database has
    asked: list[str] = []

    async def check(message: Message[str]) -> TransactionState:
        asked.append(message.value)
        return rows.get(message.value, TransactionState.UNKNOWN)

    settings = BrokerSettings(transaction_interval_ms=50, transaction_timeout_ms=100, transaction_check_max=3)
    async with EmbeddedBroker(settings=settings) as server, Client.from_url(server.url) as client:
        async with client.producer("g", codec=str_codec(), check=check) as out:
            for value in ("known", "lost"):
                async with out.transaction("Orders", value) as half:
                    assert half.message_id  # the half message is stored before the local transaction runs
                    half.leave_open()
            async with client.consumer("c", codec=str_codec(), start="first") as inbox:
                await inbox.subscribe("Orders")
                assert (await inbox.recv(30)).value == "known"
            async with client.consumer("over", codec=str_codec(), start="first") as inbox:
                await inbox.subscribe("TRANS_CHECK_MAX_TIME_TOPIC")
                assert (await inbox.recv(30)).value == "lost"
            assert asked.count("known") == 1 and asked.count("lost") == 3
