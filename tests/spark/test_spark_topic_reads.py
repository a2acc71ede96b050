"""Queries of one load(), of views and of `topic(...)` in a real session: rows compared with those sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import functions as f

from saturnmq import Outgoing
from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import topic, topic_reads
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

pytestmark = pytest.mark.spark
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
QUEUES = 4


def fill(server: SyncEmbeddedBroker, name: str, first: int, count: int) -> None:
    """Send n to queue n % 4, with tag a or b and key kN."""
    with Client(name_servers=server.name_servers) as client, client.producer("view-tests") as out:
        if not first:
            client.create_topic(name, queues=QUEUES)
        for queue in out.queues(name):
            own = range(first + queue.queue_id, first + count, QUEUES)
            out.send_many(name, [Outgoing(value=b"%d" % n, tag="ab"[n % 2], keys=[f"k{n}"]) for n in own], queue=queue)


def numbers(frame: Any) -> list[int]:
    return sorted(int(row["body"]) for row in frame.select("body").collect())


def where(condition: Callable[[int], bool], count: int = 40) -> list[int]:
    return [n for n in range(count) if condition(n)]


@pytest.fixture
def settings(spark: Any) -> Iterator[Callable[[str, str], None]]:
    """Sets a setting of the session for one test."""
    before: dict[str, str | None] = {}

    def change(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


EVERYTHING, QUEUE_0 = where(lambda n: True), where(lambda n: n % 4 == 0)
TAG_B = where(lambda n: n % 2 == 1)
# On one load(), in this order: Spark evaluates all of them from one read plan.
QUERIES: list[tuple[str, Callable[[Any, Any], Any], Any]] = [
    ("one queue", lambda d, s: numbers(d.filter("queueId = 0")), QUEUE_0),
    ("then all", lambda d, s: numbers(d), EVERYTHING),
    ("a tag", lambda d, s: numbers(s.sql("SELECT * FROM plan WHERE tags = 'a'")), where(lambda n: n % 2 == 0)),
    ("then SQL without WHERE", lambda d, s: numbers(s.sql("SELECT * FROM plan")), EVERYTHING),
    ("a key", lambda d, s: numbers(d.where(f.col("keys") == "k3")), [3]),
    ("then a count", lambda d, s: d.count(), 40),
    ("union of queues", lambda d, s: numbers(d.filter("queueId = 0").union(d.filter("queueId = 1"))), where(lambda n: n % 4 < 2)),
    (
        "outer join of filtered counts",
        lambda d, s: [tuple(r) for r in d.filter("queueId = 0").groupBy("tags").count().join(
            d.filter("queueId IN (1, 2)").groupBy("tags").count(), "tags", "full_outer").orderBy("tags").collect()],
        [("a", 10, 10), ("b", None, 10)],
    ),
    ("self join", lambda d, s: d.filter("queueId = 1").alias("x").join(d.alias("y"), f.expr("x.tags = y.tags")).count(), 200),
    (
        "CTE twice",
        lambda d, s: s.sql("WITH c AS (SELECT * FROM plan) SELECT (SELECT count(*) FROM c WHERE queueId = 2) AS one, "
                           "(SELECT count(*) FROM c) AS every").first().asDict(),
        {"one": 10, "every": 40},
    ),
    ("exists", lambda d, s: numbers(s.sql("SELECT * FROM plan p WHERE EXISTS (SELECT 1 FROM plan q WHERE q.queueId = 3 "
                                          "AND q.queueOffset = p.queueOffset AND q.tags = p.tags)")), where(lambda n: n % 2 == 1)),
    ("limit", lambda d, s: len(d.filter("queueId = 0").limit(3).collect()), 3),
    ("sample", lambda d, s: d.sample(1.0).count(), 40),
    ("checkpoint", lambda d, s: numbers(d.filter("tags = 'b'").localCheckpoint().union(d)), sorted([*TAG_B, *EVERYTHING])),
]  # fmt: skip


@pytest.mark.spec("SRC-17")
def test_no_query_of_a_load_narrows_another(
    spark: Any, server: SyncEmbeddedBroker, settings: Callable[[str, str], None]
) -> None:
    """The session leaves Spark's pushdown switch off; a user who switches it on gets the same rows."""
    fill(server, "plan", 0, 40)
    options = {"nameServer": server.name_servers, "topic": "plan"}
    assert spark.conf.get(PUSHDOWN) == "false", "Spark's default"
    for queries in (QUERIES, QUERIES[:4]):
        frame = spark.read.format("rocketmq").options(**options).load()
        frame.createOrReplaceTempView("plan")
        for query, run, expected in queries:
            assert run(frame, spark) == expected, query
        cached = frame.filter("queueId = 2").cache()
        assert cached.count() == 10 and frame.count() == 40
        cached.unpersist()
        settings(PUSHDOWN, "true")
        settings("spark.sql.adaptive.enabled", "true")
    whole = frame.cache()
    assert numbers(whole.filter("queueId = 0")) == QUEUE_0 and numbers(whole) == EVERYTHING
    whole.unpersist()
    assert numbers(frame) == EVERYTHING
    with pytest.raises(Exception, match=r"option pushdown='true'.*saturnmq\.spark\.topic\(spark, TOPIC\)\.where"):
        spark.read.format("rocketmq").options(**options, pushdown="true").load()


def test_where_reloads_and_reads_what_its_arguments_say(spark: Any, server: SyncEmbeddedBroker) -> None:
    fill(server, "reads", 0, 40)
    reads = topic(spark, "reads", name_server=server.name_servers, failOnDataLoss=True)
    queues = reads.where(queues=0).union(reads.where(queues=[1]))
    assert numbers(queues) == where(lambda n: n % 4 < 2)
    tagged, keyed = reads.where(tags="a").cache(), reads.where("queueId < 3", keys=["k3", "k5", "k9"])
    assert numbers(tagged) == where(lambda n: n % 2 == 0) and numbers(keyed) == [5, 9]
    joined = (
        tagged.groupBy("queueId")
        .count()
        .join(reads.where(f.col("tags") == "b").groupBy("queueId").count(), "queueId", "outer")
    )
    assert joined.count() == 4
    fill(server, "reads", 40, 40)
    assert numbers(reads.load()) == list(range(80)) and numbers(reads.where(tags=["a"])) == where(
        lambda n: n % 2 == 0, 80
    )
    assert numbers(tagged) == where(lambda n: n % 2 == 0), "a DataFrame has one plan, and this one is cached"
    tagged.unpersist()
    middle = reads.load().select(f.max("storeTimestamp")).first()[0]
    assert (
        reads.where(since=middle).count() >= 1
        and reads.where(until=middle).count() + reads.where(since=middle).count() == 80
    )
    live = reads.stream("queueId = 0", tags="a", since=0)
    query = live.writeStream.format("memory").queryName("reads_live").trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert numbers(spark.table("reads_live")) == where(lambda n: n % 4 == 0, 80)


def test_views_show_the_messages_of_their_plan(spark: Any, server: SyncEmbeddedBroker) -> None:
    """What each view shows after more messages: Spark's own keep the plan of their first query, ours reload."""
    fill(server, "viewed", 0, 40)
    options = {"nameServer": server.name_servers, "topic": "viewed"}
    frame = spark.read.format("rocketmq").options(**options).load()
    frame.createOrReplaceTempView("of_load")
    text = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW of_using USING rocketmq OPTIONS ({text})")
    reads = topic(spark, "viewed", name_server=server.name_servers)
    reads.view("live")
    reads.view("live_a", "queueId IN (0, 1)", tags="a")
    views = ("of_load", "of_using", "live", "live_a")

    def counts() -> list[int]:
        return [spark.sql(f"SELECT count(*) FROM {name}").first()[0] for name in views]

    assert counts() == [40, 40, 40, 10]
    fill(server, "viewed", 40, 40)
    assert counts() == [40, 40, 80, 20]
    for name in ("of_load", "of_using"):
        spark.sql(f"REFRESH TABLE {name}")
    assert counts() == [40, 40, 80, 20], "REFRESH TABLE does not reload"
    # Within one query: two views of one table of options, the same view twice, and views of different options.
    reads.view("live_b", tags="b")
    both = Counter(r["tags"] for r in spark.sql("SELECT tags FROM live_a UNION ALL SELECT tags FROM live_b").collect())
    assert both == {"a": 20, "b": 40}
    assert (
        spark.sql("SELECT count(*) FROM live x JOIN live_b y ON x.uniqKey = y.uniqKey WHERE x.queueId = 1").first()[0]
        == 20
    )
    assert numbers(spark.sql("SELECT * FROM live WHERE queueId = 0")) == where(lambda n: n % 4 == 0, 80)
    assert numbers(spark.table("live")) == list(range(80))
    reads.view("live_a", tags="b", queues=[1])
    assert numbers(spark.table("live_a")) == where(lambda n: n % 4 == 1, 80), "replaced"
    quoted = topic(spark, "viewed", name_server=server.name_servers, columns="body,keys,queueId,propertiesMap")
    quoted.view("odd `name`", "keys <> 'it''s' -- no others", keys=["k7", "it's", "back\\slash", "k9"], queues=[1, 3])
    assert numbers(spark.table("`odd ``name```")) == [7, 9]
    with Client(name_servers=server.name_servers) as client, client.producer("view-tests") as out:
        out.send_many("viewed", [Outgoing(value=b"99", tag="c", keys=["${env:HOME}"])])
    quoted.view("variable", keys="${env:HOME}")
    assert numbers(quoted.where(keys="${env:HOME}")) == numbers(spark.table("variable")) == [99]
    for name, condition in (("limited", "keys = 'k7' LIMIT 1"), ("blank", ""), ("unresolved", "nope = 1")):
        with pytest.raises(Exception, match=r"PARSE_|UNRESOLVED_COLUMN"):
            quoted.view(name, condition)
    other = topic(spark.newSession(), "viewed", name_server=server.name_servers)
    assert numbers(other.load().where("tags = 'c'")) == [99]
    with pytest.MonkeyPatch.context() as patched:  # as where the driver's Python has no saturnmq
        patched.setattr(topic_reads, "FORMAT", "absent")
        with pytest.raises(ConfigError, match=r"topic 'viewed': this session does not have format absent.*register"):
            topic(spark, "viewed", name_server=server.name_servers).load()
    with pytest.raises(Exception, match="unknown option 'topci'"):
        topic(spark, "viewed", name_server=server.name_servers, topci="x").view("wrong")
