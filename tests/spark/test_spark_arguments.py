"""Arguments of `topic(...)` and options that a read cannot honour: each is an error that names it. Without a session."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from saturnmq.protocol.errors import ConfigError
from saturnmq.spark import topic_reads
from saturnmq.spark.options import parse_options

DAY = 1_772_323_200_000  # 2026-03-01


@pytest.mark.parametrize(
    "time",
    [
        date(2026, 3, 1),
        datetime(2026, 3, 1),
        datetime(2026, 3, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        "2026-03-01",
        "2026-03-01T02:00+02:00",
        DAY,
    ],
)
def test_time_of_a_read_is_any_form_of_an_instant(time: Any) -> None:
    assert topic_reads.unix_ms("since", time) == DAY


@pytest.mark.parametrize(
    ("time", "problem"),
    [
        (1.5, "since=1.5 is float, must be a datetime, a date, Unix ms or ISO text"),
        (True, "since=True is bool"),
        ("", "since='' is no time, such as"),
        (datetime(1969, 12, 31, tzinfo=UTC), r"is -86400000 ms, must be 0 \(1970-01-01\) to"),
        (2**63, "is 9223372036854775808 ms, must be 0"),
    ],
)
def test_time_of_a_read_outside_its_range_is_an_error(time: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        topic_reads.unix_ms("since", time)


def test_arguments_of_a_read_are_checked_before_spark_is_asked() -> None:
    with pytest.raises(ConfigError, match="sql=5 is int, must be text"):
        topic_reads._narrowing(sql=5)
    session: Any = SimpleNamespace(conf={})
    reads = topic_reads.reads_of(session, "T", "h:1", {"group": None, "failOnDataLoss": False})
    assert reads._options == {"topic": "T", "failOnDataLoss": "false", "nameServer": "h:1"}, "None: the default"
    for name in ("", " ", "of_${env:HOME}"):
        with pytest.raises(ConfigError, match=r"its name must not be blank or contain '\${', which Spark replaces"):
            reads.view(name)
    assert "$" not in topic_reads._literal("${env:HOME}"), "Spark replaces variables inside SQL literals"


def test_narrowing_arguments_become_options() -> None:
    assert topic_reads._narrowing(
        since=DAY, until="2026-03-02", sql="a = 1", tags="paid", keys=["k", 7], uniq_keys=("U",), queues=[0, 3], topics=None
    ) == {
        "startingTimestamp": str(DAY), "endingTimestamp": str(DAY + 86_400_000), "sql": "a = 1", "tags": '["paid"]',
        "keys": '["k", 7]', "uniqKeys": '["U"]', "queues": "0,3",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="tags is an empty list; leave the argument out to read all messages"):
        topic_reads._narrowing(tags=[])


def test_session_without_the_data_source_names_register() -> None:
    class Reader:
        """The reader of a session that does not have the data source."""

        def format(self, _name: str) -> Reader:
            return self

        def options(self, **_options: str) -> Reader:
            return self

        def load(self) -> None:
            raise RuntimeError("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: rocketmq")

    session: Any = SimpleNamespace(conf={}, read=Reader())
    with pytest.raises(ConfigError, match=r"topic 'T': this session does not have format rocketmq.*register\(spark\)"):
        topic_reads.reads_of(session, "T", "h:1", {}).load()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"T":{"a":{"0":9}}}'},
         "give only one of startingTimestamp and startingOffsetsByTimestamp"),
        ({"endingTimestamp": "5", "endingOffsetsByTimestamp": '{"T":{"a":{"0":9}}}'},
         "give only one of endingTimestamp and endingOffsetsByTimestamp"),
        ({"startingTimestamp": str(2**63)}, r"startingTimestamp='9223372036854775808': must be a whole number of 0\.\."),
        ({"includeSystem": "true", "brokerName": "b"}, "option includeSystem, brokerName: only with mode=files"),
        ({"uncommitted": "true"}, "option uncommitted: only with mode=files"),
        ({"mode": "files", "path": "/s", "startingOffsets": '{"T":{"a":{"0":9}}}', "group": "G"},
         "option startingOffsets, group: only with mode=broker; limit a read of files by startingTimestamp"),
        ({"mode": "files", "path": "/s", "endingOffsetsByTimestamp": '{"T":{"a":{"0":9}}}'},
         "option endingOffsetsByTimestamp: only with mode=broker"),
    ],
)  # fmt: skip
def test_option_that_a_read_would_ignore_is_an_error(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_options({"nameServer": "h:1", "topic": "T"} | given)


def test_default_of_an_option_is_accepted_in_each_mode() -> None:
    parse_options({"mode": "files", "path": "/s", "startingOffsets": "earliest", "endingOffsets": "latest"})
    parse_options({"nameServer": "h:1", "topic": "T", "includeSystem": "false", "uncommitted": "false"})
