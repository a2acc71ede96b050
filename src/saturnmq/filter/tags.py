"""Tag expressions: `*`, or `a || b`.

Requirements: FIL-01, FIL-02.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from saturnmq.filter.errors import FilterError
from saturnmq.protocol.message import java_hash

TAG: Final = "TAG"
EVERYTHING: Final = "*"
TEXT_MAX: Final = 32_768  # characters of an expression; a pull that carries it parses it each time
TAGS_MAX: Final = 1024
_SEPARATOR: Final = "||"
_BLANKS: Final = "".join(
    map(chr, range(0x21))
)  # the characters that Java's String.trim removes: everything up to space


class TagExpression(NamedTuple):
    """Parsed tags in text order without duplicates, and their hash codes. everything: matches all tags."""

    text: str
    tags: tuple[str, ...]
    codes: frozenset[int]
    everything: bool


class TagMatcher:
    """Matches messages by tags code. Two tags may share a code, so the consumer also compares the text (PL-06)."""

    reads_properties: Final = False

    __slots__ = ("codes",)

    def __init__(self, codes: Iterable[int] | None) -> None:
        """codes: the wanted signed 32-bit codes; None matches all, an empty set matches none."""
        self.codes = None if codes is None else frozenset(codes)

    def by_tags_code(self, code: int | None) -> bool:
        """Whether the tags code of a consume queue entry is wanted; None, an entry without a code, always is."""
        if self.codes is None or code is None or code in self.codes:
            return True
        return not -0x80000000 <= code <= 0x7FFFFFFF and _low_32(code) in self.codes

    def by_properties(self, properties: Mapping[str, str] | None) -> bool:
        """Always True: the tags code has decided."""
        return True

    def __repr__(self) -> str:
        return f"TagMatcher({'*' if self.codes is None else sorted(self.codes)})"


ALL: Final = TagMatcher(None)


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
    if not text.strip("|") and len(text) % 2 == 0:
        raise FilterError(TAG, text, "there is no tag between the separators", 0, ("a tag", "*"))
    if len(text) > TEXT_MAX:
        raise FilterError(TAG, text, f"it has {len(text)} characters, at most {TEXT_MAX} are allowed", None)
    tags = tuple(dict.fromkeys(tag for part in text.split(_SEPARATOR) if (tag := part.strip(_BLANKS))))
    check_count(text, len(tags))
    return TagExpression(text, tags, frozenset(map(java_hash, tags)), False)


def tag_matcher(text: str | None) -> TagMatcher:
    """The matcher of a tag expression. Raises FilterError."""
    expression = parse_tags(text)
    return ALL if expression.everything else TagMatcher(expression.codes)


def subscribed_tags(text: str | None, codes: Collection[int]) -> TagMatcher:
    """The matcher of a heartbeat's subscription, which carries its codes; `*`, empty or absent text matches everything.

    Raises FilterError for more codes than TAGS_MAX.
    """
    if not text or text == EVERYTHING:
        return ALL
    check_count(text, len(codes))
    return TagMatcher(codes)


def check_count(text: str, count: int) -> None:
    """Raise FilterError for more tags than TAGS_MAX."""
    if count > TAGS_MAX:
        raise FilterError(TAG, text, f"it has {count} tags, at most {TAGS_MAX} are allowed", None)


def _low_32(code: int) -> int:
    low = code & 0xFFFFFFFF
    return low - 0x100000000 if low >= 0x80000000 else low
