"""Runs long requests, such as large registrations, one at a time; addresses with waiting requests take turns.

A large registration takes a second. However many of them one address sends, a broker's waits for at most one of each other
address. The bytes of waiting bodies are bounded by address, because all requests of a server share its memory (LIM-10).

Runs on the event loop. Requirements: LIM-09, LIM-10.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.tasks import cancel, supervised

BYTES_MAX: Final = 33_554_432  # of the bodies of one address
WAITING_MAX: Final = 64  # requests of one address; headers are not counted in its bytes

Work = Callable[[], Awaitable[Command]]


class _QueuedWork(NamedTuple):
    body_bytes: int
    work: Work
    response: asyncio.Future[Command]


class RegistrationQueue:
    """The long requests of one server, each charged to an address (`network_of`)."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes_by_address: dict[str, int] = {}  # waiting or running, by address
        self._queues_by_address: dict[str, deque[_QueuedWork]] = {}  # the next address first
        self._worker: asyncio.Task[None] | None = None

    def put(self, address: str, body_bytes: int, work: Work) -> asyncio.Future[Command]:
        """Queue the work; returns a future of its result or exception. Raises ResponseError 2 over the limits of the address."""
        address_bytes = self._bytes_by_address.get(address, 0)
        waiting_count = len(self._queues_by_address.get(address, ()))
        # A body larger than the limit is taken alone.
        if (address_bytes and address_bytes + body_bytes > self._bytes_max) or waiting_count >= WAITING_MAX:
            text = (
                f"[OVERLOAD]system busy, {waiting_count} registrations of {address_bytes} bytes from {address} are waiting; "
                "try again later"
            )
            raise response_error(ResponseCode.SYSTEM_BUSY, text)
        self._bytes_by_address[address] = address_bytes + body_bytes
        response: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._queues_by_address.setdefault(address, deque()).append(_QueuedWork(body_bytes, work, response))
        if self._worker is None:
            self._worker = supervised(self._run(), "registrations")
        return response

    async def stop(self) -> None:
        """Cancel the running and the waiting requests."""
        worker, self._worker = self._worker, None
        await cancel(worker)

    async def _run(self) -> None:
        try:
            while self._queues_by_address:
                # The address that waits longest.
                address = next(iter(self._queues_by_address))
                queue = self._queues_by_address.pop(address)
                queued = queue.popleft()
                if queue:
                    self._queues_by_address[address] = queue  # at the end
                await self._run_queued(address, queued)
        finally:
            self._worker = None
            # The responses would wait without end.
            for queue in self._queues_by_address.values():
                for queued in queue:
                    queued.response.cancel()

    async def _run_queued(self, address: str, queued: _QueuedWork) -> None:
        try:
            result = await queued.work()
        except asyncio.CancelledError:
            queued.response.cancel()
            raise
        except Exception as error:
            if isinstance(error, SaturnError):
                # The request was refused. The error's traceback would keep the body alive until the garbage collector runs.
                error.with_traceback(None)
            # The connection may have closed.
            if not queued.response.done():
                queued.response.set_exception(error)
        else:
            if not queued.response.done():
                queued.response.set_result(result)
        finally:
            remaining_bytes = self._bytes_by_address[address] - queued.body_bytes
            self._bytes_by_address[address] = remaining_bytes
            # No request of it waits any more; only one runs at a time.
            if address not in self._queues_by_address:
                del self._bytes_by_address[address]
