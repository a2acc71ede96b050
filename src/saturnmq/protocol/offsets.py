"""Distinct types for the two offsets of a message: passing one for the other is a type error.

An offset minus an offset, or an offset plus a number, is a plain int; wrap the result where it is an offset again. Wrapping is
one call in C that returns its argument, also one of a subclass of int.
"""

from __future__ import annotations

from typing import Final, NewType

QueueOffset = NewType("QueueOffset", int)  # number of a message in its queue, from 0
PhysicalOffset = NewType("PhysicalOffset", int)  # position in the commit log or ledger, bytes

NO_QUEUE_OFFSET: Final = QueueOffset(-1)
NO_PHYSICAL_OFFSET: Final = PhysicalOffset(-1)  # an empty log, or an empty queue
