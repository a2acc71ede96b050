"""All errors that callers of SaturnMQ meet: those of connections, calls and the client, and the base classes of the others.

The numbers are Apache RocketMQ's client error codes; no response on the wire carries those above 10000.

SaturnError
  ResponseError                                  response of a peer other than SUCCESS; one class per response code
  ConfigError                                    unusable settings
  StartError, TooManyRequests                    port that cannot be opened; all permits of calls are taken
  ClientError
    NotStarted, Closed, WrongLoop, GroupInUse    wrong state, event loop or group name
    ForkedClient                                 used in a forked child
    ConnectFailed (10001), CallTimeout (10002)   transport, retryable; NoPermit: nothing was sent
    BrokerNotExist (10003), NoNameServer (10004) no peer to call, retryable
    RouteNotFound (10005)                        no NameServer has a route for the topic
    SendFailed, PartialSend                      retries exhausted
    TransactionRolledBack, ReplyTimeout (10006)  half message not durable; request not answered
    OffsetOutOfRange                             seek outside the queue
    DecodeError                                  body that the codec cannot decode
    RegistryError                                schema that the schema registry has not, or does not answer for
    ConsumerStopped, ProducerStopped             a background task died
    AlreadySettled                               message settled twice, with different verdicts
  LocalProtocolError
    MessageRefused (13), EncodeError             message that cannot be sent, detected before any I/O
    Unsupported                                  not supported by these brokers

Requirements: API-30 (codes: spec 00, section 6), REM-16, REM-19, UX-09.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ConfigError as ConfigError
from saturnmq.protocol.errors import LocalProtocolError as LocalProtocolError
from saturnmq.protocol.errors import RemoteProtocolError as RemoteProtocolError
from saturnmq.protocol.errors import ResponseError as ResponseError
from saturnmq.protocol.errors import SaturnError as SaturnError

if TYPE_CHECKING:
    from saturnmq.client.receipt import Receipt

LISTED_MAX: Final = 8  # causes listed in the text of an error


class ClientError(SaturnError):
    """Base of the errors that this process raises for connections, routes, retries and the state of a client.

    Errors derive from `SaturnError` and carry `code`, `retryable`, `broker` and `hint`.

    Example:
        try:
            await out.send("orders", b"hello")
        except SaturnError as error:  # a ClientError, or a ResponseError from the broker
            print(error.code, error.retryable, error.broker, error.hint)
    """


class NotStarted(ClientError):
    """A client, producer or consumer was used before `start()`."""


class Closed(ClientError):
    """A client, producer or consumer was used after `stop()`; it cannot be started again."""


class WrongLoop(ClientError):
    """A client was used on another event loop than the one it was started on; use `saturnmq.sync` across threads.

    Also raised by `saturnmq.sync` inside a running event loop, which its calls would block.
    """


class ForkedClient(ClientError):
    """A client was used in a forked child of the process that started it; create clients after the fork."""


class GroupInUse(ClientError):
    """The group is already registered with this Client."""


class AlreadySettled(ClientError):
    """The message was already settled with another verdict.

    Example:
        await message.ack()
        await message.ack()  # no effect
        await message.retry()  # raises AlreadySettled
    """


class ConnectFailed(ClientError):
    """No connection to a peer, or the connection was lost before the response.

    reason: the cause in a few words, such as "connection refused". sent: the request may have been written, so its outcome is
    unknown.
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
    """No response within the timeout; whether the peer executed the request is unknown."""

    reason = "timed out"

    code = int(ResponseCode.ACCESS_BROKER_TIMEOUT)
    retryable = True


class NoPermit(CallTimeout):
    """No permit became free in time (REM-19). Nothing was sent, and the connection is not at fault."""


class TooManyRequests(SaturnError):
    """All permits are taken and the caller did not want to wait (REM-19)."""

    retryable = True


class StartError(SaturnError, OSError):
    """A listener cannot be opened. The message names host, port and cause; the hint says what to do."""


class BrokerNotExist(ClientError):
    """No known route has an address of this broker."""

    code = int(ResponseCode.BROKER_NOT_EXIST)
    retryable = True


class NoNameServer(ClientError):
    """No NameServer is configured, or none can be reached; the text names each one tried, and why it failed."""

    code = int(ResponseCode.NO_NAME_SERVER)
    retryable = True


class RouteNotFound(ClientError):
    """No NameServer has a route for the topic, and it cannot be created automatically; `hint` has the command that creates it.

    While brokers are not registered that may have the topic, `hint` names them instead, and `broker` has their names.
    """

    code = int(ResponseCode.NOT_FOUND_TOPIC)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One failed attempt of a send. broker, address: who was asked, empty if no broker was. after_ms: when it failed.

    Example:
        except SendFailed as error:
            for attempt in error.failures:
                print(attempt.after_ms, attempt.broker, attempt.address, attempt.error)
    """

    broker: str
    address: str
    after_ms: int
    error: SaturnError

    @property
    def cause(self) -> str:
        """Broker, address and error in a few words."""
        error = self.error
        reason = error.reason if isinstance(error, ConnectFailed | CallTimeout) else error.message
        peer = "@".join(part for part in (self.broker, self.address) if part)
        return f"{peer}: {reason:.160}" if peer else f"{reason:.160}"


def listed(failures: Sequence[FailedAttempt]) -> str:
    """Failed attempts as text; consecutive ones with the same cause are one entry, the last LISTED_MAX entries are given."""
    runs = [(cause, list(attempts)) for cause, attempts in groupby(failures, key=lambda attempt: attempt.cause)]
    entries = [
        f"after {attempts[0].after_ms} ms {cause}"
        if len(attempts) == 1
        else f"after {attempts[0].after_ms}..{attempts[-1].after_ms} ms {len(attempts)} attempts, {cause}"
        for cause, attempts in runs[-LISTED_MAX:]
    ]
    omitted = len(failures) - sum(len(attempts) for _, attempts in runs[-LISTED_MAX:])
    return "; ".join([f"{omitted} earlier"] * bool(omitted) + entries)


class SendFailed(ClientError):
    """All attempts of one send failed. `__cause__` is the error of the last attempt, `code` its code.

    attempts, elapsed_ms, brokers: how often, for how long and where it was tried; failures: each attempt with its address, time
    and error. outcome_unknown: an attempt that failed may nevertheless have stored the message; all attempts carried the same
    message id.

    Example:
        try:
            await out.send("orders", b"hello")
        except SendFailed as error:
            print(error.attempts, error.brokers, error.outcome_unknown)
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
        failures: Sequence[FailedAttempt] = (),
    ) -> None:
        names = ", ".join(brokers)
        text = (
            f"Send [{attempts}] times, still failed, cost [{elapsed_ms}]ms, Topic: {topic}, BrokersSent: [{names}], "
            f"group: {group}. Last: {cause}"
        )
        if len(failures) > 1:
            text += f". Attempts: {listed(failures)}."
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
        self.failures = list(failures)


class PartialSend(ClientError):
    """Some messages of a `send_many` were stored, others were not.

    receipts: (index, receipt) of the stored messages; failed: (index, error) of the others; both ordered by index.

    Example:
        try:
            await out.send_many("orders", values)
        except PartialSend as error:
            again = [values[index] for index, _ in error.failed]
    """

    def __init__(self, receipts: list[tuple[int, Receipt]], failed: list[tuple[int, SaturnError]]) -> None:
        first = failed[0][1]
        super().__init__(f"{len(failed)} of {len(receipts) + len(failed)} messages were not sent; first: {first}")
        self.receipts = receipts
        self.failed = failed
        self.code = first.code
        self.retryable = any(error.retryable for _, error in failed)


class TransactionRolledBack(ClientError):
    """The half message was stored, but its durability is not confirmed: it was rolled back and the block was not run."""


class ReplyTimeout(ClientError):
    """The request was stored, but no consumer replied to it in time."""

    code = int(ResponseCode.REQUEST_TIMEOUT)
    retryable = True


class OffsetOutOfRange(ClientError):
    """A seek to an offset that the broker does not have; the position is unchanged."""

    code = int(ResponseCode.PULL_OFFSET_MOVED)


class Unsupported(LocalProtocolError):
    """The brokers do not support the request, such as a delay other than a delay level; nothing was sent."""


class MessageRefused(LocalProtocolError):
    """The topic, body or properties of the message are invalid; detected before any I/O."""

    code = int(ResponseCode.MESSAGE_ILLEGAL)


class EncodeError(LocalProtocolError):
    """The codec cannot encode the value; detected before any I/O."""


class DecodeError(ClientError):
    """The codec cannot decode the body of the message; raised by `Message.value`."""


class RegistryError(ClientError):
    """A schema registry refuses a request, does not have the schema, or does not answer in time (`retryable`)."""

    def __init__(self, message: str, *, hint: str | None = None, retryable: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.retryable = retryable


class ConsumerStopped(ClientError):
    """A background task of the consumer died; `__cause__` is its error."""


class ProducerStopped(ClientError):
    """A background task of the client died, so the producer cannot send; `__cause__` is its error."""
