"""One TCP connection, on the server or client side: frame decoding, dispatch to the handler, responses, matching of calls.

A connection decodes no bodies and knows no request codes. A peer that sends invalid bytes loses its own connection; other
connections are unaffected. Closing a connection fails its pending calls at once. All methods run on the event loop.

Requirements: REM-02..REM-08, REM-11, REM-16..REM-24, REM-29, LIM-09..LIM-11.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from saturnmq.net.errors import CallTimeout, SendFailed
from saturnmq.net.later import Later
from saturnmq.protocol.codes import CommandFlag, ResponseCode
from saturnmq.protocol.errors import MissingField, RemoteProtocolError, ResponseError, SaturnError
from saturnmq.protocol.frames.command import Command, encode_frame, encode_head
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.protocol.frames.header_templates import HeaderTemplates

if TYPE_CHECKING:
    from saturnmq.net.endpoint import Endpoint
    from saturnmq.net.tls import TlsStream

log = logging.getLogger(__name__)

# Result of a handler. bytes is a whole encoded response frame; empty bytes and None mean no response.
Handler = Callable[["Connection", Command], "Command | bytes | Later | Awaitable[Command | None] | None"]

TLS_CLIENT_HELLO: Final = 0x16  # first byte of a TLS connection; a valid plain frame starts with 0 (REM-29)
_SEPARATE_BODY_BYTES: Final = 16_384  # bodies of at least this size are written as a separate buffer, without copying
_REST_BYTES: Final = 262_144  # read size when the receive buffer of a lost connection is emptied
_SMALL_BODY_BYTES: Final = 1024  # requests with at most this body are served even under memory pressure
_HTTP_STARTS: Final = (b"PRI ", b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"CONN", b"PATC", b"TRAC")
# Fairness between connections. libuv reads a connection up to 32 times in a row while its buffer comes back full.
_SHARE_SECONDS: Final = 0.02  # per event-loop iteration for the requests of one connection
_SHARE_BYTES: Final = 65_536  # after a read of this size the connection yields
_SHARE_STEP: Final = 32  # requests between two clock reads
_FLUSH_BYTES: Final = 131_072  # corked responses are written once they exceed this
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)

_opaques = itertools.count()


def next_opaque() -> int:
    """The next opaque (sequence number) of this process: from 0, signed 32-bit, wraps to negative (REM-07)."""
    value = next(_opaques) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


def error_remark(error: BaseException) -> str:
    """`ClassName: message`, the remark of an error response, which clients display verbatim (REM-11)."""
    return f"{type(error).__name__}: {error}"


class Connection(asyncio.Protocol):
    """One remoting connection, created by a RemotingServer or RemotingClient. Interface: docs/decisions/0001.

    in_flight and in_flight_bytes count requests without a response yet and their bodies. opened_at, idle_since, frame_since,
    stalled_since and closing_since are event-loop times in seconds, 0.0 if not set; the endpoint's scan maintains them.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.remote_address = ""
        self.local_address = ""
        self.attributes: dict[str, object] = {}
        self.closed = False
        self.close_reason = ""
        self.active = True  # bytes were sent or received since the last idle scan
        self.idle_since = 0.0
        self.frame_since = 0.0
        self.closing_since = 0.0
        self.in_flight = 0
        self.in_flight_bytes = 0
        self._full = False  # the in-flight limit is reached
        self.opened_at = 0.0
        self.introduced = False  # a complete frame has arrived
        self.stalled_since = 0.0
        self.unread_before = 0
        self.reads = 0  # number of reads; shows whether the peer is alive
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._handler = endpoint.handler
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(endpoint.frame_limits, HeaderTemplates() if endpoint.repeats else None)
        self._tls: TlsStream | None = None
        self._first = endpoint.sniffs_tls
        self._partial = False  # whether the endpoint accounts for partial-frame bytes of this connection
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._corked = False
        self._flush_scheduled = False
        self._write_paused = False
        self._read_paused = False
        self._yielding = False  # the next read or request is left to the next event-loop iteration
        self._drained: asyncio.Future[None] | None = None
        self._backlog: deque[Command] = deque()
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.remote_address = _address(transport.get_extra_info("peername"))
        self.local_address = _address(transport.get_extra_info("sockname"))
        self._transport.set_write_buffer_limits(
            high=self._endpoint.settings.write_high_bytes, low=self._endpoint.settings.write_low_bytes
        )
        self._endpoint.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        if not self.closed:
            self.closed = True
            self.close_reason = f"connection error: {exc}" if exc else "closed by the peer"
            if exc is not None and transport is not None:
                self._read_rest(transport)
        self._backlog.clear()
        self._out.clear()
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(self._send_failed())
        self._pending.clear()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if not self._lost.done():
            self._lost.set_result(None)
        self._endpoint.lost(self)

    def data_received(self, data: bytes) -> None:
        self.active = True
        self.reads += 1
        received = len(data)
        if self._first:
            self._first = False
            if data[:4] in _HTTP_STARTS:
                self.refuse("foreign_protocol", "HTTP on a port of the RocketMQ protocol")
                return
            self._tls, problem = self._endpoint.choose_tls(data[0])
            if problem:
                self.refuse("foreign_protocol" if data[0] == TLS_CLIENT_HELLO else "plain", problem)
                return
        if self._tls is not None:
            try:
                data = self._tls.feed(data)
            except OSError as error:
                self._write_tls()
                self.close(f"TLS failed: {error}")
                return
            self._write_tls()
            if not data:
                return
        try:
            commands = self._decoder.feed(data)
        except RemoteProtocolError as error:
            self._run(list(error.decoded), last=True)
            self.refuse("bad_frame", f"bad frame: {error}")
            return
        pending_bytes = self._decoder.pending_bytes
        if pending_bytes or self._partial:
            self._partial = pending_bytes > 0
            self._endpoint.note_partial(self, pending_bytes, fresh=bool(commands))
        if commands:
            self.frame_since = 0.0
            self.introduced = True
            self._run(commands, last=self._transport is None)
        if received >= _SHARE_BYTES:
            self._yield()

    def eof_received(self) -> bool:
        return False

    def _read_rest(self, transport: asyncio.Transport) -> None:
        """Handle the requests a peer sent before it closed without waiting for responses, as Go clients do after one-way sends.

        Writing a response to a closed peer ends the connection while received requests are still unread. The amount is bounded by
        the socket's receive buffer, since no more data can arrive.
        """
        socket = transport.get_extra_info("socket")
        if self._yielding:
            waiting = list(self._backlog)
            self._backlog.clear()
            self._run(waiting, last=True)
        with contextlib.suppress(OSError):  # the buffer is empty, or the socket is closed already
            while socket is not None and (data := os.read(socket.fileno(), _REST_BYTES)):
                self.data_received(data)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.stalled_since = 0.0
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._loop.call_soon(self._continue)

    # ---- reading

    @property
    def frame_pending(self) -> bool:
        """Whether part of a frame has arrived and the rest has not."""
        return self._decoder.pending_bytes > 0

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
        return self._write_paused

    @property
    def read_paused(self) -> bool:
        """Whether this side stopped reading because of unread responses or the peer's in-flight requests."""
        return self._read_paused

    def _run(self, commands: list[Command], *, last: bool = False) -> None:
        """Handle commands in order; their immediate responses leave in one write. last: at once, no iteration follows."""
        if self._backlog:
            self._backlog.extend(commands)
            return
        endpoint, handler = self._endpoint, self._handler
        special = (
            bool(endpoint.hooks) or endpoint.stopping or endpoint.in_flight_bytes >= endpoint.settings.request_bytes_max
        )
        self._corked = True
        until = monotonic() + _SHARE_SECONDS
        for index, command in enumerate(commands):
            if special or command.flag & _RESPONSE:
                self._dispatch(command)
            else:
                try:
                    reply = handler(self, command)
                except Exception as error:
                    self._answer(command, self.failure(command, error))
                else:
                    if type(reply) is bytes:
                        if not command.flag & _ONEWAY and not self.closed:
                            self._out.append(reply)
                            self._out_bytes += len(reply)
                    elif reply is not None:
                        self._replied(command, reply)
            if self._out_bytes >= _FLUSH_BYTES:
                self._flush()
            if self._write_paused or self._full:
                self._backlog.extend(commands[index + 1 :])
                break
            if not last and index % _SHARE_STEP == _SHARE_STEP - 1 and monotonic() > until:
                self._backlog.extend(commands[index + 1 :])
                self._yield()
                break
        self._corked = False
        if self._out:
            self._flush()
        self._update_reading()

    def _yield(self) -> None:
        """Leave the rest of what this connection has sent to the next event-loop iteration; others are served in between."""
        if not self._yielding:
            self._yielding = True
            self._loop.call_soon(self._continue)
            self._update_reading()

    def _continue(self) -> None:
        """Resume requests held back: the peer did not read, had too many in flight, or another connection came first."""
        self._yielding = False
        if self._backlog and not (self._full or self._write_paused or self.closed):
            waiting = list(self._backlog)
            self._backlog.clear()
            self._run(waiting)
        self._update_reading()

    def _update_reading(self) -> None:
        full = self._write_paused or bool(self._backlog) or self._full or self._yielding
        if full == self._read_paused or self._transport is None or self._transport.is_closing():
            return
        self._read_paused = full
        if full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _dispatch(self, command: Command) -> None:
        if command.flag & _RESPONSE:
            future = self._pending.get(command.opaque)
            if future is None:
                log.debug("no call waits for this answer peer=%s opaque=%s", self.remote_address, command.opaque)
            elif not future.done():
                future.set_result(command)
            return
        endpoint = self._endpoint
        if endpoint.stopping:
            self._answer(command, command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "this server is stopping"))
            return
        if command.body and len(command.body) > _SMALL_BODY_BYTES and self._overloaded(command):
            return
        try:
            for hook in endpoint.hooks:
                hook.before(self.remote_address, command)
            reply = self._handler(self, command)
        except Exception as error:
            self._answer(command, self.failure(command, error))
            return
        if reply is not None:
            self._replied(command, reply)

    def _overloaded(self, command: Command) -> bool:
        """Reject a request while the requests in flight use all memory they may use; return whether it was rejected (LIM-10)."""
        endpoint = self._endpoint
        if endpoint.in_flight_bytes < endpoint.settings.request_bytes_max:
            return False
        text = (
            f"[OVERLOAD]system busy, start flow control for a while ({endpoint.in_flight_bytes} bytes of requests wait)"
        )
        endpoint.refusals.note("overload", self.remote_address, text)
        self._answer(command, command.reply(ResponseCode.SYSTEM_BUSY, text))
        return True

    def _begun(self, command: Command) -> None:
        """Count a request as in flight."""
        self._count(1, len(command.body) if command.body else 0)

    def _ended(self, command: Command) -> None:
        """Count a request as completed."""
        self._count(-1, -len(command.body) if command.body else 0)
        if self._read_paused:
            self._loop.call_soon(self._continue)

    def _count(self, requests: int, body_bytes: int) -> None:
        endpoint = self._endpoint
        self.in_flight += requests
        self.in_flight_bytes += body_bytes
        endpoint.in_flight_bytes += body_bytes
        settings = endpoint.settings
        self._full = self.in_flight >= settings.in_flight_max or self.in_flight_bytes >= settings.in_flight_bytes_max

    @contextlib.contextmanager
    def aside(self, command: Command) -> Iterator[None]:
        """Do not count a request as in flight while it waits for another peer.

        Otherwise this connection might stop being read although the awaited answer arrives on it.
        """
        body_bytes = len(command.body) if command.body else 0
        self._ended(command)
        self._endpoint.in_flight_bytes += body_bytes  # its body still occupies memory
        try:
            yield
        finally:
            self._endpoint.in_flight_bytes -= body_bytes
            self._begun(command)

    def _replied(self, command: Command, reply: Command | bytes | Later | Awaitable[Command | None]) -> None:
        if type(reply) is Later:
            self._begun(command)
            self._endpoint.later_count += 1
            reply.bind(self, command)
        elif type(reply) is Command:
            self._answer(command, reply)
        elif type(reply) is bytes:
            if reply:
                self._answer(command, FrameDecoder().feed(reply)[0])  # hooks need the decoded command
        else:
            self._begun(command)
            self._endpoint.spawn(self._finish(command, cast("Awaitable[Command | None]", reply)))

    def answer_later(self, command: Command, reply: Command | bytes | Coroutine[Any, Any, Command]) -> None:
        """Send the response to a request whose handler returned Later."""
        endpoint = self._endpoint
        endpoint.later_count -= 1
        if isinstance(reply, Command | bytes):
            self._ended(command)
            if type(reply) is bytes and not endpoint.hooks:
                if reply and not command.flag & _ONEWAY:
                    self.send(reply)
            else:
                self._replied(command, reply)
        else:
            endpoint.spawn(self._finish(command, reply))
        if endpoint.stopping and not endpoint.later_count:
            endpoint.all_answered.set()

    async def _finish(self, command: Command, waiting: Awaitable[Command | None]) -> None:
        try:
            reply = await waiting
        except asyncio.CancelledError:
            raise
        except Exception as error:
            reply = self.failure(command, error)
        finally:
            self._ended(command)
        if reply is not None:
            self._answer(command, reply)

    def _answer(self, command: Command, reply: Command) -> None:
        if command.flag & _ONEWAY:
            return
        try:
            for hook in self._endpoint.hooks:
                hook.after(self.remote_address, command, reply)
            self.send(reply)
        except Exception as error:  # a failing hook, or a response that cannot be encoded
            self.send(self.failure(command, error))

    def failure(self, command: Command, error: Exception) -> Command:
        """The error response for a failed handler: the error's own code, or SYSTEM_ERROR (REM-08, REM-11)."""
        if isinstance(error, ResponseError):
            return command.reply(error.code or ResponseCode.SYSTEM_ERROR, error.remark)
        if isinstance(error, MissingField):
            return command.reply(ResponseCode.SYSTEM_ERROR, error.message)
        expected = isinstance(error, SaturnError)
        log.log(
            logging.INFO if expected else logging.ERROR,
            "handler failed code=%s peer=%s error=%s",
            command.code,
            self.remote_address,
            error_remark(error),
            exc_info=None if expected else error,
        )
        return command.reply(ResponseCode.SYSTEM_ERROR, error_remark(error))

    # ---- writing

    def send(self, command: Command | bytes) -> None:
        """Queue a command or an encoded frame; everything queued in one event-loop iteration leaves in one write.

        Dropped if the connection is closed.
        """
        if self.closed:
            return
        if isinstance(command, bytes):
            self._out.append(command)
            self._out_bytes += len(command)
        elif command.body is not None and len(command.body) >= _SEPARATE_BODY_BYTES:
            self._out.append(encode_head(command, len(command.body)))
            self._out.append(command.body)
            self._out_bytes += len(command.body) + 512
        else:
            frame = encode_frame(command)
            self._out.append(frame)
            self._out_bytes += len(frame)
        if not self._corked and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out, transport = self._out, self._transport
        if not out or transport is None:
            return
        self._out = []
        self._out_bytes = 0
        self.active = True
        if self._tls is not None:
            try:
                self._tls.write(b"".join(out))
            except OSError as error:  # the TLS state is broken, nothing more can be sent
                self.close(f"TLS failed: {error}")
            self._write_tls()
        elif len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        if self._write_paused and self.unread_bytes > self._endpoint.settings.unread_bytes_max and not self.closed:
            self.refuse("slow_reader", f"{self.unread_bytes} bytes were sent and are not read")
            self.abort()

    def _write_tls(self) -> None:
        if self._tls is not None and self._transport is not None:
            data = self._tls.outgoing()
            if data:
                self._transport.write(data)

    def start_tls_client(self, stream: TlsStream) -> None:
        """Use TLS from the first byte; commands sent before the handshake completes are buffered in the stream."""
        self._tls = stream
        stream.start()
        self._write_tls()

    async def drain(self) -> None:
        """Wait until the output buffer is below its low watermark again."""
        if self._out_bytes >= self._endpoint.settings.write_high_bytes:
            self._flush()
        if self._write_paused and not self.closed:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    # ---- calls

    async def invoke(self, command: Command, timeout_ms: int, *, limited: bool = True) -> Command:
        """Send a request and wait for the response. Raises CallTimeout, SendFailed (closed before the response), TooManyRequests.

        limited: take one of the endpoint's permits (REM-17, REM-20); waiting for it counts against timeout_ms. Callers with their
        own limit on concurrent calls need no permit.
        """
        endpoint = self._endpoint
        if limited:
            timeout_ms = await endpoint.async_permits.acquire(timeout_ms, self.remote_address)
        try:
            reply = await self.ask(command, timeout_ms)
        finally:
            if limited:
                endpoint.async_permits.release()
        for hook in endpoint.hooks:
            hook.after(self.remote_address, command, reply)
        return reply

    def ask(self, command: Command, timeout_ms: int) -> asyncio.Future[Command]:
        """Like `invoke`, without permit and task: returns the future response. Raises SendFailed if the connection is closed."""
        if self.closed:
            raise self._send_failed()
        command.opaque = opaque = next_opaque()
        command.serialization = self._endpoint.serialization or command.serialization
        self.send(command)
        future = self._pending[opaque] = self._loop.create_future()
        timer = self._loop.call_later(max(timeout_ms, 0) / 1000, self._expire, opaque, timeout_ms)

        def done(_: asyncio.Future[Command]) -> None:
            timer.cancel()
            self._pending.pop(opaque, None)

        future.add_done_callback(done)
        return future

    def _expire(self, opaque: int, timeout_ms: int) -> None:
        future = self._pending.get(opaque)
        if future is not None and not future.done():
            future.set_exception(
                CallTimeout(f"{self.remote_address} did not answer within {timeout_ms} ms", broker=self.remote_address)
            )

    def invoke_oneway(self, command: Command) -> None:
        """Send a one-way request (bit 1 set), which gets no response. Raises SendFailed when the connection is closed."""
        if self.closed:
            raise self._send_failed()
        command.opaque = next_opaque()
        command.serialization = self._endpoint.serialization or command.serialization
        command.flag |= _ONEWAY
        self.send(command)

    def _send_failed(self) -> SendFailed:
        return SendFailed(
            f"connection to {self.remote_address} is closed: {self.close_reason}", broker=self.remote_address
        )

    # ---- closing

    def refuse(self, reason: str, text: str) -> None:
        """Close a connection that exceeded a limit or violated the protocol, and count it by reason (docs/spec/07 section 6)."""
        if not self.closed:
            self._endpoint.refusals.note(reason, self.remote_address, text)
        self.close(text)

    def close(self, reason: str) -> None:
        """Close after writing what is queued. Pending calls fail at once (REM-22)."""
        if self.closed:
            return
        self._flush()
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        log.debug("close peer=%s reason=%s", self.remote_address, reason)
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(self._send_failed())
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without writing what is queued."""
        self.closed = True
        self.close_reason = self.close_reason or "aborted"
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the transport is closed."""
        await asyncio.shield(self._lost)


def _address(name: Any) -> str:
    """`ip:port` of a socket name; IPv6 addresses without brackets, as Apache RocketMQ writes them."""
    if not name or isinstance(name, str | bytes):
        return ""
    return f"{name[0]}:{name[1]}"
