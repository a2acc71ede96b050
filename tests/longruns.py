"""What `make test` runs of repeated work, and what `make test-long` runs.

Two markers (pyproject.toml) divide the tests: `long` tests run in `make test-long` only. `repeated` tests, such as those over the
seeds of a simulation, run in both, with a few repetitions in `make test`. A test run by hand has the few.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

LONG = "SATURNMQ_LONG" in os.environ  # set by make test-long
T = TypeVar("T")


def repetitions(few: int, many: int) -> int:
    """`many` in make test-long, else `few`."""
    return many if LONG else few


def long_but(few: int, cases: Iterable[T]) -> list[object]:
    """Parameters of a test: the first `few` run in make test, the others are marked `long`."""
    return [
        case if number < few else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        for number, case in enumerate(cases)
    ]
