"""The names and labels of the exporter of Apache RocketMQ, read from docs/spec."""

from __future__ import annotations

import re
from pathlib import Path

SPEC = Path(__file__).resolve().parent.parent / "docs" / "spec"
RUNTIME = "brokeruntime_"


def expanded(text: str) -> list[str]:
    """The names of a list such as `a_{b,c_{d,e}}; f`, comma or semicolon between two; slashes are alternatives of a word."""
    names, depth, word = [], 0, ""
    for letter in text + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter in ",;" and not depth:
            names += _alternatives(word.strip())
            word = ""
        else:
            word += letter
    return [name for name in names if name]


def _alternatives(word: str) -> list[str]:
    found = re.search(r"\{([^{}]*)\}", word)
    if found is None:
        parts = re.fullmatch(r"(\w+(?:/\w+)+)(_\w+)", word)  # send/pull/query_threadpoolqueue_...
        if parts is None:
            return [word]
        *firsts, last = parts[1].split("/")
        tail = last[last.index("_") :] if "_" in last else ""
        return [f"{one}{tail}{parts[2]}" for one in [*firsts, last.removesuffix(tail)]]
    return [
        name
        for one in found[1].split(",")
        for name in _alternatives(word[: found.start()] + one.strip() + word[found.end() :])
    ]


def labels_by_name() -> dict[str, tuple[str, ...]]:
    """Labels of each of the exporter's names, in its order."""
    found: dict[str, tuple[str, ...]] = {}
    table = (SPEC / "08-python-api-ecosystem.md").read_text().partition("### 3.2")[2].partition("## 4")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 2 or cells[0] in ("Labels", "---"):
            continue
        labels = tuple(label.strip() for label in cells[0].split(","))
        if RUNTIME in cells[1]:
            names = [RUNTIME + name for name in _runtime_names()]
        else:
            names = expanded(",".join(re.findall(r"`([^`]*)`", cells[1])))
        found |= dict.fromkeys([f"rocketmq_{name}" for name in names], labels)
    return found


def _runtime_names() -> list[str]:
    text = (SPEC / "05-monitoring-admin-console.md").read_text()
    line = next(line for line in text.splitlines() if "prefix `rocketmq_brokeruntime_`" in line)
    return expanded(re.sub(r"\([^)]*\)", "", line.strip("|").split("|")[1]))
