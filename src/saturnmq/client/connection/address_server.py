"""The NameServer list from an HTTP server, for clusters that publish it there.

Used only if the `address_server` setting has a URL; redirects to other schemes are not followed.

Requirements: PR-07, PR-08, API-03.
"""

from __future__ import annotations

import asyncio
from typing import Final

from saturnmq.client.connection.url import parse_addresses
from saturnmq.config.settings import without_credentials
from saturnmq.errors import NoNameServer
from saturnmq.protocol.errors import ConfigError

ANSWER_BYTES_MAX: Final = 65_536
TIMEOUT_S: Final = 3.0
FIRST_REFRESH_MS: Final = 10_000
REFRESH_MS: Final = 120_000


def _download(url: str) -> str:
    # `urlopen` would also open file: and ftp: URLs.
    if not url.startswith(("http://", "https://")):
        raise NoNameServer(f"address server {without_credentials(url)} must be an http:// or https:// URL")
    import urllib.request  # takes a tenth of the time in which a command starts

    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the scheme is checked above
            # Bounded: the answer is not trusted.
            return str(answer.read(ANSWER_BYTES_MAX).decode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        raise NoNameServer(f"address server {without_credentials(url)} does not answer: {error}") from error


async def fetch_addresses(url: str, unit: str | None) -> tuple[str, ...]:
    """The addresses in the first line of the response, separated by `;`. unit: appended to the URL as `-<unit>?nofix=1`.

    Raises NoNameServer if there is no usable response.
    """
    text = await asyncio.to_thread(_download, f"{url}-{unit}?nofix=1" if unit else url)
    try:
        addresses = parse_addresses(text.strip().partition("\n")[0])
    except ConfigError as error:
        raise NoNameServer(f"address server {without_credentials(url)} gives no NameServer list: {error}") from error
    if not addresses:
        raise NoNameServer(f"address server {without_credentials(url)} gives an empty NameServer list")
    return addresses
