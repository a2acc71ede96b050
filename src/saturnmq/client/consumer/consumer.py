"""The consumer: queues shared with the group, pulled ahead, handed out one by one, committed when settled.

At least once: a message that is not acked comes again, after ack_timeout, a rebalance or a restart. Differences to the
original, from spec 08: messages are handed to `async for` and `recv`, settled by hand (1.1 MANUAL); flow control counts
unsettled messages (API-23). Source: spec 03 sections 1, 2, 5-8, 11; spec 08 API-15, API-17..20, API-23, API-26.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from saturnmq.client.codecs import Codec
from saturnmq.client.connection.core import Core, State, check_state, now_ms
from saturnmq.client.consumer.assignment import Assignment, mark_delivered
from saturnmq.client.consumer.inbox import Inbox
from saturnmq.client.consumer.ordered import OrderedAssignment
from saturnmq.client.consumer.positions import Positioned
from saturnmq.client.consumer.running_info import answer_broker
from saturnmq.client.consumer.settings import ConsumerSettings
from saturnmq.client.errors import Closed, RouteNotFound
from saturnmq.client.hooks import ConsumeHook
from saturnmq.client.message import Message, next_attempt
from saturnmq.client.trace.records import CONSUME, TraceStats, trace_topic
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

if TYPE_CHECKING:
    from saturnmq.client.trace.trace import Tracer

logger = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_LATER_S: Final = 5.0  # CC-04: a failed send-back is tried again


class Consumer(Positioned, Generic[T]):
    """A member of a group. Made by `Client.consumer`; `async with` it, or start() and stop()."""

    def __init__(self, core: Core, group: str, codec: Codec[T], settings: ConsumerSettings) -> None:
        super().__init__(core, group, settings)
        self.codec = codec
        self.hooks: Sequence[ConsumeHook] = tuple(settings.hooks)
        self.started_ms = 0
        self._tracer: Tracer | None = None
        self._inbox: Inbox[Message[T]] = Inbox(mark_delivered)
        self._tasks: list[asyncio.Task[Any]] = []
        self._starved = False
        self._warned = False  # that nothing can be received; once, however many readers there are
        self._lock = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None

    # life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Join the group. Idempotent. Raises GroupInUse, NoNameServer; a failed start leaves nothing (API-04)."""
        async with self._lock:
            if self.state is State.RUNNING:
                return
            if self.state is State.STOPPED:
                check_state("consumer", self.state)
            self.core.check_running("client")
            self.core.add_consumer(self)
            try:
                await self._load_offsets()
                await self._announce(self._topics())
            except BaseException:
                self.core.consumers.pop(self.group, None)
                if self._announced:
                    self._announced = {}
                    self.core.spawn(f"leave {self.group}", self.core.tell_left(self.group), vital=False)
                raise
            self.state = State.RUNNING
            self.started_ms = now_ms()
            wanted = trace_topic(self.settings.trace, self.core.settings.trace)
            if wanted is not None and self.core.tracing is not None:
                self._tracer = self.core.tracing.open(self.group, CONSUME, wanted)
                self.hooks = (*self.hooks, self._tracer.consume_hook)
            loops = {"rebalance": self._rebalance_loop, "ack timeout": self._ack_timeout_loop}
            if self._locks is not None:
                loops["locks"] = self._lock_loop
            self._tasks = [self.core.spawn(f"{name} {self.group}", loop(), vital=False) for name, loop in loops.items()]
            for task in self._tasks:
                task.add_done_callback(self.task_ended)
            self.wake_rebalance()

    async def stop(self) -> None:
        """Leave the group: stop pulling, store offsets, give up locks, unregister (CA-09), tell the trace. Idempotent.

        What is not settled is delivered again, to whoever owns the queue then. A caller that is cancelled does not stop
        the stopping.
        """
        if self.state is State.RUNNING and self.core.forked:
            self.state = State.STOPPED  # its tasks and its membership are the parent's
            return
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name=f"saturnmq stop {self.group}")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        async with self._lock:
            running = self.state is State.RUNNING
            self.state = State.STOPPED
            self._inbox.clear()
            self._inbox.close(lambda: Closed("The consumer service state not OK, SHUTDOWN_ALREADY."))
            if not running:
                return
            for task in self._tasks:
                task.cancel()
            assigned = list(self._assigned.values())
            for assignment in assigned:
                assignment.drop()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for assignment in assigned:
                await assignment.join()
            if self.core.state is State.RUNNING:
                await self._leave()
            self._assigned.clear()
            if self._tracer is not None:
                await self._tracer.close()

    async def _leave(self) -> None:
        """Offsets first, for certain: who takes over reads them at once; then the locks; then the membership."""

        async def store(queue: MessageQueue) -> None:
            try:
                await self.offsets.persist(queue, confirmed=True)
            except SaturnError as error:
                logger.warning("offset not stored group=%s queue=%s error=%s", self.group, queue, error)

        mine = set(self._assigned)
        if self._locks is not None:
            mine |= self._locks.asked()  # also what was just being taken or given up
        await asyncio.gather(*(store(queue) for queue in mine))
        if self._locks is not None:
            await self._locks.unlock(mine)
        await self.offsets.persist_all()
        await self.core.remove_consumer(self.group)

    def task_ended(self, task: asyncio.Task[Any]) -> None:
        """A background task died: the next reader learns why (API-26)."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._inbox.close(lambda: self._stopped(error))

    def _new_assignment(self, queue: MessageQueue, offset: int) -> Assignment:
        if self.settings.ordered:
            return OrderedAssignment(self, queue, offset, self._locks, self.settings.suspend)
        return Assignment(self, queue, offset)

    @property
    def trace_stats(self) -> TraceStats:
        """How many records of its message trace were made, sent and lost; all 0 where nothing is traced."""
        return TraceStats() if self._tracer is None else replace(self._tracer.stats)

    # receiving

    def __aiter__(self) -> AsyncIterator[Message[T]]:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return await self.recv()
        except Closed:
            raise StopAsyncIteration from None

    async def recv(self, timeout: float | None = None) -> Message[T]:
        """The next message. Raises TimeoutError after `timeout` seconds without one, Closed after stop, ConsumerStopped.

        Without a subscription, or when none of the subscribed topics exists, it warns at once and raises ClientError or
        RouteNotFound after the option `route_timeout`. Any number of tasks may wait. A cancelled call leaves its message to
        the others (API-24).
        """
        self._check()
        message = self._inbox.take()
        if message is not None:
            return message
        if timeout is None:
            return await self._wait_for_message()
        try:
            async with asyncio.timeout(timeout):
                return await self._wait_for_message()
        except TimeoutError:
            raise TimeoutError(f"no message for group {self.group} within {timeout:g} s") from None

    async def _wait_for_message(self) -> Message[T]:
        """The next message; an error where none can arrive for as long as route_timeout."""
        problem = self._nothing_to_read()
        if problem is not None:
            if not self._warned and not isinstance(problem, RouteNotFound):  # of that, subscribe has warned
                self._warned = True
                logger.warning("consumer waits for nothing group=%s: %s", self.group, problem)
            try:
                async with asyncio.timeout(self.settings.route_timeout):
                    return await self._inbox.get()
            except TimeoutError:
                await self._refresh_routes()  # the last look-up may be 20 s old
                if (problem := self._nothing_to_read()) is not None:
                    raise problem from None
        self._warned = False
        return await self._inbox.get()

    async def batches(self, max_count: int, wait: float = 1.0) -> AsyncGenerator[list[Message[T]], None]:
        """Lists of 1..max_count messages: what came within `wait` seconds of the first one (API-15)."""
        while True:
            try:
                batch = [await self.recv()]
            except Closed:
                return
            deadline = time.monotonic() + wait
            try:
                while len(batch) < max_count:
                    left = deadline - time.monotonic()
                    message = self._inbox.take()
                    if message is None:
                        if left <= 0:
                            break
                        message = await self.recv(left)
                    batch.append(message)
            except (TimeoutError, Closed):
                pass
            except asyncio.CancelledError:
                self._inbox.put_back(batch)
                raise
            yield batch

    def deliver(self, messages: list[Message[Any]]) -> None:
        """Pulled messages, from a pull loop."""
        self._inbox.put(messages)

    def deliver_first(self, messages: list[Message[Any]]) -> None:
        """Messages that were here before the others."""
        self._inbox.put_back(messages)

    def redeliver_later(self, message: Message[T], after: float = RETRY_LATER_S) -> None:
        """Hand a message out again later, here, as its next attempt: its send-back failed (CC-04)."""
        if not self.settings.ordered:
            message = next_attempt(message)

        async def wait_and_put() -> None:
            await asyncio.sleep(after)
            self._inbox.put([message])

        self.core.spawn(f"redeliver {self.group}", wait_and_put(), vital=False)

    # flow control over all queues

    def bytes_left(self) -> bool:
        """Whether the open messages of all queues are below the limit; the first of them always fits."""
        open_bytes = sum(item.generation.process_queue.body_bytes for item in self._assigned.values())
        if open_bytes >= self.settings.prefetch_bytes:
            self._starved = True
            return False
        return True

    def room_made(self) -> None:
        """A message was settled: queues that waited for bytes may go on."""
        if self._starved:
            open_bytes = sum(item.generation.process_queue.body_bytes for item in self._assigned.values())
            if open_bytes <= self.settings.prefetch_bytes // 2:
                self._starved = False
                for assignment in self._assigned.values():
                    assignment.check_room()

    # messages nobody settled

    async def _ack_timeout_loop(self) -> None:
        timeout_s = self.settings.ack_timeout
        while True:
            await asyncio.sleep(max(timeout_s / 15, 0.01))
            before = time.monotonic() - timeout_s
            for assignment in list(self._assigned.values()):
                for generation, message in assignment.expired(before):
                    try:
                        await generation.expire(message)
                    except SaturnError as error:
                        logger.warning("late message kept group=%s message=%r error=%s", self.group, message, error)

    # requests of brokers

    def handle(self, command: Command) -> Command | Awaitable[Command | None] | None:
        """What a broker asks of this member (40, 220, 221, 307, 309); anything else is not supported."""
        return answer_broker(self, command)
