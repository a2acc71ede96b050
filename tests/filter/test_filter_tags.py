"""Tag expressions: parsing, and which consume queue entries they accept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saturnmq.filter import (
    ACCEPT_ALL,
    FilterError,
    PullFilter,
    is_tag_kind,
    parse_tags,
    pull_filter_of,
    subscribed_tags,
    tag_filter,
)
from saturnmq.filter.tags import TAGS_MAX, TEXT_MAX
from saturnmq.protocol.message import java_hash

TAG_A = 2598919
TOPICA_TAG_ALL = -2086443761


def accepts(pull_filter: PullFilter, code: int) -> bool:
    return pull_filter.codes is not None and code in pull_filter.codes


@pytest.mark.spec("FIL-01", "PRC-05")
@pytest.mark.parametrize("text", [None, "", "*"])
def test_absent_expression_and_star_match_everything(text: str | None) -> None:
    expression = parse_tags(text)
    assert expression == ("*", (), frozenset(), True)
    assert tag_filter(text) is ACCEPT_ALL


@pytest.mark.spec("FIL-01", "PRC-05")
@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("TagA", ("TagA",)),
        ("TagA || TagB", ("TagA", "TagB")),
        ("TagA||TagB", ("TagA", "TagB")),
        ("\t TagA\x00||\n||  || TagB ||", ("TagA", "TagB")),
        ("a|b", ("a|b",)),
        ("a|||b", ("a", "|b")),
        ("a || a", ("a",)),
        ("* || a", ("*", "a")),
        ("\u3000a", ("\u3000a",)),  # an ideographic space is part of the tag: Java trims up to U+0020 only
        (" || ", ()),
        ("|||", ("|",)),
        ("null", ("null",)),
    ],
)
def test_tag_expression_is_split_and_trimmed(text: str, tags: tuple[str, ...]) -> None:
    expression = parse_tags(text)
    assert expression.tags == tags
    assert expression.codes == frozenset(java_hash(tag) for tag in tags)
    assert not expression.everything


@pytest.mark.spec("FIL-01")
def test_tag_codes_are_signed_java_hash_codes() -> None:
    assert parse_tags("TagA || TOPICA_TAG_ALL").codes == {TAG_A, TOPICA_TAG_ALL}


@pytest.mark.spec("FIL-01")
@pytest.mark.parametrize("text", ["||", "||||", "||||||"])
def test_separators_only_are_rejected_with_23(text: str) -> None:
    with pytest.raises(FilterError) as caught:
        tag_filter(text)
    assert (caught.value.code, caught.value.position, caught.value.kind) == (23, 0, "TAG")


@pytest.mark.spec("FIL-02")
def test_tag_filter_accepts_the_codes_of_its_tags_without_other_predicates() -> None:
    codes, by_extension, by_record = pull_filter_of("TagA || TOPICA_TAG_ALL", "TAG")
    assert by_extension is by_record is None
    assert codes == {TAG_A, TOPICA_TAG_ALL}, (
        "a negative code is a code like any other, 0 is that of a message without tag"
    )


@pytest.mark.spec("FIL-02")
def test_tag_collisions_are_left_to_the_consumer() -> None:
    assert java_hash("AaAa") == java_hash("BBBB")
    assert accepts(pull_filter_of("AaAa", "TAG"), java_hash("BBBB"))


@pytest.mark.spec("FIL-01", "FIL-02")
def test_heartbeat_subscription_uses_its_own_codes() -> None:
    assert subscribed_tags("*", [TAG_A]) is ACCEPT_ALL
    assert subscribed_tags("", []) is ACCEPT_ALL
    assert subscribed_tags("TagA", [TAG_A]).codes == {TAG_A}
    assert not accepts(subscribed_tags(" || ", []), TAG_A), "an expression without tags wants nothing"


@pytest.mark.spec("FIL-02")
@pytest.mark.parametrize(("kind", "tags"), [(None, True), ("", True), ("TAG", True), ("tag", False), ("SQL92", False)])
def test_expression_types_that_mean_tags(kind: str | None, tags: bool) -> None:
    assert is_tag_kind(kind) is tags


@pytest.mark.spec("FIL-01", "FIL-02")
@given(
    st.lists(
        st.text(st.characters(exclude_characters="|", exclude_categories=["Cs", "Cc", "Zs"]), min_size=1), min_size=1
    )
)
def test_every_tag_of_expression_matches_in_any_order(tags: list[str]) -> None:
    pull_filter = tag_filter(" || ".join([*tags, "x"]))
    assert all(accepts(pull_filter, java_hash(tag)) for tag in tags)
    assert tag_filter("||".join(reversed([*tags, "x"]))).codes == pull_filter.codes


@pytest.mark.spec("FIL-01")
@given(st.text("|* ab\t", max_size=12) | st.text())
def test_any_text_parses_or_raises_filter_error(text: str) -> None:
    try:
        codes = tag_filter(text).codes
    except FilterError:
        assert text.replace("||", "") == ""
    else:
        assert codes is None or all(-(2**31) <= code < 2**31 for code in codes)


@pytest.mark.spec("LIM-12")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("||".join(map(str, range(TAGS_MAX + 1))), "1025 tags, at most 1024"),
        ("a" * (TEXT_MAX + 1), "32769 characters, at most 32768"),
        ("a||" * 20_000, "60000 characters"),
    ],
)
def test_long_lists_of_tags_are_refused(text: str, problem: str) -> None:
    with pytest.raises(FilterError, match=problem):
        parse_tags(text)
    with pytest.raises(FilterError, match="at most"):
        subscribed_tags("a", range(TAGS_MAX + 1))
    assert len(parse_tags("||".join(map(str, range(TAGS_MAX)))).tags) == TAGS_MAX
