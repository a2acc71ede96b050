"""Parts of a broker that its metrics read, and sums over queues and groups that several families share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from saturnmq.broker.requests.context import RuntimeContext
from saturnmq.broker.services.admission import Admission
from saturnmq.broker.services.statistics import Stats
from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.clients import Clients
from saturnmq.broker.state.identity import BrokerRole
from saturnmq.broker.state.offsets import Offsets
from saturnmq.broker.state.topics import Topics
from saturnmq.metrics import Histogram
from saturnmq.net.rejections import Rejections
from saturnmq.protocol.codes import DLQ_PREFIX, RETRY_PREFIX
from saturnmq.protocol.errors import StoreError
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.statistics import LAST_MINUTE, NOTHING, WindowSum
from saturnmq.store import MessageStore

if TYPE_CHECKING:  # a broker without DLedger runs without the raft package
    from saturnmq.raft.member_status import MemberStatus

STEP: Final = 64  # queues or pairs that are added up in one step
LATENCY_READS_MAX: Final = 2000  # records whose store time one scrape reads


class Replication(Protocol):
    """A master with slaves, or a member of a group."""

    in_group: bool

    @property
    def replication_seconds(self) -> Histogram: ...
    @property
    def damaged_entries(self) -> int: ...
    def behind(self) -> list[tuple[str, int]]: ...
    def status(self) -> MemberStatus | None: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Parts of a broker. replicas: None on a slave. address: the advertised one."""

    runtime: RuntimeContext
    topics: Topics
    offsets: Offsets
    clients: Clients
    admission: Admission
    role: BrokerRole
    replicas: Replication | None
    address: Callable[[], str]

    @property
    def settings(self) -> BrokerSettings:
        return self.runtime.settings

    @property
    def store(self) -> MessageStore:
        return self.runtime.store

    def damaged_records(self) -> int:
        """Damaged records of the log, and of a member's ledger, that the scrub has found."""
        return self.store.scrub.damaged + (self.replicas.damaged_entries if self.replicas is not None else 0)

    @property
    def stats(self) -> Stats:
        return self.runtime.stats

    @property
    def rejections(self) -> Rejections:
        return self.runtime.rejections

    def now_ms(self) -> int:
        """Unix ms."""
        return self.runtime.clock_ms()

    def behind(self) -> list[tuple[str, int]]:
        """Address of each slave or follower, and how many bytes it is behind; empty unless this broker is their master."""
        return self.replicas.behind() if self.replicas is not None else []

    def group(self) -> MemberStatus | None:
        """Status of the DLedger member, None without one."""
        return self.replicas.status() if self.replicas is not None else None


class ScrapeProgress:
    """Ends of topics and offsets of groups during one scrape, read by the first family that needs them."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._read = False
        self.ends: dict[str, int] = {}  # sum of the next offsets of a topic's queues
        self.special: dict[tuple[str, str], int] = {}  # lag of the pairs of a retry or dead-letter topic and a group

    def begin(self) -> None:
        """A scrape begins: what the one before has read is out of date."""
        self._read = False

    def read(self) -> Iterator[None]:
        """Add up the ends of all topics, in steps, unless this scrape has done so."""
        if self._read:
            return
        self._read = True
        ends: dict[str, int] = {}
        by_key = self._sources.store.queues.by_key
        for step, key in enumerate(list(by_key)):  # keys only: a pair for each would make the garbage collector run
            queue = by_key.get(key)
            if queue is not None:
                ends[key[0]] = ends.get(key[0], 0) + queue.max_offset
            if step % STEP == 0:
                yield
        self.ends = ends
        special: dict[tuple[str, str], int] = {}
        for step, (topic, group, queues) in enumerate(self.pairs()):
            if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                special[topic, group] = self.lag(topic, queues)
            if step % STEP == 0:
                yield
        self.special = special

    def pairs(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Topic, group and offsets of the pairs whose topic exists."""
        topics = self._sources.topics.table
        return (pair for pair in self._sources.offsets.pairs() if pair[0] in topics)

    def lag(self, topic: str, queues: dict[int, int]) -> int:
        """Messages of a topic that a group with these offsets has not consumed."""
        return self.ends.get(topic, 0) - sum([offset for offset in queues.values() if offset > 0])


class Latency:
    """Age of the next message of a group in the store, in ms; reads a bounded number of records, none from the disk."""

    def __init__(self, sources: Sources, reads_max: int = LATENCY_READS_MAX) -> None:
        self._sources = sources
        self._remaining_reads = reads_max

    def of(self, topic: str, group: str, queues: dict[int, int]) -> int | None:
        """The largest of all queues, 0 if the group has consumed everything; None if nothing is known.

        A record that may not be in memory counts as at the group's last pull.
        """
        longest_ms = None
        for queue_id, offset in queues.items():
            queue_ms = self._of_queue(topic, group, queue_id, offset)
            if queue_ms is not None and (longest_ms is None or queue_ms > longest_ms):
                longest_ms = queue_ms
        return longest_ms

    def _of_queue(self, topic: str, group: str, queue_id: int, offset: int) -> int | None:
        sources, store = self._sources, self._sources.store
        queue = store.queues.by_key.get((topic, queue_id))
        if queue is None or offset >= queue.max_offset:
            return 0
        next_offset = QueueOffset(max(offset, queue.min_offset))
        if self._remaining_reads > 0:
            self._remaining_reads -= 1
            with contextlib.suppress(StoreError):
                if store.cold_read(topic, queue_id, next_offset, 1) is None:
                    stored_ms = store.store_time(topic, queue_id, next_offset)
                    return max(sources.now_ms() - stored_ms, 0) if stored_ms >= 0 else None
        return sources.stats.fall_ms.get(f"{queue_id}@{topic}@{group}")


def last_minute(stats: Stats, name: str, key: str) -> WindowSum:
    """Sum of a key within the last minute."""
    item = stats.sets.find(name, key)
    return item.over(LAST_MINUTE) if item is not None else NOTHING
