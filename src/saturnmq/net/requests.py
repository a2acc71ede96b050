"""Requests of one connection: passes decoded commands to the handler in order, and sends what it returns.

The life of a request. `Connection` reads a chunk, the decoder splits it into commands, and `run` handles them in the order in
which they were sent. A handler returns the response, decoded or as a whole frame, or `Later`. What is ready at once is appended to
the connection's output and leaves in one write per chunk; what is promised counts as in flight (`Limits`) until it is answered,
out of order, which the opaque number in each frame allows. So requests of one connection start in order and may end in any order:
two sends to a queue are stored in order, a pull that is parked delays nothing. A one-way request has a handler like all others,
and its response is dropped here.

Two things make `run` stop before the last command. They differ in who continues it:

- the peer does not read its responses, or has too many requests in flight: the rest waits in `limits.backlog`, reading from the
  socket is paused, and `resume` goes on when the output drains or a response ends a request. Back-pressure is TCP's;
- the connection has used its share of processor time (`fair_queue.quantum`): the queue of connections calls `take_turn` after
  the others have had theirs; or it is throttled, because a handler deferred a request that exceeds a limit.

While requests of all connections hold all the memory they may, only small ones are served; others are answered SYSTEM_BUSY.

Whatever a handler raises becomes an error response and never ends the connection: a request is a peer's input, and one bad request
must not cost the good ones beside it. Cancellation alone passes through. Everything runs on the event loop, without locks.

The loop in `run` is the hot path: a request that is answered at once costs one Python call here, that of its handler. If the owner
wants the durations of requests, they are counted by code, inline there, from the start of the handler to the response; of a pull
that is parked, to its parking.

Requirements: REM-05, REM-08, REM-11, REM-12, REM-15, LIM-09, LIM-10.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from saturnmq.log_limit import LogLimit
from saturnmq.metrics import Histogram
from saturnmq.net.calls import Calls
from saturnmq.net.fairness import FairQueue, TurnTaker
from saturnmq.net.later import NO_RESPONSE, Later, Reply
from saturnmq.net.limits import Limits, RequestMemory, memory_of
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.codes import CommandFlag, ResponseCode
from saturnmq.protocol.errors import MissingField, ResponseError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.frames.decoder import FrameDecoder

log = logging.getLogger(__name__)

_SMALL_BYTES: Final = (
    4096  # requests of at most this size, header fields included, are served even under memory pressure
)
_ERROR_CHARS_MAX: Final = 500  # of an error in the log; it may quote what the peer sent
_FLUSH_BYTES: Final = 131_072  # corked responses are written once they exceed this
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
OTHER_CODES: Final = -1  # key of the durations of all codes without a histogram of their own


class RpcHook(Protocol):
    """Called before and after every request of an endpoint (REM-15). An exception in `before` becomes the error response."""

    def before(self, remote_address: str, request: Command) -> None: ...
    def after(self, remote_address: str, request: Command, response: Command) -> None: ...


class RequestOwner(Protocol):
    """What the requests of a connection use of its endpoint."""

    stopping: bool
    later_count: int

    @property
    def hooks(self) -> Sequence[RpcHook]: ...
    @property
    def request_memory(self) -> RequestMemory: ...
    @property
    def rejections(self) -> Rejections: ...
    @property
    def failure_log(self) -> LogLimit: ...
    @property
    def all_answered(self) -> asyncio.Event: ...
    @property
    def fair_queue(self) -> FairQueue: ...
    @property
    def request_seconds(self) -> dict[int, Histogram] | None: ...
    def spawn(self, work: Coroutine[Any, Any, Any]) -> None: ...


class Output(Protocol):
    """A connection. While it is corked, frames are appended to `out` and written by `flush`.

    `receive_held` decodes and handles the bytes that were held back.
    """

    remote_address: str
    network: str
    closed: bool
    out: list[bytes]
    out_bytes: int
    corked: bool

    def send(self, command: Command | bytes) -> None: ...
    def flush(self) -> None: ...
    def receive_held(self) -> None: ...


C = TypeVar("C", bound=Output)


class LostOutput:
    """In place of a connection that is lost, so that no cycle of references keeps it in memory: what is sent is dropped."""

    __slots__ = ("network", "out", "remote_address")
    closed = True
    corked = False
    out_bytes = 0

    def __init__(self, remote_address: str, network: str) -> None:
        self.remote_address = remote_address
        self.network = network
        self.out: list[bytes] = []

    def send(self, command: Command | bytes) -> None:
        """Drop a response."""

    def flush(self) -> None:
        """Write nothing."""

    def receive_held(self) -> None:
        """Nothing is held."""


def error_remark(error: BaseException) -> str:
    """`ClassName: message`, the remark of an error response, which clients display verbatim (REM-11)."""
    return f"{type(error).__name__}: {error}"


def failure(request: Command, error: Exception, peer: str, log_limit: LogLimit) -> Command:
    """The error response for a failed handler: the error's own code, or SYSTEM_ERROR (REM-08, REM-11).

    Logged within log_limit: a peer can send a request that fails as often as it likes.
    """
    if isinstance(error, ResponseError):
        # A handler may leave the code out.
        return request.reply(error.code or ResponseCode.SYSTEM_ERROR, error.remark)
    if isinstance(error, MissingField):
        return request.reply(ResponseCode.SYSTEM_ERROR, error.message)
    remark = error_remark(error)
    suppressed = log_limit.suppressed(peer.rpartition(":")[0])
    if suppressed is not None:
        expected = isinstance(error, SaturnError)
        log.log(
            logging.INFO if expected else logging.ERROR,
            "handler failed code=%s peer=%s suppressed=%s error=%s",
            request.code,
            peer,
            suppressed,
            remark[:_ERROR_CHARS_MAX],
            exc_info=None if expected else error,
        )
    return request.reply(ResponseCode.SYSTEM_ERROR, remark)


class Requests(Generic[C]):
    """Handles the commands that a connection has decoded."""

    __slots__ = ("_began", "_calls", "_connection", "_limits", "_loop", "_owner", "handler")

    def __init__(
        self,
        connection: C,
        handler: Callable[[C, Command], Reply],
        owner: RequestOwner,
        limits: Limits,
        calls: Calls,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.handler = handler
        self._connection = connection
        self._owner = owner
        self._limits = limits
        self._calls = calls
        self._loop = loop
        self._began = 0.0  # of the handler that runs, time.monotonic(); not set unless durations are counted

    def release(self) -> None:
        """The connection is lost: refer to it no more."""
        self._connection = cast("C", LostOutput(self._connection.remote_address, self._connection.network))

    # ---- order and fairness

    def run(self, commands: list[Command], *, last: bool = False) -> None:
        """Handle commands in order; their immediate responses leave in one write. last: at once, no iteration follows."""
        limits = self._limits
        # In order: what was read before is handled before.
        if limits.backlog:
            limits.backlog.extend(commands)
            return
        connection, owner, handler = self._connection, self._owner, self.handler
        memory = owner.request_memory
        # One test per batch instead of three per request.
        special = bool(owner.hooks) or owner.stopping or memory.used >= memory.bytes_max
        # Responses of a batch leave in one write.
        connection.corked = True
        durations, now = owner.request_seconds, monotonic()
        until, final = now + owner.fair_queue.quantum, len(commands) - 1
        for index, command in enumerate(commands):
            # A response to a call of this side, on the same connection.
            if command.flag & _RESPONSE:
                self._calls.complete(command)
            elif special:
                self._handle_checked(command)
            else:
                self._began = now
                try:
                    reply = handler(connection, command)
                except Exception as error:
                    self._answer(command, failure(command, error, connection.remote_address, self._owner.failure_log))
                    self._count(command, self._began)
                    now = monotonic()
                else:
                    if durations is not None:
                        now = monotonic()
                        # A promised one is counted when it is answered.
                        if type(reply) is not Later:
                            duration = durations.get(command.code) or durations[OTHER_CODES]
                            duration.counts[bisect_left(duration.edges, now - self._began)] += 1
                            duration.sum += now - self._began
                    # An encoded frame: the hot path of sends and pulls.
                    if type(reply) is bytes:
                        if not command.flag & _ONEWAY and not connection.closed:
                            connection.out.append(reply)
                            connection.out_bytes += len(reply)
                    else:
                        self.respond(command, reply, self._began)
            # A batch of large responses must not pile up before the first is written.
            if connection.out_bytes >= _FLUSH_BYTES:
                connection.flush()
            # A handler of this batch may have filled a limit.
            if limits.write_paused or limits.full or (limits.yielding and not last):
                limits.backlog.extend(commands[index + 1 :])
                break
            # Not after the last: there is nothing to leave for later.
            if index < final and not last and monotonic() > until:
                limits.backlog.extend(commands[index + 1 :])
                self.yield_turn()
                break
        connection.corked = False
        if connection.out:
            connection.flush()
        limits.update_reading()

    def yield_turn(self) -> None:
        """Leave the rest of what this connection has sent to its next turn; others are served in between."""
        self._pause(self._owner.fair_queue.wait)

    def throttle(self) -> None:
        """As `yield_turn`, for a handler that defers a request over a limit: the next turn comes at a bounded rate."""
        self._pause(self._owner.fair_queue.throttle)

    def _pause(self, wait: Callable[[TurnTaker], None]) -> None:
        # It waits already.
        if not self._limits.yielding:
            self._limits.yielding = True
            wait(self)
            self._limits.update_reading()

    @property
    def network(self) -> str:
        """What peers of the connection's address share."""
        return self._connection.network

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return self._connection.closed

    def take_turn(self) -> None:
        """Handle requests held back because this connection used its quantum, or was throttled."""
        self._limits.yielding = False
        self.resume()

    def resume(self) -> None:
        """Handle requests held back: the peer did not read, or had too many in flight. No effect while it waits for its turn."""
        limits, connection = self._limits, self._connection
        # Decoded requests first, then bytes: the order of arrival.
        if limits.backlog and limits.may_handle and not connection.closed:
            self.run(self.take_backlog())
        # Handling the backlog may have filled a limit again.
        if limits.undecoded and not limits.backlog and limits.may_handle and not connection.closed:
            connection.receive_held()
        limits.update_reading()

    def take_backlog(self) -> list[Command]:
        """Remove and return the requests held back."""
        waiting = list(self._limits.backlog)
        self._limits.backlog.clear()
        return waiting

    # ---- one request

    def _handle_checked(self, command: Command) -> None:
        """Handle a request while hooks are registered, the endpoint is stopping, or requests use all their memory."""
        connection, owner = self._connection, self._owner
        if owner.stopping:
            self._answer(command, command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "this server is stopping"))
            return
        # Small requests are served under memory pressure: heartbeats, offsets, unregistration.
        if memory_of(command) > _SMALL_BYTES and self._overloaded(command):
            return
        try:
            for hook in owner.hooks:
                hook.before(connection.remote_address, command)
            self._began = monotonic()
            reply = self.handler(connection, command)
        except Exception as error:
            self._answer(command, failure(command, error, connection.remote_address, self._owner.failure_log))
            return
        if type(reply) is not Later:
            self._count(command, self._began)
        self.respond(command, reply, self._began)

    def _overloaded(self, command: Command) -> bool:
        """Reject a request while the requests in flight use all memory they may use; return whether it was rejected (LIM-10)."""
        memory = self._owner.request_memory
        if memory.used < memory.bytes_max:
            return False
        text = f"[OVERLOAD]system busy, start flow control for a while ({memory.used} bytes of requests in flight)"
        self._owner.rejections.note("overload", self._connection.remote_address, text)
        self._answer(command, command.reply(ResponseCode.SYSTEM_BUSY, text))
        return True

    def respond(self, command: Command, reply: Reply, began: float) -> None:
        """Send what a handler returned for a request, now or once it is known. began: of the handler, time.monotonic()."""
        if type(reply) is Later:
            # A parked pull has limits of its own and may wait for long; it must not fill this connection.
            if reply.in_flight:
                self._limits.begin(command)
                self._owner.later_count += 1
            else:
                self._count(command, began)
            reply.bind(self, command, began)
        elif type(reply) is Command:
            self._answer(command, reply)
        elif type(reply) is bytes and reply:
            self._answer(command, FrameDecoder().feed(reply)[0])  # hooks need the decoded command

    def answer_later(self, later: Later, reply: Reply | Awaitable[Reply]) -> None:
        """Send the response to a request whose handler returned `later`."""
        owner, command = self._owner, later.command
        assert command is not None, "it is bound"
        if not isinstance(reply, Command | bytes | Later):
            owner.spawn(self._finish(later, command, reply))
            return
        if later.in_flight:
            owner.later_count -= 1
            # Another promise: it is counted with its own answer.
            if type(reply) is not Later:
                self._count(command, later.began)
            # Before the response is sent, so that reading goes on.
            self._end(command)
        if type(reply) is bytes and not owner.hooks:
            if reply and not command.flag & _ONEWAY:
                self._connection.send(reply)
        else:
            self.respond(command, reply, later.began)
        if owner.stopping and not owner.later_count:
            # The endpoint waits for it when it stops.
            owner.all_answered.set()

    def _count(self, command: Command, began: float) -> None:
        """Count how long a request took, off the hot path."""
        durations = self._owner.request_seconds
        if durations is not None:
            (durations.get(command.code) or durations[OTHER_CODES]).observe(monotonic() - began)

    async def _finish(self, later: Later, command: Command, work: Awaitable[Reply]) -> None:
        # A cancelled task sends nothing, but the request still has to end.
        reply: Reply = NO_RESPONSE  # if the task is cancelled
        try:
            reply = await work
        except Exception as error:
            reply = failure(command, error, self._connection.remote_address, self._owner.failure_log)
        finally:
            later.answer(reply)

    def _end(self, command: Command) -> int:
        """Count a request as completed; handle requests held back because of the limit. Returns its memory, bytes."""
        held = self._limits.end(command)
        if self._limits.read_paused:
            # Not here: this may run inside the handler of another request.
            self._loop.call_soon(self.resume)
        return held

    @contextlib.contextmanager
    def release_in_flight(self, command: Command) -> Iterator[None]:
        """Do not count a request as in flight while it waits for another peer.

        Otherwise this connection might stop being read although the awaited answer arrives on it.
        """
        memory = self._owner.request_memory
        held = self._end(command)
        memory.used += held  # it still occupies memory
        try:
            yield
        finally:
            memory.used -= held
            self._limits.begin(command)

    def _answer(self, command: Command, reply: Command) -> None:
        if command.flag & _ONEWAY:
            return
        connection = self._connection
        try:
            for hook in self._owner.hooks:
                hook.after(connection.remote_address, command, reply)
            connection.send(reply)
        except Exception as error:  # a failing hook, or a response that cannot be encoded
            # The replacement has no body and cannot fail in the same way.
            connection.send(failure(command, error, connection.remote_address, self._owner.failure_log))
