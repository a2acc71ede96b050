"""Answers of request handlers: a response now, or one that is promised (`Later`)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol

from saturnmq.protocol.frames.command import Command

Response = Command | bytes  # bytes: a whole encoded frame
NO_RESPONSE: Final = b""


class _Requests(Protocol):
    """The part of a connection that a promised response needs."""

    def answer_later(self, later: Later, reply: Reply | Awaitable[Reply]) -> None: ...


class Later:
    """A promised response: the handler returns it, and `answer` is called once, on the event loop.

    in_flight: whether the request counts as in flight until then; a request that waits for an event, with limits of its own, does
    not. work: answers it, as a task of the connection.
    """

    __slots__ = ("_reply", "_requests", "began", "command", "in_flight")

    def __init__(self, work: Awaitable[Reply] | None = None, *, in_flight: bool = True) -> None:
        self.in_flight = in_flight
        self.began = 0.0
        self.command: Command | None = None
        self._requests: _Requests | None = None
        self._reply: Reply | Awaitable[Reply] | None = work

    def bind(self, requests: _Requests, command: Command, began: float) -> None:
        """Called by the connection with the request that this response belongs to. began: of its handler, time.monotonic()."""
        self._requests, self.command, self.began = requests, command, began
        if self._reply is not None:
            # The handler had its answer before the connection bound it.
            reply, self._reply = self._reply, None
            requests.answer_later(self, reply)

    def answer(self, reply: Reply | Awaitable[Reply]) -> None:
        """Set the response, or what it is the result of."""
        if self._requests is None:
            self._reply = reply
        else:
            self._requests.answer_later(self, reply)


Reply = Response | Later


def reply_of(result: Reply | Awaitable[Reply]) -> Reply:
    """What a handler returned as a reply: a coroutine becomes a promise that the connection's task keeps."""
    return result if isinstance(result, Command | bytes | Later) else Later(result)
