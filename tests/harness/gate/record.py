"""What a gate run records across its pytest sessions, in the folder that the environment variable SATURNMQ_GATE names.

`.ci/run` sets the variable, runs several sessions and prints the records at the end. Without the variable nothing is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "SATURNMQ_GATE"


def in_gate() -> bool:
    """Whether this session is part of `.ci/run`."""
    return bool(os.environ.get(VARIABLE))


def append(name: str, line: str) -> None:
    """Add a line to record `name`."""
    if not in_gate():
        return
    folder = Path(os.environ[VARIABLE])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.txt").open("a", encoding="utf-8") as file:
        file.write(line.replace("\n", " ") + "\n")


def lines(name: str) -> list[str]:
    """The lines of record `name`, of earlier sessions as well."""
    path = Path(os.environ[VARIABLE]) / f"{name}.txt" if in_gate() else None
    return path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
