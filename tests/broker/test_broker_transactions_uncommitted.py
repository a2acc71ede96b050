"""A half message without a quorum yet is not discarded (found by seed 482 of the system simulation)."""

from __future__ import annotations

import asyncio

import pytest

from saturnmq import Client
from saturnmq.broker import BrokerSettings
from saturnmq.client.receipt import TransactionState
from saturnmq.store import MessageStore
from saturnmq.testing import EmbeddedBroker


@pytest.mark.spec("TX-07", "DUR-19", "SIM-14")
@pytest.mark.loop(real=True)
async def test_uncommitted_half_message_is_not_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is pending from its append on but unreadable before it is committed, which may take longer than its immunity."""
    settings = BrokerSettings(transaction_timeout_ms=1, transaction_interval_ms=600_000)
    async with EmbeddedBroker(settings=settings) as server, Client(name_servers=server.name_servers) as client:
        await client.create_topic("T", queues=1)
        async with client.producer("p", check=lambda message: TransactionState.UNKNOWN) as producer:
            transactions = server.broker.master.transactions
            async with asyncio.timeout(20), producer.transaction("T", b"x"):
                [half] = transactions.table.pending.values()
                clock = server.broker._clock_ms
                while clock() <= half.stored_ms + half.immune_ms:
                    await asyncio.sleep(0.002)  # poll
                with monkeypatch.context() as hidden:
                    hidden.setattr(MessageStore, "read_record", lambda *_: None)
                    hidden.setattr(MessageStore, "max_physical_offset", property(lambda store: half.physical))
                    await transactions.round()
                assert half.offset in transactions.table.pending
                with monkeypatch.context() as gone:
                    gone.setattr(MessageStore, "read_record", lambda *_: None)
                    await transactions.round()
                assert half.offset not in transactions.table.pending
