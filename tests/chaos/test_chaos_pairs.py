"""A master and its slave under faults: with SYNC_MASTER and SYNC_FLUSH nothing acknowledged is lost with either disk.

With ASYNC_MASTER exactly that is lost which the slave had not received. chaosrun.py lists the environment variables of
`make chaos`; CHAOS_FAULT=pair-master-disk-lost runs one fault.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chaosfaults import FAULTS_OF_PAIRS, faults_asked_for
from chaospair import Pair, ShortPair, ShortSyncPair, SyncPair
from chaosrun import (
    CAUGHT_UP_SECONDS,
    LONG,
    MODEL,
    ONLY,
    PEER,
    RUN_SECONDS_MAX,
    SECONDS,
    SHORT_HEARTBEAT_MS,
    a_run,
    children,
    long_run,
    tell,
)

OF_PAIRS = faults_asked_for(ONLY, SECONDS, FAULTS_OF_PAIRS) if MODEL is None and PEER is None else []
MODES: dict[str, type[Pair]] = {"async": Pair, "sync": SyncPair}


@pytest.mark.skipif(bool(LONG or OF_PAIRS), reason="the long form is asked for")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("CHA-10")
@pytest.mark.parametrize("kind", [ShortPair, ShortSyncPair])
def test_pair_loses_nothing_acknowledged_under_successive_faults(kind: type[Pair], tmp_path: Path) -> None:
    before = children()
    found = asyncio.run(a_run(tmp_path / "run", list(FAULTS_OF_PAIRS), 0.1, 0.4, SHORT_HEARTBEAT_MS, kind))
    assert children() == before
    assert found["acknowledged"] >= len(FAULTS_OF_PAIRS)
    assert found["lacked"] > 0, "the slave lacked nothing when the master's disk was lost"
    assert (found["lost"] > 0) == (kind is ShortPair)


@pytest.mark.skipif(not OF_PAIRS, reason="make chaos")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.spec("CHA-10")
@pytest.mark.parametrize(("mode", "name"), [(mode, name) for mode in MODES for name in OF_PAIRS])
def test_pair_loses_nothing_acknowledged_under_a_long_fault(
    mode: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, Any] = long_run(name, tmp_path, MODES[mode], f"pair, {mode}")
    tell(capsys, f"{mode}, {name}: {found['lost']} acknowledged lost of {found['lacked']} that the slave lacked", found)
    assert found["acknowledged"] > 100
    assert found["caught_up_s"] <= CAUGHT_UP_SECONDS
