"""The limits and pauses of the clients as numbers, as Apache's clients have them or docs/guide.md says.

Tests of a feature use the constants, so a pause or a limit that is off by an order would be noticed here only.
"""

from __future__ import annotations

import importlib

import pytest

MIB = 1024 * 1024
LIMITS = {
    # A consumer: how long it waits for a broker, how much it takes, when it tries again.
    "consumer.assigned_queue": {
        "SPAN_MAX": 2000, "BROKER_SUSPEND_MS": 15_000, "PULL_TIMEOUT_MS": 30_000, "EXCEPTION_DELAY_S": 1,
        "FLOW_CONTROL_DELAY_S": 0.02, "IDLE_DELAY_S": 0.05, "RETRY_LATER_S": 5, "FLOW_LOG_EVERY": 1000,
    },
    "consumer.member": {
        "FIRST_MISSING_S": 0.5, "LAST_MISSING_S": 20, "ACQUIRED_AT_ONCE": 64, "CLOCK_SLACK_MS": 60_000, "LOCK_DENIED_S": 1,
        "RELOCK_S": 3,
    },
    "consumer.queue_locks": {"LOCK_TIMEOUT_MS": 1000, "FIRST_RENEW_S": 1, "RENEW_S": 20, "LIVE_S": 30},
    "consumer.running_info": {"DIRECT_TIMEOUT_S": 9.5, "MIB": MIB},
    "consumer.consume_stats": {"BUCKET_S": 10, "MINUTE_BUCKETS": 6, "HOUR_BUCKETS": 360},
    "consumer.settings": {"NO_LIMIT": 2_147_483_647, "CONCURRENT_TIMES": 16},
    "consumer.offsets": {"PERSIST_TIMEOUT_MS": 5000},
    "consumer.consumer": {"TAKEN_AT_ONCE": 32},
    "consumer.listener": {"TIME_LIMIT_S": 900, "BATCH_MAX": 1024, "CONCURRENCY_MAX": 1000},
    "consumer.send_back": {
        "BROKER_DECIDES": 0, "DEAD_LETTER": -1, "ACK_TIMEOUT_LEVEL": 3, "_SEND_BACK_TIMEOUT_MS": 5000,
        "_COMPRESSION_BITS": 0b111_0000_0001,
    },
    "puller.puller": {"BROKER_SUSPEND_MS": 15_000, "LATE_ANSWER_MS": 15_000, "SLACK_MS": 100},
    "puller.message_queries": {"LAST_MOMENT_MS": 9_223_372_036_854_775_807, "UNIQUE_KEY_COUNT": 32},
    # A producer: what it keeps in memory, how it batches, when it gives up.
    "producer.attempts": {"IN_FLIGHT_BYTES": 64 * MIB},
    "producer.settings": {"BATCH_BYTES": 65_536},
    "producer.batching": {"FIRST_MESSAGES_MAX": 32, "SHARED_FROM": 8, "CALM_ITERATIONS": 3, "DEADLINES_APART": 8},
    "producer.retries": {"GROWTH_MAX": 8, "LEAST_REMAINING_MS": 20, "MISSING_SECONDS": 1},
    "producer.topic_creation": {"CREATE_ATTEMPTS": 5},
    "producer.transactions": {"END_TIMEOUT_MS": 3000},
    "producer.producer": {"WARNED_TAGS_MAX": 1000},
    "compression": {"PLAIN_BYTES_MAX": 16 * MIB, "ZLIB_LEVEL_MAX": 9, "ZSTD_LEVEL_MAX": 22},
    "delays": {"LEVEL_MAX": 65_535, "SECONDS_MAX": 10_000_000_000},
    "outbox": {"ROWS_MAX": 100, "ERROR_CHARACTERS_MAX": 500, "LEASE_S": 30, "BACKOFF_S_MAX": 60},
    # Traces: what may be lost, and what it costs.
    "trace.records": {"CLOUD_FIELDS": 7, "_BLANKS": {1: " ", 2: " "}},
    "trace.trace": {
        "QUEUE_MAX": 50_000, "TEXT_BYTES_MAX": 118_000, "KEYS_BYTES_MAX": 30_000, "AGE_S": 0.5, "SENDS_MAX": 8,
        "SEND_TIMEOUT_S": 5, "FLUSH_S": 0.5, "DROP_LOG_EVERY": 1000, "FAILURE_LOG_EVERY": 100, "DEFAULT_REGION": "DefaultRegion",
    },
    # The connections of an instance.
    "connection.core": {
        "FIRST_ROUTE_POLL_MS": 10, "FIRST_HEARTBEAT_MS": 1000, "HEARTBEAT_RETRY_SECONDS": 1, "OFFSET_FIRST_MS": 10_000,
    },
    "connection.route_suspicion": {"PAUSE_SECONDS": 0.25, "UNRESPONSIVE_SECONDS": 10, "PAUSE_FACTOR": 3},
    "connection.transaction_checks": {"CHECKS_MAX": 2000, "CHECK_BYTES_MAX": 64 * MIB, "CHECKS_AT_ONCE": 20},
    "connection.routes": {"QUEUES_MAX": 65_536, "ADDRESSES_MAX": 4096},
    "connection.remote": {"SHORT_BODY_BYTES_MAX": 4 * MIB},
    "connection.outages": {"SUMMARY_SECONDS": 60},
    "connection.url": {"DEFAULT_PORT": 9876},
    "connection.address_server": {
        "ANSWER_BYTES_MAX": 65_536, "TIMEOUT_S": 3, "FIRST_REFRESH_MS": 10_000, "REFRESH_MS": 120_000,
    },
    "selection": {
        "ISOLATION_LATENCY_MS": 30_000,
        "LATENCY_TABLE_MS": ((15_000, 600_000), (3000, 180_000), (2000, 120_000), (1000, 60_000), (550, 30_000)),
    },
    "metrics": {"LABELS_MAX": 1000},
    # What a program waits for when it stops.
    "sync.portal": {"FLUSH_S": 2, "CANCEL_SECONDS": 5},
    "sync.loop_thread": {"STOP_SECONDS_MAX": 5},
    "sync.listeners": {"SIGNAL_POLL_S": 0.25},
}  # fmt: skip


@pytest.mark.parametrize("module", LIMITS)
def test_limits_of_the_clients_are_these_numbers(module: str) -> None:
    loaded = importlib.import_module(f"saturnmq.client.{module}")
    assert {name: getattr(loaded, name) for name in LIMITS[module]} == LIMITS[module]
