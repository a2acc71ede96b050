"""Sends alarms: as JSON to a web address, or by e-mail.

Addresses come from the command line only, so no user of the console can make it connect elsewhere; redirects are not followed.

Requirements: CON-07, OPS-17, SEC-22.
"""

from __future__ import annotations

import asyncio
import json
import smtplib
from collections.abc import Awaitable, Callable
from email.message import EmailMessage
from typing import Any, Final

from saturnmq.admin.monitoring import post_json
from saturnmq.escaping import escaped
from saturnmq.protocol.errors import ConfigError

MAIL_SECONDS: Final = 10.0
Send = Callable[[dict[str, Any]], Awaitable[None]]


def webhook(url: str) -> Send:
    """Posts each alarm to an http or https address, within 10 s. Raises ConfigError for another address."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--webhook {url!r:.100} must be an http:// or https:// address")

    async def send(document: dict[str, Any]) -> None:
        await post_json(url, json.dumps(document).encode())

    return send


def mail(server: str, sender: str, receivers: str) -> Send:
    """Mails each alarm over an SMTP server, host:port, within 10 s. receivers: separated by commas. Raises ConfigError."""
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(f"--mail-server {server!r:.100} must be host:port")
    if "@" not in sender or "@" not in receivers or any(ord(sign) < 32 for sign in sender + receivers):
        raise ConfigError("--mail-from and --mail-to must be e-mail addresses")

    def deliver(document: dict[str, Any]) -> None:
        letter = EmailMessage()
        state = "began" if document["began"] else "ended"
        letter["Subject"] = escaped(f"[SaturnMQ] {document['rule']} {state}: {document['what']}")[:200]
        letter["From"], letter["To"] = sender, receivers
        letter.set_content("\n".join(f"{name}: {escaped(str(value))}" for name, value in document.items()))
        with smtplib.SMTP(host.strip("[]"), int(port), timeout=MAIL_SECONDS) as smtp:
            smtp.send_message(letter)

    async def send(document: dict[str, Any]) -> None:
        await asyncio.to_thread(deliver, document)

    return send
