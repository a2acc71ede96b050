"""The transactional sink: half messages, the decision log, answers to check-backs."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StructField, StructType

from saturnmq.broker import BrokerSettings
from saturnmq.client.connection.remote import Remote
from saturnmq.client.receipt import TransactionState
from saturnmq.errors import CallTimeout
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.message import decode_properties
from saturnmq.spark import decision_log, sink, transactional
from saturnmq.spark.connect import ConnectionOptions, linked
from saturnmq.spark.decision_log import QUIET_MS, BatchDecision, DecisionLog, Fence, StoredHalf
from saturnmq.spark.encode import EncodedRequest, SendTarget
from saturnmq.spark.sink_options import SinkOptions, parse_sink_options
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


def half(n: int) -> StoredHalf:
    return StoredHalf(f"ID{n}", "T", "b", n, f"OFF{n}")


def decision(batch: str, token: str, count: int = 3) -> BatchDecision:
    return BatchDecision("q", batch, frozenset({token}), tuple(half(n) for n in range(count)))


@pytest.mark.spec("SNK-13", "SNK-14")
def test_first_decision_of_batch_wins(tmp_path: Path) -> None:
    log = DecisionLog(str(tmp_path / "log"))
    assert log.read("4") is None and log.last() == -1
    won: list[BatchDecision] = []
    barrier = threading.Barrier(4)

    def decide(token: str) -> None:
        barrier.wait(10)
        won.append(log.decide(decision("4", token)))

    threads = [threading.Thread(target=decide, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(won) == 4 and len({d.tokens for d in won}) == 1
    assert log.read("4") == won[0] and log.last() == 4
    assert [p.name for p in (tmp_path / "log").iterdir()] == ["4.json"]  # the losers leave no files
    (tmp_path / "log" / "5.json").write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        log.read("5")
    with pytest.raises(ConfigError, match="object stores cannot create a file only when it is absent"):
        DecisionLog("s3://bucket/log")


@pytest.mark.spec("SNK-15", "SNK-16", "SNK-11")
def test_check_back_verdict_for_every_state_of_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DecisionLog(str(tmp_path))
    now = decision_log.now_ms() + QUIET_MS  # simulated clock, ahead of the files' modification times
    monkeypatch.setattr(decision_log, "now_ms", lambda: now)
    log.decide(decision("7", "good"))
    claim = log.claim("7", iter([half(0), half(1)]), 9)
    assert claim is not None and claim.halves == (half(0), half(1))
    log.acknowledge("7", claim, [half(0)])
    with (tmp_path / "7.journal").open("a") as torn:
        torn.write("D ID1")  # killed while writing
    ours = Fence("q", "7", 0, 0, "good")
    assert Fence.parse(str(ours)) == ours and Fence.parse("a/b") is None and Fence.parse("q/7/x/0/t") is None
    assert log.verdict(ours, "ID1") is UNKNOWN  # its end may be in flight: two commits would store it twice
    assert log.verdict(ours, "ID2") is UNKNOWN  # its end will be sent, in this run of the query or in the next
    now += QUIET_MS
    assert log.verdict(ours, "ID1") is COMMIT and log.verdict(ours, "ID2") is UNKNOWN
    assert log.verdict(ours, "ID0") is ROLLBACK  # done: this is the copy stored by a check
    assert log.verdict(ours, "ID9") is ROLLBACK  # not among the decided halves
    assert log.verdict(ours._replace(token="other"), "ID1") is ROLLBACK  # of an attempt that failed
    assert log.verdict(ours._replace(batch="6"), "ID1") is ROLLBACK  # older than the last one decided
    assert log.verdict(ours._replace(batch="8"), "ID1") is UNKNOWN  # still open
    assert log.verdict(ours._replace(query="q2"), "ID1") is UNKNOWN  # of another query with the same producer group
    assert [h.uniq for _, h in log.open_ends()] == ["ID1", "ID2"]
    log.decide(decision("run-1", "good"))  # a batch write is not run again, so only the check-back can end it
    written = (tmp_path / "run-1.json").stat().st_mtime_ns // 1_000_000
    now, in_run = written + QUIET_MS - 1, ours._replace(query="-", batch="run-1")
    assert log.verdict(in_run, "ID1") is UNKNOWN
    now = written + QUIET_MS
    assert log.verdict(in_run, "ID1") is COMMIT
    late = DecisionLog(str(tmp_path)).claim("run-1", iter([half(0), half(1), half(2)]), 9)
    assert late is not None and late.halves == (half(0), half(2))  # a late commit does not end it a second time
    log.finish("run-1")
    log.finish("7")
    assert log.verdict(ours, "ID1") is ROLLBACK and log.open_ends() == []
    for batch in range(8, 120):
        log.decide(decision(str(batch), "t"))
        log.finish(str(batch))
    assert log.read("7") is None and log.read("119") is not None and log.verdict(ours, "ID1") is ROLLBACK


@pytest.mark.spec("SNK-07", "SNK-10", "SNK-13", "SNK-19")
def test_options_incompatible_with_transactions_are_reported(tmp_path: Path) -> None:
    given = {"nameServer": "h:1", "topic": "T", "delivery": "transactional"}
    with pytest.raises(ConfigError) as caught:
        parse_sink_options(given | {"ack": "none"}, {"body": "binary", "delayLevel": "int"})
    for words in ("column delayLevel: not with", "ack=none", "option decisionLog is missing"):
        assert words in str(caught.value)
    with pytest.raises(ConfigError, match="object stores"):
        parse_sink_options(given | {"decisionLog": "s3://b/l"}, {"body": "binary"})
    made = parse_sink_options(given | {"checkpointLocation": "/c/"}, {"body": "binary"})
    assert made.decision_log == "/c/_saturnmq_tx" and made.ack == "durable" and made.own_group is None
    named = {"checkpointLocation": "/c/", "decisionLog": "/d", "producerGroup": "billing"}
    made = parse_sink_options(given | named, {"body": "binary"})
    assert (made.decision_log, made.own_group, made.producer_group) == ("/d", "billing", "billing")
    transactional.check_count(5, 5)
    with pytest.raises(StoreError, match="transactionMaxMessages=5 allows fewer: nothing was sent"):
        transactional.check_count(6, 5)


@pytest.fixture(scope="module")
def server() -> Iterator[SyncEmbeddedBroker]:
    """A broker with short check-back timeouts, and as many checks as a slow machine needs."""
    settings = BrokerSettings(transaction_interval_ms=50, transaction_timeout_ms=100, transaction_check_max=10_000)
    with SyncEmbeddedBroker(settings=settings) as running:
        yield running


class Writer:
    """Runs tasks and commits of batches as Spark does."""

    def __init__(self, server: SyncEmbeddedBroker, topic: str, log: Path) -> None:
        self.topic = topic
        self.options = SinkOptions(name_server=server.name_servers, topic=topic, delivery="transactional", ack="durable",
                                   own_group=f"G-{topic}", decision_log=str(log))  # fmt: skip
        self.group, self.log = f"G-{topic}", DecisionLog(str(log))
        with Client(name_servers=server.name_servers) as client:
            client.create_topic(topic, queues=2)

    def task(self, batch: str, numbers: range) -> transactional.Halves:
        rows = pa.RecordBatch.from_pydict({"body": [b"%d" % n for n in numbers], "keys": [str(n) for n in numbers]})
        stored = sink.write_batches(self.options, iter([rows]), batch)
        assert isinstance(stored, sink.Stored)
        return stored.written

    def commit(self, batch: str, *written: transactional.Halves) -> int:
        return transactional.commit(self.options.connection, self.log, self.group, written, batch)

    def abort(self, batch: str, *written: transactional.Halves) -> int:
        return transactional.abort(self.options.connection, self.log, self.group, written, "-", batch)


def bodies(server: SyncEmbeddedBroker, topic: str) -> Counter[int]:
    """Return what a reader sees of the topic now."""
    source = RocketMQDataSource({"nameServer": server.name_servers, "topic": topic, "columns": "body"})
    made = source.reader(source.schema())
    return Counter(int(r["body"]) for p in made.partitions() for b in made.read(p) for r in b.to_pylist())


def undecided(server: SyncEmbeddedBroker) -> int:
    """Return how many half messages the broker knows that are neither committed nor rolled back."""
    return len(server.inner.broker.master.transactions.table.pending)


@pytest.mark.spec("SNK-10", "SNK-11", "SNK-14", "SNK-18", "SRC-22")
def test_replayed_batch_commits_only_decided_halves(server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    writer = Writer(server, "tx-replay", tmp_path / "log")
    first, second = writer.task("0", range(40)), writer.task("0", range(40, 60))
    assert first.fence.token != second.fence.token and len(first.halves) == 40
    assert bodies(server, "tx-replay") == Counter()  # nothing is visible before the commit
    assert writer.commit("0", first, second) == 60
    assert bodies(server, "tx-replay") == Counter(range(60)) and writer.log.is_finished("0")
    # the driver was killed before Spark recorded the batch: it runs again with new halves
    stale = writer.task("0", range(60))
    assert undecided(server) == 60
    assert writer.commit("0", stale) == 0
    assert undecided(server) == 0, "the new halves are rolled back"
    assert bodies(server, "tx-replay") == Counter(range(60))
    # killed after the decision with some ends sent: the others are committed, those sent are left to the check-back
    third = writer.task("1", range(60, 90))
    writer.log.decide(BatchDecision("-", "1", frozenset({third.fence.token}), third.halves))
    assert writer.log.claim("1", iter(third.halves), 10)
    assert writer.commit("1", writer.task("1", range(60, 90))) == 20
    assert bodies(server, "tx-replay") == Counter(range(60)) + Counter(range(70, 90))
    assert not writer.log.is_finished("1") and len(writer.log.open_ends()) == 10
    abandoned = writer.task("2", range(90, 95))
    assert writer.abort("2", abandoned) == 5
    assert bodies(server, "tx-replay") == Counter(range(60)) + Counter(range(70, 90))


@pytest.mark.spec("SNK-15", "SNK-17", "SNK-18", "SNK-19")
def test_driver_answers_check_backs(
    server: SyncEmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Decided halves whose end was lost are committed, and halves of failed attempts are rolled back.

    Without the driver check-backs get no answer.
    """
    writer = Writer(server, "tx-asked", tmp_path / "log")
    writer.options = replace(writer.options, check_after_ms=-1000)  # checked at once
    good, failed = writer.task("0", range(5)), writer.task("0", range(100, 105))
    with linked(writer.options) as link:
        assert writer.group not in link.core.producers  # tasks do not register as producers
    writer.log.decide(BatchDecision("-", "0", frozenset({good.fence.token}), good.halves))
    with pytest.MonkeyPatch.context() as patch:  # their ends were sent long ago, and lost
        patch.setattr(decision_log, "now_ms", lambda: 0)
        claim = writer.log.claim("0", iter(good.halves), 5)
    assert claim is not None
    asked: Counter[TransactionState] = Counter()
    enough, answer = threading.Event(), transactional.verdict

    def counted(log: DecisionLog, message: Any) -> TransactionState:
        state = answer(log, message)
        asked[state] += 1
        if asked[COMMIT] >= 5 and asked[ROLLBACK] >= 5:
            enough.set()
        return state

    monkeypatch.setattr(transactional, "verdict", counted)
    with (
        caplog.at_level(logging.WARNING),
        transactional.answering(server.name_servers, str(tmp_path / "log"), writer.group),
    ):
        assert (
            "decided half messages not acknowledged count=5" in caplog.text
            and "TRANS_CHECK_MAX_TIME_TOPIC" in caplog.text
        )
        assert enough.wait(20), asked
        writer.log.acknowledge("0", claim, good.halves)  # as the log would show after an acknowledgement
    deadline = threading.Event()
    for _ in range(100):
        if bodies(server, "tx-asked") == Counter(range(5)):
            break
        deadline.wait(0.05)
    assert bodies(server, "tx-asked") == Counter(range(5))
    assert failed.halves and UNKNOWN not in asked


@pytest.mark.spec("SNK-19")
def test_broker_rejecting_transactions_is_named_at_start(
    server: SyncEmbeddedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"topic": "tx-rejected", "delivery": "transactional", "decisionLog": str(tmp_path / "log")}
    schema = StructType([StructField("body", BinaryType(), True)])

    def started(name_servers: str, **more: str) -> None:
        source = RocketMQDataSource({**given, "nameServer": name_servers, **more})
        source.writer(schema, False)
        source.streamWriter(schema, False)

    with SyncEmbeddedBroker(settings=BrokerSettings(reject_transactions=True)) as strict:
        with Client(name_servers=strict.name_servers) as client:
            client.create_topic("tx-rejected", queues=2)
        for make in (RocketMQDataSource.writer, RocketMQDataSource.streamWriter):
            source = RocketMQDataSource({**given, "nameServer": strict.name_servers})
            with pytest.raises(ConfigError, match="tx-rejected lies on broker-a, where rejectTransactionMessage=true"):
                make(source, schema, False)
        started(strict.name_servers, delivery="at_least_once")
        asked = [r for r in strict.inner.tap.requests if r.code == RequestCode.SEND_MESSAGE_V2]
        assert asked == []  # nothing was sent
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("tx-rejected", queues=2)
    started(server.name_servers)
    assert "transaction support unknown" not in caplog.text
    started(strict.name_servers)  # unreachable: left to the tasks
    assert "transaction support unknown" in caplog.text


@pytest.mark.spec("SNK-04", "SNK-11")
def test_fencing_key_names_the_task_and_differs_for_each_attempt(
    server: SyncEmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext._getOrCreate()  # set up as Spark's worker does it
    context._partitionId, context._attemptNumber = 7, 2
    context._localProperties = {"sql.streaming.queryId": "the-query", "streaming.sql.batchId": "5"}
    writer = Writer(server, "tx-fence", tmp_path)
    attempts = []
    for _ in range(2):  # a replay begins at the same attempt number
        stored = sink.write_batches(writer.options, iter([pa.RecordBatch.from_pydict({"body": [b"x"]})]))
        assert isinstance(stored, sink.Stored)
        attempts.append(stored.written)
    first, replayed = (written.fence for written in attempts)
    assert first == replayed._replace(token=first.token) == Fence("the-query", "5", 7, 2, first.token)
    assert first.token != replayed.token
    assert writer.abort("5", *attempts) == 2
    plain = replace(writer.options, delivery="at_least_once")
    sent = sink.write_batches(plain, iter([pa.RecordBatch.from_pydict({"body": [b"x"]})]))
    assert isinstance(sent, sink.Sent) and (sent.partition, sent.attempt) == (7, 2)


@pytest.mark.spec("SNK-19")
def test_task_with_too_many_messages_sends_none(server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    writer, before = Writer(server, "tx-many", tmp_path / "log"), undecided(server)
    writer.options = replace(writer.options, transaction_messages=99)
    with pytest.raises(StoreError, match=r"option transactionMaxMessages=99 allows fewer: nothing was sent"):
        writer.task("0", range(100))
    assert undecided(server) == before
    assert writer.abort("0", writer.task("0", range(99))) == 99


def test_halves_of_a_window_that_are_not_stored_are_sent_one_by_one(server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    writer, windows, before = Writer(server, "tx-window", tmp_path / "log"), list[int](), undecided(server)
    call_all = Remote.call_all

    async def failing(self: Remote, address: str, commands: Any, timeout_ms: int) -> Any:
        windows.append(len(commands))
        outcomes: list[Any] = await call_all(self, address, commands, timeout_ms)
        if len(windows) == 1:
            outcomes[3], outcomes[5] = CallTimeout("no answer"), Command(ResponseCode.SYSTEM_BUSY)
        return outcomes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Remote, "call_all", failing)
        written = writer.task("0", range(100))
    assert windows == [64, 36]
    assert len({half.uniq for half in written.halves}) == len({half.offset for half in written.halves}) == 100
    assert writer.commit("0", written) == 100
    assert bodies(server, "tx-window") == Counter(range(100))
    assert undecided(server) <= before + 2  # those without an answer: check-backs roll them back


@pytest.mark.spec("SNK-11")
def test_half_message_carries_fencing_key() -> None:
    prepared = sink.Encoder(
        SinkOptions(topic="T", delivery="transactional"), lambda _count: ("ID", 0), "q/1/0", lambda t, k: SendTarget(t)
    )
    request = [r for r in [*prepared.add({"body": [b"x"]}, 1), *prepared.remaining()] if isinstance(r, EncodedRequest)]
    assert len(request) == 1 and not request[0].prepared.batch
    text = transactional.fence_text(Fence("q", "1", 2, 3, "token"), "G", 300)
    made = transactional.as_half(request[0], text).prepared
    properties = decode_properties(made.properties.encode())
    assert (
        properties["SPARK_TX"] == "q/1/2/3/token" and properties["PGROUP"] == "G" and properties["TRAN_MSG"] == "true"
    )
    assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "300" and made.sys_flag & 0xC == 4
    assert transactional.group_of(None, "abc") == "SPARK_abc" and transactional.group_of("mine", "abc") == "mine"


@pytest.mark.parametrize("failing", ["decide", "claim", "acknowledge", "finish"])
def test_abort_after_failed_commit_keeps_decided_halves(
    server: SyncEmbeddedBroker, tmp_path: Path, failing: str
) -> None:
    """Spark aborts a batch with all its commit messages after an exception in commit, and runs it again after a restart."""
    writer = Writer(server, f"tx-failed-{failing}", tmp_path / "log")

    def fail(*_: Any) -> Any:
        raise OSError(28, "no space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecisionLog, "_create" if failing == "decide" else failing, fail)
        first = writer.task("0", range(10))
        with pytest.raises(OSError, match="no space"):
            writer.commit("0", first)
    is_decided = failing != "decide"
    assert (writer.log.read("0") is not None) is is_decided
    for _ in range(2):
        writer.abort("0", first)
        if not is_decided:  # a commit that was slow, in the process of a driver that was killed
            with pytest.raises(
                StoreError, match="batch 0 was aborted before its commit: its half messages are rolled back"
            ):
                writer.commit("0", first)
    straggler = writer.task("0", range(5))
    second = writer.task("0", range(10))
    writer.commit("0", second)
    writer.abort("0", first, second)
    writer.commit("0", writer.task("0", range(10)))
    assert bodies(server, f"tx-failed-{failing}") == Counter(range(10))
    decided = writer.log.read("0")
    assert decided is not None and decided.tokens == {(first if is_decided else second).fence.token}
    assert writer.log.verdict(straggler.fence, straggler.halves[0].uniq) is ROLLBACK


def test_aborted_batch_write_cannot_be_committed(server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    """Spark does not run a batch write again, so an abort ends it: also for tasks that have not reported yet."""
    writer = Writer(server, "tx-run", tmp_path / "log")
    messages: list[Any] = []
    for failed in (False, True):
        made = sink.BatchWriter(writer.options)
        with pytest.MonkeyPatch.context() as patch:  # a task within foreachBatch: the query's batch is not the write's
            patch.setattr(sink, "task_name", lambda: (0, 0, "q/5/0"))
            rows = pa.RecordBatch.from_pydict({"body": [b"1", b"2"]})
            messages = [made.write(iter([rows]))]
        if failed:
            made.abort([None])
            with pytest.raises(StoreError, match="was aborted before its commit"):
                made.commit(messages)
        else:
            made.commit(messages)
        made.abort(messages)
        fence = messages[0].written.fence
        assert fence.query == "-" and fence.batch.startswith("run-")
        assert writer.log.verdict(fence, messages[0].written.halves[0].uniq) is ROLLBACK
        assert bodies(server, "tx-run") == Counter([1, 2])


def test_decision_log_of_another_query_is_rejected(tmp_path: Path) -> None:
    """Of a new query with an old log every batch would count as decided, and its rows would be rolled back."""
    log = DecisionLog(str(tmp_path / "log"))
    log.decide(decision("4", "t"))
    with pytest.raises(
        StoreError, match=r"belongs to query q, this is query other: with a new checkpoint use a new folder"
    ):
        log.decide(replace(decision("4", "t2"), query="other"))
    with pytest.raises(StoreError, match="decided batch 4 and has no decision for batch 3: the checkpoint is older"):
        log.decide(decision("3", "t3"))
    assert log.decide(decision("4", "t4")).tokens == {"t"} and log.decide(decision("5", "t5")).tokens == {"t5"}


def test_commit_names_brokers_that_do_not_commit(
    server: SyncEmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halves of an unreachable broker are not claimed, so that the next run of the batch sends their ends."""
    monkeypatch.setattr(transactional, "REACH_SECONDS", 0.0)
    writer = Writer(server, "tx-away", tmp_path / "log")
    written = writer.task("0", range(4))
    away = [item._replace(broker="broker-x", uniq=f"AWAY{n}") for n, item in enumerate(written.halves[:2])]
    foreign = written.halves[0]._replace(uniq="FOREIGN", offset_id=written.halves[1].offset_id)
    batch = transactional.Halves(written.fence, (*away, foreign, *written.halves))
    with pytest.raises(StoreError) as caught:
        writer.commit("0", batch)
    for words in ("batch 0 is decided, but 3 of its 7 messages are not committed", "broker broker-x is unreachable",
                  "broker broker-a rejected 1: code 1 ", "saturnmq.spark.transactional.answering"):  # fmt: skip
        assert words in str(caught.value)
    assert bodies(server, "tx-away") == Counter(range(4))
    claimed, done = writer.log.noted("0")
    assert set(claimed) == {half.uniq for half in (foreign, *written.halves)} and len(done) == 4
    assert [half.uniq for _, half in writer.log.open_ends()] == ["AWAY0", "AWAY1", "FOREIGN"]


@pytest.mark.spark
def test_spark_aborts_after_failed_commits_and_each_row_is_there_once(
    spark: Any, server: SyncEmbeddedBroker, send: Any, tmp_path: Path
) -> None:
    send("tx-abort-from", 10)
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("tx-abort", queues=2)
    options = {"nameServer": server.name_servers, "topic": "tx-abort", "delivery": "transactional"}
    decisions = tmp_path / "decisions"
    (decisions / "0.journal").mkdir(parents=True)  # the claim of the ends fails, after the decision

    def run() -> Any:
        rows = spark.readStream.format("rocketmq").options(
            nameServer=server.name_servers, topic="tx-abort-from", startingOffsets="earliest").load()  # fmt: skip
        rows = rows.select(f.get_json_object(f.col("body").cast("string"), "$.n").alias("body"))
        query = rows.writeStream.format("rocketmq").options(
            **options, checkpointLocation=str(tmp_path / "c"), decisionLog=str(decisions)
        ).trigger(availableNow=True).start()  # fmt: skip
        with suppress(StreamingQueryException):
            assert query.awaitTermination(300)
        return query.exception()

    assert "IsADirectoryError" in str(run())
    log = DecisionLog(str(decisions))
    decided = log.read("0")
    assert decided is not None and bodies(server, "tx-abort") == Counter()
    (decisions / "0.journal").rmdir()
    assert run() is None and bodies(server, "tx-abort") == Counter(range(10))
    assert log.read("0") == decided and log.is_finished("0")

    class Source(RocketMQDataSource):
        """Batch writes whose commit fails, before or after it has committed."""

        is_late = True

        @classmethod
        def name(cls) -> str:
            return "late" if cls.is_late else "early"

        def writer(self, schema: StructType, overwrite: bool) -> sink.BatchWriter:
            base: Any = super().writer(schema, overwrite)
            is_late = self.is_late

            class Failing(sink.BatchWriter):
                def commit(self, messages: Any) -> None:
                    if is_late:
                        super().commit(messages)
                    raise ValueError("failed in commit")

            base.__class__ = Failing
            return base  # type: ignore[no-any-return]

    class Early(Source):
        is_late = False

    for kind in (Source, Early):
        spark.dataSource.register(kind)
        with pytest.raises(Exception, match="failed in commit"):
            spark.range(10, 13).selectExpr("cast(id AS string) AS body").write.format(kind.name()).options(
                **options, decisionLog=str(tmp_path / "runs")).mode("append").save()  # fmt: skip
        assert bodies(server, "tx-abort") == Counter(range(13))
    runs = DecisionLog(str(tmp_path / "runs"))
    assert sorted(len(d.pending) for d in map(runs.read, runs.batches()) if d) == [0, 3]


@pytest.mark.spark
@pytest.mark.spec("SNK-10", "SNK-12", "SNK-13")
def test_stream_sink_with_transactional_delivery(
    spark: Any, server: SyncEmbeddedBroker, send: Any, tmp_path: Path
) -> None:
    send("tx-from", 60)
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("tx-to", queues=2)
    source = spark.readStream.format("rocketmq").options(
        nameServer=server.name_servers, topic="tx-from", startingOffsets="earliest", maxOffsetsPerTrigger="40").load()  # fmt: skip
    numbers = source.select(f.get_json_object(f.col("body").cast("string"), "$.n").alias("body"))
    query = numbers.writeStream.format("rocketmq").options(
        nameServer=server.name_servers, topic="tx-to", delivery="transactional", checkpointLocation=str(tmp_path / "c")
    ).trigger(availableNow=True).start()  # fmt: skip
    assert query.awaitTermination(300)
    assert bodies(server, "tx-to") == Counter(range(60))
    log = DecisionLog(str(tmp_path / "c" / "_saturnmq_tx"))
    found = [log.read(str(n)) for n in range(2)]
    assert [d.query for d in found if d] == [str(query.id)] * 2 and log.open_ends() == []
    assert ConnectionOptions(server.name_servers).name_server
