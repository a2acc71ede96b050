"""E-mails of reports and alarms over an SMTP server, by TLS unless it is a relay on this machine.

The password is read from a file or the environment only, because arguments of a process are visible to every user of its machine.

Requirements: RT-14, CON-07.
"""

from __future__ import annotations

import asyncio
import os
import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Final

from saturnmq.escaping import escaped
from saturnmq.net.tls import bare_client_context
from saturnmq.protocol.addresses import is_local
from saturnmq.protocol.errors import ConfigError, SaturnError

STEP_TIMEOUT_SECONDS: Final = 10.0
STARTTLS: Final = "starttls"
IMPLICIT_TLS: Final = "implicit"
NO_TLS: Final = "none"
TLS_CHOICES: Final = (STARTTLS, IMPLICIT_TLS, NO_TLS)
PASSWORD_VARIABLE: Final = "SATURNMQ_MAIL_PASSWORD"  # noqa: S105 - the name of a variable
_IMPLICIT_PORT: Final = 465
_SUBJECT_MAX: Final = 200
_PASSWORD_BYTES_MAX: Final = 4096


class MailError(SaturnError):
    """The mail server rejected the connection as configured: its TLS, its certificate or its login."""


@dataclass(frozen=True)
class MailAccess:
    """TLS and login of an SMTP server.

    tls: `starttls` (required, no fallback), `implicit` (from the first byte) or `none`; empty: implicit on port 465, none on
    loopback without a login, otherwise starttls. ca: PEM file of trusted certificates instead of the system's. verify: whether
    the certificate must be trusted and name the host.
    """

    tls: str = ""
    ca: Path | None = None
    verify: bool = True
    user: str = ""
    password: str = field(default="", repr=False)


def read_password(path: Path | None, *, option_prefix: str = "--mail") -> str:
    """The password in a file, without white space around it; that of SATURNMQ_MAIL_PASSWORD if path is None. Raises ConfigError."""
    if path is None:
        return os.environ.get(PASSWORD_VARIABLE, "")
    try:
        with path.open("rb") as file:
            password = file.read(_PASSWORD_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"{option_prefix}-password-file {path} cannot be read: {reason}") from None
    if not password:
        raise ConfigError(f"{option_prefix}-password-file {path} is empty; it must hold the password and nothing else")
    return password


class Mailer:
    """Sends messages over an SMTP server, host:port.

    recipients: separated by commas. option_prefix: of option names in errors, `--mail` for `--mail-server`. Raises ConfigError.

    Example:
        await Mailer("127.0.0.1:25", "saturnmq@example.org", "ops@example.org").send("lag", {"group": "billing"})
    """

    def __init__(
        self,
        server: str,
        sender: str,
        recipients: str,
        *,
        access: MailAccess | None = None,
        option_prefix: str = "--mail",
    ) -> None:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ConfigError(f"{option_prefix}-server {server!r:.100} must be host:port")
        if "@" not in sender or "@" not in recipients or any(ord(character) < 32 for character in sender + recipients):
            raise ConfigError(f"{option_prefix}-from and {option_prefix}-to must be e-mail addresses")
        self.server: Final = server
        self._host, self._port = host.strip("[]"), int(port)
        self._sender, self._recipients = sender, recipients
        self._access, self._option_prefix = access or MailAccess(), option_prefix
        self._check_login()
        self.tls: Final = self._access.tls or self._default_tls()
        self._tls_context = self._build_tls_context()

    @property
    def is_local_server(self) -> bool:
        """Whether the server is on this machine."""
        return self._host == "localhost" or is_local(self._host)

    def _default_tls(self) -> str:
        if self._port == _IMPLICIT_PORT:
            return IMPLICIT_TLS
        return NO_TLS if self.is_local_server and not self._access.user else STARTTLS

    def _check_login(self) -> None:
        user, password, prefix = self._access.user, self._access.password, self._option_prefix
        if user and not password:
            raise ConfigError(
                f"{prefix}-user {user!r:.100} needs a password: {prefix}-password-file FILE, or the environment variable "
                f"{PASSWORD_VARIABLE}"
            )
        if password and not user:
            raise ConfigError(f"a password for {self.server} needs {prefix}-user NAME")
        if not (user + password).isascii() or not (user + password).isprintable():
            raise ConfigError(f"{prefix}-user and its password for {self.server} must be printable ASCII characters")

    def _build_tls_context(self) -> ssl.SSLContext | None:
        """The TLS context, None without TLS. Raises ConfigError."""
        access, prefix = self._access, self._option_prefix
        if self.tls not in TLS_CHOICES:
            raise ConfigError(f"{prefix}-tls {self.tls!r:.100} must be {STARTTLS}, {IMPLICIT_TLS} or {NO_TLS}")
        if self.tls == NO_TLS:
            if access.user and not self.is_local_server:
                raise ConfigError(
                    f"{prefix}-tls none sends the password of {access.user!r:.100} in clear text to {self.server}; "
                    f"use {prefix}-tls starttls or implicit"
                )
            if access.ca is not None:
                raise ConfigError(
                    f"{prefix}-ca {access.ca} has no effect without TLS; use {prefix}-tls starttls or implicit"
                )
            return None
        context = bare_client_context(verify=access.verify)
        try:
            if access.ca is not None:
                context.load_verify_locations(access.ca)
            else:
                context.load_default_certs()
        except OSError as error:
            raise ConfigError(
                f"{prefix}-ca {access.ca}: {error}; it must be a PEM file of trusted certificates"
            ) from error
        return context

    async def send(self, subject: str, fields: Mapping[str, object]) -> None:
        """Send one message: a line per field, control characters escaped. Each SMTP step may take 10 s.

        Raises OSError, smtplib.SMTPException, and MailError for TLS and login.
        """
        await asyncio.to_thread(self._deliver, subject, fields)

    def _deliver(self, subject: str, fields: Mapping[str, object]) -> None:
        message = EmailMessage()
        message["Subject"] = escaped(f"[SaturnMQ] {subject}")[:_SUBJECT_MAX]
        message["From"], message["To"] = self._sender, self._recipients
        message.set_content("\n".join(f"{name}: {escaped(str(value))}" for name, value in fields.items()))
        try:
            with self._connect() as smtp:
                self._secure(smtp)
                self._log_in(smtp)
                smtp.send_message(message)
        except ssl.SSLCertVerificationError as error:
            raise MailError(
                f"certificate of mail server {self.server} refused: {error.verify_message}; {self._option_prefix}-ca must be a PEM "
                f"file of the certificate or its CA, and {self._option_prefix}-server a name in the certificate"
            ) from error
        except ssl.SSLError as error:
            raise MailError(
                f"no TLS with mail server {self.server}: {error}; {self._option_prefix}-tls implicit is for ports with TLS from "
                f"the first byte, as 465, {self._option_prefix}-tls starttls for 587 and 25"
            ) from error

    def _connect(self) -> smtplib.SMTP:
        if self.tls == IMPLICIT_TLS:
            return smtplib.SMTP_SSL(self._host, self._port, timeout=STEP_TIMEOUT_SECONDS, context=self._tls_context)
        return smtplib.SMTP(self._host, self._port, timeout=STEP_TIMEOUT_SECONDS)

    def _secure(self, smtp: smtplib.SMTP) -> None:
        if self.tls != STARTTLS:
            return
        smtp.ehlo_or_helo_if_needed()
        if not smtp.has_extn("starttls"):
            raise MailError(
                f"mail server {self.server} offers no STARTTLS; use {self._option_prefix}-tls implicit for a port with TLS "
                f"from the first byte, as 465, or {self._option_prefix}-tls none for a relay in a trusted network"
            )
        smtp.starttls(context=self._tls_context)

    def _log_in(self, smtp: smtplib.SMTP) -> None:
        access, prefix = self._access, self._option_prefix
        if not access.user:
            return
        smtp.ehlo_or_helo_if_needed()
        if not smtp.has_extn("auth"):
            raise MailError(f"mail server {self.server} offers no login; use it without {prefix}-user")
        try:
            smtp.login(access.user, access.password)
        except smtplib.SMTPAuthenticationError as error:
            reply = (
                error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
            )
            raise MailError(
                f"mail server {self.server} refused the login of {access.user!r:.100}: {error.smtp_code} {escaped(reply):.200}"
                f"; check {prefix}-user and the password in {prefix}-password-file or {PASSWORD_VARIABLE}"
            ) from None
