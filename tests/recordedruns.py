"""Recorded runs: what a run decided by a seed does, step by step, compared with what it did when it was recorded.

A run is a list of texts, one per step; the file beside the test keeps a checksum of each. `SATURNMQ_REWRITE_SCRIPTS=1` records
the runs again: each checksum that changes is a change of behaviour. To read it, let both versions write their texts with
`SATURNMQ_RUN_TEXTS=FOLDER`, and compare the files.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from saturnmq.protocol.errors import SaturnError

REWRITE: Final = os.environ.get("SATURNMQ_REWRITE_SCRIPTS") is not None
TEXTS: Final = os.environ.get("SATURNMQ_RUN_TEXTS")


def check_run(file: Path, name: str, steps: Sequence[str]) -> None:
    """Compare a run with the one recorded under its name in the file. Lines of the file: `NAME: CHECKSUM CHECKSUM ...`."""
    if TEXTS is not None:
        Path(TEXTS, f"{name}.txt").write_text("\n".join(steps), encoding="utf-8")
    actual = [f"{zlib.crc32(step.encode()):08x}" for step in steps]
    recorded = dict(line.split(": ") for line in file.read_text().splitlines()) if file.exists() else {}
    if REWRITE:
        recorded[name] = " ".join(actual)
        file.write_text("".join(f"{key}: {recorded[key]}\n" for key in sorted(recorded)))
        return
    for number, (checksum, expected) in enumerate(
        itertools.zip_longest(actual, recorded.get(name, "").split(), fillvalue="no such step")
    ):
        assert checksum == expected, (
            f"run {name!r} differs from {file.name} in step {number} of {len(steps)}; if that is intended, record it again "
            f"with SATURNMQ_REWRITE_SCRIPTS=1, and see {Path(__file__).name} for how to read the difference:\n"
            f"{steps[number][:4000] if number < len(steps) else 'it ended before'}"
        )


def attempt(call: Callable[..., object], *arguments: Any) -> str:
    """The result of a call as text, or its error with the advice."""
    try:
        return str(call(*arguments))
    except SaturnError as error:
        return f"{type(error).__name__} {error.message} -> {getattr(error, 'hint', '')}"


def public(subject: object) -> str:
    """What others may read of an object: the values of its properties."""
    kind = type(subject)
    names = [name for name in dir(kind) if not name.startswith("_") and isinstance(getattr(kind, name), property)]
    return " ".join(f"{name}={getattr(subject, name)!r}" for name in names)
