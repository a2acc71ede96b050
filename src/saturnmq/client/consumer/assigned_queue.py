"""One assigned queue: its open messages, its pull loop and its flow control.

A failed message is sent back to the broker here; module `ordered_queue` has the queue that waits for it instead.

A reset replaces the QueueGeneration, so that verdicts on messages from before the reset cannot touch the new offsets. All code runs
on the event loop; each assignment has one pull task.

Requirements: PL-01..PL-11, PL-14, CC-04, API-18, API-19, API-20, API-23.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final, Protocol

from saturnmq.client import namespaces
from saturnmq.client.codecs import PropertyCodec
from saturnmq.client.connection.core import Core, now_ms
from saturnmq.client.consumer.consume_stats import ConsumeCounters
from saturnmq.client.consumer.offsets import OffsetStore, note_failure
from saturnmq.client.consumer.process_queue import ProcessQueue
from saturnmq.client.consumer.queue_identity import Mark, QueueIdentity, Undecided, is_missing
from saturnmq.client.consumer.send_back import ACK_TIMEOUT_LEVEL, DEAD_LETTER, SendBack, level_for
from saturnmq.client.consumer.settings import ConsumerSettings
from saturnmq.client.hooks import ConsumeContext, ConsumeHook, run_consume_hooks
from saturnmq.client.message import Ack, Message
from saturnmq.client.puller.puller import PullResult, PullStatus, pull_command, pull_result
from saturnmq.errors import AlreadySettled, ClientError, ConnectFailed
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PullSysFlag, ResponseCode
from saturnmq.protocol.errors import BodyError, SaturnError
from saturnmq.protocol.message import decode_records
from saturnmq.protocol.offsets import QueueOffset

logger = logging.getLogger(__name__)

SPAN_MAX: Final = 2000  # limit of the distance from the first open offset to the newest pulled one (PL-01)
BROKER_SUSPEND_MS: Final = 15_000
PULL_TIMEOUT_MS: Final = 30_000
EXCEPTION_DELAY_S: Final = 1.0
LONG_WAIT_S: Final = (
    5.0  # a pull that was parked for so long may have outlived its topic; Apache's brokers do not notice
)
FLOW_CONTROL_DELAY_S: Final = 0.02
IDLE_DELAY_S: Final = 0.05
RETRY_LATER_S: Final = 5.0  # delay of a local redelivery if the caller gives none
FLOW_LOG_EVERY: Final = 1000  # PL-02
TIMED_OUT: Final = "not settled in time"
EXTEND_S_MAX: Final = 86_400
handler_limit: Final[ContextVar[asyncio.Timeout]] = ContextVar("handler_limit")  # of the listener's handler that runs
_IDLE: Final = frozenset({PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL})
_SUBSCRIPTION_CODES: Final = frozenset(
    {
        int(ResponseCode.SUBSCRIPTION_NOT_EXIST),
        int(ResponseCode.SUBSCRIPTION_NOT_LATEST),
        int(ResponseCode.FILTER_DATA_NOT_EXIST),
        int(ResponseCode.FILTER_DATA_NOT_LATEST),
    }
)


class QueueOwner(Protocol):
    """The consumer as its assigned queues use it."""

    core: Core
    group: str
    codec: Any
    offsets: OffsetStore
    send_back: SendBack
    counters: ConsumeCounters
    hooks: Sequence[ConsumeHook]
    settings: ConsumerSettings
    pull_batch: int
    pull_interval: float

    @property
    def commits(self) -> bool: ...
    @property
    def sends_back(self) -> bool: ...
    def prefetch_of(self, topic: str) -> int: ...
    def prefetch_bytes_of(self, topic: str) -> int | None: ...
    def wanted_tags(self, topic: str) -> frozenset[str]: ...
    def subscription_version(self, topic: str) -> int: ...
    def subscription_type(self, topic: str) -> str: ...
    def subscription_lost(self) -> None: ...
    def subscription_expression(self, topic: str) -> str | None: ...
    def deliver(self, messages: list[Message[Any]]) -> None: ...
    def deliver_first(self, messages: list[Message[Any]]) -> None: ...
    def redeliver_later(self, message: Message[Any], after: float) -> None: ...
    def bytes_left(self) -> bool: ...
    def room_made(self) -> None: ...
    def wake_rebalance(self) -> None: ...
    def topic_missing(self, queue: MessageQueue) -> None: ...
    def task_ended(self, task: asyncio.Task[Any]) -> None: ...


class QueueGeneration:
    """The messages of one period of ownership; a queue that moved away and came back, or was reset, has a new one.

    delivered: by offset, when a message was handed out, and the message. parked: messages that could not be handed out while the
    queue was paused. extended: by offset, the hand-out time that gives a message what `extend` promised. repeated: by offset, the
    number of the last attempt that was retried locally.
    """

    __slots__ = ("assignment", "contexts", "delivered", "extended", "parked", "process_queue", "repeated", "verdicts")

    def __init__(self, assignment: AssignedQueue, start_offset: QueueOffset) -> None:
        self.assignment = assignment
        self.process_queue = ProcessQueue(start_offset)
        self.delivered: dict[int, tuple[float, Message[Any]]] = {}
        self.extended: dict[int, float] = {}
        self.verdicts: dict[int, Ack] = {}
        self.parked: list[Message[Any]] = []
        self.repeated: dict[int, int] = {}
        self.contexts: dict[int, ConsumeContext] = {}

    def hand_out(self, message: Message[Any], now: float) -> bool:
        """Record that a reader takes a message; False if it may not: settled, queue reassigned, or paused (then it is parked)."""
        if self.process_queue.dropped or self.is_settled(message):
            return False
        if not self.assignment.may_hand_out:
            self.parked.append(message)
            return False
        self.delivered[message._record.queue_offset] = (now, message)
        if self.extended:
            self.extended.pop(message._record.queue_offset, None)
        host = self.assignment.host
        if host.hooks:
            context = self.contexts[message.offset] = ConsumeContext(
                host.group, message, now, client_id=host.core.client_id, broadcast=not host.commits
            )
            run_consume_hooks(host.hooks, "before", context)
        return True

    def is_settled(self, message: Message[Any]) -> bool:
        """Whether this delivery of the message already has a verdict."""
        return message.offset in self.verdicts

    async def settle(
        self, message: Message[Any], verdict: Ack, *, after: timedelta | None = None, reason: str = ""
    ) -> None:
        """Settle a message once; repeating the same verdict does nothing, another verdict raises AlreadySettled (API-19).

        A message of a queue that was reassigned is left to its new owner. A failed or cancelled retry settles nothing.
        """
        if verdict in (Ack.COMMIT, Ack.ROLLBACK):
            raise ClientError(
                f"{message!r} cannot be settled as {verdict.value} by consumer {self.assignment.host.group}",
                hint="Create the consumer with ordered=True, auto_commit=False; or call ack, retry or reject.",
            )
        offset = message._record.queue_offset
        previous = self.verdicts.get(offset)
        if previous is None and self.repeated and message.attempt <= self.repeated.get(offset, 0):
            previous = Ack.RETRY
        if previous is not None:
            check_same(message, previous, verdict)
            return
        if self.process_queue.dropped:
            logger.warning(
                "settled too late, the queue was released and the message is redelivered group=%s message=%r verdict=%s",
                self.assignment.host.group,
                message,
                verdict.value,
            )
            return
        if not self.process_queue.is_open(offset):
            return
        if verdict is Ack.RETRY and self._repeats(message):
            self._repeat(message, after, reason)
            return
        self.verdicts[offset] = verdict
        if verdict is not Ack.SUCCESS:
            try:
                with self.settling(message, verdict, reason):
                    await self._fail(message, verdict, after, reason)
            except BaseException:
                self.verdicts.pop(offset, None)
                raise
        self.report(message, verdict, reason)
        self.close(offset)

    def commit_held(self) -> None:
        """Do nothing: only an ordered queue holds acknowledged messages."""

    async def _fail(self, message: Message[Any], verdict: Ack, after: timedelta | None, reason: str) -> None:
        host = self.assignment.host
        if host.sends_back:
            level = DEAD_LETTER if verdict is Ack.REJECT else level_for(after)
            await host.send_back.send(message, level, reason, after)
        else:  # CC-04: broadcast; or a queue assigned by hand, whose message is rejected or has used up its redeliveries
            logger.warning("message dropped group=%s message=%r verdict=%s", host.group, message, verdict.value)

    def _repeats(self, message: Message[Any]) -> bool:
        """Whether a retry means a local redelivery: in a queue assigned by hand, whose group has no retry topic to read."""
        host = self.assignment.host
        return host.commits and not host.sends_back and message.record.reconsume_times < host.send_back.max_times

    def _repeat(self, message: Message[Any], after: timedelta | None, reason: str) -> None:
        """Deliver the message again later, as its next attempt; its offset stays open."""
        self.repeated[message.offset] = message.attempt
        self.report(message, Ack.RETRY, reason)
        self.delivered.pop(message.offset, None)
        self.assignment.host.redeliver_later(message, RETRY_LATER_S if after is None else after.total_seconds())

    @contextmanager
    def settling(self, message: Message[Any], verdict: Ack, reason: str) -> Iterator[None]:
        """A block that settles a message by a request to a broker. Hooks get its failure here, its success from `report`."""
        context = self.contexts.get(message.offset)
        if context is not None:
            context.settling_started, context.verdict, context.reason = time.monotonic(), verdict, reason
        try:
            yield
        except BaseException as error:
            if context is not None:
                run_consume_hooks(self.assignment.host.hooks, "settle_failed", context, error)
                context.settling_started, context.verdict, context.reason = 0.0, None, ""
            raise

    def report(self, message: Message[Any], verdict: Ack, reason: str, *, timed_out: bool = False) -> None:
        """Report the end of a delivery to statistics and hooks."""
        host, record = self.assignment.host, message._record
        handed_out = self.delivered.get(record.queue_offset)
        if handed_out is not None:
            took_s = time.monotonic() - handed_out[0]
            host.counters.consumed(record.topic, took_s, failed=verdict not in (Ack.SUCCESS, Ack.COMMIT))
        context = self.contexts.pop(record.queue_offset, None) if self.contexts else None
        if context is not None:
            context.verdict, context.reason, context.timed_out = verdict, reason, timed_out
            run_consume_hooks(host.hooks, "after", context)

    async def expire(self, message: Message[Any]) -> None:
        """Handle a message that was not settled in time: send it back, or hand it out again where that is impossible.

        Raises the error of the send-back.
        """
        host = self.assignment.host
        if not host.sends_back:
            self.report(message, Ack.RETRY, TIMED_OUT, timed_out=True)
            self.delivered.pop(message.offset, None)
            host.deliver([message])
            return
        with self.settling(message, Ack.RETRY, TIMED_OUT):
            await host.send_back.send(message, ACK_TIMEOUT_LEVEL)
        self.verdicts.setdefault(message.offset, Ack.RETRY)
        self.report(message, Ack.RETRY, TIMED_OUT, timed_out=True)
        self.close(message.offset)

    def extend(self, message: Message[Any], seconds: float | None) -> None:
        """Give the delivery seconds from now, None: ack_timeout; also the handler of a listener that calls this."""
        ack_timeout_s = self.assignment.host.settings.ack_timeout
        limit_s = ack_timeout_s if seconds is None else seconds
        if not 0 < limit_s <= EXTEND_S_MAX:
            raise ClientError(
                f"{message!r} cannot be extended by {seconds!r:.40} s, must be above 0, at most {EXTEND_S_MAX}"
            )
        if message.offset not in self.delivered or self.is_settled(message):
            return
        self.extended[message.offset] = time.monotonic() + limit_s - ack_timeout_s
        handler = handler_limit.get(None)
        if handler is not None:
            with suppress(RuntimeError):  # the handler has ended, and a task that it left behind calls this
                handler.reschedule(asyncio.get_running_loop().time() + limit_s)

    def close(self, offset: QueueOffset) -> None:
        """Close a finished offset: advance the commit offset and resume pulling if it waits."""
        self.delivered.pop(offset, None)
        if self.extended:
            self.extended.pop(offset, None)
        if self.repeated:
            self.repeated.pop(offset, None)
        process_queue = self.process_queue
        commit = process_queue.settle(offset)
        if commit is None or process_queue.dropped:
            return
        assignment = self.assignment
        assignment.consumed_ms = now_ms()
        assignment.committed(commit)
        if len(self.verdicts) > 4096:
            self.verdicts = {key: value for key, value in self.verdicts.items() if key >= commit}

    def expired(self, before: float) -> list[Message[Any]]:
        """Messages handed out before this monotonic time and still unsettled, oldest first, at most 16 (PL-14)."""
        late: list[Message[Any]] = []
        for handed_out, message in self.delivered.values():
            if handed_out > before or len(late) >= 16:
                break
            if not self.is_settled(message) and self.extended.get(message.offset, handed_out) <= before:
                late.append(message)
        return late

    @property
    def position(self) -> QueueOffset | None:
        """The first open offset that no reader has taken; None if readers have taken all open ones."""
        delivered, verdicts = self.delivered, self.verdicts
        return next(
            (offset for offset in self.process_queue if offset not in delivered and offset not in verdicts), None
        )


def check_same(message: Message[Any], previous: Ack, verdict: Ack) -> None:
    """Raise AlreadySettled unless both verdicts are the same."""
    if previous is not verdict:
        raise AlreadySettled(f"{message!r} was settled as {previous.value}, it cannot be settled as {verdict.value}")


class AssignedQueue:
    """A queue and the task that pulls it. `queue` carries the namespaced topic name, `user_queue` the name without namespace.

    unverified: the broker did not have the queue, or not the position. Until `_verify` has found that it is still the queue that
    was read before, nothing is pulled at the position and the position is not committed.
    """

    span_limited = True

    def __init__(self, host: QueueOwner, queue: MessageQueue, start_offset: QueueOffset) -> None:
        self.host = host
        self.queue = queue
        self.user_queue = namespaces.strip_queue(host.core.settings.namespace, queue)
        self.next_offset = start_offset
        self.generation = self._new_generation(start_offset)
        self.paused = False
        self.pulled_ms = self.consumed_ms = 0
        self.unverified = False
        self._verified = False  # since the last pull that had the position
        self._identity = QueueIdentity(host, queue)
        self._capacity = asyncio.Event()
        self._broker_id = 0
        self._task: asyncio.Task[Any] | None = None
        self._waits = self._behind = 0

    def _new_generation(self, start_offset: QueueOffset) -> QueueGeneration:
        return QueueGeneration(self, start_offset)

    # lifecycle

    def start(self) -> None:
        """Start the pull loop."""
        self._task = self.host.core.spawn(f"pull {self.queue.topic} {self.queue.queue_id}", self._loop(), vital=False)
        self._task.add_done_callback(self.host.task_ended)

    def drop(self) -> None:
        """The queue was reassigned: ignore further settlements and stop pulling."""
        self.generation.process_queue.dropped = True
        self.host.core.outages.forget("pull", (self.host.group, self.queue))
        if self._task is not None:
            self._task.cancel()

    async def join(self) -> None:
        """Wait until the pull loop has ended."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def restart_at(self, offset: QueueOffset) -> None:
        """Discard all open messages and continue at offset.

        Used for resets, and when the broker does not have the requested offset (PL-08, OF-06).
        """
        self.generation.process_queue.dropped = True
        self.generation = self._new_generation(offset)
        self.next_offset = offset
        self.unverified = False
        self.host.offsets.update(self.queue, offset, increase_only=False)
        self._capacity.set()
        self.host.room_made()

    def reset(self, offset: QueueOffset) -> None:
        """Continue at offset at once, cancelling a pull in progress: a seek, or an operator's reset (OF-06)."""
        self.restart_at(offset)
        self._pull_again()

    def _pull_again(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.start()

    def suspect(self) -> None:
        """Withhold the position until it is verified."""
        if not self.unverified:
            self.unverified = True
            self.host.offsets.forget(self.queue)

    def suspect_parked(self) -> None:
        """As `suspect`, and cancel a pull in progress: a broker may answer a long poll after the topic was created again."""
        if not self.unverified:
            self.suspect()
            self._pull_again()

    def pause(self) -> None:
        """Stop pulling and handing out until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Continue after `pause`, starting with the parked messages."""
        self.paused = False
        self.unpark()
        self.check_capacity()

    def unpark(self) -> None:
        """Offer the parked messages to readers again, ahead of all others."""
        parked, self.generation.parked = self.generation.parked, []
        self.host.deliver_first(parked)

    @property
    def may_hand_out(self) -> bool:
        """Whether readers may get messages of this queue now."""
        return not self.paused

    @property
    def position(self) -> QueueOffset:
        """The offset of the next message that a reader gets."""
        position = self.generation.position
        return self.next_offset if position is None else position

    # flow control

    def committed(self, offset: QueueOffset) -> None:
        """Record that all messages before offset are settled."""
        host = self.host
        if not self.unverified:
            host.offsets.update(self.queue, offset)
        if not self._capacity.is_set():
            self.check_capacity()
        host.room_made()

    def check_capacity(self) -> None:
        """Wake the pull loop once the open messages have dropped to half of each limit of the queue (API-23)."""
        open_messages, topic = self.generation.process_queue, self.queue.topic
        bytes_max = self.host.prefetch_bytes_of(topic)
        is_low = len(open_messages) <= self.host.prefetch_of(topic) // 2
        is_low &= bytes_max is None or open_messages.body_bytes <= bytes_max // 2
        if is_low and not self._full:
            self._capacity.set()

    @property
    def _full(self) -> bool:
        open_messages, topic = self.generation.process_queue, self.queue.topic
        bytes_max = self.host.prefetch_bytes_of(topic)
        full = len(open_messages) >= self.host.prefetch_of(topic) or (
            bytes_max is not None and open_messages.body_bytes >= bytes_max
        )
        full |= self.span_limited and open_messages.span > SPAN_MAX
        return full or not self.may_hand_out or not self.host.bytes_left()

    def _log_wait(self) -> None:
        """Log the first and then every thousandth time that flow control stops pulling (PL-02)."""
        if not self.may_hand_out:
            return
        self._waits += 1
        if self._waits % FLOW_LOG_EVERY == 1:
            it = self.generation.process_queue
            logger.info(  # no warning: any consumer that is slower than the broker comes here, once per queue
                "pull paused by flow control group=%s queue=%s first=%d last=%d messages=%d bytes=%d span=%d times=%d",
                self.host.group, self.queue, it.commit_offset, it.max_offset, len(it), it.body_bytes, it.span, self._waits,
            )  # fmt: skip

    # pulling

    async def _loop(self) -> None:
        while not self.generation.process_queue.dropped:
            try:
                if self.unverified:
                    await self._verify(self.generation)
                elif self._full:
                    self._log_wait()
                    self._capacity.clear()
                    await self._capacity.wait()
                else:
                    await self._pull_once(self.generation)
            except Undecided:
                await asyncio.sleep(EXCEPTION_DELAY_S)
            except SaturnError as error:
                await self._after_error(error)

    async def _pull_once(self, generation: QueueGeneration) -> None:
        """Pull at the position and process the answer. Raises the error of the answer or of the connection."""
        begin, mark = time.monotonic(), self._identity.mark
        result = await self._pull()
        self.pulled_ms = now_ms()
        if generation is not self.generation or self.unverified:
            return  # it was reset or suspected during the pull
        has_messages = self._take(generation, result)
        waited_s = time.monotonic() - begin
        if self.unverified:
            await asyncio.sleep(EXCEPTION_DELAY_S)  # a new leader may not have loaded its queues yet
        elif result.status is PullStatus.FOUND and waited_s >= LONG_WAIT_S:
            await self._check_wait(generation, mark)
        elif result.status in _IDLE and waited_s < IDLE_DELAY_S:
            await asyncio.sleep(IDLE_DELAY_S)  # avoids a tight loop on a broker without long polling
        await self._learn(result)
        if has_messages and self.host.pull_interval:
            await asyncio.sleep(self.host.pull_interval)

    async def _pull(self) -> PullResult:
        """Send one long-polling pull. Raises the error of the answer or of the connection."""
        host, queue = self.host, self.queue
        address, is_slave = await host.core.read_address(queue.topic, queue.broker_name, self._broker_id)
        commit = (host.offsets.cached(queue) or 0) if host.commits else 0
        sys_flag = int(PullSysFlag.SUSPEND)
        if commit > 0 and not is_slave:
            sys_flag |= int(PullSysFlag.COMMIT_OFFSET)
        expression = host.subscription_expression(queue.topic)
        if expression is not None:
            sys_flag |= int(PullSysFlag.SUBSCRIPTION)
        command = pull_command(
            queue,
            group=host.group,
            offset=self.next_offset,
            max_count=min(host.pull_batch, host.prefetch_of(queue.topic)),
            sys_flag=sys_flag,
            commit_offset=commit,
            suspend_ms=BROKER_SUSPEND_MS,
            expression=expression,
            kind=host.subscription_type(queue.topic),
            version_ms=host.subscription_version(queue.topic),
        )
        begin = time.monotonic()
        answer = await host.core.remote.call(address, command, PULL_TIMEOUT_MS)
        result = pull_result(answer, self.user_queue)
        if result is None:
            raise host.core.answer_error(answer, f"{queue.broker_name}@{address}", topic=queue.topic, group=host.group)
        host.core.outages.succeeded("pull", (host.group, queue))
        self._broker_id = result.suggested_broker_id
        if result.status is PullStatus.FOUND:
            host.counters.pulled(queue.topic, time.monotonic() - begin)
            if isinstance(host.codec, PropertyCodec):
                await host.codec.prepare_decoding(result.messages())
        return result

    async def _after_error(self, error: SaturnError) -> None:
        note_failure(self.host.core.outages, "pull", self.host.group, self.queue, error)
        self._broker_id = 0
        if is_missing(error):
            self.suspect()
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                self.host.topic_missing(self.queue)
        if error.code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(FLOW_CONTROL_DELAY_S)
            return
        if error.code in _SUBSCRIPTION_CODES:
            self.host.subscription_lost()
        elif isinstance(error, ConnectFailed):
            self.host.core.heartbeat_soon()  # a broker drops a group when its connections close
        await asyncio.sleep(EXCEPTION_DELAY_S)

    async def _verify(self, generation: QueueGeneration) -> None:
        """Continue at the position, or at the beginning of a queue that was created again.

        Raises the error of the broker, also while it does not have the queue, and Undecided.
        """
        start = await self._identity.new_start(self._identity.mark, wait_ms=BROKER_SUSPEND_MS)
        if generation is not self.generation:
            return  # an operator or a seek has chosen an offset meanwhile
        if start is None:
            self.unverified, self._verified = False, True
            self.host.offsets.update(self.queue, generation.process_queue.commit_offset)
        else:
            await self._start_over(start)

    async def _check_wait(self, generation: QueueGeneration, mark: Mark | None) -> None:
        """Begin again if the queue was deleted and created while a pull was parked; its messages are with the readers already."""
        try:
            start = await self._identity.new_start(mark)
        except SaturnError as error:
            if is_missing(error):
                self.suspect()
            return  # without the master nothing is known
        if start is not None and generation is self.generation:
            await self._start_over(start)

    async def _start_over(self, start: QueueOffset) -> None:
        """Read a queue that was created again from its beginning, and overwrite the offset that the broker may have kept."""
        host = self.host
        logger.warning(
            "queue was created again group=%s queue=%s from=%d to=%d", host.group, self.queue, self.next_offset, start
        )
        self.restart_at(start)
        await host.offsets.persist(self.queue)

    async def _learn(self, result: PullResult) -> None:
        """In a queue of which no record was seen yet, remember the one before the position. Raises the error of the broker."""
        is_stored = result.min_offset < self.next_offset <= result.max_offset
        if self._identity.mark is None and result.status is PullStatus.NO_NEW_MESSAGE and is_stored:
            await self._identity.learn(QueueOffset(self.next_offset - 1))

    def _take(self, generation: QueueGeneration, result: PullResult) -> bool:
        """Process the answer to a pull; True if it had messages for the readers."""
        host, process_queue = self.host, generation.process_queue
        if result.status is PullStatus.OFFSET_ILLEGAL:
            if result.next_offset < self.next_offset and not self._verified:
                self.suspect()
                return False
            logger.warning(
                "offset moved group=%s queue=%s from=%d to=%d",
                host.group,
                self.queue,
                self.next_offset,
                result.next_offset,
            )
            self.restart_at(result.next_offset)
            return False
        self._verified = False
        messages: list[Message[Any]] = []
        if result.status is PullStatus.FOUND:
            tags = host.wanted_tags(self.queue.topic)
            namespace, codec, queue = host.core.settings.namespace, host.codec, self.user_queue
            most = max(host.pull_batch, 1)
            records = decode_records(result.body, most + 1)
            if len(records) > most:
                raise BodyError(f"pull answer of {queue.broker_name} has more than the {most} messages asked for")
            if records:
                self._identity.saw(records[-1])
            self._check_order(records[0].queue_offset if records else result.next_offset, result.next_offset)
            bounds = (result.min_offset, result.max_offset)
            messages = [
                Message(record, queue, codec, generation, namespace, bounds)
                for record in records
                if (not tags or record.tags in tags) and record.queue_offset > process_queue.max_offset
            ]
            process_queue.put([(message._record.queue_offset, len(message._record.body)) for message in messages])
        self.next_offset = max(result.next_offset, QueueOffset(process_queue.max_offset + 1))
        process_queue.skip_to(self.next_offset)
        if not len(process_queue):
            host.offsets.update(self.queue, process_queue.commit_offset)
        if messages:
            host.counters.fetched(self.queue.topic, len(messages))
            self._offer(messages)
        return bool(messages)

    def _check_order(self, first: QueueOffset, next_offset: QueueOffset) -> None:
        """Log the first and then every thousandth answer that is behind the requested offset."""
        if min(first, next_offset) < self.next_offset:
            self._behind += 1
            if self._behind % FLOW_LOG_EVERY == 1:
                logger.warning(
                    "[BUG] pull answer is behind the requested offset group=%s queue=%s first=%d next=%d requested=%d times=%d",
                    self.host.group, self.queue, first, next_offset, self.next_offset, self._behind,
                )  # fmt: skip

    def _offer(self, messages: list[Message[Any]]) -> None:
        """Pass new messages to the readers."""
        self.host.deliver(messages)

    def expired(self, before: float) -> list[tuple[QueueGeneration, Message[Any]]]:
        """Messages handed out before this monotonic time and still unsettled, with their generation (PL-14)."""
        generation = self.generation
        return [(generation, message) for message in generation.expired(before)]


def mark_delivered(message: Message[Any], clock: Callable[[], float] = time.monotonic) -> bool:
    """Record that a message is handed out; False if it may not be now."""
    hand_out: Callable[[Message[Any], float], bool] | None = getattr(message._origin[2], "hand_out", None)
    return True if hand_out is None else hand_out(message, clock())
