"""Heartbeats: their body, the brokers that receive them, and calls that concurrent callers share.

Requirements: HB-01, HB-02 (body: spec 00, section 3.7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from saturnmq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from saturnmq.protocol.codes import INNER_PRODUCER_GROUP, MASTER_ID


def heartbeat_body(client_id: str, producer_groups: Iterable[str], consumers: Iterable[ConsumerData]) -> bytes:
    """The body of HEART_BEAT (34). Every client also reports the inner producer group."""
    groups = dict.fromkeys([INNER_PRODUCER_GROUP, *producer_groups])
    return HeartbeatData(
        client_id=client_id,
        producer_data_set=[ProducerData(group_name=group) for group in groups],
        consumer_data_set=list(consumers),
    ).encode()


def heartbeat_addresses(
    brokers: Mapping[str, Mapping[int, str]], *, has_producers: bool, has_consumers: bool
) -> list[str]:
    """Addresses of all brokers if there is a consumer, of the masters if there are only producers, else none (HB-02).

    brokers: addresses by broker name and id.
    """
    if not has_producers and not has_consumers:
        return []
    chosen: dict[str, None] = {}
    for name in sorted(brokers):
        for broker_id, address in sorted(brokers[name].items()):
            if has_consumers or broker_id == MASTER_ID:
                chosen[address] = None
    return list(chosen)


class SharedCalls:
    """Runs `work(key)` for callers that each need one that begins after they asked, such as heartbeats with a new group.

    At most one per key is in flight and one waits for it: 200 groups that start together thus cause two calls, not 200. spawn:
    starts a task that belongs to the client.
    """

    def __init__(
        self,
        spawn: Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[Any]],
        work: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._spawn = spawn
        self._work = work
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._waiting: dict[str, asyncio.Task[Any]] = {}

    def start(self, key: str) -> asyncio.Task[Any]:
        """The task of a call that begins now or later. Its errors are logged by spawn."""
        task = self._waiting.get(key)
        if task is None:
            # It begins after the running one, so that it has what the caller has just added.
            task = self._waiting[key] = self._spawn(f"call {key}", self._run(key, self._running.get(key)))
        return task

    async def call(self, key: str) -> None:
        """Wait for a call that begins now or later. It goes on if this caller is cancelled."""
        await asyncio.wait({self.start(key)})

    async def _run(self, key: str, before: asyncio.Task[Any] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
        finally:
            task = self._waiting.pop(key)
        self._running[key] = task
        try:
            await self._work(key)
        finally:
            if self._running[key] is task:
                del self._running[key]
