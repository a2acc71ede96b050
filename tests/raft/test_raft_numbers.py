"""The limits and pauses of the Raft group as numbers: those of DLedger, and what a peer can cost at most.

Tests of a feature use the constants, so a pause or a limit that is off by an order would be noticed here only.
"""

from __future__ import annotations

import importlib

import pytest

MIB = 1024 * 1024
LIMITS = {
    "core.entry": {"ENTRY_MAGIC": 1, "ENTRY_HEADER_BYTES": 48, "ENTRY_BYTES_MAX": 4 * MIB, "BLANK_BYTES_MIN": 8},
    "core.leader": {
        "BATCHES_UNDER_WAY": 2, "PUSH_PENDING_BYTES_MAX": 32 * MIB, "DEPARTING_PUSH_MS": 100, "DEPARTING_MS": 10_000,
        "REPEATS_MAX": 3,
    },
    "core.log": {"CACHE_ENTRIES_MAX": 4096, "CACHE_BYTES_MAX": 16 * MIB},
    "core.configuration": {"MEMBERS_MAX": 64},
    "core.state": {"NEVER": 2**62, "_ID_LENGTH_MAX": 64},
    "core.term_limit": {"TERM_STEP_MAX": MIB, "ALARM_INTERVAL_MS": 10_000},
    "core.timers": {"ANNOUNCED_MS_MAX": 2000},
    "core.transfer": {"OWN_TOKEN": -1, "REFUSED_CHECKS_MAX": 16},
    "driver": {"CLEAN_INTERVAL_MS": 10_000, "SLOW_SYNC_MS": 500},
    "ledger": {"INDEX_FILE_UNITS": 5_242_880},
    "ledger.layout": {"BLANK_MAGIC": -1, "INDEX_UNIT_BYTES": 32},
    "ledger.partial_files": {"_CHUNK_BYTES": MIB},
    "ledger.recover": {"SCANNED_FILES": 3},
    "ledger.retention": {
        "FILES_PER_ROUND_MAX": 10, "FORCE_RATIO_MIN": 0.5, "FULL_ABOVE_FORCE": 0.05, "FULL_RATIO_MAX": 0.95, "HOUR_MS": 3_600_000,
    },
    "ledger.scrub": {"TRY_AGAIN_MS": 1000, "LEADERLESS_MAX": 10},
    "ledger.term_file": {"RESERVE_BYTES": 65_536},
    "wire.codec": {"RESPONSE_HEADER_CODE": 200, "ENTRIES_MAX": 65_536},
    "wire.push": {"FORM": 2, "_APPEND": 1, "_ANSWER": 2, "_TEXT_BYTES_MAX": 255, "_NO_INDEX": -1},
    "access": {"LOOK_UP_SECONDS": 60, "LOOK_UP_PAUSE_SECONDS": 5, "START_SECONDS": 3, "_ORIGINS_MAX": 1000},
    "cluster_secret": {"SECRET_BYTES_MIN": 16, "WINDOW": 4096, "_SENDERS_MAX": 64, "_DIGITS_MAX": 18},
    "peers": {"_MEMBER_BYTES_MAX": 255},
    "ticker": {"AFTER_INPUT_MS": 2, "SLEEP_MS_MAX": 1000, "SYNC_REST": 4, "SYNC_REST_MS": range(50, 501), "TICK_MS": 10},
    "tool": {"ASK_TIMEOUT_MS": 3000, "TRANSFER_TIMEOUT_MS": 10_000, "CHANGE_SECONDS": 15, "CHANGE_PAUSE_SECONDS": 0.3},
}  # fmt: skip


@pytest.mark.parametrize("module", LIMITS)
def test_limits_of_the_raft_group_are_these_numbers(module: str) -> None:
    loaded = importlib.import_module(f"saturnmq.raft.{module}")
    assert {name: getattr(loaded, name) for name in LIMITS[module]} == LIMITS[module]
