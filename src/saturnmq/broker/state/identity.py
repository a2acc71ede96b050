"""The address that a broker advertises, known once it listens, and what is derived from it.

Requirements: SND-10, SND-13.
"""

from __future__ import annotations

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
