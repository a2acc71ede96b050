"""Automatic batches: sends that wait at the same time share a request.

A batch collects sends of one topic with equal options until the event-loop iteration ends, or for `linger_ms`, or until it has
`batch_bytes`. It is one request to one queue. Few sends leave as requests of their own, in one write: their senders go on by
themselves. After some iterations with few sends in flight, the next ones no longer wait for the end of theirs.

The messages of a chosen queue (shard_by, queue, selector) are stored in the order of their sends: one request for such a queue is
in flight at a time, retries included, and what is sent meanwhile is the next batch. Batches without a chosen queue go to the queues
in turn, several at a time. Those of one iteration start in successive iterations, the first of them small: the broker stores it
while the next is encoded. If all left in one write, all answers would come in one read, and client and broker would only ever work
in turn.

A batch is stored completely or not at all. One that a broker refuses is sent again message by message, so that each message has its
own outcome. All attempts carry the same message ids.

Requirements: API-09, API-22, API-24, API-25, PR-21, BAT-01..BAT-03.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeAlias, TypeVar, cast

from saturnmq.client.connection.core import Core
from saturnmq.client.connection.deadline import Deadline
from saturnmq.client.producer.attempts import Attempts, Choice
from saturnmq.client.producer.retries import Retries
from saturnmq.client.producer.send_request import Prepared, batch_of
from saturnmq.client.producer.settings import ProducerSettings
from saturnmq.client.receipt import Receipt
from saturnmq.errors import ConnectFailed, LocalProtocolError
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import RETRY_PREFIX
from saturnmq.protocol.errors import ResponseError
from saturnmq.protocol.message import BATCH_FIXED_BYTES, BATCH_MESSAGES_MAX, BatchItem

E = TypeVar("E", bound=BaseException)
FIRST_MESSAGES_MAX: Final = 32  # of the first batch of an iteration; each further one may be twice as large
SHARED_FROM: Final = 8  # messages; fewer than that cost client and broker less one by one
CALM_ITERATIONS: Final = 3  # in a row with fewer messages in flight, until sends leave at once
DEADLINES_APART: Final = 8  # messages share a batch if their deadlines differ by at most this part of the timeout
NO_CHOICE: Final[Choice] = (None, None, None, None)
# What the messages of a batch have in common: topic, wait_stored, timeout, chosen queue.
BatchKey: TypeAlias = tuple[str, bool, float, MessageQueue | None]
Answer: TypeAlias = "asyncio.Future[Receipt | None]"  # None: the sender sends its message itself
Entry: TypeAlias = tuple[Prepared, BatchItem, Answer]


class SendBatch:
    """Messages that leave in one request.

    bytes: of the request's body. live: messages that are still awaited. all_wait: each has a sender that can send it by itself.
    returned: to these senders.
    """

    __slots__ = ("all_wait", "body_bytes", "bytes", "deadline", "entries", "key", "live", "returned", "task")

    def __init__(self, key: BatchKey, deadline: Deadline) -> None:
        self.key = key
        self.deadline = deadline
        self.entries: list[Entry] = []
        self.bytes = self.body_bytes = self.live = 0
        self.all_wait = True
        self.returned = False
        self.task: asyncio.Task[None] | None = None

    def abandon(self, future: Answer) -> None:
        """The sender that awaits this future was cancelled. A request that no other sender awaits is cancelled too."""
        if future.done() and not future.cancelled():
            # A result that came before the cancellation.
            future.exception()  # marks it as retrieved
        self.live -= 1
        if not self.live and self.task is not None:
            # Not sent yet, or its answer interests no caller any more.
            self.task.cancel()


class Batching(Attempts):
    """Sends prepared messages in automatic batches.

    linger_ms of the settings: how long a batch waits for more messages; 0: until the event-loop iteration ends. batch_bytes: of one
    request; 0: no batches.
    """

    def __init__(self, core: Core, group: str, settings: ProducerSettings) -> None:
        super().__init__(core, group, settings)
        self._linger_s = settings.linger_ms / 1000
        # Batches are sent in the short form of the header only.
        self._batch_bytes = min(settings.batch_bytes, core.settings.body_bytes_max) if core.settings.smart_send else 0
        self._open: dict[BatchKey, SendBatch] = {}
        self._calm_iterations = 0  # in a row, with fewer than SHARED_FROM messages in flight
        self._closed: deque[SendBatch] = deque()  # without a chosen queue, not started yet
        self._first_messages_max = BATCH_MESSAGES_MAX if settings.linger_ms else FIRST_MESSAGES_MAX
        self._messages_max = self._first_messages_max  # of the open batch without a chosen queue
        self._timer: asyncio.Handle | None = None  # of the next `_flush`
        self._starter: asyncio.Handle | None = None  # of the next `_start_next`
        self._waiting: dict[
            MessageQueue, deque[SendBatch]
        ] = {}  # by queue with a request in flight, those that follow it
        self._running: set[asyncio.Task[None]] = set()

    def _may_share(self, prepared: Prepared) -> bool:
        """Whether a message can be part of a batch: no delay, not compressed, no retry topic, no hooks, and small enough."""
        return (
            len(prepared.body) + len(prepared.properties) < self._batch_bytes
            and not self._hooks
            and not prepared.sys_flag
            and not prepared.topic.startswith(RETRY_PREFIX)
        )

    @property
    def _sends_alone(self) -> bool:
        """Whether a send leaves at once by itself, because few are in flight and few were before. It overtakes no batch."""
        return (
            # A burst also begins with few in flight, so a send goes alone only after some calm iterations.
            self._calm_iterations >= CALM_ITERATIONS
            and self._in_flight.count + 1 < SHARED_FROM
            # A batch that is open or on its way was there first.
            and not (self._linger_s or self._open or self._running)
        )

    async def _send_shared(self, prepared: Prepared, timeout: float, wait_stored: bool, choice: Choice) -> Receipt:
        """Send one message, with others if others wait. Raises what `_enqueue` and `_deliver` raise."""
        deadline, size = Deadline(timeout * 1000), len(prepared.body)
        # From here on the batch owns the in-flight capacity, unless it returns the message.
        batch, future = await self._enqueue(prepared, deadline, timeout, wait_stored, choice, waits=True)
        try:
            receipt = await future
        except asyncio.CancelledError:
            batch.abandon(future)
            # The sender owns the capacity of a returned message.
            if batch.returned and not future.cancelled():
                self._in_flight.release(size)
            raise
        # None: the batch was returned, and this task sends its message itself.
        if receipt is not None:
            return receipt
        try:
            prepared.asks_confirmation = True
            return (await self._deliver(prepared, None, deadline))[0]
        finally:
            self._in_flight.release(size)

    async def _accept(
        self, prepared: Prepared, timeout: float, wait_stored: bool, choice: Choice
    ) -> asyncio.Future[Receipt]:
        """Add a message to a batch and return the future of its receipt. Raises what `_enqueue` raises."""
        deadline = Deadline(timeout * 1000)
        _, future = await self._enqueue(prepared, deadline, timeout, wait_stored, choice, waits=False)
        return cast("asyncio.Future[Receipt]", future)

    async def _enqueue(
        self, prepared: Prepared, deadline: Deadline, timeout: float, wait_stored: bool, choice: Choice, *, waits: bool
    ) -> tuple[SendBatch, Answer]:
        """Add a message to a batch once the in-flight limit admits it.

        Raises SendFailed, LocalProtocolError, and what the choice of a queue raises.
        """
        size = len(prepared.body)
        if not self._in_flight.try_acquire(size):
            await self._acquire(size, deadline, prepared)
        try:
            # Chosen here, before the message joins a batch: one batch goes to one queue.
            fixed = None if choice == NO_CHOICE else await self._fixed(prepared.topic, choice, deadline)
            batch, future = self._add((prepared.topic, wait_stored, timeout, fixed), prepared, deadline)
        except BaseException:
            self._in_flight.release(size)
            raise
        # A message of `send_soon` has no task that could send it.
        batch.all_wait &= waits
        return batch, future

    def _add(self, key: BatchKey, prepared: Prepared, deadline: Deadline) -> tuple[SendBatch, Answer]:
        loop = asyncio.get_running_loop()
        try:
            # Encoded before it joins: an error must be this message's only.
            properties = prepared.properties.encode()
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"the properties of a message cannot be encoded: {error}") from error
        item = BatchItem(prepared.body, properties, prepared.flag)
        body_bytes = len(item.body)
        # The size in the request, without which the limit could be exceeded.
        size = BATCH_FIXED_BYTES + body_bytes + len(properties)
        is_shared = self._may_share(prepared)
        batch = self._open.get(key)
        if batch is not None and (
            # What came before it leaves before it.
            not is_shared
            or batch.bytes + size > self._batch_bytes
            or len(batch.entries) >= (self._messages_max if key[3] is None else BATCH_MESSAGES_MAX)
            # A batch has one deadline, that of its first message.
            or batch.deadline.differs(deadline, key[2] / DEADLINES_APART)
        ):
            self._close_early(batch)
            batch = None
        if batch is None:
            batch = self._open[key] = SendBatch(key, deadline)
            # One timer for all open batches.
            if self._timer is None:
                later = self._linger_s
                self._timer = loop.call_later(later, self._flush) if later else loop.call_soon(self._flush)
        future: Answer = loop.create_future()
        batch.entries.append((prepared, item, future))
        batch.bytes += size
        batch.body_bytes += body_bytes
        batch.live += 1
        # It is a batch of one: it keeps its turn in its queue.
        if not is_shared:
            self._close_early(batch)
        return batch, future

    def _flush(self) -> None:
        """Close the open batches, but not those of a queue that has a request in flight."""
        self._timer = None
        self._messages_max = self._first_messages_max
        # Batches for a queue with a request in flight are left out: they collect messages until its answer comes.
        batches = [batch for key, batch in self._open.items() if key[3] not in self._waiting]
        # Counted per flush, which is once per iteration with sends.
        self._calm_iterations = self._calm_iterations + 1 if self._in_flight.count < SHARED_FROM else 0
        for batch in batches:
            # Few messages, each with a task of its own: separate requests in one write cost less than a batch.
            if batch.all_wait and batch.key[3] is None and len(batch.entries) < SHARED_FROM and not self._linger_s:
                self._return(batch)
            else:
                self._close(batch)
        if self._starter is None:
            self._start_next()

    def _return(self, batch: SendBatch) -> None:
        """Let the senders of an open batch send their messages themselves; they own its capacity from now on."""
        del self._open[batch.key]
        batch.returned = True
        for prepared, _, future in batch.entries:
            # Cancelled meanwhile: its sender has no hold on the capacity.
            if future.done():
                self._in_flight.release(len(prepared.body))
            else:
                future.set_result(None)

    def _close_early(self, batch: SendBatch) -> None:
        """Close an open batch that must not wait for `_flush`."""
        self._close(batch)
        # Not here: the caller may add more messages first.
        if self._closed and self._starter is None:
            self._starter = asyncio.get_running_loop().call_soon(self._start_next)

    def _close(self, batch: SendBatch) -> None:
        """Add no more to an open batch; it starts when its turn comes."""
        del self._open[batch.key]
        queue = batch.key[3]
        if queue is None:
            self._closed.append(batch)
            # Growing: the first batches start the broker early, the later ones save requests.
            self._messages_max = min(2 * self._messages_max, BATCH_MESSAGES_MAX)
        elif (followers := self._waiting.get(queue)) is not None:
            # Order within a queue: one request at a time.
            followers.append(batch)
        else:
            self._waiting[queue] = deque()
            self._start(batch)

    def _start_next(self) -> None:
        """Start one closed batch; the next one follows in the next iteration."""
        self._starter = None
        if self._closed:
            self._start(self._closed.popleft())
            if self._closed:
                # One per iteration: encoding and the broker's work overlap.
                self._starter = asyncio.get_running_loop().call_soon(self._start_next)

    def _start(self, batch: SendBatch) -> None:
        batch.task = task = self._core.spawn("send batch", self._run(batch), vital=False)
        self._running.add(task)
        # The task, not the batch's field, which a later start could replace.
        task.add_done_callback(lambda _: self._ended(batch, task))

    def _ended(self, batch: SendBatch, task: asyncio.Task[None]) -> None:
        """Release the capacity of a batch, and start the one that follows it in its queue."""
        self._running.discard(task)
        for prepared, _, future in batch.entries:
            if not future.done():  # the client was stopped
                cause = ConnectFailed("the client was stopped", sent=True)
                retries = Retries(1, batch.deadline)
                future.set_exception(self._failure(prepared, retries, cause, outcome_unknown=True))
        self._in_flight.release(batch.body_bytes, len(batch.entries))
        queue = batch.key[3]
        if queue is not None:
            followers = self._waiting.pop(queue)
            if followers:
                self._waiting[queue] = followers
                self._start(followers.popleft())
            elif self._timer is None:  # `_flush` left them open
                # Messages that came while the request was in flight.
                for follower in [open_batch for key, open_batch in self._open.items() if key[3] == queue]:
                    self._close(follower)

    async def _run(self, batch: SendBatch) -> None:
        """Send a batch and complete its futures. Messages whose senders were cancelled before are left out."""
        # Cancelled before the start.
        entries = [entry for entry in batch.entries if not entry[2].done()]
        if not entries:
            return
        topic, wait_stored, _, queue = batch.key
        try:
            if len(entries) == 1:
                # One message needs no batch format, and may be what a batch must not hold.
                content = entries[0][0]
            else:
                ids = tuple(prepared.ids[0] for prepared, _, _ in entries)
                content = batch_of(topic, (item for _, item, _ in entries), ids, wait_stored=wait_stored)
            content.asks_confirmation = True
            receipts = await self._deliver(content, queue, batch.deadline)
        # The broker has refused the batch as a whole: nothing of it is stored.
        except ResponseError as error:
            if len(entries) == 1:
                _fail(entries, error)
            else:
                await self._send_each(entries, queue, batch.deadline)
        # Each future must end: its sender has no other end of its wait.
        except Exception as error:
            _fail(entries, error)
        else:
            for (_, _, future), receipt in zip(entries, receipts, strict=True):
                # Cancelled while the request was in flight.
                if not future.done():
                    future.set_result(receipt)

    async def _send_each(self, entries: list[Entry], queue: MessageQueue | None, deadline: Deadline) -> None:
        """Send the messages of a refused batch one after another, so that only those fail that are the reason."""
        for entry in entries:
            prepared, _, future = entry
            if future.done():
                continue
            prepared.asks_confirmation = True
            try:
                receipt = (await self._deliver(prepared, queue, deadline))[0]
            except Exception as error:
                _fail([entry], error)
            else:
                if not future.done():
                    future.set_result(receipt)

    async def _finish_batches(self) -> None:
        """Send what waits, and wait until all batches have ended."""
        if self._timer is not None:
            # What lingers is sent now.
            self._timer.cancel()
        while self._open or self._closed or self._running:
            self._flush()
            # Started batches appear in _running in the next iteration.
            await (asyncio.wait(set(self._running)) if self._running else asyncio.sleep(0))


def _fail(entries: Iterable[Entry], error: Exception) -> None:
    """Complete the futures that are open with an error, each with one of its own: a traceback belongs to one task."""
    for _, _, future in entries:
        if not future.done():
            future.set_exception(_copy(error))


def _copy(error: E) -> E:
    """An exception with the same content, made without `__init__`, whose arguments differ from class to class."""
    copy: E = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
