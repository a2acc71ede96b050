"""Group filters: heartbeats, dead and revived records, consumerFilter.json, pulls, retry topics, CHECK_CLIENT_CONFIG (46)."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.filter import (
    BloomFilter,
    FilterChange,
    FilterError,
    GroupFilters,
    check_subscription,
    pull_filter_of,
    require_property_filter,
)
from saturnmq.filter.bloom import set_bits
from saturnmq.filter.group_filters import CLEAN_TIME_SPAN_MS
from saturnmq.protocol.bodies import SubscriptionData
from saturnmq.protocol.errors import BodyError, ResponseError

NOW = 1_700_000_000_000


def sql(text: str, version: int = 1, topic: str = "T", kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic, sub_string=text, sub_version=version, expression_type=kind)


def changes(
    filters: GroupFilters, *subscriptions: SubscriptionData, now_ms: int = NOW, group: str = "g"
) -> list[FilterChange]:
    return [fact.change for fact in filters.subscribe(group, subscriptions, now_ms)]


# ---- heartbeats


@pytest.mark.spec("FIL-04")
def test_heartbeat_creates_record() -> None:
    filters = GroupFilters()
    assert changes(filters, sql("a > 1", version=7)) == [FilterChange.NEW]
    record = filters.get("T", "g")
    assert record is not None
    assert (record.expression, record.born_time_ms, record.dead_time_ms, record.client_version) == ("a > 1", NOW, 0, 7)
    assert record.positions == BloomFilter().positions("g#T")
    assert not record.dead
    assert record.matcher.by_properties({"a": "2"}) and not record.matcher.by_properties({"a": "1"})


@pytest.mark.spec("FIL-04")
@pytest.mark.parametrize("kind", ["TAG", "", "tag"])
def test_tags_and_empty_expressions_have_no_record(kind: str) -> None:
    filters = GroupFilters()
    expected = [FilterChange.REJECTED] if kind == "tag" else []  # an unknown expression type
    assert changes(filters, sql("a", kind=kind)) == expected
    assert changes(filters, sql("", kind="SQL92")) == []
    assert len(filters) == 0


@pytest.mark.spec("FIL-04")
def test_same_or_older_version_is_ignored() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1", version=7))
    for version in (6, 7):
        fact = filters.register("g", sql("a > 2", version=version), NOW + 5)
        assert fact is not None and fact.change is FilterChange.IGNORED
        assert "another expression" in fact.detail
    record = filters.get("T", "g")
    assert record is not None and (record.expression, record.client_version) == ("a > 1", 7)


@pytest.mark.spec("FIL-04")
def test_newer_version_of_same_expression_keeps_record() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1", version=7))
    record = filters.get("T", "g")
    assert changes(filters, sql("a > 1", version=8), now_ms=NOW + 5) == [FilterChange.CONFIRMED]
    assert filters.get("T", "g") is record
    assert record is not None and (record.client_version, record.born_time_ms) == (8, NOW)


@pytest.mark.spec("FIL-04")
def test_newer_expression_replaces_record() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1", version=7))
    assert changes(filters, sql("a > 2", version=8), now_ms=NOW + 5) == [FilterChange.CHANGED]
    record = filters.get("T", "g")
    assert record is not None and (record.expression, record.born_time_ms) == ("a > 2", NOW + 5)


@pytest.mark.spec("FIL-04")
def test_invalid_new_expression_removes_record() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1", version=7))
    facts = filters.subscribe("g", [sql("a > > 2", version=8)], NOW + 5)
    assert [fact.change for fact in facts] == [FilterChange.REJECTED]
    assert "column 5" in facts[0].detail
    assert filters.get("T", "g") is None
    with pytest.raises(ResponseError) as caught:
        filters.for_pull("T", "g", 8)
    assert caught.value.code == 27


@pytest.mark.spec("FIL-04")
def test_record_is_dead_after_last_member_left_and_can_be_revived() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1", version=7), sql("b > 1", version=7, topic="U"))
    facts = filters.unsubscribe("g", NOW + 10)
    assert [(fact.change, fact.topic) for fact in facts] == [(FilterChange.DEAD, "T"), (FilterChange.DEAD, "U")]
    record = filters.get("T", "g")
    assert record is not None and record.dead and record.dead_time_ms == NOW + 10
    assert filters.unsubscribe("g", NOW + 20) == [], "dead is dead"
    assert filters.register("g", sql("a > 1", version=6), NOW + 25).change is FilterChange.REVIVED  # type: ignore[union-attr]
    assert record.client_version == 6
    filters.unsubscribe("g", NOW + 28)
    assert filters.register("g", sql("a > 1", version=6), NOW + 30).change is FilterChange.REVIVED  # type: ignore[union-attr]
    assert not record.dead and record.born_time_ms == NOW
    filters.unsubscribe("g", NOW + 40)
    assert filters.register("g", sql("a > 1", version=9), NOW + 50).change is FilterChange.REVIVED  # type: ignore[union-attr]
    assert record.client_version == 9


@pytest.mark.spec("FIL-04")
def test_record_of_unsubscribed_topic_becomes_dead() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1"), sql("b > 1", topic="U"))
    changes(filters, sql("c > 1"), group="other")
    assert changes(filters, sql("b > 1", topic="U", version=2), now_ms=NOW + 5) == [
        FilterChange.CONFIRMED,
        FilterChange.DEAD,
    ]
    assert [record.dead for record in filters] == [True, False, False]


@pytest.mark.spec("FIL-04")
def test_dead_records_are_removed_after_a_day() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1"), sql("b > 1", topic="U"))
    filters.subscribe("g", [sql("b > 1", topic="U", version=2)], NOW + 10)
    assert filters.clean(NOW + 10 + CLEAN_TIME_SPAN_MS - 1) == []
    assert filters.clean(NOW + 10 + CLEAN_TIME_SPAN_MS) == [("T", "g")]
    assert [record.topic for record in filters] == ["U"]
    assert CLEAN_TIME_SPAN_MS == 86_400_000
    filters.unsubscribe("g", NOW + 20)
    assert filters.clean(NOW + 25, span_ms=5) == [("U", "g")]


# ---- the file


@pytest.mark.spec("FIL-04")
@pytest.mark.parametrize("store", ["broker", "broker-rollover-ext", "dledger-n0", "dledger-n1"])
def test_golden_filter_file_round_trips_byte_for_byte(vectors: Path, store: str) -> None:
    data = (vectors / "store" / store / "config" / "consumerFilter.json").read_bytes()
    filters = GroupFilters()
    assert [fact.change for fact in filters.load(data, NOW)] == [FilterChange.NEW]
    record = filters.get("VecSql", "vec_sql_group")
    assert record is not None and record.dead and record.matcher.by_properties({"x": "2"})
    assert filters.encode() == data


@pytest.mark.spec("FIL-04")
def test_golden_filter_file_of_killed_broker_loads_as_dead(vectors: Path) -> None:
    data = (vectors / "store" / "broker-killed" / "config" / "consumerFilter.json").read_bytes()
    born = 1795223694402
    filters = GroupFilters()
    filters.load(data, now_ms=born + 100_000)
    record = filters.get("VecSql", "vec_sql_group")
    assert record is not None and record.dead_time_ms == born + 70_000
    filters.load(data, now_ms=born + 10)
    record = filters.get("VecSql", "vec_sql_group")
    assert record is not None and record.dead and record.dead_time_ms == born, "not before its birth"


@pytest.mark.spec("FIL-04")
def test_changed_bloom_filter_drops_all_saved_records() -> None:
    filters = GroupFilters(BloomFilter(20, 64))
    changes(filters, sql("a > 1"), sql("b > 1", topic="U"))
    saved = filters.encode()
    other = GroupFilters(BloomFilter(20, 32))
    changes(other, sql("old = 1"))
    assert {fact.change for fact in other.load(saved, NOW)} == {FilterChange.REJECTED}
    assert len(other) == 0


@pytest.mark.spec("FIL-04")
def test_saved_record_with_invalid_expression_or_bits_is_dropped() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1"), sql("b > 1", topic="U"), sql("c > 1", topic="V"))
    document = json.loads(filters.encode())
    document["filterDataByTopic"]["T"]["groupFilterData"]["g"]["expression"] = "a > >"
    document["filterDataByTopic"]["U"]["groupFilterData"]["g"]["bloomFilterData"]["bitPos"] = [0, 1, 2]
    facts = GroupFilters().load(json.dumps(document).encode(), NOW)
    assert [(fact.topic, fact.change) for fact in facts] == [
        ("T", FilterChange.REJECTED),
        ("U", FilterChange.REJECTED),
        ("V", FilterChange.NEW),
    ]


@pytest.mark.spec("FIL-04")
def test_non_ascii_expressions_survive_filter_file() -> None:
    filters = GroupFilters()
    changes(filters, sql("a = '\"é漢\\\t' OR b IN ('\n')"), group='gé"')
    again = GroupFilters()
    again.load(filters.encode(), NOW)
    assert [(r.group, r.expression) for r in again] == [(r.group, r.expression) for r in filters]
    assert GroupFilters().load(GroupFilters().encode(), NOW) == []


@pytest.mark.spec("FIL-04")
@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["filterDataByTopic", "T", "groupFilterData", "g", "bloomFilterData", "bitPos", "bitNum", "expression",
                     "expressionType", "bornTime"]), inner)).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_filter_file_loads_or_raises_body_error(data: bytes) -> None:
    filters = GroupFilters()
    with suppress(BodyError):
        filters.load(data, NOW)
    assert len(filters) == 0


# ---- pulls


@pytest.mark.spec("FIL-04", "BP-01")
def test_pull_requires_record_as_new_as_its_subscription() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1", version=7))
    codes, by_extension, by_record = filters.for_pull("T", "g", 7)
    record = filters.get("T", "g")
    assert record is not None and by_extension == record.by_extension and codes is None
    assert by_record is not None and by_record(b"a\x012\x02") and not by_record(b"a\x011\x02")
    for topic, version, code in (("U", 0, 27), ("T", 8, 28)):
        with pytest.raises(ResponseError) as caught:
            filters.for_pull(topic, "g", version)
        assert caught.value.code == code


@pytest.mark.spec("FIL-06", "CQ-14")
def test_bit_map_contains_bits_of_all_matching_groups() -> None:
    filters = GroupFilters()
    assert filters.bit_map("T", {"a": "2"}) is None
    changes(filters, sql("a > 1"), group="one")
    changes(filters, sql("a > 2"), group="two")
    changes(filters, sql("a > 'x' OR"), group="broken")
    changes(filters, sql("a > 0", topic="U"), group="three")
    for value, groups in (("1", []), ("2", ["one"]), ("3", ["one", "two"]), ("x", [])):
        expected = bytearray(14)
        for group in groups:
            set_bits(expected, filters.bloom.positions(f"{group}#T"))
        assert filters.bit_map("T", {"a": value}) == bytes(expected)
    assert filters.bit_map("T", None) == bytes(14)


@pytest.mark.spec("FIL-06")
def test_extension_rules_out_only_messages_with_missing_bits() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1"))
    record = filters.get("T", "g")
    assert record is not None
    full, empty = filters.bit_map("T", {"a": "2"}), filters.bit_map("T", {"a": "0"})
    assert full is not None and empty is not None
    assert record.by_extension(NOW + 1, full)
    assert not record.by_extension(NOW + 1, empty)
    assert not record.by_extension(NOW + 1, memoryview(empty))
    assert record.by_extension(NOW, empty), "stored before the filter was born"
    assert record.by_extension(NOW + 1, None), "no bit map"
    assert record.by_extension(NOW + 1, b"")
    assert record.by_extension(NOW + 1, empty + b"\0"), "a map of another length"


@pytest.mark.spec("FIL-06")
@given(st.lists(st.sampled_from("0123x"), min_size=1, max_size=8), st.integers(1, 12))
def test_bit_map_never_rules_out_matching_message(values: list[str], groups: int) -> None:
    filters = GroupFilters(BloomFilter(50, 4))
    for number in range(groups):
        filters.register(f"g{number}", sql(f"a >= {number % 4}"), NOW)
    for value in values:
        bit_map = filters.bit_map("T", {"a": value})
        for record in filters:
            if record.matcher.by_properties({"a": value}):
                assert record.by_extension(NOW + 1, bit_map)


@pytest.mark.spec("FIL-05")
def test_retry_topic_uses_filter_of_source_topic() -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1"))
    accepts = filters.for_retry("g")
    assert accepts(b"RETRY_TOPIC\x01T\x02a\x012\x02")
    assert not accepts(b"RETRY_TOPIC\x01T\x02a\x011\x02")
    assert accepts(b"RETRY_TOPIC\x01U\x02a\x011\x02"), "no expression on that topic"
    assert accepts(b"a\x011\x02") and accepts(b"")
    assert filters.for_retry("other")(b"RETRY_TOPIC\x01T\x02a\x011\x02")


@pytest.mark.spec("FIL-05")
def test_retry_topic_is_unfiltered_without_filter_support_retry() -> None:
    assert pull_filter_of("*", "TAG") == (None, None, None)


# ---- checks


@pytest.mark.spec("FIL-03")
@pytest.mark.parametrize(
    ("text", "kind", "enabled", "code"),
    [
        ("a > 1", "SQL92", True, None),
        ("a > 1", "SQL92", False, 1),
        ("a > >", "SQL92", False, 1),
        ("a > >", "SQL92", True, 23),
        ("", "SQL92", True, 23),
        (None, "SQL92", True, 23),
        ("a > 1", "SQL93", True, 23),
        ("a", "TAG", False, None),
        ("||", "TAG", True, None),
        (None, None, False, None),
    ],
)
def test_check_subscription_returns_expected_code(
    text: str | None, kind: str | None, enabled: bool, code: int | None
) -> None:
    if code is None:
        check_subscription(text, kind, property_filter_enabled=enabled)
        return
    with pytest.raises(ResponseError) as caught:
        check_subscription(text, kind, property_filter_enabled=enabled)
    assert caught.value.code == code
    assert caught.value.remark


@pytest.mark.spec("FIL-03", "PRC-07")
def test_expressions_require_property_filter_enabled() -> None:
    require_property_filter("SQL92", enabled=True)
    require_property_filter("TAG", enabled=False)
    require_property_filter(None, enabled=False)
    with pytest.raises(ResponseError) as caught:
        require_property_filter("SQL92", enabled=False)
    assert (caught.value.code, caught.value.remark) == (
        1,
        "The broker does not support consumer to filter message by SQL92",
    )


@pytest.mark.spec("BP-01")
def test_pull_with_invalid_expression_fails_with_23() -> None:
    for text, kind in (("a > >", "SQL92"), ("||", "TAG"), ("a", "CLASS")):
        with pytest.raises(FilterError) as caught:
            pull_filter_of(text, kind)
        assert caught.value.code == 23


def padded(text: str, chars: int) -> str:
    return text + " " * (chars - len(text))


@pytest.mark.parametrize(("chars", "registered"), [(4096, True), (4097, False)])
def test_replaced_expressions_are_compiled_at_once_up_to_8192_chars(chars: int, registered: bool) -> None:
    filters = GroupFilters()
    changes(filters, sql("a > 1", topic="T"), sql("a > 1", topic="U"))
    facts = filters.replace("g", [sql(padded("a > 2", 4096), topic="T"), sql(padded("a > 2", chars), topic="U")], NOW)
    replaced = [(FilterChange.DEAD, "T"), (FilterChange.NEW, "T"), (FilterChange.DEAD, "U"), (FilterChange.NEW, "U")]
    assert [(fact.change, fact.topic) for fact in facts] == (replaced if registered else replaced[:3])
    assert {fact.detail for fact in facts if fact.change is FilterChange.DEAD} == {"its member left"}
    assert filters.get("T", "g") is not None
    assert (filters.get("U", "g") is not None) is registered, "the next heartbeat compiles it"


def test_chars_of_all_expressions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saturnmq.filter.group_filters._CHARS_MAX", 15)
    filters = GroupFilters()
    assert changes(filters, *(sql("a > 1", topic=topic) for topic in "TUV")) == [FilterChange.NEW] * 3, (
        "exactly the limit"
    )
    assert changes(filters, sql("a > 1", topic="W"), group="h") == [FilterChange.REJECTED]
    assert changes(filters, sql("a > 10", 2, "T"), sql("a > 1", topic="U"), sql("a > 1", topic="V")) == [
        FilterChange.REJECTED, FilterChange.IGNORED, FilterChange.IGNORED,
    ]  # fmt: skip
    assert changes(filters, sql("a > 1", topic="W"), group="h") == [FilterChange.NEW], (
        "the rejected one has left its space"
    )
    filters.unsubscribe("g", NOW + 1)
    assert changes(filters, sql("a > 1", topic="X"), sql("a > 1", topic="W"), group="h") == [
        FilterChange.NEW,
        FilterChange.IGNORED,
    ]
    assert sorted(record.topic for record in filters if record.group == "h") == ["W", "X"]
    assert len(filters) == 3, "one dead record has made way"
