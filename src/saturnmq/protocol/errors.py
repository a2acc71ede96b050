"""All exception classes of SaturnMQ that do not belong to one package. Attributes carry what callers need; texts are for people.

SaturnError
  LocalProtocolError    this process broke the protocol
  RemoteProtocolError   the peer did (FrameError, HeaderError, MessageError, BodyError)
  ConfigError           unusable settings; carries all problems at once
  StoreError            CorruptRecord, ResourceExhausted (DiskFull, OutOfDescriptors), StoreLocked, FlushFailed
  ResponseError         a response other than SUCCESS; one class per response code

Requirements: API-30.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from saturnmq.protocol.codes import ResponseCode


class SaturnError(Exception):
    """Base class of all SaturnMQ errors.

    code: the response code, or None if no response caused the error.
    retryable: whether the same call may succeed later or on another broker.
    broker: name or "ip:port" of the broker that reported the error, if known.
    hint: what to do next, if known; it is appended to the message by `str`.

        try:
            await producer.send("orders", b"paid")
        except SaturnError as error:
            print(error, error.code, error.retryable)
    """

    code: int | None = None
    retryable: bool = False

    def __init__(self, message: str = "", *, broker: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.broker = broker
        self.hint = hint

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        end = "" if self.message.endswith((".", "?", "!", ":")) else "."
        return f"{self.message}{end} {self.hint}"


class LocalProtocolError(SaturnError):
    """A request or value that the protocol does not allow, detected before it was sent."""


class RemoteProtocolError(SaturnError):
    """Bytes from a peer that violate the protocol. The connection they came from is not usable afterwards.

    decoded: the commands that the same read completed before the invalid bytes.
    """

    decoded: Sequence[Any] = ()


class FrameError(RemoteProtocolError):
    """A frame with impossible lengths or an unknown serialization type (REM-02)."""


class HeaderError(RemoteProtocolError):
    """A header that does not parse, or a header field whose text does not have the expected type."""


class MissingField(HeaderError):
    """A required header field is absent. Answered with SYSTEM_ERROR; the connection stays open (REM-08)."""

    def __init__(self, field: str) -> None:
        super().__init__(f"the custom field <{field}> is null")
        self.field = field


class MessageError(RemoteProtocolError):
    """Message, batch or property bytes that do not parse."""


class BodyError(RemoteProtocolError):
    """A JSON (or compressed) body that does not parse."""


class ConfigError(SaturnError):
    """Unusable settings. `problems` lists all of them, one sentence each.

    except ConfigError as error:
        for problem in error.problems:
            print(problem)
    """

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("; ".join(self.problems))


class StoreError(SaturnError):
    """The store cannot carry out an operation."""


class CorruptRecord(StoreError):
    """Bytes on disk that are not a valid record."""


class ResourceExhausted(StoreError):
    """A resource of the machine is used up for now. Nothing is lost, and the same call may succeed later."""


class DiskFull(ResourceExhausted):
    """No disk space for a new file."""


class OutOfDescriptors(ResourceExhausted):
    """No file descriptor or no memory is left to open or map a file."""


class StoreLocked(StoreError):
    """Another process has locked the store."""


class FlushFailed(StoreError):
    """A flush to disk failed; no message is acknowledged afterwards."""


class InvariantBroken(SaturnError):
    """An internal invariant is violated. Must never be caught in order to continue."""


def invariant(condition: object, why: str) -> None:
    """Raise InvariantBroken unless condition holds. Unlike assert, it is not removed by -O."""
    if not condition:
        raise InvariantBroken(why)


class ResponseError(SaturnError):
    """A broker or NameServer answered with a code other than SUCCESS; each known response code has a subclass.

    code: the response code. remark: the text of the response. refresh_route: the route is stale; update it before a retry.

        try:
            await producer.send("orders", b"paid")
        except ResponseError as error:
            print(error.code, error.remark)
    """

    response_code: ClassVar[ResponseCode | None] = None
    refresh_route: ClassVar[bool] = False

    def __init__(
        self, remark: str = "", *, code: int | None = None, broker: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(remark, broker=broker, hint=hint)
        if code is not None:
            self.code = int(code)
        elif self.response_code is not None:
            self.code = int(self.response_code)
        self.remark = remark


_BY_CODE: Final[dict[int, type[ResponseError]]] = {}


def _define(
    name: str, code: ResponseCode, doc: str, *, retryable: bool = False, refresh_route: bool = False
) -> type[ResponseError]:
    """Create and register the class for one code. A second class for the same code fails at import."""
    if code in _BY_CODE:
        raise RuntimeError(f"two error classes for response code {code}")
    cls = type(
        name,
        (ResponseError,),
        {
            "__doc__": doc,
            "__module__": __name__,
            "response_code": code,
            "code": int(code),
            "retryable": retryable,
            "refresh_route": refresh_route,
        },
    )
    _BY_CODE[int(code)] = cls
    return cls


# Name, code, meaning; retryable: the Java producer retries on it (PR-16); refresh_route: update the route before a retry.
SystemError_ = _define("SystemError_", ResponseCode.SYSTEM_ERROR, "The peer failed (1).", retryable=True)
SystemBusy = _define("SystemBusy", ResponseCode.SYSTEM_BUSY, "Flow control (2).", retryable=True)
RequestCodeNotSupported = _define(
    "RequestCodeNotSupported", ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "Unknown code (3)."
)
FlushDiskTimeout = _define("FlushDiskTimeout", ResponseCode.FLUSH_DISK_TIMEOUT, "Stored, not yet on disk (10).")
SlaveNotAvailable = _define("SlaveNotAvailable", ResponseCode.SLAVE_NOT_AVAILABLE, "Stored, no replica (11).")
FlushSlaveTimeout = _define("FlushSlaveTimeout", ResponseCode.FLUSH_SLAVE_TIMEOUT, "Stored, replica late (12).")
MessageIllegal = _define("MessageIllegal", ResponseCode.MESSAGE_ILLEGAL, "Too long or malformed (13).")
ServiceNotAvailable = _define(
    "ServiceNotAvailable",
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "Not writable: slave, stopped or disk full (14).",
    retryable=True,
)
NoPermission = _define("NoPermission", ResponseCode.NO_PERMISSION, "Permission denied (16).", retryable=True)
TopicNotExist = _define(
    "TopicNotExist", ResponseCode.TOPIC_NOT_EXIST, "The topic does not exist (17).", retryable=True, refresh_route=True
)
PullNotFound = _define("PullNotFound", ResponseCode.PULL_NOT_FOUND, "No message yet (19).")
PullRetryImmediately = _define(
    "PullRetryImmediately", ResponseCode.PULL_RETRY_IMMEDIATELY, "Nothing matched, pull again (20)."
)
PullOffsetMoved = _define("PullOffsetMoved", ResponseCode.PULL_OFFSET_MOVED, "The offset is out of range (21).")
QueryNotFound = _define("QueryNotFound", ResponseCode.QUERY_NOT_FOUND, "Nothing found (22).")
SubscriptionParseFailed = _define(
    "SubscriptionParseFailed", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "The filter expression is invalid (23)."
)
SubscriptionNotExist = _define(
    "SubscriptionNotExist", ResponseCode.SUBSCRIPTION_NOT_EXIST, "The group does not subscribe to the topic (24)."
)
SubscriptionNotLatest = _define(
    "SubscriptionNotLatest", ResponseCode.SUBSCRIPTION_NOT_LATEST, "The broker has a newer subscription (25)."
)
SubscriptionGroupNotExist = _define(
    "SubscriptionGroupNotExist", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "The consumer group does not exist (26)."
)
FilterDataNotExist = _define("FilterDataNotExist", ResponseCode.FILTER_DATA_NOT_EXIST, "No compiled filter (27).")
FilterDataNotLatest = _define(
    "FilterDataNotLatest", ResponseCode.FILTER_DATA_NOT_LATEST, "An older compiled filter (28)."
)
NoBuyerId = _define("NoBuyerId", ResponseCode.NO_BUYER_ID, "Legacy (204).", retryable=True)
NotInCurrentUnit = _define("NotInCurrentUnit", ResponseCode.NOT_IN_CURRENT_UNIT, "Legacy (205).", retryable=True)
ConsumerNotOnline = _define(
    "ConsumerNotOnline", ResponseCode.CONSUMER_NOT_ONLINE, "The consumer is not connected (206)."
)
ConsumeMessageTimeout = _define(
    "ConsumeMessageTimeout", ResponseCode.CONSUME_MSG_TIMEOUT, "The consumer did not answer (207)."
)
NoMessage = _define("NoMessage", ResponseCode.NO_MESSAGE, "A query found nothing (208).")
UpdateAclFailed = _define(
    "UpdateAclFailed", ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED, "Account not saved (209)."
)
DeleteAclFailed = _define("DeleteAclFailed", ResponseCode.DELETE_ACL_CONFIG_FAILED, "Account not deleted (210).")
UpdateWhiteAddressesFailed = _define(
    "UpdateWhiteAddressesFailed", ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED, "White list not saved (211)."
)
FlowControl = _define("FlowControl", ResponseCode.FLOW_CONTROL, "Slow down (215).", retryable=True)


def response_error(
    code: int, remark: str | None = None, *, broker: str | None = None, hint: str | None = None
) -> ResponseError:
    """Create the exception for a response code; a plain ResponseError for codes without a class."""
    cls = _BY_CODE.get(code, ResponseError)
    return cls(remark or f"response code {code}", code=code, broker=broker, hint=hint)
