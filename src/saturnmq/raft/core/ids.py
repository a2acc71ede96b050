"""Distinct types for the two numbers that are confused most easily: confusing them is a type error.

An index minus an index, or an index plus a number, is a plain int; wrap the result where it is an index again.
"""

from __future__ import annotations

from typing import Final, NewType

LedgerIndex = NewType("LedgerIndex", int)  # number of an entry, from 0; not a queue offset or a position in bytes
Term = NewType("Term", int)  # number of a leadership, from 0

NO_INDEX: Final = LedgerIndex(-1)  # an empty log, or nothing committed
NO_TERM: Final = Term(-1)  # the term of the last entry of an empty log
TERM_MAX: Final = Term(1 << 62)  # no member reaches or accepts a higher one
