"""Message handlers registered with `@client.listener`, and the worker loops that run them.

Each handler has one consumer and `concurrency` worker tasks. Coroutine handlers run on the event loop, plain functions in threads
of their own. A handler takes one message, or with `batch` those that have arrived, up to that number.

Requirements: API-08, API-11, API-16, API-19, API-27, CA-02, CC-03, PRC-12, SPR-01, SPR-09.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import signal
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from saturnmq.client.codecs import Codec, codec_for, encode_value
from saturnmq.client.consumer.assigned_queue import handler_limit
from saturnmq.client.consumer.batch import Batch
from saturnmq.client.consumer.consumer import Consumer
from saturnmq.client.consumer.settings import ConsumerOptions
from saturnmq.client.filters import Filter
from saturnmq.client.hooks import FAILED_PREFIX
from saturnmq.client.message import Ack, Message
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.requests import wants_reply
from saturnmq.errors import AlreadySettled
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.tasks import cancel, is_cancelled

logger = logging.getLogger(__name__)

Handler = Callable[[Message[Any]], Any] | Callable[[Batch[Any]], Any]
OnStart = Callable[[Consumer[Any]], Any]
TIME_LIMIT_S: Final = 900.0
BATCH_MAX: Final = 1024
CONCURRENCY_MAX: Final = 1000
_BATCH_VERDICTS: Final = (Ack.SUCCESS, Ack.RETRY, Ack.REJECT)


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry policy of a listener: how often a failed message is redelivered, and after how long.

    max_times: redeliveries before the message goes to the dead-letter queue; None: 16, or unlimited for an ordered listener, whose
    queue waits for the message. after: delay before a redelivery; None lets the broker choose.

        @client.listener("orders", group="billing", retry=Retry(max_times=3, after=timedelta(seconds=30)))
        async def bill(message: Message[bytes]) -> None:
            ...
    """

    max_times: int | None = None
    after: timedelta | None = None


DEFAULT_RETRY: Final = Retry()


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """A registered handler and its options.

    batch: how many messages it takes at most; None: one message, not in a list. enabled: whether `Client.run` runs it.
    """

    topic: str
    group: str
    handler: Handler
    filter: Filter
    concurrency: int
    batch: int | None
    retry: Retry
    time_limit: float
    codec: Codec[Any]
    enabled: bool
    on_start: OnStart | None
    options: ConsumerOptions

    @property
    def consumer_options(self) -> ConsumerOptions:
        """Options of the handler's consumer: those given to the decorator over defaults from retry, concurrency and time limit."""
        derived: ConsumerOptions = {
            "max_times": self.retry.max_times,
            # Twice what the handlers hold, so that they do not wait for pulls.
            "prefetch": max(256, 2 * self.concurrency, 2 * (self.batch or 1)),
            # Longer than a handler may run.
            "ack_timeout": max(2 * self.time_limit, 60.0),
        }
        return {**derived, **self.options}


def handler_problem(handler: Handler, *, takes_batch: bool) -> str | None:
    """Why the handler cannot be called with one message, or with one batch, or None if it can."""
    if not callable(handler):
        return f"the handler is {type(handler).__name__}, must be a function"
    name = getattr(handler, "__qualname__", repr(handler))
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return None  # a built-in or extension callable without a signature
    try:
        signature.bind(None)
    except TypeError:
        subject = "batch" if takes_batch else "message"
        return f"handler {name}{signature} must take the {subject} as its one positional argument"
    parameter, kind = first_parameter(handler)
    expected, mismatched = (Batch, Message) if takes_batch else (Message, Batch)
    if mismatched in (kind, typing.get_origin(kind)):
        how = "because of batch=..." if takes_batch else "or give the listener batch=..."
        return f"handler {name}: parameter {parameter!r} is a {mismatched.__name__}, must be {expected.__name__}[...], {how}"
    if inspect.isclass(kind) and kind is not Any and kind not in expected.__mro__:
        annotation = f"{expected.__name__}[{kind.__name__}]"
        return f"handler {name}: parameter {parameter!r} is a {kind.__name__}, must be {annotation}"
    return None


def first_parameter(handler: Handler) -> tuple[str, Any]:
    """Name and annotation of the handler's first parameter; annotation None if unknown."""
    try:
        hints = typing.get_type_hints(handler)
        name = next(iter(inspect.signature(handler).parameters), "")
    except (NameError, TypeError, ValueError):
        return "", None
    return name, hints.get(name)


def value_type(handler: Handler) -> Any:
    """The type T of the handler's annotation Message[T], Batch[T] or list[Message[T]], None if there is none (API-08)."""
    _, kind = first_parameter(handler)
    if typing.get_origin(kind) is list:
        (kind,) = typing.get_args(kind)
    if typing.get_origin(kind) in (Message, Batch):
        (value,) = typing.get_args(kind)
        return value
    return None


def concurrency_problem(concurrency: int) -> str | None:
    """Why a listener cannot have this concurrency, None if it can."""
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
        return f"concurrency is {concurrency!r}, must be 1..{CONCURRENCY_MAX}"
    return None


def make_spec(
    handler: Handler,
    topic: str,
    group: str,
    topic_filter: Filter,
    concurrency: int,
    batch: int | None,
    retry: Retry,
    time_limit: float,
    codec: Codec[Any] | None,
    enabled: bool,
    on_start: OnStart | None,
    options: ConsumerOptions,
) -> ListenerSpec:
    """Build a validated spec; the codec defaults to the one for the handler's annotation. Raises ConfigError."""
    problems = [problem] if (problem := handler_problem(handler, takes_batch=batch is not None)) else []
    if problem := concurrency_problem(concurrency):
        problems.append(problem)
    if batch is not None:
        if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= BATCH_MAX:
            problems.append(f"batch is {batch!r}, must be 1..{BATCH_MAX} or None")
        elif options.get("ordered"):
            problems.append(
                f"batch is {batch}, which needs ordered=False: an ordered queue delivers one message at a time"
            )
    if not 0 < time_limit <= 86_400:
        problems.append(f"time_limit is {time_limit!r}, must be 0..86400 seconds")
    if not isinstance(enabled, bool):
        problems.append(f"enabled is {enabled!r:.40}, must be True or False")
    if on_start is not None and not callable(on_start):
        problems.append(f"on_start is {type(on_start).__name__}, must be a function of the consumer")
    if problems:
        raise ConfigError(problems)
    chosen = codec or codec_for(value_type(handler))
    return ListenerSpec(
        topic, group, handler, topic_filter, concurrency, batch, retry, time_limit, chosen, enabled, on_start, options
    )


class ListenerOptions(ConsumerOptions, total=False):
    """The keyword options of `Client.listener`, which documents them, for decorators that pass them on."""

    filter: Filter | str
    concurrency: int
    batch: int | None
    retry: Retry
    time_limit: float
    codec: Codec[Any] | None
    enabled: bool
    on_start: OnStart | None


class Feeder:
    """Runs one handler on the messages of its consumer, `concurrency` at a time.

    busy: workers inside a handler; only the others may be cancelled at once. retiring: workers that end because the concurrency was
    lowered. threads: those of a plain function.
    """

    def __init__(self, spec: ListenerSpec, replier: Producer[bytes], consumer: Consumer[Any]) -> None:
        self.spec = spec
        self._replier = replier
        self.consumer = consumer
        consumer.feeds_listener = True
        self._stopping = False
        self._workers: set[asyncio.Task[None]] = set()
        self._retiring: set[asyncio.Task[Any]] = set()
        self._busy: set[asyncio.Task[Any]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._ended = asyncio.Event()
        self._error: BaseException | None = None

    async def start(self) -> None:
        """Subscribe, join the group, call `on_start` and start the workers."""
        await self.consumer.subscribe(self.spec.topic, self.spec.filter)
        await self.consumer.start()
        if self.spec.on_start is not None:
            outcome = self.spec.on_start(self.consumer)
            if inspect.isawaitable(outcome):
                await outcome
        self.resize(self.spec.concurrency)

    def resize(self, concurrency: int) -> None:
        """Run so many handlers at a time from now on. Running handlers beyond that finish first (CA-02)."""
        spec = self.spec = replace(self.spec, concurrency=concurrency)
        self.consumer.resize(concurrency, spec.consumer_options["prefetch"])
        if not inspect.iscoroutinefunction(spec.handler):
            # The old threads end with what they run.
            self._close_threads()
            self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix=f"saturnmq-{spec.group}")
        # Idle workers wait for a message; cancelling them loses none.
        idle = self._workers - self._busy - self._retiring
        while idle and self._surplus > 0:  # busy ones end after their message
            task = idle.pop()
            self._retiring.add(task)
            task.cancel()
        for _ in range(-self._surplus):
            task = asyncio.get_running_loop().create_task(self._work(), name=f"saturnmq listener {spec.group}")
            self._workers.add(task)
            task.add_done_callback(self._worker_ended)

    @property
    def _surplus(self) -> int:
        """Number of workers beyond the concurrency; negative if some are missing."""
        return len(self._workers) - len(self._retiring) - self.spec.concurrency

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        self._retiring.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._error = self._error or task.exception()
        if self._error is not None or not self._workers:
            self._ended.set()

    def _close_threads(self) -> None:
        """Let the threads end once they have run what they were given."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def wait(self) -> None:
        """Wait until all workers have ended, or one fails; its error is raised."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    async def stop(self, drain_timeout: float) -> None:
        """Wait up to `drain_timeout` seconds for running handlers, cancel the rest, then leave the group (API-27)."""
        self._stopping = True
        for task in self._workers - self._busy:
            # Idle ones at once, the others have drain_timeout.
            task.cancel()
        if self._workers and drain_timeout > 0:
            await asyncio.wait(set(self._workers), timeout=drain_timeout)
        await cancel(*self._workers)
        self._close_threads()
        await self.consumer.stop()

    async def _work(self) -> None:
        worker, size = asyncio.current_task(), self.spec.batch
        assert worker is not None
        async with contextlib.aclosing(self.consumer.batches(size or 1, wait=0.0)) as batches:
            async for batch in batches:
                self._busy.add(worker)
                try:
                    await (self._handle(batch[0]) if size is None else self._handle_batch(batch))
                finally:
                    self._busy.discard(worker)
                if self._stopping:
                    return
                if self._surplus > 0:
                    self._retiring.add(worker)
                    return

    async def _handle(self, message: Message[Any]) -> None:
        """Run the handler and settle the message by its result or exception, unless the handler has settled it itself.

        A cancelled handler settles nothing.
        """
        outcome, reason = self._undecodable(message) or await self._outcome(message)
        await self._settle(message, outcome, reason)

    async def _handle_batch(self, batch: Batch[Any]) -> None:
        """As `_handle`: None and success acknowledge up to `ack_index`, the rest is retried; others count for all (CC-03)."""
        readable = await self._readable(batch)
        if not readable:
            return
        # The handler may change the batch.
        messages = list(readable)
        outcome, reason = await self._outcome(readable)
        if outcome is None:
            outcome = Ack.SUCCESS
        elif not isinstance(outcome, Ack) or outcome not in _BATCH_VERDICTS:
            logger.warning("handler returned no Ack group=%s result=%r", self.spec.group, outcome)
            outcome = Ack.RETRY
        for index, message in enumerate(messages):
            is_good = outcome is not Ack.SUCCESS or index <= readable.ack_index
            await self._settle(message, outcome if is_good else Ack.RETRY, reason)

    async def _readable(self, batch: Batch[Any]) -> Batch[Any]:
        """The messages that can be decoded; the others are retried by themselves."""
        readable = Batch[Any]()
        for message in batch:
            if (failure := self._undecodable(message)) is None:
                readable.append(message)
            else:
                await self._settle(message, *failure)
        return readable

    def _undecodable(self, message: Message[Any]) -> tuple[Ack, str] | None:
        """The outcome for a message whose body does not fit the codec: a handler error (API-08). None if it fits."""
        try:
            message.value  # noqa: B018 - decodes
        except Exception as error:
            return self._failure(message, error)
        return None

    def _failure(self, subject: Message[Any] | Batch[Any], error: BaseException) -> tuple[Ack, str]:
        logger.warning("handler failed group=%s message=%r error=%r", self.spec.group, subject, error)
        return Ack.RETRY, f"{FAILED_PREFIX}{type(error).__name__}: {error}"

    async def _outcome(self, argument: Message[Any] | Batch[Any]) -> tuple[Any, str]:
        """The result of the handler and the reason of a failure; an exception and a timeout are a retry."""
        try:
            async with asyncio.timeout(self.spec.time_limit) as limit:
                handler_limit.set(limit)  # in the context of this worker, whose next handler sets its own
                with self.consumer.processing(*(argument if isinstance(argument, Batch) else (argument,))):
                    return await self._call(argument), ""
        except Exception as error:
            return self._failure(argument, error)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise  # the listener stops
            return self._failure(argument, error)  # of something that the handler awaited, or raised by itself

    async def _settle(self, message: Message[Any], outcome: Any, reason: str) -> None:
        """Settle the message by the handler's outcome; one that is settled already keeps its verdict."""
        spec, ordered = self.spec, self.consumer.settings.ordered
        try:
            if outcome is None or outcome is Ack.SUCCESS:
                await message.ack()
            elif outcome is Ack.RETRY:
                await message.retry(spec.retry.after, reason=reason)
            elif outcome is Ack.REJECT:
                await message.reject()
            elif outcome is Ack.COMMIT and ordered:
                await message.commit()
            elif outcome is Ack.ROLLBACK and ordered:
                await message.rollback(spec.retry.after)
            elif wants_reply(message) and not isinstance(outcome, Ack):
                await self._reply(message, outcome)
            else:
                logger.warning("handler returned no Ack group=%s result=%r", spec.group, outcome)
                await message.retry(spec.retry.after)
        except AlreadySettled:
            logger.debug("message settled by the handler group=%s message=%r", spec.group, message)
        except SaturnError as error:
            logger.warning(
                "message not settled, it is redelivered group=%s message=%r error=%s", spec.group, message, error
            )
            # It stays open, so that the commit offset does not pass it.
            self.consumer.redeliver_later(message)

    async def _reply(self, message: Message[Any], value: Any) -> None:
        """Send a request handler's result as the reply, then acknowledge (API-11).

        A failed reply is only logged: the requester may have disconnected, which is no reason to process the request again.
        """
        try:
            await self._replier.answer(message, encode_value(value))
        except SaturnError as error:
            logger.warning("reply not delivered group=%s message=%r error=%s", self.spec.group, message, error)
        # Also if the reply failed.
        await message.ack()

    async def _call(self, argument: Message[Any] | Batch[Any]) -> Any:
        handler: Callable[[Any], Any] = self.spec.handler
        if inspect.iscoroutinefunction(handler):
            return await handler(argument)
        # Context variables, such as those of a trace, reach the thread.
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        outcome = await loop.run_in_executor(self._threads, context.run, handler, argument)
        return await outcome if inspect.isawaitable(outcome) else outcome


async def run_feeders(feeders: list[Feeder], drain_timeout: float, *, handle_signals: bool) -> None:
    """Run until a failure, a cancellation or a handled signal, then drain; a second one of these ends draining at once."""
    loop = asyncio.get_running_loop()
    stop, abort = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (abort if stop.is_set() else stop).set()

    tasks: list[asyncio.Task[Any]] = []
    with signal_handlers(on_signal) if handle_signals else contextlib.nullcontext():
        try:
            for feeder in feeders:
                await feeder.start()
            tasks = [loop.create_task(feeder.wait()) for feeder in feeders]
            stopping = loop.create_task(stop.wait())
            tasks.append(stopping)
            finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                # Raises the failure of a listener.
                task.result()
        finally:
            draining = loop.create_task(_drain(feeders, drain_timeout))
            aborting = loop.create_task(abort.wait())
            try:
                await asyncio.wait((draining, aborting), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not draining.done():
                    draining.cancel()
                    await asyncio.gather(draining, return_exceptions=True)
                    await _drain(feeders, 0.0)
                for task in (*tasks, aborting):
                    task.cancel()
                await asyncio.gather(*tasks, aborting, draining, return_exceptions=True)


@contextlib.contextmanager
def signal_handlers(on_signal: Callable[[], None]) -> Iterator[None]:
    """Call `on_signal` for SIGTERM and SIGINT; the previous handlers are restored on exit."""
    loop = asyncio.get_running_loop()
    previous: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        current_handler = signal.getsignal(number)
        try:
            loop.add_signal_handler(number, on_signal)
        except (NotImplementedError, RuntimeError, ValueError) as error:  # not the main thread, or unsupported
            logger.warning("signal not handled signal=%s error=%s", number.name, error)
            continue
        previous[number] = current_handler
    try:
        yield
    finally:
        for number, handler in previous.items():
            # Asyncio restores the default handler, not the one before.
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)


async def _drain(feeders: list[Feeder], drain_timeout: float) -> None:
    await asyncio.gather(*(feeder.stop(drain_timeout) for feeder in feeders), return_exceptions=True)
