"""Group membership of a consumer: subscriptions, heartbeats, rebalance, and acquiring and releasing queues.

Order of operations: routes are known and subscriptions announced by heartbeat before the first pull, and a pull never names a
subscription version that the brokers have not received. A released queue has its offset stored before its lock is given up. Group
and topic names in here are namespaced.

Requirements: CA-03, CA-04, CA-08, CA-09, CA-12, RB-01..RB-06, OR-03, OR-05, OR-06, FIL-03, API-18.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from saturnmq.client import hints, namespaces
from saturnmq.client.checks import check_topic
from saturnmq.client.codecs import Codec
from saturnmq.client.connection.core import ClientState, Core, check_state, now_ms
from saturnmq.client.connection.routes import TopicRoute
from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.callbacks import notify
from saturnmq.client.consumer.consume_stats import ConsumeCounters
from saturnmq.client.consumer.group_check import GroupCheck
from saturnmq.client.consumer.offsets import ClusterOffsets, LocalOffsets, OffsetStore, note_failure
from saturnmq.client.consumer.ordered_queue import OrderedQueue
from saturnmq.client.consumer.queue_identity import QueueIdentity
from saturnmq.client.consumer.queue_locks import FIRST_RENEW_S, RENEW_S, MemberLocks
from saturnmq.client.consumer.send_back import SendBack
from saturnmq.client.consumer.settings import ConsumerSettings
from saturnmq.client.filters import ALL, TAG, Filter, subscription_data, tag
from saturnmq.client.message import Message
from saturnmq.errors import ClientError, ConsumerStopped, RouteNotFound
from saturnmq.protocol.bodies import CheckClientRequest, ConsumerData, ConsumerIdList, MessageQueue, SubscriptionData
from saturnmq.protocol.codes import RETRY_PREFIX, RequestCode, ResponseCode
from saturnmq.protocol.errors import RemoteProtocolError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.numbers import int64_or
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.tasks import one_round

logger = logging.getLogger(__name__)

FIRST_MISSING_S: Final = 0.5  # first retry for a subscribed topic without a route; doubles each time
LAST_MISSING_S: Final = 20.0
ACQUIRED_AT_ONCE: Final = 64  # queues whose start offset is asked for at the same time
CLOCK_SLACK_MS: Final = 60_000  # tolerated difference between the clocks of client and broker
LOCK_DENIED_S: Final = 1.0  # retry interval for a queue that another member has locked
RELOCK_S: Final = 3.0  # OR-06
OFFSETS_FILE: Final = "offsets.json"


class ConsumerMember(ABC):
    """The part of a consumer that maintains its group membership and its assigned queues."""

    def __init__(self, core: Core, group: str, codec: Codec[Any], settings: ConsumerSettings) -> None:
        self.core = core
        self.codec = codec
        self.started_ms = 0
        self.group = namespaces.wrap(core.settings.namespace, group)
        self.settings = settings
        self.prefetch = settings.prefetch
        self.pull_batch = settings.pull_batch
        self.pull_interval = settings.pull_interval
        self.concurrency: int | None = None  # of the listener that reads this consumer
        self._shares: dict[str, int] = {}  # by topic, how many queues this member has
        self.send_back = SendBack(core, self.group, settings.times_max)
        self.counters = ConsumeCounters()
        self.offsets: OffsetStore = ClusterOffsets(core, self.group)
        self.state = ClientState.NEW
        self._locks = MemberLocks(core, self.group) if settings.ordered and settings.model == "cluster" else None
        self._retry_topic = RETRY_PREFIX + self.group
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._tags: dict[str, frozenset[str]] = {}
        # Subscription versions last sent in a heartbeat; empty: the group was never announced.
        self._announced: dict[str, int] = {}
        self._manual: frozenset[MessageQueue] | None = None
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._revoked: set[MessageQueue] = set()  # about to be released, while `on_revoked` runs
        self._since_ms: dict[str, int] = {}  # when a topic was subscribed, Unix ms
        self._placed: set[str] = set()  # topics whose `subscribe` has returned
        self._rebalance_wanted = asyncio.Event()
        self._rounds_begun = 0
        self._rounds = 0
        self._round_done = asyncio.Event()
        self._suspended = False
        self._denied = False
        self._group_check = GroupCheck(core, self.group)
        self._only_member = settings.model == "cluster"
        self._compared = -math.inf
        self._announcing: asyncio.Task[Any] | None = None
        self._resetting: asyncio.Task[Any] | None = None
        if settings.model == "cluster":
            self._set_subscription(self._retry_topic, Filter(ALL))

    @abstractmethod
    def room_made(self) -> None: ...
    @abstractmethod
    def deliver(self, messages: list[Message[Any]]) -> None: ...
    @abstractmethod
    def deliver_first(self, messages: list[Message[Any]]) -> None: ...
    @abstractmethod
    def withdraw(self, message: Message[Any]) -> None: ...

    # membership mode

    @property
    def commits(self) -> bool:
        """Whether offsets are stored at the broker (clustering mode)."""
        return self.settings.model == "cluster"

    @property
    def sends_back(self) -> bool:
        """Whether failed messages are returned to the broker for redelivery."""
        return self.settings.model == "cluster" and self._manual is None

    def _check(self) -> None:
        """Raise unless this consumer and its client are running and no background task died."""
        if self.state is not ClientState.RUNNING:
            check_state("consumer", self.state)
        core = self.core
        if core.failure is not None:
            raise self._stopped(core.failure)
        core.check_running("consumer")

    def _stopped(self, cause: BaseException) -> ConsumerStopped:
        failure = ConsumerStopped(f"a background task of consumer {self.group} died: {type(cause).__name__}: {cause}")
        failure.__cause__ = cause
        return failure

    def _offsets_file(self) -> Path:
        folder = Path(self.core.settings.offsets_dir).expanduser()
        return folder / self.core.client_id / self.group / OFFSETS_FILE

    async def _load_offsets(self) -> None:
        """Load stored offsets. The path of a broadcast member's file contains the client id, known only now (OF-02, CA-05)."""
        if self.settings.model == "broadcast":
            self.offsets = LocalOffsets(self._offsets_file())
        await self.offsets.load()

    @property
    def assignments(self) -> list[AssignedQueue]:
        """The assigned queues in queue order."""
        return [self._assigned[queue] for queue in sorted(self._assigned)]

    # subscriptions

    @property
    def subscriptions(self) -> list[SubscriptionData]:
        """All subscriptions, including that of the retry topic; topic names are namespaced."""
        return [self._subscriptions[topic] for topic in sorted(self._subscriptions)]

    async def subscribe(self, topic: str, wanted: Filter | str = ALL) -> None:
        """Receive the messages of a topic that pass the filter. Allowed while running; subscribing again replaces the filter.

        wanted: tags as text, or a filter made by `tag` or `sql`.

        Returns once the positions in the queues of the topic are fixed, after at most the client's timeout: also with start="last",
        a message that is sent from then on is received.

        All members of a group must subscribe to the same topics with the same filters: brokers keep one set of subscriptions per
        group, the newest, so members that differ lose messages. Such a difference is logged.

        Brokers validate an SQL filter, now or at the start; a rejected one raises the error of their answer and changes nothing.
        Raises ClientError after `assign`.

            await consumer.subscribe("orders")
            await consumer.subscribe("payments", tag("paid || refunded"))
        """
        if self._manual is not None:
            raise ClientError("Subscribe and assign are mutually exclusive.")
        check_topic(topic, sending=False)
        wire = namespaces.wrap(self.core.settings.namespace, topic)
        topic_filter = tag(wanted) if isinstance(wanted, str) else wanted
        if self.state is ClientState.RUNNING:
            self._check()
            await self._find([wire])
            await self._validate_filter(subscription_data(wire, topic_filter, now_ms()))
        self._set_subscription(wire, topic_filter)
        if self.state is ClientState.RUNNING:
            await self._heartbeat()
            await self._fix_positions()

    async def unsubscribe(self, topic: str) -> None:
        """Stop receiving a topic and release its queues."""
        wire = namespaces.wrap(self.core.settings.namespace, topic)
        self._subscriptions.pop(wire, None)
        self._tags.pop(wire, None)
        self._since_ms.pop(wire, None)
        self._placed.discard(wire)
        self._shares.pop(wire, None)
        if self.state is ClientState.RUNNING:
            self.wake_rebalance()  # completes the release if the caller is cancelled
            await self._release_all([queue for queue in self._assigned if queue.topic == wire])
            await self._heartbeat()

    async def assign(self, queues: Iterable[MessageQueue], wanted: Filter | str = ALL) -> None:
        """Read exactly these queues, outside of the group's rebalance; a second call replaces them.

        wanted: tags as text, or a filter made by `tag` or `sql`. The consumer does not join the group, so other members may be
        assigned the same queues; offsets are stored under the group. Messages are not sent back to the broker: an unsettled one is
        handed out again after `ack_timeout`, a retried one after its delay (5 s by default), at most max_times times; then, or if
        rejected, it is dropped with a warning. Raises ClientError after `subscribe`.

            queues = await client.puller().queues("orders")
            await consumer.assign(queues[:2])
        """
        if self._topics() not in ([], [self._retry_topic]) and self._manual is None:
            raise ClientError("Subscribe and assign are mutually exclusive.")
        topic_filter = tag(wanted) if isinstance(wanted, str) else wanted
        namespace = self.core.settings.namespace
        wire = frozenset(namespaces.wrap_queue(namespace, queue) for queue in queues)
        self._subscriptions.clear()
        self._tags.clear()
        self._since_ms.clear()
        self._placed.clear()
        self._manual = wire
        for topic in sorted({queue.topic for queue in wire}):
            check_topic(topic, sending=False)
            self._set_subscription(topic, topic_filter)
        if self.state is ClientState.RUNNING:
            await self._find(self._topics())
            await self._fix_positions()

    def _set_subscription(self, wire: str, topic_filter: Filter) -> None:
        self._subscriptions[wire] = subscription_data(wire, topic_filter, self._next_version(wire))
        self._tags[wire] = topic_filter.tags
        self._since_ms.setdefault(wire, now_ms())

    def _next_version(self, wire: str) -> int:
        """The next subscription version: Unix ms, but above the last one, because brokers ignore a version that is not newer."""
        current = self._subscriptions.get(wire)
        return max(now_ms(), current.sub_version + 1 if current is not None else 0)

    def _topics(self) -> list[str]:
        return list(self._subscriptions)

    async def _announce(self, topics: Iterable[str]) -> None:
        """Fetch routes, then announce the group to every broker by heartbeat; pulls need both."""
        await self._find(topics)
        for data in list(self._subscriptions.values()):
            await self._validate_filter(data)
        # not without any subscription: that heartbeat would remove the other members' topics from the group
        if self._announced or self._subscriptions.keys() - {self._retry_topic}:
            await self._heartbeat()

    async def _find(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self.core.routes.use(topic)
            if await self.core.routes.refresh(topic) is None and not topic.startswith(RETRY_PREFIX):
                logger.warning(
                    "subscribed topic not found group=%s topic=%s hint=%r", self.group, topic, self._create_hint(topic)
                )

    async def _refresh_routes(self) -> None:
        """Query the routes of all topics now; failures are ignored."""
        for topic in self._topics():
            with contextlib.suppress(SaturnError):
                await self.core.routes.refresh(topic)

    def _create_hint(self, topic: str) -> str:
        return hints.missing_topic_to_read(topic, self.core.name_servers.addresses)

    def _nothing_to_read(self) -> ClientError | None:
        """The error for a reader that no message can reach: nothing is subscribed, or no subscribed topic exists. Else None."""
        topics = [topic for topic in self._topics() if topic != self._retry_topic]
        if not topics:
            return ClientError(
                f"consumer {self.group} has no subscription, nothing can be received",
                hint="Call await consumer.subscribe(topic), or assign(queues), first.",
            )
        routes = [self.core.routes.cached(topic) for topic in topics]
        if any(route is not None and not route.substitute for route in routes):
            return None
        text = f"consumer {self.group} can receive nothing, no NameServer knows its topic: {', '.join(topics)}"
        return RouteNotFound(text, hint=self._create_hint(topics[0]))

    async def _validate_filter(self, data: SubscriptionData) -> None:
        """Have the brokers of the topic validate an SQL filter (FIL-03). Raises the error of a rejection."""
        route = self.core.routes.cached(data.topic)
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
            except SaturnError as error:  # the pull will report a bad filter
                logger.warning("filter not checked group=%s topic=%s error=%s", self.group, data.topic, error)
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise self.core.answer_error(answer, f"{name}@{address}", topic=data.topic, group=self.group)

    async def _heartbeat(self) -> None:
        """Send heartbeats to all brokers; afterwards pulls may name these subscription versions."""
        versions = {topic: data.sub_version for topic, data in self._subscriptions.items()}
        self._announced = self._announced or versions
        await self.core.heartbeat()
        self._announced = versions

    def wanted_tags(self, topic: str) -> frozenset[str]:
        """The tags by which pulled messages are filtered again; empty accepts all."""
        return self._tags.get(topic, frozenset())

    def subscription_version(self, topic: str) -> int:
        """The newest version sent to the brokers: a pull must not name a newer one."""
        return self._announced.get(topic, 0)

    def subscription_type(self, topic: str) -> str:
        """TAG or SQL92, as named in pulls."""
        data = self._subscriptions.get(topic)
        return data.expression_type if data is not None else TAG

    def subscription_expression(self, topic: str) -> str | None:
        """The filter expression to send with each pull of a manually assigned queue; None if the brokers have the subscription."""
        data = self._subscriptions.get(topic)
        return None if self._manual is None or data is None else data.sub_string

    def heartbeat_data(self) -> ConsumerData | None:
        """This group's part of the client's heartbeat; None for manual assignment and before the first announcement."""
        if self._manual is not None or not self._announced:
            return None
        start = self.settings.start
        where = f"CONSUME_FROM_{start.upper()}_OFFSET" if isinstance(start, str) else "CONSUME_FROM_TIMESTAMP"
        return ConsumerData(
            group_name=self.group,
            message_model="BROADCASTING" if self.settings.model == "broadcast" else "CLUSTERING",
            consume_from_where=where,
            subscription_data_set=list(self._subscriptions.values()),
        )

    # rebalance

    def wake_rebalance(self) -> None:
        """Request a rebalance round."""
        self._rebalance_wanted.set()

    async def _fix_positions(self) -> None:
        """Wait for a rebalance that begins now, at most the client's timeout.

        In queues that it could not acquire, reading begins at the time of the subscription.
        """
        target_round = self._rounds_begun + 1
        self.wake_rebalance()
        try:
            async with asyncio.timeout(self.core.settings.timeout):
                while self._rounds < target_round and self.state is ClientState.RUNNING:
                    self._round_done.clear()
                    await self._round_done.wait()
        except TimeoutError:
            logger.warning(
                "positions not determined in time group=%s timeout=%g", self.group, self.core.settings.timeout
            )
        self._placed.update(self._topics())

    async def _rebalance_loop(self) -> None:
        missing_s = FIRST_MISSING_S
        while True:
            complete = all(self.core.routes.cached(topic) is not None for topic in self._topics())
            missing_s = FIRST_MISSING_S if complete else min(missing_s * 2, LAST_MISSING_S)
            pause_s = None if complete and self._rounds else missing_s
            if self._denied:
                pause_s = LOCK_DENIED_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._rebalance_wanted.wait()
            self._rebalance_wanted.clear()
            self._round_done.clear()
            self._rounds_begun += 1
            if not self._suspended:  # CA-08
                await one_round(f"rebalance of {self.group}", self._rebalance)
            self._rounds += 1
            self._round_done.set()

    async def _rebalance(self) -> None:
        changed = self._denied = False
        changed |= await self._release_all(
            [queue for queue in self._assigned if queue.topic not in self._subscriptions]
        )
        for topic in self._topics():
            try:
                changed |= await self._rebalance_topic(topic)
            except Exception as error:  # one topic does not stop the others (RB-01)
                unexpected = not isinstance(error, SaturnError)
                logger.warning(
                    "rebalance failed group=%s topic=%s error=%s", self.group, topic, error, exc_info=unexpected
                )
        self._compare_soon()
        if changed:
            try:
                await self._heartbeat()
            except SaturnError as error:
                logger.warning("heartbeat failed group=%s error=%s", self.group, error)

    def _compare_soon(self) -> None:
        """Check at most once per rebalance interval whether the other members subscribe the same (CA-03)."""
        if time.monotonic() - self._compared >= self.core.settings.rebalance_ms / 1000:
            self.core.spawn(f"compare {self.group}", self._compare(), vital=False)

    async def _compare(self) -> None:
        routes = [self.core.routes.cached(topic) for topic in self._topics()]
        addresses = [min(ids.items())[1] for route in routes if route for ids in route.addresses.values() if ids]
        announced = {topic: data for topic, data in self._subscriptions.items() if topic in self._announced}
        if addresses and announced and not self._only_member and self._manual is None:
            self._compared = time.monotonic()
            await self._group_check.compare(random.choice(addresses), announced)

    def subscription_lost(self) -> None:
        """Re-announce after a broker did not know a subscription: it restarted, or another member replaced the group's topics."""
        if self._announcing is None or self._announcing.done():
            self._announcing = self.core.spawn(f"announce {self.group}", self._announce_again(), vital=False)

    async def _announce_again(self) -> None:
        await self._compare()
        try:
            await self.core.heartbeat()
        except SaturnError as error:
            logger.warning("heartbeat failed group=%s error=%s", self.group, error)

    async def _rebalance_topic(self, topic: str) -> bool:
        """Acquire and release queues of one topic; True if any changed. Without members or route, keep the assignment (RB-02)."""
        route = await self.core.routes.for_read(topic)
        if route is None or not route.read_queues:
            return False
        share = await self._share(route)
        if share is None:
            return False
        self._divide_thresholds(topic, len(share))
        changed = await self._release_all(
            [queue for queue in self._assigned if queue.topic == topic and queue not in share]
        )
        if self._locks is not None:  # locked by us but never acquired, and no longer in our share: release the lock
            idle = self._locks.possibly_locked() - self._assigned.keys()
            await self._locks.unlock(queue for queue in idle if queue.topic == topic and queue not in share)
        missing = [queue for queue in share if queue not in self._assigned]
        for queue in share:
            assignment = self._assigned.get(queue)
            if isinstance(assignment, OrderedQueue):
                assignment.stay()
        if missing and self._locks is not None:
            locked = await self._locks.lock(missing)
            self._denied |= not all(locked.get(queue) for queue in missing)
            missing = [queue for queue in missing if locked.get(queue)]
        changed |= await self._acquire_all(missing)
        if changed and topic in self._subscriptions:
            self._subscriptions[topic].sub_version = self._next_version(topic)  # RB-06
        return changed

    def _divide_thresholds(self, topic: str, share: int) -> None:
        """Divide the thresholds per topic by the number of this member's queues, before it acquires them (RB-06)."""
        if self._shares.get(topic) != share:
            self._shares[topic] = share
            for assignment in self._assigned.values():
                if assignment.queue.topic == topic:
                    assignment.check_capacity()

    def resize(self, concurrency: int, prefetch: int) -> None:
        """Continue with another concurrency of the listener, and the `prefetch` that suits it."""
        self.concurrency, self.prefetch = concurrency, prefetch
        for assignment in self._assigned.values():
            assignment.check_capacity()

    def prefetch_of(self, topic: str) -> int:
        """Unsettled messages at which a queue of the topic is not pulled further."""
        per_topic = self.settings.prefetch_per_topic
        return self.prefetch if per_topic is None else self._per_queue(topic, per_topic)

    def prefetch_bytes_of(self, topic: str) -> int | None:
        """Unsettled body bytes at which a queue of the topic is not pulled further; None if it has no limit of its own."""
        per_topic = self.settings.prefetch_bytes_per_topic
        return None if per_topic is None else self._per_queue(topic, per_topic)

    def _per_queue(self, topic: str, per_topic: int) -> int:
        return max(1, per_topic // max(1, self._shares.get(topic, 1)))

    async def _share(self, route: TopicRoute) -> list[MessageQueue] | None:
        """This member's queues of a topic; None if they cannot be determined now."""
        if self._manual is not None:
            return sorted(queue for queue in self._manual if queue.topic == route.topic)
        if self.settings.model == "broadcast":
            return list(route.read_queues)
        members = await self._members(route)
        if not members:
            return None
        self._only_member = len(members) == 1
        if self.core.client_id not in members:
            self.core.heartbeat_soon()
        try:
            return self.settings.strategy(route.read_queues, members, self.core.client_id)
        except SaturnError:
            raise
        except Exception:  # user code; keep the assignment until it succeeds (RB-02)
            logger.exception("rebalance failed group=%s topic=%s reason=strategy", self.group, route.topic)
            return None

    async def _members(self, route: TopicRoute) -> list[str]:
        """Client ids of the group, from any broker of the topic; empty if none answers."""
        addresses = [next(iter(ids.values())) for ids in route.addresses.values() if ids]
        random.shuffle(addresses)
        command = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": self.group})
        for address in addresses:
            try:
                answer = await self.core.remote.call(address, command, self.core.settings.api_timeout_ms)
            except SaturnError as error:
                logger.info("members not read group=%s broker=%s error=%s", self.group, address, error)
                continue
            if answer.code == ResponseCode.SUCCESS and answer.body:
                return ConsumerIdList.decode(answer.body).consumer_id_list
        return []

    async def _release_all(self, queues: list[MessageQueue]) -> bool:
        """Release those of the queues that need not wait, after `on_revoked` has returned; True if any was released."""
        ready = [queue for queue in queues if self._may_release(queue)]
        self._revoked.update(ready)
        try:
            await notify(self.settings.on_revoked, self.group, self._named(ready))
            outcomes = [await self._release(queue) for queue in ready]
        finally:
            self._revoked.difference_update(ready)
        return True in outcomes

    def _may_release(self, queue: MessageQueue) -> bool:
        """Whether the queue can be released now; an ordered one waits until no reader holds a message of it."""
        assignment = self._assigned.get(queue)
        if isinstance(assignment, OrderedQueue) and self._locks is not None:
            assignment.leaving = True
            if assignment.handed is not None:
                return False
        return queue not in self._revoked

    def _named(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """The queues as the application knows them, in order, without those of the retry topic."""
        namespace = self.core.settings.namespace
        return [
            namespaces.strip_queue(namespace, queue) for queue in sorted(queues) if queue.topic != self._retry_topic
        ]

    async def _release(self, queue: MessageQueue) -> bool:
        """Release a queue: discard its open messages, store its offset (RB-03). False if it is released already.

        The offset of an ordered queue is stored with confirmation before the lock is released, so that the next owner begins after
        the last settled message (OR-03).
        """
        assignment = self._assigned.pop(queue, None)
        if assignment is None:
            return False
        assignment.drop()
        await assignment.join()
        try:
            await self.offsets.persist(queue, confirmed=self._locks is not None)
        except SaturnError as error:
            logger.warning("offset not stored group=%s queue=%s error=%s", self.group, queue, error)
        self.offsets.forget(queue)
        if self._locks is not None:
            await self._locks.unlock([queue])
        self.room_made()
        logger.info("queue released group=%s queue=%s", self.group, queue)
        return True

    async def _acquire_all(self, queues: list[MessageQueue]) -> bool:
        """Start to consume queues, several at a time; True if any was acquired."""
        slots = asyncio.Semaphore(ACQUIRED_AT_ONCE)

        async def acquire(queue: MessageQueue) -> bool:  # queues that fail do not stop the others
            async with slots:
                return await self._acquire(queue)

        outcomes = await asyncio.gather(*(acquire(queue) for queue in queues), return_exceptions=True)
        acquired = [queue for queue, outcome in zip(queues, outcomes, strict=True) if outcome is True]
        await notify(self.settings.on_assigned, self.group, self._named(acquired))
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return bool(acquired)

    async def _acquire(self, queue: MessageQueue) -> bool:
        """Start to consume a queue at its start offset; False if that offset cannot be determined now (RB-04)."""
        self.offsets.forget(queue)  # what an earlier assignment left
        try:
            stored = await self.offsets.read(queue)
            offset = await self._first_offset(queue) if stored is None else stored
            if offset < 0:
                raise RemoteProtocolError(
                    f"the broker returned {offset} as the start offset, which must not be negative"
                )
        except SaturnError as error:
            note_failure(self.core.outages, "queue acquisition", self.group, queue, error)
            return False
        self.core.outages.succeeded("queue acquisition", (self.group, queue))
        if self.state is not ClientState.RUNNING or queue.topic not in self._subscriptions:
            return False
        assignment = self._new_assignment(queue, offset)
        assignment.paused = self._suspended
        self._assigned[queue] = assignment
        assignment.start()
        logger.info("queue acquired group=%s queue=%s offset=%d", self.group, queue, offset)
        if stored is None and offset > 0:
            await self._store_first(queue, offset)
        return True

    async def _store_first(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Store the position in a queue that is new to the group: its next owner must not choose a later one."""
        self.offsets.update(queue, offset)
        try:
            await self.offsets.persist(queue)
        except SaturnError as error:  # the timer repeats it
            note_failure(self.core.outages, "offset store", self.group, queue, error)

    @abstractmethod
    def _new_assignment(self, queue: MessageQueue, offset: QueueOffset) -> AssignedQueue: ...

    # start offset

    async def _first_offset(self, queue: MessageQueue) -> QueueOffset:
        """Where to begin in a queue without a stored offset, as `start` says (RB-05).

        The retry topic starts at its beginning; if `start` is a time, at its end. With "last", a queue that is
        acquired before `subscribe` returns starts at its end, and one that is acquired later at the time of the subscription.
        """
        is_retry = queue.topic == self._retry_topic
        start = self.settings.start
        if start == "first" or (start == "last" and is_retry):
            return QueueOffset(0)
        if start == "last" and queue.topic in self._placed:
            return await self._offset_since(queue, self._since_ms[queue.topic] - CLOCK_SLACK_MS)
        if start == "last" or is_retry:
            return await self._query_offset(RequestCode.GET_MAX_OFFSET, queue)
        assert not isinstance(start, str)
        return await self._query_offset(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, timestamp=str(int(start.timestamp() * 1000))
        )

    async def _offset_since(self, queue: MessageQueue, since_ms: int) -> QueueOffset:
        """The offset of the first message stored at or after since_ms. Brokers may return the last one before it."""
        offset = await self._query_offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, timestamp=str(since_ms))
        identity = QueueIdentity(self, queue)
        await identity.learn(offset)
        is_older = identity.mark is not None and identity.mark.store_ms < since_ms
        return QueueOffset(offset + 1) if is_older else offset

    async def _query_offset(self, code: RequestCode, queue: MessageQueue, **ext: str) -> QueueOffset:
        address = await self.core.master_address(queue.topic, queue.broker_name)
        fields = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name, **ext}
        command = Command(code, ext=fields)
        answer = await self.core.call_broker(address, command, self.core.settings.api_timeout_ms, topic=queue.topic)
        return QueueOffset(int64_or(answer.ext, "offset", 0))

    def topic_missing(self, queue: MessageQueue) -> None:
        """A broker does not have the topic of this queue: the positions in its other queues there must be verified too."""
        for assignment in list(self._assigned.values()):
            sibling = assignment.queue
            if sibling != queue and (sibling.topic, sibling.broker_name) == (queue.topic, queue.broker_name):
                assignment.suspect_parked()

    # locks of ordered consumers

    async def _lock_loop(self) -> None:
        """Renew the locks every 20 s, or every 3 s while one is missing (OR-05, OR-06)."""
        await asyncio.sleep(FIRST_RENEW_S)
        while True:
            await one_round("queue locks", self._renew_locks)
            whole = all(item.locked for item in self._assigned.values() if isinstance(item, OrderedQueue))
            await asyncio.sleep(RENEW_S if whole else RELOCK_S)

    async def _renew_locks(self) -> None:
        assert self._locks is not None
        before = {queue: self._locks.valid(queue) for queue in self._assigned}
        answers = await self._locks.lock(before)
        for queue, granted in answers.items():
            assignment = self._assigned.get(queue)
            if not isinstance(assignment, OrderedQueue):
                continue
            try:
                await assignment.lock_answered(granted=granted, was_valid=before[queue])
            except SaturnError as error:
                logger.warning("queue still suspended group=%s queue=%s error=%s", self.group, queue, error)
