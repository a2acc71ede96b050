"""Soak test of a client: short by default; SATURNMQ_SOAK_MESSAGES=1000000 runs all of API-34 in about ten minutes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from saturnmq.testing import BrokerFixture

pytestmark = pytest.mark.realtime
MESSAGES = int(os.environ.get("SATURNMQ_SOAK_MESSAGES", "15000"))
LONG = 500_000
GROWTH_MAX = 0.01 if MESSAGES >= LONG else 0.03  # in a short run one arena of the allocator is 1 %
SCRIPT = Path(__file__).resolve().parent / "soak_client.py"


@pytest.mark.spec("API-34")
@pytest.mark.timeout(60 + MESSAGES // 200)
def test_client_memory_stays_flat_over_many_messages_and_reconnects(
    saturn_broker: BrokerFixture, saturn_topic: str
) -> None:
    cuts = 3 if MESSAGES < LONG else 100
    done = subprocess.run(
        [sys.executable, str(SCRIPT), saturn_broker.url, saturn_topic, str(MESSAGES), str(cuts)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert (said["sent"], said["left"]) == (MESSAGES, 0)
    assert said["received"] < MESSAGES * 1.5  # some are redelivered after a cut
    assert said["cuts"] >= cuts
    assert said["tasks_after"] == 1
    samples = said["samples"]
    quarter = len(samples) // 4
    before, after = statistics.median(samples[quarter : 2 * quarter]), statistics.median(samples[2 * quarter :])
    assert after / before - 1 < GROWTH_MAX, samples
