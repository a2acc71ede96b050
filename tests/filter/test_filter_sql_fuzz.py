"""Any text compiles or raises FilterError in bounded time; generated cases agree with the reference implementation."""

from __future__ import annotations

from collections import Counter
from time import process_time

import pytest
from filter_expressions import pairs
from filter_reference import verdict as reference_verdict
from hypothesis import example, given
from hypothesis import strategies as st

from saturnmq.filter import FilterError, PropertyError, compile_sql
from saturnmq.filter.errors import Mistake
from saturnmq.filter.sql import TEXT_BYTES_MAX, _compiled
from saturnmq.filter.syntax import DEPTH_MAX
from saturnmq.filter.tokens import TOKENS_MAX, Tokens

PIECES = st.sampled_from(
    ["a", "b", "NOT", "AND", "OR", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "=", "<>", ">", ">=", "<", "<=", "(", ")", ",",
     "+", "-", "0", "5", "5.5", "1e400", "9223372036854775808", "'x'", "'", "''", "--", "\n", "/*", "*/", ".", "&", "é", " "]
)  # fmt: skip
TEXTS = st.text() | st.lists(PIECES, max_size=30).map(" ".join) | st.lists(PIECES, max_size=30).map("".join)
PROPERTIES = st.dictionaries(st.sampled_from("ab"), st.text() | st.sampled_from(["5", "5.5", "true", "NaN", "x"]))


def verdict(text: str, properties: dict[str, str]) -> str:
    try:
        return {True: "T", False: "F", None: "N"}[compile_sql(text).evaluate(properties)]
    except FilterError:
        return "E"
    except PropertyError:
        return "X"


@pytest.mark.spec("FUZ-06", "FIL-14")
@given(TEXTS, PROPERTIES)
@example("a = \ud800", {})
@example("'\ud800' = a", {"a": "\ud800"})
@example("a = '\x00'", {"a": "\x00"})
def test_any_text_agrees_with_reference_implementation(text: str, properties: dict[str, str]) -> None:
    assert verdict(text, properties) == reference_verdict(text, properties)


@pytest.mark.spec("FUZ-06", "FIL-09", "FIL-10", "FIL-11", "FIL-12", "FIL-13", "FIL-14", "FIL-15")
def test_generated_cases_agree_with_reference_implementation() -> None:
    counts: Counter[str] = Counter()
    for text, properties in pairs(seed=20260101, expressions=7000):
        said = verdict(text, properties)
        counts[said] += 1
        assert said == reference_verdict(text, properties), (text, properties)
    assert sum(counts.values()) == 21_000
    assert min(counts[letter] for letter in "TFNXE") > 1000, f"the generator is lopsided: {counts}"


N = TEXT_BYTES_MAX
HOSTILE = {
    "or": " OR ".join(["a=2"] * (N // 7)),
    "right nested": "a=2 OR (" * (N // 10) + "a=1" + ")" * (N // 10),
    "left nested": "(" * (N // 10) + "a=1" + ") OR a=2" * (N // 10 - 1) + ")",
    "parentheses": "(" * (N // 2 - 1) + "a" + ")" * (N // 2 - 1),
    "open parentheses": "(" * N,
    "not": "NOT " * (N // 4 - 1) + "a",
    "minus": "a > " + "-" * (N - 10) + "5",
    "plus": "a > " + "+" * (N - 10) + "5",
    "equals": "a" + "=a" * (N // 2 - 1),
    "comments": "a=1 " + "--\n" * (N // 3 - 10),
    "comment stars": "a=1 /*" + "*a" * (N // 2 - 10),
    "open comments": "a=1 " + "- /*" * (N // 4 - 10),
    "quotes": "a='" + "''" * (N // 2 - 10),
    "list": "a IN (" + ",".join(["'x'"] * (N // 4 - 10)) + ")",
    "digits": "a = " + "1" * (N - 10),
    "zeros": "a = " + "0" * (N - 10),
    "decimals": "a = " + "1" * (N // 2) + "." + "1" * (N // 2 - 10),
    "name": "a" * N,
    "deep": "(a=1 AND (b=2 OR " * 1500 + "a=1" + "))" * 1500,
    "between": " AND ".join(["a BETWEEN 1 AND 2"] * (N // 22)),
}


@pytest.mark.spec("LIM-12", "FUZ-06")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_expression_takes_bounded_time(name: str) -> None:
    """The time limit leaves margin for a busy machine; a parser with quadratic time would need minutes."""
    _compiled.cache_clear()
    began = process_time()
    answer = verdict(HOSTILE[name], {"a": "1" * 32_000, "b": "0x" + "f" * 32_000 + "p1"})
    assert process_time() - began < 1.0
    assert answer in "TFNXE"


@pytest.mark.spec("LIM-12")
def test_expression_length_is_limited_in_bytes() -> None:
    fits = "a = '" + "x" * (TEXT_BYTES_MAX - 6) + "'"
    compile_sql(fits)
    for longer in (fits + " ", "a = '" + "é" * (TEXT_BYTES_MAX // 2) + "'"):
        with pytest.raises(FilterError, match="longer than 32768 bytes"):
            compile_sql(longer)


@pytest.mark.spec("LIM-12")
def test_expression_depth_is_limited_but_chains_are_not() -> None:
    assert (TEXT_BYTES_MAX, DEPTH_MAX) == (32 * 1024, 64)

    def nested(levels: int) -> str:
        return "".join("a = 1 AND (b = 2 OR (" for _ in range(levels)) + "TRUE" + "))" * levels

    assert verdict(nested(DEPTH_MAX // 2 - 1), {"a": "1"}) in "TFN"
    with pytest.raises(FilterError, match=f"nested deeper than {DEPTH_MAX} levels"):
        compile_sql(nested(DEPTH_MAX))
    deepest = "a = 1"  # two levels: the comparison and its operands
    for level in range(3, 65):
        deepest = f"b = 2 {'AND' if level % 2 else 'OR'} ({deepest})"
    assert verdict(deepest, {"a": "1"}) in "TFN"
    with pytest.raises(FilterError, match="nested deeper than 64 levels"):
        compile_sql(f"b = 2 AND ({deepest})")
    assert verdict(" OR ".join(f"a = {n}" for n in range(2000)), {"a": "1999"}) == "T"
    assert verdict("(" * 2000 + "a = 1" + ")" * 2000, {"a": "1"}) == "T"
    assert verdict("NOT " * 2001 + "TRUE", {}) == "F"
    assert verdict("a = " + "- " * 2001 + "5", {"a": "-5"}) == "T"


@pytest.mark.spec("FUZ-06")
@given(
    st.text()
    | st.from_regex(r"[ \x00]?[+-]?(0x)?[0-9a-f]*\.?[0-9a-f]*([ep][+-]?[0-9]{1,5})?[fFdDL]?[ \x00]?", fullmatch=True)
)
def test_property_numbers_agree_with_reference_implementation(value: str) -> None:
    for literal in ("5", "3000000000", "5.5"):
        for text in (f"a > {literal}", f"{literal} >= a", f"a = {literal}", "a > b"):
            properties = {"a": value, "b": "5"}
            assert verdict(text, properties) == reference_verdict(text, properties)


def alternating(levels: int) -> str:
    """An OR in an AND in an OR ..., below an OR; its tree has a depth of levels + 2."""
    text = "a = 1"
    for level in range(levels, 0, -1):
        text = f"(a = 1 {('AND', 'OR')[level % 2]} {text})"
    return text


@pytest.mark.parametrize("form", ["b = 1 AND b = 1 AND {}", "{} AND b = 1 AND b = 1", "{} AND (b = 1 AND b = 1)"])
def test_depth_of_a_chain_is_that_of_its_deepest_part(form: str) -> None:
    compile_sql(form.format(alternating(DEPTH_MAX - 3)))
    with pytest.raises(FilterError, match=f"nested deeper than {DEPTH_MAX} levels"):
        compile_sql(form.format(alternating(DEPTH_MAX - 2)))


def test_words_of_an_expression_are_bounded() -> None:
    tokens = Tokens("a " * (TOKENS_MAX + 1))
    assert {tokens.next().text for _ in range(TOKENS_MAX)} == {"a"}
    with pytest.raises(Mistake, match=f"more than {TOKENS_MAX} words, numbers and marks"):
        tokens.next()


@pytest.mark.parametrize(("text", "found"), [("(a = 1", "the end of the text"), ("(a = 1 b", "'b'")])
def test_open_parenthesis_names_what_may_follow(text: str, found: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_sql(text)
    assert str(caught.value).endswith(f'found {found}; expected ")", AND, OR or a comparison')
