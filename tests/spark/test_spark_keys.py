"""Options keys and uniqKeys by the broker's index: the rows of a scan with few reads, or a scan where it is unreliable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from saturnmq import Outgoing
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.errors import response_error
from saturnmq.protocol.message import java_hash
from saturnmq.spark import index_lookup
from saturnmq.spark.index_lookup import ANSWER_MAX
from saturnmq.spark.ranges import QueueRange
from saturnmq.spark.source import RocketMQDataSource
from saturnmq.store import StoreSettings
from saturnmq.sync import Client
from saturnmq.testing import SyncEmbeddedBroker

COUNT, QUEUES = 3000, 2
SHARED = dict.fromkeys(range(0, 600, 10), "few") | dict.fromkeys(range(1000, 1200, 2), "many")
SAME_HASH = ("Aa", "BB")  # two keys with the same hash


def key_of(n: int) -> list[str]:
    if n in (50 + 1, 2500):
        return [SAME_HASH[n == 2500]]
    return [SHARED[n], f"k{n}"] if n in SHARED else [f"k{n}"]


def fill(server: SyncEmbeddedBroker, topic: str, count: int = COUNT) -> None:
    with Client(name_servers=server.name_servers) as client, client.producer("key-tests") as out:
        client.create_topic(topic, queues=QUEUES)
        for queue in out.queues(topic):
            own = range(queue.queue_id, count, QUEUES)
            for at in range(0, len(own), 500):
                out.send_many(
                    topic, [Outgoing(value=b"%d" % n, keys=key_of(n)) for n in own[at : at + 500]], queue=queue
                )


@pytest.fixture(scope="module")
def keyed(server: SyncEmbeddedBroker) -> SyncEmbeddedBroker:
    fill(server, "keyed")
    until = time.monotonic() + 30
    while read(server, "keyed", keys=f"k{COUNT - 1}")[1] != 1:  # the index follows in steps
        assert time.monotonic() < until
        time.sleep(0.05)  # poll
    return server


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The keys that the index was queried for."""
    seen: list[str] = []
    query = index_lookup._query

    async def noted(link: Any, topic: str, broker: str, key: str, **more: Any) -> Any:
        seen.append(key)
        return await query(link, topic, broker, key, **more)

    monkeypatch.setattr(index_lookup, "_query", noted)
    yield seen


def read(server: SyncEmbeddedBroker, topic: str, **options: str) -> tuple[list[int], int]:
    """Return (numbers, messages in the planned ranges)."""
    given = {"nameServer": server.name_servers, "topic": topic} | options
    source = RocketMQDataSource(given)
    made: Any = source.reader(source.schema())
    pieces = made.partitions()
    found = [row for piece in pieces for batch in made.read(piece) for row in batch.to_pylist()]
    planned = sum(piece.piece[4] - piece.piece[3] for piece in pieces if piece.piece)
    return sorted(int(row["body"]) for row in found), planned


@pytest.mark.spec("SRC-19")
def test_key_is_found_by_index_with_few_reads(keyed: SyncEmbeddedBroker, asked: list[str]) -> None:
    assert read(keyed, "keyed", keys="k1777") == ([1777], 1)
    assert len(asked) == 3 and asked[2] == "k1777", "first whether the index covers the range, then the key"
    numbers, planned = read(keyed, "keyed", keys="k7,k9,k2999,nowhere")
    assert numbers == [7, 9, 2999] and planned == 3, "7 and 9 lie beside each other"
    assert read(keyed, "keyed", keys="nowhere") == ([], 0)
    assert read(keyed, "keyed", keys="k590") == ([590], 1), "one of two keys of the message"
    assert read(keyed, "keyed", keys="few")[0] == list(range(0, 600, 10))


@pytest.mark.spec("SRC-19")
def test_unique_key_is_found_by_index(keyed: SyncEmbeddedBroker, asked: list[str]) -> None:
    source = RocketMQDataSource({"nameServer": keyed.name_servers, "topic": "keyed", "columns": "uniqKey,body"})
    made: Any = source.reader(source.schema())
    rows = [row for piece in made.partitions() for batch in made.read(piece) for row in batch.to_pylist()]
    uniq = {int(row["body"]): row["uniqKey"] for row in rows}
    assert len(uniq) == COUNT and not asked
    assert read(keyed, "keyed", uniqKeys=uniq[2024]) == ([2024], 1)
    several = f"{uniq[3]},{uniq[1500]}"
    assert read(keyed, "keyed", uniqKeys=several, keys="k3") == ([3], 2)
    ranged = read(keyed, "keyed", uniqKeys=several, endingOffsets='{"keyed":{"broker-a":{"0":700,"1":700}}}')
    assert ranged == ([3], 1), "the index knows no ranges of offsets, the plan does"
    assert read(keyed, "keyed", uniqKeys=several, queues="1") == ([3], 1)


@pytest.mark.spec("SRC-19", "IX-03")
def test_records_with_colliding_hash_are_filtered_out(keyed: SyncEmbeddedBroker) -> None:
    assert java_hash("keyed#Aa") == java_hash("keyed#BB")
    for n, key in ((51, "Aa"), (2500, "BB")):
        numbers, planned = read(keyed, "keyed", keys=key)
        assert numbers == [n] and 1 <= planned <= 2


@pytest.mark.spec("SRC-19", "IX-06")
def test_index_answer_at_cap_is_not_used(keyed: SyncEmbeddedBroker, asked: list[str]) -> None:
    """100 messages have the word `many`, of which the broker returns 64."""
    assert ANSWER_MAX == 64 and sum(word == "many" for word in SHARED.values()) > ANSWER_MAX > sum(
        word == "few" for word in SHARED.values()
    )
    many = list(range(1000, 1200, 2))
    assert read(keyed, "keyed", keys="many") == (many, COUNT) and asked[-1] == "many"
    assert read(keyed, "keyed", keys="many,k5") == ([5, *many], COUNT), "one full answer is enough for a scan"


@pytest.mark.spec("SRC-19")
@pytest.mark.parametrize("which", [0, 1], ids=["oldest", "newest"])
def test_index_not_covering_range_ends_is_not_used(
    keyed: SyncEmbeddedBroker, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """Index files are deleted before queues are, and records reach their queue before the index."""
    query, calls = index_lookup._query, 0

    async def without_end(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        return [] if calls == which + 1 else await query(*given, **more)

    monkeypatch.setattr(index_lookup, "_query", without_end)
    assert read(keyed, "keyed", keys="k1777") == ([1777], COUNT)
    assert calls == which + 1


@pytest.mark.spec("SRC-19")
def test_broker_without_index_or_with_errors_is_scanned(
    keyed: SyncEmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SyncEmbeddedBroker(store=StoreSettings(message_index_enable=False)) as server:
        fill(server, "plain", 1200)
        assert read(server, "plain", keys="k77") == ([77], 1200)

    async def rejected(*_given: Any, **_more: Any) -> Any:
        raise response_error(ResponseCode.SYSTEM_ERROR, f"code {RequestCode.QUERY_MESSAGE} is not served")

    monkeypatch.setattr(index_lookup, "_query", rejected)
    assert read(keyed, "keyed", keys="k1777") == ([1777], COUNT)


@pytest.mark.spec("SRC-19")
def test_small_range_or_long_key_list_is_scanned(keyed: SyncEmbeddedBroker, asked: list[str]) -> None:
    assert read(keyed, "keyed", keys="k6", endingOffsets='{"keyed":{"broker-a":{"0":50,"1":50}}}') == ([6], 100)
    assert read(keyed, "keyed", keys=",".join(f"k{n}" for n in range(600, 609))) == (
        list(range(600, 609)),
        COUNT,
    )
    assert not asked


@pytest.mark.spec("SRC-19")
def test_narrowed_ranges_keep_times_and_merge_near_offsets() -> None:
    whole = QueueRange("T", "b", 1, 100, 5000, 7, 9)
    places = {(1, 99), (1, 100), (1, 200), (1, 1000), (1, 5000), (0, 300)}
    assert index_lookup._pieces(whole, places) == [
        QueueRange("T", "b", 1, 100, 201, 7, 9),
        QueueRange("T", "b", 1, 1000, 1001, 7, 9),
    ]
