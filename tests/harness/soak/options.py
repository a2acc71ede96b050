"""What a soak run is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """seconds: of the part; rate: sends per second; folder: empty; show: prints progress, (seconds so far, text)."""

    seconds: float
    rate: float
    seed: int
    folder: Path
    show: Callable[[float, str], None]

    @property
    def share(self) -> float:
        """How much of an hour this run is; counts that a requirement names are for one hour or more."""
        return min(self.seconds / 3600, 1.0)
