"""A response that a handler promises without a task or a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol

from saturnmq.protocol.frames.command import Command


class _Answers(Protocol):
    """The part of a connection that a promised response needs."""

    def answer_later(
        self, command: Command, reply: Command | bytes | Coroutine[Any, Any, Command], began: float
    ) -> None: ...


class _Sends(Protocol):
    """The part of a connection that sends a frame."""

    def send(self, command: Command | bytes) -> None: ...


class Later:
    """A deferred response that needs no task: the handler returns it, and `answer` is called later, once, on the event loop.

    Until then the request counts as in flight, like a request that a coroutine answers.
    """

    __slots__ = ("_began", "_command", "_connection", "_unbound_replies")

    def __init__(self) -> None:
        self._connection: _Answers | None = None
        self._command: Command | None = None
        self._began = 0.0
        self._unbound_replies: list[Command | bytes | Coroutine[Any, Any, Command]] = []

    def bind(self, connection: _Answers, command: Command, began: float = 0.0) -> None:
        """Called by the connection with the request that this response belongs to. began: of its handler, time.monotonic()."""
        self._connection, self._command, self._began = connection, command, began
        if self._unbound_replies:
            connection.answer_later(command, self._unbound_replies.pop(), began)

    def answer(self, reply: Command | bytes | Coroutine[Any, Any, Command]) -> None:
        """Set the response: a command, an encoded frame, or a coroutine that returns the command."""
        if self._connection is None or self._command is None:
            self._unbound_replies.append(reply)
        else:
            self._connection.answer_later(self._command, reply, self._began)


async def settled(
    connection: _Sends, request: Command, answer: Command | bytes | Later | Awaitable[Command | None] | None
) -> Command | None:
    """What is left to answer of what a handler returned, for a coroutine that answers the request."""
    if answer is None or isinstance(answer, Command):
        return answer
    if isinstance(answer, bytes):
        if not request.is_oneway:
            connection.send(answer)
        return None
    if isinstance(answer, Later):
        promise = _Promise()
        answer.bind(promise, request)
        return await settled(connection, request, await promise.reply)
    return await answer


class _Promise:
    """Awaits a Later in the coroutine of its request, which is in flight already and must not be counted again."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[Command | bytes | Coroutine[Any, Any, Command]] = (
            asyncio.get_running_loop().create_future()
        )

    def answer_later(
        self, command: Command, reply: Command | bytes | Coroutine[Any, Any, Command], began: float
    ) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)
        elif isinstance(reply, Coroutine):
            reply.close()
