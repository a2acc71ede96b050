"""Brokers of one DLedger group: what a send is worth, who serves, what a switch keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ledgergroup import ledger_group


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await work()

    return asyncio.run(bounded())


@pytest.mark.spec("DL-B04", "DL-B10")
def test_messages_are_on_every_broker_and_survive_the_leader(tmp_path: Path) -> None:
    async def work() -> None:
        async with ledger_group(tmp_path) as group:
            first = await group.master()
            sent = []
            for number in range(20):
                body = b"%d" % number
                await group.send(body)
                sent.append(body)
            await group.same("T", 0, sent)
            await group.stop(group.name_of(first))
            second = await group.master()
            assert second is not first
            for number in range(20, 30):
                body = b"%d" % number
                await group.send(body)
                sent.append(body)
            await group.same("T", 0, sent)

    run(work)
