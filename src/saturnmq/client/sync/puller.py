"""The synchronous puller of `saturnmq.sync`.

Requirements: API-31.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from saturnmq.client.filters import Filter
from saturnmq.client.puller.puller import Puller as AsyncPuller
from saturnmq.client.puller.puller import PullResult
from saturnmq.client.sync.portal import portal as _portal
from saturnmq.protocol.bodies import MessageQueue


class Puller:
    """saturnmq.Puller with blocking calls, for threads and scripts.

    Create it with `saturnmq.sync.Client.puller`; it needs no start or stop.

        from saturnmq.sync import Client

        with Client.from_url("rmq://127.0.0.1:9876") as client:
            puller = client.puller()
            for queue in puller.queues("orders"):
                result = puller.pull(queue, puller.min_offset(queue))
                print(queue, len(result.messages()))
    """

    def __init__(self, inner: AsyncPuller) -> None:
        self._inner = inner

    @property
    def group(self) -> str:
        """The group name used for pulls, including the namespace."""
        return self._inner.group

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic; see saturnmq.Puller.queues."""
        return _portal.run("Puller.queues", lambda: self._inner.queues(topic))

    def refresh(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic after a NameServer query; see saturnmq.Puller.refresh."""
        return _portal.run("Puller.refresh", lambda: self._inner.refresh(topic))

    def watch(self, topic: str) -> Iterator[list[MessageQueue]]:
        """Iterate over the queues of a topic, now and after every change; see saturnmq.Puller.watch."""
        source = self._inner.watch(topic)

        async def next_queues() -> list[MessageQueue] | None:
            return await anext(source, None)

        try:
            while (queues := _portal.run("Puller.watch", next_queues)) is not None:
                yield queues
        finally:
            _portal.run("Puller.watch", source.aclose)

    def min_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return the first offset that is still stored; see saturnmq.Puller.min_offset."""
        return _portal.run("Puller.min_offset", lambda: self._inner.min_offset(queue, timeout=timeout))

    def max_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return the offset that the next message will get; see saturnmq.Puller.max_offset."""
        return _portal.run("Puller.max_offset", lambda: self._inner.max_offset(queue, timeout=timeout))

    def offset_by_time(self, queue: MessageQueue, when: int | datetime, *, timeout: float | None = None) -> int:
        """Return the first offset stored at or after `when`; see saturnmq.Puller.offset_by_time."""
        return _portal.run("Puller.offset_by_time", lambda: self._inner.offset_by_time(queue, when, timeout=timeout))

    def earliest_store_time(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return when the oldest stored message was stored, in Unix ms; see saturnmq.Puller.earliest_store_time."""
        return _portal.run(
            "Puller.earliest_store_time", lambda: self._inner.earliest_store_time(queue, timeout=timeout)
        )

    def committed(self, group: str, queue: MessageQueue, *, timeout: float | None = None) -> int | None:
        """Return the committed offset of a group; see saturnmq.Puller.committed."""
        return _portal.run("Puller.committed", lambda: self._inner.committed(group, queue, timeout=timeout))

    def commit(self, group: str, queue: MessageQueue, offset: int, *, timeout: float | None = None) -> None:
        """Store the committed offset of a group; see saturnmq.Puller.commit."""
        _portal.run("Puller.commit", lambda: self._inner.commit(group, queue, offset, timeout=timeout))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_count: int = 32,
        expression: Filter | str = "*",
        wait: float = 0.0,
        timeout: float | None = None,
        bulk_bytes: int = 0,
    ) -> PullResult:
        """Return messages of one queue from `offset` on; see saturnmq.Puller.pull."""
        return _portal.run(
            "Puller.pull",
            lambda: self._inner.pull(
                queue,
                offset,
                max_count=max_count,
                expression=expression,
                wait=wait,
                timeout=timeout,
                bulk_bytes=bulk_bytes,
            ),
        )
