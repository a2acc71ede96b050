"""Handlers of messages: `@client.listener`, and the loops that feed them.

Source: spec 08 API-16, API-19, API-27, table 1.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from saturnmq.client.codecs import Codec, codec_for, encode_value
from saturnmq.client.consumer.consumer import Consumer
from saturnmq.client.consumer.running_info import FAILED_PREFIX
from saturnmq.client.consumer.settings import ConsumerOptions
from saturnmq.client.consumer.subscription import Filter
from saturnmq.client.errors import AlreadySettled, Closed
from saturnmq.client.message import Ack, Message
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.requests import wants_reply
from saturnmq.protocol.errors import ConfigError, SaturnError

logger = logging.getLogger(__name__)

Handler = Callable[[Message[Any]], Any]
TIME_LIMIT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed message comes again, and after how long; None lets the broker choose.

    max_times: None for 16 times, without limit for an ordered listener, whose queue waits for the message.
    """

    max_times: int | None = None
    after: timedelta | None = None


DEFAULT_RETRY: Final = Retry()


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """One decorated handler."""

    topic: str
    group: str
    handler: Handler
    filter: Filter
    concurrency: int
    retry: Retry
    time_limit: float
    codec: Codec[Any]
    options: ConsumerOptions

    @property
    def consumer_options(self) -> ConsumerOptions:
        """What its consumer is told: what was asked for, else what fits the handler."""
        own: ConsumerOptions = {
            "max_times": self.retry.max_times,
            "prefetch": max(256, 2 * self.concurrency),
            "ack_timeout": max(2 * self.time_limit, 60.0),
        }
        return {**own, **self.options}


def handler_problem(handler: Handler) -> str | None:
    """Why this cannot be called with a message, None when it can."""
    if not callable(handler):
        return f"the handler is {type(handler).__name__}, must be a function"
    name = getattr(handler, "__qualname__", repr(handler))
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return None  # a callable of an extension says nothing
    try:
        signature.bind(None)
    except TypeError:
        return f"handler {name}{signature} must take the message as its one positional argument"
    parameter, kind = _first_parameter(handler)
    if inspect.isclass(kind) and kind is not Any and kind not in Message.__mro__:
        return f"handler {name}: parameter {parameter!r} is a {kind.__name__}, must be Message[{kind.__name__}]"
    return None


def _first_parameter(handler: Handler) -> tuple[str, Any]:
    """Name and annotation of the handler's first parameter; None where it is unknown."""
    try:
        hints = typing.get_type_hints(handler)
        name = next(iter(inspect.signature(handler).parameters), "")
    except (NameError, TypeError, ValueError):
        return "", None
    return name, hints.get(name)


def value_type(handler: Handler) -> Any:
    """T of the handler's Message[T], None when it does not say (API-08)."""
    _, kind = _first_parameter(handler)
    if typing.get_origin(kind) is Message:
        arguments = typing.get_args(kind)
        return arguments[0] if arguments else None
    return None


def make_spec(
    handler: Handler,
    topic: str,
    group: str,
    wanted: Filter,
    concurrency: int,
    retry: Retry,
    time_limit: float,
    codec: Codec[Any] | None,
    options: ConsumerOptions,
) -> ListenerSpec:
    """A checked spec. Raises ConfigError."""
    problems = [problem] if (problem := handler_problem(handler)) else []
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= 1000:
        problems.append(f"concurrency is {concurrency!r}, must be 1..1000")
    if not 0 < time_limit <= 86_400:
        problems.append(f"time_limit is {time_limit!r}, must be 0..86400 seconds")
    if problems:
        raise ConfigError(problems)
    chosen = codec or codec_for(value_type(handler))
    return ListenerSpec(topic, group, handler, wanted, concurrency, retry, time_limit, chosen, options)


class Feeder:
    """Runs one handler on what its consumer receives, `concurrency` at a time."""

    def __init__(self, spec: ListenerSpec, replier: Producer[bytes], consumer: Consumer[Any]) -> None:
        self.spec = spec
        self._replier = replier
        self.consumer = consumer
        self._stopping = False
        self._workers: list[asyncio.Task[None]] = []
        self._busy: set[asyncio.Task[Any]] = set()  # workers inside a handler; the others may be cancelled at any time

    async def start(self) -> None:
        """Join the group and begin."""
        await self.consumer.subscribe(self.spec.topic, self.spec.filter)
        await self.consumer.start()
        name = f"saturnmq listener {self.spec.group}"
        self._workers = [
            asyncio.get_running_loop().create_task(self._work(), name=f"{name} {n}")
            for n in range(self.spec.concurrency)
        ]

    async def wait(self) -> None:
        """Until a worker dies; its error is raised."""
        await asyncio.gather(*self._workers)

    async def stop(self, drain_timeout: float) -> None:
        """Let the handlers finish what they hold, at most so long; then cancel them and leave the group (API-27)."""
        self._stopping = True
        if self._workers:
            for task in self._workers:
                if task not in self._busy:
                    task.cancel()
            if drain_timeout > 0:
                await asyncio.wait(self._workers, timeout=drain_timeout)
            for task in self._workers:
                task.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
        await self.consumer.stop()

    async def _work(self) -> None:
        while not self._stopping:
            try:
                message = await self.consumer.recv()
            except Closed:
                return
            worker = asyncio.current_task()
            assert worker is not None
            self._busy.add(worker)
            try:
                await self._handle(message)
            finally:
                self._busy.discard(worker)

    async def _handle(self, message: Message[Any]) -> None:
        """AUTO of table 1.1: what the handler returns or raises settles the message, unless the handler settled it itself;
        cancelled settles nothing."""
        spec, reason = self.spec, ""
        try:
            message.value  # noqa: B018 - an undecodable message counts as "handler raises" (API-08)
            async with asyncio.timeout(spec.time_limit):
                outcome = await self._call(message)
        except Exception as error:
            logger.warning(
                "handler failed group=%s message=%r error=%s: %s", spec.group, message, type(error).__name__, error
            )
            outcome, reason = Ack.RETRY, f"{FAILED_PREFIX}{type(error).__name__}: {error}"
        try:
            if outcome is None or outcome is Ack.SUCCESS:
                await message.ack()
            elif outcome is Ack.RETRY:
                await message.retry(spec.retry.after, reason=reason)
            elif outcome is Ack.REJECT:
                await message.reject()
            elif wants_reply(message):
                await self._reply(message, outcome)
            else:
                logger.warning("handler of group %s returned %r, must be an Ack or None", spec.group, outcome)
                await message.retry(spec.retry.after)
        except AlreadySettled:
            logger.debug("settled by the handler itself group=%s message=%r", spec.group, message)
        except SaturnError as error:
            logger.warning(
                "message not settled, it comes again group=%s message=%r error=%s", spec.group, message, error
            )
            self.consumer.redeliver_later(message)

    async def _reply(self, message: Message[Any], value: Any) -> None:
        """What the handler of a request returns is the answer (API-11). Who asked may be gone: that is no reason to do it again."""
        try:
            await self._replier.answer(message, encode_value(value))
        except SaturnError as error:
            logger.warning("reply not delivered group=%s message=%r error=%s", self.spec.group, message, error)
        await message.ack()

    async def _call(self, message: Message[Any]) -> Any:
        handler = self.spec.handler
        if inspect.iscoroutinefunction(handler):
            return await handler(message)
        outcome = await asyncio.to_thread(handler, message)
        return await outcome if inspect.isawaitable(outcome) else outcome


async def run_feeders(feeders: list[Feeder], drain_timeout: float, *, handle_signals: bool) -> None:
    """Feed until a failure, a cancellation or a handled signal; then drain. A second one of these ends the draining at once."""
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    tasks: list[asyncio.Task[Any]] = []
    with _signal_handlers(on_signal) if handle_signals else contextlib.nullcontext():
        try:
            for feeder in feeders:
                await feeder.start()
            tasks = [loop.create_task(feeder.wait()) for feeder in feeders]
            stopping = loop.create_task(stop.wait())
            tasks.append(stopping)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            draining = loop.create_task(_drain(feeders, drain_timeout))
            hurrying = loop.create_task(hurry.wait())
            try:
                await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not draining.done():
                    draining.cancel()
                    await asyncio.gather(draining, return_exceptions=True)
                    await _drain(feeders, 0.0)
                for task in (*tasks, hurrying):
                    task.cancel()
                await asyncio.gather(*tasks, hurrying, draining, return_exceptions=True)


@contextlib.contextmanager
def _signal_handlers(on_signal: Callable[[], None]) -> Iterator[None]:
    """Call on_signal for SIGTERM and SIGINT; the handlers found at the start are restored at the end."""
    loop = asyncio.get_running_loop()
    previous: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        found = signal.getsignal(number)
        try:
            loop.add_signal_handler(number, on_signal)
        except (NotImplementedError, RuntimeError, ValueError) as error:  # not the main thread, or not supported there
            logger.warning("signal not handled signal=%s error=%s", number.name, error)
            continue
        previous[number] = found
    try:
        yield
    finally:
        for number, handler in previous.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)


async def _drain(feeders: list[Feeder], drain_timeout: float) -> None:
    await asyncio.gather(*(feeder.stop(drain_timeout) for feeder in feeders), return_exceptions=True)
