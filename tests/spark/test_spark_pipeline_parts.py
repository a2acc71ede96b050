"""Parts of the pipelines that need no Spark session: lag of a query, files of a table's log, names for those who know Kafka."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.decode import Selection
from saturnmq.spark.log_scan import log_files
from saturnmq.spark.option_table import SINK_COLUMNS_OF_KAFKA, SOURCE_COLUMNS_OF_KAFKA
from saturnmq.spark.pipelines import NAMES, pipeline, running
from saturnmq.spark.pipelines.export import _decoding, lag_of
from saturnmq.spark.pipelines.sink_log import FOLDER, latest_batch
from saturnmq.spark.queue_units import needs_records
from saturnmq.spark.ranges import to_offset
from saturnmq.spark.sink_options import COLUMNS, column_problems, parse_sink_options
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.store.queue.queue_extension import ADDRESS_MAX

FLAGS = {
    "--follow",
    "--include-system",
    "--json",
    "--no-alert-topic",
    "--publish",
    "--quiet",
    "--retries",
}  # take no value
COLUMN_TYPES = {
    "topic": "string", "brokerName": "string", "queueId": "int", "queueOffset": "bigint", "flag": "int", "tags": "string",
    "keys": "string", "uniqKey": "string", "properties": "string", "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp", "body": "binary", "physicalOffset": "bigint", "storeSize": "int", "sysFlag": "int",
    "reconsumeTimes": "int", "bornHost": "string", "storeHost": "string", "preparedTransactionOffset": "bigint",
    "bodyCrc": "int", "offsetMsgId": "string", "tagsCode": "bigint", "propertiesMap": "map<string,string>",
}  # fmt: skip


def offsets(**ends: int) -> str:
    return json.dumps(to_offset({("T", broker, 0): end for broker, end in ends.items()}))


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        (offsets(a=5, b=7), offsets(a=5, b=7), 0),
        (offsets(a=5, b=7), offsets(a=8, b=9), 5),
        (offsets(a=5), offsets(a=4, b=9), 9),
        (None, offsets(a=8), None),
        (offsets(a=5), None, None),
    ],
)
def test_lag_of_a_query_is_what_its_last_batch_left(end: str | None, latest: str | None, lag: int | None) -> None:
    progress: dict[str, Any] = {"sources": [{"endOffset": end, "latestOffset": latest}]}
    assert lag_of(cast(Any, SimpleNamespace(lastProgress=progress))) == lag


def test_lag_of_a_query_without_a_batch_is_0() -> None:
    assert lag_of(cast(Any, SimpleNamespace(lastProgress=None))) == 0


def test_newest_batch_of_a_table_is_a_numbered_file_of_its_log(tmp_path: Path) -> None:
    assert latest_batch(tmp_path) == -1
    folder = tmp_path / FOLDER
    folder.mkdir()
    assert latest_batch(tmp_path) == -1
    for name in ("9.compact", "10", "11.tmp", ".12.crc", "x13", "14.compact.tmp"):
        (folder / name).touch()
    assert latest_batch(tmp_path) == 10


def test_schema_is_checked_before_a_session_is_started(tmp_path: Path) -> None:
    schema = tmp_path / "schema"
    arguments = SimpleNamespace(schema=str(schema), decode="avro")
    schema.write_text('"string"')
    with pytest.raises(ConfigError, match="it must be a record with fields"):
        _decoding(cast(Any, arguments))
    schema.write_text(text := '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}')
    assert _decoding(cast(Any, arguments)) == {"schema": text, "decode": "avro"}
    arguments = SimpleNamespace(schema=None, decode=None)
    assert _decoding(cast(Any, arguments)) == {"schema": None, "decode": "json"}


def test_old_commit_log_counts_up_to_where_the_ledger_begins(tmp_path: Path) -> None:
    """A broker without enableDLegerCommitLog has written the later files since: the group has others at these offsets."""
    for folder, bases in (("commitlog", (0, 100, 200)), ("dledger-n0/data", (100, 200))):
        (tmp_path / folder).mkdir(parents=True)
        for base in bases:
            (tmp_path / folder / f"{base:020d}").write_bytes(b"x" * 100)
    files = log_files(str(tmp_path), uncommitted=True)
    assert [(file.base, file.ledger, file.last) for file in files] == [
        (0, False, False), (100, True, False), (200, True, True),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "own"), list(SINK_COLUMNS_OF_KAFKA.items()))
def test_column_of_kafka_is_named_as_the_sink_has_it(name: str, own: str) -> None:
    assert own in COLUMNS
    assert column_problems({"body": "binary", name: "string"}) == [f"unknown column {name!r}, here it is {own!r}"]


def test_columns_of_kafka_have_names_of_their_own() -> None:
    assert SINK_COLUMNS_OF_KAFKA == {"value": "body", "key": "keys", "partition": "queueId", "headers": "properties"}
    assert SOURCE_COLUMNS_OF_KAFKA == {
        "value": "body", "key": "keys", "partition": "queueId", "offset": "queueOffset", "timestamp": "storeTimestamp",
        "headers": "propertiesMap",
    }  # fmt: skip


def test_wrong_columns_are_named_with_what_they_must_be() -> None:
    assert column_problems({"body": "binary", "properties": "map<string,string>"}) == []
    assert column_problems({"body": "string", "properties": "string"}) == []
    assert column_problems({"body": "int", "queueId": "int"}) == [
        "column body is int, must be binary or string",
        "columns brokerName and queueId belong together, one of them is missing",
    ]


@pytest.mark.parametrize(
    ("columns", "select", "code", "needed"),
    [
        (("topic", "queueOffset"), Selection(), 7, False),
        (("topic", "body"), Selection(), 7, True),
        (("tagsCode",), Selection(), 7, False),
        (("tagsCode",), Selection(), ADDRESS_MAX, True),
        (("queueId",), Selection(), ADDRESS_MAX, False),
        (("topic",), Selection(tags=frozenset({"a"})), 7, True),
        (("topic",), Selection(keys=frozenset({"k"})), 7, True),
        (("topic",), Selection(uniq_keys=frozenset({"k"})), 7, True),
        (("topic",), Selection(start_ms=0), 7, True),
        (("topic",), Selection(end_ms=0), 7, True),
    ],
)
def test_records_are_read_for_what_units_do_not_have(
    columns: tuple[str, ...], select: Selection, code: int, needed: bool
) -> None:
    """A code up to ADDRESS_MAX is the place of an extension unit, which has the real one."""
    units = np.array([(7,), (code,)], dtype=[("tags_code", "i8")])
    assert needs_records(columns, select, units) is needed


def test_every_documented_column_can_be_read_with_its_type() -> None:
    asked = {"mode": "files", "path": "/nowhere", "columns": ",".join(COLUMN_TYPES)}
    schema = RocketMQDataSource(asked).schema()
    assert {field.name: field.dataType.simpleString() for field in schema} == COLUMN_TYPES
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert set(COLUMN_TYPES) <= set(re.findall("`([a-zA-Z]+)`", page.partition("## Columns")[2].partition("\n## ")[0]))


def test_help_of_a_pipeline_names_the_value_of_each_option() -> None:
    for name in NAMES:
        words = running.parser_of(pipeline(name)).format_help()
        for option, value in re.findall(r"^  (--[a-z-]+)(?:, --[a-z-]+)*( [^ ]+)?", words, re.M):
            assert value or option in FLAGS, (name, option)


def test_every_option_of_the_sink_sets_its_field() -> None:
    given = {
        "nameServer": "h:1", "topic": "T", "delivery": "at_least_once", "ack": "stored", "batchBytes": "1k",
        "batchMessages": "7", "inFlight": "8", "sendTimeoutMs": "9s", "retries": "0", "compress": "zlib",
        "compressAbove": "2k", "badRows": "skip", "dedupe": "true", "allowTimer": "true", "producerGroup": "p",
        "maxPerSecond": "11", "decisionLog": "/d", "transactionMaxMessages": "12", "transactionCheckAfter": "13s",
    }  # fmt: skip
    made = parse_sink_options(given, {"body": "binary"})
    assert (made.name_server, made.topic, made.delivery, made.ack) == ("h:1", "T", "at_least_once", "stored")
    assert (made.batch_bytes, made.batch_messages, made.in_flight, made.send_timeout_ms) == (1024, 7, 8, 9000)
    assert (made.retries, made.compress, made.compress_above, made.bad_rows) == (0, "zlib", 2048, "skip")
    assert (made.dedupe, made.allow_timer, made.producer_group, made.per_second) == (True, True, "p", 11)
    assert (made.decision_log, made.transaction_messages, made.check_after_ms) == ("/d", 12, 13_000)
