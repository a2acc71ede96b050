"""The limits of the console as numbers: docs/console.md names most of them, and operators size machines and habits by the others.

Tests of the pages use the constants, so a limit that is off by an order would be noticed here only.
"""

from __future__ import annotations

import importlib

import pytest

KIB, MIB = 1024, 1024 * 1024
LIMITS = {
    # Who may log in, and how often a password may be guessed.
    "users": {
        "SESSION_SECONDS": 43_200, "IDLE_SECONDS": 3600, "SESSIONS_MAX": 1000, "ATTEMPTS_MAX": 5, "ATTEMPTS_ANYWHERE": 100,
        "LOCK_SECONDS": 300, "NAME_MAX": 100, "PASSWORD_BYTES_MIN": 8, "PASSWORD_BYTES_MAX": 1024,
    },
    "login": {"CHECKS_MAX": 2, "WAITING_MAX": 20},
    "security": {"BODY_BYTES_MAX": MIB, "LOGIN_BYTES_MAX": 16 * KIB},
    "serving": {"CONNECTIONS_MAX": 200, "HEADER_BYTES_MAX": 16_384, "STOP_SECONDS": 2, "REQUEST_SECONDS": 30},
    "context": {"PAGE_ROWS": 50, "FIELDS_MAX": 2100, "LOGGED_MAX": 8000, "AUDIT_FORMER": 5},
    # How old a page may be, and how much it asks of the brokers.
    "state": {
        "REFRESH_SECONDS": 10, "IDLE_SECONDS": 120, "SURVEY_SECONDS": 30, "PAUSE_FACTOR": 4, "FIRST_WAIT_SECONDS": 0.8,
        "STALE_SECONDS": 60,
    },
    "asking": {"PAGE_SECONDS": 0.7, "AT_ONCE": 32},
    "alarms": {
        "ROUND_SECONDS": 60, "GROWTH_SECONDS": 600, "GROUPS_MAX": 500, "ACTIVE_MAX": 1000, "HISTORY_MAX": 500,
        "UNSENT_MAX": 200, "TRIES": 3, "RETRY_SECONDS": 5,
    },
    "alarm_pages": {"GROUP_MAX": 255, "NUMBER_MAX": 999_999_999},
    # What a search reads, and what a browser gets.
    "scanning": {
        "BATCH": 32, "QUEUES_MAX": 1024, "SCANNED_MAX": 1_000_000, "SECONDS_MAX": 300, "FOLLOW_SECONDS_MAX": 3600,
        "PAUSE_SECONDS": 1,
    },
    "search": {
        "FOUND_MAX": 2000, "TEXT_MAX": 200, "DOWNLOAD_BYTES_MAX": 64 * MIB, "DOWNLOAD_SECONDS": 25, "TAIL_ROWS": 100,
    },
    "conditions": {
        "BODY_BYTES_MAX": 256 * KIB, "VALUE_MAX": 1000, "SHOWN_MAX": 120, "STEPS_MAX": 32, "VALUES_MAX": 10_000,
        "PATH_MAX": 500,
    },
    "jobs": {"RUNNING_MAX": 3, "KEPT_MAX": 10, "JOBS_MAX": 40, "KEPT_SECONDS": 3600, "LEFT_SECONDS": 20},
    "analysis": {"SAMPLE_MAX": 50_000, "NAMES_MAX": 5000, "SHOWN": 15, "NAME_MAX": 100},
    "bodies": {"TEXT_MAX": 65_536, "INDENTED_MAX": 262_144, "AVRO_BYTES_MAX": 128 * KIB},
    "download": {"CELL_MAX": 32_767},
    "messages": {"SENT_BYTES_MAX": 256 * KIB, "PROPERTIES_MAX": 50, "LEVEL_MAX": 18, "NAMES_MAX": 1000},
    "dead_letters": {
        "EXPORT_MAX": 10_000, "EXPORT_BYTES_MAX": 32 * MIB, "RESEND_SECONDS": 20, "RESENT_AT_ONCE": 8,
    },
    # What operators enter and change.
    "accounts": {"LINES_MAX": 1000, "TEXT_MAX": 1000},
    "actions": {"QUEUES_MAX": 65_536, "ROWS_MAX": 1000},
    "broker_settings": {"VALUE_MAX": 4096},
    "ledger": {"MEMBERS_MAX": 100},
    "servers": {"TOPICS_SHOWN_MAX": 100, "ADDRESSES_CHARACTERS_MAX": 2000},
    # How much a page draws.
    "pages": {
        "CHART_POINTS_MAX": 300, "QUEUES_SHOWN_MAX": 1000, "AUDIT_BYTES_MAX": 1_000_000, "AUDIT_LINES_MAX": 5000,
        "SHOWN_MAX": 10, "CHARTED_MAX": 20,
    },
    "group_pages": {
        "QUEUES_SHOWN_MAX": 1000, "TOPICS_CHARTED_MAX": 20, "CLIENTS_ASKED_MAX": 20, "CLIENT_SECONDS": 2,
        "STACK_MAX": 256 * KIB,
        "NUMBERS": {
            "retry_queue_nums": 65_536, "retry_max_times": 10_000, "broker_id": 2**31 - 1,
            "which_broker_when_consume_slowly": 2**31 - 1,
        },
    },
    "graph": {"EDGES_MAX": 150, "ASKED_MAX": 20, "CLIENTS_MAX": 5, "NAME_MAX": 34},
    "charts": {"WIDTH": 640, "HEIGHT": 170, "DAY_SECONDS": 86_400},
    "traces": {"WIDTH": 900, "BARS_MAX": 200},
}  # fmt: skip


@pytest.mark.parametrize("module", LIMITS)
def test_limits_of_the_console_are_these_numbers(module: str) -> None:
    loaded = importlib.import_module(f"saturnmq.console.{module}")
    assert {name: getattr(loaded, name) for name in LIMITS[module]} == LIMITS[module]
