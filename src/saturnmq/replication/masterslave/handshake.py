"""Opening of a connection to the HA port, when SaturnMQ is at both ends: TLS, a proof of the shared secret, or both.

A slave that uses neither begins with its first report, like one of Apache RocketMQ. Any other sends an opening of 8 bytes and
continues once the master has repeated them, first with the TLS handshake, then with its introduction. A Java master reads an
opening as a negative offset, which has no effect there; TLS records or a signature would acknowledge everything.

An introduction is a request signed with the cluster secret of DLedger groups (decision 0013), and so is its response: both
sides prove the secret, and nothing recorded can be used again. The stream behind it is not signed: TLS protects it.

Channels do no I/O: they are fed with received bytes, and call `send` with bytes for the socket.

Requirements: SEC-19.
"""

# Opening, 8 bytes:
#    0  0xFF "SATURN"
#    7  u8  slave: 1 TLS follows, 2 an introduction follows; master: the same, or a Refusal
# Introduction, inside TLS if there is TLS: frames of the remoting protocol (docs/spec/00) without body, signed as in
# raft/cluster_secret.py: request INTRODUCE of the slave, response of the master.

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from saturnmq.net.tls import TLS_CLIENT_HELLO, ContextHolder, TlsStream
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.frames.command import Command, FrameLimits, encode_frame
from saturnmq.protocol.frames.decoder import FrameDecoder
from saturnmq.raft.cluster_secret import ClusterSecret, Verdict

INTRODUCE: Final = 51901
OPENING_BYTES: Final = 8
MAGIC: Final = b"\xffSATURN"
TLS: Final = 1
SECRET: Final = 2
_LIMITS: Final = FrameLimits(frame_bytes_max=2048, header_bytes_max=2048)
_REQUESTS_MAX: Final = 2  # the first one learns the name of the receiver's process
_NO_TLS_BYTE: Final = 0  # first byte of a connection without TLS, as in `ContextHolder.choose`


class Refusal(IntEnum):
    """Why a master does not accept an opening."""

    NO_TLS = 0x81
    TLS_NEEDED = 0x82
    NO_SECRET = 0x84
    SECRET_NEEDED = 0x88
    UNKNOWN_OPENING = 0xFF


REFUSALS: Final = {
    Refusal.NO_TLS: "it accepts no TLS: see tls.server.certPath, tls.server.mode, haTlsEnable there, or set haTlsEnable=false here",
    Refusal.TLS_NEEDED: "it accepts TLS only: set tls.enable=true and haTlsEnable=true here",
    Refusal.NO_SECRET: "it has no haClusterSecret: set it there, or remove it here",
    Refusal.SECRET_NEEDED: "it accepts this host with a secret only: set haClusterSecret here",
    Refusal.UNKNOWN_OPENING: "it does not know this opening",
}


class _State(Enum):
    OPENING = 0
    INTRODUCTION = 1
    STREAM = 2


class _Channel:
    """The bytes of one connection, encrypted once TLS is agreed on."""

    __slots__ = ("_decoder", "_held", "_requests", "_send", "_state", "_tls")

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send
        self._tls: TlsStream | None = None
        self._state = _State.OPENING
        self._held = b""
        self._decoder = FrameDecoder(_LIMITS)
        self._requests = 0

    @property
    def established(self) -> bool:
        """Whether what follows is the stream of reports and frames."""
        return self._state is _State.STREAM

    @property
    def encrypted(self) -> bool:
        """Whether TLS is used."""
        return self._tls is not None

    def write(self, data: bytes) -> None:
        """Send bytes. Raises RemoteProtocolError if TLS has failed."""
        if self._tls is None:
            self._send(data)
            return
        try:
            self._tls.write(data)
        except OSError as error:
            raise RemoteProtocolError(f"TLS failed: {error}") from error
        self._send_encrypted()

    def feed(self, data: bytes) -> bytes:
        """Take received bytes; returns those of the stream. Raises RemoteProtocolError."""
        if self._tls is not None:
            # Decrypted first: the opening is plain, everything after it may be encrypted.
            data = self._decrypt(self._tls, data)
        while data and not self.established:
            if self._state is _State.OPENING:
                data = self._hold_opening(data)
            else:
                # One frame at a time: what follows the introduction belongs to the stream.
                commands, data = self._decoder.feed(data, 1), self._decoder.undecoded
                if commands:
                    self._introduction(commands[0])
        return data

    def _decrypt(self, tls: TlsStream, data: bytes) -> bytes:
        try:
            return tls.feed(data)
        except OSError as error:
            raise RemoteProtocolError(f"TLS failed: {error}") from error
        finally:
            # Also after an error: TLS has an alert for the peer.
            self._send_encrypted()

    def _send_encrypted(self) -> None:
        data = self._tls.outgoing() if self._tls is not None else b""
        if data:
            self._send(data)

    def _hold_opening(self, data: bytes) -> bytes:
        """Collect the opening and act on it; returns the bytes behind it."""
        data = self._held + data
        if len(data) < OPENING_BYTES:
            self._held = data
            return b""
        self._held = b""
        return self._opening(data[:OPENING_BYTES], data[OPENING_BYTES:])

    def _opening(self, opening: bytes, following: bytes) -> bytes:
        raise NotImplementedError

    def _introduction(self, command: Command) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms that a master offers: TLS by tls.server.mode, and the secret, None if it has none."""

    tls: ContextHolder
    secret: ClusterSecret | None


class MasterChannel(_Channel):
    """The master's end. trusted: whether the slave's address suffices, without a proof of the secret."""

    __slots__ = ("_terms", "_trusted")

    def __init__(self, send: Callable[[bytes], object], terms: Terms, *, trusted: bool) -> None:
        super().__init__(send)
        self._terms = terms
        self._trusted = trusted

    def _opening(self, opening: bytes, following: bytes) -> bytes:
        if not opening.startswith(MAGIC):
            self._check_plain()
            self._state = _State.STREAM
            return opening + following
        wants = opening[-1]
        refusal, problem, tls = self._judge(wants)
        # Bytes after an opening were not protected by the TLS that it asks for.
        if refusal is None and following:
            refusal, problem = Refusal.UNKNOWN_OPENING, "bytes behind the opening"  # sent before it was answered
        if refusal is not None:
            self._send(MAGIC + bytes([refusal]))
            raise RemoteProtocolError(problem)
        # Repeated before TLS starts: the slave waits for it.
        self._send(opening)
        self._tls = tls
        self._state = _State.INTRODUCTION if wants & SECRET else _State.STREAM
        return b""

    def _check_plain(self) -> None:
        """Raise RemoteProtocolError unless a connection without opening is accepted."""
        refusal, problem, _ = self._judge(0)
        if refusal is not None:
            raise RemoteProtocolError(problem)

    def _judge(self, wants: int) -> tuple[Refusal | None, str, TlsStream | None]:
        """Why an opening is not accepted, or None, and the TLS that it asks for."""
        if wants & ~(TLS | SECRET):
            return (
                Refusal.UNKNOWN_OPENING,
                f"opening with flags {wants}, known are {TLS} for TLS and {SECRET} for a secret",
                None,
            )
        tls, problem = self._terms.tls.choose(TLS_CLIENT_HELLO if wants & TLS else _NO_TLS_BYTE)
        if problem:
            return Refusal.NO_TLS if wants & TLS else Refusal.TLS_NEEDED, problem, None
        if wants & SECRET and self._terms.secret is None:
            return Refusal.NO_SECRET, "the slave introduces itself, but haClusterSecret is not set here", None
        # haAllowedAddresses: such a slave, a Java one for instance, needs no proof.
        if not wants & SECRET and not self._trusted:
            return (
                Refusal.SECRET_NEEDED,
                "the slave does not prove haClusterSecret, and its address does not suffice",
                None,
            )
        return None, "", tls

    def _introduction(self, command: Command) -> None:
        secret = self._terms.secret
        assert secret is not None, "the opening was accepted"
        self._requests += 1
        verdict = secret.check(command) if command.code == INTRODUCE else Verdict.UNSIGNED
        code, remark = ResponseCode.NO_PERMISSION, "the request is not signed with the master's haClusterSecret"
        if verdict is Verdict.AUTHENTIC:
            code, remark = ResponseCode.SUCCESS, ""
        # The first request does not know this process's name and is refused with it.
        elif verdict is Verdict.STALE:
            remark = "the request is for another process or was used before"
        reply = command.reply(code, remark or None)
        secret.sign_response(command, reply)
        # The refusal too: it carries the name for the second try.
        self.write(encode_frame(reply))
        if verdict is Verdict.AUTHENTIC:
            self._state = _State.STREAM
        elif verdict is not Verdict.STALE or self._requests >= _REQUESTS_MAX:
            raise RemoteProtocolError(f"introduction refused: {remark}")


class SlaveChannel(_Channel):
    """The slave's end. address: of the master, `host:port`; context, secret: None if not used."""

    __slots__ = ("_address", "_context", "_request", "_secret")

    def __init__(
        self,
        send: Callable[[bytes], object],
        address: str,
        context: ssl.SSLContext | None,
        secret: ClusterSecret | None,
    ) -> None:
        super().__init__(send)
        self._address = address
        self._context = context
        self._secret = secret
        self._request = Command(INTRODUCE)
        if context is None and secret is None:
            self._state = _State.STREAM

    @property
    def _wants(self) -> int:
        return (TLS if self._context is not None else 0) | (SECRET if self._secret is not None else 0)

    def start(self) -> None:
        """Send the opening, if there is one."""
        if not self.established:
            self._send(MAGIC + bytes([self._wants]))

    def _opening(self, opening: bytes, following: bytes) -> bytes:
        # A master does not send before it has the next bytes of this slave.
        if opening != MAGIC + bytes([self._wants]) or following:
            is_refusal = opening.startswith(MAGIC) and opening[-1] in REFUSALS
            text = REFUSALS[Refusal(opening[-1])] if is_refusal else f"{opening!r} is no answer to an opening"
            raise RemoteProtocolError(f"the master refuses this slave: {text}")
        if self._context is not None:
            host = self._address.rpartition(":")[0].strip("[]")
            self._tls = TlsStream(self._context, server_side=False, server_hostname=host)
            self._tls.start()
            self._send_encrypted()
        self._state = _State.STREAM
        if self._secret is not None:
            self._state = _State.INTRODUCTION
            self._introduce(self._secret)
        return b""

    def _introduce(self, secret: ClusterSecret) -> None:
        self._requests += 1
        self._request = Command(INTRODUCE)
        secret.sign(self._address, self._request)
        self.write(encode_frame(self._request))

    def _introduction(self, command: Command) -> None:
        secret = self._secret
        assert secret is not None, "an introduction was sent"
        # Checked before the code: a refusal must be authentic, too.
        if not secret.check_response(self._address, self._request, command):
            raise RemoteProtocolError(f"the master has another haClusterSecret: {command.remark!r:.200}")
        if command.code == ResponseCode.SUCCESS:
            self._state = _State.STREAM
        elif self._requests < _REQUESTS_MAX and secret.knows_another(self._address, self._request):
            self._introduce(secret)
        else:
            raise RemoteProtocolError(f"the master refuses the introduction: {command.remark!r:.200}")
