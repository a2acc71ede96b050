"""The sink: `df.write.format("rocketmq").mode("append")` and `df.writeStream.format("rocketmq")`.

Delivery is at least once: a failed task is run again and sends its rows again, and messages of a failed job cannot be recalled.
With option `dedupe` every message carries its origin, so that consumers can find duplicates. With delivery=transactional tasks
store half messages, which become visible to consumers exactly once, when the batch is committed: see `transactional`.

Requirements: SNK-01..SNK-12.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from saturnmq.spark.connect import Link, linked
from saturnmq.spark.decision_log import DecisionLog, Fence, new_token
from saturnmq.spark.encode import EncodedRequest, Encoder, SendTarget
from saturnmq.spark.sending import Sender
from saturnmq.spark.sink_options import SinkOptions, parse_sink_options
from saturnmq.spark.transactional import Halves, abort, check_brokers, check_count, commit, group_of, write_halves
from saturnmq.spark.worker_memory import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)
REQUESTS_AT_ONCE: Final = 64


@dataclass
class Stored(WriterCommitMessage):
    """Commit message of a task with delivery=transactional: the half messages it stored."""

    written: Halves


@dataclass
class Sent(WriterCommitMessage):
    """Commit message of a task with delivery=at_least_once: what it sent."""

    partition: int
    attempt: int
    rows: int
    bytes: int
    skipped: int
    last_message_id: str


def task_name() -> tuple[int, int, str]:
    """Return (partition, attempt, query/batch/partition) of the running task; a batch write has "-" for query and batch."""
    context = TaskContext.get()
    if context is None:
        return 0, 0, "-/-/0"
    query = context.getLocalProperty("sql.streaming.queryId") or "-"
    batch = context.getLocalProperty("streaming.sql.batchId") or "-"
    partition = context.partitionId()
    return partition, context.attemptNumber(), f"{query}/{batch}/{partition}"


def write_batches(options: SinkOptions, batches: Iterator[pa.RecordBatch], run: str | None = None) -> Sent | Stored:
    """Send the rows of one task; return when all are acknowledged. run: identifies a batch write, None for a stream.

    A batch write in foreachBatch runs within a query, too: only a stream may use the query's id and batch. Raises BadRowError,
    StoreError.
    """
    import saturnmq.client.client  # noqa: F401 - `linked` would import it later

    freeze_imports("write")
    partition, attempt, name = task_name()
    sent_bytes = 0
    is_transactional = options.delivery == "transactional"
    if is_transactional:
        query, batch_id = name.split("/")[:2] if run is None else ("-", run)
        fence = Fence(query, batch_id, partition, attempt, new_token())
        options = replace(options, producer_group=group_of(options.own_group, run or query))
    if options.per_second:  # at most a tenth of a second at once
        options = replace(options, batch_messages=min(options.batch_messages, max(options.per_second // 10, 1)))
    with linked(options) as link:
        sender = Sender(link, options)
        encoder = Encoder(options, lambda count: link.core.ids.take(time.time(), count), name, _shards(link, sender))
        waiting: list[EncodedRequest] = []
        paced = PacedSender(sender, options.per_second)
        for batch in batches:
            for request in encoder.add_batch(batch):
                waiting.append(request)
                sent_bytes += request.size
                if is_transactional:
                    check_count(len(waiting), options.transaction_messages)
                elif options.per_second or len(waiting) >= REQUESTS_AT_ONCE:
                    paced.send(waiting)
                    waiting = []
        for request in encoder.remaining():
            waiting.append(request)
            sent_bytes += request.size
        if encoder.skipped:
            logger.warning("rows left out partition=%d count=%d", partition, encoder.skipped)
        if is_transactional:
            return Stored(write_halves(sender, waiting, fence))
        paced.send(waiting)
    return Sent(partition, attempt, encoder.rows - encoder.skipped, sent_bytes, encoder.skipped, encoder.last_id)


def _shards(link: Link, sender: Sender) -> Callable[[str, str], SendTarget]:
    """Return a cached lookup of the queue for a topic and sharding key."""
    target_by_key: dict[tuple[str, str], SendTarget] = {}

    def shard_target(topic: str, key: str) -> SendTarget:
        target = target_by_key.get((topic, key))
        if target is None:
            if len(target_by_key) > 100_000:
                target_by_key.clear()
            target = target_by_key[(topic, key)] = link.run(sender.shard_target(topic, key))
        return target

    return shard_target


class PacedSender:
    """Sends requests at a rate: a request waits until the messages before it are due. per_second: 0 for no limit."""

    def __init__(self, sender: Sender, per_second: int) -> None:
        self._sender = sender
        self._per_second = per_second
        self._began = time.monotonic()
        self._messages = 0

    def send(self, requests: list[EncodedRequest]) -> None:
        """Send requests until each is acknowledged."""
        if not self._per_second:
            self._sender.link.run(self._sender.send(requests))
            return
        for request in requests:
            early_s = self._messages / self._per_second - (time.monotonic() - self._began)
            if early_s > 0:
                time.sleep(early_s)
            self._sender.link.run(self._sender.send([request]))
            self._messages += request.rows


def for_ordered_write(frame: DataFrame, key: str, *order: str) -> DataFrame:
    """Repartition the frame so that the messages of one key are sent in order: one task holds all rows of a key, sorted.

        ordered = for_ordered_write(orders, "shardingKey", "created_at").select("body", "shardingKey")
        ordered.write.format("rocketmq").options(nameServer="localhost:9876", topic="orders").mode("append").save()

    The key column must be `shardingKey`, or the rows must set brokerName and queueId.
    """
    return frame.repartition(key).sortWithinPartitions(key, *order)


class BatchWriter(DataSourceArrowWriter):
    """Writer of a batch; created in the planner and pickled to the tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = f"run-{new_token()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return write_batches(self._options, iterator, self._run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the half messages, if any; all other messages were acknowledged in the tasks."""
        _end(self._options, messages, self._run, self._run)
        _say("written", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Roll back half messages, unless they are decided: the write can then not be committed any more.

        Messages already sent stay in the topic and are counted in the log; Spark reports the failure to the caller.
        """
        _roll_back(self._options, messages, self._run, self._run)
        _say("aborted, these stay in the topic", messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a stream; Spark uses different objects for tasks and for commits, in different processes."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task of a micro-batch."""
        return write_batches(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """End the half messages, if any; all other messages were acknowledged in the tasks."""
        _end(self._options, messages, str(batchId), None)
        _say(f"batch {batchId} written", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Roll back half messages, unless they are decided. Messages already sent stay in the topic.

        Spark ends the query; its restart runs the batch again, under the same number and with new half messages.
        """
        _roll_back(self._options, messages, str(batchId), None)
        _say(f"batch {batchId} aborted, these stay in the topic", messages)


def _halves(messages: list[WriterCommitMessage | None]) -> list[Halves]:
    return [m.written for m in messages if isinstance(m, Stored)]


def _end(options: SinkOptions, messages: list[WriterCommitMessage | None], batch: str, run: str | None) -> None:
    """Decide a batch of half messages and commit them."""
    written = _halves(messages)
    if written:
        group = group_of(options.own_group, run or written[0].fence.query)
        commit(options, DecisionLog(options.decision_log), group, written, batch)


def _roll_back(options: SinkOptions, messages: list[WriterCommitMessage | None], batch: str, run: str | None) -> None:
    """Record the abort of a batch of half messages and roll them back; also without a task that reported, for a batch write."""
    written = _halves(messages)
    if written or (run and options.delivery == "transactional"):
        query = written[0].fence.query if written else "-"
        group = group_of(options.own_group, run or query)
        abort(options, DecisionLog(options.decision_log), group, written, query, batch)


W = TypeVar("W", BatchWriter, StreamWriter)


def make_writer(kind: type[W], raw_options: MutableMapping[str, str], schema: StructType, overwrite: bool) -> W:
    """Return a writer whose options and columns are valid.

    Raises ConfigError with every problem, or for brokers that reject transactions.
    """
    columns: Mapping[str, str] = {item.name: item.dataType.simpleString() for item in schema.fields}
    options = parse_sink_options(raw_options, columns, overwrite=overwrite)
    if options.delivery == "transactional" and options.topic is not None:
        check_brokers(options, options.topic)
    return kind(options)


def _say(event: str, messages: list[WriterCommitMessage | None]) -> None:
    sent = [m for m in messages if isinstance(m, Sent)]
    logger.info(
        "%s tasks=%d rows=%d bytes=%d", event, len(messages), sum(m.rows for m in sent), sum(m.bytes for m in sent)
    )
