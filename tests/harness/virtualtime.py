"""An event loop that skips waits: real sockets, files and threads, but a clock that jumps to the next timer when nothing runs.

For tests whose brokers, NameServers and clients all live in one event loop. A wait of 30 s takes no time, and GRACE_SECONDS if a
socket was used just before. The clock does not jump while a call in another thread runs. It counts the processor time of the
loop's thread and the waits of the loop, so that nothing times out because a busy machine did not run the process; what blocks the
loop's thread is not counted either.
`time.monotonic`, `time.time` and their ns forms follow the loop's clock; so do modules of saturnmq that import one of them by name,
and constructors whose default clock is one of them.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, TypeVar
from unittest import mock

import anyio.to_thread

T = TypeVar("T")
GRACE_SECONDS: Final = 0.001  # how long after the last use of a socket the clock may jump: bytes may be on their way
_THREAD_POLL_SECONDS: Final = 0.02
_PACKAGE: Final = "saturnmq"
CLOCKS: Final = ("monotonic", "monotonic_ns", "time", "time_ns")
_CAUSES_OF_EVENTS: Final = ("connect", "connect_ex", "send", "sendall", "sendmsg", "sendto", "shutdown", "close")


class VirtualClock:
    """The machine's clocks at the start, plus the processor time of the thread that made this one and what was skipped since.

    skipped_ns only grows.
    """

    def __init__(self) -> None:
        self.skipped_ns = 0
        self._real = {name: getattr(time, name) for name in CLOCKS}
        self._thread = time.pthread_getcpuclockid(threading.get_ident())
        ran = time.clock_gettime_ns(self._thread)
        self._monotonic_ns, self._time_ns = time.monotonic_ns() - ran, time.time_ns() - ran

    def skip(self, seconds: float) -> None:
        self.skipped_ns += int(seconds * 1_000_000_000)

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1_000_000_000

    def monotonic_ns(self) -> int:
        return self._monotonic_ns + time.clock_gettime_ns(self._thread) + self.skipped_ns

    def time(self) -> float:
        return self.time_ns() / 1_000_000_000

    def time_ns(self) -> int:
        return self._time_ns + time.clock_gettime_ns(self._thread) + self.skipped_ns

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the functions of the module `time`, and globals and defaults of saturnmq that are one of them."""
        replaced = {real: getattr(self, name) for name, real in self._real.items()}
        defaults = list(_functions_with_default(set(replaced)))
        names = [(time, name) for name in self._real]
        names += [(module, name) for module, _, imported in _found.values() for name in imported]
        originals = [(module, name, getattr(module, name)) for module, name in names]
        for module, name, real in originals:
            setattr(module, name, _swapped(real, replaced))
        for function, positional, keywords in defaults:
            if positional:
                function.__defaults__ = tuple(_swapped(value, replaced) for value in positional)
            if keywords:
                function.__kwdefaults__ = {key: _swapped(value, replaced) for key, value in keywords.items()}
        try:
            yield
        finally:
            for module, name, real in originals:
                setattr(module, name, real)
            for function, positional, keywords in defaults:
                function.__defaults__, function.__kwdefaults__ = positional, keywords


def _swapped(value: Any, replaced: dict[Any, Any]) -> Any:
    return replaced.get(value, value) if callable(value) else value


# Functions of a module that have a clock as a default, and its globals that are one, by the module's name. To look for them takes
# most of a short test's time.
_found: Final[dict[str, tuple[ModuleType, list[FunctionType], list[str]]]] = {}


def _functions_with_default(wanted: set[Any]) -> Iterator[tuple[FunctionType, Any, Any]]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != _PACKAGE:
            continue
        known = _found.get(name)
        if known is None or known[0] is not module:
            clocks = [
                key for key, value in vars(module).items() if isinstance(value, BuiltinFunctionType) and value in wanted
            ]
            known = _found[name] = module, list(_searched(name, module, wanted)), clocks
        for function in known[1]:
            yield function, function.__defaults__, function.__kwdefaults__


def _searched(name: str, module: ModuleType, wanted: set[Any]) -> Iterator[FunctionType]:
    for holder in [module, *(value for value in vars(module).values() if isinstance(value, type))]:
        for function in list(vars(holder).values()):
            if isinstance(function, FunctionType) and function.__module__ == name:
                values = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
                if any(callable(value) and value in wanted for value in values):
                    yield function


class _Selector(selectors.DefaultSelector):
    """Skips waits, after waiting for the sockets until GRACE_SECONDS have passed since one was used."""

    loop: VirtualLoop

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self._quiet_from = 0.0  # GRACE_SECONDS after the last use of a socket, by the virtual clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            events = self._counted(_THREAD_POLL_SECONDS) if self.loop.working_threads else super().select(None)
        else:
            events = self._wait(timeout) if timeout > 0 else super().select(0)
        if events:
            self.socket_used()
        return events

    def socket_used(self) -> None:
        self._quiet_from = self._clock.monotonic() + GRACE_SECONDS

    def _wait(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        waited = min(timeout, max(self._quiet_from - self._clock.monotonic(), 0))
        events = self._counted(waited)
        if events or waited >= timeout:
            return events
        if self.loop.working_threads:
            return self._counted(min(timeout - waited, _THREAD_POLL_SECONDS))
        self._clock.skip(timeout - waited)
        return []

    def _counted(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait; the clock advances by the length of a wait that ends without an event."""
        events = super().select(seconds)
        if not events:
            self._clock.skip(seconds)
        return events

    @contextmanager
    def sockets_observed(self) -> Iterator[None]:
        """Note each call of a socket's method that can make another socket readable or writable."""

        def observed(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                self.socket_used()
                return method(*args, **options)

            return call

        observers: dict[str, Any] = {name: observed(getattr(socket.socket, name)) for name in _CAUSES_OF_EVENTS}
        with mock.patch.multiple(socket.socket, **observers):
            yield


class VirtualLoop(asyncio.SelectorEventLoop):
    """working_threads: calls of `run_in_executor` and of anyio's `to_thread` in progress."""

    def __init__(self, clock: VirtualClock) -> None:
        self.selector = _Selector(clock)
        self.selector.loop = self
        self.clock = clock
        self.working_threads = 0
        super().__init__(self.selector)

    def time(self) -> float:
        return self.clock.monotonic()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self.working_threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, future: asyncio.Future[Any]) -> None:
        self.working_threads -= 1


@contextmanager
def _anyio_counted() -> Iterator[None]:
    """Count the threads of anyio, in which Starlette reads static files."""
    run_sync = anyio.to_thread.run_sync

    async def counted(*args: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.working_threads += 1
        try:
            return await run_sync(*args, **options)
        finally:
            loop.working_threads -= 1

    anyio.to_thread.run_sync = counted  # type: ignore[assignment]
    try:
        yield
    finally:
        anyio.to_thread.run_sync = run_sync


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on a loop that skips waits."""
    clock = VirtualClock()
    loop = VirtualLoop(clock)
    with (
        clock.installed(),
        _anyio_counted(),
        loop.selector.sockets_observed(),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        return runner.run(work)
