"""Decision log of the transactional sink: what was decided about each batch, before its first message is committed.

Every file of the log that several drivers could write is created only if it is absent: written under a temporary name, made
durable and linked to its final name, which fails if that exists. Of several drivers exactly one wins, and no file is read half
written. Outcomes of a batch are numbered from 0: any count of aborts, then at most one decision, which is final. An attempt
that was aborted therefore cannot be decided later, and one that is decided cannot be aborted. Claims of ends are numbered the
same way, so that no end is sent by two drivers. Does not import pyspark.

Requirements: SNK-13..SNK-16, SNK-19.
"""

# Files of a decision log, in its folder; number 0 is left out of a name:
#   <batch>[.<number>].json     a decision {"queryId", "batchId", "tokens": [...], "pending": [[uniq, topic, broker, half offset,
#                               offset id], ...]}, or an abort {"queryId", "batchId", "aborted": [tokens]}
#   <batch>[.<number>].journal  a claim: lines "T <uniq> <Unix ms>", the ends about to be sent by one driver; it appends
#                               "D <uniq> <Unix ms>" for those acknowledged, and fsyncs
#   <batch>.done                empty: the end of every pending half was acknowledged; the journals are deleted

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from saturnmq.client.receipt import TransactionState
from saturnmq.durable import sync_path
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.spark.local_paths import local_path

FENCE_PROPERTY: Final = "SPARK_TX"
END_TIMEOUT_MS: Final = 10_000
QUIET_MS: Final = 6 * END_TIMEOUT_MS  # after this long without a journal entry, no end request can still be in flight
KEPT_BATCHES: Final = 100  # finished batches, and finished batch writes, whose files are kept
KEPT_SECONDS: Final = 3600  # those of batch writes at least for so long
BATCHES_CACHED: Final = 4
JOURNALS_CACHED: Final = 10_000
LAST_SECONDS: Final = 1.0  # how long check-backs use the newest decided batch that was read before
_OUTCOME_NAME: Final = re.compile(r"(0|[1-9][0-9]*|run-[^.]+)(\.[1-9][0-9]*)?\.json")
_JOURNAL_LINE: Final = re.compile(r"([TD]) (\S+)(?: ([0-9]+))?$")


class StoredHalf(NamedTuple):
    """A half message: its unique id, topic, broker, offset in the half topic, and offset message id."""

    uniq: str
    topic: str
    broker: str
    offset: QueueOffset
    offset_id: str


class Fence(NamedTuple):
    """The fencing key of a half message: who wrote it.

    token: one per attempt of a task, because the other four fields repeat after a restart (SNK-11).
    """

    query: str
    batch: str
    partition: int
    attempt: int
    token: str

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Fence | None:
        """Parse a fence; None for text that is not one."""
        parts = text.split("/")
        if len(parts) != 5 or not parts[2].isdigit() or not parts[3].isdigit():
            return None
        return cls(parts[0], parts[1], int(parts[2]), int(parts[3]), parts[4])


def now_ms() -> int:
    """Return the Unix time in ms, as written to the journal."""
    return int(time.time() * 1000)


def new_token() -> str:
    """Return a random token, unique over all attempts of all runs."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class BatchDecision:
    """A decided batch: its tokens and half messages are committed, all others of the batch are rolled back."""

    query: str
    batch: str
    tokens: frozenset[str]
    pending: tuple[StoredHalf, ...]

    @cached_property
    def by_id(self) -> dict[str, StoredHalf]:
        """The pending halves by unique id."""
        return {half.uniq: half for half in self.pending}


@dataclass(frozen=True)
class Abort:
    """Attempts of tasks that must never be decided."""

    query: str
    tokens: frozenset[str]


class Claim(NamedTuple):
    """Half messages whose ends only the holder of the claim may send, until QUIET_MS / 2 after since_ms (Unix ms)."""

    number: int
    halves: tuple[StoredHalf, ...]
    since_ms: int


_Entries: TypeAlias = tuple[dict[str, int], dict[str, int]]  # unique ids claimed, and acknowledged; each with Unix ms


def is_repeatable(batch: str) -> bool:
    """Whether Spark runs the batch again after a failure: one of a stream, named by its number. A batch write is not repeated."""
    return batch.isascii() and batch.isdigit()


class DecisionLog:
    """The decision log of one query, or of batch writes."""

    def __init__(self, folder: str) -> None:
        """Raises ConfigError for a store that cannot create a file only if it is absent."""
        path = local_path(folder)
        if path is None:
            raise ConfigError(
                f"option decisionLog={folder!r}: must be a folder of a file system that all restarts of the driver see; "
                "object stores cannot create a file only when it is absent"
            )
        self.folder = path
        self._outcomes: dict[str, list[Abort | BatchDecision]] = {}  # read before; none of them ever changes
        self._last: tuple[float, BatchDecision | None] = (-LAST_SECONDS, None)  # when it was read, in monotonic seconds
        self._claims: dict[str, tuple[int, set[str]]] = {}  # next claim and claimed unique ids of the batch in work
        self._journals: dict[Path, tuple[int, _Entries]] = {}  # read before, with the size of the file
        self._lock = threading.Lock()  # of these: check-backs are answered in several threads

    def _path(self, batch: str, kind: str, number: int = 0) -> Path:
        return self.folder / (f"{batch}.{number}.{kind}" if number else f"{batch}.{kind}")

    def _create(self, path: Path, text: str) -> bool:
        """Create a durable file unless it exists; return whether this call created it. Raises OSError."""
        with self._written(path):
            if not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                sync_path(self.folder.parent)
            beside = self.folder / f".{path.name}.{new_token()}"
            try:
                with beside.open("w") as handle:
                    handle.write(text)
                    handle.flush()
                    os.fsync(handle.fileno())
                created = False
                with suppress(FileExistsError):
                    os.link(beside, path)
                    created = True
                sync_path(self.folder)
            finally:
                beside.unlink(missing_ok=True)
        return created

    @contextmanager
    def _written(self, path: Path) -> Iterator[None]:
        """Add the file and a remedy to an OSError of the block."""
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"decision log {self.folder}: {path.name} not written: {error.strerror or error}; make this folder writable, "
                "with free space and hard links, and start the query again: it continues with what is recorded. A new query "
                "may use another folder (option decisionLog)",
            ) from error

    # ---- outcomes

    def decide(self, decision: BatchDecision) -> BatchDecision:
        """Record the decision, unless the batch was decided before; return the one that stands.

        Raises OSError if the decision cannot be recorded; nothing may be committed then. Raises StoreError for attempts that
        were aborted, and for a log that belongs to another query or to a later state of this one.
        """
        batch, aborted = decision.batch, frozenset[str]()
        self._check_owner(decision)
        text = json.dumps({"queryId": decision.query, "batchId": batch, "tokens": sorted(decision.tokens),
                           "pending": decision.pending})  # fmt: skip
        number = 0
        while True:
            outcome = self._outcome(batch, number)
            if isinstance(outcome, BatchDecision):
                sync_path(self.folder)  # a decision that is acted upon is durable, whichever driver recorded it
                return outcome
            if outcome is not None:
                aborted |= outcome.tokens
                number += 1
                continue
            if aborted & decision.tokens:
                raise StoreError(
                    f"batch {batch} was aborted before its commit: its half messages are rolled back, and nothing of this "
                    "attempt is committed"
                )
            if self._create(self._path(batch, "json", number), text):
                self._last = -LAST_SECONDS, None
                return decision

    def abort(self, query: str, batch: str, tokens: frozenset[str]) -> BatchDecision | None:
        """Record that these attempts must never be decided, unless the batch is decided; return that decision, else None.

        A batch write is not repeated: its abort is final, a decision for no half message at all. Raises OSError if the abort
        cannot be recorded; nothing may be rolled back then.
        """
        if not is_repeatable(batch):
            return self.decide(BatchDecision(query, batch, frozenset(), ()))
        text = json.dumps({"queryId": query, "batchId": batch, "aborted": sorted(tokens)})
        aborted, number = frozenset[str](), 0
        while True:
            outcome = self._outcome(batch, number)
            if isinstance(outcome, BatchDecision):
                return outcome
            if outcome is not None:
                aborted |= outcome.tokens
                number += 1
            elif tokens <= aborted or self._create(self._path(batch, "json", number), text):
                return None

    def _check_owner(self, decision: BatchDecision) -> None:
        """Raise StoreError if another query wrote the log, or if a later batch is decided and this one is not."""
        if not is_repeatable(decision.batch) or (newest := self.read(str(self.last()))) is None:
            return
        if newest.query != decision.query:
            raise StoreError(
                f"decision log {self.folder} belongs to query {newest.query}, this is query {decision.query}: with a new "
                "checkpoint use a new folder for option decisionLog"
            )
        if int(decision.batch) < int(newest.batch) and self.read(decision.batch) is None:
            raise StoreError(
                f"decision log {self.folder} decided batch {newest.batch} and has no decision for batch {decision.batch}: the "
                "checkpoint is older than the log; restore both, or use a new checkpoint and a new folder for option decisionLog"
            )

    def read(self, batch: str) -> BatchDecision | None:
        """Return the decision, None while the batch is open. Raises StoreError for a damaged file."""
        outcomes = self._read_outcomes(batch)
        return outcomes[-1] if outcomes and isinstance(outcomes[-1], BatchDecision) else None

    def aborted(self, batch: str) -> frozenset[str]:
        """Return the tokens of the batch that must never be decided."""
        return frozenset[str]().union(*(o.tokens for o in self._read_outcomes(batch) if isinstance(o, Abort)))

    def _read_outcomes(self, batch: str) -> list[Abort | BatchDecision]:
        """Return all outcomes of the batch; reads only those recorded since the last call. Raises StoreError."""
        outcomes = self._outcomes.get(batch, [])
        while not (outcomes and isinstance(outcomes[-1], BatchDecision)):
            outcome = self._outcome(batch, len(outcomes))
            if outcome is None:
                break
            outcomes = [*outcomes, outcome]
        if outcomes:
            with self._lock:
                self._outcomes.pop(batch, None)
                self._outcomes[batch] = outcomes
                while len(self._outcomes) > BATCHES_CACHED:
                    del self._outcomes[next(iter(self._outcomes))]
        return outcomes

    def _outcome(self, batch: str, number: int) -> BatchDecision | Abort | None:
        path = self._path(batch, "json", number)
        try:
            value = json.loads(path.read_text())
            if "aborted" in value:
                return Abort(value["queryId"], frozenset(value["aborted"]))
            return BatchDecision(value["queryId"], str(value["batchId"]), frozenset(value["tokens"]),
                                 tuple(StoredHalf(*item) for item in value["pending"]))  # fmt: skip
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is damaged: {error}") from error

    # ---- ends

    def claim(self, batch: str, halves: Iterator[StoredHalf], limit: int) -> Claim | None:
        """Claim the ends of the next halves, at most limit, that no driver has claimed; None if there are none. Raises OSError."""
        part: list[StoredHalf] = []
        with self._lock:
            while not self.is_finished(batch):
                number, claimed = self._claimed(batch)
                part = [half for half in part if half.uniq not in claimed]
                part += itertools.islice((half for half in halves if half.uniq not in claimed), limit - len(part))
                now, path = now_ms(), self._path(batch, "journal", number)
                if not part:
                    return None
                if self._create(path, "".join(f"T {half.uniq} {now}\n" for half in part)):
                    if not self.is_finished(batch):
                        return Claim(number, tuple(part), now)
                    path.unlink(missing_ok=True)  # another driver finished the batch and deleted its journals meanwhile
        return None

    def acknowledge(self, batch: str, claim: Claim, halves: Iterable[StoredHalf]) -> None:
        """Record that brokers acknowledged the ends of these halves of a claim. Raises OSError."""
        now, path = now_ms(), self._path(batch, "journal", claim.number)
        with self._written(path), path.open("a") as handle:
            handle.write("".join(f"D {half.uniq} {now}\n" for half in halves))
            handle.flush()
            os.fsync(handle.fileno())

    def noted(self, batch: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return (unique ids whose end was claimed, those acknowledged), each with the Unix ms of its entry.

        A torn last line of a journal is ignored.
        """
        claimed: dict[str, int] = {}
        acknowledged: dict[str, int] = {}
        number = 0
        while (entries := self._journal(batch, number)) is not None:
            claimed.update(entries[0])
            acknowledged.update(entries[1])
            number += 1
        return claimed, acknowledged

    def _claimed(self, batch: str) -> tuple[int, set[str]]:
        """Return the number of the next claim and the unique ids of the claims before it."""
        number, claimed = self._claims.pop(batch, (0, set()))
        self._claims.clear()
        while (entries := self._journal(batch, number)) is not None:
            claimed.update(*entries)
            number += 1
        self._claims[batch] = number, claimed
        return number, claimed

    def _journal(self, batch: str, number: int) -> _Entries | None:
        """Return the entries of a claim's whole lines, read again only if the file has grown; None without such a claim.

        An earlier version appended to a torn line: such a line counts for the entry at its end. Raises StoreError.
        """
        path = self._path(batch, "journal", number)
        try:
            size = path.stat().st_size
            if (cached := self._journals.get(path)) is not None and cached[0] == size:
                return cached[1]
            text = path.read_text()
        except FileNotFoundError:
            return None
        claimed: dict[str, int] = {}
        acknowledged: dict[str, int] = {}
        for line in text.split("\n")[:-1]:
            entry = _JOURNAL_LINE.search(line)
            if entry is None:
                raise StoreError(f"{path} is damaged: line {line!r} is no entry; restore the file, or remove this line if its "
                                 "message is in the topic")  # fmt: skip
            (claimed if entry[1] == "T" else acknowledged)[entry[2]] = int(entry[3] or 0)
        if len(self._journals) >= JOURNALS_CACHED:
            self._journals.clear()
        self._journals[path] = size, (claimed, acknowledged)
        return claimed, acknowledged

    def _end_of(self, batch: str, uniq: str) -> tuple[int | None, bool]:
        """Return when the end of a half was claimed (Unix ms), None if it was not, and whether it is acknowledged."""
        claimed_ms, is_acknowledged, number = None, False, 0
        while (entries := self._journal(batch, number)) is not None:
            claimed_ms = entries[0].get(uniq, claimed_ms)
            is_acknowledged = is_acknowledged or uniq in entries[1]
            number += 1
        return claimed_ms, is_acknowledged

    def finish(self, batch: str) -> None:
        """Record that every pending half is acknowledged; delete its journals, and the files of batches finished long ago."""
        marker = self._path(batch, "done")
        with self._written(marker):
            marker.touch()
            sync_path(self.folder)  # before the journals go: without both, the ends would be sent again
        for path in self.folder.glob(f"{batch}.*journal"):
            path.unlink(missing_ok=True)
        for outdated in self._outdated(batch):
            with self._lock:
                self._outcomes.pop(outdated, None)
            for pattern in ("*json", "*journal", "done"):  # without .done an interrupted deletion would not be repeated
                for path in (*self.folder.glob(f".{outdated}.*"), *self.folder.glob(f"{outdated}.{pattern}")):
                    path.unlink(missing_ok=True)

    def _outdated(self, batch: str) -> list[str]:
        """Return the finished batches, if this is a batch write those of batch writes, whose files are no longer needed."""
        finished = [path for path in self.folder.glob("*.done") if is_repeatable(path.stem) is is_repeatable(batch)]
        if is_repeatable(batch):
            return [path.stem for path in finished if int(path.stem) < int(batch) - KEPT_BATCHES]
        written: list[tuple[float, str]] = []
        for path in finished if len(finished) > KEPT_BATCHES else ():
            with suppress(FileNotFoundError):  # deleted by another driver
                written.append((path.stat().st_mtime, path.stem))
        until = time.time() - KEPT_SECONDS
        return [
            name for seconds, name in sorted(written)[:-KEPT_BATCHES] if seconds < until and name.startswith("run-")
        ]

    def is_finished(self, batch: str) -> bool:
        """Whether every pending half is acknowledged."""
        return self._path(batch, "done").exists()

    def batches(self) -> list[str]:
        """Return the batches that have an outcome, those of streams in order."""
        try:
            matches = [_OUTCOME_NAME.fullmatch(path.name) for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        names = {match[1] for match in matches if match}  # other files in the folder are not the log's
        return sorted(names, key=lambda name: (int(name) if is_repeatable(name) else -1, name))

    def last(self) -> int:
        """Return the newest decided batch of a stream, -1 for none."""
        return next((int(b) for b in reversed(self.batches()) if is_repeatable(b) and self.read(b) is not None), -1)

    def open_ends(self) -> list[tuple[str, StoredHalf]]:
        """Return (batch, half) of halves that are decided and not acknowledged: a check-back will settle them, or already did."""
        unacknowledged = []
        for batch in self.batches():
            if not self.is_finished(batch):
                decision, (_, acknowledged) = self.read(batch), self.noted(batch)
                unacknowledged += [
                    (batch, half) for half in (decision.pending if decision else ()) if half.uniq not in acknowledged
                ]
        return unacknowledged

    def verdict(self, fence: Fence, uniq: str) -> TransactionState:
        """Return the answer to a broker's check-back about a half message (SNK-15, SNK-16).

        The broker stores a copy of the half that it asks about. A half already ended is therefore rolled back: a commit would
        store the message twice. While the half's end may be in flight or yet to come the answer is UNKNOWN, because a broker
        that receives both commits would store the message twice as well. The answer is also UNKNOWN for a half of another
        query: brokers ask any producer of a group, and only that query's log has the decision.
        """
        batch, last = fence.batch, self._recent()
        if is_repeatable(batch) and last is not None and last.query != fence.query:
            return TransactionState.UNKNOWN
        decision = self.read(batch)
        if decision is None:
            older = is_repeatable(batch) and last is not None and int(batch) < int(last.batch)
            return (
                TransactionState.ROLLBACK if older or fence.token in self.aborted(batch) else TransactionState.UNKNOWN
            )
        if is_repeatable(batch) and decision.query != fence.query:
            return TransactionState.UNKNOWN
        half = decision.by_id.get(uniq)
        if half is None or fence.token not in decision.tokens or self.is_finished(batch):
            return TransactionState.ROLLBACK
        claimed_ms, is_acknowledged = self._end_of(batch, uniq)
        if is_acknowledged:
            return TransactionState.ROLLBACK
        if claimed_ms is not None:
            return TransactionState.UNKNOWN if now_ms() - claimed_ms < QUIET_MS else TransactionState.COMMIT
        if is_repeatable(batch) and last is not None and int(batch) >= int(last.batch):
            return TransactionState.UNKNOWN  # the query is about to end it, or will when it runs the batch again
        if now_ms() - self._written_ms(batch) < QUIET_MS or self.claim(batch, iter([half]), 1) is None:
            return TransactionState.UNKNOWN
        return TransactionState.COMMIT

    def _recent(self) -> BatchDecision | None:
        """Return the newest decided batch of a stream, as of LAST_SECONDS ago at the earliest: listing a folder takes time.

        An older one only makes a check-back's answer UNKNOWN instead of COMMIT or ROLLBACK.
        """
        read_at, last = self._last
        if time.monotonic() - read_at >= LAST_SECONDS:
            now = time.monotonic()
            last = self.read(str(self.last()))
            self._last = now, last
        return last

    def _written_ms(self, batch: str) -> int:
        """Return when the files of a batch were last written, Unix ms."""
        return max((int(path.stat().st_mtime * 1000) for path in self.folder.glob(f"{batch}.*")), default=0)
