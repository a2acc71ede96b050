"""What a pull accepts of each message, and what the store's `get` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

ByExtension = Callable[[int, bytes], bool]
ByRecord = Callable[[bytes], bool]


class PullFilter(NamedTuple):
    """What a pull accepts, applied in this order; None accepts everything.

    codes: tags codes of queue units. by_extension: store time (Unix ms) and bit map of the unit's extension, if it has one.
    by_record: encoded properties of the message.
    """

    codes: frozenset[int] | None = None
    by_extension: ByExtension | None = None
    by_record: ByRecord | None = None


ACCEPT_ALL: Final = PullFilter()
