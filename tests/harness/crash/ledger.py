"""Crash states of a ledger: recorded runs of its files, cut after every disk operation, opened and checked.

`PYTHONPATH=tests python -m harness.crash.ledger`, run by `make crash`. As in the crash matrix of the store (run.py, check.py), any
subset of what was not synced may survive a power loss, whole or in part. That includes index units, which are synced later than
the entries that they belong to.

Requirements: G05, DL-X02, DUR-10, DUR-12, DUR-20.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from harness.crash.campaign import scratch_folder
from harness.crash.check import InlineExecutor, QuickDisk, differences, snapshot
from harness.crash.disk import RecordingDisk
from harness.crash.states import Content, Operation, State, Volume, promised_states
from saturnmq.protocol.errors import CorruptRecord, SaturnError
from saturnmq.raft.core.entry import ENTRY_HEADER_BYTES, Entry, entry_position
from saturnmq.raft.core.ids import NO_INDEX, LedgerIndex, Term
from saturnmq.raft.ledger.files import LedgerFiles
from saturnmq.raft.ledger.layout import INDEX_UNIT_BYTES, LedgerCheckpoint, index_unit
from saturnmq.raft.ledger.opened import CheckpointRounds, open_ledger
from saturnmq.raft.ledger.term_file import CheckpointFile

NAME: Final = "dledger-n0"
STEPS: Final = 30
LIVES: Final = 3
ANY: Final = 1 << 40
_CRC_BYTES: Final = 4


def body_is_good(body: memoryview) -> bool:
    """Whether the checksum in the last four bytes of a body is right."""
    return zlib.crc32(body[:-_CRC_BYTES]).to_bytes(_CRC_BYTES, "big") == body[-_CRC_BYTES:]


@dataclass(frozen=True, slots=True)
class Promise:
    """What the ledger guarantees from some moment of a run on.

    entries: the whole log. kept_power, kept_kill: index of the last entry that survives a power loss, and the end of the process.
    begin: the log begins at this index or before it; ANY while it is dropped as a whole.
    """

    entries: tuple[Entry, ...] = ()
    kept_power: int = -1
    kept_kill: int = -1
    begin: int = 0


@dataclass(slots=True)
class Life:
    """A recording: the initial disk, the operations, and the promises with the number of operations before each."""

    seed: int
    number: int
    begin: Volume
    operations: list[Operation]
    promises: list[tuple[int, Promise]]

    def states(self) -> Iterator[tuple[int, int, State, Promise]]:
        """(cut, variant, state, promise) of every crash state. Use a state before requesting the next."""
        return promised_states(f"{self.seed} {self.number}", self.begin, self.operations, self.promises)


def files_of(seed: int, top: Path, disk: RecordingDisk | QuickDisk) -> LedgerFiles:
    """The ledger of a seed, which decides the sizes of its files."""
    rng = random.Random(f"sizes {seed}")
    return LedgerFiles(
        top / NAME,
        file_bytes=rng.choice((512, 1024, 4096)),
        index_file_units=rng.choice((8, 16, 160)),
        body_is_good=body_is_good,
        disk=disk,
    )


class _Run:
    """One life while it runs. It does to the files what the driver does, in the same order."""

    def __init__(self, seed: int, number: int, folder: Path, disk: RecordingDisk, promise: Promise) -> None:
        self.rng = random.Random(f"run {seed} {number}")
        self.seed, self.folder, self.disk, self.promise = seed, folder, disk, promise
        self.promises = [(0, promise)]
        self.name = f"{seed}.{number}"
        self.count = 0
        self.files = files_of(seed, folder, disk)
        self.checkpoint = CheckpointFile(folder / NAME, disk)

    def mark(self, **changes: object) -> None:
        """Record what the ledger guarantees from this operation on."""
        self.promise = replace(self.promise, **changes)  # type: ignore[arg-type]
        self.promises.append((len(self.disk.operations), self.promise))

    def live(self) -> None:
        self.disk.make_folder(self.folder / NAME)
        self._open()
        self.disk.between = self._meanwhile
        for _ in range(STEPS):
            self._step()
        self.files.close()

    def _open(self) -> None:
        self.files = files_of(self.seed, self.folder, self.disk)
        open_ledger(self.files, self.checkpoint)
        end, begin = self.files.end_index, max(self.files.begin_index, 0)
        entries = tuple(entry for entry in self.promise.entries if begin <= entry.index <= end)
        assert stored(self.files) == list(entries), f"{self.name} begins with a broken ledger"
        self.mark(entries=entries, kept_power=end, kept_kill=end, begin=begin)

    def _meanwhile(self) -> None:
        """Runs while another thread syncs."""
        if self.rng.random() < 0.3 and not self.files.sums.busy:
            self._append()

    def _step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (40, self._append),
            (25, self._sync),
            (6, self._checkpoint),
            (6, self._cut),
            (2, self._restart_log),
            (3, self._trim),
            (3, self.files.prepare),
            (3, self._stop_and_open),
        ]
        _, step = self.rng.choices(steps, [weight for weight, _ in steps])[0]
        step()

    def _entry(self, index: int, end_pos: int, term: int) -> Entry:
        self.count += 1
        body = f"{self.name}.{self.count} ".encode() * self.rng.choice((1, 1, 2, 6, 20))
        body += zlib.crc32(body).to_bytes(_CRC_BYTES, "big")
        pos = entry_position(end_pos, ENTRY_HEADER_BYTES + len(body), self.files.file_bytes)
        return Entry(LedgerIndex(index), Term(term), pos, body)

    def _append(self) -> None:
        """One push of a leader: some consecutive entries."""
        files, rng = self.files, self.rng
        index = self._next if files.end_index < 0 else files.end_index + 1
        end_pos, term = files.end_pos, max(files.end_term, 1) + (rng.random() < 0.1)
        made: list[Entry] = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            made.append(self._entry(index, end_pos, term))
            index, end_pos = index + 1, made[-1].end_pos
        self.mark(entries=(*self.promise.entries, *made))
        files.append(made)
        self.mark(kept_kill=files.end_index)

    _next = 0  # index of the next entry while the log is empty

    def _sync(self) -> None:
        end, epoch = self.files.end_index, len(self.promise.entries) and self.promise.entries[0]
        self._threaded(self.files.sync_job())
        if epoch == (len(self.promise.entries) and self.promise.entries[0]):
            self.mark(kept_power=max(end, self.promise.kept_power))

    def _threaded(self, job: Callable[[], None]) -> None:
        self.disk.threaded = True
        try:
            job()
        finally:
            self.disk.threaded = False

    def _checkpoint(self) -> None:
        self.files.request_index_sync()
        self._sync()
        checkpoint = LedgerCheckpoint(LedgerIndex(self.promise.kept_power), NO_INDEX)
        CheckpointRounds(self.files, self.checkpoint, "n0").write(checkpoint)

    def _cut(self) -> None:
        """Truncate as a leader of another term demands, and append what it has instead."""
        files = self.files
        if files.end_index <= max(files.begin_index, 0):
            return
        index = self.rng.randint(max(files.begin_index, 0) + 1, files.end_index)
        before = files.entry(index - 1)
        assert before is not None
        kept = min(self.promise.kept_power, index - 1)
        self.mark(kept_power=kept, kept_kill=index - 1)  # the checkpoint says nothing more of the others
        self.checkpoint.write(LedgerCheckpoint(LedgerIndex(kept), NO_INDEX))
        files.cut(index, before.end_pos)
        self.mark(entries=tuple(entry for entry in self.promise.entries if entry.index < index))
        if self.rng.random() < 0.8:
            self._append()

    def _restart_log(self) -> None:
        """Drop the whole log; the next entry lies somewhere else, as in the log of a leader that deleted old files."""
        self._next = max(self.files.end_index, 0) + self.rng.randrange(1, 40)
        pos = self.files.end_pos + self.rng.randrange(3) * self.files.file_bytes + self.rng.randrange(300)
        pos = entry_position(pos, ENTRY_HEADER_BYTES + 200, self.files.file_bytes)
        self.mark(kept_power=-1, kept_kill=-1, begin=ANY)
        self.checkpoint.write(LedgerCheckpoint())
        self.files.cut(self._next, pos, restart=True)
        self.mark(entries=(), begin=self._next)
        self._append()

    def _trim(self) -> None:
        if len(self.files.data.files) > 1 and self.files.data.files[1].start < self.files.end_pos:
            first, last = self.files.begin_index, self.files.data.files[1]
            self.mark(begin=next(entry.index for entry in self.promise.entries if entry.pos >= last.start))
            if self.files.delete_oldest() == first:
                self.mark(begin=first)

    def _stop_and_open(self) -> None:
        between, self.disk.between = self.disk.between, None
        self._checkpoint()
        self.files.sums.discard()
        self.files.close()
        self._open()
        self.disk.between = between


def stored(files: LedgerFiles) -> list[Entry]:
    """All entries of an open ledger. Raises CorruptRecord."""
    found = [files.entry(index) for index in range(max(files.begin_index, 0), files.end_index + 1)]
    return [entry for entry in found if entry is not None]


def record(seed: int, number: int, top: Path, begin: Volume, promise: Promise) -> Life:
    """Run a ledger on a recording disk, in its own folder below top."""
    folder = top / f"life{number}"
    folder.mkdir()
    begin.content(begin.pending).write(folder)
    disk = RecordingDisk(folder, begin)
    disk.threads = InlineExecutor(disk)
    run = _Run(seed, number, folder, disk, promise)
    run.live()
    return Life(seed, number, begin, disk.operations, run.promises)


def lives(seed: int, top: Path, count: int) -> Iterator[Life]:
    """The lives of one ledger: each begins with a crash state of the previous one. top is an empty folder."""
    life = record(seed, 0, top, Volume(), Promise())
    yield life
    for number in range(1, count):
        rng = random.Random(f"life {seed} {number}")
        cut = rng.randrange(len(life.operations) + 1)
        found = []
        for at, _, state, promise in life.states():
            if at == cut:
                copy = State(state.volume.copy(), list(state.survived), state.power, state.how)
                found.append((copy, promise))
            elif at > cut:
                break
        state, promise = rng.choice(found)
        if state.power:
            promise = replace(promise, kept_kill=promise.kept_power)
        life = record(seed, number, top, state.after(), promise)
        yield life


def check(seed: int, content: Content, promise: Promise, folder: Path, *, power: bool) -> list[str]:
    """Problems of one crash state, which is written to `folder` (must not exist yet) and removed afterwards."""
    folder.mkdir()
    try:
        content.write(folder)
        return _problems(seed, folder, promise, promise.kept_power if power else promise.kept_kill)
    except (SaturnError, OSError, ValueError, IndexError, AssertionError) as error:
        return [f"does not open: {type(error).__name__}: {error}"]
    finally:
        shutil.rmtree(folder)


def _problems(seed: int, folder: Path, promise: Promise, kept: int) -> list[str]:
    files, checkpoint = _opened(seed, folder)
    found = stored(files)
    problems = []
    if checkpoint.end_index > files.end_index:
        problems.append(f"damage without damage: the log ends at {files.end_index}, synced {checkpoint.end_index}")
    problems += list(_of_the_log(files, found, promise, kept)) + list(_of_the_index(files, found))
    files.close()
    if problems:
        return problems
    once = snapshot(folder)
    files, checkpoint = _opened(seed, folder)
    problems += [f"second recovery: {text}" for text in differences(once, snapshot(folder))]
    body = b"after the crash"
    body += zlib.crc32(body).to_bytes(_CRC_BYTES, "big")
    pos = entry_position(files.end_pos, ENTRY_HEADER_BYTES + len(body), files.file_bytes)
    more = Entry(LedgerIndex(files.end_index + 1), Term(max(files.end_term, 0) + 1), pos, body)
    files.append([more])
    files.sync_job()()
    files.close()
    files, checkpoint = _opened(seed, folder)
    if stored(files) != [*found, more] or checkpoint.end_index != more.index:
        problems.append("an entry that was appended after the recovery is not there after the next")
    files.close()
    return problems


def _opened(seed: int, folder: Path) -> tuple[LedgerFiles, LedgerCheckpoint]:
    disk = QuickDisk()
    disk.make_folder(folder / NAME)
    files = files_of(seed, folder, disk)
    return files, open_ledger(files, CheckpointFile(folder / NAME, disk))


def damaged(seed: int, content: Content, promise: Promise, folder: Path, rng: random.Random) -> tuple[bool, str]:
    """Flip a bit of an entry that was synced behind the checkpoint, in a state in which only the process ended.

    Returns whether there is such an entry, and what is wrong if the damage passes as a torn write. The folder is removed.
    """
    folder.mkdir()
    try:
        content.write(folder)
        noted = CheckpointFile(folder / NAME).read().end_index
        files = files_of(seed, folder, QuickDisk())
        chosen = [e for e in promise.entries if max(noted, promise.begin - 1) < e.index <= promise.kept_power]
        if not chosen:
            return False, ""
        entry = rng.choice(chosen)
        path = files.data.folders[0] / f"{entry.pos - entry.pos % files.file_bytes:020d}"
        at, bit = entry.pos % files.file_bytes + rng.randrange(entry.size), 1 << rng.randrange(8)
        data = bytearray(path.read_bytes())
        data[at] ^= bit
        path.write_bytes(data)
        what = f"entry {entry.index} at {entry.pos}, byte {at} of its file, bit {bit}"
        for _ in range(2):  # at every start until the entries are back
            try:
                files, checkpoint = _opened(seed, folder)
            except CorruptRecord:
                return True, ""  # whole files behind it: an operator must act (DL-S07)
            end, lost, kept = files.end_index, checkpoint.end_index, files.first_differing
            files.close()
            if not end < entry.index <= lost and kept != entry.index:
                return True, f"{what}: the log ends at {end}, synced {lost}"
        return True, ""
    finally:
        shutil.rmtree(folder)


def _of_the_log(files: LedgerFiles, found: list[Entry], promise: Promise, kept: int) -> Iterator[str]:
    known = {entry.index: entry for entry in promise.entries}
    for entry in found:
        if known.get(entry.index) != entry:
            yield f"entry {entry.index} of term {entry.term} is not the one that was appended"
            return
    if files.end_index < kept:
        yield f"the log ends at {files.end_index}, entries up to {kept} were acknowledged"
    if found and found[0].index > promise.begin:
        yield f"the log begins at {found[0].index}, entries from {promise.begin} on were not deleted"


def _of_the_index(files: LedgerFiles, found: list[Entry]) -> Iterator[str]:
    """The index equals one that is made from the data; every unit behind it is zero."""
    for entry in found:
        file = files.index.find(entry.index * INDEX_UNIT_BYTES)
        at = entry.index * INDEX_UNIT_BYTES - (file.start if file is not None else 0)
        if file is None or file.map[at : at + INDEX_UNIT_BYTES] != index_unit(entry):
            yield f"the index has no unit for entry {entry.index}"
    for file in files.index.files:
        behind = (files.end_index + 1) * INDEX_UNIT_BYTES - file.start
        if file.map[max(behind, 0) :].strip(b"\0"):
            yield f"index file {file.start} has units behind the end of the log"


def failures(life: Life, top: Path, *, share: float = 1.0, first_only: bool = False) -> tuple[int, list[str]]:
    """Check the crash states of a life, or a random share of them; how many were checked, and the descriptions of the bad ones."""
    seen: set[tuple[int, object]] = set()
    chance = random.Random(f"share {life.seed} {life.number}")
    bad: list[str] = []
    for cut, variant, state, promise in life.states():
        if share < 1.0 and chance.random() > share:
            continue
        content = state.content()
        key = (content.key(), (promise.kept_power if state.power else promise.kept_kill, len(promise.entries)))
        if key in seen:
            continue
        seen.add(key)
        problems = check(life.seed, content, promise, top / "state", power=state.power)
        if not state.power and not state.unfinished and not problems and promise.begin < ANY:
            flipped = random.Random(f"flip {life.seed} {life.number} {cut}")
            problems = [text for text in [damaged(life.seed, content, promise, top / "state", flipped)[1]] if text]
        if problems:
            lost = "".join(f"\n    {text}" for text in state.lost())
            place_of = f"{life.seed}.{life.number}.{cut}.{variant} ({state.how})"
            bad.append(f"state {place_of}: {'; '.join(problems)}\n  not survived:{lost}")
            if first_only:
                break
    return len(seen), bad


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.crash.ledger", description="Crash states of a ledger.")
    parser.add_argument("--states", type=int, default=50_000, help="so many states at least (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the first ledger; a random one if not given")
    parser.add_argument("--seconds", type=float, default=300, help="a longer run counts as failed (%(default)s)")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    began, checked, number = time.monotonic(), 0, seed
    bad: list[str] = []
    while checked < options.states and not bad and time.monotonic() - began < options.seconds:
        with scratch_folder() as top:
            (top / "lives").mkdir()
            for life in lives(number, top / "lives", LIVES):
                count, found = failures(life, top)
                checked, bad = checked + count, bad + found
        number += 1
    took = time.monotonic() - began
    print(
        f"crash states of ledgers: {checked:,} checked in {took:.0f} s, {len(bad)} wrong, seeds {seed} to {number - 1}"
    )
    print("\n".join(bad[:3]))
    return 0 if not bad and checked >= options.states else 1


if __name__ == "__main__":
    sys.exit(main())
