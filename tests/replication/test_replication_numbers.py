"""The limits and pauses of replication as numbers: those of Apache's slaves and masters, and what a peer can cost at most.

Tests of a feature use the constants, so a pause or a limit that is off by an order would be noticed here only.
"""

from __future__ import annotations

import importlib

import pytest

KIB, MIB = 1024, 1024 * 1024
LIMITS = {
    "records": {"QUEUES_MAX": 65_536, "QUEUE_OFFSET_MAX": 2**40, "STORE_MS_MAX": 2**45, "_TOPIC_BYTES_MAX": 255},
    "masterslave.master": {
        "SLAVES_MAX": 16, "WAITING_MAX": 64, "WAITING_PER_HOST": 16, "PROOF_SECONDS": 5, "STEP_BYTES": 512 * KIB,
        "POLL_SECONDS": 0.02, "DRAIN_SECONDS": 1, "PAUSE_SECONDS": 1, "REFUSED_MAX": 64, "_BUFFER_BYTES": 256 * KIB,
        "_READ_AHEAD_BYTES": MIB,
    },
    "masterslave.slave": {
        "RETRY_SECONDS": 5, "RETRY_SOON_SECONDS": 0.5, "SOON_SECONDS": 15, "CONNECT_SECONDS": 5, "FLUSH_TIMEOUT_MS": 600_000,
        "_CHECK_SECONDS": 0.1, "_FRAMES_PER_LOOK": 64, "_REPORT_BYTES_MAX": 1024,
    },
    "masterslave.dispatch": {
        "STEP_SECONDS": 0.01, "_RECORDS_PER_LOOK": 16, "_PENDING_BYTES_MAX": 8 * MIB, "_MESSAGE_BYTES": 500,
    },
    "masterslave.tail": {"COMPARED_BYTES": 4 * MIB + 128 * KIB, "EQUAL_BYTES_MIN": 64 * KIB, "WIDER": 16},
    "masterslave.handshake": {"INTRODUCE": 51_901, "OPENING_BYTES": 8, "TLS": 1, "SECRET": 2, "_REQUESTS_MAX": 2},
    "masterslave.stream": {"FRAME_BYTES_MAX": 4 * MIB, "OFFSET_MAX": 2**62},
    "dledger.dispatch": {"DISPATCH_STEP": 512},
    "dledger.entry_check": {"_LINES_MAX": 100},
    "dledger.log": {"_RESIDENT_BYTES": 32 * MIB},
    "dledger.opening": {"_STEP_BYTES": MIB, "_UNITS_KEPT": 1_000_000},
    "dledger.member": {"_KEPT_HOURS": 87_600},
}  # fmt: skip


@pytest.mark.parametrize("module", LIMITS)
def test_limits_of_replication_are_these_numbers(module: str) -> None:
    loaded = importlib.import_module(f"saturnmq.replication.{module}")
    assert {name: getattr(loaded, name) for name in LIMITS[module]} == LIMITS[module]
