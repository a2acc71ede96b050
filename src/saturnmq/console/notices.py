"""Sends alarms: as JSON to a web address, or by e-mail.

Addresses come from the command line only, so no user of the console can make it connect elsewhere; redirects are not followed.

Requirements: CON-07, OPS-17, SEC-22.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from saturnmq.admin.mail import Mailer
from saturnmq.admin.monitoring import post_json
from saturnmq.protocol.errors import ConfigError

Send = Callable[[dict[str, Any]], Awaitable[None]]


def webhook(url: str) -> Send:
    """Posts each alarm to an http or https address, within 10 s. Raises ConfigError for another address."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--webhook {url!r:.100} must be an http:// or https:// address")

    async def send(document: dict[str, Any]) -> None:
        await post_json(url, json.dumps(document).encode())

    return send


def mail(mailer: Mailer) -> Send:
    """Mails each alarm."""

    async def send(document: dict[str, Any]) -> None:
        state = "began" if document["began"] else "ended"
        await mailer.send(f"{document['rule']} {state}: {document['what']}", document)

    return send
