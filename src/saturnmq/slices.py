"""Runs long requests and encodings in slices of a few milliseconds, so that the event loop serves others in between.

Long work is a generator that yields after each small step. A request that ends within its first slice is answered at once. Of
all others of one `Slices`, one runs at a time, in order of arrival, for at most half of the loop's time: however many peers ask
for the most expensive answers, they delay each other; other requests wait for one slice at most.

Requirements: REM-12, LIM-09, LIM-10.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Generator, Iterator
from time import monotonic, thread_time
from typing import Any, Final, Protocol, TypeVar

from saturnmq.protocol.bodies import Body
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.frames.command import FRAME_BYTES_MAX, Command

log = logging.getLogger(__name__)

SLICE_SECONDS: Final = 0.001
WAITING_MAX: Final = 256
PATIENT_MAX: Final = 64  # patient work that waits or runs
_HEAD_BYTES: Final = 1024  # of the frame of an answer, without its body

T = TypeVar("T")
Steps = Generator[None, None, T]
LongAnswer = Command | Coroutine[Any, Any, Command]


class Places(Protocol):
    """The places of patient work, shared out among the clients' hosts."""

    def exceeded(self, host: str, change: int, limit: int) -> str | None:
        """Why a host may not take more, or None."""

    def add(self, host: str, change: int) -> None:
        """Count what a host takes, or gives back."""


class _Ended(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


def _advance(work: Steps[T], seconds: float) -> None:
    """Run the work for one slice. Raises _Ended with its result.

    For half of the slice the cheaper clock suffices: no more processor time has passed. Then processor time decides, because a
    preempted process has done nothing meanwhile.
    """
    half = seconds / 2
    try:
        until = monotonic() + half
        next(work)
        while monotonic() < until:
            next(work)
        until = thread_time() + half
        while thread_time() < until:
            next(work)
    except StopIteration as end:
        raise _Ended(end.value) from None


def completed(work: Steps[T]) -> T:
    """The result of the work, run to its end without a pause, where no event loop waits."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: T = end.value
            return value


class Slices:
    """Runs work in slices.

    waiting_max: limit on work that waits or runs; more is rejected. frame_bytes_max: limit on the frame of an answer, at least
    the default one. body_bytes_max: what that leaves for a body. places: of patient work; without them there is none.
    """

    def __init__(
        self,
        *,
        first_seconds: float = SLICE_SECONDS,
        waiting_max: int = WAITING_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        places: Places | None = None,
    ) -> None:
        self.body_bytes_max: Final = max(frame_bytes_max, FRAME_BYTES_MAX) - _HEAD_BYTES
        self._first_seconds = first_seconds
        self._waiting_max = waiting_max
        self._waiting: dict[object, float] = {}  # arrival of each, in order; event-loop seconds
        self._turn = asyncio.Lock()
        self._patient_turn = asyncio.Lock()
        self._places = places

    def run(self, work: Steps[T], *, patient: str | None = None) -> T | Coroutine[Any, Any, T]:
        """The result, or, if one slice is too short for it, what awaits it.

        patient: the host of the client whose work this is: other work that waits goes first after each slice, of patient work one
        runs at a time, and no host can take the places of all others.

        Raises what the work raises, and ResponseError 2 if too much is waiting, or too much of this host.
        """
        try:
            _advance(work, self._first_seconds)
        except _Ended as end:
            value: T = end.value
            return value
        if (problem := self._problem(patient)) is not None:
            work.close()
            raise response_error(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy, {problem}; try again later")
        token = object()
        self._waiting[token] = asyncio.get_running_loop().time()
        self._take(patient, 1)
        return self._rest(work, token, patient)

    def _problem(self, patient: str | None) -> str | None:
        """Why no more work may wait, or none of this host; else None."""
        if self.waiting >= self._waiting_max:
            return f"{self.waiting} long requests are waiting"
        if patient is None:
            return None
        assert self._places is not None, "patient work has places"
        problem = self._places.exceeded(patient, 1, PATIENT_MAX)
        return problem and f"no more long searches can wait: {problem}"

    def _take(self, patient: str | None, change: int) -> None:
        if patient is not None and self._places is not None:
            self._places.add(patient, change)

    @property
    def waiting(self) -> int:
        """Number of requests that wait or run."""
        return len(self._waiting)

    @property
    def waited_ms(self) -> int:
        """For how long the first of them has, in ms; 0 without."""
        first = next(iter(self._waiting.values()), None)
        return 0 if first is None else int((asyncio.get_running_loop().time() - first) * 1000)

    def reply(self, request: Command, body: Body | Iterator[bytes]) -> Steps[Command]:
        """The successful response with a body, or the pieces of one, encoded in steps. Raises ResponseError 1 above a frame."""
        return request.reply(body=(yield from self.joined(body.pieces() if isinstance(body, Body) else body)))

    def joined(self, pieces: Iterator[bytes]) -> Steps[bytes]:
        """Join the pieces of a body in steps. Raises ResponseError 1 as soon as they exceed a frame."""
        return joined(pieces, self.body_bytes_max)

    async def result(self, work: Steps[T], *, patient: str | None = None) -> T:
        """The result of the work. Raises as `run`."""
        value = self.run(work, patient=patient)
        return await value if isinstance(value, Coroutine) else value

    async def _rest(self, work: Steps[T], token: object, patient: str | None) -> T:
        try:
            if patient is not None:
                async with self._patient_turn:
                    return await self._in_turns(work)
            async with self._turn:
                return await finish(work)
        finally:
            del self._waiting[token]
            self._take(patient, -1)

    async def _in_turns(self, work: Steps[T]) -> T:
        while True:
            async with self._turn:
                try:
                    _advance(work, SLICE_SECONDS)
                except _Ended as end:
                    value: T = end.value
                    return value
                await asyncio.sleep(SLICE_SECONDS)


async def finish(work: Steps[T]) -> T:
    """Run work to its end, in slices with a pause of the same length after each."""
    while True:
        try:
            _advance(work, SLICE_SECONDS)
        except _Ended as end:
            value: T = end.value
            return value
        await asyncio.sleep(SLICE_SECONDS)


class Pace:
    """Paces a loop that awaits `step` after each step: after each slice a pause of the same length."""

    def __init__(self) -> None:
        self._until = thread_time() + SLICE_SECONDS

    async def step(self) -> None:
        """Let other tasks run if the slice is used up."""
        if thread_time() >= self._until:
            await asyncio.sleep(SLICE_SECONDS)
            self._until = thread_time() + SLICE_SECONDS


class Background:
    """Work that no request waits for: in slices with a pause of the same length after each, in order of arrival."""

    def __init__(self) -> None:
        self._work: deque[Steps[Any]] = deque()
        self._timer: asyncio.Handle | None = None

    @property
    def busy(self) -> bool:
        """Whether work is seconds_left."""
        return bool(self._work)

    def add(self, work: Steps[Any]) -> None:
        """Run the work, from the next event-loop iteration on."""
        self._work.append(work)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._run)

    def begin(self, work: Steps[Any]) -> None:
        """Run the work: one slice at once, the rest after what was added before."""
        with contextlib.suppress(_Ended):
            _advance(work, SLICE_SECONDS)
            self.add(work)

    async def run(self, work: Steps[T]) -> T:
        """Run the work as `begin` does, and wait for its result. Without its caller it goes on. Raises what the work raises."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def reporting() -> Steps[None]:
            try:
                result = yield from work
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self.begin(reporting())
        return await done

    def finish(self) -> None:
        """Run all that is seconds_left at once: the event loop serves no one any more."""
        while self._work:
            for _ in self._work.popleft():
                pass

    def drop(self) -> None:
        """Close what is seconds_left without running it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._work:
            self._work.popleft().close()

    def _run(self) -> None:
        self._timer = None
        until = thread_time() + SLICE_SECONDS
        while self._work and (seconds_left := until - thread_time()) > 0:
            try:
                _advance(self._work[0], seconds_left)
            except _Ended:
                self._work.popleft()
            except Exception:
                self._work.popleft()
                log.exception("background work failed")
        if self._work:
            self._timer = asyncio.get_running_loop().call_later(SLICE_SECONDS, self._run)


def joined(pieces: Iterator[bytes], bytes_max: int | None = None) -> Steps[bytes]:
    """Join pieces in steps, one per piece. Raises ResponseError 1 as soon as they exceed bytes_max."""
    parts = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if bytes_max is not None and size > bytes_max:
            text = f"the answer exceeds {bytes_max} bytes, what com.rocketmq.remoting.frameMaxLength allows; ask for a part of it"
            raise response_error(ResponseCode.SYSTEM_ERROR, text)
        parts.append(piece)
        yield
    return b"".join(parts)
