"""The crash matrix of the store: `PYTHONPATH=tests python -m harness.crash.campaign`, run by `make crash`.

A seed decides the runs ("lives") of one store (run.py). Each run is cut after every disk operation; for every cut, the
states in which a crash may leave the disk (states.py) are written to a folder, opened and checked (check.py).

Requirements: G02, DUR-13, DUR-14.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harness.crash.check import Checker, Promise
from harness.crash.run import Life, lives, settings_of
from harness.crash.states import Content, State

LIVES: Final = 3
SHOWN_KINDS: Final = 12
PUT_EVERY: Final = 3  # every n-th state also gets new messages and a second crash
_AROUND: Final = 6
_LOST_SHOWN: Final = 30
_POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Failure:
    """A state that failed its check. name: `seed.life.cut.variant`, the argument of --state."""

    name: str
    how: str
    where: str
    lost: tuple[str, ...]
    before: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def kind(self) -> str:
        """A key that is equal for similar failures."""
        return re.sub(r"'.*?'|\S*/\S*|[\d-]+|\S+#\S+", "_", self.problems[0])[:100]

    def __str__(self) -> str:
        lines = [f"crash state {self.name}: {self.how}; {self.where}", "  the last operations before the crash:"]
        lines += [f"    {text}" for text in self.before]
        lines.append(f"  {len(self.lost)} unsynced operations were lost:" if self.lost else "  no operation was lost")
        lines += [f"    {text}" for text in self.lost[:_LOST_SHOWN]]
        lines.append("  what is wrong:")
        lines += [f"    {text}" for text in self.problems]
        lines.append(f"  again: PYTHONPATH=tests python -m harness.crash.campaign --state {self.name}")
        return "\n".join(lines)


@dataclass(slots=True)
class Outcome:
    """Result of one life: digests of the checked contents, number of checked states, failures."""

    digests: list[int]
    checked: int
    failures: list[Failure]


def digest(content: Content) -> int:
    """A 64-bit digest of a content."""
    found = hashlib.blake2b("\0".join(content.folders).encode(), digest_size=8)
    for path, data in content.files.items():
        found.update(b"%s\0%d\0" % (path.encode(), len(data)))
        found.update(data)
    return int.from_bytes(found.digest())


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder, in memory if /dev/shm exists; removed on exit."""
    memory = Path("/dev/shm")
    top = Path(tempfile.mkdtemp(prefix="saturnmq-crash-", dir=memory if memory.is_dir() else None))
    try:
        yield top
    finally:
        shutil.rmtree(top, ignore_errors=True)


def life_of(seed: int, number: int, top: Path) -> Life:
    """One life of a seed, recorded below `top`, an empty folder."""
    *_, life = lives(seed, top, number + 1)
    return life


def check_life(
    life: Life,
    top: Path,
    *,
    share: float = 1.0,
    stop: Callable[[], bool] = bool,
    on_checked: Callable[[bool], object] = bool,
) -> Outcome:
    """Check the states of a life, or a random share of them, in folders below `top`, until stop() returns true.

    `on_checked` is called after each check with whether it failed.
    """
    outcome = Outcome([], 0, [])
    seen: set[tuple[int, object]] = set()
    checker = Checker(top)
    chance = random.Random(f"share {life.seed} {life.number}")
    try:
        for cut, variant, state, promise in life.states():
            if stop():
                break
            if share < 1.0 and chance.random() > share:
                continue
            content = state.content()
            key = digest(content)
            owed = (promise.kept_power if state.power else promise.kept_kill, promise.saved, promise.start)
            if (key, owed) in seen:
                continue
            seen.add((key, owed))
            problems = check_state(checker, life, state, promise, content, top / "state", outcome.checked)
            outcome.checked += 1
            outcome.digests.append(key)
            if problems:
                outcome.failures.append(_failure(life, cut, variant, state, problems))
            on_checked(bool(problems))
    finally:
        checker.close()
    return outcome


def check_state(
    checker: Checker, life: Life, state: State, promise: Promise, content: Content, folder: Path, number: int
) -> list[str]:
    """Problems of one state, which is written to `folder` (must not exist yet) and removed afterwards."""
    folder.mkdir()
    try:
        content.write(folder)
        return checker.check(
            settings_of(life.seed, folder),
            promise,
            power=state.power,
            same_bytes=life.whole or not state.power,
            put=number % PUT_EVERY == 0,
        )
    except Exception as error:
        return [f"{type(error).__name__} while the state was checked: {error}"]
    finally:
        shutil.rmtree(folder)


def _failure(life: Life, cut: int, variant: int, state: State, problems: list[str]) -> Failure:
    what = "recovery" if cut < life.opened else "use"
    return Failure(
        f"{life.seed}.{life.number}.{cut}.{variant}",
        ("power lost: " if state.power else "") + state.how,
        f"operation {cut} of {len(life.operations)} of life {life.number}, in {what}",
        tuple(state.lost()),
        tuple(str(operation) for operation in life.operations[max(cut - _AROUND, 0) : cut]),
        tuple(problems),
    )


def check_one(name: str) -> Failure | None:
    """Check one state again by its name. Raises ValueError for an invalid name."""
    try:
        seed, number, wanted_cut, wanted_variant = (int(part) for part in name.split("."))
    except ValueError:
        raise ValueError(f"state {name!r} is not seed.life.cut.variant") from None
    with scratch_folder() as top:
        (top / "lives").mkdir()
        life = life_of(seed, number, top / "lives")
        checker = Checker(top)
        try:
            for cut, variant, state, promise in life.states():
                if (cut, variant) == (wanted_cut, wanted_variant):
                    problems = check_state(checker, life, state, promise, state.content(), top / "state", 0)
                    return _failure(life, cut, variant, state, problems) if problems else None
        finally:
            checker.close()
    raise ValueError(f"there is no state {name}")


# ---- worker processes


class _Shared:
    """Counters shared by the worker processes."""

    checked: Synchronized[int]
    failed: Synchronized[int]
    enough: Synchronized[int]


def _begin(checked: Synchronized[int], failed: Synchronized[int], enough: Synchronized[int]) -> None:
    logging.disable(logging.CRITICAL)
    _Shared.checked, _Shared.failed, _Shared.enough = checked, failed, enough


def _count(failed: bool) -> None:
    with _Shared.checked.get_lock():
        _Shared.checked.value += 1
        _Shared.failed.value += failed


def _task(place: tuple[int, int]) -> Outcome:
    if _Shared.enough.value:
        return Outcome([], 0, [])
    with scratch_folder() as top:
        (top / "lives").mkdir()
        life = life_of(*place, top / "lives")
        return check_life(life, top, stop=lambda: bool(_Shared.enough.value), on_checked=_count)


def run(states: int, seed: int, workers: int, seconds_max: float, console: Console) -> int:
    """Check at least `states` distinct states; returns the exit code: 0, or 1 if a state failed or time ran out."""
    checked = multiprocessing.Value("q", 0)
    failed = multiprocessing.Value("q", 0)
    enough = multiprocessing.Value("b", 0)
    digests: set[int] = set()
    failures: list[Failure] = []
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn())
    with (
        multiprocessing.Pool(workers, _begin, (checked, failed, enough)) as pool,
        Progress(*columns, console=console, refresh_per_second=2) as progress,
    ):
        bar = progress.add_task("crash states", total=states, state="")
        places = ((n, number) for n in range(seed, sys.maxsize) for number in range(LIVES))
        waiting: list[AsyncResult[Outcome]] = []
        while True:
            while len(waiting) < workers + 1 and not enough.value:
                waiting.append(pool.apply_async(_task, (next(places),)))
            waiting[0].wait(_POLL_SECONDS)
            for result in [result for result in waiting if result.ready()]:
                waiting.remove(result)
                outcome = result.get()
                digests.update(outcome.digests)
                failures += outcome.failures
            late = time.monotonic() - began > seconds_max
            # States in progress count too. Two of them may be equal, so check a few more than requested.
            if late or checked.value >= states * 1.12:  # some states are equal
                enough.value = 1
            progress.update(
                bar, completed=min(checked.value, states), state=f"{checked.value:,} done, {failed.value} failed"
            )
            if enough.value and not waiting:
                break
    took = time.monotonic() - began
    return _report(console, len(digests), checked.value, failures, took, states, seed)


def _report(
    console: Console, distinct: int, checked: int, failures: Sequence[Failure], took: float, states: int, seed: int
) -> int:
    kinds: dict[str, list[Failure]] = {}
    for failure in failures:
        kinds.setdefault(failure.kind, []).append(failure)
    for same in sorted(kinds.values(), key=len, reverse=True)[:SHOWN_KINDS]:
        console.print(f"[red]{len(same)} like this one:[/red]")
        console.print(str(min(same, key=lambda failure: len(failure.lost))), markup=False, highlight=False)
    rate = checked / max(took, 0.001)
    good = not failures and distinct >= states
    console.print(
        f"G02 crash states: {distinct:,} distinct of at least {states:,} in {took:.0f} s ({rate * 60:,.0f} a minute), "
        f"{len(failures)} failed, seed {seed}: {'[green]ok[/green]' if good else '[red]FAILED[/red]'}"
    )
    return 0 if good else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.crash.campaign", description="Crash matrix of the store.")
    parser.add_argument("--states", type=int, default=100_000, help="so many distinct states at least (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the first store; a random one if not given")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count(), help="processes (%(default)s)")
    parser.add_argument("--seconds", type=float, default=600, help="a longer run counts as failed (%(default)s)")
    parser.add_argument("--state", help="check one state, seed.life.cut.variant, and say what is wrong")
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True)
    if options.state is not None:
        try:
            failure = check_one(options.state)
        except ValueError as error:
            parser.error(str(error))
        console.print(str(failure) if failure else f"state {options.state} is well", markup=False, highlight=False)
        return 1 if failure else 0
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    console.print(f"crash matrix: seed {seed}, {options.workers} processes")
    return run(options.states, seed, options.workers, options.seconds, console)


if __name__ == "__main__":
    sys.exit(main())
