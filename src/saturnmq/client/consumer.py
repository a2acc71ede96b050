"""The consumer: queues shared with the group, pulled ahead, handed out one by one, committed when settled.

At least once: a message that is not acked comes again, after ack_timeout, a rebalance or a restart. Differences to the
original, from spec 08: messages are handed to `async for` and `recv`, settled by hand (1.1 MANUAL); flow control counts
unsettled messages (API-23). Source: spec 03 sections 1, 2, 5-8; spec 08 API-15, API-18..20, API-23, API-26.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from saturnmq.client import namespaces
from saturnmq.client.assignment import Assignment, mark_delivered
from saturnmq.client.checks import check_topic
from saturnmq.client.codecs import Codec
from saturnmq.client.core import Core, State, check_state, now_ms
from saturnmq.client.errors import Closed, ConsumerStopped
from saturnmq.client.inbox import Inbox
from saturnmq.client.message import Ack, Message
from saturnmq.client.offsets import ClusterOffsets
from saturnmq.client.rebalance import Strategy, average
from saturnmq.client.routes import Route
from saturnmq.client.send_back import ACK_TIMEOUT_LEVEL, SendBack
from saturnmq.client.subscription import ALL, TAG, Filter, subscription_data, tag
from saturnmq.protocol.bodies import (
    CheckClientRequest,
    ConsumerData,
    ConsumerIdList,
    MessageQueue,
    ResetOffsetBody,
    SubscriptionData,
)
from saturnmq.protocol.codes import RETRY_PREFIX, RequestCode, ResponseCode
from saturnmq.protocol.command import Command
from saturnmq.protocol.errors import SaturnError

logger = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_MISSING_S: Final = 0.5  # a subscribed topic without a route is looked for again after this, then twice that
LAST_MISSING_S: Final = 20.0
RETRY_LATER_S: Final = 5.0  # CC-04: a failed send-back is tried again


class Consumer(Generic[T]):
    """A member of a clustering group. Made by `Client.consumer`; `async with` it, or start() and stop().

    group, and the topics of queues inside, are names on the wire.
    """

    def __init__(
        self,
        core: Core,
        group: str,
        codec: Codec[T],
        *,
        prefetch: int,
        prefetch_bytes: int,
        start: str | datetime,
        pull_batch: int,
        max_times: int,
        ack_timeout: float,
        strategy: Strategy = average,
    ) -> None:
        self.core = core
        self.group = namespaces.wrap(core.settings.namespace, group)
        self.codec = codec
        self.prefetch = prefetch
        self.pull_batch = pull_batch
        self.offsets = ClusterOffsets(core, self.group)
        self.send_back = SendBack(core, self.group, max_times)
        self.state = State.NEW
        self._prefetch_bytes = prefetch_bytes
        self._start_from = start
        self._ack_timeout_s = ack_timeout
        self._strategy = strategy
        self._retry_topic = RETRY_PREFIX + self.group
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._tags: dict[str, frozenset[str]] = {}
        self._announced: dict[str, int] = {}  # subscription versions that the brokers were told
        self._assigned: dict[MessageQueue, Assignment] = {}
        self._inbox: Inbox[Message[T]] = Inbox(mark_delivered)
        self._rebalance_wanted = asyncio.Event()
        self._rounds = 0
        self._round_done = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._starved = False
        self._lock = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None
        self._set_subscription(self._retry_topic, Filter(ALL))

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
                await self._announce(self._topics())
            except BaseException:
                self.core.consumers.pop(self.group, None)
                raise
            self.state = State.RUNNING
            self._tasks = [
                self.core.spawn(f"rebalance {self.group}", self._rebalance_loop(), vital=False),
                self.core.spawn(f"ack timeout {self.group}", self._ack_timeout_loop(), vital=False),
            ]
            for task in self._tasks:
                task.add_done_callback(self.task_ended)
            self.wake_rebalance()

    async def stop(self) -> None:
        """Leave the group: stop pulling, store offsets, unregister (CA-09). Idempotent.

        What is not settled is delivered again, to whoever owns the queue then. A caller that is cancelled does not stop
        the stopping.
        """
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
                await self.offsets.persist_all()
                await self.core.remove_consumer(self.group)
            self._assigned.clear()

    def task_ended(self, task: asyncio.Task[Any]) -> None:
        """A background task died: the next reader learns why (API-26)."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._inbox.close(lambda: self._stopped(error))

    def _stopped(self, cause: BaseException) -> ConsumerStopped:
        failure = ConsumerStopped(f"a background task of consumer {self.group} died: {type(cause).__name__}: {cause}")
        failure.__cause__ = cause
        return failure

    def _check(self) -> None:
        check_state("consumer", self.state)
        if self.core.failure is not None:
            raise self._stopped(self.core.failure)
        self.core.check_running("consumer")

    # subscriptions

    async def subscribe(self, topic: str, wanted: Filter | str = ALL) -> None:
        """Receive this topic, all of it or what the filter lets through. Also while running; again replaces the filter.

        wanted: tags as text, or what `tag` or `sql` made. The brokers are asked about an SQL filter, now or at the start;
        one that they refuse raises the error of their answer and changes nothing.
        """
        check_topic(topic, sending=False)
        wire = namespaces.wrap(self.core.settings.namespace, topic)
        wanted = tag(wanted) if isinstance(wanted, str) else wanted
        if self.state is State.RUNNING:
            self._check()
            await self._find([wire])
            await self._ask_about(subscription_data(wire, wanted, now_ms()))
        self._set_subscription(wire, wanted)
        if self.state is State.RUNNING:
            await self._beat()
            self.wake_rebalance()

    async def unsubscribe(self, topic: str) -> None:
        """Give up this topic's queues."""
        wire = namespaces.wrap(self.core.settings.namespace, topic)
        self._subscriptions.pop(wire, None)
        self._tags.pop(wire, None)
        if self.state is State.RUNNING:
            self.wake_rebalance()  # it finishes this should the caller be cancelled
            for queue in [queue for queue in self._assigned if queue.topic == wire]:
                await self._release(queue)
            await self._beat()

    def _set_subscription(self, wire: str, wanted: Filter) -> None:
        self._subscriptions[wire] = subscription_data(wire, wanted, self._next_version(wire))
        self._tags[wire] = wanted.tags

    def _next_version(self, wire: str) -> int:
        """Unix ms, but above the topic's last version: what is not newer, a broker ignores."""
        known = self._subscriptions.get(wire)
        return max(now_ms(), known.sub_version + 1 if known is not None else 0)

    def _topics(self) -> list[str]:
        return list(self._subscriptions)

    async def _announce(self, topics: Iterable[str]) -> None:
        """Know the routes, then tell every broker about the group: a pull needs both."""
        await self._find(topics)
        for data in list(self._subscriptions.values()):
            await self._ask_about(data)
        await self._beat()

    async def _find(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self.core.routes.use(topic)
            await self.core.routes.refresh(topic)

    async def _ask_about(self, data: SubscriptionData) -> None:
        """Have the brokers of a topic look at a filter that is no tag filter (FIL-03). Raises the error of a refusal."""
        route = self.core.routes.known(data.topic)
        if data.expression_type == TAG or route is None:
            return
        body = CheckClientRequest(self.core.client_id, self.group, data).encode()
        for name, ids in route.addresses.items():
            if not ids:
                continue
            address = ids[min(ids)]
            command = Command(RequestCode.CHECK_CLIENT_CONFIG, body=body)
            try:
                answer = await self.core.remote.call(address, command, self.core.settings.api_timeout_ms)
            except SaturnError as error:  # it will say so when it is pulled from
                logger.warning("filter not checked group=%s topic=%s error=%s", self.group, data.topic, error)
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise self.core.answer_error(answer, f"{name}@{address}", topic=data.topic, group=self.group)

    async def _beat(self) -> None:
        """Tell every broker about the group; then pulls may name these versions."""
        versions = {topic: data.sub_version for topic, data in self._subscriptions.items()}
        await self.core.heartbeat()
        self._announced = versions

    def wanted_tags(self, topic: str) -> frozenset[str]:
        return self._tags.get(topic, frozenset())

    def subscription_version(self, topic: str) -> int:
        """The newest version that the brokers were told: a pull may not run ahead of the heartbeat."""
        return self._announced.get(topic, 0)

    def subscription_type(self, topic: str) -> str:
        data = self._subscriptions.get(topic)
        return data.expression_type if data is not None else "TAG"

    def heartbeat_data(self) -> ConsumerData:
        """This group for the client's heartbeat."""
        where = "CONSUME_FROM_TIMESTAMP"
        if isinstance(self._start_from, str):
            where = f"CONSUME_FROM_{self._start_from.upper()}_OFFSET"
        return ConsumerData(
            group_name=self.group,
            consume_from_where=where,
            subscription_data_set=list(self._subscriptions.values()),
        )

    # receiving

    def __aiter__(self) -> AsyncIterator[Message[T]]:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return await self.recv()
        except Closed:
            raise StopAsyncIteration from None

    async def recv(self, timeout: float | None = None) -> Message[T]:
        """The next message. Raises TimeoutError after `timeout` seconds, Closed after stop, ConsumerStopped.

        Any number of tasks may wait. A cancelled call leaves its message to the others (API-24).
        """
        self._check()
        message = self._inbox.take()
        if message is not None:
            return message
        if timeout is None:
            return await self._inbox.get()
        async with asyncio.timeout(timeout):
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

    def redeliver_later(self, message: Message[T], after: float = RETRY_LATER_S) -> None:
        """Hand a message out again later, here: its send-back failed (CC-04)."""

        async def wait_and_put() -> None:
            await asyncio.sleep(after)
            self._inbox.put([message])

        self.core.spawn(f"redeliver {self.group}", wait_and_put(), vital=False)

    # flow control over all queues

    def bytes_left(self) -> bool:
        """Whether the open messages of all queues are below the limit; the first of them always fits."""
        open_bytes = sum(item.generation.process_queue.body_bytes for item in self._assigned.values())
        if open_bytes >= self._prefetch_bytes:
            self._starved = True
            return False
        return True

    def room_made(self) -> None:
        """A message was settled: queues that waited for bytes may go on."""
        if self._starved:
            open_bytes = sum(item.generation.process_queue.body_bytes for item in self._assigned.values())
            if open_bytes <= self._prefetch_bytes // 2:
                self._starved = False
                for assignment in self._assigned.values():
                    assignment.check_room()

    # position

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues owned now, without those of the retry topic; names as the user knows them."""
        namespace = self.core.settings.namespace
        mine = [queue for queue in self._assigned if queue.topic != self._retry_topic]
        return [namespaces.strip_queue(namespace, queue) for queue in sorted(mine)]

    async def wait_assigned(self, timeout: float = 10.0) -> list[MessageQueue]:
        """The queues owned once a rebalance has given any. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while not self.assigned:
                self._check()
                self._round_done.clear()
                await self._round_done.wait()
        return self.assigned

    def committed(self) -> dict[MessageQueue, int]:
        """What would be stored now: by queue the first offset that is not settled."""
        namespace = self.core.settings.namespace
        return {namespaces.strip_queue(namespace, queue): n for queue, n in self.offsets.snapshot().items()}

    async def commit(self) -> None:
        """Store offsets now instead of at the next timer."""
        self._check()
        await self.offsets.persist_all()

    async def persist_offsets(self) -> None:
        """For the client's timer."""
        if self.state is State.RUNNING:
            await self.offsets.persist_all()

    # rebalance

    def wake_rebalance(self) -> None:
        """Share the queues again, soon."""
        self._rebalance_wanted.set()

    async def _rebalance_loop(self) -> None:
        missing_s = FIRST_MISSING_S
        while True:
            complete = all(self.core.routes.known(topic) is not None for topic in self._topics())
            missing_s = FIRST_MISSING_S if complete else min(missing_s * 2, LAST_MISSING_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if complete and self._rounds else missing_s):
                    await self._rebalance_wanted.wait()
            self._rebalance_wanted.clear()
            changed = False
            for queue in [queue for queue in self._assigned if queue.topic not in self._subscriptions]:
                await self._release(queue)
                changed = True
            for topic in self._topics():
                try:
                    changed |= await self._rebalance_topic(topic)
                except SaturnError as error:  # one topic does not stop the others (RB-01)
                    logger.warning("rebalance failed group=%s topic=%s error=%s", self.group, topic, error)
            self._rounds += 1
            self._round_done.set()
            if changed:
                await self._quiet_heartbeat()

    async def _quiet_heartbeat(self) -> None:
        try:
            await self._beat()
        except SaturnError as error:
            logger.warning("heartbeat failed group=%s error=%s", self.group, error)

    async def _rebalance_topic(self, topic: str) -> bool:
        """Take and give up queues of one topic; True when anything changed. Without members or route: keep (RB-02)."""
        route = await self.core.routes.for_read(topic)
        if route is None or not route.read_queues:
            return False
        members = await self._members(route)
        if not members:
            return False
        mine = self._strategy(route.read_queues, members, self.core.client_id)
        if self.core.client_id not in members:
            self.core.beat_soon()
        changed = False
        for queue in [queue for queue in self._assigned if queue.topic == topic and queue not in mine]:
            await self._release(queue)
            changed = True
        for queue in mine:
            if queue not in self._assigned:
                changed |= await self._acquire(queue)
        if changed and topic in self._subscriptions:
            self._subscriptions[topic].sub_version = self._next_version(topic)  # RB-06
        return changed

    async def _members(self, route: Route) -> list[str]:
        """Client ids of the group, from any broker of the topic; empty when nobody says."""
        addresses = [next(iter(ids.values())) for ids in route.addresses.values() if ids]
        random.shuffle(addresses)
        command = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": self.group})
        for address in addresses:
            try:
                answer = await self.core.remote.call(address, command, self.core.settings.api_timeout_ms)
            except SaturnError as error:
                logger.info("members not known group=%s broker=%s error=%s", self.group, address, error)
                continue
            if answer.code == ResponseCode.SUCCESS and answer.body:
                return ConsumerIdList.decode(answer.body).consumer_id_list
        return []

    async def _release(self, queue: MessageQueue) -> None:
        """Give up a queue: its messages are void here, its offset is stored (RB-03)."""
        assignment = self._assigned.pop(queue, None)
        if assignment is None:
            return  # given up meanwhile by unsubscribe
        assignment.drop()
        await assignment.join()
        try:
            await self.offsets.persist(queue)
        except SaturnError as error:
            logger.warning("offset not stored group=%s queue=%s error=%s", self.group, queue, error)
        self.offsets.forget(queue)
        self.room_made()
        logger.info("queue released group=%s queue=%s", self.group, queue)

    async def _acquire(self, queue: MessageQueue) -> bool:
        """Take a queue at its start offset; False when that cannot be told this time (RB-04)."""
        self.offsets.forget(queue)
        try:
            offset = await self._start_offset(queue)
        except SaturnError as error:
            logger.warning("queue not taken group=%s queue=%s error=%s", self.group, queue, error)
            return False
        if self.state is not State.RUNNING or queue.topic not in self._subscriptions:
            return False
        assignment = Assignment(self, queue, offset)
        self._assigned[queue] = assignment
        assignment.start()
        logger.info("queue taken group=%s queue=%s offset=%d", self.group, queue, offset)
        return True

    async def _start_offset(self, queue: MessageQueue) -> int:
        """The stored offset, else what `start` says; the retry topic from its beginning, by time from its end (RB-05)."""
        stored = await self.offsets.read(queue)
        if stored is not None:
            return stored
        is_retry = queue.topic == self._retry_topic
        start = self._start_from
        if start == "first":
            return 0
        if start == "last":
            return 0 if is_retry else await self._query_offset(RequestCode.GET_MAX_OFFSET, queue, {})
        assert isinstance(start, datetime)
        if is_retry:
            return await self._query_offset(RequestCode.GET_MAX_OFFSET, queue, {})
        stamp = {"timestamp": str(int(start.timestamp() * 1000))}
        return await self._query_offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, stamp)

    async def _query_offset(self, code: RequestCode, queue: MessageQueue, ext: dict[str, str]) -> int:
        address = await self.core.master_address(queue.topic, queue.broker_name)
        fields = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name, **ext}
        command = Command(code, ext=fields)
        answer = await self.core.call_broker(address, command, self.core.settings.api_timeout_ms, topic=queue.topic)
        return int(answer.ext.get("offset") or 0)

    # messages nobody settled

    async def _ack_timeout_loop(self) -> None:
        while True:
            await asyncio.sleep(max(self._ack_timeout_s / 15, 0.01))
            before = time.monotonic() - self._ack_timeout_s
            for assignment in list(self._assigned.values()):
                for generation, message in assignment.expired(before):
                    try:
                        await self.send_back.send(message, ACK_TIMEOUT_LEVEL)
                    except SaturnError as error:
                        logger.warning("late message kept group=%s message=%r error=%s", self.group, message, error)
                        continue
                    generation.verdicts.setdefault(message.offset, Ack.RETRY)
                    generation.close(message.offset)

    # requests of brokers

    def handle(self, command: Command) -> Command | None:
        """NOTIFY_CONSUMER_IDS_CHANGED and RESET_CONSUMER_CLIENT_OFFSET; anything else is not supported."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.wake_rebalance()
            return None
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self._reset(ResetOffsetBody.decode(command.body or b"{}").offset_table)
            return None
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")

    def _reset(self, table: dict[MessageQueue, int]) -> None:
        """Go on at these offsets at once (OF-06)."""
        for queue, offset in table.items():
            assignment = self._assigned.get(queue)
            if assignment is not None:
                logger.info("offset reset group=%s queue=%s offset=%d", self.group, queue, offset)
                assignment.reset(offset)
        self.core.spawn(f"reset {self.group}", self.offsets.persist_all(), vital=False)
