"""The transactional sink: half messages, the decision log, answers to check-backs."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StructField, StructType

from saturnmq.broker import BrokerSettings
from saturnmq.client.receipt import TransactionState
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.protocol.message import decode_properties
from saturnmq.spark import decision_log, sink, transactional
from saturnmq.spark.connect import Connection, linked
from saturnmq.spark.decision_log import QUIET_MS, Decision, DecisionLog, Fence, Half
from saturnmq.spark.encode import Request, Target
from saturnmq.spark.sink_options import SinkOptions, parse_sink_options
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


def half(n: int) -> Half:
    return Half(f"ID{n}", "T", "b", n, f"OFF{n}")


def decision(batch: str, token: str, count: int = 3) -> Decision:
    return Decision("q", batch, frozenset({token}), tuple(half(n) for n in range(count)))


@pytest.mark.spec("SNK-13", "SNK-14")
def test_first_decision_of_batch_wins(tmp_path: Path) -> None:
    log = DecisionLog(str(tmp_path / "log"))
    assert log.read("4") is None and log.last() == -1
    won: list[Decision] = []
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
    log.note("7", "T", [half(0), half(1)])
    log.note("7", "D", [half(0)])
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
    assert [h.uniq for _, h in log.open_ends()] == ["ID1", "ID2"]
    log.decide(decision("run-1", "good"))  # a batch write is not run again, so only the check-back can end it
    written = (tmp_path / "run-1.json").stat().st_mtime_ns // 1_000_000
    for later, answer in ((QUIET_MS - 1, UNKNOWN), (QUIET_MS, COMMIT)):
        now = written + later
        assert log.verdict(ours._replace(batch="run-1"), "ID1") is answer
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
    assert made.decision_log == "/c/_saturnmq_tx" and made.ack == "durable"
    transactional.check_count(5, 5)
    with pytest.raises(StoreError, match="transactionMaxMessages=5 allows fewer: nothing was sent"):
        transactional.check_count(6, 5)


@pytest.fixture(scope="module")
def server() -> Iterator[SyncEmbeddedBroker]:
    """A broker with short check-back timeouts."""
    settings = BrokerSettings(transaction_interval_ms=50, transaction_timeout_ms=100)
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


def bodies(server: SyncEmbeddedBroker, topic: str) -> Counter[int]:
    """Return what a reader sees of the topic now."""
    source = RocketMQDataSource({"nameServer": server.name_servers, "topic": topic, "columns": "body"})
    made = source.reader(source.schema())
    return Counter(int(r["body"]) for p in made.partitions() for b in made.read(p) for r in b.to_pylist())


@pytest.mark.spec("SNK-10", "SNK-11", "SNK-14", "SNK-18", "SRC-22")
def test_replayed_batch_commits_only_decided_halves(server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    writer = Writer(server, "tx-replay", tmp_path / "log")
    first, second = writer.task("0", range(40)), writer.task("0", range(40, 60))
    assert first.fence.token != second.fence.token and len(first.halves) == 40
    assert bodies(server, "tx-replay") == Counter()  # nothing is visible before the commit
    assert writer.commit("0", first, second) == 60
    assert bodies(server, "tx-replay") == Counter(range(60)) and writer.log.is_finished("0")
    # the driver was killed before Spark recorded the batch: it runs again with new halves
    assert writer.commit("0", writer.task("0", range(60))) == 0
    assert bodies(server, "tx-replay") == Counter(range(60))
    # killed after the decision with some ends sent: the others are committed, those sent are left to the check-back
    third = writer.task("1", range(60, 90))
    writer.log.decide(Decision("-", "1", frozenset({third.fence.token}), third.halves))
    writer.log.note("1", "T", third.halves[:10])
    assert writer.commit("1", writer.task("1", range(60, 90))) == 20
    assert bodies(server, "tx-replay") == Counter(range(60)) + Counter(range(70, 90))
    assert not writer.log.is_finished("1") and len(writer.log.open_ends()) == 10
    abandoned = writer.task("2", range(90, 95))
    transactional.abort(writer.options.connection, writer.group, [abandoned])
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
    writer.log.decide(Decision("-", "0", frozenset({good.fence.token}), good.halves))
    with pytest.MonkeyPatch.context() as patch:  # their ends were sent long ago, and lost
        patch.setattr(decision_log, "now_ms", lambda: 0)
        writer.log.note("0", "T", good.halves)
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
        writer.log.note("0", "D", good.halves)  # as the log would show after an acknowledgement
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


@pytest.mark.spec("SNK-11")
def test_half_message_carries_fencing_key() -> None:
    prepared = sink.Encoder(
        SinkOptions(topic="T", delivery="transactional"), lambda: "ID", "q/1/0", lambda t, k: Target(t)
    )
    request = [r for r in [*prepared.add({"body": [b"x"]}, 1), *prepared.rest()] if isinstance(r, Request)]
    assert len(request) == 1 and not request[0].prepared.batch
    made = transactional.fenced(request[0], Fence("q", "1", 2, 3, "token"), "G", 300).prepared
    properties = decode_properties(made.properties.encode())
    assert (
        properties["SPARK_TX"] == "q/1/2/3/token" and properties["PGROUP"] == "G" and properties["TRAN_MSG"] == "true"
    )
    assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "300" and made.sys_flag & 0xC == 4
    assert transactional.group_of(None, "abc") == "SPARK_abc" and transactional.group_of("mine", "abc") == "mine"
    assert replace(request[0]).prepared.properties != made.properties


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
    assert Connection(server.name_servers).name_server
