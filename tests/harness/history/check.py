"""Finds problems in a history: messages lost, invented, duplicated, out of order. Pure.

Operations are read once, in any order of their times; what can be judged only with complete knowledge is judged in
`finish`. Tables are indexed by the number of an append (value and attempt), so that a million operations fit into a few
hundred megabytes.

Requirements: CHK-01..CHK-16.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Final

from harness.history.operations import OK, RESULTS, HistoryError, Operation

# Problem types. The first 13 have the names used by Jepsen's log tests and are CHK-01 to CHK-13 in this order.
LOST_WRITE: Final = "lost-write"
UNSEEN: Final = "unseen"
DUPLICATE: Final = "duplicate"
INCONSISTENT_OFFSETS: Final = "inconsistent-offsets"
ABORTED_READ: Final = "G1a"
PRECOMMITTED_READ: Final = "precommitted-read"
POLL_SKIP: Final = "poll-skip"
NONMONOTONIC_POLL: Final = "nonmonotonic-poll"
INT_POLL_SKIP: Final = "int-poll-skip"
INT_NONMONOTONIC_POLL: Final = "int-nonmonotonic-poll"
NONMONOTONIC_SEND: Final = "nonmonotonic-send"
INT_NONMONOTONIC_SEND: Final = "int-nonmonotonic-send"
INT_SEND_SKIP: Final = "int-send-skip"
INVENTED: Final = "invented"  # read, but never sent
KEY_ORDER: Final = "key-order"  # CHK-14, like the next four
EARLY_DELIVERY: Final = "early-delivery"
OFFSET_FELL: Final = "offset-fell"
POSITION_FELL: Final = "position-fell"  # a broker sent clients back: it served before it had what was shown before
MISSING_DEAD_LETTER: Final = "missing-dead-letter"
NOT_CLOSED: Final = "not-closed"  # no final polls: losses cannot be judged

REPEAT_MS_MAX: Final = 1000  # traffic of up to this time may be consumed again after a switch (CHA-08)
COPIES: Final = ("%RETRY%", "%DLQ%")
NEVER_SENT, SENT_UNKNOWN, SENT_FAIL, SENT_OK = range(4)
STATES: Final = {"unknown": SENT_UNKNOWN, "fail": SENT_FAIL, "ok": SENT_OK}
QUEUE_SHIFT: Final = 48  # a place is queue number << 48 | offset


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class Report:
    """problems: at most `kept` of each kind; found: number of problems per kind; counts: statistics of the history."""

    problems: list[Problem] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    kept: int = 20

    @property
    def valid(self) -> bool:
        return not self.found

    def add(self, kind: str, text: str) -> None:
        self.found[kind] += 1
        if self.found[kind] <= self.kept:
            self.problems.append(Problem(kind, text))


@dataclass(slots=True)
class _Half:
    """A half message, pending until its transaction ends."""

    commit_begin: float = math.inf
    rolled_back: bool = False


@dataclass(slots=True)
class _Calls:
    """Calls of one kind with the offsets each returned, to compare calls where one ended before the other began."""

    begin: array[float] = field(default_factory=lambda: array("d"))
    end: array[float] = field(default_factory=lambda: array("d"))
    first: array[int] = field(default_factory=lambda: array("q"))
    last: array[int] = field(default_factory=lambda: array("q"))

    def add(self, begin: float, end: float, first: int, last: int) -> None:
        self.begin.append(begin)
        self.end.append(end)
        self.first.append(first)
        self.last.append(last)

    def by_begin(self) -> list[int]:
        return sorted(range(len(self.begin)), key=self.begin.__getitem__)

    def falls(self, forgiven: Callable[[int, int], bool] = lambda earlier, later: False) -> Iterable[tuple[int, int]]:
        """Pairs (earlier, later) of calls that do not overlap and whose offsets fall.

        forgiven: whether such a pair is allowed; calls before an allowed pair are no longer compared.
        """
        running: list[tuple[float, int]] = []
        highest = -1
        for at in self.by_begin():
            while running and running[0][0] <= self.begin[at]:
                ended = heapq.heappop(running)[1]
                if highest < 0 or self.last[ended] > self.last[highest]:
                    highest = ended
            if highest >= 0 and self.first[at] < self.last[highest]:
                if forgiven(highest, at):
                    running, highest = [], -1
                else:
                    yield highest, at
            heapq.heappush(running, (self.end[at], at))


def check(operations: Iterable[Operation]) -> Report:
    """Check a whole history. Raises HistoryError if it is malformed."""
    checker = Checker()
    for operation in operations:
        checker.add(operation)
    return checker.finish()


class Checker:
    """Call `add` for every operation, then `finish`."""

    def __init__(self) -> None:
        self.report = Report()
        self._ids: dict[str, int] = {}
        self._names_of: list[str] = []  # by append: value and attempt
        self._state = bytearray()  # by append: NEVER_SENT ... SENT_OK
        self._seen = bytearray()  # by append: 1 read by any process, 2 also in a final poll
        self._place = array("q")  # by append: its place, -1 unknown
        self._acked = array("q")  # by append: the place in the broker's acknowledgement, -1 none
        self._first_read = array("d")
        self._key = array("l")  # by append: number of its sharding key, -1 none
        self._keys: dict[str, int] = {}
        self._retries: dict[str, list[int]] = {}
        self._halves: dict[int, _Half] = {}
        self._deliver_at: dict[int, float] = {}
        self._queues: dict[str, int] = {}
        self._names: list[str] = []
        self._log: list[dict[int, int]] = []  # by queue: offset -> append
        self._top_read = array("q")  # by queue: highest offset read
        self._batches: list[tuple[int, ...]] = []
        self._doubled: dict[tuple[int, int], int] = {}  # (append, second place) -> first place
        self._sends: defaultdict[tuple[str, int], _Calls] = defaultdict(_Calls)
        self._keyed_sends: defaultdict[tuple[int, int], _Calls] = defaultdict(_Calls)
        self._ends: dict[tuple[str, str, int], int] = {}
        self._gaps: set[tuple[str, str, int, int, int]] = set()
        self._repeats: list[tuple[str, str, int, int, int, float]] = []
        self._delivered: defaultdict[tuple[str, int], dict[int, float]] = defaultdict(dict)
        self._ordered: defaultdict[tuple[str, int], tuple[array[float], array[int]]] = defaultdict(
            lambda: (array("d"), array("q"))
        )
        self._switches: list[float] = []
        self._offsets: defaultdict[tuple[str, str], _Calls] = defaultdict(_Calls)
        self._positions: defaultdict[tuple[str, str], _Calls] = defaultdict(_Calls)
        self._resets: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        self._dead: list[tuple[str, int]] = []
        self._final = False
        self._takes: dict[str, Callable[[Operation], None]] = {
            "send": self._send,
            "end": self._end,
            "poll": self._poll,
            "assign": self._assign,
            "switch": lambda o: self._switches.append(o["begin"]),
            "offset": lambda o: self._offsets[o["group"], o["queue"]].add(
                o["begin"], o["end"], o["offset"], o["offset"]
            ),
            "position": lambda o: self._positions[o["kind"], o["queue"]].add(
                o["begin"], o["end"], o["offset"], o["offset"]
            ),
            "reset": lambda o: self._resets[o["group"], o["queue"]].append((o["begin"], o["end"])),
            "dead": lambda o: self._dead.append((o["group"], self._id(o["value"], o["attempt"]))),
        }

    # reading

    def add(self, operation: Operation) -> None:
        """Add one operation. Raises HistoryError."""
        self.report.counts["operations"] += 1
        try:
            self._takes[operation["op"]](operation)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise HistoryError(f"{type(error).__name__} {error} in {str(operation)[:300]}") from error
        except ValueError as error:
            raise HistoryError(f"{error} in {str(operation)[:300]}") from error

    def _id(self, value: str, attempt: int) -> int:
        """The number of an append; a new number if it was not seen before."""
        name = f"{value}\t{attempt}"
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self._ids)
            self._names_of.append(name)
            self._state.append(NEVER_SENT)
            self._seen.append(0)
            self._place.append(-1)
            self._acked.append(-1)
            self._first_read.append(math.inf)
            self._key.append(-1)
            if attempt > 1:
                self._retries.setdefault(value, []).append(found)
        return found

    def _queue(self, name: str) -> int:
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = len(self._names)
            self._names.append(name)
            self._log.append({})
            self._top_read.append(-1)
        return found

    def _put(self, queue: int, offset: int, append: int) -> None:
        """Record that an append was reported at a place (CHK-03, CHK-04)."""
        if queue < 0 or offset < 0:
            raise HistoryError("an offset is not negative, and has a queue")
        known = self._log[queue].setdefault(offset, append)
        if known != append:
            self._report(
                INCONSISTENT_OFFSETS, f"{self._at(queue, offset)} holds {self._what(known)}, {self._what(append)}"
            )
        if self._names[queue].startswith(COPIES):
            return
        place = queue << QUEUE_SHIFT | offset
        before = self._place[append]
        if before < 0:
            self._place[append] = place
        elif before != place:
            self._doubled[append, place] = before

    def _send(self, op: Operation) -> None:
        messages, result, attempt, name = op["messages"], op["result"], op["attempt"], op.get("queue")
        if result not in RESULTS:
            raise HistoryError(f"a result is one of {', '.join(RESULTS)}")
        queue = self._queue(name) if name is not None else -1
        self.report.counts[f"sends {result}"] += 1
        made = []
        for value, offset in messages:
            append = self._id(value, attempt)
            made.append(append)
            if self._state[append] != NEVER_SENT:
                raise HistoryError(f"attempt {attempt} of {value} is recorded twice")
            self._state[append] = STATES[result]
            if op.get("half"):
                self._halves.setdefault(append, _Half())
            if op.get("deliver_at") is not None:
                self._deliver_at[append] = op["deliver_at"]
            if op.get("key") is not None:
                self._key[append] = self._keys.setdefault(op["key"], len(self._keys))
            if result == OK and offset is not None:
                self._put(queue, offset, append)
                self._acked[append] = queue << QUEUE_SHIFT | offset
        if len(made) > 1:
            self._batches.append(tuple(made))
        offsets = [offset for _, offset in messages if offset is not None]
        if result == OK and offsets:
            call = op["begin"], op["end"], min(offsets), max(offsets)
            self._sends[op["process"], queue].add(*call)
            if op.get("key") is not None:
                self._keyed_sends[self._key[made[0]], queue].add(*call)

    def _end(self, op: Operation) -> None:
        half = self._halves.setdefault(self._id(op["value"], op["attempt"]), _Half())
        if op["outcome"] == "commit":
            half.commit_begin = min(half.commit_begin, op["begin"])
        elif op["outcome"] == "rollback":
            half.rolled_back = True
        else:
            raise HistoryError("an outcome is commit or rollback")

    def _assign(self, op: Operation) -> None:
        for key in [key for key in self._ends if key[0] == op["process"]]:
            del self._ends[key]

    def _poll(self, op: Operation) -> None:
        messages, mode, end = op["messages"], op["mode"], op["end"]
        if mode not in ("assigned", "subscribed", "final"):
            raise HistoryError("a mode is assigned, subscribed or final")
        final, group = mode == "final", op["group"]
        self._final = self._final or final
        self.report.counts["polls"] += 1
        self.report.counts["messages read"] += len(messages)
        if not messages:
            return
        queue, process = self._queue(op["queue"]), op["process"]
        log, place, seen, first_read, ids = self._log[queue], self._place, self._seen, self._first_read, self._ids
        base, mark = queue << QUEUE_SHIFT, 2 if final else 1
        for offset, value, attempt in messages:
            append = ids.get(f"{value}\t{attempt}")
            if append is None:
                append = self._id(value, attempt)
            if log.get(offset) != append or place[append] != base | offset:
                self._put(queue, offset, append)
            if seen[append] < mark:
                seen[append] = mark
            if end < first_read[append]:
                first_read[append] = end
        offsets = [message[0] for message in messages]
        if max(offsets) > self._top_read[queue]:
            self._top_read[queue] = max(offsets)
        if offsets[-1] - offsets[0] != len(offsets) - 1 or offsets != list(range(offsets[0], offsets[-1] + 1)):
            self._inside(process, queue, offsets, final=final)
        if not final:
            self._follow(op, queue, offsets)
        if mode == "subscribed":
            delivered = self._delivered[group, queue]
            for offset in offsets:
                if op["begin"] < delivered.get(offset, math.inf):
                    delivered[offset] = op["begin"]
        if op.get("ordered"):
            begins, ordered = self._ordered[group, queue]
            begins.extend([op["begin"]] * len(offsets))
            ordered.extend(offsets)

    def _inside(self, process: str, queue: int, offsets: list[int], *, final: bool) -> None:
        """Judge a poll result with missing offsets or disorder inside (CHK-09, CHK-10). Gaps in a final poll are judged
        as losses.
        """
        pairs = [(before, after) for before, after in pairwise(offsets) if after != before + 1]
        disorder = [(before, after) for before, after in pairs if after <= before]
        for before, after in disorder[:1]:
            self._report(INT_NONMONOTONIC_POLL, f"{process} got {self._at(queue, after)} behind {before} in one answer")
        if not disorder and not final:
            self._gaps.update((INT_POLL_SKIP, process, queue, before, after) for before, after in pairs)

    def _follow(self, op: Operation, queue: int, offsets: list[int]) -> None:
        """Compare the first offset of a poll result with the last one of the result before (CHK-07, CHK-08)."""
        process, group, first = op["process"], op["group"], offsets[0]
        key = process, group, queue
        last = self._ends.get(key)
        self._ends[key] = offsets[-1]
        if last is None or first == last + 1:
            return
        if first > last:
            self._gaps.add((POLL_SKIP, process, queue, last, first))
        elif op["mode"] == "subscribed":
            self._repeats.append((process, group, queue, first, last, op["begin"]))
        else:
            self._report(NONMONOTONIC_POLL, f"{process} got {self._at(queue, first)} after {last}")

    # judging

    def finish(self) -> Report:
        """Return the report."""
        self._judge_reads()
        self._judge_polls()
        self._judge_sends()
        self._judge_order()
        self._judge_offsets()
        counts = self.report.counts
        counts["messages acknowledged"] = self._state.count(SENT_OK)
        counts["unknown but stored"] = sum(
            s == SENT_UNKNOWN and p >= 0 for s, p in zip(self._state, self._place, strict=True)
        )
        for value, others in self._retries.items():
            first = self._ids.get(f"{value}\t1")
            stored = sum(self._place[append] >= 0 for append in (*others, *(() if first is None else (first,))))
            counts["stored again by a retry"] += max(stored - 1, 0)
        return self.report

    def _judge_reads(self) -> None:
        """CHK-01, CHK-02, CHK-03, CHK-05, CHK-06, and messages that were never sent."""
        for (append, place), before in self._doubled.items():
            if append in self._deliver_at and self._switches:
                self.report.counts["delayed, delivered again"] += 1  # delay progress lags behind a crash (DUR-19)
            else:
                where = f"{self._at_place(before)} and {self._at_place(place)}"
                self._report(DUPLICATE, f"{self._what(append)} lies at {where}")
        for append in range(len(self._ids)):
            state, seen = self._state[append], self._seen[append]
            half = self._halves.get(append) if self._halves else None
            if seen:
                self._judge_seen(append, state, half)
            owed = state == SENT_OK and (half is None or half.commit_begin < math.inf)
            if owed and seen < 2:
                self._judge_missing(append, seen)
            if self._first_read[append] < self._deliver_at.get(append, -math.inf):
                due, got = self._deliver_at[append], self._first_read[append]
                self._report(EARLY_DELIVERY, f"{self._what(append)} was due at {due:.0f} ms, delivered at {got:.0f} ms")
        if not self._final and SENT_OK in self._state:
            self._report(NOT_CLOSED, "there are no final polls")
        for group, append in self._dead:
            letters = (
                log for name, log in zip(self._names, self._log, strict=True) if name.startswith(f"%DLQ%{group}")
            )
            if not any(append in log.values() for log in letters):
                self._report(MISSING_DEAD_LETTER, f"{self._what(append)} is past its retries and not in %DLQ%{group}")

    def _judge_seen(self, append: int, state: int, half: _Half | None) -> None:
        if state == NEVER_SENT:
            self._report(
                INVENTED, f"{self._what(append)} was read at {self._at_place(self._place[append])}, no client sent it"
            )
        elif state == SENT_FAIL:
            self._report(ABORTED_READ, f"{self._what(append)} was refused, and read")
        elif half is not None and half.commit_begin == math.inf and half.rolled_back:
            self._report(ABORTED_READ, f"{self._what(append)} was rolled back, and read")
        elif half is not None and self._first_read[append] < half.commit_begin:
            self._report(PRECOMMITTED_READ, f"{self._what(append)} was read before its commit")

    def _judge_missing(self, append: int, seen: int) -> None:
        place = self._acked[append]
        queue, offset = place >> QUEUE_SHIFT, place & ((1 << QUEUE_SHIFT) - 1)
        if place >= 0 and not seen and offset <= self._top_read[queue]:
            self._report(
                LOST_WRITE, f"{self._what(append)}, acknowledged at {self._at_place(place)}, was read by no consumer"
            )
        elif self._final:
            self._report(
                UNSEEN, f"{self._what(append)}, acknowledged at {self._at_place(place)}, is not in the final polls"
            )

    def _judge_polls(self) -> None:
        """CHK-07, CHK-08, CHK-09: a gap is a problem if a known offset lies in it."""
        for kind, process, queue, before, after in sorted(self._gaps):
            log = self._log[queue]
            gap = range(before + 1, after)
            known = (offset for offset in gap if offset in log) if len(gap) < len(log) else (o for o in log if o in gap)
            passed = next(known, None)
            if passed is not None:
                self._report(kind, f"{process} got {self._at(queue, after)} after {before}, {passed} lies between")
        for process, group, queue, first, last, begin in self._repeats:
            delivered = self._delivered[group, queue].get(first, -math.inf)
            if not any(switch <= begin and delivered >= switch - REPEAT_MS_MAX for switch in self._switches):
                self._report(NONMONOTONIC_POLL, f"{process} got {self._at(queue, first)} after {last}")

    def _judge_sends(self) -> None:
        """CHK-11, CHK-12, CHK-13."""
        for (process, queue), calls in self._sends.items():
            for earlier, later in calls.falls():
                low, high = calls.first[later], calls.last[earlier]
                self._report(NONMONOTONIC_SEND, f"{process} received {self._at(queue, low)} after {high}")
        for batch in self._batches:
            placed = [(self._place[append], at, append) for at, append in enumerate(batch) if self._place[append] >= 0]
            pairs = [(one, two) for one, two in pairwise(placed) if two[0] - one[0] != two[1] - one[1]]
            fallen = [
                (before, after)
                for before, after in pairs
                if after < before and after[0] >> QUEUE_SHIFT == before[0] >> QUEUE_SHIFT
            ]
            for before, after in (fallen or pairs)[:1]:
                where = f"{self._at_place(after[0])}, the one before it in its batch at {self._at_place(before[0])}"
                kind = INT_NONMONOTONIC_SEND if fallen else INT_SEND_SKIP
                self._report(kind, f"{self._what(after[2])} lies at {where}")

    def _judge_order(self) -> None:
        """Order per sharding key, of sends and of deliveries including redeliveries (CHK-14)."""
        names = {number: name for name, number in self._keys.items()}
        for (key, queue), calls in self._keyed_sends.items():
            for earlier, later in calls.falls():
                low, high = calls.first[later], calls.last[earlier]
                self._report(
                    KEY_ORDER, f"key {names[key]}: {self._at(queue, low)} was sent after {high} was acknowledged"
                )
        for (group, queue), (begins, offsets) in self._ordered.items():
            self._judge_deliveries(group, queue, begins, offsets, names)

    def _judge_deliveries(
        self, group: str, queue: int, begins: array[float], offsets: array[int], names: dict[int, str]
    ) -> None:
        """A delivery must be the successor of the last one of its key, or a redelivery."""
        log, key_of = self._log[queue], self._key
        previous: dict[int, int] = {}
        last: dict[int, int] = {}
        for offset in sorted(log):
            key = key_of[log[offset]]
            previous[offset] = last.get(key, -1)
            last[key] = offset
        current: dict[int, int] = {}
        for offset in set(offsets):
            key = key_of[log[offset]]
            current[key] = min(current.get(key, offset), offset)
        for at in sorted(range(len(begins)), key=begins.__getitem__):
            offset = offsets[at]
            key = key_of[log[offset]]
            if key >= 0 and offset > current[key] and previous[offset] != current[key]:
                missed = f"{self._at(queue, offset)} came after {current[key]}, before {previous[offset]}"
                self._report(KEY_ORDER, f"group {group}, key {names[key]}: {missed}")
            current[key] = offset

    def _judge_offsets(self) -> None:
        """A committed offset may fall only by an explicit reset (CHK-14), the begin and end of a queue never."""
        for (group, queue), calls in self._offsets.items():
            was_reset = partial(_was_reset, calls, self._resets.get((group, queue), []))
            for earlier, later in calls.falls(was_reset):
                fall = f"{calls.last[earlier]} to {calls.first[later]}"
                self._report(OFFSET_FELL, f"committed offset of {group} in {queue} fell from {fall}")
        for (kind, queue), calls in self._positions.items():
            for earlier, later in calls.falls():
                fall = f"{calls.last[earlier]} to {calls.first[later]}"
                self._report(POSITION_FELL, f"{kind} offset of {queue} fell from {fall}")

    # reporting

    def _report(self, kind: str, text: str) -> None:
        self.report.add(kind, text)

    def _what(self, append: int) -> str:
        value, _, attempt = self._names_of[append].rpartition("\t")
        return f"{value!r} (attempt {attempt})"

    def _at(self, queue: int, offset: int) -> str:
        return f"{self._names[queue]} offset {offset}"

    def _at_place(self, place: int) -> str:
        if place < 0:
            return "an unknown place"
        return self._at(place >> QUEUE_SHIFT, place & ((1 << QUEUE_SHIFT) - 1))


def _was_reset(calls: _Calls, resets: list[tuple[float, float]], earlier: int, later: int) -> bool:
    return any(end >= calls.begin[earlier] and begin <= calls.end[later] for begin, end in resets)


def summary(report: Report) -> dict[str, Any]:
    """A JSON-compatible summary: whether the history is valid, problems per kind, statistics."""
    return {
        "valid": report.valid,
        "found": dict(report.found),
        "problems": [str(problem) for problem in report.problems],
        "counts": dict(report.counts),
    }
