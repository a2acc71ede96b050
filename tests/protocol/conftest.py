"""Fixtures: frames and records recorded from Apache RocketMQ 4.9.7, read once per session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class GoldenFrame(NamedTuple):
    """One recorded frame. where: file and position, for failure messages. cut: only the first bytes were recorded."""

    where: str
    facts: dict[str, Any]
    raw: bytes
    cut: bool

    @property
    def request_code(self) -> int:
        return int(self.facts["request_code"])

    @property
    def is_response(self) -> bool:
        return bool(self.facts["type"] == "response")


class GoldenRecord(NamedTuple):
    """One record of a commit log, and its fields as decoded by Apache RocketMQ."""

    where: str
    log: bytes
    facts: dict[str, Any]


@pytest.fixture(scope="session")
def golden_frames(vectors: Path) -> list[GoldenFrame]:
    frames = []
    for path in sorted((vectors / "frames").glob("*.json")):
        for number, facts in enumerate(json.loads(path.read_text())["frames"]):
            raw = bytes.fromhex(facts["hex"])
            frames.append(GoldenFrame(f"{path.stem}#{number}", facts, raw, bool(facts.get("cut"))))
    assert len(frames) > 2000
    return frames


@pytest.fixture(scope="session")
def whole_frames(golden_frames: list[GoldenFrame]) -> list[GoldenFrame]:
    return [frame for frame in golden_frames if not frame.cut]


@pytest.fixture(scope="session")
def golden_records(vectors: Path) -> list[GoldenRecord]:
    records = []
    for path in sorted((vectors / "store").glob("*/commitlog/*.jsonl")):
        log = path.with_suffix("").read_bytes()
        for number, line in enumerate(path.read_text().splitlines()):
            where = f"{path.parent.parent.name}/{path.stem}#{number}"
            records.append(GoldenRecord(where, log, json.loads(line)))
    assert len(records) > 50
    return records
