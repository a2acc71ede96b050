"""What can go wrong between two processes, beyond bad bytes. Source: REM-16, REM-19, UX-09."""

from __future__ import annotations

from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import SaturnError


class StartError(SaturnError, OSError):
    """A listener that cannot be opened: names host, port, cause and what to do."""

    def __str__(self) -> str:
        return SaturnError.__str__(self)


class ConnectFailed(SaturnError, ConnectionError):
    """No connection to an address."""

    code = ResponseCode.CONNECT_BROKER
    retryable = True

    def __str__(self) -> str:
        return SaturnError.__str__(self)


class SendFailed(SaturnError, ConnectionError):
    """The connection closed before the answer came; whether the peer acted on the request is not known."""

    code = ResponseCode.CONNECT_BROKER
    retryable = True

    def __str__(self) -> str:
        return SaturnError.__str__(self)


class CallTimeout(SaturnError, TimeoutError):
    """No answer in time; whether the peer acted on the request is not known."""

    code = ResponseCode.REQUEST_TIMEOUT
    retryable = True

    def __str__(self) -> str:
        return SaturnError.__str__(self)


class NoPermit(CallTimeout):
    """No permit came free in time (REM-19): nothing was sent, and the connection is not to blame."""


class TooManyRequests(SaturnError):
    """All permits of a semaphore are taken and the caller did not want to wait (REM-19)."""

    retryable = True
