"""One TCP connection, on the server or client side: bytes, TLS, frames and its life. Composed of three parts with their own state.

    requests.py  `Requests`: commands to the handler and back     calls.py   `Calls`: calls to the peer and their deadlines
    limits.py    `Limits`: back-pressure, in-flight limits, shares states.py  the table of states and events

A connection decodes no bodies and knows no request codes. A peer that sends invalid bytes loses its own connection; other
connections are unaffected. Closing a connection fails its pending calls at once. All methods run on the event loop.

`Connection` knows its endpoint only as the protocol `ConnectionOwner`; `endpoint.py` imports this module, never the reverse.

Requirements: REM-02..REM-08, REM-11, REM-16..REM-24, REM-29, LIM-09..LIM-11.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any, Final, Protocol, cast

from saturnmq.net.calls import Calls, Permits, next_opaque
from saturnmq.net.fairness import BULK_BYTES, DECODED_AT_ONCE, Expense
from saturnmq.net.later import Reply
from saturnmq.net.limits import Limits, Watch
from saturnmq.net.plain_reads import PlainReads, PlainSends
from saturnmq.net.requests import RequestOwner, Requests, failure
from saturnmq.net.settings import NetSettings
from saturnmq.net.states import CLOSED_STATES, TRANSITIONS, ConnectionEvent, ConnectionState
from saturnmq.net.tls import TLS_CLIENT_HELLO, TlsStream
from saturnmq.protocol.addresses import host_of, network_of
from saturnmq.protocol.codes import CommandFlag
from saturnmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from saturnmq.protocol.frames.command import (
    FRAME_BYTES_MAX,
    Command,
    FrameLimits,
    Serialization,
    encode_frame,
    encode_head,
)
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.message import pack_host
from saturnmq.slices import Steps

log = logging.getLogger(__name__)

Handler = Callable[["Connection", Command], Reply]

_SEPARATE_BODY_BYTES: Final = 16_384  # bodies of at least this size are written as a separate buffer, without copying
_UNREAD_BYTES_MAX: Final = 262_144  # of a lost connection that are still handled
_BETWEEN_PLAIN: Final = 4  # frames that are decoded before the next is looked at as a plain send
_DRAINED_AT_ONCE: Final = 8  # frames of a lost connection in one step
_HTTP_STARTS: Final = (b"PRI ", b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"CONN", b"PATC", b"TRAC")
_ONEWAY: Final = int(CommandFlag.ONEWAY)


class ConnectionOwner(RequestOwner, Protocol):
    """What a connection uses of its endpoint."""

    @property
    def handler(self) -> Handler: ...
    @property
    def settings(self) -> NetSettings: ...
    @property
    def serialization(self) -> Serialization | None: ...
    @property
    def frame_limits(self) -> FrameLimits: ...
    @property
    def async_permits(self) -> Permits: ...
    @property
    def detects_tls(self) -> bool: ...
    @property
    def plain_reads(self) -> PlainReads | None: ...
    def choose_tls(self, first_byte: int) -> tuple[TlsStream | None, str | None]: ...
    def opened(self, connection: Connection) -> None: ...
    def lost(self, connection: Connection) -> None: ...
    def drain(self, connection: Connection, unread: bytes) -> bool: ...
    def note_partial(self, connection: Connection, pending_bytes: int, *, is_new_frame: bool) -> None: ...


class Connection(asyncio.Protocol):
    """One remoting connection, created by a RemotingServer or RemotingClient. Interface: docs/decisions/0001."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self.remote_address = ""
        self.network = ""  # what peers of its address share
        self.local_address = ""
        self.attributes: dict[str, object] = {}
        self.state = ConnectionState.NEW
        self.closed = False  # the state is one of CLOSED_STATES
        self.close_reason = ""
        self.signed = False  # see mark_signed
        self.encrypted = False  # it uses TLS
        self.active = True  # bytes were sent or received since the last idle scan
        self.reads = 0  # number of reads; shows whether the peer is alive
        self.watch = Watch()
        self.out: list[bytes] = []  # frames of the next write
        self.out_bytes = 0
        self.corked = False  # a batch of requests is handled, its end flushes
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(owner.frame_limits)
        self._tls: TlsStream | None = None
        self._detecting = owner.detects_tls  # the next byte decides between TLS and plain
        # Bytes that wait for this connection's turn or the end of the iteration, while `limits.undecoded`: as received until the
        # TLS handshake is complete, then decrypted.
        self.held = b""
        self._bulk = False  # the last read used up the quantum
        self._all_plain = False  # the last read had plain sends only, and all were taken
        self._expense = Expense()
        self._partial = False  # whether the endpoint accounts for partial-frame bytes of this connection
        self._flush_scheduled = False
        self._drained: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self.calls = Calls(self._loop)
        self.limits = Limits(owner.settings, owner.request_memory)
        self.requests = Requests(self, owner.handler, owner, self.limits, self.calls, self._loop)

    @functools.cached_property
    def packed_host(self) -> bytes:
        """Address and port of the peer as in a record."""
        ip, _, port = self.remote_address.rpartition(":")
        return pack_host((ip.partition("%")[0] or "127.0.0.1", int(port or 0)))

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    def _change(self, event: ConnectionEvent) -> None:
        self.state = TRANSITIONS[self.state, event]
        self.closed = self.state in CLOSED_STATES

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self.limits.transport = cast("asyncio.Transport", transport)
        self.remote_address = self.calls.peer = _address(transport.get_extra_info("peername"))
        self.network = network_of(host_of(self.remote_address))
        self.local_address = _address(transport.get_extra_info("sockname"))
        self._change(ConnectionEvent.CONNECTED)
        settings = self._owner.settings
        self._transport.set_write_buffer_limits(high=settings.write_high_bytes, low=settings.write_low_bytes)
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport, self.limits.transport = self._transport, None, None
        if not self.closed:
            self.close_reason = f"connection error: {exc}" if exc else "closed by the peer"
            if exc is not None and transport is not None:
                self._change(ConnectionEvent.RESET)
                if self._owner.drain(self, _unread(transport)):  # `finish` follows then
                    return
        self.finish()

    def finish(self) -> None:
        """The connection is lost and no request of it is handled any more: release what it holds, and notify the endpoint."""
        self._change(ConnectionEvent.LOST)
        self.limits.backlog.clear()
        self.held = b""
        self._decoder.clear()  # a handler may refer to this object for long
        self._tls = None
        self.limits.undecoded = False
        self.out.clear()
        self.calls.fail(self.close_reason)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if not self._lost.done():
            self._lost.set_result(None)
        self._owner.lost(self)
        self.requests.release()  # frozen objects in a cycle would never be freed (server_admin/collector.py)

    def data_received(self, data: bytes) -> None:
        self.active = True
        self.reads += 1
        received, reads = len(data), self._owner.plain_reads
        if self._all_plain and reads is not None and received < BULK_BYTES:  # the common case of a busy producer
            self._all_plain = False
            reads.add(self, data)
            return
        if self._detecting and not self._accepts(data):
            return
        if self.handshaking and self._owner.detects_tls:
            self._await_handshake(data)
            return
        if self._tls is not None:
            data = self._decrypt(data)
            if not data:
                return
        queue, limits = self._owner.fair_queue, self.limits
        if limits.undecoded:
            self.held += data
            if len(self.held) >= BULK_BYTES:
                self.requests.yield_turn()  # uvloop would read on at once
        elif self._transport is not None and (
            self._expense.expensive or self.network in queue.overdrawn or (self._bulk and queue)
        ):
            self._hold(data)
        elif reads is not None and received < BULK_BYTES and limits.may_handle and not self._decoder.pending_bytes:
            reads.add(self, data)
        else:
            self._read(data)
            if received >= BULK_BYTES:
                self.requests.yield_turn()
        self._bulk = limits.yielding

    def _read(self, data: bytes, *, maybe_plain: bool = True) -> None:
        """Decode and handle what was received, and account for the time."""
        began = self._expense.begin()
        self._receive(data, maybe_plain=maybe_plain)
        used = self._expense.end(began)
        if self._owner.fair_queue.shared:
            self._owner.fair_queue.spend(self.network, used)

    # ---- plain sends: see plain_reads.py

    def feed_plain(self, sends: PlainSends, until: float) -> None:
        """Let `sends` take what it can of the bytes that are held."""
        if self.held and self.limits.may_handle and not self.limits.backlog:
            end = sends.feed(self.held, until, self)
            if end:
                self.held = self.held[end:]
                self.watch.frame_since = 0.0
                self.watch.frame_seen = True
                if self.held and monotonic() >= until:
                    self.requests.yield_turn()

    def end_plain(self) -> None:
        """Write the answers to what was taken, and handle the rest."""
        limits = self.limits
        if self.out:
            self.flush()
        if limits.yielding or not limits.undecoded:  # it waits for its turn, or has had it
            return
        if not limits.may_handle:  # what was taken fills a limit; see `Requests.resume`
            limits.update_reading()
            return
        data = self.held
        limits.undecoded = False
        if not data and not limits.read_paused and self._tls is None:
            self._all_plain = True
            return
        self.held = b""
        if data and not self.closed:
            if self.network in self._owner.fair_queue.overdrawn:
                self._hold(data)
            else:
                self._read(data, maybe_plain=False)
        if limits.read_paused:
            limits.update_reading()
        self._bulk = limits.yielding

    def _accepts(self, data: bytes) -> bool:
        """Decide by the first bytes between plain and TLS; whether they are accepted. Closes the connection if not."""
        self._detecting = False
        if data[:4] in _HTTP_STARTS:
            self.refuse("foreign_protocol", "HTTP request on a port of the RocketMQ protocol")
            return False
        self._tls, problem = self._owner.choose_tls(data[0])
        if problem:
            self.refuse("foreign_protocol" if data[0] == TLS_CLIENT_HELLO else "plain", problem)
            return False
        self.encrypted = self._tls is not None
        return True

    @property
    def handshaking(self) -> bool:
        """Whether the connection uses TLS and its handshake is not complete."""
        return self._tls is not None and not self._tls.ready

    def _await_handshake(self, data: bytes) -> None:
        """A step of a handshake takes a millisecond and more, so it waits for this connection's turn (LIM-09)."""
        if self.limits.undecoded:
            self.held += data
        elif self._transport is not None:
            self._hold(data)

    def _decrypt(self, data: bytes) -> bytes:
        """The decrypted bytes that are complete; closes the connection if TLS fails."""
        if self._tls is None:
            return data
        try:
            data = self._tls.feed(data)
        except OSError as error:
            self._write_tls()
            self.close(f"TLS failed: {error}")
            return b""
        self._write_tls()
        return data

    def _receive(self, data: bytes, *, maybe_plain: bool = True) -> None:
        """Decode and handle the frames in data, in steps; hold the rest back once this connection has used its quantum.

        maybe_plain: the first frame may be a plain send.
        """
        until, reads = 0.0, self._owner.plain_reads
        while True:
            at_most = DECODED_AT_ONCE
            if reads is not None:
                at_most = _BETWEEN_PLAIN
                until = until or monotonic() + self._owner.fair_queue.quantum
                whole = self._decoder.completed(data)
                if whole is not None:  # the frame that an earlier read began
                    data, maybe_plain, self._partial = whole, True, False
                    self._owner.note_partial(self, 0, is_new_frame=True)
                if self._decoder.pending_bytes:
                    at_most = 1  # more of a frame; the frames after it may be plain sends
                elif maybe_plain:
                    self.held = data
                    reads.take(self, until)
                    received, data, self.held = len(data), self.held, b""
                    if len(data) < received:
                        self.flush()
                        if not data or self.closed:
                            return
                        if self.limits.read_paused or monotonic() >= until:
                            self._hold(data)
                            return
                maybe_plain = True
            try:
                commands = self._decoder.feed(data, at_most)
            except RemoteProtocolError as error:
                self.requests.run(list(error.decoded), last=True)  # what came before the bad bytes is valid
                self.refuse("bad_frame", f"bad frame: {error}")
                return
            data = self._decoder.undecoded
            pending_bytes = self._decoder.pending_bytes
            if pending_bytes or self._partial:
                self._partial = pending_bytes > 0
                self._owner.note_partial(self, pending_bytes, is_new_frame=bool(commands))
            if commands:
                self.watch.frame_since = 0.0
                self.watch.frame_seen = True
                self.requests.run(commands)
            if not data or self.closed:
                return
            until = until or monotonic() + self._owner.fair_queue.quantum
            if self.limits.read_paused or monotonic() >= until:
                self._hold(data)
                return

    def _hold(self, data: bytes) -> None:
        """Keep bytes for the next turn of this connection."""
        self.held = data
        self.limits.undecoded = True
        self.requests.yield_turn()
        self.limits.update_reading()

    def receive_held(self) -> None:
        """Decode and handle the bytes that were held back."""
        data, self.held = self.held, b""
        self.limits.undecoded = False
        if self.handshaking:
            data = self._decrypt(data)
        if data:
            began = self._expense.begin()
            self._receive(data)
            self._expense.end(began)
            self._bulk = self.limits.yielding or len(data) >= BULK_BYTES

    def eof_received(self) -> bool:
        return False

    def drained(self, unread: bytes) -> Steps[None]:
        """Handle, in steps, the requests that a peer sent before it closed without waiting for responses (Go: one-way sends).

        Writing a response to a closed peer ends the connection while received requests are still unread. unread: their bytes.
        """
        self.limits.write_paused = False  # nothing is written any more
        for command in self.requests.take_backlog():
            if self.state is not ConnectionState.DRAINING:
                return
            self.requests.run([command], last=True)
            yield
        held, self.held = self.held, b""
        if self.handshaking:
            held, unread = b"", held + unread
        if self._detecting and (not unread or not self._accepts(unread)):
            return
        for data in (held, self._decrypt(unread)):
            undecoded = data
            while undecoded and self.state is ConnectionState.DRAINING:
                try:
                    commands = self._decoder.feed(undecoded, _DRAINED_AT_ONCE)
                except RemoteProtocolError as error:
                    self.requests.run(list(error.decoded), last=True)
                    self.close(f"bad frame: {error}")
                    return
                undecoded = self._decoder.undecoded
                self.requests.run(commands, last=True)
                yield

    def pause_writing(self) -> None:
        self.limits.write_paused = True
        self.limits.update_reading()

    def resume_writing(self) -> None:
        self.limits.write_paused = False
        self.watch.stalled_since = 0.0
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._loop.call_soon(self.requests.resume)

    # ---- what endpoints and handlers see of the limits

    def mark_signed(self) -> None:
        """The peer has sent a request with a valid signature: its incomplete frames no longer count as a stranger's (LIM-04)."""
        if self._partial:
            self._owner.note_partial(self, 0, is_new_frame=True)
        self.signed = True
        if self._partial:
            self._owner.note_partial(self, self._decoder.pending_bytes, is_new_frame=True)

    @property
    def frame_pending(self) -> bool:
        """Whether part of a frame, of a TLS handshake or of a TLS record has arrived and the rest has not."""
        return self._decoder.pending_bytes > 0 or (
            self._tls is not None and (not self._tls.ready or self._tls.record_pending)
        )

    @property
    def frame_bytes(self) -> int:
        """Length of the pending frame, as far as it is known."""
        return self._decoder.need_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes written that the peer has not read, beyond the kernel's buffers."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def congested(self) -> bool:
        """Whether the peer does not drain its responses, so that further ones would only accumulate here."""
        return self.limits.write_paused

    @property
    def output_full(self) -> bool:
        """Whether output that the peer has not read exceeds the high watermark, including what the next flush writes."""
        if self.limits.write_paused:
            return True
        return self.out_bytes + self.unread_bytes > self._owner.settings.write_high_bytes

    @property
    def read_paused(self) -> bool:
        """Whether this side stopped reading because of unread responses or the peer's in-flight requests."""
        return self.limits.read_paused

    @property
    def in_flight(self) -> int:
        """Requests of the peer without a response yet."""
        return self.limits.in_flight

    # ---- responses

    def respond(self, command: Command, reply: Reply) -> None:
        """Send what a handler returned for a request, now or once it is known."""
        self.requests.respond(command, reply, monotonic())

    def failure(self, command: Command, error: Exception) -> Command:
        """The error response for a failed handler: the error's own code, or SYSTEM_ERROR (REM-08, REM-11)."""
        return failure(command, error, self.remote_address, self._owner.failure_log)

    def release_in_flight(self, command: Command) -> AbstractContextManager[None]:
        """Do not count a request as in flight while it waits for another peer."""
        return self.requests.release_in_flight(command)

    # ---- writing

    def send(self, command: Command | bytes) -> None:
        """Queue a command or an encoded frame; everything queued in one event-loop iteration leaves in one write.

        Dropped if the connection is closed. Raises LocalProtocolError for a response above the frame limit.
        """
        if self.closed:
            return
        if isinstance(command, bytes):
            self.out.append(command)
            self.out_bytes += len(command)
        elif command.body is not None and len(command.body) >= _SEPARATE_BODY_BYTES:
            head = encode_head(command, len(command.body))
            self._check_length(command, len(head) + len(command.body))
            self.out.append(head)
            self.out.append(command.body)
            self.out_bytes += len(command.body) + 512  # about the size of a header
        else:
            frame = encode_frame(command)
            self.out.append(frame)
            self.out_bytes += len(frame)
        if not self.corked and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def _check_length(self, command: Command, frame_bytes: int) -> None:
        """Raise LocalProtocolError for a response above the limit: the peer would close the connection after its length field."""
        most = max(self._owner.frame_limits.frame_bytes_max, FRAME_BYTES_MAX)
        if frame_bytes > most and command.is_response:
            text = f"the response has {frame_bytes} bytes, at most {most} are allowed (com.rocketmq.remoting.frameMaxLength)"
            raise LocalProtocolError(text, hint="Ask for less at once, or raise the limit on both sides.")

    def flush(self) -> None:
        """Write what is queued."""
        self._flush_scheduled = False
        out, transport = self.out, self._transport
        if not out or transport is None:
            return
        self.out = []
        self.out_bytes = 0
        self.active = True
        if self._tls is not None:
            try:
                self._tls.write(b"".join(out))  # one record for many frames
            except OSError as error:  # the TLS state is broken, nothing more can be sent
                self.close(f"TLS failed: {error}")
            self._write_tls()
        elif len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        if self.limits.write_paused and not self.closed:
            self._check_unread()

    def _check_unread(self) -> None:
        """Abort the connection if its peer leaves too many bytes unread (LIM-11)."""
        unread, limit = self.unread_bytes, self._owner.settings.unread_bytes_max
        if unread > limit:
            self.refuse("slow_reader", f"{unread} bytes of responses not read, unreadBytesMaxPerConnection={limit}")
            self.abort()

    def _write_tls(self) -> None:
        if self._tls is not None and self._transport is not None:
            data = self._tls.outgoing()
            if data:
                self._transport.write(data)

    def start_tls_client(self, stream: TlsStream) -> None:
        """Use TLS from the first byte; commands sent before the handshake completes are buffered in the stream."""
        self._tls = stream
        self.encrypted = True
        stream.start()
        self._write_tls()

    async def drain(self) -> None:
        """Wait until the output buffer is below its low watermark again."""
        if self.out_bytes >= self._owner.settings.write_high_bytes:
            self.flush()
        if self.limits.write_paused and not self.closed:
            await asyncio.shield(self._draining())

    def when_drained(self, callback: Callable[[], object]) -> None:
        """Call `callback` in a later event-loop iteration: once the peer has read its output, or the connection is lost.

        Without unread output above the watermark that is the next iteration, when queued frames have been written.
        """
        if self.limits.write_paused and not self.closed:
            self._draining().add_done_callback(lambda _: callback())
        else:
            self._loop.call_soon(callback)

    def _draining(self) -> asyncio.Future[None]:
        if self._drained is None or self._drained.done():
            self._drained = self._loop.create_future()
        return self._drained

    # ---- calls

    async def invoke(
        self, command: Command, timeout_ms: int, *, limited: bool = True, body: Callable[[], bytes | None] | None = None
    ) -> Command:
        """Send a request and wait for the response. Raises CallTimeout, ConnectFailed, TooManyRequests.

        limited: take one of the endpoint's permits (REM-17, REM-20); waiting for it counts against timeout_ms. Callers with their
        own limit on concurrent calls need no permit. body: makes the body once there is a permit; callers that wait have none.
        """
        owner = self._owner
        if limited:
            timeout_ms = await owner.async_permits.acquire(timeout_ms, self.remote_address)
        try:
            if body is not None:
                command.body = body()
            reply = await self.ask(command, timeout_ms)
        finally:
            if limited:
                owner.async_permits.release()
        for hook in owner.hooks:
            hook.after(self.remote_address, command, reply)
        return reply

    def ask(self, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        """Like `invoke`, without permit and task: returns the future response. Raises ConnectFailed if the connection is closed."""
        if self.closed:
            raise self.calls.connection_lost(self.close_reason)
        command.opaque = opaque = next_opaque()
        command.serialization = self._owner.serialization or command.serialization
        self.send(command)
        return self.calls.start(opaque, timeout_ms)

    def invoke_oneway(self, command: Command) -> None:
        """Send a one-way request (bit 1 set), which gets no response. Raises ConnectFailed when the connection is closed."""
        if self.closed:
            raise self.calls.connection_lost(self.close_reason)
        command.opaque = next_opaque()
        command.serialization = self._owner.serialization or command.serialization
        command.flag |= _ONEWAY
        self.send(command)

    # ---- closing

    def refuse(self, reason: str, text: str) -> None:
        """Close a connection that exceeded a limit or violated the protocol, and count it by reason (docs/spec/07 section 6)."""
        if not self.closed:
            self._owner.rejections.note(reason, self.remote_address, text)
        self.close(text)

    def close(self, reason: str) -> None:
        """Close after writing what is queued. Pending calls fail at once (REM-22)."""
        if self.closed:
            self._change(ConnectionEvent.CLOSE)
            return
        self.flush()
        if self.closed:
            return
        self._change(ConnectionEvent.CLOSE)
        self.close_reason = reason
        log.debug("connection closed peer=%s reason=%s", self.remote_address, reason)
        self.calls.fail(reason)
        self._decoder.clear()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without writing what is queued."""
        self._change(ConnectionEvent.CLOSE)
        self.close_reason = self.close_reason or "aborted"
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the transport is closed."""
        await asyncio.shield(self._lost)


def _unread(transport: asyncio.Transport) -> bytes:
    """What a lost connection has received but not read, at most _UNREAD_BYTES_MAX."""
    socket = transport.get_extra_info("socket")
    parts, size = [], 0
    with contextlib.suppress(OSError):  # the buffer is empty, or the socket is closed already
        while socket is not None and size < _UNREAD_BYTES_MAX:
            data = os.read(socket.fileno(), _UNREAD_BYTES_MAX - size)
            if not data:
                break
            parts.append(data)
            size += len(data)
    return b"".join(parts)


def _address(name: Any) -> str:
    """`ip:port` of a socket name; IPv6 addresses without brackets, as Apache RocketMQ writes them."""
    if not name or isinstance(name, str | bytes):
        return ""
    return f"{name[0]}:{name[1]}"
