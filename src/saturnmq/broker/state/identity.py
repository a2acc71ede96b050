"""The address that a broker advertises, known once it listens, what is derived from it, and the broker's role.

Requirements: SND-10, SND-13.
"""

from __future__ import annotations

import socket
from typing import Protocol

from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.message import NO_HOST, Host, pack_host

_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound


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


class BrokerRole(Protocol):
    """Whether this broker currently is a slave of another one."""

    @property
    def slave(self) -> bool: ...


class FixedRole:
    """Role of a broker without a group: it does not change."""

    __slots__ = ("slave",)

    def __init__(self, *, slave: bool = False) -> None:
        self.slave = slave


def own_address(family: socket.AddressFamily) -> str:
    """Local address of the route to other hosts, or the loopback address if there is no route.

    A UDP socket is connected to a documentation address to ask the kernel; no packet is sent.
    """
    # Addresses for documentation, which are not in use anywhere.
    elsewhere, loopback = ("2001:db8::1", "::1") if family == socket.AF_INET6 else ("192.0.2.1", "127.0.0.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((elsewhere, 9))
        except OSError:
            return loopback
        return str(probe.getsockname()[0])


def advertised(host: str) -> tuple[str, str]:
    """The host that clients get for a configured or bound one, and its IP address; a wildcard becomes the machine's own address.

    Of a name with addresses of both families, an IPv4 address is taken, as in Java.
    Raises ConfigError if brokerIP1 cannot be looked up.
    """
    host = host.removeprefix("[").removesuffix("]")
    if host in _WILDCARDS:
        host = own_address(socket.AF_INET6 if host == "::" else socket.AF_INET)
    try:
        address_infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        # IPv4 first; the order of the resolver else.
        return host, str(min(address_infos, key=lambda info: info[0] != socket.AF_INET)[4][0])
    except OSError as error:
        raise ConfigError(f"brokerIP1={host!r} is no address and cannot be looked up: {error}") from error
