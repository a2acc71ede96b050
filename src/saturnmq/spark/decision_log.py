"""Decision log of the transactional sink: one file per batch, created before its first message is committed.

The file is the commit point: while it does not exist, the batch is open; once it exists, the batch is decided, permanently. It is
written under a temporary name and then linked to its final one, which fails when that exists: of two writers exactly one wins.
Does not import pyspark.

Requirements: SNK-13..SNK-16, SNK-19.
"""

# Files of a decision log, in its folder:
#   <batch>.json     {"queryId", "batchId", "tokens": [...], "pending": [[uniq, topic, broker, half offset, offset id], ...]}
#   <batch>.journal  lines, appended and fsynced: "T <uniq> <Unix ms>" the end is being sent, "D ..." it was acknowledged
#   <batch>.done     empty: the end of every pending half was acknowledged

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from saturnmq.client.receipt import TransactionState
from saturnmq.durable import sync_path
from saturnmq.protocol.errors import ConfigError, StoreError
from saturnmq.protocol.offsets import QueueOffset

FENCE_PROPERTY: Final = "SPARK_TX"
END_TIMEOUT_MS: Final = 10_000
QUIET_MS: Final = 6 * END_TIMEOUT_MS  # after this long without a journal entry, no end request can still be in flight
KEPT_BATCHES: Final = 100  # finished batches whose files are kept


class Half(NamedTuple):
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
class Decision:
    """What was decided about a batch."""

    query: str
    batch: str
    tokens: frozenset[str]
    pending: tuple[Half, ...]


class DecisionLog:
    """The decision log of one query, or of one batch write."""

    def __init__(self, folder: str) -> None:
        """Raises ConfigError for a store that cannot create a file only if it is absent."""
        if "://" in folder and not folder.startswith("file://"):
            raise ConfigError(
                f"option decisionLog={folder!r}: must be a folder of a file system that all restarts of the driver see; "
                "object stores cannot create a file only when it is absent"
            )
        self.folder = Path(folder.removeprefix("file://").removeprefix("file:"))

    def _path(self, batch: str, kind: str) -> Path:
        return self.folder / f"{batch}.{kind}"

    def decide(self, decision: Decision) -> Decision:
        """Record the decision, unless the batch was decided before; return the one that stands.

        Raises OSError: the decision is not recorded, and nothing may be committed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(decision.batch, "json")
        text = json.dumps({"queryId": decision.query, "batchId": decision.batch, "tokens": sorted(decision.tokens),
                           "pending": decision.pending})  # fmt: skip
        beside = self.folder / f".{decision.batch}.{new_token()}"
        try:
            with beside.open("w") as handle:
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
            with suppress(FileExistsError):
                os.link(beside, path)
            sync_path(self.folder)
        finally:
            beside.unlink(missing_ok=True)
        found = self.read(decision.batch)
        if found is None:
            raise StoreError(f"{path} was written and is not there")
        return found

    def read(self, batch: str) -> Decision | None:
        """Return the decision, None while the batch is open. Raises StoreError for a damaged file."""
        path = self._path(batch, "json")
        try:
            value = json.loads(path.read_text())
            return Decision(value["queryId"], str(value["batchId"]), frozenset(value["tokens"]),
                            tuple(Half(*item) for item in value["pending"]))  # fmt: skip
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is damaged: {error}") from error

    def note(self, batch: str, word: str, halves: Iterable[Half]) -> None:
        """Append to the journal and fsync. T: the ends of these halves are about to be sent. D: they are acknowledged."""
        now = now_ms()
        with self._path(batch, "journal").open("a") as handle:
            handle.write("".join(f"{word} {half.uniq} {now}\n" for half in halves))
            handle.flush()
            os.fsync(handle.fileno())

    def noted(self, batch: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return (unique ids whose end was sent, those acknowledged), each with the Unix ms of its entry.

        A torn last line is ignored.
        """
        tried: dict[str, int] = {}
        done: dict[str, int] = {}
        try:
            lines = self._path(batch, "journal").read_text().split("\n")[:-1]
        except FileNotFoundError:
            return tried, done
        for line in lines:
            word, uniq, *when = line.split(" ")
            (done if word == "D" else tried)[uniq] = int(when[0]) if when else 0
        return tried, done

    def finish(self, batch: str) -> None:
        """Record that every pending half is acknowledged; delete the files of batches finished long ago."""
        self._path(batch, "done").touch()
        if batch.isdigit():
            for path in self.folder.glob("*.done"):
                if path.stem.isdigit() and int(path.stem) < int(batch) - KEPT_BATCHES:
                    for kind in ("json", "journal", "done"):
                        self._path(path.stem, kind).unlink(missing_ok=True)

    def is_finished(self, batch: str) -> bool:
        """Whether every pending half is acknowledged."""
        return self._path(batch, "done").exists()

    def last(self) -> int:
        """Return the newest decided batch, -1 for none."""
        return max((int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdigit()), default=-1)

    def open_ends(self) -> list[tuple[str, Half]]:
        """Return (batch, half) of halves that are decided and not acknowledged: a check-back will settle them, or already did."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            if not self.is_finished(path.stem):
                decision, (_, done) = self.read(path.stem), self.noted(path.stem)
                found += [(path.stem, half) for half in (decision.pending if decision else ()) if half.uniq not in done]
        return found

    def verdict(self, fence: Fence, uniq: str) -> TransactionState:
        """Return the answer to a broker's check-back about a half message (SNK-15, SNK-16).

        The broker stores a copy of the half that it asks about. A half already ended is therefore rolled back: a commit would
        store the message twice. While the half's end may be in flight or yet to come the answer is UNKNOWN, because a broker
        that receives both commits would store the message twice as well.
        """
        decision = self.read(fence.batch)
        if decision is None:
            older = fence.batch.isdigit() and int(fence.batch) < self.last()
            return TransactionState.ROLLBACK if older else TransactionState.UNKNOWN
        if fence.token not in decision.tokens or self.is_finished(fence.batch):
            return TransactionState.ROLLBACK
        tried, done = self.noted(fence.batch)
        if not any(half.uniq == uniq for half in decision.pending) or uniq in done:
            return TransactionState.ROLLBACK
        if uniq not in tried and fence.batch.isdigit() and int(fence.batch) == self.last():
            return TransactionState.UNKNOWN  # the query is about to end it, or will when it runs the batch again
        since = tried[uniq] if uniq in tried else self._written_ms(fence.batch)
        return TransactionState.UNKNOWN if now_ms() - since < QUIET_MS else TransactionState.COMMIT

    def _written_ms(self, batch: str) -> int:
        """Return when the files of a batch were last written, Unix ms."""
        paths = (self._path(batch, kind) for kind in ("json", "journal"))
        return max(int(path.stat().st_mtime * 1000) for path in paths if path.exists())
