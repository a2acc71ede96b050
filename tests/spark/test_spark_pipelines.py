"""The pipelines on synthetic input with known results."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

from saturnmq import Outgoing
from saturnmq.client.trace.records import DeliveryOutcome, EndTransaction, MessageType, Pub, SubAfter, SubBefore
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import ConsumerSendMsgBack
from saturnmq.protocol.ids import parse_offset_message_id
from saturnmq.protocol.message import Host, Message, encode_record
from saturnmq.spark.connect import ConnectionOptions, linked
from saturnmq.spark.fetch import DataLossError
from saturnmq.spark.log_scan import log_files
from saturnmq.spark.pipelines import (
    NAMES,
    archive,
    audit,
    dlq,
    export,
    files,
    lake,
    main,
    pipeline,
    replay,
    running,
    trace,
)
from saturnmq.spark.ranges import to_offset
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def quietly(_words: str) -> None:
    """Progress callback that does nothing."""


def message(topic: str, offset: int, uniq: str, *, queue: int = 0, seconds: float | None = None) -> tuple[Any, ...]:
    """Return a row of table messages."""
    at = NOON + timedelta(seconds=offset if seconds is None else seconds)
    return (topic, "broker-a", queue, offset, at, at, "t", "k", uniq, 0, 0, "1.2.3.4:5", "", uniq.encode(), f"OFF{offset}",
            at.date(), at.hour)  # fmt: skip


@pytest.mark.spec("PIP-01", "PIP-02", "STR-17", "PIP-05")
def test_pipeline_help_shows_inputs_outputs_and_guarantee(capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        found = pipeline(name)
        assert found.name == name and found.inputs and found.outputs and callable(found.build)
        words = running.parser_of(found).format_help()
        assert found.guarantee in words and all(table in words for table in found.outputs), name
    words = running.parser_of(pipeline("export")).format_help()
    for option in ("--nameserver", "--topic", "--lake", "--checkpoint", "--trigger", "--max-offsets", "--max-bytes", "--group",
                   "--master", "--conf", "--json"):  # fmt: skip
        assert option in words, option
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in NAMES)
    with pytest.raises(ConfigError, match="unknown pipeline 'exprot'; there is: export, replay"):
        main(["exprot"])
    assert main([]) == 2
    for wrong in ("often", "continuous", "realtime", "0s", "30", "999ms"):
        text = (
            rf"--trigger={wrong}: must be once \(availableNow\), or a time of at least 1s, such as 30s or 5min "
            r"\(processingTime\)"
        )
        with pytest.raises(ConfigError, match=text):
            running.interval_ms_of(argparse.Namespace(trigger=wrong, follow=False))
    for text, interval_ms in (("5m", 300_000), ("5min", 300_000), ("1d", 86_400_000), ("1.5s", 1500), ("once", None)):
        assert running.interval_ms_of(argparse.Namespace(trigger=text, follow=False)) == interval_ms


@pytest.mark.spec("PIP-05", "PIP-06")
def test_pipeline_result_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    running.say("export", running.PipelineOutcome(5, 4, 1, 0, "five rows"), 1.23, as_json=False)
    said = capsys.readouterr().out.splitlines()
    row = json.loads(said[-1])
    assert said[0] == "five rows" and set(row) == {"pipeline", "run", "rows_in", "rows_out", "bad", "lag", "seconds"}
    assert (row["pipeline"], row["rows_in"], row["rows_out"], row["bad"], row["lag"], row["seconds"]) == (
        "export",
        5,
        4,
        1,
        0,
        1.2,
    )
    wrapped = (
        "[STREAM_FAILED] Query terminated with exception: Job aborted\nTraceback (most recent call last):\n"
        "saturnmq.spark.fetch.DataLossError: data loss: topic T, broker b, queue 0, offsets 0..5: gone\n"
    )
    assert running.cause_of(RuntimeError(wrapped)) == (
        "DataLossError",
        "data loss: topic T, broker b, queue 0, offsets 0..5: gone",
    )
    assert running.cause_of(RuntimeError("no cause\nin here")) == ("RuntimeError", "no cause")


@pytest.mark.spec("PIP-05")
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DataLossError("offsets 0..5: gone"), 3, "offsets 0..5: gone"),
        (
            PySparkException("Job aborted\nsaturnmq.spark.fetch.DataLossError: offsets 0..5: gone\n\tat Java"),
            3,
            "offsets 0..5: gone",
        ),
        (
            PySparkException(
                "[PYTHON] Failed when latestOffset: saturnmq.spark.fetch.DataLossError: 0..5: gone\n=== Query"
            ),
            3,
            "0..5: gone",
        ),
        (PySparkException("Job aborted\nsaturnmq.protocol.errors.StoreError: no progress\n"), 1, "no progress"),
        (PySparkException("[NO_DISK] no space\nmore of it"), 1, "[NO_DISK] no space"),
    ],
)
def test_failed_run_prints_cause_in_one_line(
    error: Exception,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def run(*_given: Any) -> running.PipelineOutcome:
        raise error

    monkeypatch.setattr(running, "session", lambda *_given, **_settings: SimpleNamespace(stop=lambda: None))
    made = replace(pipeline("stats"), run=run)
    assert running.run(made, ["--name-servers", "h:1", "--lake", str(tmp_path), "--quiet"]) == code
    captured = capsys.readouterr()
    advice = "; to go on behind the loss run the same command with --fail-on-data-loss false, which records it in "
    said += f"{advice}{tmp_path}/_data_loss" if code == running.EXIT_DATA_LOSS else ""
    assert captured.err == f"saturnmq spark stats: {said}\n" and captured.out == ""


@pytest.mark.spec("PIP-05", "STR-11")
def test_pipeline_silences_spark_log_unless_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    levels: list[str] = []

    def session(*_given: Any, **settings: str) -> Any:
        assert settings["name_server"] == "h:1", "so that the session is tracked"
        levels.append(settings["spark.log.level"])
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(running, "session", session)
    made = replace(pipeline("stats"), run=lambda *_given: running.PipelineOutcome())
    for more in ([], ["--conf", "spark.log.level=INFO"]):
        running.run(made, ["--name-servers", "h:1", "--lake", str(tmp_path), "--quiet", *more])
    assert levels == ["FATAL", "INFO"]


@pytest.mark.spec("PIP-05")
@pytest.mark.parametrize("before", ["planning\n", "[PYTHON_ERROR] Failed when perform latestOffset: "])
def test_config_error_from_spark_is_usage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str) -> None:
    def run(*_given: Any) -> running.PipelineOutcome:
        raise PySparkException(f"{before}saturnmq.protocol.errors.ConfigError: unknown option\n")

    monkeypatch.setattr(running, "session", lambda *_given, **_settings: SimpleNamespace(stop=lambda: None))
    with pytest.raises(ConfigError, match=r"^unknown option$"):  # exit code 2
        running.run(replace(pipeline("stats"), run=run), ["--name-servers", "h:1", "--lake", str(tmp_path), "--quiet"])


@pytest.mark.spec("PIP-05")
def test_too_many_bad_rows_fail_the_run_with_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(
        running, "session", lambda *_given, **_settings: SimpleNamespace(stop=lambda: stopped.append(True))
    )
    found = 3

    def run(_spark: Any, conf: running.Conf, _step: Any) -> running.PipelineOutcome:
        conf.check_bad(found, "messages_bad")
        return running.PipelineOutcome(bad_rows=found)

    made = replace(pipeline("export"), run=run)
    argv = ["--name-servers", "h:1", "--topic", "T", "--lake", str(tmp_path), "--quiet"]
    assert running.run(made, [*argv, "--max-bad", "2"]) == running.EXIT_FAILED == 1
    assert capsys.readouterr().err == (
        f"saturnmq spark export: 3 rows are bad, option --max-bad=2 allows fewer: see {tmp_path}/messages_bad\n"
    )
    assert running.run(made, [*argv, "--max-bad", "3"]) == running.run(made, argv) == 0 and len(stopped) == 3


@pytest.mark.spark
@pytest.mark.spec("PIP-04", "PIP-12")
def test_audit_reports_exact_lost_duplicate_and_missing(spark: Any, tmp_path: Path) -> None:
    """100 produced: 3 lost, 2 stored twice, 1 three times, gaps of 1 and 4 offsets, 1 out of order, 90 consumed."""
    kept = [n for n in range(100) if n not in (10, 50, 99)]
    order = [*kept, 1, 2, 3, 3]
    rows, offset = [], 0
    for at, n in enumerate(order):
        offset += {20: 2, 40: 5}.get(at, 1)  # gaps of 1 and 4
        late = 0.5 if at != 60 else -10_000.0
        rows.append(message("orders", offset, f"ID{n}", seconds=offset + late))
    messages = spark.createDataFrame(rows, lake.MESSAGES)
    # two whole runs: the same tables, and a report that needs no network
    log = tmp_path / "sent.jsonl"
    sent_ms = int(NOON.timestamp() * 1000)
    log.write_text(
        "".join(json.dumps({"msg_id": f"ID{n}", "topic": "orders", "ts": sent_ms}) + "\n" for n in range(100))
    )
    done = [("SubAfter", NOON, *[None] * 3, f"ID{n}", *[None] * 9, True, *[None] * 5) for n in range(90)]
    lake.replace_table(spark.createDataFrame(done, trace.EVENTS).coalesce(1), str(tmp_path / "trace_events"))
    lake.replace_table(messages, str(tmp_path / "messages"))
    conf = audit.AuditConf(lake=str(tmp_path), send_log=str(log))
    first = audit.run(spark, conf, quietly)
    assert (first.more["lost"], first.more["dup"], first.more["offset_gaps"]) == (3, 3, 2)
    assert audit.run(spark, conf, quietly) == first and not list(tmp_path.glob("_*"))
    assert sorted(r["uniq_key"] for r in lake.head(spark, conf.table("lost"), 10)) == ["ID10", "ID50", "ID99"]
    doubled = {(r["uniq_key"], r["n"]) for r in lake.head(spark, conf.table("dup"), 10)}
    assert doubled == {("ID1", 2), ("ID2", 2), ("ID3", 3)}
    gaps = sorted((r["from_offset"], r["to_offset"]) for r in lake.head(spark, conf.table("offset_gaps"), 10))
    assert [end - begin for begin, end in gaps] == [1, 4]
    assert lake.head(spark, conf.table("audit_daily"), 10) == [
        {"topic": "orders", "date": NOON.date(), "produced": 100, "stored": 101, "consumed": 90,
         "lost": 3, "dup": 4, "out_of_order": 1}
    ]  # fmt: skip
    page = (tmp_path / "reports" / "audit.html").read_text()
    assert "plotly" in page and "ID50" in page and '<script src="http' not in page and "<link" not in page


def make_store(folder: Path) -> int:
    """Write two commit log files: 30 records, one with a changed body, a hole of one record, a torn end.

    Return the number of records.
    """
    at, log = 0, folder / "commitlog"
    log.mkdir(parents=True)
    for number, count in enumerate((20, 10)):
        base, data = number * 4096, b""
        for n in range(count):
            body = b"body %d/%d" % (number, n)
            made = encode_record(Message(topic="0123", body=body, properties_raw=b"KEYS\x01k", queue_offset=at,
                                         store_timestamp_ms=1000 + at, physical_offset=base + len(data),
                                         store_host=Host("1.2.3.4", 5)))  # fmt: skip
            if (number, n) == (0, 5):
                made = made.replace(body, body[::-1])
            if (number, n) == (0, 12):
                made = bytes([255]) * len(made)
            data += made
            at += 1
        filler = (4096 - len(data)).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        data += filler if number == 0 else made[: len(made) // 2]
        (log / f"{base:020d}").write_bytes(data.ljust(4096, b"\0"))
    return at


@pytest.mark.spark
@pytest.mark.spec("PIP-14", "FMD-06")
def test_files_reports_damage_and_keeps_valid_records(spark: Any, tmp_path: Path) -> None:
    records = make_store(tmp_path / "store")
    before = {p: p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file()}
    first, second = [files.check_file(f) for f in log_files(str(tmp_path / "store"))]
    assert first[3:] == (19, 1, 1, False) and second[3:] == (10, 0, 0, True)
    assert first[1] == 0 and second[1] == 4096 and second[2] < 8192
    conf = files.FilesConf(
        lake=str(tmp_path / "lake"), path=str(tmp_path / "store"), broker_name="b", partition_by=("topic",)
    )
    done = files.run(spark, conf, quietly)
    assert (done.rows_in, done.rows_out, done.bad_rows) == (records - 1, records - 2, 2)
    assert files.run(spark, conf, quietly) == done, "it writes the same tables again"
    archived = replay.build(spark, replay.ReplayConf(lake=conf.lake, path=conf.path, topic="0123", keys=("k",)))
    resent = [(r["queue_offset"], bytes(r["body"]), r["offset_msg_id"]) for r in archived.collect()]
    assert len({message_id for *_, message_id in resent}) == records - 2, "replay --path"
    archive.put(conf.path, f"file://{tmp_path}/archive", "zstd", quietly)
    again = replay.ReplayConf(lake=conf.lake, path=f"file://{tmp_path}/archive", topic="0123",
                              since="1970-01-01T00:00:01.003Z", until="1970-01-01T00:00:01.008Z")  # fmt: skip
    assert [r["queue_offset"] for r in replay.build(spark, again).collect()] == [3, 4, 6, 7]
    rows = lake.table(spark, conf.table("messages"), lake.MESSAGES).collect()
    assert sorted(r["queue_offset"] for r in rows) == [n for n in range(30) if n not in (5, 12)]
    assert {(r["queue_offset"], bytes(r["body"])) for r in rows} == {(offset, body) for offset, body, _ in resent}
    assert {(r["broker_name"], r["topic"], r["keys"], r["hour"]) for r in rows} == {
        ("b", "0123", "k", 0)
    }  # a topic is a string, also as a folder name
    checked = lake.table(spark, conf.table("commitlog_check"), files.CHECK).orderBy("from_byte").collect()
    assert [tuple(row) for row in checked] == [tuple(first), tuple(second)]
    assert {p: p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file()} == before


def fill(server: SyncEmbeddedBroker, topic: str, count: int, queues: int = 2) -> None:
    """Send messages with tags, keys and a property; the key is one of 5 order numbers."""
    with Client(name_servers=server.name_servers) as client, client.producer("pipeline-tests") as out:
        client.create_topic(topic, queues=queues)
        places = sorted(out.queues(topic), key=lambda q: q.queue_id)
        for queue in places:
            batch = [
                Outgoing(value=b"%d" % n, tag="ab"[n % 2], keys=[f"order{n % 5}"], properties={"region": f"r{n % 3}"})
                for n in range(queue.queue_id, count, queues)
            ]
            out.send_many(topic, batch, queue=queue)


def rows_of(server: SyncEmbeddedBroker, topic: str, columns: str) -> list[dict[str, Any]]:
    """Read a topic through the source, in this process."""
    source = RocketMQDataSource({"nameServer": server.name_servers, "topic": topic, "columns": columns})
    made = source.reader(source.schema())
    return [row for p in made.partitions() for batch in made.read(p) for row in batch.to_pylist()]


@pytest.mark.spark
@pytest.mark.spec("PIP-04", "PIP-09", "SNK-06")
def test_replay_sends_each_message_once_despite_kills(spark: Any, server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    fill(server, "origin", 60)
    source = spark.read.format("rocketmq").options(
        nameServer=server.name_servers, topic="origin", columns=lake.SOURCE_COLUMNS
    )
    lake.replace_table(lake.messages_of(source.load()), str(tmp_path / "messages"))
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("copy", queues=2)
    conf = replay.ReplayConf(server.name_servers, str(tmp_path), dst="copy", tags=("a",), chunks=1)
    assert replay.run(spark, conf, quietly).rows_out == 30
    columns = "queueOffset,queueId,body,tags,keys,propertiesMap"
    copies = rows_of(server, "copy", columns)
    old = {r["body"]: r for r in rows_of(server, "origin", columns + ",offsetMsgId")}
    assert sorted(int(r["body"]) for r in copies) == list(range(0, 60, 2))
    for copy in copies:
        first, kept = old[copy["body"]], dict(copy["propertiesMap"])
        own = dict(first["propertiesMap"])
        assert (copy["tags"], copy["keys"]) == (first["tags"], first["keys"])
        assert kept["region"] == own["region"] and kept["REPLAY_OF"] == first["offsetMsgId"]
        assert kept["UNIQ_KEY"] != own["UNIQ_KEY"]
    assert replay.run(spark, conf, quietly).rows_out == 0
    # killed after sending and before recording it
    done = next((tmp_path / "replay_log").glob("*-done"))
    for part in done.iterdir():
        part.unlink()
    done.rmdir()
    assert replay.run(spark, conf, quietly).rows_out == 0
    assert len(rows_of(server, "copy", "queueId")) == 30
    # killed in the middle of a chunk: what arrived is not sent again
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("half", queues=2)
    torn = replay.ReplayConf(server.name_servers, str(tmp_path), dst="half", tags=("a", "b"), chunks=1)
    half = replay.build(spark, torn).where("queue_id = 0")
    replay.send(spark, server.name_servers, replay.outgoing(half).withColumn("topic", functions.lit("half")))
    replay.bounds(spark, torn, replay.build(spark, torn))  # a run writes the limits of its chunks before it sends
    replay._note(spark, torn, (torn.run_id, "", "half", 0, 60, "", "", "sending"))
    assert replay.run(spark, torn, quietly).rows_out == 30
    assert sorted(int(r["body"]) for r in rows_of(server, "half", "body")) == list(range(60))


@pytest.mark.spark
@pytest.mark.spec("SNK-06")
def test_replay_keeps_order_per_key_and_applies_every_filter(
    spark: Any, server: SyncEmbeddedBroker, tmp_path: Path
) -> None:
    """Message n was stored n seconds after noon, with sharding key n % 4; the table holds them in another order."""
    rows = []
    for n in sorted(range(60), key=lambda n: n * 37 % 61):
        row = list(message("origin", n, f"U{n}", queue=n % 2))
        row[6], row[7], row[12] = "ab"[n % 3 == 0], f"order{n % 4} other{n}", f"__SHARDINGKEY\x01key{n % 4}"
        rows.append(tuple(row))
    lake.replace_table(spark.createDataFrame(rows, lake.MESSAGES), str(tmp_path / "messages"))
    with Client(name_servers=server.name_servers) as client:
        client.create_topic("narrow", queues=2)
    argv = ["--name-servers", server.name_servers, "--lake", str(tmp_path), "--to", "narrow", "--chunks", "3",
            "--since", "2026-03-01T12:00:10", "--until", "2026-03-01T13:00:50+01:00", "--tag", "a", "--tag", "c",
            "--key", "order1", "--key", "order2", "--key", "other40", "--where", "queue_offset != 22", "--rate", "900"]  # fmt: skip
    conf = replay.conf_of(running.parser_of(pipeline("replay")).parse_args(argv))
    expected = [n for n in range(10, 50) if n % 3 and (n % 4 in (1, 2) or n == 40) and n != 22]
    assert replay.run(spark, conf, quietly).rows_out == len(expected)
    copies = sorted(
        rows_of(server, "narrow", "queueId,queueOffset,uniqKey,body,keys,tags"), key=lambda r: r["queueOffset"]
    )
    sent = [(int(r["body"][1:]), r["queueId"]) for r in copies]
    assert sorted(n for n, _ in sent) == expected, "since is inclusive, until exclusive"
    assert {10, 49} <= set(expected) and {r["tags"] for r in copies} == {"a"}
    for key in range(4):
        of_key = [(n, queue) for n, queue in sent if n % 4 == key]
        assert [n for n, _ in of_key] == [n for n in expected if n % 4 == key], f"order of key{key}"
        assert len({queue for _, queue in of_key}) <= 1, f"key{key} is in one queue"
    log = lake.table(spark, conf.table("replay_log"), replay.LOG).where("state = 'done'").orderBy("chunk").collect()
    assert [row["chunk"] for row in log] == [0, 1, 2] and sum(row["rows"] for row in log) == len(expected)
    assert replay.run(spark, conf, quietly).rows_out == 0


def test_replay_tasks_together_keep_the_rate() -> None:
    for rate, tasks_max in ((1, 200), (3, 2), (500, 200), (199, 200), (1000, 1)):
        tasks, per_second = replay.paced_tasks(rate, tasks_max)
        assert 1 <= tasks <= tasks_max and per_second >= 1 and rate - tasks < tasks * per_second <= rate, rate


def send_back(server: SyncEmbeddedBroker, group: str, receipts: list[Any]) -> None:
    """Send messages back so that they go to the dead-letter topic at once."""

    async def back(link: Any) -> None:
        for receipt in receipts:
            _, physical = parse_offset_message_id(receipt.offset_message_id)
            header = ConsumerSendMsgBack(offset=physical, group=group, delay_level=-1, origin_topic=receipt.queue.topic)
            command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext=header.to_ext())
            answer = await link.core.call_broker(server.broker_address, command, 3000)
            assert answer.code == 0, answer.remark

    with linked(ConnectionOptions(server.name_servers)) as link:
        link.run(back(link))


@pytest.mark.spec("PIP-08")
def test_export_offsets_include_new_queue_of_batch(tmp_path: Path) -> None:
    """The start is unknown only for the first batch of the checkpoint; the third batch has not ended."""
    old, new, aged = ("T", "a", 0), ("T", "b", 0), ("T", "c", 0)
    offsets = [
        to_offset({old: 50}),
        to_offset({old: 50, new: 70, aged: 60}, begins={new: 0, aged: 30}),
        to_offset({old: 55, new: 75, aged: 60}),
    ]
    for name, count in (("offsets", 3), ("commits", 2)):
        (tmp_path / name).mkdir()
        for n in range(count):
            (tmp_path / name / str(n)).write_text("v1\n{}\n" + json.dumps(offsets[n]))
    (tmp_path / "metadata").write_text(json.dumps({"id": "Q"}))
    assert export.batches(tmp_path) == [
        ("Q", 0, *old, None, 50, None), ("Q", 1, *new, 0, 70, 70), ("Q", 1, *aged, 30, 60, 30)]  # fmt: skip


@pytest.mark.spec("PIP-13")
@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (b'{"id": 1, "name": "x", "gone": null, "ok": true}', "{gone: null, id: number, name: text, ok: bool}"),
        (b"order 17 of 2026", "text order # of #"),
        (b"[1]", "list"),
        (b"\xff\xfe", "binary"),
        (b"", "empty"),
        (None, "empty"),
    ],
)
def test_dlq_body_shape(body: bytes | None, shape: str) -> None:
    assert dlq.shape(body) == shape


@pytest.mark.spark
@pytest.mark.spec("PIP-13")
def test_dlq_resends_selected_messages_once(spark: Any, server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    """8 dead letters, 3 selected: the origin topic gains 3 messages, and a second run none."""
    with Client(name_servers=server.name_servers) as client, client.producer("pipeline-tests") as out:
        client.create_topic("paid", queues=1)
        receipts = [
            out.send(
                "paid",
                b'{"id": %d}' % n if n < 5 else b"broken %d" % n,
                tag="x" if n < 5 else "y",
                properties={"why": f"E{n}"},
            )
            for n in range(8)
        ]
    send_back(server, "dead-group", receipts)
    conf = dlq.DlqConf(
        server.name_servers, str(tmp_path), group="dead-group", error_property="why", resend="tags = 'y'"
    )
    first = dlq.run(spark, conf, quietly)
    assert (first.rows_in, first.more["resent"]) == (8, 3)
    kinds = {r["signature"]: (r["topic"], r["n"]) for r in spark.read.parquet(conf.table("dlq_summary")).collect()}
    assert kinds == {"{id: number} | E#": ("paid", 5), "text broken # | E#": ("paid", 3)}
    dead = spark.read.parquet(conf.table("dlq_messages")).collect()
    assert {r["origin_message_id"] for r in dead} == {r.offset_message_id for r in receipts}
    assert dlq.run(spark, conf, quietly).more["resent"] == 0
    for path in Path(conf.table("dlq_resent")).rglob("*.parquet"):  # killed before it was recorded
        path.unlink()
    assert dlq.run(spark, conf, quietly).more["resent"] == 0
    bodies = [r["body"] for r in rows_of(server, "paid", "body")]
    assert len(bodies) == 11 and sorted(bodies)[:6] == sorted([b"broken 5", b"broken 6", b"broken 7"] * 2)


@pytest.mark.spark
@pytest.mark.spec("PIP-05", "PIP-08")
def test_export_decodes_json_and_separates_bad_bodies(spark: Any, server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    with Client(name_servers=server.name_servers) as client, client.producer("pipeline-tests") as out:
        client.create_topic("decoded", queues=1)
        out.send_many("decoded", [Outgoing(value=b) for b in (b'{"id": 1, "name": "x"}', b"no json", b'{"id": 2}')])
    conf = export.ExportConf(server.name_servers, str(tmp_path), topics="decoded", schema="id BIGINT, name STRING")
    done = export.run(spark, conf, quietly)
    assert (done.rows_in, done.rows_out, done.bad_rows, done.lag) == (3, 2, 1, 0)
    values = spark.read.parquet(conf.messages).select("value.id", "value.name").orderBy("id").collect()
    assert [tuple(r) for r in values] == [(1, "x"), (2, None)]
    bad = spark.read.parquet(conf.table("messages_bad")).collect()
    position = ("topic", "broker_name", "queue_id", "queue_offset")
    assert [(*(r[name] for name in position), r["body"], r["error"]) for r in bad] == [
        ("decoded", "broker-a", 0, 1, b"no json", "no JSON of the schema")
    ]
    offsets = spark.read.parquet(conf.table("_offsets")).collect()
    assert [(r["batch"], r["topic"], r["queue_id"], r["to_offset"]) for r in offsets] == [(0, "decoded", 0, 3)]
    with pytest.raises(running.BadRowsError, match="1 rows are bad"):
        export.run(spark, export.ExportConf(**{**vars(conf), "max_bad": 0}), quietly)


@pytest.mark.spark
@pytest.mark.spec("PIP-05", "PIP-08")
def test_export_decodes_avro_and_separates_bad_bodies(spark: Any, server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    schema = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]},
         {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}
    )  # fmt: skip
    bodies = [
        b"\x02\x02\x02x\x00",
        b"no avro",
        b"\x04\x00\xd0\x0f",
        b"\x04\x00\x00\x00",
    ]  # the last one is longer than its datum
    with Client(name_servers=server.name_servers) as client, client.producer("pipeline-tests") as out:
        client.create_topic("avro", queues=1)
        out.send_many("avro", [Outgoing(value=body) for body in bodies])
    conf = export.ExportConf(server.name_servers, str(tmp_path), topics="avro", schema=schema, decode="avro")
    done = export.run(spark, conf, quietly)
    assert (done.rows_in, done.rows_out, done.bad_rows) == (4, 2, 2)
    values = (
        spark.read.parquet(conf.messages)
        .select("value.id", "value.name", functions.unix_millis("value.at"))
        .orderBy("id")
    )
    assert [tuple(row) for row in values.collect()] == [(1, "x", 0), (2, None, 1000)]
    bad = spark.read.parquet(conf.table("messages_bad")).orderBy("queue_offset").collect()
    assert [(r["queue_offset"], r["error"]) for r in bad] == [
        (1, "no Avro of the schema"),
        (3, "no Avro of the schema"),
    ]


START_MS = int(NOON.timestamp() * 1000)


def pub(n: int, ids: str, **more: Any) -> str:
    """Return a Pub record of a send at START_MS + 10 n that took 4 ms."""
    fields: dict[str, Any] = {"timestamp_ms": START_MS + 10 * n, "region": None, "group": "p", "topic": "orders", "message_id": ids,
                              "tags": None, "keys": "k", "store_host": "h:1", "body_bytes": 5, "cost_ms": 4,
                              "message_type": MessageType.NORMAL, "offset_message_id": "O", "success": True}  # fmt: skip
    return Pub(**(fields | more)).encode()


def deliver(n: int, id_: str, ms: int, *, success: bool = True, retry: int = 0) -> str:
    """Return the records of a delivery that ends ms after the send."""
    request = f"R{id_}-{retry}"
    outcome = DeliveryOutcome.SUCCESS if success else DeliveryOutcome.FAILED
    done = START_MS + 10 * n + ms
    return (SubBefore(done - 3, None, "c", request, id_, retry, "k").encode()
            + SubAfter(request, id_, 3, success, "k", outcome, done, "c").encode())  # fmt: skip


@pytest.mark.spec("PIP-10")
def test_trace_parses_all_record_versions_and_reports_bad_ones() -> None:
    """Records of every length, text null, a batch, an end of a transaction; a truncated record and one of an unknown type."""
    new = pub(0, "A")
    old = "\x01".join([*new[:-1].split("\x01")[:12], "true"])  # without offsetMsgId
    newest = new[:-1] + "\x011.2.3.4:5"  # with clientHost
    end = EndTransaction(
        START_MS, None, "p", "orders", "T", None, "k", "h", MessageType.COMMIT, "X", "COMMIT_MESSAGE", False
    )
    short = SubAfter("R", "A", 3, True, "k").encode().split("\x01")
    texts = [new, old + "\x02", newest + "\x02", pub(1, "B1,B2"), deliver(0, "A", 9), end.encode(),
             "\x01".join(short[:6]) + "\x02", "\x01".join(short[:7]) + "\x02", "Pub\x011\x02", "What\x011\x02"]  # fmt: skip
    message = {
        "topic": "RMQ_SYS_TRACE_TOPIC",
        "brokerName": "b",
        "queueId": 0,
        "queueOffset": 7,
        "body": "".join(texts).encode(),
    }
    batch = pyarrow.RecordBatch.from_pylist([message])
    rows = [row for made in trace.parsed(iter([batch])) for row in made.to_pylist()]
    good = [row for row in rows if row["_error"] is None]
    assert [r["type"] for r in good] == ["Pub"] * 4 + [
        "SubBefore",
        "SubAfter",
        "EndTransaction",
        "SubAfter",
        "SubAfter",
    ]
    assert good[0]["region"] is None and good[0]["tags"] is None and good[0]["ts"] == NOON and good[0]["cost_ms"] == 4
    assert [r["offset_msg_id"] for r in good[:3]] == ["O", None, "O"] and all(r["success"] for r in good[:3])
    assert good[2]["client_host"] == "1.2.3.4:5" and good[3]["msg_id"] == "B1,B2"
    assert (good[6]["transaction_id"], good[6]["state"], good[7]["ts"], good[7]["group"]) == (
        "X",
        "COMMIT_MESSAGE",
        None,
        None,
    )
    bad = [row for row in rows if row["_error"] is not None]
    assert [(r["_queueOffset"], r["_body"]) for r in bad] == [(7, b"Pub\x011"), (7, b"What\x011")]
    assert "2 fields" in bad[0]["_error"] and "unknown kind of record 'What'" in bad[1]["_error"]


@pytest.mark.spark
@pytest.mark.spec("PIP-10", "PIP-04", "TR-03")
def test_trace_latencies_are_exact_and_include_late_events(
    spark: Any, server: SyncEmbeddedBroker, tmp_path: Path
) -> None:
    """200 sends and one batch of 2, latencies 1..200 ms; 10 are consumed late, in a second run, 5 never; one fails once."""
    texts = [pub(0, "B1,B2") + deliver(0, "B1", 50) + deliver(0, "B2", 50)] + [pub(n, f"M{n}") for n in range(1, 201)]
    texts += [deliver(n, f"M{n}", n) for n in range(1, 186)]
    texts += [deliver(0, "M1", 1, success=False, retry=9), "Pub\x01oops\x02"]
    conf = trace.TraceConf(server.name_servers, str(tmp_path), topic="traces", slow_ms=150, wait_s=0)
    with Client(name_servers=server.name_servers) as client, client.producer("pipeline-tests") as out:
        client.create_topic("traces", queues=1)
        out.send_many("traces", [Outgoing(value="".join(texts[n : n + 40]).encode()) for n in range(0, len(texts), 40)])
        first = trace.run(spark, replace(conf, max_bad=1), quietly)
        assert (first.bad_rows, first.rows_out, first.more["unconsumed"]) == (1, 188, 15)
        out.send("traces", "".join(deliver(n, f"M{n}", n) for n in range(186, 196)).encode())  # late
    second = trace.run(spark, conf, quietly)
    assert (second.rows_in, second.bad_rows, second.rows_out, second.more["unconsumed"]) == (1, 1, 198, 5)
    minutes = lake.head(spark, conf.table("latency_1m"), 10)
    assert [(r["topic"], r["group"], r["n"], r["fail"]) for r in minutes] == [("orders", "c", 198, 1)]
    for share, name in ((0.5, "p50_ms"), (0.95, "p95_ms"), (0.99, "p99_ms")):
        every = sorted([*range(1, 196), 50, 50, 1 - 10])
        exact = every[math.ceil(share * len(every)) - 1]
        assert abs(minutes[0][name] - exact) <= exact / 100, name
    slow = lake.head(spark, conf.table("slow_consumers"), 10)
    assert [(r["group"], r["threshold_ms"]) for r in slow] == [("c", 150.0)]
    assert {r["msg_id"] for r in lake.head(spark, conf.table("unconsumed"), 100)} == {f"M{n}" for n in range(196, 201)}
    one = {r["msg_id"]: r for r in lake.head(spark, conf.table("msg_latency"), 1000)}["M100"]
    assert (one["e2e_ms"], one["stored_at"] - one["produced_at"]) == (100, timedelta(milliseconds=2))
    page = Path(str(second.report)).read_text()
    assert "Latency from send to consumed" in page and "M196" in page and '<script src="http' not in page
