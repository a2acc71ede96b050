"""Topic table of a broker: system topics and those created by a first send or an administrator; kept in topics.json.

`set`, `take` and `delete` change the table at once and schedule the write; `confirmed` waits until a change is durable, and in a
DLedger group until the group has committed it.

Requirements: SND-06, NS-34, NS-35, CF-05.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final

from saturnmq.broker.events import EventEmitter
from saturnmq.broker.settings import BrokerSettings
from saturnmq.broker.state.creation_quota import CreationQuota
from saturnmq.broker.state.journal import JournaledTable
from saturnmq.broker.state.state_writer import StateWriter
from saturnmq.net.rejections import Rejections
from saturnmq.protocol import codes
from saturnmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from saturnmq.protocol.codes import Perm, ResponseCode
from saturnmq.protocol.errors import SaturnError, response_error
from saturnmq.protocol.names import LEGAL_NAME, topic_problem
from saturnmq.replication.dledger.change_entries import Change, Kind
from saturnmq.store.files.state_file import StateFile

log = logging.getLogger(__name__)

QUEUES_MAX: Final = 65_536
RECREATED_QUEUES_MIN: Final = 4  # what producers request on a first send


class Topics(JournaledTable):
    """Topic table, its version and its file. changed: topics that were set or deleted (NS-34). created: by a send."""

    kind = Kind.TOPIC

    def __init__(
        self,
        settings: BrokerSettings,
        file: StateFile,
        clock_ms: Callable[[], int],
        rejections: Rejections | None = None,
    ) -> None:
        self._settings = settings
        rejections = rejections or Rejections()
        in_all, per_hour = settings.topics_max, settings.topics_per_hour
        self._by_sends = CreationQuota(
            "topics", in_all=in_all, per_hour=per_hour, clock_ms=clock_ms, rejections=rejections
        )
        self._by_groups = CreationQuota(  # one retry and one dead-letter topic per group
            "group_topics",
            in_all=in_all,
            per_hour=2 * settings.groups_per_hour,
            clock_ms=clock_ms,
            rejections=rejections,
        )
        self._file = file
        self.writer = StateWriter(file, self.pieces)
        self._clock_ms = clock_ms
        self.table: dict[str, TopicConfig] = {}
        self.version = DataVersion(clock_ms(), 0)
        self.system: set[str] = set()
        self.changed: EventEmitter[list[TopicConfig]] = EventEmitter()
        self.created: EventEmitter[TopicConfig] = EventEmitter()
        self.had_file = False  # topics.json existed at the start
        self._add_system_topics()

    def load(self) -> None:
        """Load topics.json over the defaults: entries also replace system topics, and the version is taken over (CF-05).

        Raises CorruptRecord, StoreError.
        """
        saved_table = self._file.read(TopicConfigTable.decode_file)
        if saved_table is not None:
            for name, config in self._legal(saved_table).items():
                self.table[name] = config
            self.version = saved_table.data_version
            self.had_file = True

    def _legal(self, table: TopicConfigTable) -> dict[str, TopicConfig]:
        """The topics of a table from a file or another broker; without impossible ones.

        Left out are names that cannot be folders of a store, and numbers of queues outside 0..65,536.
        """
        legal = {}
        for name, config in table.topic_config_table.items():
            if not (0 <= config.read_queue_nums <= QUEUES_MAX and 0 <= config.write_queue_nums <= QUEUES_MAX):
                continue
            if name in self.system or LEGAL_NAME.fullmatch(name) is not None:
                config.topic_name = name
                legal[name] = config
        if len(legal) < len(table.topic_config_table):
            ignored = [name for name in table.topic_config_table if name not in legal]
            log.warning(
                "topics with illegal names or numbers of queues ignored count=%s first=%.200r", len(ignored), ignored[0]
            )
        return legal

    def _add_system_topics(self) -> None:
        s = self._settings
        widest = int(Perm.READ | Perm.WRITE | Perm.INHERIT)
        self._system(codes.SELF_TEST_TOPIC, 1)
        if s.auto_create_topic:
            self._add_auto_create_topic()
        self._system(codes.BENCHMARK_TOPIC, 1024)
        self._system(s.cluster_name, 16, widest if s.cluster_topic_enable else int(Perm.INHERIT))
        self._system(s.broker_name, 1, widest if s.broker_topic_enable else int(Perm.INHERIT))
        self._system(codes.OFFSET_MOVED_EVENT, 1)
        self._system(codes.SCHEDULE_TOPIC, 18)
        if s.trace_topic_enable:
            self._system(s.trace_topic, 1)
        self._system(f"{s.cluster_name}_{codes.REPLY_TOPIC_SUFFIX}", 1)
        # created on first use
        self.system |= {codes.HALF_TOPIC, codes.OP_HALF_TOPIC, codes.CHECK_MAX_TIME_TOPIC, codes.TIMER_TOPIC}

    def _add_auto_create_topic(self) -> None:
        widest = int(Perm.READ | Perm.WRITE | Perm.INHERIT)
        self._system(codes.AUTO_CREATE_TOPIC, self._settings.default_queues, widest)

    def _system(self, name: str, queues: int, perm: int = int(Perm.READ | Perm.WRITE)) -> None:
        self.table[name] = TopicConfig(name, queues, queues, perm)
        self.system.add(name)

    def add_default_topic(self) -> None:
        """Create the topic that new topics are derived from, if sends may create topics and it does not exist."""
        if self._settings.auto_create_topic and codes.AUTO_CREATE_TOPIC not in self.table:
            self._add_auto_create_topic()
            self.changed.emit([self.table[codes.AUTO_CREATE_TOPIC]])

    def next_version(self) -> None:
        """Count a change that concerns all topics, so that NameServers take the next full registration."""
        self.version = self.version.next(self._clock_ms())
        self.writer.changed()

    def get(self, topic: str) -> TopicConfig | None:
        """Settings of a topic, or None."""
        return self.table.get(topic)

    def durable(self, topic: str) -> bool:
        """Whether the file has the topic, if it was created since the start."""
        return self.writer.durable(topic)

    def exists(self, topic: str) -> bool:
        """Whether the table has the topic."""
        return topic in self.table

    def is_system(self, topic: str) -> bool:
        """Whether administrators may neither change nor delete the topic (ADM-16)."""
        return topic in self.system or topic in codes.SYSTEM_TOPICS or topic.startswith(codes.SYSTEM_TOPIC_PREFIX)

    def names(self) -> list[str]:
        """Names of all topics, including system topics."""
        return list(self.table)

    def set(self, config: TopicConfig) -> None:
        """Create or change a topic; `confirmed` waits until it is durable.

        Raises ResponseError if the group cannot take the change.
        """
        version = self._record(config.topic_name, config)
        before = self.table.get(config.topic_name)
        self.table[config.topic_name] = config
        self.version = version
        self.writer.changed(created=config.topic_name if before is None else None)
        log.info("topic %s topic=%s queues=%s perm=%s", "changed" if before else "created", config.topic_name,
                 config.write_queue_nums, config.perm)  # fmt: skip
        self.changed.emit([config])

    def take(self, source_table: TopicConfigTable) -> None:
        """Replace topics and version by those of another broker; system topics it does not have are kept (DL-C07)."""
        system_topics = {name: config for name, config in self.table.items() if name in self.system}
        legal = self._legal(source_table)
        changed = [config for name, config in legal.items() if self.table.get(name) != config]
        self.table = system_topics | legal
        self.version = source_table.data_version
        self.writer.changed()
        if changed:
            self.changed.emit(changed)

    def _record(self, topic: str, config: TopicConfig | None) -> DataVersion:
        """Record a change in the journal; returns the version after it. System topics are each broker's own."""
        before, version = self.version, self.version.next(self._clock_ms())
        if self.journal is not None and topic not in self.system:
            old = self.table.get(topic)
            change = Change(Kind.TOPIC, topic, config, before, version)
            self.journal.record(change, lambda: self._put(topic, old, before))
        return version

    def apply(self, topic: str, config: TopicConfig | None, before: DataVersion, after: DataVersion) -> None:
        """Make a change of the group's leader; None: delete the topic.

        The table gets the leader's version only if it had the same one before: otherwise it is compared with the leader's.
        """
        legal = self._legal(TopicConfigTable({} if config is None else {topic: config}, after))
        if topic in self.system or (config is not None and topic not in legal):
            return
        self._put(topic, config, after if self.version == before else self.version)

    def _put(self, topic: str, config: TopicConfig | None, version: DataVersion) -> None:
        previous = self.table.pop(topic, None)
        if config is not None:
            self.table[topic] = config
        self.version = version
        self.writer.changed()
        if previous != config:
            self.changed.emit([affected for affected in (config or previous,) if affected is not None])

    def delete(self, topic: str) -> bool:
        """Delete a topic; returns whether it existed. Raises ResponseError if the group cannot take the change."""
        if topic not in self.table:
            return False
        version = self._record(topic, None)
        config = self.table.pop(topic)
        self.version = version
        self.writer.changed()
        self.changed.emit([config])
        return True

    def create_for_send(
        self, topic: str, default_topic: str, queues: int, *, unit: bool = False, peer: str = ""
    ) -> TopicConfig | None:
        """Return the topic of a send, created from default_topic if that one allows it; else None (SND-06).

        peer: `ip:port` of the sender.

        Raises ResponseError 17 if the creation quota is used up, so that a producer tries another broker (LIM-13, PR-16).
        """
        config = self.table.get(topic)
        if config is not None:
            return config
        if topic.startswith(codes.RETRY_PREFIX):
            return self.ensure_for_group(topic, 1, peer)
        pattern = self.table.get(default_topic)
        if pattern is None or (default_topic == codes.AUTO_CREATE_TOPIC and not self._settings.auto_create_topic):
            return None
        if not pattern.perm & Perm.INHERIT:
            return None
        problem = self._by_sends.add(self._present(), topic, peer)
        if problem is not None:
            raise response_error(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] is not created: {problem}")
        width = max(min(queues, pattern.write_queue_nums), 1)  # with 0 queues no message could ever be sent to it
        flag = int(codes.TopicSysFlag.UNIT) if unit else 0
        new_config = TopicConfig(
            topic, width, width, pattern.perm & ~int(Perm.INHERIT), pattern.topic_filter_type, flag
        )
        self.set(new_config)
        self.created.emit(new_config)
        return new_config

    def add(self, config: TopicConfig) -> None:
        """Create a topic that a send has created at another broker, unless it exists or this one is a group's follower.

        Raises ResponseError if the group cannot take the change.
        """
        if config.topic_name not in self.table and self._decides:
            self.set(config)

    def _present(self) -> int:
        """Number of topics that count towards topicsMax: all but those of the broker itself."""
        return len(self.table) - sum(name in self.table for name in self.system)

    def ensure(self, topic: str, queues: int) -> TopicConfig:
        """Return the topic, created with this many queues and read-write permission if it does not exist.

        Raises ResponseError for an invalid name, and if the group cannot take the change.
        """
        config = self.table.get(topic)
        if config is None:
            problem = topic_problem(topic)
            if problem is not None:
                raise response_error(ResponseCode.SYSTEM_ERROR, problem)
            config = TopicConfig(topic, queues, queues, int(Perm.READ | Perm.WRITE))
            if self._decides:
                self.set(config)
        return config

    @property
    def _decides(self) -> bool:
        """Whether clients may create topics here: a group's follower gets them from its leader."""
        return self.journal is None or self.journal.leads

    def ensure_for_group(self, topic: str, queues: int, peer: str = "") -> TopicConfig:
        """As `ensure`, for a group's retry or dead-letter topic. Raises ResponseError also if the quota is used up (LIM-13).

        peer: `ip:port` of the client.
        """
        if topic not in self.table and self._decides:
            problem = topic_problem(topic) or self._by_groups.add(self._present(), topic, peer)
            if problem is not None:
                raise response_error(ResponseCode.SYSTEM_ERROR, problem)
        return self.ensure(topic, queues)

    def recreate(self, missing: Mapping[str, int]) -> None:
        """Create topics that only the log has, so that their messages can be consumed. missing: queues needed, by topic."""
        for topic, queues in missing.items():
            if topic in self.table:
                continue
            if topic not in self.system:
                queues = max(queues, RECREATED_QUEUES_MIN)
            log.warning("topic found in the log but not in topics.json, recreated topic=%s queues=%s", topic, queues)
            try:
                self.ensure(topic, queues)
            except SaturnError as error:
                log.error("topic not recreated topic=%r error=%s", topic, error)

    def registered(self, names: Iterable[str] | None = None) -> TopicConfigTable:
        """The table to register with NameServers, limited to the broker's permission if that is not read-write (NS-35).

        names: only these topics, as far as they exist.
        """
        table = dict(self.table) if names is None else {name: self.table[name] for name in names if name in self.table}
        read_write = int(Perm.READ | Perm.WRITE)
        if self._settings.broker_permission & read_write == read_write:
            return TopicConfigTable(table, self.version)
        limited = {
            name: TopicConfig(name, c.read_queue_nums, c.write_queue_nums, self._settings.broker_permission,
                              c.topic_filter_type, c.topic_sys_flag, c.order)
            for name, c in table.items()
        }  # fmt: skip
        return TopicConfigTable(limited, self.version)

    def pieces(self) -> Iterator[bytes]:
        """Body of GET_ALL_TOPIC_CONFIG and content of topics.json, as it is now, in pieces."""
        return TopicConfigTable(dict(self.table), self.version).pieces()

    def set_order_topics(self, orders: Container[str], names: Iterable[str]) -> None:
        """Mark those of these topics that are in the NameServers' ORDER_TOPIC_CONFIG as ordered and the others as unordered."""
        changed = False
        for name in names:
            config = self.table.get(name)
            if config is not None and config.order != (name in orders):
                config.order = not config.order
                changed = True
        if changed:
            self.version = self.version.next(self._clock_ms())
            self.writer.changed()
