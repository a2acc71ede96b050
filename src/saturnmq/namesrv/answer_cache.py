"""Encoded bodies of answers about the route table: computed in slices, at most once at a time for the same question, and cached.

Requests for a body that is being computed share it; if the table has changed since that began, they share the next one. However
many peers ask for the list of all topics, and however often the table changes, one computation of it runs and one waits. Bodies
are cached until the table changes, up to `CACHED_BYTES_MAX`. A connection gets its long answers one after the other, each once it
has read the one before: 256 at once of 16 MiB would be 4 GiB of output.

Runs on the event loop. Requirements: NS-20, NS-28, LIM-09, LIM-10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from saturnmq.protocol.bodies import Body
from saturnmq.protocol.frames.command import Command
from saturnmq.slices import LongAnswer, Slices, Steps, joined
from saturnmq.tasks import cancel

CACHED_BYTES_MAX: Final = 67_108_864
CACHED_MAX: Final = 10_000
HEADER_BYTES: Final = 1024  # of the frame of an answer without fields

Encode = Callable[[], Steps[bytes | None]]
Respond = Callable[[bytes | None], Command]


class AnswerReader(Protocol):
    """A connection that reads answers."""

    async def drain(self) -> None:
        """Wait until the peer has read most of its output, or the connection is closed."""


@dataclass(slots=True)
class _Run:
    """A computation. changes: of the table when it began, None if it has not."""

    task: asyncio.Future[bytes | None]
    changes: int | None


class AnswerCache:
    """changes: the number of changes of the route table. frame_bytes_max: limit on an answer. slices: runs all long requests."""

    def __init__(self, changes: Callable[[], int], frame_bytes_max: int) -> None:
        self._changes = changes
        self._body_bytes_max = frame_bytes_max - HEADER_BYTES
        self.slices = Slices()
        self._bodies: dict[Hashable, bytes] = {}
        self._bytes = 0
        self._cached_at = -1
        self._runs: dict[Hashable, _Run] = {}
        self._turns: WeakKeyDictionary[AnswerReader, asyncio.Lock] = WeakKeyDictionary()

    def answer(self, peer: AnswerReader, key: Hashable, encode: Encode, respond: Respond) -> LongAnswer:
        """`found(body)` for the body of a key: the cached one or what encode() returns, which is cached unless it is None.

        Raises what encode raises, and ResponseError 2 if too much is waiting.
        """
        body = self._cached().get(key)
        if body is not None:
            return respond(body)
        # Others wait already: this one takes its turn behind them.
        if key in self._runs:
            return self._in_turn(peer, key, encode, respond)
        # Before the first step, which runs at once.
        begun = self._changes()
        value = self.slices.run(self._computed(key, encode))
        # A short one is done in its first slice.
        if not isinstance(value, Coroutine):
            return respond(value)
        self._started(key, value, begun)
        return self._in_turn(peer, key, encode, respond)

    def listed(
        self, peer: AnswerReader, request: Command, key: Hashable, body: Callable[[], Steps[Body]]
    ) -> LongAnswer:
        """The successful response with a body that is made and encoded in steps. Raises as `answer`."""

        def encode() -> Steps[bytes | None]:
            return (yield from self.encoded((yield from body())))

        return self.answer(peer, key, encode, lambda data: request.reply(body=data))

    def encoded(self, body: Body) -> Steps[bytes]:
        """A body, encoded in steps. Raises ResponseError 1 if it exceeds a frame."""
        return joined(body.pieces(), self._body_bytes_max)

    async def stop(self) -> None:
        """Cancel what runs."""
        await cancel(*[run.task for run in self._runs.values()])

    def _cached(self) -> dict[Hashable, bytes]:
        """The bodies of the table as it is."""
        # Only as a whole: entries of one state of the table belong together.
        if self._cached_at != self._changes() or self._bytes > CACHED_BYTES_MAX or len(self._bodies) > CACHED_MAX:
            self._bodies.clear()
            self._bytes = 0
            self._cached_at = self._changes()
        return self._bodies

    def _computed(self, key: Hashable, encode: Encode) -> Steps[bytes | None]:
        begun = self._changes()
        body = yield from encode()
        # A table that changed meanwhile makes the body too old for the cache; who asked before gets it all the same.
        if body is not None and begun == self._changes():
            self._cached()[key] = body
            self._bytes += len(body)
        return body

    async def _in_turn(self, peer: AnswerReader, key: Hashable, encode: Encode, respond: Respond) -> Command:
        """The answer, once the peer has read those that it asked for before."""
        # One lock for each connection: its answers go out one by one.
        async with self._turns.setdefault(peer, asyncio.Lock()):
            await peer.drain()
            return respond(await self._shared(key, encode))

    async def _shared(self, key: Hashable, encode: Encode) -> bytes | None:
        """The cached body, or that of a computation which began with the table as it is, or later."""
        # Again: it may have been cached while this one waited.
        body = self._cached().get(key)
        if body is not None:
            return body
        run = self._runs.get(key)
        if run is None:
            run = self._started(key, self.slices.result(self._computed(key, encode)), self._changes())
        # Begun with an older table: what has been asked since must see the newer one. `changes` is None before a run begins.
        elif run.changes not in (None, self._changes()):
            run = self._started(key, self._next(key, encode, run), None)
        # A connection that closes must not end the computation that others await.
        return await asyncio.shield(run.task)

    def _started(self, key: Hashable, work: Coroutine[Any, Any, bytes | None], changes: int | None) -> _Run:
        run = self._runs[key] = _Run(asyncio.get_running_loop().create_task(work), changes)

        def ended(task: asyncio.Future[bytes | None]) -> None:
            # A next one may have replaced it.
            if self._runs.get(key) is run:
                del self._runs[key]
            if not task.cancelled():
                task.exception()  # every caller gets it; if their connections are closed, it is of no interest

        run.task.add_done_callback(ended)
        return run

    async def _next(self, key: Hashable, encode: Encode, previous: _Run) -> bytes | None:
        # Not gather: an error of the previous one is not this one's.
        await asyncio.wait([previous.task])
        self._runs[key].changes = self._changes()  # this one: no other is added before it begins
        return await self.slices.result(self._computed(key, encode))
