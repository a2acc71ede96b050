"""Samples of processes, and whether what they hold grows.

Requirements: SOK-02.
"""

from __future__ import annotations

import json
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from harness.gate.goals import Goal

MB: Final = 1_000_000
HANDLES: Final = ("descriptors", "threads", "tasks", "calls", "parked")
RSS_MB_PER_HOUR_MAX: Final = 1.0
HANDLES_MORE_MAX: Final = 3  # or a tenth: the largest of two thirds of a run differ by chance
SAMPLES_MIN: Final = 6
_SIZE: Final = re.compile(r"^(Rss\w+|VmRSS|Threads):\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process. rss: resident bytes; own: those that no file backs, which only its end gives back.

    descriptors: all but two of each file, its own and that of its mapping, as a store that grows has more files.
    """

    at_s: float
    rss: int
    own: int
    descriptors: int
    threads: int
    tasks: int = 0
    calls: int = 0
    parked: int = 0


def look(pid: int, at_s: float, probe: Path | None = None) -> Sample | None:
    """A sample of a process; None if it has ended. probe: the file that it writes about itself."""
    try:
        sizes = {name: int(value) for name, value in _SIZE.findall(Path(f"/proc/{pid}/status").read_text())}
        descriptors = _descriptors(pid)
    except (OSError, ValueError):
        return None
    inside: dict[str, int] = {}
    if probe is not None and probe.exists():
        inside = json.loads(probe.read_text())
    own = sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)
    return Sample(at_s, sizes.get("VmRSS", 0) * 1024, own * 1024, descriptors, sizes.get("Threads", 0), **inside)


def _descriptors(pid: int) -> int:
    """Open descriptors but for two of each file that still exists: sockets, pipes, deleted files, files that are open too often."""
    links: list[str] = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(one))
    files = Counter(link for link in links if link.startswith("/") and not link.endswith(" (deleted)"))
    return len(links) - sum(min(count, 2) for count in files.values())


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The least-squares slope of (x, y) points; 0 for fewer than two different x.

    >>> slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)])
    2.0
    """
    if len({x for x, _ in points}) < 2:
        return 0.0
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


@dataclass
class Watched:
    """Samples of one process. bounded: whether its growth is a promise here, or only printed."""

    name: str
    pid: Callable[[], int | None]
    probe: Path | None = None
    bounded: bool = True
    samples: list[Sample] = field(default_factory=list)

    def sample(self, at_s: float) -> None:
        pid = self.pid()
        found = look(pid, at_s, self.probe) if pid is not None else None
        if found is not None:
            self.samples.append(found)

    def write(self, path: Path) -> None:
        """Write the samples, one line of JSON each; they are kept with the run's other files if a goal is missed."""
        path.write_text("".join(f"{json.dumps(asdict(sample))}\n" for sample in self.samples), encoding="utf-8")

    def since(self, at_s: float) -> list[Sample]:
        return [sample for sample in self.samples if sample.at_s >= at_s]

    def goals(self, name: str, warm_s: float) -> list[Goal]:
        """Growth after the warm-up: one line for memory, one for what must stay constant."""
        found = self.since(warm_s)
        title = f"{name} {self.name}"
        if len(found) < SAMPLES_MIN:
            return [Goal(f"{title} samples", f"{len(found)} after the warm-up", f">= {SAMPLES_MIN}", not self.bounded)]
        hours = (found[-1].at_s - found[0].at_s) / 3600
        grows = slope([(sample.at_s / 3600, sample.own / MB) for sample in found])
        mapped = slope([(sample.at_s / 3600, sample.rss / MB) for sample in found])
        most = RSS_MB_PER_HOUR_MAX / min(hours, 1.0)  # of a shorter run: 1 MB in all
        memory = f"{grows:+.2f} MB/h ({grows * hours:+.2f} MB in {hours * 60:.1f} min), with mapped files {mapped:+.1f} MB/h, "
        memory += f"{found[-1].own / MB:.1f} MB at the end"
        text = f"< {RSS_MB_PER_HOUR_MAX:g} MB/h" if hours >= 1 else f"< {RSS_MB_PER_HOUR_MAX:g} MB in all"
        lines = [Goal(f"{title} memory", memory, text if self.bounded else "none", not self.bounded or grows < most)]
        third = max(len(found) // 3, 1)
        grown, figures = [], []
        for what in HANDLES:
            # The largest, as a leader has more tasks and parked pulls than a follower.
            first = max(getattr(sample, what) for sample in found[:third])
            last = max(getattr(sample, what) for sample in found[-third:])
            figures.append(f"{what} {first} -> {last}")
            if last - first > max(HANDLES_MORE_MAX, first * 0.1):
                grown.append(what)
        bound = "constant" if self.bounded else "none"
        return [*lines, Goal(f"{title} handles", ", ".join(figures), bound, not (self.bounded and grown))]
