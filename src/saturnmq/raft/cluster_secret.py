"""Authenticates the exchanges between members with a shared secret (docs/decisions/0013-cluster-secret.md).

Requests and responses carry one ext field, which Java members ignore:

    request    sender.receiver.number.mac    mac = HMAC-SHA256(secret, "request" sender receiver number code body)
    response   receiver.mac                  mac = HMAC-SHA256(secret, "response" mac-of-the-request receiver code body)

sender, receiver: random names of the two processes' lifetimes, 16 bytes in hexadecimal. number: counts the requests of a sender to
one receiver. A receiver accepts each number once, so a recorded request cannot be replayed; no clock takes part. The first request
to a process does not know its name and is refused with a signed response that contains it; the caller then sends it again.

Requirements: SEC-18.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from enum import Enum, auto
from typing import Final

from saturnmq.protocol.frames.command import Command

FIELD: Final = "saturnmqMac"
SECRET_VARIABLE: Final = "SATURNMQ_CLUSTER_SECRET"  # noqa: S105 - the name of a variable
SECRET_BYTES_MIN: Final = 16
WINDOW: Final = 4096  # numbers behind the highest one that may still arrive, after a reconnect
_SENDERS_MAX: Final = 64
_MASK: Final = (1 << WINDOW) - 1
_DIGITS_MAX: Final = 18
_UNKNOWN_RECEIVER: Final = "0"  # the receiver's name is not known yet


class Verdict(Enum):
    """Result of checking a request. STALE: the sender is authentic, but the request is for another process or a repetition."""

    UNSIGNED = auto()
    AUTHENTIC = auto()
    STALE = auto()
    FORGED = auto()


class _Numbers:
    """The numbers seen from one sender."""

    __slots__ = ("_bitmap", "_highest")

    def __init__(self) -> None:
        self._highest = -1
        self._bitmap = 0

    def is_new(self, number: int) -> bool:
        """Record a number; False if it was seen before, or is too old to be checked."""
        ahead = number - self._highest
        if ahead > 0:
            # Shifted by the window at most: a number far ahead must not build a huge integer.
            self._bitmap = (self._bitmap << min(ahead, WINDOW) | 1) & _MASK
            self._highest = number
            return True
        # Too old for the bitmap: it may have been seen.
        if -ahead >= WINDOW or self._bitmap >> -ahead & 1:
            return False
        self._bitmap |= 1 << -ahead
        return True


class ClusterSecret:
    """Signs and checks with one secret; `required`: unsigned requests and responses are refused."""

    def __init__(self, secret: str, *, required: bool = False) -> None:
        self.required = required
        self.name = secrets.token_hex(16)
        self._key = secret.encode()
        self._receivers: dict[str, str] = {}  # address of a peer -> the name of its process
        self._numbers: dict[str, int] = {}  # name of a receiver -> number of the last request to it
        self._numbers_by_sender: OrderedDict[str, _Numbers] = OrderedDict()  # by sender, least recently used first

    @classmethod
    def of(cls, secret: str, *, required: bool) -> ClusterSecret | None:
        """None without a secret."""
        return cls(secret, required=required) if secret else None

    # ---- requests

    def sign(self, address: str, command: Command) -> None:
        """Add the signature of a request to the peer at this address."""
        receiver = self._receivers.get(address, _UNKNOWN_RECEIVER)
        # Counted before the request is sent: a lost one leaves a gap, a repeated number would be refused.
        number = self._numbers[receiver] = self._numbers.get(receiver, 0) + 1
        head = f"{self.name}.{receiver}.{number}"
        command.ext[FIELD] = f"{head}.{self._mac('request', head, command)}"

    def check(self, command: Command) -> Verdict:
        """Check a received request and record its number."""
        field = command.ext.get(FIELD)
        if field is None:
            return Verdict.UNSIGNED
        head, _, mac = field.rpartition(".")
        parts = head.split(".")
        # In constant time; an error in the form counts as forged, not as unsigned.
        if len(parts) != 3 or not hmac.compare_digest(mac.encode(), self._mac("request", head, command).encode()):
            return Verdict.FORGED
        sender, receiver, number = parts
        # Only after the signature: a stranger must not find out this process's name.
        if receiver != self.name or not number.isdecimal() or len(number) > _DIGITS_MAX:
            return Verdict.STALE
        numbers = self._numbers_by_sender.get(sender)
        if numbers is None:
            numbers = self._numbers_by_sender[sender] = _Numbers()
            # Each restart of a peer is a new sender.
            if len(self._numbers_by_sender) > _SENDERS_MAX:
                self._numbers_by_sender.popitem(last=False)
        self._numbers_by_sender.move_to_end(sender)
        return Verdict.AUTHENTIC if numbers.is_new(int(number)) else Verdict.STALE

    # ---- responses

    def sign_response(self, request: Command, response: Command) -> None:
        """Add the signature of the response to a signed request."""
        field = request.ext.get(FIELD)
        if field is not None:
            # Bound to the request by its mac: a recorded response fits no other request.
            head = f"{field.rpartition('.')[2]}.{self.name}"
            response.ext[FIELD] = f"{self.name}.{self._mac('response', head, response)}"

    def check_response(self, address: str, request: Command, response: Command) -> bool:
        """Whether the response may be used: it is authentic, or unsigned while signatures are not required."""
        field = response.ext.get(FIELD)
        if field is None:
            return not self.required
        name, _, mac = field.partition(".")
        head = f"{request.ext.get(FIELD, '').rpartition('.')[2]}.{name}"
        if not hmac.compare_digest(mac.encode(), self._mac("response", head, response).encode()):
            return False
        if self._receivers.get(address) != name:
            # The former process of this peer has ended, and its count with it.
            self._numbers.pop(self._receivers.get(address, ""), None)
            self._receivers[address] = name
        return True

    def knows_another(self, address: str, request: Command) -> bool:
        """Whether the peer's process has another name than the one for which the request was signed: it is to be sent again."""
        parts = request.ext.get(FIELD, "").split(".")
        return len(parts) == 4 and self._receivers.get(address, _UNKNOWN_RECEIVER) != parts[1]

    def _mac(self, kind: str, head: str, command: Command) -> str:
        # The lengths are in the text, so that no two exchanges have the same bytes.
        prefix = f"saturnmq-dledger {kind} {head} {command.code} {len(command.body or b'')} ".encode(errors="replace")
        return hmac.digest(self._key, prefix + (command.body or b""), "sha256").hex()
