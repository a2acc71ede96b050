"""Listeners of `saturnmq.sync`: handlers that get blocking messages, and a run that Ctrl-C and signals end.

Requirements: API-16, API-27, API-31.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import logging
import signal
import typing
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, TypeVar

from saturnmq.client.consumer.listener import first_parameter
from saturnmq.client.sync.portal import portal
from saturnmq.protocol.errors import ConfigError

logger = logging.getLogger(__name__)

H = TypeVar("H", bound=Callable[[Any], Any])
# The system may deliver a signal to another thread, which does not wake this one: it looks this often.
SIGNAL_POLL_S: Final = 0.25


def adapt(handler: H, kinds: Mapping[type, type]) -> Callable[[Any], Any]:
    """A handler of the asyncio client that calls this one with blocking messages; its annotation is translated too.

    kinds: the asyncio class of each blocking class. Raises ConfigError for a coroutine function.
    """
    if not callable(handler):
        return handler  # the asyncio client says what is wrong with it
    name = getattr(handler, "__qualname__", repr(handler))
    if inspect.iscoroutinefunction(handler):
        raise ConfigError([f"handler {name} is a coroutine function, must be a plain one: saturnmq.Client takes both"])
    facades = {asyncio_class: facade for facade, asyncio_class in kinds.items()}

    @functools.wraps(handler)
    def call(argument: Any) -> Any:
        return handler(facades[type(argument)](argument))

    parameter, kind = first_parameter(handler)
    call.__annotations__ = {parameter: _translated(kind, kinds)} if kind is not None else {}
    return call


def _translated(kind: Any, kinds: Mapping[type, type]) -> Any:
    """The annotation with blocking classes replaced: Message[T], Batch[T], list[Message[T]]."""
    origin = typing.get_origin(kind)
    if origin is list:
        (item,) = typing.get_args(kind)
        return list[_translated(item, kinds)]  # type: ignore[misc]  # an annotation made at run time
    if origin in kinds:
        return kinds[origin][typing.get_args(kind)]  # type: ignore[index]  # generic classes
    return kinds.get(kind, kind) if inspect.isclass(kind) else kind


def run_until_interrupted(name: str, start: Callable[[], Coroutine[Any, Any, None]], *, handle_signals: bool) -> None:
    """Run the coroutine on the background loop until it ends; Ctrl-C cancels it, a second one cancels it again.

    Waits for its end, then raises KeyboardInterrupt. handle_signals: SIGTERM does the same, and both make it return instead.
    name: as `Portal.run`. Raises the coroutine's error, and WrongLoop inside a running event loop.
    """
    ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    def begin() -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(start(), name=f"saturnmq {name}")
        task.add_done_callback(lambda _: ended.set_result(None))
        return task

    task = portal.call(name, begin)
    interrupt: KeyboardInterrupt | None = None

    def cancel() -> None:
        portal.loop().call_soon_threadsafe(task.cancel)

    with _signal_handlers(cancel) if handle_signals else contextlib.nullcontext():
        while not ended.done():
            try:
                concurrent.futures.wait([ended], timeout=SIGNAL_POLL_S)
            except KeyboardInterrupt as error:
                interrupt = error
                cancel()
    if not task.cancelled() and (failure := task.exception()) is not None:
        raise failure
    if interrupt is not None:
        raise interrupt


@contextlib.contextmanager
def _signal_handlers(on_signal: Callable[[], None]) -> Iterator[None]:
    """Call `on_signal` for SIGTERM and SIGINT; the previous handlers are restored on exit. Only the main thread can."""
    previous: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            previous[number] = signal.signal(number, lambda *_: on_signal())
        except ValueError as error:
            logger.warning("signal not handled signal=%s error=%s", number.name, error)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
