"""The address that a broker advertises, known once it listens, and what is derived from it.

Requirements: SND-10, SND-13.
"""

from __future__ import annotations

import socket

from saturnmq.protocol.message import NO_HOST, Host, pack_host


class Identity:
    """Address of one broker as stored in records, in message ids and as clients use it; `NO_HOST` before it listens."""

    __slots__ = ("address", "id_prefix", "store_host")

    def __init__(self, store_host: Host = NO_HOST, address: str = "") -> None:
        self.set(store_host, address)

    def set(self, store_host: Host, address: str) -> None:
        """Set the address. store_host: as stored in records. address: as advertised to clients, `host:port`."""
        self.store_host = store_host
        self.address = address
        self.id_prefix = pack_host(store_host).hex().upper()  # of offset message ids


def own_address(family: socket.AddressFamily) -> str:
    """Local address of the route to other hosts, or the loopback address if there is no route.

    A UDP socket is connected to a documentation address to ask the kernel; no packet is sent.
    """
    elsewhere, loopback = ("2001:db8::1", "::1") if family == socket.AF_INET6 else ("192.0.2.1", "127.0.0.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((elsewhere, 9))
        except OSError:
            return loopback
        return str(probe.getsockname()[0])
