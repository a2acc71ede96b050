"""The result of one check.

Requirements: CLI-06.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Result(Enum):
    """ok; note: worth a look, for instance a kernel setting; problem: doctor ends with 3."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """The result of a check of a subject, and what to do; advice is empty when there is nothing to do."""

    check: str
    subject: str
    result: Result
    text: str
    advice: str = ""


def ok(check: str, subject: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(check, subject, Result.OK, text)


def note(check: str, subject: str, text: str, advice: str) -> Finding:
    """Worth a look."""
    return Finding(check, subject, Result.NOTE, text, advice)


def problem(check: str, subject: str, text: str, advice: str) -> Finding:
    """Something does not work, or soon will not."""
    return Finding(check, subject, Result.PROBLEM, text, advice)
