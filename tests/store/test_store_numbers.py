"""The limits, pauses and sizes of the store as numbers: those of Apache's files, and what one request or one disk may cost.

Tests of a feature use the constants, so a limit or a pause that is off by an order would be noticed here only.
"""

from __future__ import annotations

import importlib

import pytest

from saturnmq.store import StoreProfile, settings

MIB, GIB = 2**20, 2**30
LIMITS = {
    "cold": {"RECENT_BYTES": 64 * MIB, "_GAP_BYTES": 16_384, "_BYTES_MAX": MIB},
    "delay": {"UNKNOWN_LEVEL_MS": 1000, "LEVEL_DIGITS_MAX": 15},
    "files.capacity": {"NEARLY_FULL_PERCENT": 85, "_DEFAULT_MEMORY": 24 * GIB},
    "files.disk": {
        "_OPEN_PAUSES_S": (0.01, 0.04, 0.15),
        "FILE_MODE": 0o640, "PRIVATE_MODE": 0o600, "FOLDER_MODE": 0o750, "_THREADS": 2, "_READ_THREADS": 2, "_WARM_BYTES": 262_144,
    },
    "files.file_cache": {"OPEN_FILES_MAX": 256, "_DESCRIPTOR_SHARE": 8},
    "files.mapped_file": {"PAGE_BYTES": 4096, "NAME_DIGITS": 20, "_CHUNK_BYTES": MIB},
    "files.record_sums": {"ROLL_BYTES": MIB, "_DIGITS": 10},
    "index.index_file": {
        "NAME_DIGITS": 17, "SLOT_BYTES": 4, "STEPS_PER_TURN": 1000, "_SECONDS_MAX": 2_147_483_647,
        "_SET_BACK_MS_MAX": 86_400_000, "_U32": 4_294_967_295, "_SIGN": 2 * GIB, "_BLOCK_BYTES": 4096, "_CHUNK_ENTRIES": 16_384,
        "_CLEAN_BYTES": 4 * MIB, "_FULL": 512,
    },
    "index.index_queue": {
        "WAITING_MAX": 256, "STEP_SECONDS": 0.005, "BACKLOG_BYTES_MAX": 16 * MIB, "FINISH_SECONDS": 1.5, "_PAUSE_FACTOR": 5,
        "_PAUSES_MAX": 3, "_IDLE_SHARE": 0.02, "_RETRY_S": 1, "_PAUSED_STEP_S": 0.001,
        "_LONG_STEP_S": 0.0025, "SLICE_BYTES": 16_384, "_COLD_STEP_S": 0.02, "_LOG_LINE_S": 60,
    },
    "index.message_index": {"WORDS_MAX": 64, "QUERY_COUNT_MAX": 64, "_PREFIXES_MAX": 50_000, "_ITEMS_MAX": 512},
    "log.commit_log": {
        "END_BLANK_BYTES": 8, "_ZERO_STEP": 65_536, "_SPARE_AT_PERCENT": 80, "_RESIDENT_BYTES": 32 * MIB,
    },
    "log.flush": {"_SLOW_SECONDS": 0.5},
    "maintenance.clock_watch": {"JUMP_MS": 3_600_000, "PAUSE_MS": 86_400_000},
    "maintenance.maintenance": {
        "NOTE_BYTES": 256 * MIB, "VERIFY_BYTES": 64 * MIB, "_FORGET_BYTES": 32 * MIB, "_CLEAN_FIRST_S": 60, "_RECHECK_S": 1,
        "_LOOK_S": 0.5, "_PAUSE_FIRST_S": 0.5, "_PAUSE_MAX_S": 8, "_INDEX_LOSSES_MAX": 2, "FLUSH_TIMEOUT_MS": 600_000,
    },
    "maintenance.retention": {"FILES_PER_RUN": 10, "FORCE_PERCENT": 85, "FULL_PERCENT": 90, "MANUAL_RUNS": 20},
    "maintenance.scrub": {
        "STEP_MS": 100, "STEP_BYTES_MIN": 8192, "FIRST_PASS_AFTER_MS": 60_000, "NEXT_PASS_AFTER_MS": 3_600_000,
        "SLICE_SECONDS": 0.001, "FINDS_MAX": 1000, "_DAY_MS": 86_400_000, "_READ_BYTES_MIN": 65_536,
        "_READ_BYTES_MAX": 64 * MIB,
    },
    "proposals": {"PROPOSAL_BYTES": 65_536},
    "queue.consume_queue": {"FILLER_SIZE": 2_147_483_647, "_KEPT_UNITS": 1024, "_READ_UNITS": 4096},
    "queue.queue_extension": {
        "UNIT_BYTES_MIN": 20, "UNIT_BYTES_MAX": 32_767, "SPARE_BYTES": 4, "_KEPT_BYTES": 65_536, "_READ_BYTES": 128,
    },
    "queue.queues": {"TOPIC_BYTES_MAX": 255, "_FOLDERS_PER_STEP": 64, "PARALLEL_FROM": 16, "AT_ONCE": 16},
    "reading": {
        "QUERY_BYTES_MAX": 8 * MIB, "_QUERY_TRIES": 3, "_SCAN_UNITS_MIN": 800, "FILTER_SECONDS_MAX": 0.02, "_FILTER_STEP": 16,
    },
    "recovery.checkpoint": {
        "CHECKPOINT_BYTES": 4096, "SECTOR_BYTES": 512, "SAFETY_MS": 3000, "BOUNDARY_BYTES": 8 * MIB,
    },
    "recovery.opening": {"INDEX_BYTES": 64 * MIB, "INDEX_SECONDS": 10, "UNITS_KEPT": 1_000_000, "_BLOCKS_MAX": 4096},
    "recovery.recover": {"SCANNED_FILES": 3},
    "settings": {"CONSUME_QUEUE_UNIT_BYTES": 20, "QUEUE_EXTENSION_BYTES_MIN": 64},
    "store": {"_REJECTIONS_PER_LOG_LINE": 50_000},
    "tools.dump": {"TEXT_BYTES_MAX": MIB, "_HEX_LINE": 16},
    "tools.repair": {"_COPY_BYTES": 8 * MIB, "_PROGRESS_BYTES": MIB},
    "tools.restore": {"_CHUNK_BYTES": MIB},
    "tools.scan": {"WINDOW_BYTES": 4 * MIB},
    "tools.snapshot": {"FORMAT": 1, "_LISTINGS_MAX": 10, "_CHUNK_BYTES": MIB},
    "tools.verify": {"PROBLEMS_MAX": 1000, "_STATE_BYTES_MAX": 1 * GIB, "_PROGRESS_BYTES": MIB},
    "tools.verify_index": {
        "_CHUNK_ENTRIES": 16_384, "_KEPT_MAX": 100, "_SECONDS_MAX": 2_147_483_647, "UNKNOWN_MS": -1, "_PREFIXES_MAX": 50_000,
    },
    "tools.verify_queues": {"_BLOCK_UNITS": 128},
}  # fmt: skip

SIZES = {  # of a server, and of a test or a laptop
    "_RESERVE_BYTES": (16 * MIB, MIB),
    "_QUEUE_EXTENSION_BYTES": (48 * MIB, MIB),
    "_INDEX_SLOTS": (5_000_000, 10_000),
    "_INDEX_ENTRIES": (20_000_000, 40_000),
    "_COMMIT_LOG_BYTES": (GIB, 16 * MIB),
    "_CONSUME_QUEUE_BYTES": (6_000_000, 120_000),
}


def test_sizes_of_the_profiles_are_these_numbers() -> None:
    found = {name: getattr(settings, name) for name in SIZES}
    assert {name: (size[StoreProfile.STANDARD], size[StoreProfile.SMALL]) for name, size in found.items()} == SIZES


@pytest.mark.parametrize("module", LIMITS)
def test_limits_of_the_store_are_these_numbers(module: str) -> None:
    loaded = importlib.import_module(f"saturnmq.store.{module}")
    assert {name: getattr(loaded, name) for name in LIMITS[module]} == LIMITS[module]
