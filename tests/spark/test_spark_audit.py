"""Audit of a table that holds messages of a deleted topic and of the one created again by its name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from saturnmq.spark.pipelines import audit, lake

pytestmark = pytest.mark.spark
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
Row = tuple[Any, ...]


def rows_of(queue: int, offsets: list[int], *, seconds: int, position: int, late: int | None = None) -> list[Row]:
    """Return rows of table messages, one a second and 100 bytes. late: the offset stored 30 s earlier than its place says."""
    rows = []
    for n, offset in enumerate(offsets):
        at = NOON + timedelta(seconds=seconds + n - (30 if offset == late else 0))
        message_id = f"01020304{10911:08X}{position + 100 * n:016X}"
        rows.append(("orders", "broker-a", queue, offset, at, at, "t", "k", message_id, 0, 0, "1.2.3.4:5", "", b"body",
                     message_id, at.date(), at.hour))  # fmt: skip
    return rows


# name: messages of one queue, the gaps that they have, how many are out of order, and whether the topic was created again
QUEUES: dict[str, tuple[list[list[Row]], set[tuple[int, int]], int, bool]] = {
    "both have a gap at an offset that the other one has": (
        [rows_of(0, [0, 1, 2, 3, 5, 6], seconds=0, position=0), rows_of(0, [0, 1, 2, 4], seconds=100, position=5000)],
        {(4, 5), (3, 4)}, 0, True,
    ),
    "the first messages of the old topic had expired": (
        [rows_of(1, [5, 6, 7], seconds=0, position=10_000), rows_of(1, [0, 1], seconds=100, position=20_000)],
        set(), 0, True,
    ),
    "the broker lost its store": (
        [rows_of(2, [0, 1, 2], seconds=0, position=30_050), rows_of(2, [0, 1, 2, 3], seconds=100, position=0)],
        set(), 0, True,
    ),
    "one topic, a step of the clock, each row written twice": (
        [rows_of(3, [0, 1, 2, 5], seconds=0, position=40_000, late=2) * 2], {(3, 5)}, 1, False,
    ),
    "the clock stepped back before the topic was created again": (
        [rows_of(4, [0, 1, 2], seconds=50, position=50_000), rows_of(4, [0, 1], seconds=0, position=60_000)],
        set(), 0, True,
    ),
}  # fmt: skip


@pytest.mark.spec("PIP-12")
def test_audit_compares_each_incarnation_of_a_topic_by_itself(spark: Any, tmp_path: Path) -> None:
    rows = [row for parts, *_ in QUEUES.values() for part in parts for row in part]
    lake.replace_table(spark.createDataFrame(rows[::-1], lake.MESSAGES).coalesce(1), str(tmp_path / "messages"))
    conf = audit.AuditConf(lake=str(tmp_path), trace_table=str(tmp_path / "none"))
    outcome = audit.run(spark, conf, lambda _words: None)
    gaps = lake.head(spark, conf.table("offset_gaps"), 100)
    for queue, (name, (_, expected, _, _)) in enumerate(QUEUES.items()):
        found = sorted((row["from_offset"], row["to_offset"]) for row in gaps if row["queue_id"] == queue)
        assert found == sorted(expected), name
    (daily,) = lake.head(spark, conf.table("audit_daily"), 10)
    assert daily["out_of_order"] == sum(count for _, _, count, _ in QUEUES.values())
    assert outcome.more["recreated"] == sum(is_recreated for *_, is_recreated in QUEUES.values()) == 4
    assert "4 queues hold messages of a topic that was created again" in outcome.message
