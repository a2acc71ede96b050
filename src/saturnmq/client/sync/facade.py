"""Blocking copies of asynchronous methods, from which the classes of `saturnmq.sync` and `saturnmq.admin.sync` are made.

Type checkers and editors take parameters and results from the asynchronous method, `help` its signature and its docstring
without `await`. A facade is any class with `_inner`, the asynchronous object.

Requirements: API-31, ADM-09.
"""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from saturnmq.client.sync.portal import portal

A_co = TypeVar("A_co", covariant=True)
A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
# How the text of a docstring changes, in this order.
_WORDS: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\basync (with|for|def)\b", r"\1"),
        (r"\(await ((?:[^()]|\([^()]*\))*\))\)", r"(\1)"),
        (r"\bawait future\b", "future.result()"),
        (r"\bawait ", ""),
        (r"Any number of tasks may", "Any number of threads may"),
        (r"Cancelling the caller", "Interrupting the caller"),
        (r"A cancelled call", "An interrupted call"),
    )
)


class Facade(Protocol[A_co]):
    """A blocking object in front of an asynchronous one."""

    @property
    def _inner(self) -> A_co: ...


def copied(
    method: Callable[Concatenate[A, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Facade[A], P], R]]:
    """Decorator: name, parameters and docstring of an asynchronous method, the latter without `await`."""
    text = method.__doc__ or ""
    for pattern, replacement in _WORDS:
        text = pattern.sub(replacement, text)

    def decorate(call: Callable[..., R]) -> Callable[Concatenate[Facade[A], P], R]:
        functools.update_wrapper(call, method)
        call.__doc__ = text
        return call

    return decorate


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Facade[A], P], R]:
    """A method that runs this coroutine function on the background loop and blocks until it is done."""

    @copied(method)
    def call(self: Facade[A], /, *args: P.args, **options: P.kwargs) -> R:
        bound: Callable[P, Coroutine[Any, Any, R]] = getattr(self._inner, method.__name__)
        return portal.run(_label(self, method), lambda: bound(*args, **options))

    return call


def on_loop(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Facade[A], P], R]:
    """A method that runs this plain one on the background loop, as no other thread may call it."""

    @copied(method)
    def call(self: Facade[A], /, *args: P.args, **options: P.kwargs) -> R:
        bound: Callable[P, R] = getattr(
            self._inner, method.__name__
        )  # on this thread: in a forked child the object is started now
        return portal.call(_label(self, method), lambda: bound(*args, **options))

    return call


def iterating(
    method: Callable[Concatenate[A, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Facade[A], P], Iterator[R]]:
    """A method that iterates over this asynchronous generator, which yields no None."""

    @copied(method)
    def call(self: Facade[A], /, *args: P.args, **options: P.kwargs) -> Iterator[R]:
        bound = getattr(self._inner, method.__name__)
        return portal.iterate(_label(self, method), lambda: bound(*args, **options))

    return call


def direct(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Facade[A], P], R]:
    """A method that calls this plain one on the calling thread."""

    @copied(method)
    def call(self: Facade[A], /, *args: P.args, **options: P.kwargs) -> R:
        return getattr(self._inner, method.__name__)(*args, **options)  # type: ignore[no-any-return]

    return call


def converted(call: Callable[P, R], convert: Callable[[R], C]) -> Callable[P, C]:
    """The method with its result converted."""

    @functools.wraps(call)
    def converting(*args: P.args, **options: P.kwargs) -> C:
        return convert(call(*args, **options))

    return converting


def _label(facade: object, method: Callable[..., Any]) -> str:
    return f"{type(facade).__name__}.{method.__name__}"
