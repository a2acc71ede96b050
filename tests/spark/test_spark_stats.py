"""Throughput, lag and alerts: the tables against direct counts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from saturnmq import CallTimeout, Outgoing
from saturnmq.admin.connection import AdminConnection
from saturnmq.history.file import History, Sample, Series
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark.connect import ConnectionOptions
from saturnmq.spark.pipelines import collect, lake, stats
from saturnmq.spark.pipelines.collect import Tick
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def quietly(_words: str) -> None:
    """Progress callback that does nothing."""


def ticks() -> list[Tick]:
    """Return three hours of ticks, one every 30 s, with 10 messages produced per tick.

    They are consumed at that rate except in minutes 30 to 60; the lag is worked off at minute 75.
    """
    made = []
    for n in range(361):
        behind = min(max(n - 60, 0), 60) * 10 if n < 150 else 0
        made.append(Tick(NOON_MS + n * 30_000, "orders", "", "b", n * 10, 700))
        made.append(
            Tick(
                NOON_MS + n * 30_000,
                "orders",
                "g",
                "b",
                n * 10 - behind,
                None,
                behind,
                behind / 10,
                2 if n > 200 else 0,
            )
        )
    return made


@pytest.mark.spark
@pytest.mark.spec("PIP-11", "PIP-04", "EXP-04", "EXP-05")
def test_stats_sums_are_exact_and_alerts_fire_once(spark: Any, tmp_path: Path) -> None:
    conf = stats.StatsConf(lake=str(tmp_path))
    given = ticks()
    late = [
        t for t in given if 20 <= (t.ts - NOON_MS) // 60_000 < 40
    ]  # arrive in a second part, together with duplicates
    lake.write_part(stats.frame_of(spark, [t for t in given if t not in late]), conf.table("stats_ticks"), 1)
    lake.write_part(stats.frame_of(spark, [*late, *given[:50]]), conf.table("stats_ticks"), 2)
    fresh = stats.tables(spark, conf, quietly)
    minutes = lake.head(spark, conf.table("stats_1m"), 10_000)
    by = {(r["group"], r["window_start"]): r for r in minutes}
    assert len(by) == len(minutes) == 2 * 181
    for group in ("", "g"):
        for minute in (1, 25, 80, 100):
            mine = [t for t in given if t.group == group and t.ts < NOON_MS + (minute + 1) * 60_000]
            before = [t for t in mine if t.ts < NOON_MS + minute * 60_000]
            row = by[(group, NOON + timedelta(minutes=minute))]
            counted = max(t.total for t in mine) - max(t.total for t in before)
            assert (
                row["msgs"] == counted and row["tps_avg"] == pytest.approx(counted / 60) and row["lag"] == mine[-1].lag
            )
    assert by[("", NOON + timedelta(minutes=5))]["tps_max"] == pytest.approx(10 / 30)
    assert by[("", NOON + timedelta(minutes=5))]["bytes"] == 700
    hours = {(r["group"], r["window_start"]): r for r in lake.head(spark, conf.table("stats_1h"), 100)}
    days = {r["group"]: r for r in lake.head(spark, conf.table("stats_1d"), 100)}
    for group in ("", "g"):
        assert [hours[(group, NOON + timedelta(hours=h))]["msgs"] for h in range(3)] == [
            sum(by[(group, NOON + timedelta(minutes=m))]["msgs"] for m in range(60 * h, 60 * h + 60)) for h in range(3)
        ]
        assert days[group]["msgs"] == 3600
    # the lag grows to 600 messages, 30 minutes of production, and is 0 at minute 75; two dead letters at minute 100
    found = [(a["rule"], a["state"], a["subject"]) for a in fresh]
    expected = [("behind", "firing"), ("behind", "cleared"), ("dead letters", "firing"), ("dead letters", "cleared")]
    assert found == [(*turn, "orders/g/b") for turn in expected]
    assert fresh[0]["ts"] < NOON + timedelta(minutes=40) and fresh[1]["ts"] == NOON + timedelta(minutes=75)
    assert stats.tables(spark, conf, quietly) == []


@pytest.mark.spec("EXP-05")
def test_stats_collects_runtime_info_of_every_broker(
    server: SyncEmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, entries = collect.collect(server.name_servers, NOON_MS)
    (broker,) = {(e.ts, e.broker_name, e.broker_id, e.address) for e in entries}
    assert broker == (NOON_MS, "broker-a", 0, entries[0].address)
    found = {e.key: e.value for e in entries}
    assert len(found) == len(entries) > 40 and found["brokerVersionDesc"] == "V4_9_7"
    assert {"putTps", "commitLogMaxOffset", "dispatchBehindBytes", "brokerVersion"} <= found.keys()

    read = AdminConnection.read

    async def silent(connection: AdminConnection, address: str, *more: Any, **options: Any) -> Any:
        if address == broker[3]:
            raise CallTimeout("no answer")
        return await read(connection, address, *more, **options)

    monkeypatch.setattr(AdminConnection, "read", silent)
    assert collect.collect(server.name_servers, NOON_MS) == ([], [])
    assert f'no statistics where={broker[3]} error="no answer"' in caplog.text


@pytest.mark.spec("EXP-05")
def test_stats_collects_the_bytes_of_the_last_minute(server: SyncEmbeddedBroker) -> None:
    with Client(name_servers=server.name_servers) as client, client.producer("stats-tests") as out:
        client.create_topic("sized", queues=1)
        out.send_many("sized", [Outgoing(value=bytes(1000)) for _ in range(15)])

    async def sample() -> None:
        for _ in server.inner.broker.stats.sample_sets():
            pass

    server.thread.call(sample())
    (tick,) = [one for one in collect.collect(server.name_servers, NOON_MS)[0] if one.topic == "sized"]
    assert tick.total == 15 and 15_000 < (tick.bytes or 0) < 20_000


@pytest.mark.spark
@pytest.mark.spec("PIP-11", "PIP-05", "EXP-05")
def test_stats_polls_brokers_and_reads_ticks_from_topic(spark: Any, server: SyncEmbeddedBroker, tmp_path: Path) -> None:
    with Client(name_servers=server.name_servers) as client, client.producer("stats-tests") as out:
        client.create_topic("counted", queues=2)
        for topic in ("SATURN_STATS", "SATURN_ALERT"):
            client.create_topic(topic, queues=1)
        for queue in out.queues("counted"):
            out.send_many("counted", [Outgoing(value=b"x") for _ in range(15)], queue=queue)
        puller = client.puller("counting")
        for queue in puller.queues("counted"):
            puller.commit("counting", queue, 5)
    connection = ConnectionOptions(server.name_servers)
    found = {(t.topic, t.group): t for t in collect.collect(server.name_servers, NOON_MS)[0]}
    assert found[("counted", "")].total == 30
    group = found[("counted", "counting")]
    assert (group.total, group.lag) == (10, 20) and group.broker_name == "broker-a"
    later = [replace(group, ts=NOON_MS + 60_000 * n, total=10, lag=20 + n, lag_s=700.0) for n in range(2)]
    bodies = [*(collect.encode_tick(t) for t in later), b'{"ts": "noon"}', b"[]", b'{"ts": 1, "surprise": 2}']
    collect.publish(connection, "SATURN_STATS", [(body, "k") for body in bodies])
    conf = stats.StatsConf(server.name_servers, str(tmp_path), mode="topic", alert_topic="SATURN_ALERT")
    first = stats.run(spark, conf, quietly)
    assert (first.rows_in, first.bad_rows, first.lag, first.more["alerts"]) == (5, 3, 21, 2)
    bad = sorted(lake.head(spark, conf.table("stats_ticks_bad"), 10), key=lambda r: r["error"])
    errors = [r["error"] for r in bad]
    assert (
        errors[0] == "a tick is a JSON object"
        and "missing 4 required" in errors[1]
        and errors[2] == "ts is 'noon', must be int"
    )
    assert [(r["topic"], r["broker_name"], r["queue_id"], r["queue_offset"], bytes(r["body"])) for r in bad] == [
        ("SATURN_STATS", "broker-a", 0, 2 + n, bodies[2 + n]) for n in (1, 2, 0)
    ]
    page = Path(str(first.report)).read_text()
    assert "Messages behind" in page and "counted/counting/broker-a" in page
    assert stats.poll(spark, replace(conf, mode="poll")) >= 2
    assert stats.poll(spark, replace(conf, mode="poll")) >= 2
    kept = lake.head(spark, conf.table("stats_brokers"), 1000)
    versions = [row for row in kept if row["key"] == "brokerVersionDesc"]
    assert [(row["broker_name"], row["broker_id"], row["value"]) for row in versions] == [("broker-a", 0, "V4_9_7")] * 2
    assert len({row["ts"] for row in versions}) == 2, "the history grows by each poll"
    source = RocketMQDataSource({"nameServer": server.name_servers, "topic": "SATURN_ALERT", "columns": "body"})
    made = source.reader(source.schema())
    alerts = [json.loads(row["body"]) for p in made.partitions() for batch in made.read(p) for row in batch.to_pylist()]
    assert {(a["rule"], a["state"]) for a in alerts[:2]} == {("behind", "firing"), ("stuck", "firing")}


@pytest.mark.spark
@pytest.mark.spec("EXP-05")
def test_stats_reads_a_history_file_once_and_then_what_is_new(spark: Any, tmp_path: Path) -> None:
    path, start = tmp_path / "history.db", NOON_MS // 1000
    topic, dead = (Series("topic", "c", topic=name) for name in ("orders", "%DLQ%g"))
    group, broker = Series("group", "c", topic="orders", group="g"), Series("broker", "c", broker="b:0")

    def minutes(numbers: range) -> None:
        with History(path) as history:
            for n in numbers:
                values = [
                    Sample(topic, n * 10, 5),
                    Sample(group, n * 8, n * 2),
                    Sample(dead, n, n),
                    Sample(broker, 9, 9),
                ]
                history.record(start + n * 60, values)

    conf = stats.StatsConf(lake=str(tmp_path / "lake"), mode="history", history=path, alert_topic=None)
    with pytest.raises(ConfigError, match="saturnmq collect"):
        stats.run(spark, conf, quietly)
    minutes(range(90))
    assert stats.run(spark, conf, quietly).rows_in == 180
    assert stats.run(spark, conf, quietly).rows_in == 0
    minutes(range(90, 100))
    last = stats.run(spark, conf, quietly)
    assert (last.rows_in, last.lag) == (20, 198)
    rows = lake.head(spark, conf.table("stats_1m"), 1000)
    assert sum(row["msgs"] for row in rows if not row["group"]) == 990
    assert sum(row["msgs"] for row in rows if row["group"] == "g") == 99 * 8
    assert sum(row["fail"] for row in rows) == 99
    assert {row["broker_name"] for row in rows} == {"c"} and {row["topic"] for row in rows} == {"orders"}


@pytest.mark.spec("PIP-11")
def test_stats_invalid_rules_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    for given, words in (
        ("{", "must be a JSON list"),
        ('[{"rule": "r", "metric": "lag", "fire": 1}]', "clear"),
        ('[{"rule": "r", "metric": "lags", "fire": 2, "clear": 1}]', "metric 'lags'; allowed are behind_s"),
        ('[{"rule": "r", "metric": "lag", "fire": 1, "clear": 1}]', "clear=1.0 must be below fire=1.0"),
    ):
        path.write_text(given)
        with pytest.raises(ConfigError, match=words):
            stats.read_rules(str(path))
    path.write_text('[{"rule": "r", "metric": "lag", "fire": 2, "clear": 1}]')
    assert stats.read_rules(str(path)) == (("r", "lag", 2.0, 1.0),)
