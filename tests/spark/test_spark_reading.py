"""Planning and reading against a broker, called as by Spark's planner and workers; without a JVM."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from saturnmq import Outgoing
from saturnmq.client.puller.puller import PullResult, PullStatus
from saturnmq.errors import CallTimeout, ConnectFailed
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError, StoreError, response_error
from saturnmq.protocol.message import Message, encode_record
from saturnmq.spark import connect, fetch, planning, reading
from saturnmq.spark.connect import linked
from saturnmq.spark.fetch import DataLossError, RangeFetcher
from saturnmq.spark.options import SourceOptions
from saturnmq.spark.partition import RangePartition
from saturnmq.spark.planning import offset_of_time
from saturnmq.spark.queue_state import QueueState
from saturnmq.spark.ranges import Bounds, Key, QueueRange, key_of
from saturnmq.spark.source import BatchReader, RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

QUEUES = 4


@pytest.fixture(scope="module")
def topic(server: SyncEmbeddedBroker) -> str:
    """Topic "many": 400 messages in 4 queues; tag a or b, key the number, a pause in the middle of each queue."""
    with Client(name_servers=server.name_servers) as client, client.producer("reading-tests") as out:
        client.create_topic("many", queues=QUEUES)
        for half in range(2):
            for queue in out.queues("many"):
                first = half * 200 + queue.queue_id * 50
                out.send_many("many", [Outgoing(value=b"%d" % n, tag="ab"[n % 2], keys=[str(n)], properties={"n": str(n)})
                                       for n in range(first, first + 50)], queue=queue)  # fmt: skip
            sent = time.time_ns()
            while time.time_ns() - sent < 3_000_000:  # the halves differ in store time, which has a resolution of 1 ms
                pass
    return "many"


def reader(server: SyncEmbeddedBroker, schema: StructType | None = None, **options: Any) -> BatchReader:
    given_options = {"nameServer": server.name_servers, "topic": "many", **{k: str(v) for k, v in options.items()}}
    source = RocketMQDataSource({k: v for k, v in given_options.items() if v})
    made = source.reader(schema or source.schema())
    assert isinstance(made, BatchReader)
    return made


def rows(made: BatchReader) -> list[dict[str, Any]]:
    found = []
    for partition in made.partitions():
        copied = pickle.loads(pickle.dumps(made))  # as in a worker
        for batch in copied.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            found += batch.to_pylist()
    return found


def numbers(made: BatchReader) -> list[int]:
    return sorted(int(r["body"]) for r in rows(made))


def queue_json(value: Any) -> str:
    return json.dumps({"many": {"broker-a": {str(q): value for q in range(QUEUES)}}})


@pytest.mark.spec("SRC-01", "SRC-06", "SRC-07", "SRC-12")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pullDepth": 1, "pullBatchSize": 7},
        {"minPartitions": 13, "batchRows": 9},
        {"maxRecordsPerPartition": 30, "pullDepth": 16},
        {"maxBytesPerPartition": "4k"},
        {"subscribePattern": "m.ny", "topic": ""},
        {"assign": '{"many":{"broker-a":[0,1,2,3]}}', "topic": ""},
    ],
)
def test_batch_read_returns_every_message_once_at_any_split(
    server: SyncEmbeddedBroker, topic: str, options: dict[str, Any]
) -> None:
    made = reader(server, **options)
    assert numbers(made) == list(range(400))
    pieces = made.partitions()
    assert isinstance(pieces, list) and all(len(pickle.dumps(p)) < 1024 for p in pieces)
    if "maxBytesPerPartition" in options:
        assert len(pieces) >= 8
    assert len(pieces) >= options.get("minPartitions", 1)


@pytest.mark.spec("SRC-02", "SRC-07")
def test_assign_pattern_and_empty_ranges(server: SyncEmbeddedBroker, topic: str) -> None:
    assert numbers(reader(server, topic="", assign='{"many":{"broker-a":[1]}}')) == [*range(50, 100), *range(250, 300)]
    with pytest.raises(ConfigError, match="option assign: topic 'many' has no queue 9 on 'broker-a'"):
        reader(server, topic="", assign='{"many":{"broker-a":[9]}}').partitions()
    with pytest.raises(ConfigError, match=r"subscribePattern='RMQ_SYS.\*\|TBW102' matches none"):
        reader(server, topic="", subscribePattern="RMQ_SYS.*|TBW102").partitions()
    empty = reader(server, startingOffsets="latest").partitions()
    assert [p.piece for p in empty] == [None]
    assert rows(reader(server, startingOffsets="latest")) == []


@pytest.mark.spec("SRC-02", "SRC-22")
def test_batch_read_excludes_later_and_delayed_messages(server: SyncEmbeddedBroker) -> None:
    with Client(name_servers=server.name_servers) as client, client.producer("reading-tests") as out:
        client.create_topic("fixed", queues=2)
        out.send_many("fixed", [Outgoing(value=b"%d" % n) for n in range(20)])
        out.send("fixed", b"delayed", delay_level=18)
        made = reader(server, topic="fixed")
        planned = made.partitions()
        out.send_many("fixed", [Outgoing(value=b"late") for _ in range(20)])
    found = [row["body"] for part in planned for batch in made.read(part) for row in batch.to_pylist()]
    assert sorted(map(int, found)) == list(range(20))


@pytest.mark.spec("SRC-11", "SRC-16")
@pytest.mark.parametrize("expression", ["*", "a || b"])
def test_pull_has_subscription_and_no_suspend_or_commit_flag(
    server: SyncEmbeddedBroker, topic: str, expression: str
) -> None:
    tap = server.inner.tap
    before = len(tap.requests)
    rows(reader(server, subExpression=expression))
    asked = list(tap.requests)[before:]
    pulls = [request for request in asked if request.code == RequestCode.PULL_MESSAGE]
    assert pulls and {request.ext["subscription"] for request in pulls} == {expression}
    assert {request.ext["consumerGroup"] for request in pulls} == {"CID_RMQ_SYS_SPARK"}
    assert {int(request.ext["sysFlag"]) & 0b111 for request in pulls} == {
        0b100
    }  # subscription, not suspend, not commit
    changing = {RequestCode.HEART_BEAT, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.LOCK_BATCH_MQ}
    assert not changing & {request.code for request in asked}


@pytest.mark.spec("SRC-03")
def test_time_range_selects_exactly_stored_messages(server: SyncEmbeddedBroker, topic: str) -> None:
    everything = rows(reader(server))
    times = sorted({int(r["storeTimestamp"].timestamp() * 1000 + 0.5) for r in everything})
    for begin, end in (
        (times[0], times[-1]),
        (times[len(times) // 2], times[-1] + 1),
        (times[1], times[1] + 1),
        (0, times[0]),
    ):
        wanted = Counter(
            int(r["body"]) for r in everything if begin <= int(r["storeTimestamp"].timestamp() * 1000 + 0.5) < end
        )
        assert Counter(numbers(reader(server, startingTimestamp=begin, endingTimestamp=end))) == wanted
        per_queue = reader(
            server, startingOffsetsByTimestamp=queue_json(begin), endingOffsetsByTimestamp=queue_json(end)
        )
        assert Counter(numbers(per_queue)) == wanted
    late = times[-1] + 1000
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy=latest"):
        reader(server, startingOffsetsByTimestamp=queue_json(late)).partitions()
    options = {"startingOffsetsByTimestamp": queue_json(late), "startingOffsetsByTimestampStrategy": "latest"}
    assert rows(reader(server, **options)) == []


def hinting(stored: list[int], hint: int) -> Any:
    """Return a link to a queue with these store times, whose broker answers every offset-by-time request with `hint`."""

    class Liar:
        def __init__(self) -> None:
            self.pulled: list[int] = []

        async def offset_by_time(self, _queue: MessageQueue, _when: int) -> int:
            return hint

        async def pull(self, queue: MessageQueue, offset: int, *, max_count: int) -> PullResult:
            assert max_count == 1
            self.pulled.append(offset)
            record = Message("T", b"x", store_timestamp_ms=stored[offset], queue_offset=offset)
            return PullResult(PullStatus.FOUND, offset + 1, 5, 5 + len(stored), encode_record(record))

    return SimpleNamespace(puller=Liar())


@pytest.mark.spec("SRC-03", "SRC-04")
@given(st.lists(st.integers(0, 20), max_size=30), st.integers(-1, 22), st.integers(0, 40))
def test_offset_of_time_is_exact_for_any_broker_hint(stored: list[int], when: int, hint: int) -> None:
    """With ordered store times, the first message at or after the time is found whatever offset the broker answers."""
    stored.sort()
    found = asyncio.run(offset_of_time(hinting(stored, hint), MessageQueue("T", "b", 0), Bounds(0, len(stored)), when))
    assert found == (sum(1 for time_ms in stored if time_ms < when), False)


@pytest.mark.spec("SRC-04")
@pytest.mark.parametrize(("hint", "others_max"), [(700, 1), (0, 14), (300, 14), (1000, 14)])
def test_hint_costs_reads_of_its_neighbours_and_else_a_bisection(hint: int, others_max: int) -> None:
    """Besides, messages at growing distances are read on both sides, for store times that decrease."""
    link, distances = hinting([2 * number for number in range(1000)], hint), [1 << number for number in range(10)]
    bound = asyncio.run(offset_of_time(link, MessageQueue("T", "b", 0), Bounds(0, 1000), 1400))
    pulled = link.puller.pulled
    assert bound == (700, False) and len(pulled) == len(set(pulled))
    around = {700 + sign * distance for sign in (-1, 1) for distance in distances} & set(range(1000))
    assert around < set(pulled) and len(set(pulled) - around) <= others_max
    assert hint != 700 or pulled[:2] == [699, 700]


@pytest.mark.spec("SRC-04")
@pytest.mark.parametrize("hint", range(9))
@pytest.mark.parametrize(("begin", "end"), [(30, 55), (51, 60), (20, 22), (52, 100)])
def test_decreasing_store_times_lose_no_row(hint: int, begin: int, end: int, caplog: pytest.LogCaptureFixture) -> None:
    """A broker's clock was set back once: every matching row is in the range that the options select."""
    stored = [10, 50, 51, 52, 20, 21, 22, 60]
    link, queue = hinting(stored, hint), MessageQueue("T", "b", 0)
    known = {queue: Bounds(0, len(stored))}
    wanted = [n for n, at in enumerate(stored) if begin <= at < end]
    made = SourceOptions(name_server="x:1", topics=("T",), starting_ms=begin, ending_ms=end)
    first = asyncio.run(planning.starts(link, known, made))[0][queue]
    last = asyncio.run(planning._ends(link, known, made))[0][queue]
    assert first <= wanted[0] and last > wanted[-1]
    assert "store times decrease queue=T/b/0" in caplog.text
    streaming = asyncio.run(planning.starts(link, known, made, compared=False))[0][queue]
    assert (
        stored[streaming] >= begin and streaming <= wanted[0]
    )  # a stream filters no rows by time: it begins at the first message that is late enough


@pytest.mark.spec("SRC-05", "SRC-16", "SRC-11")
def test_group_offsets_are_start_and_read_has_no_side_effect(server: SyncEmbeddedBroker, topic: str) -> None:
    broker = server.inner.broker
    with Client(name_servers=server.name_servers) as client:
        puller = client.puller()
        for queue in puller.queues("many"):
            if queue.queue_id != 3:
                puller.commit("committed-group", queue, 40)
    before = broker.offsets.encode()
    found = rows(reader(server, startingOffsets="group", group="committed-group"))
    wanted = Counter(
        (q, o) for q in range(4) for o in range(0 if q == 3 else 40, 100)
    )  # brokers answer 0 for a young queue
    assert Counter((r["queueId"], r["queueOffset"]) for r in found) == wanted
    assert broker.offsets.encode() == before
    assert not broker.clients.consumers and not broker.clients.producers
    assert connect.READ_GROUP.startswith("CID_RMQ_SYS_")


@pytest.mark.spec("SRC-05")
def test_queue_without_committed_offset_uses_fallback() -> None:
    queues = {MessageQueue("T", "b", n): Bounds(10, 100) for n in range(2)}

    class Link:
        class puller:
            @staticmethod
            async def committed(group: str, queue: MessageQueue) -> int | None:
                return 55 if queue.queue_id == 0 else None

    def start(**options: Any) -> list[int]:
        made = SourceOptions(name_server="x:1", topics=("T",), starting="group", group="g", **options)
        return list(asyncio.run(planning.starts(Link(), queues, made))[0].values())  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"group 'g' has no offset for T/b/1; set groupOffsetFallback"):
        start()
    assert start(group_fallback="earliest") == [55, 10] and start(group_fallback="latest") == [55, 100]


@pytest.mark.spec("SRC-01", "SRC-11", "SRC-12")
def test_sub_expression_is_evaluated_by_broker(server: SyncEmbeddedBroker, topic: str) -> None:
    assert numbers(reader(server, subExpression="a || none")) == list(range(0, 400, 2))
    assert numbers(reader(server, subExpression="none", readTimeoutMs=3000)) == [], (
        "the next offset of the answer counts"
    )
    assert numbers(reader(server, subExpression="a", startingOffsets=queue_json(98))) == [248, 298, 348, 398]
    with pytest.raises(ConfigError, match="subExpression='n >'"):
        reader(server, subExpression="n >", expressionType="SQL92")


@pytest.mark.spec("SRC-10")
def test_only_columns_of_a_narrower_schema_are_built(server: SyncEmbeddedBroker, topic: str) -> None:
    narrow = StructType([StructField("queueOffset", LongType(), True)])
    found = rows(reader(server, narrow))
    assert len(found) == 400 and {tuple(row) for row in found} == {("queueOffset",)}
    assert {"queueOffset", "body", "topic"} <= set(rows(reader(server))[0]), "without a schema, the default columns"


def upper_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = [int(v) for v in batch.column(batch.schema.get_field_index("body")).to_pylist()]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.int64())], schema=pa.schema([pa.field("n", pa.int64(), True)])
    )


@pytest.mark.spec("SRC-10", "SRC-08")
def test_map_arrow_runs_in_reader(server: SyncEmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = StructType([StructField("n", LongType(), True)])
    options = {"mapArrow": f"{__name__}:upper_numbers"}
    monkeypatch.setenv("SATURNMQ_SPARK_MAPPERS", f"nowhere.at:all, {options['mapArrow']}")
    assert sorted(r["n"] for r in rows(reader(server, schema, **options))) == list(range(400))
    with pytest.raises(ConfigError, match="announced was"):
        rows(reader(server, StructType([StructField("m", LongType(), True)]), **options))
    with pytest.raises(ConfigError, match="cannot be imported"):
        rows(reader(server, schema, mapArrow="nowhere.at:all"))


@pytest.mark.spec("SPK-10", "SPK-11")
def test_secret_key_is_never_shown(server: SyncEmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATURNMQ_ACCESS_KEY", "me")
    monkeypatch.setenv("SATURNMQ_SECRET_KEY", "hush-hush")
    made = reader(server)
    assert made._options.access_key == "me" and made._options.secret_key == "hush-hush"
    assert "hush-hush" not in repr(made._options) + repr(made.partitions())
    assert all(b"hush-hush" not in pickle.dumps(p) for p in made.partitions())
    monkeypatch.delenv("SATURNMQ_SECRET_KEY")
    with pytest.raises(ConfigError, match="accessKey and secretKey belong together"):
        reader(server)


@pytest.mark.spec("SRC-21")
def test_tasks_of_worker_share_one_connection(server: SyncEmbeddedBroker, topic: str) -> None:
    options = SourceOptions(name_server=server.name_servers, topics=("many",))
    with linked(options) as one, linked(SourceOptions(name_server=server.name_servers, topics=("else",))) as two:
        assert one is two and one.users >= 2
    with linked(SourceOptions(name_server=server.name_servers, access_key="a", secret_key="b")) as other:
        assert other is not one
    assert one.idle is not None and not one.users and connect.IDLE_SECONDS == 60
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # a forked worker does not inherit the parent's connections
        os.write(write, b"%d" % len(connect._state.links))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"0"
    os.close(read)
    os.close(write)


# ---- scripted broker failures


class Script:
    """A puller that plays scripted answers: an error, or the number of messages from the offset on; queue [low, high)."""

    def __init__(self, low: int, high: int, answers: Iterable[Any] = ()) -> None:
        self.low, self.high, self.answers = low, high, iter(answers)
        self.group = "script-group"
        self.asked: list[int] = []
        self.counts: list[int] = []
        self.flying = self.most = 0

    @property
    def _core(self) -> Script:
        return self

    async def master_states(self, _group: str, offsets: dict[MessageQueue, int]) -> dict[Key, QueueState]:
        ((queue, offset),) = offsets.items()
        return {key_of(queue): QueueState(Bounds(self.low, self.high), next_offset=max(self.low, offset))}

    async def pull(
        self, queue: MessageQueue, offset: int, *, max_count: int, expression: Any = "*", **_more: Any
    ) -> PullResult:
        self.asked.append(offset)
        self.counts.append(max_count)
        self.flying += 1
        self.most = max(self.most, self.flying)
        try:
            await asyncio.sleep(0)
        finally:
            self.flying -= 1
        answer = next(self.answers, None)
        if isinstance(answer, Exception):
            raise answer
        if offset < self.low:
            return PullResult(PullStatus.OFFSET_ILLEGAL, self.low, self.low, self.high)
        if offset >= self.high:
            return PullResult(PullStatus.NO_NEW_MESSAGE, offset, self.low, self.high)
        count = min(answer or 8, max_count, self.high - offset)
        body = b"".join(encode_record(Message("T", b"x", queue_offset=n)) for n in range(offset, offset + count))
        return PullResult(PullStatus.FOUND, offset + count, self.low, self.high, body)


def fetched(script: Script, begin: int, end: int, **options: Any) -> list[int]:
    made = SourceOptions(name_server="x:1", topics=("T",), **({"batch_rows": 50, "read_timeout_ms": 300} | options))

    async def run() -> list[bytes]:
        fetcher = RangeFetcher(script, QueueRange("T", "broker-x", 7, begin, end), made)  # type: ignore[arg-type]
        found: list[bytes] = []
        try:
            async with asyncio.timeout(20):
                while (bodies := await fetcher.block()) is not None:
                    found += bodies
        finally:
            await fetcher.close()
        return found

    from saturnmq.protocol.message import decode_records

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "queue_states", type(script).master_states)
        return [m.queue_offset for body in asyncio.run(run()) for m in decode_records(body)]


@pytest.mark.spec("SRC-12")
@given(st.integers(0, 300), st.integers(1, 16), st.lists(st.integers(1, 9), max_size=20))
def test_fetch_refills_short_responses_in_order(length: int, depth: int, sizes: list[int]) -> None:
    script = Script(10, 10 + length, iter(sizes))
    assert fetched(script, 10, 10 + length, pull_depth=depth) == list(range(10, 10 + length))
    assert script.most <= depth and all(
        offset < 10 + length for offset in script.asked
    )  # never a request beyond the end


@pytest.mark.spec("SRC-12")
def test_filtered_fetch_is_sequential_with_large_count() -> None:
    script = Script(0, 40)
    assert fetched(script, 0, 40, expression="a", pull_depth=8) == list(range(40))
    assert set(script.counts) == {32_768} and script.most == 1
    plain = Script(0, 2000)
    assert len(fetched(plain, 0, 2000, pull_depth=8, pull_batch=5)) == 2000
    assert max(plain.counts) <= 5 and plain.most == 8, "unfiltered: pullDepth requests at predicted offsets"


@pytest.mark.spec("SRC-13")
@pytest.mark.parametrize("chance", [0.0, 1.0])
async def test_jittered_pauses_between_pulls_double_up_to_five_seconds(
    chance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = asyncio.get_running_loop().time
    monkeypatch.setattr(fetch.random, "random", lambda: chance)
    asked: list[float] = []

    class Timed(Script):
        async def pull(self, queue: MessageQueue, offset: int, **more: Any) -> PullResult:
            asked.append(seconds())
            return await super().pull(queue, offset, **more)

    script: Any = Timed(0, 3, iter([response_error(ResponseCode.SYSTEM_BUSY, "busy")] * 8))
    fetcher = RangeFetcher(
        script, QueueRange("T", "broker-x", 7, 0, 3), SourceOptions(name_server="x:1", topics=("T",))
    )
    assert len(await fetcher.block() or ()) == 1
    await fetcher.close()
    pauses = [after - before for before, after in itertools.pairwise(asked)]
    longest = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert pauses == pytest.approx([pause * (0.5 + chance / 2) for pause in longest], abs=0.04)


@pytest.mark.spec("SRC-13", "SRC-14")
def test_fetch_retries_transient_errors_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch.BACKOFF_S == (0.1, 5.0) and SourceOptions().read_timeout_ms == 120_000
    monkeypatch.setattr(fetch, "BACKOFF_S", (0.001, 0.002))
    busy = response_error(ResponseCode.SYSTEM_BUSY, "busy")
    full, lost = response_error(ResponseCode.SERVICE_NOT_AVAILABLE, "no space"), ConnectFailed("lost", sent=True)
    script = Script(0, 40, iter([busy, CallTimeout("late"), 3, busy, full, lost]))
    assert fetched(script, 0, 40, pull_depth=1) == list(range(40)) and script.asked[:7] == [0, 0, 0, 3, 3, 3, 3]

    class CatchesUp(Script):
        async def pull(self, queue: MessageQueue, offset: int, **more: Any) -> PullResult:
            result = await super().pull(queue, offset, **more)
            if offset >= self.high:
                self.high = 40
            return result

    slave = CatchesUp(0, 20)
    assert fetched(slave, 0, 40) == list(range(40))
    assert slave.asked.count(20) == 2, "the slave had nothing at 20, and was asked again"

    class Unled(Script):
        async def master_states(self, _group: str, offsets: dict[MessageQueue, int]) -> dict[Key, QueueState]:
            return {key_of(queue): QueueState(reason="broker-x has no master") for queue in offsets}

    for slave, words in (
        (Unled(0, 20), r"offset 20 .*0\.\.20 .*; broker-x has no master"),
        (Unled(9, 40), "offset 0 "),
    ):
        with pytest.raises(StoreError, match=words) as caught:
            fetched(slave, 0, 40, fail_on_data_loss=False)
        assert not isinstance(caught.value, DataLossError), "a slave's answer is no proof of loss"
    dead = Script(0, 40, iter([CallTimeout("silence")] * 10_000))
    with pytest.raises(StoreError, match=r"T/broker-x/7: no progress at offset 0 for 300 ms: silence"):
        fetched(dead, 0, 40)


@pytest.mark.spec("SRC-15")
def test_lost_messages_fail_query_or_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetch, "BACKOFF_S", (0.001, 0.002))
    with pytest.raises(
        DataLossError, match=r"topic T, broker broker-x, queue 7, offsets 0\.\.12: the queue begins at 12"
    ):
        fetched(Script(12, 40), 0, 40)
    log = tmp_path / "loss"
    tolerant = {"fail_on_data_loss": False, "data_loss_log": str(log), "read_timeout_ms": 20}
    assert fetched(Script(12, 40), 0, 40, **tolerant) == list(range(12, 40))
    assert [r.levelname for r in caplog.records if "the queue begins at 12" in r.getMessage()] == ["WARNING"]
    assert fetched(Script(0, 30), 0, 40, **tolerant) == list(range(30))
    events = sorted((json.loads(p.read_text()) for p in log.iterdir()), key=lambda e: e["begin"])
    assert {(e["topic"], e["broker"], e["queue_id"], e["begin"], e["end"]) for e in events} >= {
        ("T", "broker-x", 7, 0, 12)
    }
    assert any(e["end"] == 40 and e["begin"] >= 30 for e in events)


def frames(offsets: Iterable[int], bad: Iterable[int] = ()) -> list[bytes]:
    """Return records of these queue offsets; those in `bad` have a body that does not match the CRC."""
    made = {n: encode_record(Message("T", b"body %04d" % n, queue_offset=n)) for n in offsets}
    return [r.replace(b"body", b"bodY") if n in bad else r for n, r in made.items()]


def rows_of_blocks(blocks: list[list[bytes]], end: int, **options: Any) -> list[int]:
    """Decode blocks (lists of responses) of a range from offset 0 on, as a worker does."""
    made = SourceOptions(name_server="x:1", topics=("T",), verify_crc=True, **options)
    piece = QueueRange("T", "broker-x", 7, 0, end)
    decoding = reading.Blocks(made, ("queueOffset",), piece, reading.selection(made, piece))
    found = []
    for answers in blocks:
        batches = decoding.batches(b"".join(answers), [len(answer) for answer in answers])
        found += [n for batch in batches for n in batch.column(0).to_pylist()]
    decoding.end()
    return found


@pytest.mark.spec("SRC-15", "SRC-09")
def test_unreadable_record_costs_only_its_own_row(tmp_path: Path) -> None:
    """Wrong CRCs in the middle, at both ends of a block and of the range; a length that hides the rest of its response."""
    bad = {0, 57, 58, 199, 200, 399}
    blocks = [
        [b"".join(frames(range(100), bad)), b"".join(frames(range(100, 200), bad))],
        [b"".join(frames(range(200, 300), bad))],
        [b"".join(frames(range(300, 350), bad)), b"".join(frames(range(350, 400), bad))],
    ]
    hidden = bytearray(blocks[2][0])
    at = sum(map(len, frames(range(300, 340))))
    hidden[at : at + 4] = (2**31 - 1).to_bytes(4, "big")
    blocks[2][0] = bytes(hidden)
    log = tmp_path / "loss"
    found = rows_of_blocks(blocks, 400, fail_on_data_loss=False, data_loss_log=str(log))
    assert found == [n for n in range(400) if n not in bad and not 340 <= n < 350]
    events = sorted((json.loads(p.read_text()) for p in log.iterdir()), key=lambda e: e["begin"])
    assert [(e["begin"], e["end"]) for e in events] == [(0, 1), (57, 59), (199, 201), (340, 350), (399, 400)]
    assert all("CRC" in e["reason"] for e in events[:3]) and "claims 2147483647 bytes" in events[3]["reason"]
    with pytest.raises(DataLossError, match=r"queue 7, offsets 57\.\.59: .*CRC"):
        rows_of_blocks([[b"".join(frames(range(100), {57, 58}))]], 100)
    with pytest.raises(
        DataLossError, match=r"offsets 99\.\.400: .*CRC"
    ):  # the end of the hole is not known before the next block
        rows_of_blocks([[b"".join(frames(range(100), {99}))]], 400)


@pytest.mark.spec("SRC-15", "SRC-09")
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.sets(st.integers(0, 60)), st.integers(1, 3))
def test_rows_and_losses_add_up_to_range(answers: list[int], bad: set[int], per_block: int) -> None:
    total, made, lost = sum(answers), [], []
    for n, count in enumerate(answers):
        first = sum(answers[:n])
        made.append(b"".join(frames(range(first, first + count), bad)))
    blocks = [made[n : n + per_block] for n in range(0, len(made), per_block)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "met_loss", lambda _options, loss, _work: lost.extend(range(loss.begin, loss.end)))
        found = rows_of_blocks(blocks, total, fail_on_data_loss=False)
    assert lost == sorted(bad & set(range(total))) and sorted(found + lost) == list(range(total))


@pytest.mark.spec("SRC-22")
def test_cancelled_task_leaves_no_pull_in_flight(server: SyncEmbeddedBroker, topic: str) -> None:
    made = reader(server, batchRows=5, pullBatchSize=3, pullDepth=8)
    batches = made.read(made.partitions()[0])
    next(batches)
    batches.close()  # as Spark does with a task that is no longer needed
    with linked(made._options) as link:

        async def pulling() -> list[str]:
            return [t.get_name() for t in asyncio.all_tasks() if "_segment" in str(t.get_coro())]

        assert link.run(pulling()) == []
    assert numbers(reader(server)) == list(range(400))  # and another attempt returns the same rows


@pytest.mark.spec("SRC-07")
def test_range_partition_and_system_topics() -> None:
    assert RangePartition(("T", "b", 0, 1, 2, None, None)).piece == ("T", "b", 0, 1, 2, None, None)
    assert planning.is_system_topic("%RETRY%g") and not planning.is_system_topic("orders")
