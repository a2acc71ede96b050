"""How a broker confirmed a send, stated to clients that ask: every flush and replication mode, through `Receipt.durable`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brokergroup import client_of, ledger_group
from brokergroup import run as run_group
from brokerpair import SYNC_FLUSH, pair
from brokerpair import run as run_pair
from wire import wire

from saturnmq import Client, Confirmation, Receipt, SendStatus
from saturnmq.protocol.codes import RequestCode
from saturnmq.store import FlushDiskType, StoreProfile, StoreSettings
from saturnmq.testing import EmbeddedBroker

ASYNC_FLUSH = {"flush_disk_type": FlushDiskType.ASYNC_FLUSH}
POOLED: dict[str, Any] = {"transient_pool_enable": True}

Statements = dict[str, tuple[bool | None, Confirmation | None]]


async def every_kind_of_send(client: Client, topic: str = "T") -> Statements:
    """What the receipts of each kind of send say, by kind."""
    stated: Statements = {}

    def note(kind: str, receipts: list[Receipt]) -> None:
        assert {receipt.status for receipt in receipts} == {SendStatus.SEND_OK}, kind
        assert len({(receipt.durable, receipt.confirmation) for receipt in receipts}) == 1, kind
        stated[kind] = (receipts[0].durable, receipts[0].confirmation)

    async with client.producer("p", check=lambda message: None) as out:  # type: ignore[arg-type, return-value]
        note("new topic", [await out.send(topic, b"x")])
        note(
            "repeated", [await out.send(topic, b"x", shard_by=1) for _ in range(6)]
        )  # later ones may be taken by compiled code
        note("compressed", [await out.send(topic, b"x" * 5000)])
        note("batch", await out.send_many(topic, [b"a", b"b", b"c"]))
        note("delay level", [await out.send(topic, b"x", delay_level=1)])
        note("delay", [await out.send(topic, b"x", delay=7.5)])
        async with out.transaction(topic, b"x") as half:
            note("transaction", [half.receipt])
        note("without waiting", [await out.send(topic, b"x", wait_stored=False) for _ in range(3)])
        note("batch without waiting", await out.send_many(topic, [b"a", b"b"], wait_stored=False))
    return stated


def all_but_waiting(stated: Statements) -> set[tuple[bool | None, Confirmation | None]]:
    return {pair for kind, pair in stated.items() if "without" not in kind}


def without_waiting(stated: Statements) -> set[tuple[bool | None, Confirmation | None]]:
    return {pair for kind, pair in stated.items() if "without" in kind}


@pytest.mark.spec("API-10")
@pytest.mark.parametrize(
    ("store", "waiting", "not_waiting"),
    [
        (ASYNC_FLUSH, (False, Confirmation.PAGE_CACHE), (False, Confirmation.PAGE_CACHE)),
        (SYNC_FLUSH, (True, Confirmation.FSYNC), (False, Confirmation.PAGE_CACHE)),
        (POOLED, (False, Confirmation.MEMORY), (False, Confirmation.MEMORY)),
    ],
    ids=["async", "sync", "pooled"],
)
async def test_single_broker_states_its_flush_mode(store: dict[str, Any], waiting: Any, not_waiting: Any) -> None:
    settings = StoreSettings(profile=StoreProfile.SMALL, **store)
    async with EmbeddedBroker(store=settings) as server, Client.from_url(server.url) as client:
        stated = await every_kind_of_send(client)
        assert all_but_waiting(stated) == {waiting}, stated
        assert without_waiting(stated) == {not_waiting}, stated


@pytest.mark.spec("API-10")
async def test_statement_follows_a_change_to_sync_flush() -> None:
    async with EmbeddedBroker() as server, Client.from_url(server.url) as client, client.producer("p") as out:
        assert [(await out.send("T", b"x", shard_by=1)).durable for _ in range(3)] == [False] * 3
        server.broker.store.flush_before_acknowledgement()
        assert [(await out.send("T", b"x", shard_by=1)).durable for _ in range(3)] == [True] * 3


@pytest.mark.spec("API-10")
@pytest.mark.parametrize(
    ("store", "waiting"),
    [(ASYNC_FLUSH, Confirmation.SLAVE), (SYNC_FLUSH, Confirmation.FSYNC_AND_SLAVE)],
    ids=["async", "sync"],
)
def test_sync_master_states_that_a_slave_has_the_message(
    tmp_path: Path, store: dict[str, Any], waiting: Confirmation
) -> None:
    async def work() -> None:
        async with pair(tmp_path, store, broker_role="SYNC_MASTER") as both:
            await both.send(both.master, b"first")
            await both.replicated()
            async with Client(name_servers=both._address) as client:
                stated = await every_kind_of_send(client)
                assert all_but_waiting(stated) == {(True, waiting)}, stated
                assert without_waiting(stated) == {(False, Confirmation.PAGE_CACHE)}, stated
                await both.stop_one(both.slave)
                answer = await both.send(both.master, confirmation="ask")
                assert answer.code == 11 and "confirmation" not in answer.ext
                async with client.producer("q") as out:
                    alone = await out.send("T", b"x")
                    assert (alone.status, alone.durable, alone.confirmation) == (
                        SendStatus.SLAVE_NOT_AVAILABLE, False, None,
                    )  # fmt: skip

    run_pair(work)


@pytest.mark.spec("API-10")
@pytest.mark.parametrize(
    ("store", "confirmation"),
    [(ASYNC_FLUSH, Confirmation.MAJORITY), (SYNC_FLUSH, Confirmation.FSYNC_MAJORITY)],
    ids=["async", "sync"],
)
def test_ledger_group_states_the_majority_for_every_send(
    tmp_path: Path, store: dict[str, Any], confirmation: Confirmation
) -> None:
    async def work() -> None:
        async with ledger_group(tmp_path, store=store) as group:
            await group.send(b"first")
            async with client_of(group) as client:
                stated = await every_kind_of_send(client)
                assert set(stated.values()) == {(True, confirmation)}, stated
            answer = await group.send_to(group.followers()[0], b"forwarded", confirmation="ask")
            assert (answer.code, answer.ext.get("confirmation")) == (0, confirmation.value)

    run_group(work)


@pytest.mark.spec("API-10")
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_statement_is_in_answers_only_to_senders_that_ask(code: RequestCode) -> None:
    async with wire(SYNC_FLUSH) as w, Client(name_servers=w.server.name_servers, smart_send=code == 310) as client:
        async with client.producer("p") as out:
            assert {(await out.send("T", b"x", shard_by=1)).durable for _ in range(4)} == {True}
        for _ in range(4):
            answer = await w.send("T", b"x")
            assert set(answer.ext) == {"MSG_REGION", "TRACE_ON", "msgId", "queueId", "queueOffset"}
        refused = await w.send("T", b"x", queue=99, confirmation="ask")
        assert refused.code == 1 and "confirmation" not in refused.ext
