"""Tag expressions: `*`, or `a || b`.

Requirements: FIL-01, FIL-02.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Final, NamedTuple

from saturnmq.filter.errors import FilterError
from saturnmq.filter.predicates import ACCEPT_ALL, PullFilter
from saturnmq.protocol.message import java_hash

TAG: Final = "TAG"
EVERYTHING: Final = "*"
TEXT_MAX: Final = 32_768  # characters of an expression; a pull that carries it parses it each time
TAGS_MAX: Final = 1024
_CACHED_CHARS_MAX: Final = 256
_SEPARATOR: Final = "||"
BLANKS: Final = "".join(map(chr, range(0x21)))  # the characters that Java's String.trim removes: everything up to space


class TagExpression(NamedTuple):
    """Parsed tags in text order without duplicates, and their hash codes. everything: matches all tags."""

    text: str
    tags: tuple[str, ...]
    codes: frozenset[int]
    everything: bool


def is_tag_kind(kind: str | None) -> bool:
    """Whether an expression type from the wire means tags: absent, empty or TAG."""
    return not kind or kind == TAG


def parse_tags(text: str | None) -> TagExpression:
    """Parse a tag expression. Absent, empty or `*` matches everything. Raises FilterError if it consists of separators only, or
    exceeds TEXT_MAX or TAGS_MAX.

    Blanks between separators form a tag expression that matches no message, as in Apache RocketMQ.
    """
    if not text or text == EVERYTHING:
        return TagExpression(EVERYTHING, (), frozenset(), True)
    if not text.replace(_SEPARATOR, ""):  # as Java splits, `|||` is the tag `|`
        raise FilterError(TAG, text, "there is no tag between the separators", 0, ("a tag", "*"))
    if len(text) > TEXT_MAX:
        raise FilterError(TAG, text, f"it has {len(text)} characters, at most {TEXT_MAX} are allowed", None)
    tags = tuple(dict.fromkeys(split_tags(text)))
    check_count(text, len(tags))
    return TagExpression(text, tags, frozenset(map(java_hash, tags)), False)


def split_tags(text: str) -> list[str]:
    """The tags of an expression in the order written; none for `*`."""
    if text == EVERYTHING:
        return []
    return [tag for part in text.split(_SEPARATOR) if (tag := part.strip(BLANKS))]


def tag_filter(text: str | None) -> PullFilter:
    """The predicates of a tag expression; short ones are cached. Raises FilterError."""
    text = text or ""
    return _parsed(text) if len(text) <= _CACHED_CHARS_MAX else _filter_of(parse_tags(text))


@lru_cache(maxsize=1024)
def _parsed(text: str) -> PullFilter:
    return _filter_of(parse_tags(text))


def _filter_of(expression: TagExpression) -> PullFilter:
    return ACCEPT_ALL if expression.everything else code_filter(expression.codes)


def code_filter(codes: frozenset[int]) -> PullFilter:
    """Accept these tags codes. Two tags may share a code, so the consumer also compares the text (PL-06).

    Codes are not reduced to 32 bits: only delay queues hold larger ones (delivery times), and no client filters those by tag.
    """
    return PullFilter(codes)


def subscribed_tags(text: str | None, codes: Collection[int]) -> PullFilter:
    """The predicates of a heartbeat's subscription, which carries its codes; `*`, empty or absent text matches everything.

    Raises FilterError for more codes than TAGS_MAX.
    """
    if not text or text == EVERYTHING:
        return ACCEPT_ALL
    check_count(text, len(codes))
    return code_filter(frozenset(codes))


def check_count(text: str, count: int) -> None:
    """Raise FilterError for more tags than TAGS_MAX."""
    if count > TAGS_MAX:
        raise FilterError(TAG, text, f"it has {count} tags, at most {TAGS_MAX} are allowed", None)
