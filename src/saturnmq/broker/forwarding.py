"""Passes requests of clients with an old route from a follower to the leader of its group, and serves them there.

    follower   client's request -> wait for a leader -> DLedger port of the leader -> its response -> client
    leader     request of a member -> handler, in the name of the client -> response

A request is executed at most once. The follower sends it again only if the leader has answered that it did not execute it, or could
not be reached, or if it changes nothing. When the answer to a change is lost the client is answered with code 1: whether it was
executed is unknown. The leader never forwards what a member has forwarded. The follower has checked the caller's rights; the
leader trusts members, by address and signature of the DLedger port.

Bounds: requests and bytes in flight, in all and per client address on the follower, per member on the leader; time by request code.

Requirements: SEC-18, LIM-13. Decision: docs/decisions/0016-forwarding.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final
from weakref import WeakKeyDictionary

from saturnmq.broker.forwarded_request import ForwardedClient, ForwardedRequest, ForwardOutcome
from saturnmq.broker.requests.table import FORWARDED, READER_ONLY, TABLE
from saturnmq.broker.requests.table_row import CALLER, Effect
from saturnmq.broker.services.long_polling import WAIT_SECONDS_MAX
from saturnmq.broker.settings import BrokerSettings
from saturnmq.errors import NoPermit
from saturnmq.net import ConnectFailed, Connection, Later, Reply
from saturnmq.net.connection import ConnectionOwner
from saturnmq.net.rejections import Rejections
from saturnmq.net.shares import Shares
from saturnmq.protocol.addresses import host_of
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.numbers import int64_or
from saturnmq.raft.wire.codec import RESPONSE_HEADER_CODE
from saturnmq.replication.dledger.member import GroupMember
from saturnmq.tasks import cancel, supervised

log = logging.getLogger(__name__)

ANSWER_MS: Final = 5000  # how long the leader may take, beyond the time that the request itself waits there
REPLY_MS: Final = 10_000  # a reply waits for its requester
RETRY_SECONDS: Final = 0.05
CLOSE_SECONDS: Final = 1.0  # how long a stop waits for the answers of pulls
TRANSFER_POLL_SECONDS: Final = 0.01  # while requests wait for the end of a transfer by this member
_REPLIES: Final = frozenset((RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2))
_REFUSED: Final = frozenset((ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE))
_EMPTY: Final = bytes((ForwardOutcome.NOT_SERVING,))

Instead = Callable[[Connection, Command], Reply]


class _AnswerLost(Exception):
    """The leader may have executed the request, and its answer is lost."""


class _InFlight:
    """Forwarded requests of one member that are in flight here, and their bytes."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0


class Forwarding:
    """Both sides of forwarding for one member.

    serve: the broker's handlers, for requests whose caller has the rights. owner: the listener whose limits and log the requests of
    members share. forwarded, served: how many requests this member has passed on, and has executed for others.
    """

    def __init__(
        self,
        group: GroupMember,
        settings: BrokerSettings,
        rejections: Rejections,
        serve: Instead,
        owner: Callable[[], ConnectionOwner],
    ) -> None:
        self._group = group
        self._settings = settings
        self._rejections = rejections
        self._serve = serve
        self._owner = owner
        self._requests = Shares()
        self._bytes = Shares()
        self._in_flight: WeakKeyDictionary[Connection, _InFlight] = WeakKeyDictionary()
        self._role_changed = asyncio.Event()
        self._transfer_timer: asyncio.TimerHandle | None = None
        self._waiting: set[asyncio.Task[Any]] = (
            set()
        )  # pulls at the leader, and requests that wait for this member to serve
        self._unsupporting: tuple[str, int] | None = None  # a leader without forwarded requests, and its term
        self._reading = 0  # pulls here, which the server does not count as in flight
        self._none_reading = asyncio.Event()
        self._closed = False
        self.forwarded = 0
        self.served = 0

    # ---- lifecycle

    def start(self) -> None:
        """Serve requests of other members from now on."""
        assert self._group.member is not None, "the store is open"
        self._group.member.peers.serve_forwarded = self.serve

    def changed(self) -> None:
        """The role has changed, another leader is known, or this member has begun to serve: waiting requests look again."""
        # Waiting requests hold the old event, which wakes them; those that must wait again wait for the new one.
        event, self._role_changed = self._role_changed, asyncio.Event()
        event.set()

    def _watch_transfer(self) -> None:
        """While this member transfers the leadership: let waiting requests look again when it has failed."""
        if self._group.transferring and self._transfer_timer is None:
            self._transfer_timer = asyncio.get_running_loop().call_later(TRANSFER_POLL_SECONDS, self._transfer_polled)

    def _transfer_polled(self) -> None:
        self._transfer_timer = None
        if self._group.transferring:
            self._watch_transfer()
        else:
            self.changed()

    async def close(self) -> None:
        """Forward nothing more. Pulls are answered at once, changes that the leader has are still waited for."""
        self._closed = True
        self.changed()
        if self._transfer_timer is not None:
            self._transfer_timer.cancel()
        # They would wait for an answer that may take long.
        await cancel(*self._waiting)
        self._none_reading.clear()
        if self._reading:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._none_reading.wait()

    # ---- follower

    @property
    def closed(self) -> bool:
        """Whether this member stops, and forwards nothing more."""
        return self._closed

    @property
    def possible(self) -> bool:
        """Whether requests may be forwarded: it is switched on, and the leader is not known to be a broker without it."""
        # Of this leader in this term only: the next one may be a newer version.
        unsupported = self._unsupporting is not None and self._unsupporting == self._leadership()
        return self._settings.forward_to_leader and not self._closed and not unsupported

    def _leadership(self) -> tuple[str, int] | None:
        """The leader that this member follows and its term."""
        member = self._group.member
        if member is None or member.node is None:
            return None
        leader, term = member.node.leader_id, member.node.term
        return (leader, term) if leader is not None and leader != self._group.raft.self_id else None

    def instead(self, connection: Connection, request: Command, otherwise: Instead) -> Reply:
        """Answer a request in FORWARDED that this member may not serve; `otherwise` answers it if no leader can.

        Raises ResponseError 2 if too many are in flight.
        """
        if not self.possible:
            return otherwise(connection, request)
        host, size = host_of(connection.remote_address), len(request.body or b"")
        limits = self._settings
        # Before anything is kept for the request.
        problem = self._requests.exceeded(host, 1, limits.forward_requests_max)
        problem = problem or self._bytes.exceeded(host, size, limits.forward_bytes_max)
        if problem is not None:
            text = f"[OVERLOAD]system busy, too many requests for the leader: {problem}"
            self._rejections.note("forwarding", connection.remote_address, text)
            raise response_error(ResponseCode.SYSTEM_BUSY, text)
        self._watch_transfer()
        self._requests.add(host, 1)
        self._bytes.add(host, size)
        account = connection.attributes.get(CALLER)
        account = str(account) if account is not None else None
        return Later(self._counted(connection, request, account, otherwise, host, size))

    async def _counted(
        self, connection: Connection, request: Command, account: str | None, otherwise: Instead, host: str, size: int
    ) -> Reply:
        try:
            # Counted apart, since a pull may wait long.
            if request.code not in READER_ONLY:
                return await self._forward(connection, request, account, otherwise)
            self._reading += 1
            try:
                with connection.release_in_flight(request):  # as parked pulls, which wait for messages
                    return await self._forward(connection, request, account, otherwise)
            finally:
                self._reading -= 1
                if not self._reading:
                    self._none_reading.set()
        finally:
            self._requests.add(host, -1)
            self._bytes.add(host, -size)

    async def _forward(
        self, connection: Connection, request: Command, account: str | None, otherwise: Instead
    ) -> Reply:
        """The leader's response to a request that is passed on, waiting for a leader for at most forwardWaitMs."""
        now = asyncio.get_running_loop().time
        until = now() + self._settings.forward_wait_ms / 1000
        while not connection.closed:
            # Taken before the look at the role, so that a change in between is not missed.
            changed = self._role_changed
            # This member leads itself by now.
            if self._group.settled:
                return self._serve(connection, request)
            leadership = self._leadership()
            remaining_seconds = until - now()
            if leadership is not None and self.possible:
                wait_ms = max(int(remaining_seconds * 1000), 0)
                forwarded = ForwardedRequest(connection.remote_address, account, wait_ms, request)
                try:
                    frame = await self._ask(leadership, forwarded)
                except _AnswerLost as error:
                    # A change may have been executed; a read is asked again.
                    if TABLE[request.code].effect is Effect.CHANGE and request.code not in READER_ONLY:
                        return _lost_answer(request, leadership[0], error)
                    frame = None
                if frame is not None:
                    return frame
            # Pulls are not kept: the client asks again.
            if remaining_seconds <= 0 or not self.possible or request.code in READER_ONLY:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    remaining_seconds if leadership is None else min(remaining_seconds, RETRY_SECONDS)
                ):
                    await changed.wait()
        return otherwise(connection, request)

    async def _ask(self, leadership: tuple[str, int], forwarded: ForwardedRequest) -> bytes | None:
        """The response of the leader as a frame; None if it did not execute the request. Raises _AnswerLost."""
        member = self._group.member
        assert member is not None, "the store is open"
        timeout_ms = forwarded.wait_ms + _answer_ms(forwarded.request)
        call = member.peers.forward(leadership[0], forwarded.encode(), timeout_ms)
        try:
            if forwarded.request.code in READER_ONLY:
                reply = await self._cancellable(call)
            else:
                reply = await call
        except (ConnectFailed, NoPermit) as error:
            # Written: the leader may have it.
            if isinstance(error, ConnectFailed) and error.sent:
                raise _AnswerLost(str(error)) from error
            log.debug("leader not reached leader=%s error=%s", leadership[0], error)
            return None
        except SaturnError as error:
            raise _AnswerLost(str(error)) from error
        # Not executed: asked again, or answered here.
        if reply is None or reply.code in _REFUSED:
            return None
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            if self._unsupporting != leadership:
                log.info("leader takes no forwarded requests leader=%s term=%s", *leadership)
            self._unsupporting = leadership
            return None
        body = reply.body or b""
        if reply.code != RESPONSE_HEADER_CODE or not body:
            raise _AnswerLost(f"code {reply.code} {reply.remark or ''}".strip())
        if body[0] == ForwardOutcome.ANSWERED:
            # Counted only if the leader has executed it.
            self.forwarded += 1
            return bytes(body[1:])
        return None

    async def _cancellable(self, call: Coroutine[Any, Any, Command]) -> Command | None:
        """The result of a call that `close` may give up; then None."""
        task = asyncio.get_running_loop().create_task(call)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
        # Cancelled by `close`.
        return None if task.cancelled() else task.result()

    # ---- leader

    def serve(self, member: Connection, body: bytes, answer: Callable[[bytes], None]) -> None:
        """Execute a request that another member has forwarded; `answer` is called once. Raises BodyError.

        A leader that does not serve yet keeps it for a while. A member that does not lead answers so and forwards nothing.
        """
        forwarded = ForwardedRequest.decode(body, self._owner().frame_limits)
        in_flight = self._in_flight.setdefault(member, _InFlight())
        # A member of a newer version may forward codes that this one does not.
        if forwarded.request.code not in FORWARDED:
            answer(bytes((ForwardOutcome.NOT_FORWARDED,)))
        elif (
            in_flight.count >= self._settings.forward_requests_max
            or in_flight.bytes + len(body) > self._settings.forward_bytes_max
        ):
            answer(bytes((ForwardOutcome.BUSY,)))
        elif self._group.settled:
            self._execute(forwarded, _counting(in_flight, len(body), answer))
        elif self._group.elected and not self._closed:
            self._watch_transfer()
            work = self._execute_later(forwarded, _counting(in_flight, len(body), answer))
            task = supervised(work, "forwarded request")
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        else:
            answer(_EMPTY)

    async def _execute_later(self, forwarded: ForwardedRequest, answer: Callable[[bytes], None]) -> None:
        """Execute the request once this member serves; refuse it if that takes too long, or another one leads."""
        serves = False
        try:
            async with asyncio.timeout(forwarded.wait_ms / 1000):
                # Woken at each change of role, whatever it is.
                while self._group.elected and not (serves := self._group.settled):
                    await self._role_changed.wait()
        except TimeoutError:
            serves = False
        finally:
            # Also if it is cancelled: each request is answered once.
            if not serves:
                answer(_EMPTY)
        if serves:
            self._execute(forwarded, answer)

    def _execute(self, forwarded: ForwardedRequest, answer: Callable[[bytes], None]) -> None:
        self.served += 1
        client = ForwardedClient(
            self._owner(), forwarded, lambda frame: answer(bytes((ForwardOutcome.ANSWERED,)) + frame)
        )
        request = forwarded.request
        try:
            reply = self._serve(client, request)
        # As the server does it: the error becomes the client's answer.
        except Exception as error:
            reply = client.failure(request, error)
        if isinstance(reply, bytes):
            client.send(reply)
        else:
            client.respond(request, reply)


def _answer_ms(request: Command) -> int:
    """Time to wait for the answer of a leader that serves, ms."""
    if request.code in _REPLIES:
        return ANSWER_MS + REPLY_MS
    if request.code in READER_ONLY:
        return ANSWER_MS + min(max(int64_or(request.ext, "suspendTimeoutMillis", 0), 0), int(WAIT_SECONDS_MAX * 1000))
    return ANSWER_MS


def _counting(in_flight: _InFlight, size: int, answer: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Count a request as in flight until it is answered."""
    in_flight.count += 1
    in_flight.bytes += size

    def answered(body: bytes) -> None:
        in_flight.count -= 1
        in_flight.bytes -= size
        answer(body)

    return answered


def _lost_answer(request: Command, leader: str, error: _AnswerLost) -> Command:
    text = f"the answer of the leader {leader} is lost, whether it has executed the request is unknown: {error}"
    log.info("forwarded request lost code=%s leader=%s error=%s", request.code, leader, error)
    return request.reply(ResponseCode.SYSTEM_ERROR, text)
