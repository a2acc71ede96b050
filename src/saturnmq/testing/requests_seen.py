"""A tap between the network and the request handlers of an embedded broker: records requests, replaces or withholds responses.

Requirements: TST-05, TST-06.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from saturnmq.broker.services.long_polling import LongPolling
from saturnmq.net import Connection, Later, Reply
from saturnmq.net.connection import Handler
from saturnmq.net.plain_reads import PlainReader, PlainSends
from saturnmq.protocol.codes import RequestCode, request_name
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.frames.decoder import FrameDecoder

REQUESTS_MAX: Final = 10_000
POLL_SECONDS: Final = 0.002
SENDS: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the broker decoded it; see `BrokerFixture.requests`.

    Example:
        sends = [request for request in saturn_broker.requests if request.name == "SEND_MESSAGE_V2"]
        assert sends[-1].body == b"one"

    number: counts from 1. code, name: the request code and its name. ext: the decoded header fields. peer: `ip:port` of
    the client.
    """

    number: int
    code: int
    name: str
    ext: Mapping[str, str]
    body: bytes | None
    peer: str
    oneway: bool


@dataclass(slots=True)
class _Wrong:
    """The next `times` requests with one of these codes get this response."""

    request_codes: frozenset[int]
    code: int
    remark: str
    times: int


class PlainTap:
    """Takes plain requests as `plain` does, unless the tap intervenes, and records them."""

    def __init__(self, plain: PlainSends, tap: RequestTap) -> None:
        self._plain = plain
        self._tap = tap

    def feed(self, data: bytes, until: float, reader: PlainReader) -> int:
        """See `PlainSends.feed`."""
        if self._tap.intervenes:
            return 0
        end = self._plain.feed(data, until, reader)
        for command in FrameDecoder().feed(data[:end]):
            self._tap.note(command, reader.remote_address)
        return end

    def finish(self) -> dict[int, int]:
        """See `PlainSends.finish`."""
        return self._plain.finish()


class RequestTap:
    """Records and intercepts requests. Use it on the broker's event loop only, except for reading `requests`."""

    def __init__(self) -> None:
        self.requests: deque[Request] = deque(maxlen=REQUESTS_MAX)
        self._wrong: list[_Wrong] = []
        self._stalled: dict[Connection, list[tuple[Later, Command]]] = {}
        self._count = 0

    def wrap(self, handler: Handler) -> Handler:
        """Return a handler that passes requests through this tap."""

        def tapped(connection: Connection, command: Command) -> Reply:
            return self._through(handler, connection, command)

        return tapped

    @property
    def intervenes(self) -> bool:
        """Whether some requests are not to be served."""
        return bool(self._wrong or self._stalled)

    def note(self, command: Command, peer: str) -> None:
        """Record a request."""
        self._count += 1
        code = command.code
        self.requests.append(
            Request(self._count, code, request_name(code), dict(command.ext), command.body, peer, command.is_oneway)
        )

    def _through(self, handler: Handler, connection: Connection, command: Command) -> Reply:
        code = command.code
        self.note(command, connection.remote_address)
        stalled = self._stalled.get(connection)
        if stalled is not None:
            later = Later(in_flight=False)
            stalled.append((later, command))
            return later
        for wrong in self._wrong:
            if code in wrong.request_codes:
                wrong.times -= 1
                if wrong.times == 0:
                    self._wrong.remove(wrong)
                return command.reply(wrong.code, wrong.remark)
        return handler(connection, command)

    def answer_next(self, request_codes: Iterable[int], code: int, remark: str, times: int) -> None:
        """Answer the next `times` requests with these codes with a response code; their handler is not called."""
        self._wrong.append(_Wrong(frozenset(int(c) for c in request_codes), int(code), remark, times))

    @property
    def count(self) -> int:
        """Requests received so far."""
        return self._count

    def since(self, number: int) -> list[Request]:
        """The recorded requests with a higher number."""
        return [request for request in self.requests if request.number > number]

    def is_stalled(self, connection: object) -> bool:
        return connection in self._stalled

    def stall(self, connections: Iterable[Connection], hold: LongPolling) -> int:
        """Stop answering on these connections, parked pulls included; returns how many are newly stalled."""
        chosen = [connection for connection in connections if connection not in self._stalled]
        for connection in chosen:
            self._stalled[connection] = hold.take(connection)
        return len(chosen)

    def resume(self, handler: Handler) -> None:
        """Handle, in order, the requests that arrived on stalled connections that are still open."""
        stalled, self._stalled = self._stalled, {}
        for connection, requests in stalled.items():
            for later, command in requests:
                if not connection.closed:
                    try:
                        later.answer(handler(connection, command))
                    except Exception as error:
                        later.answer(connection.failure(command, error))

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Poll every 2 ms; returns whether the condition became true within `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not condition():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True
