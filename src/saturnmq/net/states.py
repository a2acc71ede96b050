"""Life of a connection as data: its states, and the transition that each event causes.

Rules: this module imports nothing of the package and knows no bytes. `Connection` changes its state only through this table, so a
pair that is missing here cannot happen; `KeyError` then shows a programming error. `Connection.closed` is true in the states
of `CLOSED_STATES`: nothing more can be sent in them.

Whether a connection is read while it is open is decided by `limits.Limits`. Whether its bytes are TLS is decided once, by the first
byte (server) or by configuration (client).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class ConnectionState(Enum):
    """Where a connection is in its life."""

    NEW = auto()  # no transport yet
    OPEN = auto()  # requests, responses and calls in both directions
    CLOSING = auto()  # closed by this side; queued output is written unless the connection was aborted
    DRAINING = auto()  # the peer reset the connection; requests that it sent before are handled without responses
    CLOSED = auto()  # the transport is closed and the endpoint has been notified


class ConnectionEvent(Enum):
    """What changes the state."""

    CONNECTED = auto()  # the transport is connected
    CLOSE = auto()  # this side closes: `close`, `refuse` or `abort`
    RESET = auto()  # the transport failed with an error, and bytes that arrived before may be unread
    LOST = auto()  # the transport is closed


TRANSITIONS: Final[dict[tuple[ConnectionState, ConnectionEvent], ConnectionState]] = {
    (ConnectionState.NEW, ConnectionEvent.CONNECTED): ConnectionState.OPEN,
    (ConnectionState.OPEN, ConnectionEvent.CLOSE): ConnectionState.CLOSING,
    (ConnectionState.OPEN, ConnectionEvent.RESET): ConnectionState.DRAINING,
    (ConnectionState.OPEN, ConnectionEvent.LOST): ConnectionState.CLOSED,
    (ConnectionState.CLOSING, ConnectionEvent.CLOSE): ConnectionState.CLOSING,
    (ConnectionState.CLOSING, ConnectionEvent.LOST): ConnectionState.CLOSED,
    # Invalid bytes, or a handler closed: the rest is not handled.
    (ConnectionState.DRAINING, ConnectionEvent.CLOSE): ConnectionState.CLOSED,
    (ConnectionState.DRAINING, ConnectionEvent.LOST): ConnectionState.CLOSED,
    (ConnectionState.CLOSED, ConnectionEvent.CLOSE): ConnectionState.CLOSED,
    (ConnectionState.CLOSED, ConnectionEvent.LOST): ConnectionState.CLOSED,
}
CLOSED_STATES: Final = frozenset({ConnectionState.CLOSING, ConnectionState.DRAINING, ConnectionState.CLOSED})
