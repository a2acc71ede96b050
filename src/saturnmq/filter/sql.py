"""SQL92 filters: compiles a text to a matcher, with a cache of the last 100 texts, valid or invalid (FIL-15)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from saturnmq.filter.errors import FilterError, Mistake, PropertyError, shown
from saturnmq.filter.predicates import ByRecord
from saturnmq.protocol.message import decode_properties

if TYPE_CHECKING:
    from saturnmq.filter.evaluate import Condition

SQL92: Final = "SQL92"
TEXT_BYTES_MAX: Final = 32 * 1024  # LIM-12
CACHED_MAX: Final = 100
_REMEMBERED_MAX: Final = 2_000  # cached results per expression
_REMEMBERED_BYTES_MAX: Final = 256
_REMEMBERED_PROPERTIES_MAX: Final = 8


class SqlMatcher:
    """A compiled expression. Immutable; equal texts may share one matcher.

    text: the source text. properties: names of the properties it reads. ignored: text after the condition that was not parsed
    (FIL-14); callers should report it to the user, who probably meant it to have an effect.
    """

    __slots__ = ("_condition", "ignored", "properties", "text")

    def __init__(self, text: str, condition: Condition, properties: frozenset[str], ignored: str) -> None:
        self.text = text
        self.properties = properties
        self.ignored = ignored
        self._condition = condition

    def by_properties(self, properties: Mapping[str, str] | None) -> bool:
        """Whether a message with these properties is wanted. Never raises: unknown and PropertyError mean no (FIL-09, FIL-10)."""
        try:
            return self.evaluate(properties or {}) is True
        except PropertyError:
            return False

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """True, False, or None for unknown. Raises PropertyError when a property value cannot be compared."""
        return self._condition(properties.get)

    @property
    def by_record(self) -> ByRecord:
        """`by_properties` of the encoded properties of a record."""
        if len(self.properties) <= _REMEMBERED_PROPERTIES_MAX:
            return _remembering(self)
        return lambda raw: self.by_properties(properties_of(raw))

    def __repr__(self) -> str:
        return f"SqlMatcher({shown(self.text)})"


def compile_sql(text: str | None, *, strict: bool = False) -> SqlMatcher:
    """Compile an expression. Raises FilterError (23).

    strict: text after the condition is an error too; Apache RocketMQ ignores it.
    """
    compiled = _compiled(text or "")
    if isinstance(compiled, FilterError):
        raise compiled.without_traceback()
    if strict and compiled.ignored:
        reason = f"found {shown(compiled.ignored)} behind the condition"
        raise FilterError(SQL92, compiled.text, reason, len(compiled.text) - len(compiled.ignored), ("AND", "OR"))
    return compiled


@lru_cache(maxsize=CACHED_MAX)
def _compiled(text: str) -> SqlMatcher | FilterError:
    from saturnmq.filter.evaluate import condition_of, names_in  # with the parser, not needed for tags
    from saturnmq.filter.parser import parse

    try:
        if not text:
            raise Mistake("the expression is empty", 0)
        if len(text) > TEXT_BYTES_MAX or len(text.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
            raise Mistake(f"the expression is longer than {TEXT_BYTES_MAX} bytes", None)
        selector = parse(text)
    except Mistake as mistake:
        return FilterError(SQL92, text, mistake.reason, mistake.position, mistake.expected)
    return SqlMatcher(text, condition_of(selector.condition), names_in(selector.condition), text[selector.end :])


@lru_cache(maxsize=128)
def _remembering(matcher: SqlMatcher) -> ByRecord:
    """Predicate of an expression that extracts only the properties it uses and caches the result by their values."""
    starts = [name.encode() + b"\x01" for name in matcher.properties]
    lasts = [(start, b"\x02" + start) for start in starts]
    answers: dict[bytes, bool] = {}

    def ask(raw: bytes) -> bool:
        used_properties = b""
        for start, behind in lasts:
            at = raw.rfind(behind) + 1
            if at or raw.startswith(start):
                end = raw.find(b"\x02", at)
                used_properties += raw[at : end + 1] if end >= 0 else raw[at:] + b"\x02"
        answer = answers.get(used_properties)
        if answer is None:
            properties = properties_of(
                raw
            )  # decode everything: of two properties with one name, the last one may be empty
            answer = matcher.by_properties(properties)
            if len(used_properties) <= _REMEMBERED_BYTES_MAX and b"\x01\x02" not in used_properties:
                if len(answers) >= _REMEMBERED_MAX:
                    answers.clear()
                answers[used_properties] = answer
        return answer

    return ask


def properties_of(raw: bytes) -> dict[str, str]:
    """Decode properties; invalid UTF-8 becomes U+FFFD, as in Apache RocketMQ."""
    return decode_properties(raw.decode("utf-8", "replace"))
