"""Long polling: pulls that wait for a message, and their answers.

A pull is parked in the index of its queue; ready, once a message it accepts was appended or its wait is over; then answered. An
append looks up the pulls of its queue by tags code, so pulls with other tags cost it nothing; pulls with other filters
are grouped, and each different filter is evaluated once. Ready pulls are answered in slices, one per connection in turn, each slice
bounded in bytes and time; a connection whose peer does not read its output keeps its ready pulls until it has drained. A pull
that would exceed a limit is delayed instead: it counts as in flight and is answered a little later, so that a client that
repeats it at once causes no busy loop. A tick answers at most DELAYED_PER_TICK of them, one per connection in turn, so a connection
with few delayed pulls does not wait for those of others. Everything runs on the event loop; times are event-loop seconds.

Requirements: LP-01..LP-04, LIM-09, LIM-11, LIM-13, REM-14.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from sys import getsizeof
from time import monotonic
from typing import Final, Protocol, TypeVar

from saturnmq.net import NO_RESPONSE, Connection, Later
from saturnmq.net.rejections import Rejections
from saturnmq.net.shares import Shares
from saturnmq.protocol.addresses import host_of, network_of
from saturnmq.protocol.bodies import TopicConfig
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.slices import Steps
from saturnmq.store.queue.consume_queue import Unit

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
SCAN_SECONDS: Final = 5.0
WAIT_SECONDS_MAX: Final = 60.0  # longer waits that a request asks for are shortened to this
CONNECTION_SHARE: Final = 10  # one connection may use at most 1/10 of the limit
SLICE_BYTES: Final = 1_048_576  # of responses per event-loop iteration
SLICE_SECONDS: Final = 0.005  # for responses per event-loop iteration
PARKED_BYTES_MAX: Final = 268_435_456  # memory of all parked pulls
TAGS_CODES_MAX: Final = 64  # pulls with more tags are grouped by their filter instead of indexed by tags code
WOKEN_PER_STEP: Final = 1024  # pulls that become ready in one step, a few ms
DELAYED_PER_TICK: Final = 250  # delayed pulls answered per tick: their repetitions take about 5 % of the event loop
FILTERS_MAX: Final = 256  # different filters per queue, apart from tags
PULL_OVERHEAD_BYTES: Final = 1024  # memory of a parked pull without its fields and tags codes
TAGS_CODE_BYTES: Final = 384  # memory of a tags code and its entry in the index

QueueKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class ParkedPull:
    """One waiting pull.

    codes: the tags codes that match. accept_record: whether encoded properties match. None: every message matches. later: its
    response. indexed: whether it waits for a message. caller: the account that sent it. memory_bytes: its estimated memory.
    due_tick: number of the tick at which its wait ends.
    """

    connection: Connection
    request: Command
    offset: int
    deadline: float
    codes: frozenset[int] | None
    accept_record: Callable[[bytes], bool] | None = None
    caller: object = None
    later: Later = field(default_factory=lambda: Later(in_flight=False))
    key: QueueKey = ("", 0)
    memory_bytes: int = 0
    due_tick: int = 0
    indexed: bool = False

    @property
    def delayed(self) -> bool:
        """Whether it waits for a time instead of a message, and is in flight."""
        return self.later.in_flight

    @property
    def group(self) -> str:
        return self.request.ext.get("consumerGroup", "")

    @property
    def address(self) -> str:
        """The peer's IPv4 address or IPv6 /64 network."""
        return network_of(host_of(self.connection.remote_address))


K = TypeVar("K")
Pulls = dict[ParkedPull, None]  # an ordered set
Filter = tuple[frozenset[int] | None, Callable[[bytes], bool] | None]


class ParkLimits(Protocol):
    """Limits of parked pulls: fields of BrokerSettings, read at each use."""

    @property
    def pull_queue_max(self) -> int: ...
    @property
    def parked_per_queue(self) -> int: ...
    @property
    def parked_per_group(self) -> int: ...
    @property
    def parked_per_address(self) -> int: ...


@dataclass(slots=True)
class _Queue:
    """Parked pulls of one queue by what they accept: everything, a few tags codes, or what a filter decides."""

    unfiltered: Pulls = field(default_factory=dict)
    by_code: dict[int, Pulls] = field(default_factory=dict)
    by_filter: dict[Filter, Pulls] = field(default_factory=dict)
    count: int = 0

    def add(self, parked: ParkedPull) -> None:
        for pulls in self._sets_of(parked):
            pulls[parked] = None
        self.count += 1

    def remove(self, parked: ParkedPull) -> None:
        for pulls in self._sets_of(parked):
            pulls.pop(parked, None)
        self.count -= 1
        for code in parked.codes or ():
            # Empty entries are removed: tags come from clients and would pile up.
            if not self.by_code.get(code, True):
                del self.by_code[code]
        if not self.by_filter.get(_filter_of(parked), True):
            del self.by_filter[_filter_of(parked)]

    def _sets_of(self, parked: ParkedPull) -> Iterable[Pulls]:
        if parked.codes is None and parked.accept_record is None:
            return (self.unfiltered,)
        if _is_indexed_by_code(parked):
            return [self.by_code.setdefault(code, {}) for code in parked.codes or ()]
        return (self.by_filter.setdefault(_filter_of(parked), {}),)

    def has_space_for(self, parked: ParkedPull) -> bool:
        """Whether FILTERS_MAX allows the queue one more pull like this; one that adds no filter is always allowed."""
        is_unfiltered = parked.codes is None and parked.accept_record is None
        adds_no_filter = is_unfiltered or _is_indexed_by_code(parked) or _filter_of(parked) in self.by_filter
        return adds_no_filter or len(self.by_filter) < FILTERS_MAX

    def pulls(self) -> Iterator[ParkedPull]:
        """All pulls; one with several tags may come several times."""
        yield from self.unfiltered
        for pulls_by_key in (self.by_code, self.by_filter):
            for pulls in list(pulls_by_key.values()):
                yield from pulls


def _discard(sets: dict[K, Pulls], key: K, parked: ParkedPull) -> None:
    """Remove a pull from one of several sets, and the set when it is empty."""
    pulls = sets[key]
    del pulls[parked]
    if not pulls:
        del sets[key]


def _is_indexed_by_code(parked: ParkedPull) -> bool:
    return parked.accept_record is None and parked.codes is not None and len(parked.codes) <= TAGS_CODES_MAX


def _filter_of(parked: ParkedPull) -> Filter:
    """The key of a pull that is not indexed by tags code; equal sets of codes are one filter."""
    return parked.codes, parked.accept_record


def _accepts(accept_record: Callable[[bytes], bool], properties: bytes) -> bool:
    """Whether a filter accepts these properties; True if it fails, so that its pulls are woken and answered with the error."""
    try:
        return accept_record(properties)
    except Exception:
        log.exception("filter of parked pulls failed")
        return True


class LongPolling:
    """All waiting pulls of a broker. resume answers one and must not park it again.

    properties(topic, queue id, queue offset) reads a message's properties; called only if a parked pull filters by them.
    queue_end(topic, queue id) returns the end of a queue for a scan every SCAN_SECONDS, on a broker whose appends do not
    wake pulls (a slave); 0 on any other. count: parked and ready pulls, without delayed ones.
    """

    def __init__(
        self,
        resume: Callable[[ParkedPull], None],
        *,
        limits: ParkLimits,
        rejections: Rejections,
        properties: Callable[[str, int, QueueOffset], bytes | None],
        queue_end: Callable[[str, int], int],
    ) -> None:
        self._resume = resume
        self._limits = limits
        self._rejections = rejections
        self._properties = properties
        self._queue_end = queue_end
        self._last_scan = 0.0
        self._queues: dict[QueueKey, _Queue] = {}
        self._queue_ids_by_topic: dict[str, set[int]] = {}  # the queues with parked pulls by topic
        self._by_connection: dict[Connection, Pulls] = {}
        self._by_group: dict[str, Pulls] = {}
        self._count_by_address: dict[str, int] = {}
        self._by_due_tick: dict[int, Pulls] = {}  # by the number of the tick that ends their wait
        self._delayed: OrderedDict[Connection, deque[ParkedPull]] = OrderedDict()  # in the order of their turns
        self._ready: dict[Connection, deque[ParkedPull]] = {}  # in the order of their turns
        self._blocked: dict[Connection, deque[ParkedPull]] = {}  # ready pulls of connections that do not drain
        self._waking: deque[Iterator[ParkedPull]] = deque()  # pulls that become ready in the next slices
        self._memory_shares = Shares()
        self._slice_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0

    # ---- waiting

    def add(self, key: QueueKey, parked: ParkedPull) -> bool:
        """Park a pull; False if a limit is reached."""
        parked.memory_bytes = (
            PULL_OVERHEAD_BYTES
            + sum(map(getsizeof, parked.request.ext.values()))
            + TAGS_CODE_BYTES * len(parked.codes or ())
        )
        # Not stored yet: a pull that is refused must leave nothing behind.
        queue = self._queues.get(key) or _Queue()
        exceeded_limit = self._exceeded_limit(queue, parked)
        if exceeded_limit:
            self._rejections.note("parked_pulls", parked.connection.remote_address, f"pull delayed: {exceeded_limit}")
            return False
        # One later, so that the wait is never shorter than the client asked for.
        parked.key, parked.indexed, parked.due_tick = key, True, int(parked.deadline / TICK_SECONDS) + 1
        if not queue.count:
            self._queues[key] = queue
            self._queue_ids_by_topic.setdefault(key[0], set()).add(key[1])
        queue.add(parked)
        self._by_due_tick.setdefault(parked.due_tick, {})[parked] = None
        self._by_connection.setdefault(parked.connection, {})[parked] = None
        self._by_group.setdefault(parked.group, {})[parked] = None
        self._count_by_address[parked.address] = self._count_by_address.get(parked.address, 0) + 1
        self._memory_shares.add(parked.address, parked.memory_bytes)
        self.count += 1
        self._start_timer()
        return True

    def _exceeded_limit(self, queue: _Queue, parked: ParkedPull) -> str:
        """The limit that parking this pull would exceed; "" if none."""
        limits = self._limits
        pulls_max = limits.pull_queue_max
        for setting, count, limit in (
            ("pullThreadPoolQueueCapacity", self.count, pulls_max),
            ("parkedPullsMaxPerQueue", queue.count, limits.parked_per_queue),
            ("parkedPullsMaxPerGroup", len(self._by_group.get(parked.group, ())), limits.parked_per_group),
            ("parkedPullsMaxPerAddress", self._count_by_address.get(parked.address, 0), limits.parked_per_address),
        ):
            # The general limits first: the message names the one that an operator can raise.
            if count >= limit:
                return f"{setting}={limit} pulls are parked"
        connection_pulls = len(self._by_connection.get(parked.connection, ()))
        connection_max = max(pulls_max // CONNECTION_SHARE, 1)
        if connection_pulls >= connection_max:
            reason = "pulls of this connection are parked, a tenth of pullThreadPoolQueueCapacity"
            return f"{connection_pulls} {reason}={pulls_max}"
        if (
            # By memory, and by address: one peer must not fill it with long filters.
            exceeded := self._memory_shares.exceeded(
                host_of(parked.connection.remote_address), parked.memory_bytes, PARKED_BYTES_MAX
            )
        ) is not None:
            return f"of the memory of parked pulls, {exceeded}"
        return "" if queue.has_space_for(parked) else f"{FILTERS_MAX} different filters wait on this queue"

    def delay(self, parked: ParkedPull, seconds: float) -> Later:
        """Answer a pull that cannot be parked after a delay, longer if many are delayed. It is in flight until then.

        seconds: minimum delay, the same at every call: the pulls of a connection are in the order of their deadlines.
        """
        parked.later = Later()
        parked.deadline = asyncio.get_running_loop().time() + seconds
        self._delayed.setdefault(parked.connection, deque()).append(parked)
        self._start_timer()
        return parked.later

    def parked(self) -> list[ParkedPull]:
        """The pulls that wait for a message."""
        return [parked for pulls in self._by_due_tick.values() for parked in pulls]

    def _remove_from_index(self, parked: ParkedPull) -> None:
        """Remove a pull from the index of its queue, when it waits no longer. It counts until it is answered or dropped."""
        parked.indexed = False
        queue = self._queues[parked.key]
        queue.remove(parked)
        if not queue.count:
            del self._queues[parked.key]
            topic, queue_id = parked.key
            self._queue_ids_by_topic[topic].discard(queue_id)
            if not self._queue_ids_by_topic[topic]:
                del self._queue_ids_by_topic[topic]
        _discard(self._by_due_tick, parked.due_tick, parked)

    def _release(self, parked: ParkedPull) -> None:
        """Stop counting a pull that is answered or dropped. Delayed pulls are not counted."""
        if parked.delayed:
            return
        _discard(self._by_connection, parked.connection, parked)
        _discard(self._by_group, parked.group, parked)
        remaining_pulls = self._count_by_address[parked.address] - 1
        if remaining_pulls:
            self._count_by_address[parked.address] = remaining_pulls
        else:
            del self._count_by_address[parked.address]
        self._memory_shares.add(parked.address, -parked.memory_bytes)
        self.count -= 1

    # ---- waking

    def appended(self, topic: str, queue_id: int, offset: QueueOffset, units: Sequence[Unit]) -> None:
        """Messages were appended from a queue offset on: the pulls that accept one of them become ready (LP-03)."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return
        for next_offset, (_, _, tags_code) in enumerate(units, offset + 1):
            self._wake_for_unit(queue, topic, queue_id, next_offset, tags_code)

    def _wake_for_unit(self, queue: _Queue, topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        woken = list(queue.unfiltered)
        # One lookup, however many pulls wait for other tags.
        woken += queue.by_code.get(tags_code, ())
        if queue.by_filter:
            woken += self._woken_by_filter(queue, topic, queue_id, next_offset, tags_code)
        # A pull may wait for a later offset than this message has.
        self._wake([parked for parked in woken if next_offset > parked.offset])

    def _woken_by_filter(
        self, queue: _Queue, topic: str, queue_id: int, next_offset: int, tags_code: int
    ) -> Iterator[ParkedPull]:
        is_read, properties = False, None
        for (codes, accept_record), pulls in queue.by_filter.items():
            if codes is not None and tags_code not in codes:
                continue
            if accept_record is not None:
                # Read once for all filters, and only if there is one.
                if not is_read:
                    is_read, properties = True, self._properties(topic, queue_id, QueueOffset(next_offset - 1))
                # A message that cannot be read wakes all pulls: they report the error.
                if properties is not None and not _accepts(accept_record, properties):
                    continue
            yield from pulls

    def wake(self, topic: str, group: str) -> None:
        """Make all pulls of a group for a topic ready, whatever they wait for."""
        self._wake([parked for parked in self._by_group.get(group, ()) if parked.indexed and parked.key[0] == topic])

    def topics_changed(self, topics: list[TopicConfig]) -> None:
        """Make the pulls of changed topics ready: a reader must learn of a deletion before the topic may be created again."""
        names = [config.topic_name for config in topics]
        keys = [(name, queue_id) for name in names for queue_id in self._queue_ids_by_topic.get(name, ())]
        self._wake([parked for key in keys for parked in self._queues[key].pulls()])

    def wake_all(self) -> None:
        """Make every pull ready, whatever it waits for."""
        self._wake(self.parked())

    def _wake(self, woken: Iterable[ParkedPull]) -> None:
        """Make pulls ready, WOKEN_PER_STEP of them at once and the others in the next slices."""
        pulls = iter(woken)
        # What is too much for one step waits as an iterator: no list of thousands of pulls is copied.
        if not self._make_ready(pulls):
            self._waking.append(pulls)
            self._schedule()

    @property
    def ready(self) -> int:
        """Number of pulls that are answered in the next iterations, or once their connection has drained."""
        return sum(len(pulls) for by_connection in (self._ready, self._blocked) for pulls in by_connection.values())

    def _make_ready(self, woken: Iterator[ParkedPull]) -> bool:
        """Make up to WOKEN_PER_STEP pulls ready, except dropped ones; returns whether there are no more."""
        for count, parked in enumerate(woken, 1):
            # Woken twice, or dropped meanwhile.
            if parked.indexed:
                self._remove_from_index(parked)
                self._add_ready(parked)
            if count >= WOKEN_PER_STEP:
                return False
        return True

    def _add_ready(self, parked: ParkedPull) -> None:
        # After the others of its connection, in order.
        blocked = self._blocked.get(parked.connection)
        if blocked is not None:
            blocked.append(parked)
            return
        self._ready.setdefault(parked.connection, deque()).append(parked)
        self._schedule()

    # ---- answering

    def _schedule(self) -> None:
        if not self._slice_scheduled:
            self._slice_scheduled = True
            asyncio.get_running_loop().call_soon(self._answer_slice)

    def _answer_slice(self) -> None:
        """Answer ready pulls, one per connection in turn, up to a bound of bytes and time."""
        self._slice_scheduled = False
        slice_end, remaining_bytes = monotonic() + SLICE_SECONDS, SLICE_BYTES
        if self._waking and self._make_ready(self._waking[0]):
            self._waking.popleft()
        while self._ready:
            connection = next(iter(self._ready))
            pulls = self._ready.pop(connection)
            # Records would pile up in the output of a peer that does not read.
            if connection.output_full:
                self._blocked[connection] = pulls
                connection.when_drained(partial(self._drained, connection))
                continue
            parked = pulls.popleft()
            if pulls:
                self._ready[connection] = pulls  # after the other connections
            bytes_before = connection.out_bytes
            # Before the answer: the client may send its next pull at once.
            self._release(parked)
            self._answer(parked)
            remaining_bytes -= connection.out_bytes - bytes_before
            # At least one answer per slice, so that it always goes on.
            if remaining_bytes <= 0 or monotonic() > slice_end:
                break
        if self._ready or self._waking:
            self._schedule()

    def _answer(self, parked: ParkedPull) -> None:
        # Without an answer the request would count as open without end in the connection.
        if parked.connection.closed:
            parked.later.answer(NO_RESPONSE)
        else:
            self._resume(parked)

    def _drained(self, connection: Connection) -> None:
        pulls = self._blocked.pop(connection, None)
        if pulls:
            self._ready[connection] = pulls
            self._schedule()

    # ---- time

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        """Make the pulls ready whose wait is over, and on a slave those whose queue has grown."""
        now = asyncio.get_running_loop().time()
        self._timer = None
        current_tick = int(now / TICK_SECONDS)
        # All ticks up to now: the timer may have been late.
        for due_tick in [due_tick for due_tick in self._by_due_tick if due_tick <= current_tick]:
            self._wake(list(self._by_due_tick[due_tick]))
        self._end_delays(now)
        if now - self._last_scan >= SCAN_SECONDS:
            self._last_scan = now
            self._scan()
        # The timer runs only while a pull waits.
        if self.count or self._delayed:
            self._start_timer()

    def _end_delays(self, now: float) -> None:
        """Make delayed pulls ready whose delay is over: DELAYED_PER_TICK at most, one per connection in turn."""
        remaining, skipped = DELAYED_PER_TICK, 0
        # Until each connection has been looked at once without success.
        while remaining and skipped < len(self._delayed):
            connection, pulls = self._delayed.popitem(last=False)
            if pulls[0].deadline > now:
                skipped += 1
            else:
                remaining, skipped = remaining - 1, 0
                self._add_ready(pulls.popleft())
            if pulls:
                self._delayed[connection] = pulls  # after the other connections

    def _scan(self) -> None:
        for key, queue in list(self._queues.items()):
            # 0 on a broker whose appends wake the pulls.
            end = self._queue_end(*key)
            if end:
                self._wake({parked: None for parked in queue.pulls() if parked.offset < end})

    # ---- ends

    def connection_closed(self, connection: Connection) -> None:
        """Drop the pulls of a connection."""
        for _ in self.leaving(connection):
            pass

    def leaving(self, connection: Connection) -> Steps[None]:
        """Do `connection_closed` in steps of one pull. Ready and delayed pulls of the closed connection get no answer."""
        for by_connection in (self._ready, self._blocked, self._delayed):
            for parked in by_connection.pop(connection, ()):
                parked.later.answer(NO_RESPONSE)
        for parked in list(self._by_connection.get(connection, ())):
            # A step may run after another one has removed the pull.
            if parked in self._by_connection.get(connection, ()):
                if parked.indexed:
                    self._remove_from_index(parked)
                self._release(parked)
            yield

    def take(self, connection: Connection) -> list[tuple[Later, Command]]:
        """Drop the pulls of a connection; returns their requests and responses, without those that are only delayed."""
        dropped = self._withdraw(connection)
        for parked in dropped:
            if parked.delayed:
                self._add_ready(parked)
        # Delayed ones are in flight and have to be answered.
        return [(parked.later, parked.request) for parked in dropped if not parked.delayed]

    def _withdraw(self, connection: Connection) -> list[ParkedPull]:
        """Remove the parked and the ready pulls of a connection."""
        ready = [*self._ready.pop(connection, ()), *self._blocked.pop(connection, ())]
        pulls = list(self._by_connection.get(connection, ()))
        for parked in pulls:
            if parked.indexed:
                self._remove_from_index(parked)
            self._release(parked)
        return pulls + [parked for parked in ready if parked.delayed]

    def abort(self) -> None:
        """Drop all pulls without a response."""
        self._stop_timer()
        self._waking.clear()
        self._delayed.clear()
        for connection in {*self._by_connection, *self._ready, *self._blocked}:
            self._withdraw(connection)

    def stop(self) -> None:
        """Answer all pulls, so that no client waits for a broker that shuts down; not those of peers that do not read."""
        self._stop_timer()
        delayed = [parked for pulls in self._delayed.values() for parked in pulls]
        self._waking.clear()
        self._delayed.clear()
        for connection in {*self._by_connection, *self._ready, *self._blocked}:
            # Parked and ready pulls too are answered below.
            delayed += self._withdraw(connection)
        for parked in delayed:
            if parked.connection.output_full:
                parked.later.answer(NO_RESPONSE)
            else:
                self._answer(parked)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
