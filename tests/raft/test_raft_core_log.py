"""The core's view of the log: bounds, terms and durable end after appends, truncations, restarts and retention."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from raftbench import entries

from saturnmq.protocol.errors import InvariantBroken
from saturnmq.raft.core.log import EntryLog

FILE_BYTES = 1 << 20


class Opened:
    """An `EntryLog` over entries that are stored."""

    def __init__(self, *terms: int) -> None:
        self.stored = {entry.index: entry for entry in entries(*terms)}
        last = self.stored[len(terms) - 1] if terms else None
        reader: Any = SimpleNamespace(
            begin_index=0 if terms else -1, end_index=len(terms) - 1, end_term=last.term if last else -1,
            end_pos=last.end_pos if last else 0, entry=self.stored.get,
        )  # fmt: skip
        self.log = EntryLog(reader, FILE_BYTES)

    def shown(self) -> tuple[int, int, int, int, int]:
        log = self.log
        return log.begin, log.end, log.end_term, log.next_index, log.end_pos


def test_an_opened_log_has_the_bounds_of_its_files() -> None:
    opened = Opened(1, 1, 3)
    assert opened.shown() == (0, 2, 3, 3, opened.stored[2].end_pos)
    assert (opened.log.durable, opened.log.epoch, opened.log.empty) == (2, 0, False)
    assert Opened().shown() == (-1, -1, -1, 0, 0)
    assert Opened().log.empty


def test_a_truncated_log_ends_with_the_entry_before_the_cut() -> None:
    opened = Opened(1, 1, 3, 5)
    end_pos = opened.stored[1].end_pos
    opened.log.cut(2, end_pos)
    assert opened.shown() == (0, 1, 1, 2, end_pos)
    assert (opened.log.durable, opened.log.epoch) == (1, 1)
    [again] = entries(2, first=2, pos=end_pos)
    opened.log.append([again])
    assert opened.shown() == (0, 2, 2, 3, again.end_pos)
    assert opened.log.entry(2) is again
    assert opened.log.durable == 1, "not synced"


def test_a_restarted_log_is_empty_and_takes_an_entry_of_a_lower_term() -> None:
    """The leader's log begins later than this one ended; what was here may be of a term that no leader has."""
    opened = Opened(1, 5)
    opened.log.restart(40, 8192)
    assert opened.shown() == (-1, -1, -1, 40, 8192)
    assert (opened.log.durable, opened.log.epoch, opened.log.empty) == (-1, 1, True)
    [first] = entries(3, first=40, pos=8192)
    opened.log.append([first])
    assert opened.shown() == (40, 40, 3, 41, first.end_pos)
    assert opened.log.entry(40) is first


def test_an_entry_that_does_not_follow_breaks_an_invariant() -> None:
    opened = Opened(1, 5)
    for terms, first in (((5,), 3), ((4,), 2)):
        with pytest.raises(InvariantBroken, match="follows 1 of term 5"):
            opened.log.append(entries(*terms, first=first, pos=opened.log.end_pos))
    with pytest.raises(InvariantBroken, match=r"cut at 9 of a log 0\.\.1"):
        opened.log.cut(9, 0)


def test_retention_moves_the_begin_forward_only() -> None:
    opened = Opened(1, 1, 1)
    opened.log.trimmed(2)
    assert opened.log.begin == 2
    opened.log.trimmed(1)
    assert opened.log.begin == 2
    empty = Opened()
    empty.log.trimmed(2)
    assert empty.log.begin == -1
