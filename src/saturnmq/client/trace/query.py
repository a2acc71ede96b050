"""Trace queries: the records of one message, read from the trace topic.

Requirements: TR-09.
"""

from __future__ import annotations

import logging

from saturnmq.client.connection.core import Core
from saturnmq.client.puller.message_queries import Span, query_messages
from saturnmq.client.trace.records import TraceRecord, decode_records, index_keys
from saturnmq.protocol.errors import SaturnError

logger = logging.getLogger(__name__)


async def query_trace(core: Core, key: str, topic: str, max_count: int) -> list[TraceRecord]:
    """Trace records of a message, oldest first; see Client.query_trace. Trace messages that cannot be parsed are skipped."""
    matched: list[TraceRecord] = []
    for message in await query_messages(core, topic, key, max_count, Span(), outside_namespace=True):
        try:
            records = list(decode_records(message.body.decode()))
        except (UnicodeDecodeError, SaturnError) as error:
            logger.warning("trace not readable message=%r error=%s", message, error)
            continue
        matched += (record for record in records if key in index_keys(record))
    return sorted(matched, key=lambda record: record.timestamp_ms)
