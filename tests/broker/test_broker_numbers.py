"""The limits and pauses of the broker as numbers: those of Apache's broker, and what a client can cost at most.

Tests of a feature use the constants, so a limit or a pause that is off by an order would be noticed here only.
"""

from __future__ import annotations

import importlib

import pytest

MIB = 2**20
LIMITS = {
    "access_control": {"_GRANTS_MAX": 256, "_REPLY_BYTES": 4 * MIB},
    "broker": {"LOG_SECONDS": 60, "LOG_FIRST_SECONDS": 10, "HEARTBEAT_SECONDS": 0.003},
    "dledger": {"MASTER_ID": 0, "NO_ROLE": -1, "POLL_SECONDS": 0.02, "PULL_PAUSE_SECONDS": 0.2, "TRANSFER_SECONDS": 1},
    "dledger_state": {"_TABLES": 4},
    "dledger_sync": {
        "SYNC_SECONDS": 1, "START_SECONDS": 0.05, "SYNC_SECONDS_MAX": 10, "PAUSE_FACTOR": 10, "TIMEOUT_MS": 3000,
        "LAST_TIMEOUT_MS": 1000, "LAST_POLL_SECONDS": 0.01, "INCOMPLETE_SECONDS": 0.1,
    },
    "forwarded_request": {"_HEAD_BYTES_MAX": 65_536, "_CLIENT_CHARS_MAX": 100, "WAIT_MS_MAX": 60_000},
    "forwarding": {
        "ANSWER_MS": 5000, "REPLY_MS": 10_000, "RETRY_SECONDS": 0.05, "CLOSE_SECONDS": 1, "TRANSFER_POLL_SECONDS": 0.01,
    },
    "master_copy": {
        "FIRST_SECONDS": 3, "PERIOD_SECONDS": 10, "TIMEOUT_MS": 3000, "REACH_SECONDS": 2, "_LOOKS": 40, "_PAGES_MAX": 1000,
    },
    "masterslave": {"_ADDRESS_CHARS_MIN": 6},
    "metrics.apache": {"ADDRESSES_MAX": 16},
    "metrics.own": {"CONFLICTS_MAX": 50},
    "metrics.running_info": {
        "FIRST_SECONDS": 15, "PERIOD_SECONDS": 60, "TIMEOUT_MS": 3000, "MEMBERS_MAX": 2000, "AT_ONCE": 8, "TOPICS_MAX": 64,
        "ANSWER_BYTES_MAX": 262_144,
    },
    "metrics.sources": {"STEP": 64, "LATENCY_READS_MAX": 2000},
    "requests.clients": {"_NAME_CHARS_MAX": 255, "_CONFLICTS_MAX": 20},
    "requests.pages": {"PAGE_BYTES": 4 * MIB},
    "requests.pull": {"COUNT_MAX": 4096, "_SCANNED": 800, "_PARKED_CHARS_MAX": 65_536},
    "requests.pull_answer": {"_MARK": 0x41424344, "_DIGITS_MAX": 20},
    "requests.queue_units": {"UNITS_MAX": 4096},
    "requests.relay": {
        "RELAY_TIMEOUT_MS": 10_000, "STATUS_TIMEOUT_MS": 5000, "STATUS_SECONDS_MAX": 15, "STATUS_BYTES_MAX": 8 * MIB,
    },
    "requests.replies": {"PUSH_TIMEOUT_MS": 10_000},
    "requests.rights": {"_OFFSET_DIGITS_MAX": 19},
    "requests.send": {
        "SMALL_BYTES": 4096, "UNFLUSHED_BYTES": 256 * MIB, "LAGGING_BYTES": 65_536, "BATCH_COMMON_BYTES_MIN": 4 * MIB,
    },
    "requests.send_answer": {"_FRAMES_MAX": 4096},
    "requests.send_back": {"_FIRST_RETRY_LEVEL": 3},
    "requests.table_row": {"BODY_BYTES_MAX": 65_536, "LIST_BYTES_MAX": MIB, "BODY_BUDGET": 30_000},
    "requests.transactions": {"_UNDECIDED": 0},
    "services.address_server": {"TIMEOUT_SECONDS": 3, "ANSWER_BYTES_MAX": 65_536, "_PORT": 8080},
    "services.admission": {"SAMPLE_SECONDS": 0.1, "IDLE_SECONDS": 1},
    "services.delay": {
        "BATCH_COUNT": 64, "BATCH_BYTES": MIB, "IDLE_MS": 1000, "SHORTEST_WAIT_MS": 100, "RETRY_MS": 100,
        "RETRY_MS_MAX": 2000, "PAUSE_MS": 10_000, "FLUSH_WAIT_MS": 5000, "CLOCK_TOLERANCE_MS": 60_000,
    },
    "services.half_table": {"OUTCOMES_MAX": 10_000},
    "services.long_polling": {
        "TICK_SECONDS": 0.5, "SCAN_SECONDS": 5, "WAIT_SECONDS_MAX": 60, "CONNECTION_SHARE": 10, "SLICE_BYTES": MIB,
        "SLICE_SECONDS": 0.005, "PARKED_BYTES_MAX": 256 * MIB, "TAGS_CODES_MAX": 64, "WOKEN_PER_STEP": 1024,
        "DELAYED_PER_TICK": 250, "FILTERS_MAX": 256, "PULL_OVERHEAD_BYTES": 1024, "TAGS_CODE_BYTES": 384,
    },
    "services.notices": {
        "NOTIFY_SECONDS": 0.02, "ROUND_SECONDS": 1, "SLICE_SECONDS": 0.003, "PAUSE_SECONDS": 0.009, "TIMER_SECONDS": 0.001,
        "TURN": 32, "NOTICES_MAX": 1000,
    },
    "services.registrar": {
        "UNREGISTER_TIMEOUT_MS": 3000, "LOOK_UP_SECONDS": 120, "CHANGES_WAIT_MS": 2000, "FULL_PAUSE_FACTOR": 10,
        "FULL_PAUSE_SECONDS_MAX": 10,
    },
    "services.slow_groups": {"CHECK_SECONDS": 180},
    "services.statistics": {"SAMPLE_SECONDS": 1},
    "services.statistics_log": {"MOMENT_MINUTES": 5, "_STEP": 32},
    "services.timer": {
        "HOUR_MS": 3_600_000, "QUEUES": 64, "ROLL_MS": 86_400_000, "ROLL_MS_MIN": 600_000, "AHEAD_MS": 300_000, "IDLE_MS": 1000,
        "RETRY_MS": 100, "RETRY_MS_MAX": 2000, "UNSEEN_MS": 5, "READ_UNITS": 4096, "ACTIVATED": 8192, "ACTIVE_MAX": 65_536,
        "_SPREAD": 2_654_435_761,
    },
    "services.transactions": {"QUEUE": 0, "_TRIES": 3, "_MEMBERS_ASKED_MAX": 1000, "_RETRY_SECONDS": 10},
    "services.watermark": {"FIRST_SECONDS": 10},
    "state.clients": {
        "GROUPS_MAX": 4096, "CROWDED_GROUPS_MAX": 64, "_MEMBERSHIPS_FACTOR": 4, "_UNIT_BYTES": 1024, "_CODE_BYTES": 8,
        "_WARN_INTERVAL_MS": 60_000, "_CONFLICTS_SEARCHED_MAX": 1000, "_UNLIMITED": 2**31,
        "_NANOSECONDS": 10**17,
    },
    "state.conflicts": {"TOPICS_MAX": 10},
    "state.creation_quota": {"HOUR_MS": 3_600_000},
    "state.filters": {"SAVE_SECONDS": 10},
    "state.in_flight": {"CONNECTION_SHARE": 10},
    "state.locks": {"LOCK_LIVE_MS": 60_000, "EXPIRED_AT_ONCE": 4096},
    "state.offset_moved": {"PAUSE_MS": 1000, "EVENTS_MAX": 100, "_REMEMBERED_MAX": 10_000},
    "state.offsets": {"REST_FACTOR": 20, "REST_SECONDS_MAX": 60, "_QUEUES_AT_ONCE": 500},
    "state.relays": {"CALLS_MAX": 8},
    "state.topics": {"QUEUES_MAX": 65_536, "RECREATED_QUEUES_MIN": 4},
    "table_changes": {"SAVE_RETRY_SECONDS": 1},
}  # fmt: skip


@pytest.mark.parametrize("module", LIMITS)
def test_limits_of_the_broker_are_these_numbers(module: str) -> None:
    loaded = importlib.import_module(f"saturnmq.broker.{module}")
    assert {name: getattr(loaded, name) for name in LIMITS[module]} == LIMITS[module]
