"""Normalizes `mqadmin` output of two servers: addresses, times, ids and rates are replaced by words."""

from __future__ import annotations

import re

# Applied in this order: each rule sees the output of the previous ones.
_RULES: tuple[tuple[str, str], ...] = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"127\.0\.0\.1:\d+", "HOST:PORT"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d{3})?", "TIME"),
    (r"\b[0-9A-F]{32,56}\b", "ID"),
    (r"\b1[0-9]{12}\b", "MS"),
    (r"\b\d+ms +(?=success)", "COST "),
    (r"spentTimeMills=\d+", "spentTimeMills=COST"),
    (r"(?m)\d+\.\d\d\(\d+,\d+ms\)", "RATE"),
    (r"(?m)RATE +\d+ +\d+\.\d\d +\d+\.\d+ *$", "RATE PCWAIT HOUR SPACE"),
    (r"(?m)^Consume TPS: .*$", "Consume TPS: RATE"),
    (r"(?m)^%RETRY%\S+ .*$", ""),  # whether a member committed it depends on when the member was stopped
    (r"OFFLINE +\d+ ", "OFFLINE TPS "),
    (r" +", " "),
    (r"(?m) +$", ""),
)


def comparable(text: str, *, rows_sorted: bool = False) -> str:
    """The text without what differs between two runs of one server. `rows_sorted`: for tables without a defined order."""
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(sorted(lines) if rows_sorted else lines)
