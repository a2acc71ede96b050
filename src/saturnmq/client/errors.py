"""Errors that only a client can have: nothing on the wire says them.

Source: spec 00 section 6 (10001-10007), spec 08 API-30.

ClientError
  NotStarted, Closed, WrongLoop, GroupInUse      used at the wrong time or place
  ForkedClient                                   used in a forked child
  ConnectFailed (10001), CallTimeout (10002)     transport, retryable
  BrokerNotExist (10003), NoNameServer (10004)   nobody to ask
  RouteNotFound (10005)                          the topic is nowhere
  SendFailed, PartialSend                        what is left after the retries
  TransactionRolledBack, ReplyTimeout (10006)    a transaction that cannot begin, a request that nobody answers
  MessageRefused (13), EncodeError, DecodeError  the message itself
  OffsetOutOfRange                               a seek to where the broker has nothing
  Unsupported                                    what these brokers cannot do
  ConsumerStopped, ProducerStopped               a background task died
  AlreadySettled                                 a message settled twice, differently
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import LocalProtocolError, SaturnError

if TYPE_CHECKING:
    from saturnmq.client.message import Receipt


class ClientError(SaturnError):
    """Base of the errors of this room."""


class NotStarted(ClientError):
    """Used before `start()`."""


class Closed(ClientError):
    """Used after `stop()`."""


class WrongLoop(ClientError):
    """Used from another event loop than the one it was started on (API-05)."""


class ForkedClient(ClientError):
    """Used in a child of the process that started it (API-32)."""


class GroupInUse(ClientError):
    """The group is already registered with this Client (PR-06)."""


class AlreadySettled(ClientError):
    """The message was settled before, in another way (API-19)."""


class ConnectFailed(ClientError):
    """No connection to a peer, or it was lost before the answer came.

    reason: the bare cause. sent: the request may have been written, so its outcome is unknown (API-25).
    """

    code = int(ResponseCode.CONNECT_BROKER)
    retryable = True

    def __init__(
        self, message: str, *, reason: str = "", sent: bool = False, broker: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, broker=broker, hint=hint)
        self.reason = reason or message
        self.sent = sent


class CallTimeout(ClientError):
    """No answer in time; whether the peer acted on the request is unknown (API-25)."""

    reason = "timed out"

    code = int(ResponseCode.ACCESS_BROKER_TIMEOUT)
    retryable = True


class BrokerNotExist(ClientError):
    """No route names an address for this broker (PR-22)."""

    code = int(ResponseCode.BROKER_NOT_EXIST)
    retryable = True


class NoNameServer(ClientError):
    """No NameServer is configured, or none can be reached (PR-10, UX-06)."""

    code = int(ResponseCode.NO_NAME_SERVER)
    retryable = True


class RouteNotFound(ClientError):
    """No NameServer knows the topic, and none can be created from the default topic (PR-10)."""

    code = int(ResponseCode.NOT_FOUND_TOPIC)


class SendFailed(ClientError):
    """All attempts of one send failed (PR-18). The last error is `__cause__`, its code is `code`.

    outcome_unknown: some attempt may have stored the message all the same (API-25); it kept its unique id.
    """

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        attempts: int,
        elapsed_ms: int,
        brokers: Sequence[str],
        cause: SaturnError,
        outcome_unknown: bool,
    ) -> None:
        names = ", ".join(brokers)
        text = (
            f"Send [{attempts}] times, still failed, cost [{elapsed_ms}]ms, Topic: {topic}, BrokersSent: [{names}], "
            f"group: {group}. Last: {cause}"
        )
        if outcome_unknown:
            text += " The outcome is unknown: the message may be stored."
        super().__init__(text, broker=cause.broker, hint=None)
        self.topic = topic
        self.group = group
        self.attempts = attempts
        self.elapsed_ms = elapsed_ms
        self.brokers = list(brokers)
        self.code = cause.code
        self.retryable = cause.retryable
        self.outcome_unknown = outcome_unknown


class PartialSend(ClientError):
    """Some messages of a `send_many` are stored, others are not.

    receipts: (index, receipt) of what was stored; failed: (index, error) of what was not, in order (API-11).
    """

    def __init__(self, receipts: list[tuple[int, Receipt]], failed: list[tuple[int, SaturnError]]) -> None:
        first = failed[0][1]
        super().__init__(f"{len(failed)} of {len(receipts) + len(failed)} messages were not sent; first: {first}")
        self.receipts = receipts
        self.failed = failed
        self.code = first.code
        self.retryable = any(error.retryable for _, error in failed)


class TransactionRolledBack(ClientError):
    """The first half of a transaction is stored without the wanted durability, so its work is not begun (TX-02)."""


class ReplyTimeout(ClientError):
    """The request is stored, but nobody answered it in time (RR-06)."""

    code = int(ResponseCode.REQUEST_TIMEOUT)
    retryable = True


class OffsetOutOfRange(ClientError):
    """A seek to an offset that the broker does not have; nothing was moved (CA-12)."""

    code = int(ResponseCode.PULL_OFFSET_MOVED)


class Unsupported(LocalProtocolError):
    """The brokers cannot do what is asked; nothing was sent (API-13)."""


class MessageRefused(LocalProtocolError):
    """The message cannot be sent to any broker; found before any I/O (PR-09)."""

    code = int(ResponseCode.MESSAGE_ILLEGAL)


class EncodeError(LocalProtocolError):
    """The codec cannot turn this value into bytes."""


class DecodeError(ClientError):
    """The codec cannot turn the bytes of this message into a value."""


class ConsumerStopped(ClientError):
    """A background task of the consumer died; the cause is `__cause__` (API-26)."""


class ProducerStopped(ClientError):
    """A background task of the producer died; the cause is `__cause__` (API-26)."""
