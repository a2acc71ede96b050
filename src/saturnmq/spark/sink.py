"""The sink: `df.write.format("rocketmq").mode("append")` and `df.writeStream`. Source: spec 06 section 5.

Delivery is at least once: a task that fails is run again and sends its rows again, and messages of a failed job cannot be called
back. With `dedupe` every message carries where it came from, so that repeats can be found. With delivery=transactional tasks store
half messages, which consumers see when the batch is committed, once: see `transactional`.
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
from saturnmq.spark.encode import Encoder, Request, Target
from saturnmq.spark.sending import Sender
from saturnmq.spark.sink_options import SinkOptions, parse_sink_options
from saturnmq.spark.transactional import Halves, abort, check_brokers, check_count, commit, group_of, write_halves

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)
REQUESTS_AT_ONCE: Final = 64


@dataclass
class Stored(WriterCommitMessage):
    """The half messages of one task, with delivery=transactional."""

    written: Halves


@dataclass
class Sent(WriterCommitMessage):
    """What one task sent."""

    partition: int
    attempt: int
    rows: int
    bytes: int
    skipped: int
    last_message_id: str


def task_name() -> tuple[int, int, str]:
    """(partition, attempt, query/batch/partition) of the running task; a batch write has no query and no batch."""
    context = TaskContext.get()
    if context is None:
        return 0, 0, "-/-/0"
    query = context.getLocalProperty("sql.streaming.queryId") or "-"
    batch = context.getLocalProperty("streaming.sql.batchId") or "-"
    partition = context.partitionId()
    return partition, context.attemptNumber(), f"{query}/{batch}/{partition}"


def write_batches(options: SinkOptions, batches: Iterator[pa.RecordBatch], run: str = "-") -> Sent | Stored:
    """Send the rows of one task; returns when all are acknowledged. run: stands for the batch where a write has none.

    Raises BadRowError, StoreError.
    """
    partition, attempt, name = task_name()
    size = 0
    halves = options.delivery == "transactional"
    if halves:
        query, batch_id = name.split("/")[:2]
        fence = Fence(query, run if batch_id == "-" else batch_id, partition, attempt, new_token())
        options = replace(options, producer_group=group_of(options.own_group, run if query == "-" else query))
    with linked(options) as link:
        sender = Sender(link, options)
        encoder = Encoder(options, lambda: link.core.ids.next(time.time()), name, _shards(link, sender))
        waiting: list[Request] = []
        began = time.monotonic()
        for batch in batches:
            columns = {field.name: batch.column(n).to_pylist() for n, field in enumerate(batch.schema)}
            for request in encoder.add(columns, batch.num_rows):
                waiting.append(request)
                size += request.size
                if halves:
                    check_count(len(waiting), options.transaction_messages)
                elif len(waiting) >= REQUESTS_AT_ONCE or options.per_second:
                    link.run(sender.send(waiting))
                    waiting = []
                    _hold_back(options.per_second, encoder.rows, time.monotonic() - began)
        for request in encoder.rest():
            waiting.append(request)
            size += request.size
        if encoder.skipped:
            logger.warning("rows left out partition=%d count=%d", partition, encoder.skipped)
        if halves:
            return Stored(write_halves(sender, waiting, fence))
        link.run(sender.send(waiting))
    return Sent(partition, attempt, encoder.rows - encoder.skipped, size, encoder.skipped, encoder.last_id)


def _shards(link: Link, sender: Sender) -> Callable[[str, str], Target]:
    """The queue of a topic and sharding key, remembered."""
    known: dict[tuple[str, str], Target] = {}

    def shard_target(topic: str, key: str) -> Target:
        found = known.get((topic, key))
        if found is None:
            if len(known) > 100_000:
                known.clear()
            found = known[(topic, key)] = link.run(sender.shard_target(topic, key))
        return found

    return shard_target


def _hold_back(per_second: int, rows: int, seconds: float) -> None:
    """Wait until so many rows are due since the task began; no rate, no wait."""
    if per_second and rows / per_second > seconds:
        time.sleep(rows / per_second - seconds)


def for_ordered_write(frame: DataFrame, key: str, *order: str) -> DataFrame:
    """The frame so that messages of one key are sent in order: one task has all rows of a key, sorted (SNK-06).

    The key column must be shardingKey, or the rows must fix brokerName and queueId.
    """
    return frame.repartition(key).sortWithinPartitions(key, *order)


class BatchWriter(DataSourceArrowWriter):
    """Made in the planner, pickled to the tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = f"run-{new_token()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return write_batches(self._options, iterator, self._run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything was acknowledged in the tasks; half messages are ended now."""
        _end(self._options, messages, self._run, self._run)
        _say("written", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was sent stays sent: the caller is told by Spark, here it is counted. Half messages are rolled back."""
        _roll_back(self._options, messages)
        _say("aborted, these stay in the topic", messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """One object per task and one per commit, in different processes."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task of a micro-batch."""
        return write_batches(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything was acknowledged in the tasks; half messages are ended now."""
        _end(self._options, messages, str(batchId), None)
        _say(f"batch {batchId} written", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent stays sent; the batch is run again. Half messages are rolled back."""
        _roll_back(self._options, messages)
        _say(f"batch {batchId} aborted, these stay in the topic", messages)


def _halves(messages: list[WriterCommitMessage | None]) -> list[Halves]:
    return [m.written for m in messages if isinstance(m, Stored)]


def _end(options: SinkOptions, messages: list[WriterCommitMessage | None], batch: str, run: str | None) -> None:
    """Decide a batch of half messages, and end them."""
    written = _halves(messages)
    if written:
        group = group_of(options.own_group, run or written[0].fence.query)
        commit(options, DecisionLog(options.decision_log), group, written, batch)


def _roll_back(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    written = _halves(messages)
    if written:
        fence = written[0].fence
        abort(options, group_of(options.own_group, fence.batch if fence.query == "-" else fence.query), written)


W = TypeVar("W", BatchWriter, StreamWriter)


def make_writer(kind: type[W], given: MutableMapping[str, str], schema: StructType, overwrite: bool) -> W:
    """A writer whose options and columns fit. Raises ConfigError with every problem, or for brokers that take no transactions."""
    columns: Mapping[str, str] = {item.name: item.dataType.simpleString() for item in schema.fields}
    options = parse_sink_options(given, columns, overwrite=overwrite)
    if options.delivery == "transactional" and options.topic is not None:
        check_brokers(options, options.topic)
    return kind(options)


def _say(what: str, messages: list[WriterCommitMessage | None]) -> None:
    sent = [m for m in messages if isinstance(m, Sent)]
    logger.info(
        "%s tasks=%d rows=%d bytes=%d", what, len(messages), sum(m.rows for m in sent), sum(m.bytes for m in sent)
    )
