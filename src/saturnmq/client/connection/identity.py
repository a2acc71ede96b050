"""Identity of a client: its client id and the unique ids of its messages.

Requirements: API-06, PR-06, PR-23, MSG-05.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

from saturnmq.protocol.ids import UniqueIds


def local_ip(peer: str) -> str:
    """The local IP used for traffic to `host:port`; 127.0.0.1 if it cannot be determined. No packet is sent (UDP connect)."""
    host, _, port = peer.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"


def client_id(ip: str, instance: str | None, unit: str | None) -> str:
    """`<ip>@<instance>[@<unit>]`; the default instance is `<pid>#<64 random bits>`, so that ids are unique."""
    name = instance or f"{os.getpid()}#{secrets.randbits(64)}"
    return f"{ip}@{name}@{unit}" if unit else f"{ip}@{name}"


def month_start_ms(now_s: float) -> int:
    """Start of the current month, local time, in Unix ms. now_s: Unix seconds."""
    local = time.localtime(now_s)
    return int(time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000


class MessageIds:
    """Generates the unique message ids of one client. The start of the month is recomputed at most once a minute."""

    __slots__ = ("_checked_s", "_ids")

    def __init__(self, ip: str) -> None:
        now_s = time.time()
        try:
            socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
        except OSError:
            ip = "127.0.0.1"
        self._ids = UniqueIds(ip, os.getpid(), secrets.randbits(32), month_start_ms(now_s))
        self._checked_s = now_s

    def next(self, now_s: float) -> str:
        """The next id. now_s: Unix seconds."""
        if now_s - self._checked_s > 60.0:
            self._check_month(now_s)
        return self._ids.next(int(now_s * 1000))

    def take(self, now_s: float, count: int) -> tuple[str, int]:
        """Reserve that many ids: the digits that they share, and the counter of the first. now_s: Unix seconds."""
        if now_s - self._checked_s > 60.0:
            self._check_month(now_s)
        return self._ids.take(int(now_s * 1000), count)

    def _check_month(self, now_s: float) -> None:
        self._checked_s = now_s
        self._ids.set_month_start(month_start_ms(now_s))
