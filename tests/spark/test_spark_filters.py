"""Options that make the source read less: the rows of a filter in Python, for any combination; without a JVM."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds
from pyspark.sql.streaming.datasource import ReadAllAvailable

from saturnmq import Outgoing
from saturnmq.broker import BrokerSettings
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import java_hash
from saturnmq.spark import index_lookup
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.spark.topic_reads import TopicReads, _narrowing, unix_ms
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

COUNT, QUEUES = 240, 3
TAGS = ("a", "b", "Aa", "BB", "x, y")  # Aa and BB have the same hash
KEYS = ("few", "k7", "k8", "k200", "none", "x,y", "Aa", "BB")
Row = dict[str, Any]


def keys_of(n: int) -> list[str]:
    more = ["few"] if n % 17 == 0 else ["x,y"] if n % 41 == 0 else [("Aa", "BB")[n % 2]] if n % 13 == 0 else []
    return [*more, f"k{n}"]


@pytest.fixture(scope="module")
def broker() -> Iterator[SyncEmbeddedBroker]:
    """A broker that evaluates SQL92, with topic "mixed"; every second read of keys is short enough for the index."""
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000, 3))  # store times that differ, without a wait
    settings = BrokerSettings(property_filter_enable=True)
    with (
        SyncEmbeddedBroker(settings=settings, clock_ms=lambda: next(clock)) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(index_lookup, "RANGE_MIN", COUNT // 2)
        with Client(name_servers=server.name_servers) as client, client.producer("filter-tests") as out:
            client.create_topic("mixed", queues=QUEUES)
            queues = out.queues("mixed")
            for n in range(COUNT):
                tag = TAGS[n % 6] if n % 6 < len(TAGS) else None
                message = Outgoing(value=b"%d" % n, tag=tag, keys=keys_of(n), properties={"n": str(n)})
                out.send_many("mixed", [message], queue=queues[n % QUEUES])
        yield server


@pytest.fixture(scope="module")
def everything(broker: SyncEmbeddedBroker) -> list[Row]:
    found = rows(broker, "mixed")
    assert sorted(int(row["body"]) for row in found) == list(range(COUNT))
    return found


def source(server: SyncEmbeddedBroker, topic: str, **options: str) -> RocketMQDataSource:
    return RocketMQDataSource({"nameServer": server.name_servers, "topic": topic} | options)


def rows(server: SyncEmbeddedBroker, topic: str, **options: str) -> list[Row]:
    """Read as Spark's planner and workers do."""
    data_source = source(server, topic, **options)
    planner = data_source.reader(data_source.schema())
    worker = pickle.loads(pickle.dumps(planner))
    return [row for part in planner.partitions() for batch in worker.read(part) for row in batch.to_pylist()]


def streamed(server: SyncEmbeddedBroker, topic: str, **options: str) -> list[Row]:
    data_source = source(server, topic, **options)
    reader: Any = data_source.streamReader(data_source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def bodies(found: list[Row]) -> list[int]:
    return sorted(int(row["body"]) for row in found)


def ms(row: Row) -> int:
    return unix_ms("since", row["storeTimestamp"])


def meets(row: Row, asked: dict[str, Any]) -> bool:
    """The reference: the arguments of `where`, evaluated on a row."""
    n = int(row["body"])
    return all(
        (
            "tags" not in asked or row["tags"] in asked["tags"],
            "keys" not in asked or bool(set(row["keys"].split(" ")) & set(asked["keys"])),
            "uniq_keys" not in asked or row["uniqKey"] in asked["uniq_keys"],
            "queues" not in asked or row["queueId"] in asked["queues"],
            "since" not in asked or ms(row) >= asked["since"],
            "until" not in asked or ms(row) < asked["until"],
            "sql" not in asked or (n > 100 and row["tags"] in ("a", "BB")),
        )
    )


some_tags = st.lists(st.sampled_from([*TAGS, "none"]), min_size=1, max_size=3)
some_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)
some_queues = st.lists(st.integers(0, QUEUES - 1), min_size=1, max_size=3)
index = st.integers(0, COUNT - 1)


@given(
    filters=st.fixed_dictionaries({}, optional={"keys": some_keys, "queues": some_queues}),
    selective=st.one_of(
        st.none(), some_tags.map(lambda tags: ("tags", tags)), st.just(("sql", "n > 100 AND TAGS IN ('a', 'BB')"))
    ),
    uniq=st.one_of(st.none(), st.lists(index, min_size=1, max_size=3)),
    times=st.one_of(st.none(), st.tuples(index, index)),
    columns=st.sampled_from(["", "body,queueId"]),
)
def test_options_select_the_rows_of_a_filter_in_python(
    broker: SyncEmbeddedBroker, everything: list[Row], filters: Row, selective: Any, uniq: Any, times: Any, columns: str
) -> None:
    asked = dict(filters) | (dict([selective]) if selective else {})
    if uniq:
        asked["uniq_keys"] = [everything[n]["uniqKey"] for n in uniq]
    if times:
        asked["since"], asked["until"] = sorted(ms(everything[n]) for n in times)
    options = _narrowing(**asked) | ({"columns": columns} if columns else {})
    assert bodies(rows(broker, "mixed", **options)) == bodies([row for row in everything if meets(row, asked)])


def test_index_and_tag_filter_reduce_what_is_read(broker: SyncEmbeddedBroker, everything: list[Row]) -> None:
    """The options are no filter after the read: the plan has fewer offsets, the broker sends fewer messages."""
    assert java_hash("Aa") == java_hash("BB")
    made = source(broker, "mixed", keys="k200")
    pieces: list[Any] = list(made.reader(made.schema()).partitions())
    assert [part.piece[4] - part.piece[3] for part in pieces] == [1]
    assert bodies(rows(broker, "mixed", tags="Aa")) == [n for n in range(COUNT) if n % 6 == 2]
    pulls = [r.ext["subscription"] for r in broker.inner.tap.requests if r.ext.get("subscription") == "Aa"]
    assert pulls, "the broker was asked for the tag"
    assert bodies(streamed(broker, "mixed", startingOffsets="earliest", tags="a,b", queues="0,1")) == [
        n for n in range(COUNT) if n % 6 in (0, 1) and n % QUEUES in (0, 1)
    ]
    assert len(bodies(streamed(broker, "mixed", startingOffsets="earliest", sql="n > 230"))) == COUNT - 231


def test_no_reader_accepts_pushed_filters(broker: SyncEmbeddedBroker) -> None:
    """Spark would use the narrowed plan of one query for every query of a load()."""
    made = source(broker, "mixed", pushdown="false")
    assert made.reader(made.schema()).pushFilters.__func__ is ds.DataSourceReader.pushFilters
    with pytest.raises(ConfigError, match=r"pushdown='true': is not offered.*tags, sql, keys.*saturnmq\.spark\.topic"):
        source(broker, "mixed", pushdown="true").schema()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tags": "a", "sql": "n > 1"}, "only one of tags, sql and subExpression .*TAGS IN"),
        ({"tags": "a", "subExpression": "b"}, "only one of tags, sql and subExpression"),
        ({"sql": "n > 1", "expressionType": "SQL92"}, "only one of tags, sql and subExpression"),
        ({"sql": "n >"}, "subExpression='n >'"),
        ({"tags": "a || b"}, "'a .. b' is no tag"),
        ({"tags": "*"}, r"'\*' is no tag"),
        ({"tags": '["a", 1]'}, "must be a JSON list of texts"),
        ({"tags": '["a"'}, "must be a JSON list of texts; it does not parse"),
        ({"tags": " , "}, "must name at least one"),
        ({"keys": "a b"}, "'a b' is no key"),
        ({"queues": "one"}, "option queues='one': must be queue ids"),
        ({"queues": "-1"}, "option queues='-1': must be queue ids"),
        ({"queues": "0", "assign": '{"T":{"b":[0]}}', "topic": ""}, "only one of queues and assign"),
        ({"mode": "files", "path": "x", "sql": "n > 1"}, "needs a broker"),
    ],
)
def test_filter_option_that_cannot_hold_is_rejected(options: dict[str, str], problem: str) -> None:
    given_options = {"nameServer": "h:1", "topic": "T"} | options
    with pytest.raises(ConfigError, match=problem):
        RocketMQDataSource({name: value for name, value in given_options.items() if value}).schema()


def test_queue_that_no_topic_has_is_rejected(broker: SyncEmbeddedBroker) -> None:
    with pytest.raises(ConfigError, match="option queues: no topic of the query has queue 7"):
        rows(broker, "mixed", queues="0,7")
    with pytest.raises(ConfigError, match="option queues: no topic of the query has queue 7"):
        streamed(broker, "mixed", queues="7")
    for option in ("keys", "uniqKeys"):
        with pytest.raises(ConfigError, match=f"option {option} is for batch reads"):
            streamed(broker, "mixed", **{option: "k1"})


def test_times_of_where_are_instants_rounded_up_to_ms() -> None:
    base = datetime(2026, 3, 1, 12, tzinfo=UTC)
    at = int(base.timestamp() * 1000)
    assert unix_ms("since", base) == unix_ms("since", base.replace(tzinfo=None)) == at
    assert unix_ms("since", "2026-03-01T12:00:00") == unix_ms("since", "2026-03-01T13:00:00+01:00") == at
    assert unix_ms("since", base.astimezone(timezone(timedelta(hours=-8)))) == at
    assert unix_ms("since", base + timedelta(microseconds=1)) == at + 1, "rows have whole ms: 12:00:00.000 is earlier"
    assert unix_ms("until", at) == at and unix_ms("until", "2026-03-01") == at - 12 * 3_600_000
    with pytest.raises(ConfigError, match="since='yesterday' is no time"):
        unix_ms("since", "yesterday")


def test_arguments_of_where_reject_what_is_ambiguous() -> None:
    reads = TopicReads(None, {"topic": "T", "Tags": "a"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"option Tags was given to topic\(\) already"):
        reads.where(tags="b")
    for name in ("tags", "keys", "uniq_keys", "queues"):
        with pytest.raises(ConfigError, match=f"{name} is an empty list"):
            _narrowing(**{name: []})
    assert _narrowing(tags="x, y", queues=0) == {"tags": '["x, y"]', "queues": "0"}
    with pytest.raises(ConfigError, match="its condition is SQL text, not Column"):
        reads.view("v", type("Column", (), {})())
    secret = TopicReads(None, {"topic": "T", "secretKey": "hush"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"secretKey would be readable.*SATURNMQ_SECRET_KEY") as raised:
        secret.view("v")
    assert "hush" not in str(raised.value)


def test_committed_offset_zero_is_no_missing_offset(broker: SyncEmbeddedBroker) -> None:
    """A group that has committed 0 has read nothing: fallback `latest` would skip the whole topic."""
    with Client(name_servers=broker.name_servers) as client, client.producer("filter-tests") as out:
        client.create_topic("zero", queues=2)
        first, second = out.queues("zero")
        for queue, count in ((first, 10), (second, 6)):
            out.send_many("zero", [Outgoing(value=b"%d" % n) for n in range(count)], queue=queue)
        client.puller().commit("zero-group", first, 0)
        client.puller().commit("zero-group", second, 4)
    options = {"startingOffsets": "group", "group": "zero-group"}
    due = [(0, n) for n in range(10)] + [(1, 4), (1, 5)]
    for read in (rows, streamed):
        for fallback in ("latest", "earliest", "error"):  # which all queues do without
            options["groupOffsetFallback"] = fallback
            assert sorted((row["queueId"], row["queueOffset"]) for row in read(broker, "zero", **options)) == due
    assert json.loads(broker.inner.broker.offsets.encode())["offsetTable"]["zero@zero-group"] == {"0": 0, "1": 4}
