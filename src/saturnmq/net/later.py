"""A response that a handler promises without a task or a coroutine."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from saturnmq.protocol.frames.command import Command


class _Answers(Protocol):
    """The part of a connection that a promised response needs."""

    def answer_later(
        self, command: Command, reply: Command | bytes | Coroutine[Any, Any, Command], began: float
    ) -> None: ...


class Later:
    """A deferred response that needs no task: the handler returns it, and `answer` is called later, once, on the event loop.

    Until then the request counts as in flight, like a request that a coroutine answers.
    """

    __slots__ = ("_began", "_command", "_connection", "_early")

    def __init__(self) -> None:
        self._connection: _Answers | None = None
        self._command: Command | None = None
        self._began = 0.0
        self._early: list[Command | bytes | Coroutine[Any, Any, Command]] = []

    def bind(self, connection: _Answers, command: Command, began: float = 0.0) -> None:
        """Called by the connection with the request that this response belongs to. began: of its handler, time.monotonic()."""
        self._connection, self._command, self._began = connection, command, began
        if self._early:
            connection.answer_later(command, self._early.pop(), began)

    def answer(self, reply: Command | bytes | Coroutine[Any, Any, Command]) -> None:
        """Set the response: a command, an encoded frame, or a coroutine that returns the command."""
        if self._connection is None or self._command is None:
            self._early.append(reply)
        else:
            self._connection.answer_later(self._command, reply, self._began)
