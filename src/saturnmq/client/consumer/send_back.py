"""Returns failed messages to the broker, for redelivery after a delay or to the dead-letter queue.

Requirements: RTY-01, RTY-05, API-21.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Final

from saturnmq.client.codecs import BytesCodec
from saturnmq.client.connection.core import Core
from saturnmq.client.delays import LEVEL_SECONDS
from saturnmq.client.message import REASON_PROPERTY, Message
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.send_request import Prepared
from saturnmq.client.producer.settings import ProducerSettings
from saturnmq.protocol.codes import EXACT_DELAY_FIELD, INNER_PRODUCER_GROUP, RETRY_PREFIX, PropertyKey, RequestCode
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command

logger = logging.getLogger(__name__)

BROKER_DECIDES: Final = 0
DEAD_LETTER: Final = -1
ACK_TIMEOUT_LEVEL: Final = 3  # PL-14
_SEND_BACK_TIMEOUT_MS: Final = 5_000
_NOT_COPIED: Final = (
    PropertyKey.TRAN_MSG,
    PropertyKey.DELAY,
    PropertyKey.REAL_TOPIC,
    PropertyKey.REAL_QID,
    PropertyKey.TIMER_DELIVER_MS,
    PropertyKey.TIMER_DELAY_MS,
    PropertyKey.TIMER_DELAY_SEC,
    PropertyKey.TIMER_OUT_MS,
    PropertyKey.TIMER_WAKE_MS,
)
_COMPRESSION_BITS: Final = 0x701


def level_for(after: timedelta | None) -> int:
    """The shortest delay level not below `after`, the longest one beyond two hours; 0 (broker decides) for None (API-21)."""
    if after is None:
        return BROKER_DECIDES
    seconds = after.total_seconds()
    # Not shorter than asked; Java has levels only.
    return next((level for level, length in enumerate(LEVEL_SECONDS, 1) if length >= seconds), len(LEVEL_SECONDS))


class SendBack:
    """Returns messages of one group to their broker; if that fails, sends a copy to the retry topic."""

    def __init__(self, core: Core, group: str, max_times: int) -> None:
        self._core = core
        self._group = group
        self.max_times = max_times
        # Apache's group for this, without traces: an internal send is not the application's.
        self._inner: Producer[bytes] = Producer(
            core, INNER_PRODUCER_GROUP, BytesCodec(), ProducerSettings(max_in_flight=64, trace=False)
        )

    async def send(self, message: Message[Any], level: int, reason: str = "", after: timedelta | None = None) -> None:
        """Return the message with this delay level.

        after: the exact delay, used by brokers that support it. Raises the error of the last attempt.
        """
        # The request has no field for a reason; a copy has properties.
        if level == DEAD_LETTER and reason:
            await self._send_copy(message, level, reason)
            return
        try:
            await self._request(message, level, after)
        except SaturnError as error:
            logger.warning("send-back failed, sending a copy group=%s message=%r error=%s", self._group, message, error)
            await self._send_copy(message, level, reason)

    async def dead_letter(self, message: Message[Any], reason: str = "") -> None:
        """Send a copy, with its attempt count, to the dead-letter queue (OR-08). Raises the error of the send."""
        await self._send_copy(message, DEAD_LETTER, reason)

    async def _request(self, message: Message[Any], level: int, after: timedelta | None) -> None:
        core, queue, record = self._core, message.queue, message.record
        address = await core.master_address(queue.topic, queue.broker_name)
        ext = {
            "offset": str(record.physical_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": message.message_id,
            # Of a second retry, the topic of the first delivery.
            "originTopic": record.properties.get(PropertyKey.RETRY_TOPIC) or record.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(self.max_times),
            "bname": queue.broker_name,
        }
        # A delay that is the length of a level is exact on any broker.
        if after is not None and after.total_seconds() not in LEVEL_SECONDS:
            # Rounded up.
            delay_ms = -(-after // timedelta(milliseconds=1))
            # Other brokers ignore the field and use the level.
            if 0 < delay_ms <= core.timer_limits.limit_of(address):
                ext[EXACT_DELAY_FIELD] = str(delay_ms)
        command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext)
        await core.call_broker(address, command, _SEND_BACK_TIMEOUT_MS, topic=record.topic)

    async def _send_copy(self, message: Message[Any], level: int, reason: str) -> None:
        """Send a new message to the retry topic, delayed; for a dead letter, one whose retries are used up (RTY-05)."""
        record = message.record
        times = record.reconsume_times
        # The message's own dict stays as it is.
        properties = dict(record.properties)
        for name in _NOT_COPIED:
            properties.pop(name, None)
        # Those of the first delivery remain.
        properties.setdefault(PropertyKey.ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties.setdefault(PropertyKey.RETRY_TOPIC, record.topic)
        properties[PropertyKey.RECONSUME_TIME] = str(times + 1)
        if level == DEAD_LETTER:
            # 0: the broker moves it to the dead-letter queue at once.
            properties[PropertyKey.MAX_RECONSUME_TIMES] = "0"
            if reason:
                # 1 and 2 separate properties.
                properties[REASON_PROPERTY] = reason.translate({1: " ", 2: " "})[:1024]
        else:
            properties[PropertyKey.MAX_RECONSUME_TIMES] = str(self.max_times)
            # Apache's delay for this attempt.
            properties[PropertyKey.DELAY] = str(level or 3 + times)
        text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
        prepared = Prepared(
            RETRY_PREFIX + self._group,
            bytes(record.body),
            (message.message_id,),
            text,
            record.flag,
            # The body is sent as it was stored; transaction bits are not.
            record.sys_flag & _COMPRESSION_BITS,
        )
        await self._inner.send_prepared(prepared, timeout=_SEND_BACK_TIMEOUT_MS / 1000)
