"""A client's request as a follower passes it to the leader of its group over the DLedger port (code 51901), and its answer.

    u32   length of the head
          head: JSON with client, account, waitMs
          the request of the client, as a frame

The answer:

    u8    outcome, one of `ForwardOutcome`
          for ANSWERED, the response of the leader's broker as a frame, with the client's opaque and serialization

The request code is the mark of a forwarded request: clients' ports do not know it. Any bytes either parse or raise BodyError.

Requirements: SEC-18. Decision: docs/decisions/0016-forwarding.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from saturnmq.broker.requests.table_row import CALLER
from saturnmq.net import Connection
from saturnmq.net.connection import ConnectionOwner
from saturnmq.protocol.codes import CommandFlag
from saturnmq.protocol.errors import BodyError, RemoteProtocolError
from saturnmq.protocol.frames.command import Command, FrameLimits, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder

_LENGTH: Final = struct.Struct(">I")
_TWOWAY: Final = ~int(CommandFlag.ONEWAY)
_HEAD_BYTES_MAX: Final = 65_536
_CLIENT_CHARS_MAX: Final = 100  # an IPv6 address with its zone and port
WAIT_MS_MAX: Final = 60_000


class ForwardOutcome(IntEnum):
    """Outcome of a forwarded request. Only an ANSWERED one was executed, whatever its response says."""

    ANSWERED = 0
    NOT_SERVING = 1  # this member does not lead, or not yet
    BUSY = 2  # too many forwarded requests of this follower are in flight
    NOT_FORWARDED = 3  # this version does not take the request code from followers


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """client: address of the client, `ip:port`. account: the one that the follower has checked; None without access control.

    wait_ms: how long a leader that does not serve yet may keep the request.
    """

    client: str
    account: str | None
    wait_ms: int
    request: Command

    def encode(self) -> bytes:
        """A one-way request is forwarded as one with a response, so that it counts as in flight until it is executed."""
        head = json.dumps({"client": self.client, "account": self.account, "waitMs": self.wait_ms}).encode()
        request = self.request
        sent = Command(
            request.code,
            ext=request.ext,
            body=request.body,
            opaque=request.opaque,
            flag=request.flag & _TWOWAY,
            language=request.language,
            version=request.version,
            serialization=request.serialization,
        )
        return b"".join((_LENGTH.pack(len(head)), head, encode_frame(sent)))

    @classmethod
    def decode(cls, body: bytes, limits: FrameLimits) -> ForwardedRequest:
        """Raises BodyError."""
        try:
            (length,) = _LENGTH.unpack_from(body)
            if length > _HEAD_BYTES_MAX:
                raise BodyError(
                    f"a forwarded request has a head of {length} bytes, at most {_HEAD_BYTES_MAX} are allowed"
                )
            at = _LENGTH.size + length
            fields = json.loads(body[_LENGTH.size : at])
            client, account, wait_ms = fields["client"], fields["account"], fields["waitMs"]
            decoder = FrameDecoder(limits)
            commands = decoder.feed(body[at:])
        except BodyError:
            raise
        except (struct.error, ValueError, KeyError, TypeError, RecursionError, RemoteProtocolError) as error:
            raise BodyError(f"a forwarded request cannot be read: {error}") from None
        if type(client) is not str or type(wait_ms) is not int or not (account is None or type(account) is str):
            raise BodyError("a forwarded request has a head with a field of another type")
        if not client.isprintable() or len(client) > _CLIENT_CHARS_MAX:
            raise BodyError("the client of a forwarded request has no address of the form ip:port")
        if len(commands) != 1 or decoder.pending_bytes or commands[0].is_response:
            raise BodyError("a forwarded request does not hold one request")
        return cls(client, account, min(max(wait_ms, 0), WAIT_MS_MAX), commands[0])


class ForwardedClient(Connection):
    """Stands for the client of one forwarded request on the leader: handlers see its address and account, and answer to it.

    It has no transport. The first response is passed to `answer`; it never closes.
    """

    def __init__(self, owner: ConnectionOwner, forwarded: ForwardedRequest, answer: Callable[[bytes], None]) -> None:
        super().__init__(owner)
        self.remote_address = forwarded.client
        self.attributes[CALLER] = forwarded.account
        self._answer: Callable[[bytes], None] | None = answer

    def send(self, command: Command | bytes) -> None:
        """Pass on the response. Raises LocalProtocolError for one that does not fit a frame."""
        answer = self._answer
        if answer is not None:
            frame = command if isinstance(command, bytes) else encode_frame(command)
            self._answer = None
            answer(frame)
