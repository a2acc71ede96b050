"""Looks up NameServer addresses at an HTTP address server, which answers `host:port;host:port`.

Requirements: NS-36, PR-08.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from saturnmq.config.settings import without_credentials
from saturnmq.net.client import split_addresses
from saturnmq.protocol.errors import ConfigError

TIMEOUT_SECONDS: Final = 3.0
ANSWER_BYTES_MAX: Final = 65_536
_PORT: Final = 8080


class LookupFailed(Exception):
    """The address server cannot be reached, or its answer is not a list of addresses."""


async def look_up(domain: str, subgroup: str) -> list[str]:
    """Fetch the addresses from http://domain:8080/rocketmq/subgroup; a port in domain overrides 8080. Raises LookupFailed."""
    host, _, port = domain.partition(":")
    # HTTP/1.0: no chunks, and the end of the connection ends the answer.
    request = f"GET /rocketmq/{subgroup} HTTP/1.0\r\nHost: {domain}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(host, int(port or _PORT), limit=ANSWER_BYTES_MAX)
            try:
                writer.write(request.encode("ascii"))
                answer = b""
                # Bounded: the server is named by a setting, but its answer is not trusted.
                while len(answer) <= ANSWER_BYTES_MAX and (data := await reader.read(ANSWER_BYTES_MAX)):
                    answer += data
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, ValueError, OverflowError) as error:  # includes TimeoutError; a port above 65535
        raise LookupFailed(f"address server {domain}: {type(error).__name__}: {error}") from error
    return parse(answer)


def parse(answer: bytes) -> list[str]:
    """Parse the addresses from an HTTP response. Raises LookupFailed."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    # Longer than the limit: the answer is not complete.
    if not separator or len(answer) > ANSWER_BYTES_MAX or len(status) < 2 or status[1] != b"200":
        raise LookupFailed(f"the address server answered {head[:80]!r}")
    text = body.decode("ascii", "replace").strip()
    try:
        addresses = split_addresses(text)
    except ConfigError as error:
        raise LookupFailed(
            f"the address server's list is {without_credentials(text[:80])!r}: {error.message}"
        ) from error
    if not addresses:
        raise LookupFailed("the address server's list is empty")
    return addresses
