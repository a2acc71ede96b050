"""An export that finds nothing new ends without a Spark session; any other needs one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import planning
from saturnmq.spark.connect import ConnectionOptions, linked
from saturnmq.spark.pipelines import export, main, running
from saturnmq.spark.ranges import Key, Preceding, to_offset
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

GROUP = "caught-up"


class SessionAsked(Exception):
    """Raised when a pipeline starts a session."""


def checkpoint(
    conf: export.ExportConf, ends: dict[int, int], *, group: str | None = None, expression: str = "", batch: int = 0
) -> None:
    """Write what Spark leaves after one committed micro-batch that ended at these queue offsets of the topic."""
    offset = to_offset({(conf.topics, "broker-a", queue): end for queue, end in ends.items()}, group, None, expression)
    folder = Path(conf.checkpoint)
    for name, last in (("offsets", offset), ("commits", {"nextBatchWatermarkMs": 0})):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / str(batch)).write_text("v1\n{}\n" + json.dumps(last))
    (folder / "metadata").write_text(json.dumps({"id": "the-query"}))


@pytest.fixture
def conf(
    server: SyncEmbeddedBroker, send: Callable[..., None], request: pytest.FixtureRequest, tmp_path: Path
) -> export.ExportConf:
    """An export of its own topic with two queues and ten messages, all of them exported."""
    topic = f"t-{abs(hash(request.node.name))}"
    with Client(name_servers=server.name_servers) as client:
        client.create_topic(topic, queues=2)
    send(topic, 10)
    made = export.ExportConf(server.name_servers, str(tmp_path), topics=topic)
    checkpoint(made, ends_of(made))
    log = Path(made.messages) / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "0").write_text("v1\n")
    return made


def ends_of(conf: export.ExportConf) -> dict[int, int]:
    with Client(name_servers=conf.name_servers) as client:
        puller = client.puller()
        return {queue.queue_id: puller.max_offset(queue) for queue in puller.queues(conf.topics)}


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_given: Any, **_settings: Any) -> None:
        raise SessionAsked

    monkeypatch.setattr(running, "session", session)


@pytest.mark.spec("PIP-04")
def test_export_without_new_messages_starts_no_session(
    conf: export.ExportConf, no_session: None, capsys: pytest.CaptureFixture[str], send: Callable[..., None]
) -> None:
    arguments = ["export", "--name-servers", conf.name_servers, "--topic", conf.topics, "--lake", conf.lake, "--quiet"]
    assert main(arguments) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["rows_in"], row["rows_out"], row["lag"], row["table"]) == (0, 0, 0, conf.messages)
    offsets = parquet.read_table(conf.table("_offsets")).to_pylist()
    assert {(r["query"], r["batch"], r["broker_name"], r["queue_id"], r["to_offset"]) for r in offsets} == {
        ("the-query", 0, "broker-a", queue, end) for queue, end in ends_of(conf).items() if end
    }
    send(conf.topics, 1)
    with pytest.raises(SessionAsked):
        main(arguments)


@pytest.mark.spec("PIP-04")
def test_export_starts_session_unless_checkpoint_is_at_all_ends(conf: export.ExportConf) -> None:
    ends = ends_of(conf)
    assert export.caught_up(conf) is not None
    assert export.caught_up(replace(conf, interval_ms=10_000)) is None
    assert export.caught_up(replace(conf, name_servers="127.0.0.1:1")) is None, (
        "a broker that is away is the run's affair"
    )
    assert export.caught_up(replace(conf, expression="a")) is None, "another filter than the checkpoint's"
    assert export.caught_up(replace(conf, group=GROUP)) is None, "another group than the checkpoint's"
    assert export.caught_up(replace(conf, lake="s3://bucket/lake")) is None
    with pytest.raises(ConfigError, match=r"with another checkpoint than .*/none"):
        export.caught_up(replace(conf, checkpoint_path=f"{conf.lake}/none"))
    for other in ({0: ends[0]}, ends | {2: 0}, ends | {0: ends[0] + 1}, ends | {0: ends[0] - 1}):
        checkpoint(conf, other)
        assert export.caught_up(conf) is None, other
    checkpoint(conf, ends)
    (Path(conf.checkpoint) / "offsets" / "1").write_text((Path(conf.checkpoint) / "offsets" / "0").read_text())
    assert export.caught_up(conf) is None, "a micro-batch that is planned and not committed"


def test_export_of_topic_created_again_starts_session(conf: export.ExportConf) -> None:
    """It ends where the old one ended; only the records before the offsets differ."""
    keys = {(conf.topics, "broker-a", queue): end for queue, end in ends_of(conf).items()}
    with linked(ConnectionOptions(conf.name_servers)) as link:

        async def records() -> dict[Key, Preceding]:
            await link.puller.queues(conf.topics)  # its route
            return await planning.records_at(link, {key: end - 1 for key, end in keys.items() if end})

        preceding = link.run(records())
    path = Path(conf.checkpoint) / "offsets" / "0"
    begins = dict.fromkeys(keys, 0)
    for shift_ms in (0, 1):
        moved = {key: record._replace(stored_ms=record.stored_ms - shift_ms) for key, record in preceding.items()}
        path.write_text("v1\n{}\n" + json.dumps(to_offset(keys, None, begins, "", moved)))
        assert (export.caught_up(conf) is None) is bool(shift_ms)
    rows = export.batches(Path(conf.checkpoint))
    assert preceding and [row[5:] for row in rows] == [(0, end, end) for end in keys.values() if end], "its first batch"


@pytest.mark.spec("STR-12")
def test_export_without_new_messages_commits_group_offsets(conf: export.ExportConf) -> None:
    """The previous run may have been killed between its checkpoint and the group's offsets."""
    ends = ends_of(conf)
    checkpoint(conf, ends, group=GROUP)
    assert export.caught_up(replace(conf, group=GROUP)) is not None
    with Client(name_servers=conf.name_servers) as client:
        puller = client.puller()
        stored = {q.queue_id: puller.committed(GROUP, q) for q in puller.queues(conf.topics)}
    assert stored == ends


@pytest.mark.spec("PIP-08")
def test_export_without_new_messages_checks_table_and_options(conf: export.ExportConf) -> None:
    with pytest.raises(ConfigError, match="option maxBytesPerTrigger='much'"):
        export.caught_up(replace(conf, max_bytes="much"))
    log = Path(conf.messages) / "_spark_metadata"
    (log / "1").write_text("v1\n")
    with pytest.raises(ConfigError, match="written with another checkpoint"):
        export.caught_up(conf)


class Query:
    """A query that commits micro-batches of ten messages, forty per poll; its checkpoint keeps the last 100."""

    recentProgress = ()
    lastProgress = None

    def __init__(self, conf: export.ExportConf, first: int, end: int) -> None:
        self.conf, self.next, self.end = conf, first, end

    def awaitTermination(self, _seconds: int) -> bool:
        for number in range(self.next, min(self.next + 40, self.end)):
            checkpoint(self.conf, {0: 10 * (number + 1)}, batch=number)
            for name in ("offsets", "commits"):
                (Path(self.conf.checkpoint) / name / str(number - 100)).unlink(missing_ok=True)
        self.next += 40
        return self.next >= self.end


@pytest.mark.spec("PIP-08")
def test_offsets_table_keeps_batches_that_spark_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = export.ExportConf("h:1", str(tmp_path), topics="T")
    for first, end in ((0, 250), (250, 330)):  # one run with more batches than a checkpoint keeps, then another run
        query = Query(conf, first, end)
        monkeypatch.setattr(export, "build", lambda _spark, _conf, made=query: made)
        export.run(None, conf, lambda _words: None)  # type: ignore[arg-type]
        assert min(int(p.name) for p in (Path(conf.checkpoint) / "offsets").iterdir()) == end - 100
        rows = parquet.read_table(conf.table("_offsets")).to_pylist()
        assert [r["batch"] for r in rows] == list(range(end))
        assert [(r["from_offset"], r["to_offset"], r["rows"]) for r in rows[1:]] == [
            (10 * n, 10 * n + 10, 10) for n in range(1, end)
        ]
    (Path(conf.checkpoint) / "metadata").write_text(json.dumps({"id": "another-query"}))
    export.note_offsets(conf)
    rows = parquet.read_table(conf.table("_offsets")).to_pylist()
    assert {r["query"] for r in rows} == {"another-query"} and len(rows) == 100, "rows of another checkpoint go"
