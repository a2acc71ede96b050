"""Tables of the pipelines: declared columns, and atomic replacement; without a session."""

from __future__ import annotations

import importlib
import typing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from saturnmq.protocol.codes import RequestCode
from saturnmq.spark.pipelines import NAMES, collect, compact, lake, pipeline, running
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

TYPES = {"i": "int", "l": "bigint", "d": "double", "t": "timestamp", "b": "boolean", "x": "binary", "date": "date"}
MESSAGES = ("topic, broker_name, queue_id i, queue_offset l, store_ts t, born_ts t, tags, keys, uniq_key, reconsume i, sys_flag i, "
            "born_host, properties, body x, date date, hour i")  # fmt: skip
STATS = (
    "topic, group, broker_name, window_start t, msgs l, bytes l, tps_avg d, tps_max d, lag l, lag_s d, fail l",
    "",
)
# table: (columns that other tools rely on, additional declared columns)
TABLES = {
    "export": {
        "messages": (MESSAGES, "offset_msg_id"),
        "_offsets": ("query, batch l, topic, broker_name, queue_id i, from_offset l, to_offset l, rows l", ""),
    },
    "replay": {"replay_log": ("run, src, dst, chunk i, rows l, first_msg_id, last_msg_id, state", "")},
    "trace": {
        "trace_events": (
            "type, ts t, region, group, topic, msg_id, request_id, tags, keys, store_host, client_host, body_length i, "
            "cost_ms i, msg_type i, offset_msg_id, success b, retry i, context_code i, transaction_id, state, date date",
            "",
        ),
        "msg_latency": (
            "msg_id, topic, group, produced_at t, stored_at t, consumed_at t, e2e_ms l, retry i, success b, date date",
            "",
        ),
        "latency_1m": ("topic, group, window_start t, n l, fail l, p50_ms d, p95_ms d, p99_ms d", ""),
        "slow_consumers": ("group, topic, window_start t, p99_ms d, threshold_ms d", ""),
        "unconsumed": ("msg_id, topic, produced_at t, age_s l", ""),
    },
    "stats": {
        "stats_1m": STATS,
        "stats_1h": STATS,
        "stats_1d": STATS,
        "alerts": ("ts t, rule, subject, value d, threshold d, state", ""),
    },
    "audit": {
        "audit_daily": (
            "topic, date date, produced l, stored l, consumed l, lost l, dup l, out_of_order l",
            "",
        ),
        "lost": ("uniq_key, topic, produced_at t", ""),
        "dup": ("uniq_key, n l", "topic"),
        "offset_gaps": ("broker_name, queue_id i, from_offset l, to_offset l", "topic"),
    },
    "dlq": {
        "dlq_messages": (
            f"{MESSAGES}, group, origin_message_id, retry_topic, signature, last_error",
            "offset_msg_id",
        ),
        "dlq_summary": ("group, topic, tags, signature, date date, n l, oldest t", ""),
    },
    "files": {
        "messages": (MESSAGES, "offset_msg_id"),
        "commitlog_check": ("file, from_byte l, to_byte l, frames l, bad_crc l, holes l, torn_tail b", ""),
    },
}


@pytest.mark.spec("PIP-02")
@pytest.mark.parametrize(("name", "table"), [(name, table) for name, tables in TABLES.items() for table in tables])
def test_table_declares_columns_that_others_read(name: str, table: str) -> None:
    columns, beside = TABLES[name][table]
    wanted = {
        column.split()[0]: TYPES[column.split()[1]] if " " in column else "string" for column in columns.split(", ")
    }
    declared = dict(column.split() for column in pipeline(name).outputs[table].split(","))
    assert set(declared) - set(wanted) == set(filter(None, [beside]))
    assert {column: declared.get(column) for column in wanted} == wanted


@pytest.mark.spec("PIP-02")
@pytest.mark.parametrize("name", NAMES)
def test_each_pipeline_module_has_build(name: str) -> None:
    module = importlib.import_module(f"saturnmq.spark.pipelines.{name}")
    assert module.PIPELINE is pipeline(name) and module.PIPELINE.build is module.build
    hints = typing.get_type_hints(module.build)
    assert list(hints)[:2] == ["spark", "conf"] and hints["return"] in (DataFrame, StreamingQuery)


@pytest.mark.spec("PIP-04")
def test_replaced_table_is_old_or_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while writing the new table, and between the two renames."""
    path, rename = str(tmp_path / "t"), Path.rename

    class Killed(Exception):
        pass

    def cut_off(step: int) -> Any:
        done: list[Path] = []

        def renamed(self: Path, target: Path) -> Path:
            done.append(target)
            if len(done) == step:
                raise Killed
            return rename(self, target)

        return renamed

    lake.replace_rows([(0,)], "n int", path)
    for step in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", cut_off(step))
            with pytest.raises(Killed):
                lake.replace_rows([(step,)], "n int", path)
        assert lake.rows_of(path) == [(0,)]
    lake.replace_rows([(3,)], "n int", path)
    assert lake.rows_of(path) == [(3,)] and [p.name for p in tmp_path.iterdir()] == ["t"]


@pytest.mark.spec("PIP-07")
def test_compaction_default_targets_256_to_512_mib_of_closed_hours() -> None:
    made = compact.conf_of(running.parser_of(compact.PIPELINE).parse_args(["t"]))
    assert made.target_bytes == 256 << 20, "count is size // target, so that a file has less than twice the target"
    assert made.closed_after_ms == 900_000


@pytest.mark.spec("PIP-11")
def test_stats_poll_sends_only_read_requests(server: SyncEmbeddedBroker) -> None:
    with Client(name_servers=server.name_servers) as client, client.producer("poll-tests") as out:
        client.create_topic("polled", queues=1)
        out.send("polled", b"x" * 100)
        puller = client.puller("polling")
        for queue in puller.queues("polled"):
            puller.commit("polling", queue, 1)
    server.inner.tap.requests.clear()
    collect.collect(server.name_servers, 0)
    asked = {request.code for request in server.inner.tap.requests}
    assert {28, 202, 208, 315} <= asked
    assert {RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.HEART_BEAT}.isdisjoint(asked), "it changes nothing"
