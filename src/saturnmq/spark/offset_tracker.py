"""Commits consumer-group offsets of streams and reports their lag, from the driver.

Spark's progress does not name the source: ours is recognized by the shape of its offset, and the group by its field `g`. Listener
callbacks only enqueue; one thread does the network I/O, so a broker failure is logged and neither fails nor slows a query. The
checkpoint alone decides where a query resumes.

Requirements: STR-11..STR-14, STR-17.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from saturnmq.client.sync.loop_thread import LoopThread
from saturnmq.metrics import GAUGE, Registry, Row
from saturnmq.net.metrics_port import MetricsPort
from saturnmq.protocol.bodies import ConsumerData, ConsumerIdList, HeartbeatData, MessageQueue
from saturnmq.protocol.codes import RETRY_PREFIX, RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError, SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.spark.connect import ConnectionOptions, Link, linked
from saturnmq.spark.parallel import gathered
from saturnmq.spark.planning import records_at
from saturnmq.spark.ranges import Key, from_offset
from saturnmq.spark.session_kind import is_connect
from saturnmq.spark.stream_advice import log_advice

logger = logging.getLogger(__name__)


COMMIT_INTERVAL_MS: Final = 5000
AGE_INTERVAL_MS: Final = 5000
STOP_SECONDS: Final = 30.0


@dataclass
class Lag:
    """Lag of one query, by queue and in total, after one micro-batch. rows: messages in the batch; batch_ms: its duration."""

    query: str
    run: str
    batch: int
    rows: int
    batch_ms: int
    end: dict[Key, int]
    latest: dict[Key, int]
    oldest_ms: dict[str, int] = field(
        default_factory=dict
    )  # topic: store time of the oldest unread message, Unix ms, where known

    @property
    def by_topic(self) -> dict[str, int]:
        """Unread messages by topic."""
        unread: dict[str, int] = {}
        for key, behind in self.by_queue.items():
            unread[key[0]] = unread.get(key[0], 0) + behind
        return unread

    @property
    def by_queue(self) -> dict[Key, int]:
        """Unread messages by queue."""
        return {key: max(0, high - self.end.get(key, 0)) for key, high in self.latest.items()}

    @property
    def messages(self) -> int:
        """Unread messages in total."""
        return sum(self.by_queue.values())


@dataclass
class _Group:
    reached: dict[Key, int] = field(default_factory=dict)
    committed: dict[Key, int] = field(default_factory=dict)
    warned: bool = False  # whether the warning about live members was logged
    at_ms: float = -1e18


def positions_of(offset: Any) -> tuple[str | None, dict[Key, int]] | None:
    """Return (group, positions) of a progress offset, None for one of another source."""
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
        if not isinstance(value, dict):
            return None
        group = value.get("g")
        return group if isinstance(group, str) else None, from_offset(value)
    # Another source's offset: not ours to judge.
    except (ValueError, ConfigError):
        return None


class OffsetCommitter:
    """Commits group offsets, at most once per interval and never backwards (STR-12). Used by one thread only."""

    def __init__(self, options: ConnectionOptions, interval_ms: int = COMMIT_INTERVAL_MS) -> None:
        self.options = options
        self._interval_ms = interval_ms
        self._groups: dict[str, _Group] = {}

    def reached(self, group: str, positions: dict[Key, int]) -> None:
        """Record the end of a batch of the group."""
        self._groups.setdefault(group, _Group()).reached.update(positions)

    def flush(self, now_ms: float, *, all_of_it: bool = False) -> None:
        """Commit what is due (all_of_it: everything); a broker failure is logged and retried later."""
        for name, group in self._groups.items():
            # What is stored already is not sent again.
            pending = {key: n for key, n in group.reached.items() if group.committed.get(key) != n}
            if not pending or (not all_of_it and now_ms - group.at_ms < self._interval_ms):
                continue
            # Before the attempt, so that a failure waits for the interval too.
            group.at_ms = now_ms
            try:
                with linked(self.options) as link:
                    link.run(_commit(link, name, pending))
                    alone = link.run(_make_retry_topic(link, name, sorted({key[0] for key in pending})))
                # Only what was sent: a batch may have ended meanwhile.
                group.committed.update(pending)
                if not alone and not group.warned:
                    group.warned = True
                    logger.warning(
                        "group has live consumers group=%s; both commit to the same offsets, topic %s%s is left to them",
                        name, RETRY_PREFIX, name,
                    )  # fmt: skip
            except SaturnError as error:
                logger.warning("offsets not committed group=%s error=%s", name, error)


async def _commit(link: Link, group: str, pending: dict[Key, int]) -> None:
    async def commit_queue(key: Key, offset: int) -> None:
        target = MessageQueue(*key)
        await link.puller.queues(key[0])  # its route
        stored = await link.puller.committed(group, target)
        # Never back: the group may have other members.
        if stored is None or stored < offset:
            await link.puller.commit(group, target, offset)
        elif stored > offset:
            logger.warning(
                "offset of the group is ahead group=%s committed=%d queue=%s offset=%d",
                group,
                stored,
                key,
                offset,
            )

    # Apache's broker loses one of two offsets that it stores at the same time when they are the first of a group and topic.
    # One queue of each topic and broker is stored before the others.
    firsts = {key[:2]: key for key in pending}.values()
    for keys in (firsts, pending.keys() - firsts):
        await asyncio.gather(*(commit_queue(key, pending[key]) for key in keys))


async def _make_retry_topic(link: Link, group: str, topics: list[str]) -> bool:
    """Create %RETRY%group, whose route mqadmin consumerProgress looks up: by one heartbeat and one unregister request (STR-13).

    Returns False without doing anything when the group has live members: a heartbeat would make them rebalance queues to this
    client.
    """
    core = link.core
    # Made once; later the route exists.
    if await core.routes.refresh(RETRY_PREFIX + group) is not None:
        return True
    consumer = ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        unit_mode=False,
    )
    client_id = f"{core.client_id}@spark"
    body = HeartbeatData(client_id=client_id, consumer_data_set=[consumer]).encode()
    addresses = set()
    for topic in topics:
        route = await core.read_route(topic)
        addresses |= {a for name in route.addresses if (a := route.master(name)) is not None}
    # Asked of every master: members may be connected to some only.
    members = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": group})
    for address in sorted(addresses):
        answer = await core.remote.call(
            address, members, core.settings.api_timeout_ms
        )  # an error response when the group has no members
        if answer.code == ResponseCode.SUCCESS and answer.body and ConsumerIdList.decode(answer.body).consumer_id_list:
            return False
    for address in sorted(addresses):
        # The broker creates the retry topic for it.
        await core.call_broker(address, Command(RequestCode.HEART_BEAT, body=body), core.settings.api_timeout_ms)
        # At once, so that the group has no member that consumes nothing.
        unregister = Command(RequestCode.UNREGISTER_CLIENT, ext={"clientID": client_id, "consumerGroup": group})
        await core.call_broker(address, unregister, core.settings.api_timeout_ms)
    return True


async def _oldest(link: Link, lag: Lag) -> dict[str, int]:
    """Return the store time of the oldest unread message by topic, Unix ms."""

    async def oldest_unread(key: Key) -> tuple[str, int | None]:
        await link.puller.queues(key[0])  # its route
        record = (await records_at(link, {key: lag.end.get(key, 0)})).get(key)
        return key[0], None if record is None else record.stored_ms

    oldest: dict[str, int] = {}
    # Only queues with a backlog.
    for topic, at_ms in await gathered(oldest_unread, [key for key, behind in lag.by_queue.items() if behind]):
        if at_ms is not None:
            oldest[topic] = min(at_ms, oldest.get(topic, at_ms))
    return oldest


_running: set[Tracker] = set()


class Tracker(StreamingQueryListener):
    """Streaming query listener of a session. `lags` holds the newest lag by query id, `gauges()` renders it for Prometheus."""

    def __init__(
        self, options: ConnectionOptions, *, interval_ms: int = COMMIT_INTERVAL_MS, lag_table: str | None = None
    ) -> None:
        self._committer = OffsetCommitter(options, interval_ms)
        self._lag_table = lag_table
        # Callbacks come on Spark's thread, which must not wait.
        self._events: queue.Queue[Lag | tuple[str, dict[Key, int]] | threading.Event | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="saturnmq-track", daemon=True)
        self._thread.start()
        self.lags: dict[str, Lag] = {}
        self._looked_ms: dict[str, float] = {}  # when the ages of a query's lag were last queried
        self._ended: set[str] = set()
        self._change = threading.Condition()
        self._http = LoopThread("saturnmq-metrics")
        self._port = MetricsPort(lambda: iter([self.gauges().encode()]))
        # Removes the listener, where the session does not do that when it stops.
        self.detach: Callable[[], None] | None = None
        _running.add(self)

    # Spark's callbacks; they only enqueue

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Mark the query as running: a query that resumes from its checkpoint has the id of the previous run."""
        with self._change:
            # The gauge shows the query again.
            self._ended.discard(str(getattr(event, "id", "")))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Enqueue the end of a batch, up to which the group has consumed, and its lag."""
        progress = event.progress
        for source in progress.sources:
            end, latest = positions_of(source.endOffset), positions_of(source.latestOffset)
            if end is None:
                # A query may have several sources.
                continue
            if end[0] is not None:
                self._events.put((end[0], end[1]))
            self._events.put(
                Lag(
                    str(progress.id),
                    str(progress.runId),
                    int(progress.batchId),
                    int(source.numInputRows),
                    int(progress.batchDuration),
                    end[1],
                    latest[1] if latest is not None else {},
                )
            )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Commit pending offsets; log what to do about a failure that is Spark's, such as a real-time trigger (STR-17)."""
        # It goes through the queue after the reports of the batches.
        self._events.put(threading.Event())
        log_advice(event)
        with self._change:
            self._ended.add(str(getattr(event, "id", "")))
            self._change.notify_all()

    def wait(self, query: StreamingQuery, timeout_s: float = STOP_SECONDS) -> bool:
        """Wait for Spark's termination event of the query, which comes after its end, and commit; return whether in time."""
        with self._change:
            ended = self._change.wait_for(lambda: str(query.id) in self._ended, timeout_s)
        return self.flush(timeout_s) and ended

    # the thread

    def _work(self) -> None:
        while True:
            try:
                # Also without events, commits that are due are made.
                item = self._events.get(timeout=1.0)
            except queue.Empty:
                self._committer.flush(time.monotonic() * 1000)
                self._detach_at_exit()
                continue
            if item is None:
                return
            if isinstance(item, Lag):
                # Before it is published, so that `lags` never shows a lag without its ages.
                self._look(item)
                self.lags[item.query] = item
                if self._lag_table:
                    self._write(item)
                self._committer.flush(time.monotonic() * 1000)
            elif isinstance(item, threading.Event):
                self._committer.flush(time.monotonic() * 1000, all_of_it=True)
                item.set()
            else:
                self._committer.reached(*item)

    def _detach_at_exit(self) -> None:
        """Remove the listener once the program has ended: a Connect client's listener thread would keep the process alive."""
        if self.detach is not None and not threading.main_thread().is_alive():
            self._committer.flush(time.monotonic() * 1000, all_of_it=True)
            detach, self.detach = self.detach, None
            detach()

    def _look(self, lag: Lag) -> None:
        """Query ages for gauge saturnmq_spark_lag_seconds, at most once per AGE_INTERVAL_MS.

        In between the previous ages are kept.
        """
        now_ms, before = time.monotonic() * 1000, self.lags.get(lag.query)
        lag.oldest_ms = dict(before.oldest_ms) if before is not None else {}
        # Without unread messages there is no age to query.
        if not lag.messages or now_ms - self._looked_ms.get(lag.query, -AGE_INTERVAL_MS) < AGE_INTERVAL_MS:
            return
        self._looked_ms[lag.query] = now_ms
        try:
            with linked(self._committer.options) as link:
                lag.oldest_ms = link.run(_oldest(link, lag))
        except SaturnError as error:
            logger.warning("age of the lag unknown query=%s error=%s", lag.query, error)

    def gauges(self, now_ms: float | None = None) -> str:
        """Return the lag of every running query by topic, as Prometheus text: unread messages and the age of the oldest (STR-14).

        now_ms: Unix ms, default now. A topic of unknown age has only the message count; a query that has ended is omitted.
        """
        now = time.time() * 1000 if now_ms is None else now_ms
        messages: list[Row] = []
        seconds: list[Row] = []
        # The thread adds to it meanwhile.
        for lag in [lag for lag in list(self.lags.values()) if lag.query not in self._ended]:
            for topic, behind in sorted(lag.by_topic.items()):
                labels = (lag.query, topic)
                messages.append((labels, behind))
                if not behind:
                    seconds.append((labels, 0))
                elif topic in lag.oldest_ms:
                    seconds.append((labels, round(max(0.0, now - lag.oldest_ms[topic]) / 1000, 3)))
        registry, names = Registry(), ("query", "topic")
        text = "Messages that a stream has not read yet."
        registry.family(GAUGE, "saturnmq_spark_lag_messages", text, names, lambda: messages)
        text = "Age of the oldest message that a stream has not read yet."
        registry.family(GAUGE, "saturnmq_spark_lag_seconds", text, names, lambda: seconds)
        return registry.text()

    def serve_metrics(self, port: int, host: str = "127.0.0.1") -> tuple[str, int]:
        """Answer GET /metrics with `gauges` until `stop`; returns host and port, 0 takes a free one. Raises StartError.

        Example:
            tracker.serve_metrics(5561)  # http://127.0.0.1:5561/metrics on the driver
        """
        self._http.start()
        return self._http.run(self._port.start(host, port, chosen_by="argument port of serve_metrics"))

    def _write(self, lag: Lag) -> None:
        """Write one Parquet file of rows, without a Spark job (STR-14)."""
        try:
            write_lag(lag, self._lag_table or "")
        except OSError as error:
            logger.warning("lag table not written table=%s error=%s", self._lag_table, error)

    def flush(self, timeout_s: float = STOP_SECONDS) -> bool:
        """Commit everything reported so far; return whether that was completed in time."""
        flushed = threading.Event()
        self._events.put(flushed)
        return flushed.wait(timeout_s)

    def stop(self) -> None:
        """Commit pending offsets, end the thread, and close the port of the metrics."""
        if self._http.running is not None:
            self._http.run(self._port.stop())
            self._http.stop()
        if self.detach is not None:
            # First, so that no further event comes.
            self.detach()
        self.flush()
        self._events.put(None)
        self._thread.join(STOP_SECONDS)
        _running.discard(self)


def stop_all() -> None:
    """Flush and stop every tracker of this process. Call it after `spark.stop()`, which reports the last events."""
    # `stop` removes from the set.
    for tracker in list(_running):
        tracker.stop()


def write_lag(lag: Lag, uri: str) -> None:
    """Write the lag's rows as one Parquet file in a folder."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    from saturnmq.spark.object_store import file_system

    now = pa.scalar(int(time.time() * 1_000_000), type=pa.timestamp("us", tz="UTC")).as_py()
    rows = [
        {
            "ts": now, "query": lag.query, "run": lag.run, "batch": lag.batch, "topic": key[0], "broker": key[1],
            "queue": key[2], "end_offset": lag.end.get(key, 0), "max_offset": lag.latest[key], "lag": behind,
            "rows": lag.rows, "batch_ms": lag.batch_ms,
        }
        for key, behind in lag.by_queue.items()
    ]  # fmt: skip
    if rows:
        system, folder = file_system(uri)
        system.create_dir(folder, recursive=True)
        pq.write_table(pa.Table.from_pylist(rows), f"{folder}/lag-{lag.run}-{lag.batch}.parquet", filesystem=system)


def track(
    spark: SparkSession,
    name_server: str,
    *,
    interval_ms: int = COMMIT_INTERVAL_MS,
    lag_table: str | None = None,
    **access: Any,
) -> Tracker:
    """Commit group offsets and record the lag of this session's streams from now on.

        tracker = track(spark, "localhost:9876", lag_table="./lake/lag")
        query.awaitTermination()
        tracker.stop()

    Stop the queries before the tracker, or `stop()` it to commit what was reported so far. interval_ms: time between commits.
    access: credentials and TLS, fields of `ClusterAccess` such as access_key="..." or tls=True.
    """
    options = ConnectionOptions(name_server, **access)
    tracker = Tracker(options, interval_ms=interval_ms, lag_table=lag_table)
    if is_connect(spark):
        # A Connect client drops its listeners when the response that adds one carries accumulators of earlier Python processes:
        # the response of this query takes them along.
        spark.range(1).collect()
        tracker.detach = lambda: spark.streams.removeListener(tracker)
    spark.streams.addListener(tracker)
    return tracker
