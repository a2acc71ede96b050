"""The SQL92 language, rule by rule. sql92_corpus.json holds the results of Apache RocketMQ for each case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filter_reference import verdict as reference_verdict

from saturnmq.filter import FilterError, PropertyError, SqlMatcher, compile_sql, pull_filter_of

CORPUS = json.loads((Path(__file__).parent / "sql92_corpus.json").read_text(encoding="utf-8"))["cases"]
ROWS = sorted({row for row, *_ in CORPUS})


def verdict(text: str, properties: dict[str, str]) -> str:
    try:
        answer = compile_sql(text).evaluate(properties)
    except FilterError:
        return "E"
    except PropertyError:
        return "X"
    return {True: "T", False: "F", None: "N"}[answer]


def wanted(text: str, **properties: str) -> bool:
    return compile_sql(text).by_properties(properties)


@pytest.mark.spec("FIL-09", "FIL-10", "FIL-11", "FIL-12", "FIL-13", "FIL-14", "FIL-15", "PRC-07")
@pytest.mark.parametrize("row", ROWS)
def test_corpus_results_match_apache(row: str) -> None:
    cases = [case for case in CORPUS if case[0] == row]
    assert len(cases) >= 10
    wrong = [(text, properties, said) for _, text, properties, said in cases if verdict(text, properties) != said]
    assert wrong == []


@pytest.mark.spec("FUZ-06")
def test_reference_implementation_matches_apache() -> None:
    assert [case for case in CORPUS if reference_verdict(case[1], case[2]) != case[3]] == []


@pytest.mark.spec("FIL-09")
@pytest.mark.parametrize(
    ("left", "right", "either", "both"),
    [
        ("TRUE", "TRUE", "T", "T"),
        ("TRUE", "FALSE", "T", "F"),
        ("TRUE", "NULL", "T", "N"),
        ("FALSE", "FALSE", "F", "F"),
        ("FALSE", "NULL", "N", "F"),
        ("NULL", "NULL", "N", "N"),
    ],
)
def test_and_or_follow_three_valued_logic(left: str, right: str, either: str, both: str) -> None:
    for first, second in ((left, right), (right, left)):
        assert verdict(f"{first} OR {second}", {}) == either
        assert verdict(f"{first} AND {second}", {}) == both
        assert verdict(f"({first}) OR ({second} OR FALSE)", {}) == either
        assert verdict(f"TRUE AND ({first} AND ({second}))", {}) == both


@pytest.mark.spec("FIL-09")
def test_only_true_matches() -> None:
    assert wanted("a = 1", a="1")
    assert not wanted("a = 1", a="2")
    assert not wanted("a = 1"), "unknown"
    assert not wanted("NOT (a = 1)"), "not unknown is unknown"
    assert not compile_sql("a = 1").by_properties(None)


@pytest.mark.spec("FIL-09")
def test_equality_with_null_is_not_symmetric() -> None:
    assert verdict("a = b", {}) == "T"
    assert verdict("a = b", {"b": "1"}) == "N"
    assert verdict("a = b", {"a": "1"}) == "F"
    assert verdict("'1' = a", {}) == "F"
    assert verdict("a = '1'", {}) == "N"


@pytest.mark.spec("FIL-10")
def test_invalid_property_rejects_message_unless_or_is_true() -> None:
    assert not wanted("a > 1 OR b = 1", a="x", b="1")
    assert wanted("b = 1 OR a > 1", a="x", b="1")
    assert not wanted("NOT (a > 1)", a="x")
    with pytest.raises(PropertyError, match="'x' is not a 32-bit integer"):
        compile_sql("a > 1").evaluate({"a": "x"})


@pytest.mark.spec("FIL-10")
def test_property_texts_order_as_doubles_and_equal_as_texts() -> None:
    assert wanted("a > b", a="10", b="9")
    assert not wanted("a = b", a="1.0", b="1")
    assert not wanted("a > b", a="b", b="a")


@pytest.mark.spec("FIL-10")
def test_nan_orders_above_all_and_minus_zero_below_zero() -> None:
    assert wanted("a > 5.5", a="NaN")
    assert wanted("a > b", a="0", b="-0")
    assert not wanted("a > b", a="NaN", b="NaN")
    assert wanted("a >= b", a="NaN", b="NaN")


@pytest.mark.spec("FIL-11")
def test_comparison_of_texts_and_booleans() -> None:
    assert wanted("a = TRUE", a="tRuE")
    assert wanted("a = FALSE", a="anything")
    assert not wanted("TRUE = a", a="true")
    assert wanted("TRUE")
    assert not wanted("a", a="true")
    assert wanted("NOT a", a="true")
    assert not wanted("NOT a")


@pytest.mark.spec("FIL-12")
def test_not_binds_tighter_and_absent_properties_never_match() -> None:
    assert not wanted("NOT a = 1", a="2")
    assert wanted("NOT (a = 1)", a="2")
    for text in ("a <> 1", "a NOT IN ('1')", "a NOT BETWEEN 1 AND 2"):
        assert not wanted(text)
        assert wanted(text, a="5")


@pytest.mark.spec("FIL-13")
@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("a = NULL", 4, "nothing equals NULL"),
        ("a > 'x'", 4, "a literal beside > must be a number, not text"),
        ("a >= TRUE", 5, "a literal beside >= must be a number, not TRUE"),
        ("a < NULL", 4, "must be a number, not NULL"),
        ("a > (b = 1)", 7, "a condition cannot be compared by >"),
        ("a BETWEEN 8 AND 3", 10, "lower bound first: 8 is above 3"),
        ("5 IN ('5')", 0, "only a property can stand before IN"),
        ("x = 1 OR TRUE = 1", 14, "TRUE cannot be compared with a 32-bit integer"),
        ("1", 0, "is no condition"),
        ("b AND 'x'", 6, "text is no condition"),
        ("-a", 0, "a number is no condition"),
        ("a = 0.0", 4, "zero"),
        ("a = 1e400", 4, "too large"),
        ("a = 9223372036854775808", 4, "does not fit 64 bits"),
        ("", 0, "empty"),
        ("a > > 3", 4, "found '>'"),
        ("a = 1 & b", 6, "character '&' is not part of the language"),
        ("a = 'x", 4, "no closing quote"),
        ("a = /* x", 4, "comment has no end"),
        ("(a = 1", 6, "found the end of the text"),
        ("a IS 5", 5, "found '5'"),
        ("a NOT LIKE 'x'", 6, "found 'LIKE' behind NOT"),
        ("a BETWEEN 1 OR 2", 12, "behind the lower bound of BETWEEN"),
        ("a IN (1)", 6, "in the list of IN"),
    ],
)
def test_compile_errors_name_position_and_reason(text: str, position: int, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_sql(text)
    error = caught.value
    assert (error.code, error.position, error.line, error.column) == (23, position, 1, position + 1)
    assert reason in error.reason
    assert f"column {position + 1}: " in error.remark


@pytest.mark.spec("FIL-13")
def test_compile_error_names_line_column_and_expected_tokens() -> None:
    with pytest.raises(FilterError) as caught:
        compile_sql("a > 1\n  AND b > > 3")
    error = caught.value
    assert (error.line, error.column) == (2, 11)
    assert "a property name" in error.expected and "NOT" in error.expected
    assert str(error).startswith("SQL92 filter, line 2, column 11: found '>'; expected a property name, ")
    with pytest.raises(FilterError) as caught:
        compile_sql("a IS")
    assert caught.value.expected == ("NULL", "NOT")


@pytest.mark.spec("FIL-13")
def test_compile_error_truncates_long_text() -> None:
    with pytest.raises(FilterError) as caught:
        compile_sql("(a " + "x" * 5000)
    assert len(str(caught.value)) < 300


@pytest.mark.spec("FIL-14")
@pytest.mark.parametrize(
    ("text", "same_as", "ignored"),
    [
        ("a = 1 garbage", "a = 1", "garbage"),
        ("a = 007", "a = 0", "07"),
        ("a LIKE 'x%'", "a", "LIKE 'x%'"),
        ("a = 1 /* note */ ) ((", "a = 1", ") (("),
        ("a = 1 -- no line end", "a = 1", "-- no line end"),
        ("a = 1 -- line end\n", "a = 1", ""),
    ],
)
def test_text_after_condition_is_ignored_and_reported(text: str, same_as: str, ignored: str) -> None:
    matcher = compile_sql(text)
    assert matcher.ignored == ignored
    for value in ("0", "1", "7", "x", "x%"):
        assert verdict(text, {"a": value}) == verdict(same_as, {"a": value})


@pytest.mark.spec("FIL-14")
def test_strict_mode_rejects_text_after_condition() -> None:
    with pytest.raises(FilterError) as caught:
        compile_sql("a LIKE 'x%'", strict=True)
    assert caught.value.position == 2
    assert "LIKE" in caught.value.reason
    for text in ("a = 1", "a = 1  ", "a = 1 /* note */", "a = 1 -- line end\n"):
        compile_sql(text, strict=True)


@pytest.mark.spec("FIL-15")
def test_between_is_inclusive_and_minus_applies_to_numbers() -> None:
    assert [wanted("a BETWEEN 1 AND 3", a=str(n)) for n in range(5)] == [False, True, True, True, False]
    assert [wanted("a NOT BETWEEN 1 AND 3", a=str(n)) for n in range(5)] == [True, False, False, False, True]
    assert wanted("a = -5", a="-5")
    assert verdict("-a = 5", {"a": "5"}) == "N"


@pytest.mark.spec("FIL-15")
def test_last_100_texts_are_cached_valid_or_invalid() -> None:
    from saturnmq.filter.sql import CACHED_MAX, _compiled

    assert CACHED_MAX == 100
    _compiled.cache_clear()
    first = compile_sql("cached = 1")
    assert compile_sql("cached = 1") is first
    errors = []
    for _ in range(2):
        with pytest.raises(FilterError) as caught:
            compile_sql("cached = ")
        errors.append(caught.value)
    assert _compiled.cache_info().misses == 2
    assert errors[0] is not errors[1], "each raise has its own traceback"
    assert str(errors[0]) == str(errors[1])
    for number in range(150):
        compile_sql(f"cached = {number} AND TRUE")
    assert _compiled.cache_info().currsize == 100
    assert compile_sql("cached = 1") is not first


@pytest.mark.spec("FIL-09")
def test_sql_matcher_lists_its_properties_and_accepts_any_tag() -> None:
    matcher = compile_sql("a > 1 AND (b IN ('x') OR NOT (-c < d)) AND e IS NULL AND NOT f OR g BETWEEN h AND 9")
    assert isinstance(matcher, SqlMatcher)
    assert matcher.properties == set("abcdefgh")
    assert pull_filter_of(matcher.text, "SQL92")[:2] == (None, None)


@pytest.mark.spec("FIL-09", "FIL-15")
def test_golden_subscriptions_match_messages_delivered_by_apache(vectors: Path) -> None:
    """Apply each expression that a recorded Java consumer used to the properties of all messages it received."""
    for name in ("between_in", "boolean", "compare", "null", "tags"):
        frames = json.loads((vectors / "frames" / f"consume.sql_{name}.json").read_text())["frames"]
        text, delivered = _seen(frames)
        assert delivered
        matcher = compile_sql(text)
        for properties in delivered:
            assert matcher.by_properties(properties), (text, properties)


def _seen(frames: list[dict[str, object]]) -> tuple[str, list[dict[str, str]]]:
    from saturnmq.protocol.bodies import CheckClientRequest
    from saturnmq.protocol.message import decode_properties, decode_records

    text, delivered = "", []
    for frame in frames:
        if frame.get("cut"):
            continue
        raw = bytes.fromhex(str(frame["hex"]))
        body = raw[8 + int(str(frame["header_len"])) :]
        if frame["request_code"] == 46 and frame["type"] == "request":
            subscription = CheckClientRequest.decode(body).subscription_data
            assert subscription is not None
            text = subscription.sub_string
        if frame["request_code"] == 11 and frame["type"] == "response" and body:
            for message in decode_records(body):
                found = message.properties
                delivered.append(found if isinstance(found, dict) else decode_properties(found))
    return text, delivered


@pytest.mark.spec("FIL-03")
def test_golden_invalid_subscription_fails_at_same_position(vectors: Path) -> None:
    frames = json.loads((vectors / "frames" / "consume.sql_invalid.json").read_text())["frames"]
    text, _ = _seen(frames)
    remark = next(f["header"]["remark"] for f in frames if f["request_code"] == 46 and f["type"] == "response")
    assert "at line 1, column 5." in remark
    with pytest.raises(FilterError, match="line 1, column 5: found '>'"):
        compile_sql(text)
