"""TLS on the same port as plain connections, detected by the first byte.

A stream keeps the TLS state of one connection in memory buffers: the connection feeds it the received bytes and writes its output.
This works identically on every event loop and for any chunking of the first bytes. See docs/spec/00 section 3.6.

Unlike Apache RocketMQ, a client verifies its server by default, and no throw-away certificate is ever made: a
listener without certificate accepts plain connections only, and does not start if its mode is enforcing.

Requirements: REM-29, REM-30, SEC-05, SEC-15.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from saturnmq.config.settings import key
from saturnmq.protocol.errors import ConfigError
from saturnmq.tasks import cancel, one_round, supervised

log = logging.getLogger(__name__)

TLS_CLIENT_HELLO: Final = 0x16  # first byte of a TLS connection; a valid plain frame starts with 0 (REM-29)
WATCH_INTERVAL_MS: Final = 500
_READ_BYTES: Final = 65_536
_RECORD_HEADER_BYTES: Final = 5  # type, version, length of the rest
_VERIFY_MODES: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


class TlsMode(Enum):
    """How a listener treats TLS connections (first byte 0x16) and plain ones."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Apache RocketMQ's `tls.*` keys. As there, an unknown mode counts as permissive; unsupported settings are rejected.

    Unlike there, `tls.client.authServer` is true by default. `tls.client.checkHost` is a key of SaturnMQ.
    """

    mode: str = key("tls.server.mode", "permissive", spec="REM-29")
    enable: bool = key("tls.enable", False, spec="REM-29")
    use_tls: bool = key("useTLS", False, spec="CFG-03")
    need_client_auth: str = key("tls.server.need.client.auth", "none", choices=("none", "optional", "require"))
    server_key_path: str = key("tls.server.keyPath", "")
    server_key_password: str = key("tls.server.keyPassword", "", secret=True)
    server_cert_path: str = key("tls.server.certPath", "")
    server_trust_path: str = key("tls.server.trustCertPath", "")
    server_auth_client: bool = key("tls.server.authClient", False)
    client_key_path: str = key("tls.client.keyPath", "")
    client_key_password: str = key("tls.client.keyPassword", "", secret=True)
    client_cert_path: str = key("tls.client.certPath", "")
    client_trust_path: str = key("tls.client.trustCertPath", "")
    client_auth_server: bool = key("tls.client.authServer", True, spec="SEC-15")
    client_check_host: bool = key("tls.client.checkHost", True, spec="SEC-15")
    test_mode: bool = key("tls.test.mode.enable", False, spec="REM-29")
    config_file: str = key("tls.config.file", "", spec="REM-29")

    def validate(self) -> list[str]:
        """Problems, one sentence each. Also warns about valid settings that do not have the effect they seem to have."""
        problems = []
        if self.test_mode:
            problems.append(
                "tls.test.mode.enable=true: this version makes no throw-away certificate; set tls.server.certPath and "
                "tls.server.keyPath to files of your own, and remove this key"
            )
        if self.config_file:
            problems.append(
                f"tls.config.file={self.config_file}: this version reads no second file; write its tls.* keys into this one, "
                "and remove this key"
            )
        if self.enable and not self.client_auth_server:
            log.warning(
                "tls.client.authServer=false: this process trusts any server that it connects to; set it to true and "
                "tls.client.trustCertPath to the certificate of your CA"
            )
        if self.server_auth_client and self.need_client_auth == "none":
            log.warning(
                "tls.server.authClient=true has no effect: no client is asked for a certificate while "
                "tls.server.need.client.auth=none; set it to require"
            )
        if self.plain_without_certificate:
            log.warning(
                "tls.server.need.client.auth=require: plain connections, which tls.server.mode=%s accepts, need no certificate; "
                "set tls.server.mode=enforcing",
                self.server_mode.value,
            )
        return problems

    @property
    def plain_without_certificate(self) -> bool:
        """Whether clients need a certificate, but only those that choose TLS."""
        return self.need_client_auth == "require" and self.server_mode is not TlsMode.ENFORCING

    @property
    def server_mode(self) -> TlsMode:
        try:
            return TlsMode(self.mode.lower())
        except ValueError:
            return TlsMode.PERMISSIVE


def server_context(settings: TlsSettings) -> ssl.SSLContext | None:
    """The TLS context of a listener; None when no certificate is configured. Raises ConfigError naming the file.

    Also raises ConfigError if the mode is enforcing and no certificate is configured.
    """
    if not settings.server_cert_path:
        if settings.server_mode is TlsMode.ENFORCING:
            raise ConfigError(
                "tls.server.mode=enforcing needs a certificate: set tls.server.certPath and tls.server.keyPath to PEM files"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client could make the server repeat handshakes without end.
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load(context, settings.server_cert_path, settings.server_key_path, settings.server_key_password, "tls.server")
    context.verify_mode = _VERIFY_MODES[settings.need_client_auth]
    if (
        context.verify_mode is not ssl.CERT_NONE
    ):  # a client certificate is always verified, whatever tls.server.authClient says
        _trust(context, settings.server_trust_path, "tls.server.trustCertPath")
    return context


def bare_client_context(*, verify: bool, check_host: bool = True) -> ssl.SSLContext:
    """The TLS context of a client that trusts no certificate yet; without verify every server is accepted.

    A certificate that is trusted later may also be the server's own.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A trusted certificate may be the server's own, without its CA.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Without verification a name proves nothing.
    context.check_hostname = verify and check_host
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The TLS context of a client: the server's certificate must be trusted and name the host that was connected to.

    A trusted certificate may also be the server's own. Without `tls.client.authServer` every server is accepted.
    """
    context = bare_client_context(verify=settings.client_auth_server, check_host=settings.client_check_host)
    if settings.client_auth_server:
        _trust(context, settings.client_trust_path, "tls.client.trustCertPath")
    if settings.client_cert_path:
        _load(context, settings.client_cert_path, settings.client_key_path, settings.client_key_password, "tls.client")
    return context


def _load(context: ssl.SSLContext, certificate: str, private_key: str, password: str, prefix: str) -> None:
    try:
        context.load_cert_chain(certificate, private_key or None, password=password or None)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{prefix}.certPath={certificate} with {prefix}.keyPath={private_key}: {error}; "
            "both must be readable PEM files that belong together"
        ) from error


def _trust(context: ssl.SSLContext, path: str, name: str) -> None:
    try:
        if path:
            context.load_verify_locations(path)
        else:
            context.load_default_certs()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{name}={path}: {error}; must be a PEM file of trusted certificates") from error


class TlsStream:
    """TLS state of one connection. Errors are OSError (ssl.SSLError)."""

    __slots__ = ("_header", "_incoming", "_object", "_outgoing", "_pending_plaintext", "_record_bytes_pending", "ready")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self.ready = False  # the handshake is complete
        self._pending_plaintext: list[bytes] = []  # written before the handshake completed
        self._header = b""  # part of a record's header that has arrived
        self._record_bytes_pending = 0  # bytes of the current record that have not

    @property
    def record_pending(self) -> bool:
        """Whether part of a TLS record has arrived and the rest has not."""
        return self._record_bytes_pending > 0 or bool(self._header)

    def _follow_records(self, data: bytes) -> None:
        at, end = 0, len(data)
        while at < end:
            if self._record_bytes_pending:
                step = min(self._record_bytes_pending, end - at)
                self._record_bytes_pending -= step
            else:
                step = min(_RECORD_HEADER_BYTES - len(self._header), end - at)
                self._header += data[at : at + step]
                if len(self._header) == _RECORD_HEADER_BYTES:
                    # The last two bytes of the header are the length of the rest.
                    self._record_bytes_pending, self._header = int.from_bytes(self._header[3:], "big"), b""
            at += step

    def start(self) -> None:
        """Begin the handshake (client side)."""
        self._handshake()

    def feed(self, data: bytes) -> bytes:
        """Decrypt received bytes; return the plain bytes that are complete."""
        self._incoming.write(data)
        self._follow_records(data)
        # Application data may follow the last message of the handshake in the same read.
        if not self.ready and not self._handshake():
            return b""
        parts = []
        while True:
            try:
                part = self._object.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            # The peer closed TLS; TCP reports the end separately.
            except ssl.SSLZeroReturnError:
                break
            if not part:
                break
            parts.append(part)
        return b"".join(parts)

    def write(self, plaintext: bytes) -> None:
        """Encrypt plain bytes; buffered until the handshake completes."""
        if self.ready:
            self._object.write(plaintext)
        else:
            self._pending_plaintext.append(plaintext)

    def outgoing(self) -> bytes:
        """Encrypted bytes to write to the socket."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def _handshake(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.ready = True
        # Written before the handshake was complete, in order.
        for plaintext in self._pending_plaintext:
            self._object.write(plaintext)
        self._pending_plaintext.clear()
        return True


class ContextHolder:
    """The current server context, reloaded when its files change (REM-30).

    A changed trust file reloads at once; certificate and key only after both have changed. Only files that exist at start are
    watched. A failed reload keeps the old context and is logged.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        self.context = server_context(settings)
        self._sums = {path: digest for path in self._paths() if (digest := _digest(path)) is not None}
        self._changed: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def _paths(self) -> list[str]:
        s = self.settings
        return [path for path in (s.server_cert_path, s.server_key_path, s.server_trust_path) if path]

    def check(self) -> bool:
        """Check the files once; return whether the context was reloaded.

        Unusable files are tried again at every check, but logged only once per change.
        """
        changed_now = False
        for path, loaded_digest in list(self._sums.items()):
            # A file that is missing or being replaced is looked at again at the next check.
            digest = _digest(path)
            if digest is not None and digest != loaded_digest:
                self._sums[path] = digest
                self._changed.add(path)
                changed_now = True
        # Only files that existed at the start are watched.
        pair = {self.settings.server_cert_path, self.settings.server_key_path} & set(self._sums)
        trust_changed = self.settings.server_trust_path in self._changed
        # Certificate and key are replaced one after the other: between the two they do not match.
        if not trust_changed and not (pair and pair <= self._changed):
            return False
        try:
            self.context = server_context(self.settings)
        except ConfigError as error:
            level = logging.ERROR if changed_now else logging.DEBUG
            log.log(level, "tls reload failed, previous files in use error=%s", error)
            # The trust file is tried again when it changes once more, the pair of certificate and key at every check.
            self._changed -= {self.settings.server_trust_path}
            return False
        self._changed.clear()
        log.info("tls files reloaded cert=%s", self.settings.server_cert_path)
        return True

    def choose(self, first_byte: int) -> tuple[TlsStream | None, str | None]:
        """Decide by the first byte and tls.server.mode (table in docs/spec/00 section 3.6): TLS or None, and why not."""
        mode = self.settings.server_mode
        if first_byte != TLS_CLIENT_HELLO:
            return None, "plain connection, but tls.server.mode=enforcing" if mode is TlsMode.ENFORCING else None
        if mode is TlsMode.DISABLED:
            return None, "TLS connection, but tls.server.mode=disabled"
        if self.context is None:
            return (
                None,
                "TLS connection, but no certificate is configured: set tls.server.certPath and tls.server.keyPath",
            )
        return TlsStream(self.context, server_side=True), None

    def watch(self, interval_ms: int = WATCH_INTERVAL_MS) -> None:
        """Start the task that checks the files periodically; `stop` ends it."""
        if self._sums:
            self._task = supervised(self._watch(interval_ms), "tls files")

    async def _watch(self, interval_ms: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await one_round("tls files", lambda: loop.run_in_executor(None, self.check))

    async def stop(self) -> None:
        """End the watching task."""
        if self._task is not None:
            await cancel(self._task)
            self._task = None


def _digest(path: str) -> bytes | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        return None
