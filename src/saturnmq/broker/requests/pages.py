"""Answers about all groups in pages, for tables that would not fit a frame (43, 317).

A request with `paged` is answered with the groups from `startGroup` on; without it from the first. `nextGroup` of the answer is
where the next page begins; it is absent on the last one. A group is never split.

Requirements: LIM-10, RT-05, ADM-25.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import dropwhile
from typing import Final

from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import response_error

PAGE_BYTES: Final = 4 << 20  # a page ends with the group that reaches it


def groups_from(names: Iterable[str], start: str | None) -> list[str]:
    """The groups from this one on, all without one. Raises ResponseError 1 if it is not among them any more."""
    if not start:
        return list(names)
    remaining_names = list(dropwhile(lambda name: name != start, names))
    if not remaining_names:
        text = f"startGroup={start!r:.80} does not exist any more; ask for the first page again, without startGroup"
        raise response_error(ResponseCode.SYSTEM_ERROR, text)
    return remaining_names
