"""Errors of connections and calls between processes, other than invalid bytes.

Requirements: REM-16, REM-19, UX-09.
"""

from __future__ import annotations

from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import SaturnError


class StartError(SaturnError, OSError):
    """A listener cannot be opened. The message names host, port and cause; the hint says what to do."""


class ConnectFailed(SaturnError, ConnectionError):
    """No connection to an address could be established."""

    code = ResponseCode.CONNECT_BROKER
    retryable = True


class SendFailed(SaturnError, ConnectionError):
    """The connection closed before the response arrived; whether the peer executed the request is unknown."""

    code = ResponseCode.CONNECT_BROKER
    retryable = True


class CallTimeout(SaturnError, TimeoutError):
    """No response in time; whether the peer executed the request is unknown."""

    code = ResponseCode.REQUEST_TIMEOUT
    retryable = True


class NoPermit(CallTimeout):
    """No permit became free in time (REM-19). Nothing was sent, and the connection is not at fault."""


class TooManyRequests(SaturnError):
    """All permits are taken and the caller did not want to wait (REM-19)."""

    retryable = True
