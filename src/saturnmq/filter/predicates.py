"""The predicates that a pull applies to each message, and that the store's `get` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

ByCode = Callable[[int], bool]
ByExtension = Callable[[int, bytes], bool]
ByRecord = Callable[[bytes], bool]


class PullFilter(NamedTuple):
    """Predicates of a pull, applied in this order; None accepts everything.

    by_code: tags code of the queue unit. by_extension: store time (Unix ms) and bit map of the unit's extension, if it has one.
    by_record: encoded properties of the message. codes: what by_code accepts, if it is a set.
    """

    by_code: ByCode | None = None
    by_extension: ByExtension | None = None
    by_record: ByRecord | None = None
    codes: frozenset[int] | None = None


ACCEPT_ALL: Final = PullFilter()
