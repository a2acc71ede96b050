"""E-mails of reports and alarms over an SMTP server.

Requirements: RT-14, CON-07.
"""

from __future__ import annotations

import asyncio
import smtplib
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Final

from saturnmq.escaping import escaped
from saturnmq.protocol.errors import ConfigError

MAIL_SECONDS: Final = 10.0
_SUBJECT_MAX: Final = 200


class Mailer:
    """Sends letters over an SMTP server, host:port, without TLS or a login: a relay on this machine or network.

    receivers: separated by commas. option: how errors name the server, as in `--mail-server`. Raises ConfigError.

    Example:
        await Mailer("127.0.0.1:25", "saturnmq@example.org", "ops@example.org").send("lag", {"group": "billing"})
    """

    def __init__(self, server: str, sender: str, receivers: str, *, option: str = "--mail") -> None:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ConfigError(f"{option}-server {server!r:.100} must be host:port")
        if "@" not in sender or "@" not in receivers or any(ord(sign) < 32 for sign in sender + receivers):
            raise ConfigError(f"{option}-from and {option}-to must be e-mail addresses")
        self._host, self._port = host.strip("[]"), int(port)
        self._sender, self._receivers = sender, receivers

    async def send(self, subject: str, fields: Mapping[str, object]) -> None:
        """Send one letter within 10 s: a line per field, control characters escaped. Raises OSError, smtplib.SMTPException."""
        await asyncio.to_thread(self._deliver, subject, fields)

    def _deliver(self, subject: str, fields: Mapping[str, object]) -> None:
        letter = EmailMessage()
        letter["Subject"] = escaped(f"[SaturnMQ] {subject}")[:_SUBJECT_MAX]
        letter["From"], letter["To"] = self._sender, self._receivers
        letter.set_content("\n".join(f"{name}: {escaped(str(value))}" for name, value in fields.items()))
        with smtplib.SMTP(self._host, self._port, timeout=MAIL_SECONDS) as smtp:
            smtp.send_message(letter)
