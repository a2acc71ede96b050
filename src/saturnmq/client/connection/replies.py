"""Pending requests of a client by correlation id, and the replies that brokers push for them.

Requirements: RR-03..RR-05.
"""

from __future__ import annotations

import asyncio
import logging
import uuid

from saturnmq.errors import Closed
from saturnmq.net import Connection
from saturnmq.protocol.codes import PropertyKey
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.headers.messaging import PushReplyMessage, decode_header
from saturnmq.protocol.message import NO_HOST, Host
from saturnmq.protocol.message import Message as Record

logger = logging.getLogger(__name__)


class Replies:
    """The pending requests of one client, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Record]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self) -> tuple[str, asyncio.Future[Record]]:
        """A new correlation id and the future of its reply. The caller must `forget` the id in any case."""
        correlation_id = str(uuid.uuid4())
        future: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return correlation_id, future

    def close(self) -> None:
        """Fail all pending requests with Closed, because the client stops."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Closed("the client was stopped while a request waited for its reply"))

    def forget(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def handle(self, connection: Connection, command: Command, now_ms: int) -> Command:
        """Handle a pushed reply (code 326); a reply without a pending request is logged and answered with success (RR-05)."""
        header = decode_header(PushReplyMessage, command.ext)
        record = Record(
            header.topic,
            command.body or b"",
            (header.properties or "").encode(),
            header.queue_id,
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            _host(header.born_host),
            _host(header.store_host),
            header.reconsume_times,
            store_timestamp_ms=header.store_timestamp,
        )
        correlation_id = record.properties.get(PropertyKey.CORRELATION_ID, "")
        record.properties[PropertyKey.ARRIVE_TIME] = str(now_ms)
        future = self._waiting.get(correlation_id)
        # A reply that comes twice, or after the request's timeout.
        if future is None or future.done():
            logger.warning(
                "reply without a pending request correlation_id=%r peer=%s", correlation_id, connection.remote_address
            )
        else:
            future.set_result(record)
        return command.reply()


def _host(text: str) -> Host:
    ip, _, port = text.removeprefix("/").rpartition(":")
    return Host(ip, int(port)) if ip and port.isdecimal() and len(port) < 6 else NO_HOST
